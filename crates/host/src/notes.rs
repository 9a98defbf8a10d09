//! What a process leaves for the next one: small texts that outlive it.

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
    /// What was applied to network devices.
    Devices,
    /// The Xen vifs that had traffic recently.
    Traffic,
    /// How often the process of each vif was replaced.
    Restarts,
}

/// Writes a note, as [`Notes::write`] does, from any thread and at once: for what has to be noted
/// before a guest learns that it is done. It waits for nothing but the disk.
pub type Writer = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

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

    /// A writer of a note, for an engine.
    ///
    /// # Errors
    /// The reason, with the name of the note.
    fn writer(&mut self, note: &Note) -> io::Result<Writer>;

    /// Removes a note, if it exists.
    ///
    /// # Errors
    /// The reason, with the name of the note.
    fn remove(&mut self, note: &Note) -> io::Result<()>;

    /// Seconds since 1970, by a clock that outlives the process.
    fn seconds(&self) -> u64;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Notes in memory, and the time. Engines write none.
    #[derive(Debug, Default)]
    pub(crate) struct Kept {
        pub(crate) notes: BTreeMap<Note, Vec<u8>>,
        pub(crate) seconds: u64,
        /// Whether there is no room for more.
        pub(crate) is_full: bool,
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

        fn writer(&mut self, _: &Note) -> io::Result<Writer> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn remove(&mut self, note: &Note) -> io::Result<()> {
            self.notes.remove(note);
            Ok(())
        }

        fn seconds(&self) -> u64 {
            self.seconds
        }
    }
}
