//! What a backend's process leaves for the next one.

use std::collections::BTreeMap;
use std::io;

use ringway_host::{Charged, Note, Notes, panic_line};

/// Notes that outlive the process.
#[derive(Debug, Default)]
pub(crate) struct KeptNotes {
    notes: BTreeMap<Note, Vec<u8>>,
    /// Whether there is no room for anything more.
    pub(crate) is_full: bool,
}

impl KeptNotes {
    /// Adds a line for a panic, as a process does that ends because of it. Returns whether there
    /// was room.
    pub(crate) fn add_panic(&mut self, vif: &Charged) -> bool {
        if !self.is_full {
            let line = panic_line(self.seconds(), vif);
            self.notes.entry(Note::Panics).or_default().extend(line.into_bytes());
        }
        !self.is_full
    }
}

impl Notes for KeptNotes {
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
        let mut content = self.notes.get(note).cloned().unwrap_or_default();
        content.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        content
    }

    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
        if self.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let kept = self.notes.entry(note.clone()).or_default();
        // It is written in place, and not made shorter.
        let len = kept.len().max(content.len());
        *kept = content.to_vec();
        kept.resize(len, b'\n');
        Ok(())
    }

    fn remove(&mut self, note: &Note) -> io::Result<()> {
        self.notes.remove(note);
        Ok(())
    }

    fn seconds(&self) -> u64 {
        0
    }
}
