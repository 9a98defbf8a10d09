//! What a backend's process leaves for the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_host::{Charged, Note, Notes, Writer, panic_line};

use crate::canary::Canary;

/// Notes that outlive the process. Clones are handles of one.
#[derive(Debug, Default, Clone)]
pub struct KeptNotes {
    notes: Arc<Mutex<BTreeMap<Note, Vec<u8>>>>,
    /// Whether there is no room for anything more.
    is_full: Arc<AtomicBool>,
    /// Those that found no room when they were last written. That of devices stays here: a device
    /// that its process found without a note is in no later one either.
    stale: Arc<Mutex<BTreeSet<Note>>>,
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
        let has_room = !self.is_full.load(Relaxed);
        if has_room {
            let line = panic_line(self.seconds(), vif);
            self.all().entry(Note::Panics).or_default().extend(line.into_bytes());
        }
        has_room
    }

    /// Whether a note found no room when it was last written.
    pub(crate) fn is_stale(&self, note: &Note) -> bool {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner).contains(note)
    }

    /// Fills the disk, or frees it again. Returns whether it is full now.
    pub(crate) fn toggle_room(&mut self) -> bool {
        !self.is_full.fetch_not(Relaxed)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Note, Vec<u8>>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A note is what it should be.
fn forget(note: &Note, stale: &mut BTreeSet<Note>) {
    if *note != Note::Devices {
        stale.remove(note);
    }
}

impl Notes for KeptNotes {
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
        let mut content = self.all().get(note).cloned().unwrap_or_default();
        content.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        content
    }

    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_full.load(Relaxed) {
            stale.insert(note.clone());
            return Err(io::ErrorKind::StorageFull.into());
        }
        forget(note, &mut stale);
        let mut notes = self.all();
        let kept = notes.entry(note.clone()).or_default();
        // It is written in place, and not made shorter.
        let len = kept.len().max(content.len());
        *kept = content.to_vec();
        kept.resize(len, b'\n');
        Ok(())
    }

    fn writer(&mut self, note: &Note) -> io::Result<Writer> {
        let (mut notes, note) = (self.clone(), note.clone());
        Ok(Box::new(move |content| notes.write(&note, content)))
    }

    fn remove(&mut self, note: &Note) -> io::Result<()> {
        forget(note, &mut self.stale.lock().unwrap_or_else(PoisonError::into_inner));
        if self.canary != Some(Canary::LeftNotes) {
            self.all().remove(note);
        }
        Ok(())
    }

    fn seconds(&self) -> u64 {
        0
    }
}
