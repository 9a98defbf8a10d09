//! How often the process that serves a vif was replaced by another, which took the vif over.

use std::collections::BTreeMap;

use crate::notes::{Note, Notes};

/// Bytes of a note: more than all vifs of a host have.
const LEN_MAX: u64 = 1 << 20; // not a limit: our own note

/// The restarts of each vif, which a note has for the next process.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    /// Those of vifs that an earlier process has served, and this one not yet.
    earlier: BTreeMap<String, u64>,
    /// Those of vifs that this process serves.
    present: BTreeMap<String, u64>,
}

impl Restarts {
    /// What an earlier process has noted.
    pub(crate) fn read(notes: &mut impl Notes) -> Restarts {
        let content = notes.read(&Note::Restarts, LEN_MAX);
        let text = String::from_utf8_lossy(&content);
        let vif = |line: &str| {
            let (vif, restarts) = line.split_once(' ')?;
            Some((vif.to_owned(), restarts.parse().ok()?))
        };
        Restarts { earlier: text.lines().filter_map(vif).collect(), present: BTreeMap::new() }
    }

    /// Counts this process for a vif that it serves from now on.
    pub(crate) fn begin(&mut self, vif: &str, notes: &mut impl Notes) {
        if self.present.contains_key(vif) {
            return;
        }
        let earlier = self.earlier.remove(vif);
        let restarts = earlier.map_or(0, |restarts| restarts.saturating_add(1));
        if restarts > 0 {
            tracing::info!(vif, restarts, "taken over from an earlier process");
        }
        self.present.insert(vif.to_owned(), restarts);
        self.write(notes);
    }

    /// Forgets a vif that is gone: the next one with this name is another.
    pub(crate) fn end(&mut self, vif: &str, notes: &mut impl Notes) {
        if self.present.remove(vif).is_some() {
            self.write(notes);
        }
    }

    /// How often the process of a vif was replaced since the vif was made.
    pub(crate) fn of(&self, vif: &str) -> u64 {
        self.present.get(vif).copied().unwrap_or_default()
    }

    fn write(&self, notes: &mut impl Notes) {
        let all = self.earlier.iter().chain(&self.present);
        let text: String = all.map(|(vif, restarts)| format!("{vif} {restarts}\n")).collect();
        // Without room, the next process counts too few: nothing depends on it.
        let _ = notes.write(&Note::Restarts, text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::tests::Kept;

    #[test]
    fn each_process_that_takes_a_vif_over_is_counted() {
        let notes = &mut Kept::default();
        let mut first = Restarts::read(notes);
        first.begin("vm1", notes);
        first.begin("vif1.0", notes);
        first.begin("vm1", notes);
        assert_eq!((first.of("vm1"), first.of("vif1.0"), first.of("vm2")), (0, 0, 0));
        let mut second = Restarts::read(notes);
        second.begin("vm1", notes);
        assert_eq!((second.of("vm1"), second.of("vif1.0")), (1, 0));
        // It was killed before it had found the other one.
        let mut third = Restarts::read(notes);
        third.begin("vif1.0", notes);
        third.begin("vm1", notes);
        assert_eq!((third.of("vm1"), third.of("vif1.0")), (2, 1));
        third.end("vm1", notes);
        third.begin("vm1", notes);
        assert_eq!(third.of("vm1"), 0, "it is another vif");
    }

    #[test]
    fn a_damaged_note_counts_nothing() {
        let notes = &mut Kept::default();
        notes.notes.insert(Note::Restarts, b"vm1\nvm2 x\n\xff 3\nvm3 7\n\n".to_vec());
        let mut restarts = Restarts::read(notes);
        for vif in ["vm1", "vm2", "vm3"] {
            restarts.begin(vif, notes);
        }
        assert_eq!(["vm1", "vm2", "vm3"].map(|vif| restarts.of(vif)), [0, 0, 8]);
    }
}
