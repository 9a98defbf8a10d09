//! Where an experiment has its temporary files.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

const PREFIX: &str = "ringway-lab-";
const LOCK_FILE: &str = "lock";

/// A place for temporary directories that is removed with this value.
///
/// Who is killed leaves it behind; then the next one removes it.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    _lock: File,
}

impl Scratch {
    /// Makes one, and removes those whose owners are gone.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn new() -> io::Result<Scratch> {
        let root = std::env::temp_dir();
        for entry in fs::read_dir(&root)?.flatten() {
            let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
            if is_ours && lock(&entry.path()).is_ok() {
                // Another user may own it, or remove it at the same time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(root)?;
        let file = File::create(dir.path().join(LOCK_FILE))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Scratch { dir, _lock: file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Takes the lock of a scratch directory that is there; fails if its owner has it.
fn lock(dir: &Path) -> io::Result<File> {
    let file = File::open(dir.join(LOCK_FILE))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}
