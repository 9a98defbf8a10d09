//! What a process leaves for the next one: small texts that outlive it.

use std::collections::BTreeMap;
use std::io;

/// A text, by what it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The panics over vifs.
    Panics,
    /// What the front-end of the virtio vif with this name has negotiated.
    Negotiated(String),
    /// The settings of the virtio vif with this name that a user has changed.
    Settings(String),
    /// What the guest of the Xen vif with this name has set over its control ring.
    Hashing(String),
    /// The multicast frames that the guest of the Xen vif with this name has ordered.
    Multicast(String),
    /// What was applied to network devices.
    Devices,
    /// The Xen vifs that had traffic recently.
    Traffic,
    /// How often the process of each vif was replaced.
    Restarts,
}

/// Where notes are kept.
pub trait Notes {
    /// The first bytes of a note, at most `len_max`, whatever an earlier process has left there.
    /// Empty if it does not exist or cannot be read.
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8>;

    /// Writes a note. If the process is killed meanwhile, the former content is left, or the whole
    /// new one. Line breaks may follow the content, as many as the former one was longer.
    ///
    /// # Errors
    /// The reason, with the name of the note.
    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()>;

    /// Removes a note, if it exists.
    ///
    /// # Errors
    /// The reason, with the name of the note.
    fn remove(&mut self, note: &Note) -> io::Result<()>;

    /// Seconds since 1970, by a clock that outlives the process.
    fn seconds(&self) -> u64;
}

/// Notes of which what could not be written is written later: a disk that was full may have room
/// again.
#[derive(Debug)]
pub struct Retried<N> {
    notes: N,
    /// What each note should be that could not be written; `None` if it could not be removed.
    owed: BTreeMap<Note, Option<Vec<u8>>>,
}

impl<N: Notes> Retried<N> {
    /// Nothing is owed yet.
    pub fn new(notes: N) -> Retried<N> {
        Retried { notes, owed: BTreeMap::new() }
    }

    /// Whether a note is not what it should be.
    pub fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Writes what could not be written before, as far as that is possible now.
    pub fn catch_up(&mut self) {
        for (note, content) in std::mem::take(&mut self.owed) {
            let done = match content {
                Some(content) => self.write(&note, &content),
                None => self.remove(&note),
            };
            if done.is_ok() {
                tracing::info!(?note, "the next process will know this after all");
            }
        }
    }

    fn note_outcome(
        &mut self,
        note: &Note,
        content: Option<&[u8]>,
        outcome: io::Result<()>,
    ) -> io::Result<()> {
        match &outcome {
            Ok(()) => self.owed.remove(note),
            Err(_) => self.owed.insert(note.clone(), content.map(<[u8]>::to_vec)),
        };
        outcome
    }
}

impl<N: Notes> Notes for Retried<N> {
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
        let Some(owed) = self.owed.get(note) else { return self.notes.read(note, len_max) };
        let mut content = owed.clone().unwrap_or_default();
        content.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        content
    }

    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
        let written = self.notes.write(note, content);
        self.note_outcome(note, Some(content), written)
    }

    fn remove(&mut self, note: &Note) -> io::Result<()> {
        let removed = self.notes.remove(note);
        self.note_outcome(note, None, removed)
    }

    fn seconds(&self) -> u64 {
        self.notes.seconds()
    }
}

/// The text of a note, of at most so many bytes; empty if it does not exist.
pub(crate) fn text_of(note: &Note, len_max: usize, notes: &mut impl Notes) -> String {
    let len_max = u64::try_from(len_max).unwrap_or(u64::MAX);
    String::from_utf8(notes.read(note, len_max)).unwrap_or_default()
}

/// Removes the note of a vif that has ended.
pub(crate) fn forget(note: &Note, notes: &mut impl Notes) {
    if let Err(error) = notes.remove(note) {
        tracing::warn!("{error}");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Notes in memory, and the time.
    #[derive(Debug, Default)]
    pub(crate) struct Kept {
        pub(crate) notes: BTreeMap<Note, Vec<u8>>,
        pub(crate) seconds: u64,
        /// Whether there is no room for more.
        pub(crate) is_full: bool,
        /// Whether nothing can be removed.
        pub(crate) is_read_only: bool,
    }

    impl Notes for Kept {
        fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
            let len_max = usize::try_from(len_max).unwrap_or(usize::MAX);
            let mut content = self.notes.get(note).cloned().unwrap_or_default();
            content.truncate(len_max);
            content
        }

        fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
            if self.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let former = self.notes.entry(note.clone()).or_default();
            let len = former.len().max(content.len());
            *former = content.to_vec();
            former.resize(len, b'\n');
            Ok(())
        }

        fn remove(&mut self, note: &Note) -> io::Result<()> {
            if self.is_read_only {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            self.notes.remove(note);
            Ok(())
        }

        fn seconds(&self) -> u64 {
            self.seconds
        }
    }

    #[test]
    fn what_a_full_disk_refuses_is_read_as_it_should_be_and_written_once_there_is_room() {
        let mut notes = Retried::new(Kept::default());
        notes.write(&Note::Devices, b"old").expect("there is room");
        notes.notes.is_full = true;
        for content in [&b"new"[..], b"newer"] {
            notes.write(&Note::Devices, content).expect_err("the disk is full");
        }
        notes.write(&Note::Traffic, b"x").expect_err("the disk is full");
        assert_eq!(notes.read(&Note::Devices, 4), b"newe");
        notes.catch_up();
        assert!(notes.is_owing());
        assert_eq!(notes.notes.read(&Note::Devices, 9), b"old");
        notes.notes.is_full = false;
        // This one is written again before its time comes.
        notes.write(&Note::Traffic, b"later").expect("there is room");
        notes.catch_up();
        assert!(!notes.is_owing());
        assert_eq!(notes.notes.read(&Note::Devices, 9), b"newer");
        assert_eq!(notes.notes.read(&Note::Traffic, 9), b"later");
    }

    #[test]
    fn a_note_that_could_not_be_removed_is_removed_later_unless_it_is_written_again() {
        let mut notes = Retried::new(Kept::default());
        for note in [&Note::Devices, &Note::Traffic] {
            notes.write(note, b"old").expect("there is room");
        }
        notes.notes.is_read_only = true;
        for note in [&Note::Devices, &Note::Traffic] {
            notes.remove(note).expect_err("it cannot be removed");
            assert_eq!(notes.read(note, 9), b"");
        }
        notes.write(&Note::Traffic, b"new").expect("there is room");
        notes.notes.is_read_only = false;
        notes.catch_up();
        let left: Vec<&Note> = notes.notes.notes.keys().collect();
        assert_eq!(left, [&Note::Traffic]);
    }
}
