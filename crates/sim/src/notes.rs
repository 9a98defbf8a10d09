//! What a backend's process leaves for the next one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use ringway_host::{Charged, Note, Notes, panic_line};

/// Notes that outlive the process. Clones are handles of one.
#[derive(Debug, Default, Clone)]
pub struct KeptNotes {
    notes: Rc<RefCell<BTreeMap<Note, Vec<u8>>>>,
    /// Whether there is no room for anything more.
    is_full: Rc<Cell<bool>>,
    /// Whether the last note about devices found no room.
    lacks_devices: Rc<Cell<bool>>,
}

impl KeptNotes {
    /// Adds a line for a panic, as a process does that ends because of it. Returns whether there
    /// was room.
    pub(crate) fn add_panic(&mut self, vif: &Charged) -> bool {
        if !self.is_full.get() {
            let line = panic_line(self.seconds(), vif);
            self.notes.borrow_mut().entry(Note::Panics).or_default().extend(line.into_bytes());
        }
        !self.is_full.get()
    }

    /// Whether what was last known of network devices is not in the notes.
    pub(crate) fn lack_devices(&self) -> bool {
        self.lacks_devices.get()
    }

    /// Fills the disk, or frees it again. Returns whether it is full now.
    pub(crate) fn toggle_room(&mut self) -> bool {
        self.is_full.set(!self.is_full.get());
        self.is_full.get()
    }
}

impl Notes for KeptNotes {
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
        let mut content = self.notes.borrow().get(note).cloned().unwrap_or_default();
        content.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        content
    }

    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
        if *note == Note::Devices {
            self.lacks_devices.set(self.is_full.get());
        }
        if self.is_full.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut notes = self.notes.borrow_mut();
        let kept = notes.entry(note.clone()).or_default();
        // It is written in place, and not made shorter.
        let len = kept.len().max(content.len());
        *kept = content.to_vec();
        kept.resize(len, b'\n');
        Ok(())
    }

    fn remove(&mut self, note: &Note) -> io::Result<()> {
        self.notes.borrow_mut().remove(note);
        Ok(())
    }

    fn seconds(&self) -> u64 {
        0
    }
}
