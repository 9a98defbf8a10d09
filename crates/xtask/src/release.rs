//! A release: all that users download, in one folder with checksums, from a clean tree.
//!
//! It is a function of the commit: built again in a folder of another name, it has the same bytes.
//! So anyone can check that what they download was made of the sources that they read. Lists of
//! materials are made here, as those of `cargo cyclonedx` name folders of the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::deb::{self, Architecture};
use crate::tarball::{self, VERSION};
use crate::{arm64, book, run};

/// The folder of a release, where cargo builds.
const FOLDER: &str = "dist";
const SUMS: &str = "SHA256SUMS";
/// The pages that name the version, each with the words around it; `VERSION` stands for it.
const CHANGELOGS: [(&str, &str); 2] =
    [("packaging/debian/changelog", "ringway (VERSION-"), ("CHANGELOG.md", "\n## VERSION\n")];

/// Builds a release for both architectures.
pub(crate) fn make(root: &Path) -> Result<()> {
    check(root)?;
    let folder = run::target_dir(root).join(FOLDER);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // The pages are packed of what was generated last: by programs that run here.
    for arch in [Architecture::Arm64, Architecture::Ours] {
        for file in deb::make(root, arch)?.into_iter().chain(tarball::make(root, arch)?) {
            let name = file.file_name().context("a file has a name")?;
            fs::copy(&file, folder.join(name)).with_context(|| file.display().to_string())?;
        }
        let list = folder.join(format!("ringway-{VERSION}-{}.cdx.json", arch.name()));
        fs::write(list, materials(&crates(root, arch)?)?)?;
    }
    book::build(root)?;
    for (what, of) in [("pages", deb::GENERATED), ("book", book::BUILT)] {
        let name = format!("ringway-{what}-{VERSION}");
        let tarball = folder.join(format!("{name}.tar.gz"));
        tarball::pack(root, &root.join(of), &name, &tarball)?;
    }
    let mut sums = Command::new("sha256sum");
    let sums = deb::output(sums.current_dir(&folder).arg("--").args(names(&folder)?))?;
    fs::write(folder.join(SUMS), sums)?;
    println!("release: {}", folder.display());
    Ok(())
}

/// Builds a release in two copies of the tree, and compares them.
pub(crate) fn twice(root: &Path) -> Result<()> {
    check(root)?;
    let folder = run::target_dir(root).join("twice");
    let _ = fs::remove_dir_all(&folder);
    // A path that something contains shows by its length, too.
    let copies = ["one", "another-one"].map(|name| folder.join(name));
    for copy in &copies {
        run::shown(Command::new("git").args(["clone", "--quiet"]).arg(root).arg(copy))?;
        let mut release = Command::new(run::this_cargo());
        release.current_dir(copy).args(["xtask", "release"]).env_remove("CARGO_TARGET_DIR");
        run::shown(&mut release)?;
    }
    let [one, other] = copies.map(|copy| copy.join("target").join(FOLDER));
    let different = differences(&one, &other)?;
    ensure!(different.is_empty(), "not the same in both copies: {}", different.join(", "));
    println!("release: the same twice");
    Ok(())
}

/// Checks that a release can be built, and of what.
fn check(root: &Path) -> Result<()> {
    let changes = deb::output(Command::new("git").current_dir(root).args(["status", "--short"]))?;
    ensure!(changes.is_empty(), "a release is of a commit, and this tree differs:\n{changes}");
    for (page, words) in CHANGELOGS {
        let text = fs::read_to_string(root.join(page)).context(page)?;
        let words = words.replace("VERSION", VERSION);
        ensure!(text.contains(&words), "{page} does not say {:?}", words.trim());
    }
    ensure!(run::has_cargo_deb(root), "cargo deb is missing (scripts/install-packages release)");
    if let Some(why) = arm64::why_not_built(root)?.or_else(arm64::why_not_run) {
        bail!("a release is for Arm64, too: {why}");
    }
    Ok(())
}

/// What the programs are built of, a line each: name, version and place, and behind a tab the
/// licence.
fn crates(root: &Path, arch: Architecture) -> Result<String> {
    let target = tarball::target(arch);
    let mut tree = Command::new(run::this_cargo());
    tree.current_dir(root).args(["tree", "--locked", "--edges", "normal,build"]);
    tree.args(["--prefix", "none", "--format", "{p}\t{l}", "--target", &target]);
    // Together, as they are built, so that their libraries have the same features.
    deb::output(tree.args(run::BUILT))
}

