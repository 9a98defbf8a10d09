//! The crates from which others build guests and unikernels: checks what those users rely on.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

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

/// What CI does.
pub(crate) fn ci(root: &Path) -> Result<()> {
    for target in TARGETS {
        bare_metal(root, target)?;
    }
    documents(root)
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

/// Builds their documentation, in which every link must resolve.
fn documents(root: &Path) -> Result<()> {
    let mut arguments = vec!["doc", "--quiet", "--no-deps"];
    let names = packages(&CRATES);
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    let mut command = Command::new(run::this_cargo());
    run::shown(command.current_dir(root).args(&arguments).env("RUSTDOCFLAGS", "-D warnings"))
}

fn packages(crates: &[&str]) -> Vec<String> {
    crates.iter().map(|name| format!("ringway-{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
