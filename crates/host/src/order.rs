//! The order in which a process takes over the vifs of Xen that it finds at its start: those first
//! that had traffic recently, because their guests notice the pause.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringway_xenbus::Vif;

use crate::notes::{Note, Notes};

/// How often the traffic is compared with the note.
const INTERVAL: Duration = Duration::from_secs(5);
/// Vifs in a note: the order of more hardly matters.
const VIFS_MAX: usize = 256; // not a limit: our own note
/// Bytes of a note: more than so many paths have.
const LEN_MAX: u64 = 16 << 10; // not a limit: our own note

/// The traffic of a process's vifs, of which the next process knows.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Frames of each vif at the last look.
    seen: BTreeMap<Vif, u64>,
    /// The vifs that had any before that, those with most first.
    noted: Vec<Vif>,
    due: Option<Instant>,
}

/// The vifs that had traffic when an earlier process looked last, those with most first. Some may
/// be gone.
pub(crate) fn read(notes: &mut impl Notes) -> Vec<Vif> {
    let content = notes.read(&Note::Traffic, LEN_MAX);
    let text = String::from_utf8_lossy(&content);
    text.lines().take(VIFS_MAX).filter_map(Vif::from_backend_path).collect()
}

impl Traffic {
    /// Notes which vifs have exchanged frames since the last look, if it is time to look again.
    /// `frames` are the frames of each vif so far.
    pub(crate) fn follow(
        &mut self,
        frames: impl Iterator<Item = (Vif, u64)>,
        now: Instant,
        notes: &mut impl Notes,
    ) {
        if self.due.is_some_and(|due| now < due) {
            return;
        }
        self.due = Some(now + INTERVAL);
        let seen: BTreeMap<Vif, u64> = frames.collect();
        let since = |(vif, frames): (&Vif, &u64)| {
            let before = self.seen.get(vif).copied().unwrap_or_default();
            // Those of a guest that has connected again begin at 0.
            let new = frames.checked_sub(before).unwrap_or(*frames);
            (new > 0).then_some((new, *vif))
        };
        let mut busy: Vec<(u64, Vif)> = seen.iter().filter_map(since).collect();
        busy.sort_by(|one, other| other.cmp(one));
        busy.truncate(VIFS_MAX);
        let busy: Vec<Vif> = busy.into_iter().map(|(_, vif)| vif).collect();
        self.seen = seen;
        // Without traffic, the last note is still the best guess.
        if busy.is_empty() || busy == self.noted {
            return;
        }
        let text: String = busy.iter().map(|vif| format!("{}\n", vif.backend_dir())).collect();
        // The next process can do without.
        let _ = notes.write(&Note::Traffic, text.as_bytes());
        self.noted = busy;
    }
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;
    use crate::notes::tests::Kept;

    fn vif(guest: u16) -> Vif {
        Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 }
    }

    #[test]
    fn the_next_process_knows_the_vifs_with_most_traffic_first() {
        let (notes, start) = (&mut Kept::default(), Instant::now());
        assert_eq!(read(notes), []);
        let mut traffic = Traffic::default();
        let mut look = |frames: [u64; 3], after: Duration, notes: &mut Kept| {
            let frames = (1..).map(vif).zip(frames);
            traffic.follow(frames, start + after, notes);
            read(notes)
        };
        assert_eq!(look([5, 0, 9], Duration::ZERO, notes), [vif(3), vif(1)]);
        assert_eq!(look([5, 50, 9], INTERVAL / 2, notes), [vif(3), vif(1)], "it is too early");
        assert_eq!(look([8, 50, 9], INTERVAL, notes), [vif(2), vif(1)]);
        assert_eq!(look([8, 50, 9], 2 * INTERVAL, notes), [vif(2), vif(1)], "nothing moves");
        assert_eq!(look([9, 2, 9], 3 * INTERVAL, notes), [vif(2), vif(1)], "it has reconnected");
        assert_eq!(look([9, 2, 10], 4 * INTERVAL, notes), [vif(3)]);
    }

    #[test]
    fn a_damaged_note_orders_nothing_else() {
        let notes = &mut Kept::default();
        let text = format!("x\n/local/domain/0/backend/vbd/1/0\n{}\n\n\n", vif(7).backend_dir());
        notes.notes.insert(Note::Traffic, text.into_bytes());
        assert_eq!(read(notes), [vif(7)]);
    }
}
