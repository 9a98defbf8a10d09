//! Finds the root of a saved host in an archive or a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::super::source::{PIECES_MAX, Source};

/// Signs of a saved host: files that every kernel has, and those that `sos` makes.
const SIGNS: [&str; 8] = [
    "proc/cpuinfo",
    "proc/interrupts",
    "proc/net/dev",
    "proc/stat",
    "proc/uptime",
    "proc/version",
    "sample-1/",
    "sos_commands/",
];
/// Folders around a saved host.
const DEPTH_MAX: usize = 4;
/// Saved hosts that an error names if there is more than one.
const NAMED_MAX: usize = 4;

/// The pieces of a saved host, without the folder around them.
pub(super) fn strip(pieces: BTreeMap<String, String>) -> io::Result<BTreeMap<String, String>> {
    let mut folder = String::new();
    for _ in 0..=DEPTH_MAX {
        if is_host(&pieces, &folder) {
            let below = |(path, text): (String, String)| {
                Some((path.strip_prefix(&folder)?.to_owned(), text))
            };
            return Ok(pieces.into_iter().filter_map(below).collect());
        }
        let inner = |path: &String| {
            let (inner, _) = path.strip_prefix(&folder)?.split_once('/')?;
            Some(inner.to_owned())
        };
        let inners: BTreeSet<String> = pieces.keys().filter_map(inner).collect();
        let next = the_one(&inners, |inner| is_host(&pieces, &format!("{folder}{inner}/")))?;
        folder = format!("{folder}{next}/");
    }
    Err(no_host())
}

/// Whether a folder is a saved host. Its name ends in a slash.
fn is_host(pieces: &BTreeMap<String, String>, folder: &str) -> bool {
    SIGNS.iter().any(|sign| {
        let start = format!("{folder}{sign}");
        let first = pieces.range(start.clone()..).next();
        first.is_some_and(|(path, _)| {
            *path == start || sign.ends_with('/') && path.starts_with(&start)
        })
    })
}

/// A saved host in a directory, or in its only folder that is one.
pub(super) fn open(path: &Path) -> io::Result<Source> {
    let is_saved = |path: &Path| {
        SIGNS.iter().any(|sign| {
            let found = path.join(sign.trim_end_matches('/'));
            if sign.ends_with('/') { found.is_dir() } else { found.is_file() }
        })
    };
    let mut path = path.to_owned();
    for _ in 0..=DEPTH_MAX {
        if is_saved(&path) {
            return Source::directory(&path);
        }
        let entries = path.read_dir()?.take(PIECES_MAX).flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names: BTreeSet<String> =
            folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let next = the_one(&names, |name| is_saved(&path.join(name)))?;
        path.push(next);
    }
    Err(no_host())
}

/// The folder to descend into: the only one that is a saved host, or the only one at all.
fn the_one(folders: &BTreeSet<String>, is_host: impl Fn(&String) -> bool) -> io::Result<String> {
    let hosts: Vec<&String> = folders.iter().filter(|folder| is_host(folder)).collect();
    match hosts.as_slice() {
        [host] => Ok((*host).clone()),
        [] => match folders.first() {
            Some(only) if folders.len() == 1 => Ok(only.clone()),
            _ => Err(no_host()),
        },
        several => {
            let names: Vec<&str> =
                several.iter().take(NAMED_MAX).map(|name| name.as_str()).collect();
            Err(io::Error::other(format!(
                "it holds {} saved hosts ({}): unpack it and use one of them",
                several.len(),
                names.join(", ")
            )))
        }
    }
}

fn no_host() -> io::Error {
    io::Error::other(
        "no saved host: expected proc/, sample-1/ or sos_commands/ in it, or one folder with \
         them. To create one, run `ringway doctor record FILE` or `sos report` on the host",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_is_a_saved_host_or_holds_one() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(open(dir.path()).expect_err("empty").to_string().contains("no saved host"));
        let host = dir.path().join("sosreport-a");
        fs::create_dir_all(host.join("sos_commands/networking")).expect("made");
        fs::create_dir_all(dir.path().join("other/src")).expect("made");
        assert!(open(&host).is_ok());
        assert!(open(dir.path()).is_ok());
        assert!(open(&dir.path().join("other")).is_err());
        fs::create_dir_all(dir.path().join("sosreport-b/sos_commands")).expect("made");
        let error = open(dir.path()).expect_err("which of them").to_string();
        assert!(error.contains("sosreport-a, sosreport-b"), "{error}");
    }
}
