//! Makes release builds that are byte-identical in any directory.
//!
//! The compiler writes paths of sources into a program, for the messages of panics. Here they are
//! replaced: those of this repository, and those of the sources that cargo has fetched. Cargo
//! leaves such replacements out of the names of symbols.

use std::env;
use std::ffi::{OsStr, OsString};
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
    prepare_with(command, root, &[]);
}

/// As [`prepare`], with further flags; false if the caller's own take their place.
pub(crate) fn prepare_with(command: &mut Command, root: &Path, further: &[&str]) -> bool {
    let has_flags = [FLAGS, "RUSTFLAGS"].iter().any(|name| env::var_os(name).is_some());
    if !has_flags {
        command.env(FLAGS, flags(&places(root), further));
    }
    // This sets the times of files in a package.
    if let Some(time) = time_of_commit(root) {
        command.env("SOURCE_DATE_EPOCH", time);
    }
    !has_flags
}

/// Directories that a release build must not name, with what it names instead.
pub(crate) fn places(root: &Path) -> Vec<(PathBuf, &'static str)> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let mut places = vec![(root.to_owned(), SOURCES)];
    places.extend(cargo.map(|cargo| (cargo, FETCHED)));
    places
}

fn flags(places: &[(PathBuf, &str)], further: &[&str]) -> OsString {
    let places = places.iter().map(|(directory, name)| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(directory);
        flag.push("=");
        flag.push(name);
        flag
    });
    let all: Vec<OsString> = places.chain(further.iter().map(OsString::from)).collect();
    all.join(OsStr::new(SEPARATOR))
}

/// The commit time in seconds since 1970, as text; `None` outside of git.
pub(crate) fn time_of_commit(root: &Path) -> Option<String> {
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
        let flags = flags(&places, &["-Cx"]).into_string().expect("it is text");
        let flags: Vec<&str> = flags.split(SEPARATOR).collect();
        let sources = "--remap-path-prefix=/a b/ringway=/usr/src/ringway";
        let fetched = "--remap-path-prefix=/c/.cargo=/usr/src/cargo";
        assert_eq!(flags, [sources, fetched, "-Cx"]);
    }
}
