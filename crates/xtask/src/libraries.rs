//! The crates from which others build guests and unikernels: checks what those users rely on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::layers::{Metadata, short};
use crate::tree::Tree;
use crate::{page, report, run};

/// Crates for other projects.
pub(crate) const CRATES: [&str; 5] = ["wire", "ring", "steering", "xenbus", "netfront"];
/// Those that need no operating system.
pub(crate) const BARE: [&str; 4] = ["wire", "ring", "steering", "xenbus"];
/// Machines without an operating system: a standard library does not exist for them.
const TARGETS: [&str; 2] = ["x86_64-unknown-none", "aarch64-unknown-none"];

const PAGE: &str = "docs/libraries.md";
/// Where a copy of the example is built.
const TARGET: &str = "target/libraries";

/// What keeps [`CRATES`], and what they are built of, from being published; and every other crate
/// that nothing keeps from it.
pub(crate) fn check(metadata: &Metadata, tree: &Tree) -> Vec<String> {
    let open = published(metadata);
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let is_closed = package.publish.as_ref().is_some_and(Vec::is_empty);
        if !open.contains(name) {
            let why = || format!("{name} may be published, and no public crate needs it");
            findings.extend((!is_closed).then(why));
            continue;
        }
        let fields = [
            ("publish", !is_closed),
            ("description", package.description.is_some()),
            ("license", package.license.is_some()),
        ];
        let wrong = fields.into_iter().filter(|(_, is_right)| !is_right);
        findings.extend(wrong.map(|(field, _)| format!("{name} cannot be published: `{field}`")));
        let needed = package.dependencies.iter().filter(|it| it.kind.as_deref() != Some("dev"));
        // A registry knows no folders.
        let versionless = needed.filter(|needed| needed.req == "*");
        findings.extend(versionless.map(|it| format!("{name} needs any version of {}", it.name)));
        let page = format!("crates/{}/src/lib.rs", short(name));
        if !tree.file(&page).is_some_and(|file| file.text.contains("\n//! ```\n")) {
            findings.push(format!("{page}: its description has no example"));
        }
    }
    findings
}

/// [`CRATES`] and the crates that they are built of.
fn published(metadata: &Metadata) -> BTreeSet<&str> {
    let (mut found, mut left) = (BTreeSet::new(), packages(&CRATES));
    while let Some(name) = left.pop() {
        let mut packages = metadata.packages.iter();
        let Some(package) = packages.find(|package| package.name == name) else { continue };
        if found.insert(package.name.as_str()) {
            let needed = package.dependencies.iter();
            let needed = needed.filter(|it| it.path.is_some() && it.kind.as_deref() != Some("dev"));
            left.extend(needed.map(|it| it.name.clone()));
        }
    }
    found
}

/// What CI does.
pub(crate) fn ci(root: &Path) -> Result<()> {
    for target in TARGETS {
        bare_metal(root, target)?;
    }
    let names = packages(&CRATES);
    documents(root, names.iter().flat_map(|name| ["--package", name]))
}

/// Builds the documentation of all crates.
pub(crate) fn all_documents(root: &Path) -> Result<()> {
    documents(root, ["--workspace"])
}

/// Follows docs/libraries.md beside the tree and outside of its workspace: a copy of the example
/// builds with the manifest that the page shows.
pub(crate) fn outside(root: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let block = |name| page::block(&text, name).with_context(|| format!("{PAGE}: no {name}"));
    let folder = tempfile::tempdir()?;
    symlink(root, folder.path().join("ringway"))?;
    let mut copy = Command::new("sh");
    copy.args(["-e", "-c"]).arg(block("copy")?).current_dir(folder.path());
    run::shown(&mut copy).context(PAGE)?;
    let guest = folder.path().join("my-guest");
    fs::write(guest.join("Cargo.toml"), block("manifest")?)?;
    let mut build = Command::new(run::this_cargo());
    // With what the tree's own build has fetched.
    build.args(["build", "--quiet", "--offline", "--target-dir"]).arg(root.join(TARGET));
    run::shown(build.current_dir(&guest)).context(PAGE)
}

/// Builds the crates that need no operating system for a target without one.
fn bare_metal(root: &Path, target: &str) -> Result<()> {
    if !run::has_library_for(root, target)? {
        let why = format!("no library for {target} (rustup target add {target})");
        return report::skip("libraries without an operating system", &why);
    }
    let mut arguments = vec!["build", "--quiet", "--target", target];
    let names = packages(&BARE);
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    run::run(root, &arguments)
}

/// Builds the documentation of crates, in which every link must resolve.
fn documents<'a>(root: &Path, crates: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut command = Command::new(run::this_cargo());
    command.current_dir(root).args(["doc", "--quiet", "--no-deps"]).args(crates);
    run::shown(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn packages(crates: &[&str]) -> Vec<String> {
    crates.iter().map(|name| format!("ringway-{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    const OPEN: &str = "description = 'a'\nlicense = 'MIT'\n";
    const CLOSED: &str = "publish = []\n";
    const EXAMPLE: &str = "//! A.\n//!\n//! ```\n//! a();\n//! ```\n";

    /// What is found where `ring` needs `sys`, and `sim` is not public; manifests are in TOML
    /// as `cargo metadata` has them in JSON.
    fn findings(fields: [&str; 3], version: &str, page: &str) -> Vec<String> {
        let package = |name: &str, fields: &str| {
            format!("[[packages]]\nname = 'ringway-{name}'\nmanifest_path = 'x'\n{fields}")
        };
        let [ring, sys, sim] = fields;
        let text = format!(
            "workspace_root = ''\n{}[[packages.dependencies]]\nname = 'ringway-sys'\npath = 'y'\n\
             req = '{version}'\n[[packages.dependencies]]\nname = 'ringway-sim'\npath = 'y'\n\
             kind = 'dev'\nreq = '*'\n{}dependencies = []\n{}dependencies = []\n",
            package("ring", ring),
            package("sys", sys),
            package("sim", sim),
        );
        let files = ["ring", "sys"].map(|name| {
            let path = format!("crates/{name}/src/lib.rs");
            tree::file(&path, if name == "sys" { page } else { EXAMPLE })
        });
        check(&toml::from_str(&text).expect(&text), &Tree { files: files.into() })
    }

    #[test]
    fn the_public_crates_and_what_they_need_can_be_published_and_no_other() {
        assert_eq!(findings([OPEN, OPEN, CLOSED], "^0.1.0", EXAMPLE), [""; 0]);
        for (fields, version, page, found) in [
            ([OPEN, CLOSED, CLOSED], "^0.1.0", EXAMPLE, 3),
            ([OPEN, OPEN, OPEN], "^0.1.0", EXAMPLE, 1),
            ([OPEN, OPEN, CLOSED], "*", EXAMPLE, 1),
            ([OPEN, OPEN, CLOSED], "^0.1.0", "//! A.\n", 1),
        ] {
            let all = findings(fields, version, page);
            assert_eq!(all.len(), found, "{all:?}");
        }
    }

    #[test]
    fn the_page_has_the_manifest_of_a_copy_of_the_example_and_each_crate_in_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
        let page = file(PAGE);
        let shown = page::block(&page, "manifest").expect("it is shown");
        let [shown, example] = [shown, file("crates/unikernel/Cargo.toml")].map(|text| {
            let manifest: toml::Table = text.parse().expect("TOML");
            let needed = manifest["dependencies"].as_table().expect("a section");
            needed.keys().cloned().collect::<Vec<String>>()
        });
        assert_eq!(shown, example);
        for name in example.iter().filter(|name| name.starts_with("ringway-")) {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
