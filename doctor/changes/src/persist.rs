//! Keeps confirmed changes across restarts, in files that administrators know.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::emit;
use super::journal::{Entry, Journal, Persisted, Transaction};
use super::sysctl_d::{self, Assigned};
use ringway_checks::finding::Store;

/// A directory, the extension of files there, and the line for a change in them.
type Place = (&'static str, &'static str, fn(&Entry) -> Option<String>);

/// What happened to a file of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It was removed.
    Removed,
    /// It was edited since and is left alone.
    Edited,
    /// It was already gone.
    Missing,
}

/// The files below `root` that would keep a transaction, and the commands that no file can keep:
/// interrupts get other numbers at each boot.
pub fn files(root: &Path, transaction: &Transaction) -> (Vec<Persisted>, Vec<String>) {
    let mut files = Vec::new();
    let mut rest: Vec<&Entry> = transaction.entries.iter().collect();
    let places: [Place; 2] =
        [("etc/sysctl.d", "conf", emit::sysctl), ("etc/udev/rules.d", "rules", emit::udev)];
    for (place, ending, line) in places {
        let (kept, others): (Vec<&Entry>, Vec<&Entry>) =
            rest.into_iter().partition(|entry| line(entry).is_some());
        rest = others;
        if kept.is_empty() {
            continue;
        }
        let id = transaction.id;
        let mut content = format!("# Written by `ringway doctor persist {id}`.\n");
        for entry in kept {
            content += &format!("# {}; it was {}\n", entry.check, entry.old);
            content += &(line(entry).unwrap_or_default() + "\n");
        }
        let path = root.join(place).join(file_name(id, ending));
        files.push(Persisted { path, content });
    }
    (files, rest.iter().map(|entry| entry.knob.command(&entry.new)).collect())
}

/// A setting that a file of ours would not keep, because another one overrides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overridden {
    /// The setting, for people.
    pub name: String,
    /// The requested value.
    pub wanted: String,
    /// The line that takes effect at boot.
    pub by: Assigned,
}

/// The settings of a transaction that files below `root` would override at boot.
///
/// A file name that sorts after all others would take effect, but the administrator would not
/// notice that a line of theirs has none. So nothing is written until that line is changed.
pub fn overridden(root: &Path, transaction: &Transaction) -> Vec<Overridden> {
    let file = file_name(transaction.id, "conf");
    let of_entry = |entry: &Entry| {
        let Store::Sysctl(name) = entry.knob.describe().store else { return None };
        let by = sysctl_d::winner(root, &file, name, &entry.new)?;
        Some(Overridden { name: name.to_owned(), wanted: entry.new.clone(), by })
    };
    transaction.entries.iter().filter_map(of_entry).collect()
}

fn file_name(id: u64, ending: &str) -> String {
    format!("90-ringway-doctor-{id}.{ending}")
}

/// Writes the files, each recorded in the journal first. An existing file that is not ours is not
/// touched.
///
/// # Errors
/// `AlreadyExists` for such a file, or the error of writing.
pub fn persist(
    journal: &Journal,
    transaction: &mut Transaction,
    files: &[Persisted],
) -> io::Result<()> {
    for file in files {
        let about = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", file.path.display()))
        };
        if !transaction.files.contains(file) {
            transaction.files.push(file.clone());
            journal.write(transaction)?;
        }
        if let Some(dir) = file.path.parent() {
            fs::create_dir_all(dir).map_err(about)?;
        }
        if fs::read_to_string(&file.path).is_ok_and(|content| content == file.content) {
            continue;
        }
        let mut open = OpenOptions::new();
        let mut made = open.write(true).create_new(true).open(&file.path).map_err(about)?;
        made.write_all(file.content.as_bytes()).and_then(|()| made.sync_all()).map_err(about)?;
    }
    Ok(())
}

/// Removes those files of a transaction that still have the content that we wrote.
///
/// # Errors
/// If one cannot be removed, or the journal cannot be written.
pub fn forget(
    journal: &Journal,
    transaction: &mut Transaction,
) -> io::Result<Vec<(PathBuf, Removed)>> {
    let mut all = Vec::new();
    while let Some(file) = transaction.files.last().cloned() {
        let removed = match fs::read_to_string(&file.path) {
            Ok(content) if content == file.content => {
                fs::remove_file(&file.path)?;
                Removed::Removed
            }
            Ok(_) => Removed::Edited,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Removed::Missing,
            Err(error) => return Err(error),
        };
        transaction.files.pop();
        journal.write(transaction)?;
        all.push((file.path, removed));
    }
    Ok(all)
}
