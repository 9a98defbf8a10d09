//! What a backend's process leaves for the next one.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_host::{Charged, Note, Notes, panic_line};

use crate::canary::Canary;

/// Notes that outlive the process. Clones are handles of one.
#[derive(Debug, Default, Clone)]
pub struct KeptNotes {
    notes: Arc<Mutex<BTreeMap<Note, Vec<u8>>>>,
    /// Whether there is no room for anything more.
    is_full: Arc<AtomicBool>,
    /// Those that found no room when they were last written, and whether that was a write of the
    /// present process.
    stale: Arc<Mutex<BTreeMap<Note, bool>>>,
    canary: Option<Canary>,
}

impl KeptNotes {
    /// None yet.
    pub(crate) fn new(canary: Option<Canary>) -> KeptNotes {
        KeptNotes { canary, ..KeptNotes::default() }
    }

    /// Adds a line for a panic, as a process does that ends because of it. Returns whether there
    /// was room.
    pub(crate) fn add_panic(&mut self, vif: &Charged) -> bool {
        let has_room = self.has_room();
        if has_room {
            let line = panic_line(self.seconds(), vif);
            self.all().entry(Note::Panics).or_default().extend(line.into_bytes());
        }
        has_room
    }

    /// Whether a note found no room when it was last written.
    pub(crate) fn is_stale(&self, note: &Note) -> bool {
        self.stale().contains_key(note)
    }

    /// A process begins: what found no room before, it does not know.
    pub(crate) fn begin_process(&self) {
        self.stale().values_mut().for_each(|is_its| *is_its = false);
    }

    /// The notes of the present process that found no room when they were last written.
    pub(crate) fn unwritten(&self) -> Vec<Note> {
        let stale = self.stale();
        stale.iter().filter(|(_, is_its)| **is_its).map(|(note, _)| note.clone()).collect()
    }

    /// Fills the disk, or frees it again. Returns whether it is full now.
    pub fn toggle_room(&mut self) -> bool {
        !self.is_full.fetch_not(Relaxed)
    }

    /// Frees the disk.
    pub(crate) fn make_room(&self) {
        self.is_full.store(false, Relaxed);
    }

    /// Whether there is room.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full.load(Relaxed)
    }

    fn stale(&self) -> MutexGuard<'_, BTreeMap<Note, bool>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Note, Vec<u8>>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes for KeptNotes {
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
        let mut content = self.all().get(note).cloned().unwrap_or_default();
        content.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        content
    }

    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
        if !self.has_room() {
            self.stale().insert(note.clone(), true);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.stale().remove(note);
        let mut notes = self.all();
        let kept = notes.entry(note.clone()).or_default();
        // It is written in place, and not made shorter.
        let len = kept.len().max(content.len());
        *kept = content.to_vec();
        kept.resize(len, b'\n');
        Ok(())
    }

    fn remove(&mut self, note: &Note) -> io::Result<()> {
        self.stale().remove(note);
        if self.canary != Some(Canary::LeftNotes) {
            self.all().remove(note);
        }
        Ok(())
    }

    fn seconds(&self) -> u64 {
        0
    }
}
