//! A place for temporary files that is removed even if its owner was killed.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

const LOCK_FILE: &str = "lock";

/// A directory for temporary files that is removed with this value.
///
/// A program that is killed leaves its directory behind; the next one of the same prefix removes
/// it.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    _lock: File,
}

impl Scratch {
    /// Creates a directory whose name begins with `prefix`, such as `ringway-lab-`, and removes
    /// those with that prefix whose owners have ended.
    ///
    /// # Errors
    /// The file system's error.
    pub fn new(prefix: &str) -> io::Result<Scratch> {
        let root = std::env::temp_dir();
        for entry in fs::read_dir(&root)?.flatten() {
            let is_ours = entry.file_name().to_string_lossy().starts_with(prefix);
            if is_ours && lock(&entry.path()).is_ok() {
                // Another user may own it, or remove it at the same time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(root)?;
        let file = File::create(dir.path().join(LOCK_FILE))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Scratch { dir, _lock: file })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Takes the lock of an existing scratch directory; fails while its owner runs.
fn lock(dir: &Path) -> io::Result<File> {
    let file = File::open(dir.join(LOCK_FILE))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}
