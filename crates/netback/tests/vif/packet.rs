//! Packets of a ring, as the flags of their slots delimit them. Both directions have the same rules
//! for it, so the tests of the frontend use this module, too.

use ringway_wire::netif::{EXTRA_FLAG_MORE, ExtraInfo};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A slot that the peer writes: a request of the tx ring, or a response of the rx ring.
pub(crate) trait Slot: Copy + IntoBytes + Immutable {
    /// Another slot follows, with data.
    const MORE: u16;
    /// An extra follows.
    const EXTRA: u16;

    fn flags(&self) -> u16;
}

/// One packet.
pub(crate) struct Chain<'slots, S> {
    pub(crate) first: S,
    pub(crate) extras: Vec<ExtraInfo>,
    pub(crate) further: &'slots [S],
    /// The last slot announces another one that does not exist.
    pub(crate) is_cut_off: bool,
}

impl<S: Slot> Chain<'_, S> {
    pub(crate) fn of(slots: &[S]) -> Chain<'_, S> {
        let mut extras = Vec::new();
        let mut announces_extra = slots[0].flags() & S::EXTRA != 0;
        while announces_extra && 1 + extras.len() < slots.len() {
            let bytes = slots[1 + extras.len()].as_bytes();
            let (extra, _) = ExtraInfo::read_from_prefix(bytes).expect("an extra fits a slot");
            announces_extra = extra.flags & EXTRA_FLAG_MORE != 0;
            extras.push(extra);
        }
        let rest = &slots[1 + extras.len()..];
        let has_further = !announces_extra && slots[0].flags() & S::MORE != 0;
        let last = rest.iter().position(|slot| slot.flags() & S::MORE == 0);
        let (further, is_cut_off) = match (has_further, last) {
            (false, _) => (&rest[..0], announces_extra),
            (true, Some(last)) => (&rest[..=last], false),
            (true, None) => (rest, true),
        };
        Chain { first: slots[0], extras, further, is_cut_off }
    }

    pub(crate) fn slots(&self) -> usize {
        1 + self.extras.len() + self.further.len()
    }
}
