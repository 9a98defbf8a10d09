//! Finds the file that sets a sysctl at boot, by the order of sysctl.d(5).
//!
//! Files of all folders are read in the order of their names, regardless of the folder, and the
//! last line for a setting takes effect. A file hides those with its name in later folders of the
//! list; `/etc/sysctl.conf` is read if a link makes it one of them, and by `sysctl --system` after
//! all others.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Folders; a file in an earlier one hides files of the same name in later ones.
const FOLDERS: [&str; 5] =
    ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"];
/// The file that procps reads last, and systemd only through a link.
const LAST: &str = "etc/sysctl.conf";
/// Files that are read, and bytes of each.
const FILES_MAX: usize = 1000;
const BYTES_MAX: u64 = 1 << 20;

/// A line that sets a sysctl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// The file.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// The value.
    pub value: String,
}

impl std::fmt::Display for Assigned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} sets it to {:?}", self.path.display(), self.line, self.value)
    }
}

/// The lines below `root` that set a sysctl, in the order in which they are read.
pub fn setters(root: &Path, name: &str) -> Vec<(String, Assigned)> {
    let mut setters = Vec::new();
    for (file, path) in files(root) {
        let mut text = String::new();
        let Ok(opened) = fs::File::open(&path) else { continue };
        if opened.take(BYTES_MAX).read_to_string(&mut text).is_err() {
            continue;
        }
        // In a file the last line counts, and a line with the full name takes precedence over
        // patterns.
        let mut found: Option<(bool, Assigned)> = None;
        for (index, row) in text.lines().enumerate() {
            let Some((pattern, value)) = assignment(row) else { continue };
            let is_exact = pattern == path_of(name);
            let is_it = is_exact || fits(&pattern, &path_of(name));
            if !is_it || found.as_ref().is_some_and(|(known, _)| *known && !is_exact) {
                continue;
            }
            let assigned = Assigned { path: path.clone(), line: index + 1, value };
            found = Some((is_exact, assigned));
        }
        setters.extend(found.map(|(_, assigned)| (file, assigned)));
    }
    setters
}

/// The line that overrides a file with this name, if it sets another value.
pub fn winner(root: &Path, file: &str, name: &str, value: &str) -> Option<Assigned> {
    let later = setters(root, name).into_iter().filter(|(other, _)| other.as_str() > file);
    let (_, last) = later.max_by(|one, other| one.0.cmp(&other.0))?;
    (words(&last.value) != words(value)).then_some(last)
}

/// All files by name, in the order of reading.
fn files(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        for entry in entries.take(FILES_MAX) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(".conf") && !name.starts_with('.') {
                files.entry(name).or_insert_with(|| entry.path());
            }
        }
    }
    // Without a link only procps reads it, after all others, so it sorts after them here.
    let last = root.join(LAST);
    let real = |path: &Path| path.canonicalize().ok();
    let is_linked = files.values().any(|path| real(path).is_some() && real(path) == real(&last));
    if last.exists() && !is_linked {
        files.insert("\u{10ffff}".to_owned(), last);
    }
    files
}

/// The assignment in a line: the path of a setting or a pattern of paths, and the value.
fn assignment(row: &str) -> Option<(String, String)> {
    let row = row.trim();
    if row.starts_with(['#', ';']) {
        return None;
    }
    let (key, value) = row.split_once('=')?;
    // A leading dash means that errors are ignored.
    let key = key.trim().trim_start_matches('-').trim_start();
    Some((path_of(key), value.trim().to_owned()))
}

/// As in sysctl.d(5): if the first separator is a slash, dots and slashes are not swapped.
fn path_of(key: &str) -> String {
    match key.find(['.', '/']).map(|at| &key[at..=at]) {
        Some(".") => key
            .chars()
            .map(|letter| match letter {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => key.to_owned(),
    }
}

/// Whether a pattern of glob(7) matches; a star stays within a path component. Other wildcards are
/// assumed to match: a refusal too many is the safer error.
fn fits(pattern: &str, path: &str) -> bool {
    let (patterns, parts): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), path.split('/').collect());
    let fits = |(pattern, part): (&&str, &&str)| match pattern.split_once('*') {
        _ if pattern.contains(['?', '[']) => true,
        Some((start, end)) => {
            let end = end.rsplit('*').next().unwrap_or_default();
            part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
        }
        None => pattern == part,
    };
    pattern.contains(['*', '?', '['])
        && patterns.len() == parts.len()
        && patterns.iter().zip(&parts).all(fits)
}

fn words(value: &str) -> Vec<&str> {
    value.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const OURS: &str = "90-ringway-doctor-1.conf";
    const SACK: &str = "net.ipv4.tcp_sack";

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("one")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    fn wins(files: &[(&str, &str)]) -> Option<(String, usize)> {
        let root = root(files);
        let found = winner(root.path(), OURS, SACK, "1")?;
        let path = found.path.strip_prefix(root.path()).expect("below it");
        Some((path.display().to_string(), found.line))
    }

    #[test]
    fn names_decide_and_not_folders() {
        let off = "net.ipv4.tcp_sack = 0\n";
        assert_eq!(wins(&[("etc/sysctl.d/10-x.conf", off)]), None);
        assert_eq!(
            wins(&[("usr/lib/sysctl.d/99-x.conf", off)]),
            Some(("usr/lib/sysctl.d/99-x.conf".into(), 1))
        );
        let text = "# net.ipv4.tcp_sack=1\n;x\n-net/ipv4/tcp_sack=0\n";
        assert_eq!(
            wins(&[("run/sysctl.d/99-x.conf", text)]),
            Some(("run/sysctl.d/99-x.conf".into(), 3))
        );
        assert_eq!(wins(&[("etc/sysctl.d/99-x.conf", "net.ipv4.tcp_sack=1\n")]), None, "the same");
        assert_eq!(wins(&[("etc/sysctl.d/99-x", off)]), None, "no ending");
        // The last of the files after ours counts, and a file in /etc hides those of its name
        // elsewhere.
        let both = [
            ("etc/sysctl.d/99-x.conf", off),
            ("usr/lib/sysctl.d/99-y.conf", "net.ipv4.tcp_sack=1\n"),
        ];
        assert_eq!(wins(&both), None);
        let hidden = [("etc/sysctl.d/99-x.conf", ""), ("usr/lib/sysctl.d/99-x.conf", off)];
        assert_eq!(wins(&hidden), None);
        assert_eq!(
            wins(&[("etc/sysctl.d/99-x.conf", "net.ipv4.*_sack = 0\n")]).map(|one| one.1),
            Some(1)
        );
        assert_eq!(wins(&[("etc/sysctl.d/99-x.conf", "net.*.tcp_fack = 0\n")]), None);
    }

    #[test]
    fn the_old_file_counts_where_its_link_is_and_last_where_none_is() {
        let off = "net.ipv4.tcp_sack = 0\n";
        assert_eq!(wins(&[("etc/sysctl.conf", off)]), Some(("etc/sysctl.conf".into(), 1)));
        let linked = root(&[("etc/sysctl.conf", off), ("etc/sysctl.d/README", "")]);
        let link = |name: &str| {
            symlink("../sysctl.conf", linked.path().join("etc/sysctl.d").join(name))
                .expect("linked");
            winner(linked.path(), OURS, SACK, "1").map(|found| found.path)
        };
        assert_eq!(link("20-old.conf"), None, "before ours");
        assert_eq!(link("99-sysctl.conf"), Some(linked.path().join("etc/sysctl.d/99-sysctl.conf")));
    }
}
