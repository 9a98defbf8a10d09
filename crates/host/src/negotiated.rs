//! What a front-end of virtio and its guest have negotiated, noted for the next process of a
//! backend.
//!
//! QEMU and the driver of its guest decide when the guest starts what they use. A successor that
//! offered less, because its configuration has changed meanwhile, would leave the guest without a
//! network. So it offers at least the same to the same front-end. Another process at the other end
//! of the socket is another start of the guest, for which only the configuration counts.

use std::io;

use ringway_vhost::backend::{Negotiated, PAIRS_MAX};
use ringway_wire::virtio::{Features, VHOST_F_LOG_ALL};

use crate::notes::{Note, Notes};

/// The largest MTU of a network device on Linux: the kernel counts the 14 bytes of Ethernet, too.
const MTU_MAX: u16 = u16::MAX - 14; // not a limit: the kernel's
/// Bytes of a note.
const LEN_MAX: u64 = 128; // not a limit: our own note

/// The least that is offered to the front-end of a vif.
#[derive(Debug)]
pub(crate) struct Floor {
    note: Note,
    noted: Noted,
    /// The process at the other end of the present connection, if it is known.
    front_end: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Noted {
    negotiated: Negotiated,
    /// The process that negotiated it.
    front_end: Option<u32>,
}

impl Floor {
    /// Reads what a former process has noted of the vif with this name.
    pub(crate) fn read(vif: &str, notes: &mut impl Notes) -> Floor {
        let note = Note::Negotiated(vif.to_owned());
        let text = String::from_utf8(notes.read(&note, LEN_MAX)).unwrap_or_default();
        let nothing = Noted { negotiated: Negotiated::NONE, front_end: None };
        let noted = Noted::parse(&text).unwrap_or(nothing);
        Floor { note, noted, front_end: None }
    }

    /// The least to offer to the front-end that has connected.
    ///
    /// A process that is not known could be the same as before.
    pub(crate) fn of(&mut self, front_end: Option<u32>) -> Negotiated {
        self.front_end = front_end;
        match (self.noted.front_end, front_end) {
            (Some(before), Some(now)) if before != now => Negotiated::NONE,
            _ => self.noted.negotiated,
        }
    }

    /// The pairs that a former process has offered: the next front-end could be the same, so the
    /// vif's network device has to have a queue for each.
    pub(crate) fn pairs(&self) -> u16 {
        self.noted.negotiated.pairs
    }

    /// The MTU that the front-end of a former process has set, which could be the next one, or 0.
    pub(crate) fn mtu(&self) -> u16 {
        self.noted.negotiated.mtu
    }

    /// Notes what the present front-end has negotiated.
    ///
    /// # Errors
    /// The reason why the next process will not know it.
    pub(crate) fn note(
        &mut self,
        negotiated: Negotiated,
        notes: &mut impl Notes,
    ) -> io::Result<()> {
        // The front-end sets this feature when a migration begins and clears it when it ends.
        let features = negotiated.features.without(Features::of(&[VHOST_F_LOG_ALL]));
        let negotiated = Negotiated { features, ..negotiated };
        let noted = Noted { negotiated, front_end: self.front_end };
        if noted == self.noted {
            return Ok(());
        }
        self.noted = noted;
        notes.write(&self.note, noted.text().as_bytes())
    }

    /// Forgets it: the vif has ended.
    ///
    /// # Errors
    /// The reason why a later vif with this name will offer it.
    pub(crate) fn forget(&self, notes: &mut impl Notes) -> io::Result<()> {
        notes.remove(&self.note)
    }
}

impl Noted {
    fn text(self) -> String {
        let Negotiated { features, protocol, pairs, mtu } = self.negotiated;
        let front_end = self.front_end.unwrap_or(0);
        format!("{} {protocol} {pairs} {front_end} {mtu}\n", features.0)
    }

    fn parse(text: &str) -> Option<Noted> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let features = Features(next()?);
        // Earlier versions kept fewer numbers.
        let protocol = next().unwrap_or(0);
        let pairs = next().and_then(|pairs| u16::try_from(pairs).ok());
        let pairs = pairs.filter(|pairs| *pairs <= PAIRS_MAX).unwrap_or(0);
        let front_end = next().and_then(|process| u32::try_from(process).ok());
        let front_end = front_end.filter(|process| *process != 0);
        let mtu = next().and_then(|mtu| u16::try_from(mtu).ok());
        let mtu = mtu.filter(|mtu| *mtu <= MTU_MAX).unwrap_or(0);
        Some(Noted { negotiated: Negotiated { features, protocol, pairs, mtu }, front_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::tests::Kept;

    const USED: Negotiated =
        Negotiated { features: Features(1 << 32 | 7), protocol: 9, pairs: 4, mtu: 4000 };

    #[test]
    fn the_next_process_offers_the_same_to_the_same_front_end_only() {
        let notes = &mut Kept::default();
        let read = |notes: &mut Kept| Floor::read("vm1", notes);
        let mut floor = read(notes);
        assert_eq!(floor.of(Some(70)), Negotiated::NONE);
        floor.note(USED, notes).expect("noted");
        let mut next = read(notes);
        assert_eq!(next.pairs(), USED.pairs, "whichever front-end connects");
        assert_eq!(next.of(Some(70)), USED);
        assert_eq!(next.of(None), USED, "it may be the same");
        assert_eq!(next.of(Some(71)), Negotiated::NONE, "its guest starts");
        next.note(Negotiated { pairs: 2, ..USED }, notes).expect("noted");
        let mut last = read(notes);
        assert_eq!((last.of(Some(71)).pairs, last.of(Some(70)).pairs), (2, 0));
        last.note(Negotiated::NONE, notes).expect("noted");
        assert_eq!(read(notes).of(Some(70)), Negotiated::NONE, "all is overwritten");
        last.forget(notes).expect("forgotten");
        last.forget(notes).expect("nothing is left");
        assert_eq!(read(notes).of(Some(71)), Negotiated::NONE);
    }

    #[test]
    fn a_migration_in_progress_is_not_noted() {
        let notes = &mut Kept::default();
        let features = USED.features.or(Features::of(&[VHOST_F_LOG_ALL]));
        let mut floor = Floor::read("vm1", notes);
        floor.note(Negotiated { features, ..USED }, notes).expect("noted");
        assert_eq!(Floor::read("vm1", notes).of(Some(1)), USED);
    }

    #[test]
    fn notes_of_earlier_versions_and_damaged_ones_are_read() {
        let notes = &mut Kept::default();
        for (text, features, pairs, mtu) in [
            ("4294967296\n", 1 << 32, 0, 0),
            ("5 1 128 3", 5, 128, 0),
            ("5 1 2 0 1400", 5, 2, 1400),
            ("5 1 2 0 65521", 5, 2, 65521),
            ("5 1 2 0 65522", 5, 2, 0),
            ("5 1 129 3 70000", 5, 0, 0),
            ("5 1 70000 3", 5, 0, 0),
            ("x 1 2 3", 0, 0, 0),
            ("", 0, 0, 0),
        ] {
            notes.notes.insert(Note::Negotiated("vm1".to_owned()), text.into());
            let mut floor = Floor::read("vm1", notes);
            assert_eq!((floor.pairs(), floor.mtu()), (pairs, mtu), "{text:?}");
            let floor = floor.of(None);
            assert_eq!((floor.features, floor.pairs), (Features(features), pairs), "{text:?}");
        }
    }
}
