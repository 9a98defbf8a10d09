//! The static programs: a tarball of each, with what its Debian package has, at the same places.
//!
//! They start on any Linux since 3.2, with whatever libraries, as they have theirs. The C library
//! is glibc, as in the packages: frames are copied as there, and Rust's standard library for it is
//! where programs are built at all. A static glibc finds names only in files and by DNS.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::deb::{self, Architecture};
use crate::{arm64, reproducible, run};

/// The version of all packages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Compiler flags that leave no library to the host.
const STATIC: [&str; 2] = ["-C", "target-feature=+crt-static"];
/// Files as in the packages, without what only a debugger reads.
const STRIPPED: &str = "profile.release.strip=\"debuginfo\"";
/// The folders of the crates of `run::PROGRAMS`.
const FOLDERS: [&str; 3] = ["crates/ringway", "doctor", "lab"];
/// Where a package's list of assets has the programs.
const BUILT: &str = "target/release/";

/// Builds the programs, makes and checks the tarballs, and returns their paths.
pub(crate) fn make(root: &Path, arch: Architecture) -> Result<Vec<PathBuf>> {
    let directory = run::target_dir(root).join("static");
    let programs = directory.join(target(arch)).join("release");
    build(root, arch, &directory)?;
    deb::generate(root, arch, &programs)?;
    let mut made = Vec::new();
    for (name, folder) in run::PROGRAMS.into_iter().zip(FOLDERS) {
        let whole = format!("{name}-{VERSION}-{}", arch.name());
        let tree = directory.join(&whole);
        let _ = fs::remove_dir_all(&tree);
        lay_out(&root.join(folder), &programs, &tree)?;
        check(root, arch, name, &tree)?;
        let tarball = directory.join(format!("{whole}.tar.gz"));
        pack(root, &tree, &whole, &tarball)?;
        fs::remove_dir_all(&tree)?;
        println!("static: {}", tarball.display());
        made.push(tarball);
    }
    Ok(made)
}

/// The target triple.
pub(crate) fn target(arch: Architecture) -> String {
    match arch {
        Architecture::Ours => format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
        Architecture::Arm64 => arm64::TARGET.to_owned(),
    }
}

fn build(root: &Path, arch: Architecture, directory: &Path) -> Result<()> {
    let target = target(arch);
    // A target that is named keeps the flags from what runs while it is built.
    let arguments = ["build", "--release", "--bins", "--config", STRIPPED, "--target", &target];
    let arguments = [&arguments[..], &run::BUILT[..]].concat();
    let mut command = Command::new(run::this_cargo());
    command.current_dir(root).args(arguments).arg("--target-dir").arg(directory);
    if arch == Architecture::Arm64 {
        command.envs(arm64::environment());
    }
    let is_static = reproducible::prepare_with(&mut command, root, &STATIC);
    ensure!(is_static, "a static build has compiler flags of its own: unset RUSTFLAGS");
    run::shown(&mut command)
}

/// Copies what the package of a crate has to the places where it would be installed.
fn lay_out(folder: &Path, programs: &Path, tree: &Path) -> Result<()> {
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let manifest: toml::Table = toml::from_str(&text)?;
    let assets = manifest["package"]["metadata"]["deb"]["assets"].clone();
    let assets: Vec<[String; 3]> = assets.try_into().context("the list of assets")?;
    for [source, place, mode] in assets {
        let source = match source.strip_prefix(BUILT) {
            Some(program) => programs.join(program),
            None => folder.join(source),
        };
        let mode = u32::from_str_radix(&mode, 8).context("a mode")?;
        for file in files(&source)? {
            let name = file.file_name().context("a file has a name")?;
            let target = match place.ends_with('/') {
                true => tree.join(&place).join(name),
                false => tree.join(&place),
            };
            let above = target.parent().context("a file is in a folder")?;
            fs::create_dir_all(above).with_context(|| above.display().to_string())?;
            fs::copy(&file, &target).with_context(|| file.display().to_string())?;
            fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// The files that a path means, whose last part may have a `*`.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let (folder, name) = path.parent().zip(path.file_name()).context("a path")?;
    let name = name.to_string_lossy();
    let Some((begin, end)) = name.split_once('*') else { return Ok(vec![path.to_owned()]) };
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let is_meant = |name: &&String| name.starts_with(begin) && name.ends_with(end);
    let found: Vec<PathBuf> = names.iter().filter(is_meant).map(|name| folder.join(name)).collect();
    ensure!(!found.is_empty(), "there is no {}", path.display());
    Ok(found)
}

/// Checks that a program starts where there is nothing but its tarball, and names no directory of
/// this machine.
fn check(root: &Path, arch: Architecture, name: &str, tree: &Path) -> Result<()> {
    let program = tree.join("usr/bin").join(name);
    let bytes = fs::read(&program)?;
    ensure!(!has_interpreter(&bytes), "{name} is not static");
    deb::names_no_place(root, &bytes)?;
    let mut command = match arch {
        Architecture::Ours => {
            let mut command = Command::new("unshare");
            command.arg("--map-root-user").arg("--root").arg(tree);
            command.arg(Path::new("/usr/bin").join(name));
            command
        }
        Architecture::Arm64 => arch.command(&program),
    };
    let version = deb::output(command.arg("--version"))?;
    ensure!(version.starts_with(name), "--version says {version:?}");
    Ok(())
}

/// Whether an ELF file of 64 bits has another program load its libraries: a header of type
/// `PT_INTERP`.
fn has_interpreter(file: &[u8]) -> bool {
    const PT_INTERP: usize = 3;
    let number = |at: usize, len: usize| {
        let bytes = file.get(at..at + len).unwrap_or_default();
        bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let (first, len, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|index| number(first + index * len, 4) == PT_INTERP)
}

/// Packs a folder under another name, so that the same files make the same bytes.
pub(crate) fn pack(root: &Path, folder: &Path, name: &str, tarball: &Path) -> Result<()> {
    let time = reproducible::time_of_commit(root).unwrap_or_else(|| "0".to_owned());
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mode=u=rwX,go=rX", "--use-compress-program=gzip -9n", "--mtime"]);
    tar.arg(format!("@{time}")).arg(format!("--transform=s,^[.],{name},"));
    tar.arg("--file").arg(tarball).arg("-C").arg(folder).arg(".");
    deb::output(&mut tar).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_the_files_of_its_package() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (name, folder) in run::PROGRAMS.into_iter().zip(FOLDERS) {
            let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml"));
            let manifest: toml::Table = toml::from_str(&manifest.expect(folder)).expect("TOML");
            assert_eq!(manifest["package"]["name"].as_str(), Some(name));
            let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array();
            let first = assets.and_then(|assets| assets.first()).expect("a list");
            assert_eq!(first[0].as_str(), Some(&*format!("{BUILT}{name}")));
        }
    }

    #[test]
    fn a_star_means_the_files_of_a_folder() {
        let folder = tempfile::tempdir().expect("a directory");
        for name in ["a.1", "b.1", "a.5"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let mut found = files(&folder.path().join("*.1")).expect("there are two");
        found.sort();
        assert_eq!(found, ["a.1", "b.1"].map(|name| folder.path().join(name)));
        assert!(files(&folder.path().join("*.7")).is_err());
    }

    #[test]
    fn a_program_for_libraries_of_its_host_is_recognised() {
        // Tests are such programs, unless the compiler was asked for static ones.
        let ours = std::env::current_exe().and_then(fs::read).expect("readable");
        assert_eq!(has_interpreter(&ours), !cfg!(target_feature = "crt-static"));
        assert!(!has_interpreter(b"text"));
    }
}
