//! The journal of changes, written before they are made: one JSON file per transaction.
//!
//! A process that finds such a file after a crash can tell for each change whether it was only
//! planned, may have been made, or was made and read back; [`undo`](super::undo) works from any of
//! these states. Files are replaced atomically, so there is never half of one. A process that
//! changes something locks the directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use ringway_checks::finding::Knob;

/// The default directory.
pub const DIRECTORY: &str = "/var/lib/ringway/doctor";
/// The format version of these files: it is raised when a field changes its meaning.
const FORMAT: u32 = 1;

/// Changes that are made and reverted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Transaction {
    /// The version of this format.
    pub format: u32,
    /// Counts from 1.
    pub id: u64,
    /// Seconds since 1970, for people.
    pub made_at: u64,
    /// The boot that it belongs to: after a reboot nothing of it is left.
    pub boot: String,
    /// The network namespace that it belongs to.
    pub netns: String,
    /// Its state.
    pub state: State,
    /// Its changes, in their order.
    pub entries: Vec<Entry>,
    /// Files that make it outlast a restart, with what is in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Persisted>,
}

/// The state of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its changes are being made, or the process that made them ended half-way.
    Applying,
    /// All were made; they are reverted unless they are confirmed.
    Applied,
    /// They are permanent.
    Confirmed,
    /// They were reverted, except those that were no longer ours.
    Undone,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entry {
    /// What is set.
    pub knob: Knob,
    /// The value before.
    pub old: String,
    /// The value after: the requested one, and once the change is made, the one read back.
    pub new: String,
    /// The check that proposed it.
    pub check: String,
    /// What it found.
    pub reason: String,
    /// The kernel's index of the interface, for a setting of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_index: Option<u32>,
    /// Its state.
    pub step: Step,
}

/// The state of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Nothing was done.
    Planned,
    /// It is being made, and may have been made.
    Setting,
    /// It was made and read back.
    Set,
    /// The old value was restored and read back.
    Undone,
    /// It was left alone, because the value is no longer the one that we set.
    Left,
}

/// A file that was written for a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Persisted {
    /// Its path.
    pub path: PathBuf,
    /// The content that we wrote: if it differs now, the file was edited since.
    pub content: String,
}

/// A directory of transactions, locked while this lives.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// The lock is released when the file is closed.
    _lock: File,
}

impl Journal {
    /// Opens the journal for changes, and creates the directory if it is missing. Waits while
    /// another process holds the lock.
    ///
    /// # Errors
    /// Without permission to write there.
    pub fn open(dir: &Path) -> io::Result<Journal> {
        fs::create_dir_all(dir)?;
        let lock = File::create(dir.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Journal { dir: dir.to_owned(), _lock: lock })
    }

    /// Writes a new transaction, of which nothing has been done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(
        &self,
        boot: String,
        netns: String,
        entries: Vec<Entry>,
    ) -> io::Result<Transaction> {
        let id = list(&self.dir)?.last().map_or(1, |last| last + 1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let transaction = Transaction {
            format: FORMAT,
            id,
            made_at: now.as_secs(),
            boot,
            netns,
            state: State::Applying,
            entries,
            files: Vec::new(),
        };
        self.write(&transaction)?;
        Ok(transaction)
    }

    /// Replaces the file of a transaction, and waits until it is on disk.
    ///
    /// # Errors
    /// If it cannot be written; the old file is then intact.
    pub fn write(&self, transaction: &Transaction) -> io::Result<()> {
        let path = path(&self.dir, transaction.id);
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        serde_json::to_writer_pretty(&mut file, transaction)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.dir)?.sync_all()
    }
}

/// Reads a transaction; this needs no lock, because a file is either complete or missing.
///
/// # Errors
/// `NotFound` if no transaction has that number, `InvalidData` if it is of another version or
/// unreadable.
pub fn read(dir: &Path, id: u64) -> io::Result<Transaction> {
    let text = fs::read_to_string(path(dir, id))?;
    let transaction: Transaction = serde_json::from_str(&text)?;
    if transaction.format != FORMAT || transaction.id != id {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "of another version or number"));
    }
    Ok(transaction)
}

/// The last transaction since boot in one of some states.
///
/// # Errors
/// If one of them cannot be read.
pub fn latest(dir: &Path, boot: &str, states: &[State]) -> io::Result<Option<Transaction>> {
    for id in list(dir)?.into_iter().rev() {
        let transaction = read(dir, id)?;
        if transaction.boot == boot && states.contains(&transaction.state) {
            return Ok(Some(transaction));
        }
    }
    Ok(None)
}

/// The numbers of all transactions, in their order.
///
/// # Errors
/// If the directory exists but cannot be read.
pub fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let number =
        |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok();
    let mut ids: Vec<u64> = entries.flatten().filter_map(number).collect();
    ids.sort_unstable();
    Ok(ids)
}

fn path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id}.json"))
}
