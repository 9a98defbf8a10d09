//! Makes release builds that are byte-identical in any directory.
//!
//! The compiler writes paths of sources into a program, for the messages of panics. Here they are
//! replaced: those of this repository, and those of the sources that cargo has fetched. Cargo
//! leaves such replacements out of the names of symbols.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiler flags, separated by a byte that no path contains.
const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";
const SEPARATOR: &str = "\u{1f}";
/// The path that a program shows in place of this repository's directory.
const SOURCES: &str = "/usr/src/ringway";
/// The path that a program shows in place of cargo's directory.
const FETCHED: &str = "/usr/src/cargo";

/// Sets the environment of a cargo that builds a release. The caller's own flags are kept.
pub(crate) fn prepare(command: &mut Command, root: &Path) {
    let has_flags = [FLAGS, "RUSTFLAGS"].iter().any(|name| env::var_os(name).is_some());
    if !has_flags {
        command.env(FLAGS, flags(&places(root)));
    }
    // This sets the times of files in a package.
    if let Some(time) = time_of_commit(root) {
        command.env("SOURCE_DATE_EPOCH", time);
    }
}

/// Directories that a release build must not name, with what it names instead.
pub(crate) fn places(root: &Path) -> Vec<(PathBuf, &'static str)> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let mut places = vec![(root.to_owned(), SOURCES)];
    places.extend(cargo.map(|cargo| (cargo, FETCHED)));
    places
}

fn flags(places: &[(PathBuf, &str)]) -> OsString {
    let mut flags = OsString::new();
    for (directory, name) in places {
        if !flags.is_empty() {
            flags.push(SEPARATOR);
        }
        flags.push("--remap-path-prefix=");
        flags.push(directory);
        flags.push("=");
        flags.push(name);
    }
    flags
}

/// The commit time in seconds since 1970, as text; `None` outside of git.
fn time_of_commit(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.current_dir(root).args(["log", "-1", "--format=%ct"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_names_neither_the_repository_nor_the_directory_of_cargo() {
        let places = [("/a b/ringway".into(), SOURCES), ("/c/.cargo".into(), FETCHED)];
        let flags = flags(&places).into_string().expect("it is text");
        let flags: Vec<&str> = flags.split(SEPARATOR).collect();
        let sources = "--remap-path-prefix=/a b/ringway=/usr/src/ringway";
        assert_eq!(flags, [sources, "--remap-path-prefix=/c/.cargo=/usr/src/cargo"]);
    }
}