/// The list of such lines, as CycloneDX has it.
fn materials(lines: &str) -> Result<String> {
    // A crate that was listed before is marked.
    let lines = lines.lines().map(|line| line.trim_end_matches(" (*)"));
    let lines: BTreeSet<&str> = lines.filter(|line| !line.is_empty()).collect();
    let components = lines.into_iter().map(component).collect::<Result<Vec<Value>>>()?;
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": { "type": "application", "name": "ringway", "version": VERSION },
        },
        "components": components,
    });
    Ok(format!("{list:#}\n"))
}

fn component(line: &str) -> Result<Value> {
    let parts = line.split_once('\t').and_then(|(package, licence)| {
        let mut words = package.split(' ');
        Some((words.next()?, words.next()?.strip_prefix('v')?, licence))
    });
    let (name, version, licence) = parts.with_context(|| format!("cargo tree prints {line:?}"))?;
    let place = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({
        "type": "library",
        "bom-ref": place,
        "name": name,
        "version": version,
        "purl": place,
    });
    if !licence.is_empty() {
        // The older spelling of "or" is no expression of SPDX.
        let licence = licence.replace(" / ", "/").replace('/', " OR ");
        component["licenses"] = json!([{ "expression": licence }]);
    }
    Ok(component)
}

/// The names of the files of a folder, in order.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The names of files that are not the same in two folders, or only in one.
fn differences(one: &Path, other: &Path) -> Result<Vec<String>> {
    let mut all = names(one)?;
    all.append(&mut names(other)?);
    let is_same = |name: &String| {
        let [one, other] = [one, other].map(|folder| fs::read(folder.join(name)).ok());
        one.is_some() && one == other
    };
    Ok(all.into_iter().filter(|name| !is_same(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelogs_have_the_version_of_the_packages() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (page, words) in CHANGELOGS {
            let text = fs::read_to_string(root.join(page)).expect(page);
            let words = words.replace("VERSION", VERSION);
            assert!(text.contains(&words), "{page}: {words:?}");
        }
    }

    #[test]
    fn each_crate_is_listed_once_with_its_licence_and_no_folder() {
        let lines = "ringway v0.1.0 (/a/ringway)\tMIT OR Apache-2.0\nb v2.0.1\tMIT/Apache-2.0\n\n\
                     c v1.0.0 (proc-macro)\t\nb v2.0.1\tMIT/Apache-2.0 (*)\n";
        let list = materials(lines).expect("well formed");
        assert!(!list.contains("/a/"), "{list}");
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let components = list["components"].as_array().expect("a list");
        let of = |key: &str| components.iter().map(|it| it[key].as_str()).collect::<Vec<_>>();
        assert_eq!(of("name"), [Some("b"), Some("c"), Some("ringway")]);
        assert_eq!(of("purl")[0], Some("pkg:cargo/b@2.0.1"));
        let expression = |index: usize| components[index]["licenses"][0]["expression"].as_str();
        assert_eq!(expression(0), Some("MIT OR Apache-2.0"));
        assert_eq!(expression(1), None);
        assert!(materials("error: no such crate\n").is_err());
    }

    #[test]
    fn a_file_that_differs_or_is_missing_is_named() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let (one, other) = (folders[0].path(), folders[1].path());
        let write = |folder: &Path, name: &str, text: &str| {
            fs::write(folder.join(name), text).expect("written");
        };
        for folder in [one, other] {
            write(folder, "same", "a");
        }
        assert_eq!(differences(one, other).expect("readable"), [""; 0]);
        write(one, "alone", "a");
        write(one, "longer", "a");
        write(other, "longer", "ab");
        assert_eq!(differences(one, other).expect("readable"), ["alone", "longer"]);
    }

    #[test]
    fn a_folder_is_packed_into_the_same_bytes_at_any_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let packed = ["a", "another"].map(|place| {
            let folder = tempfile::tempdir().expect("a directory");
            let tree = folder.path().join(place);
            fs::create_dir_all(tree.join("doc")).expect("made");
            fs::write(tree.join("doc/page"), "text").expect("written");
            let tarball = folder.path().join("a.tar.gz");
            tarball::pack(&root, &tree, "name-1.0", &tarball).expect("packed");
            let listed = deb::output(Command::new("tar").arg("--list").arg("--file").arg(&tarball));
            let listed = listed.expect("it is an archive");
            assert_eq!(listed, "name-1.0/\nname-1.0/doc/\nname-1.0/doc/page\n");
            fs::read(tarball).expect("it was made")
        });
        assert_eq!(packed[0], packed[1]);
    }
}
