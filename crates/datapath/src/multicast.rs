//! The multicast frames that a guest wants, if it says so.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::MacAddr;

/// The multicast addresses whose frames a guest wants. Queues of its vif change it, on whichever
/// threads they are, while others read it; a frame that comes during a change passes or not.
///
/// It is small, so that it is searched from its beginning: that costs a fraction of the copy that a
/// frame in it is not given.
pub struct MulticastFilter {
    /// Keys of addresses in any order, with gaps; 0 for no address.
    keys: [AtomicU64; MulticastFilter::ADDRESSES_MAX],
    /// Whether the guest may want others, too, which are not known: then all frames pass.
    is_partial: bool,
}

/// The filter has no room for another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterFull;

impl MulticastFilter {
    //= netif.h:multicast-order
    /// The most addresses: as many as in Linux' backend.
    pub const ADDRESSES_MAX: usize = 64;

    /// Bytes of the longest text of a filter.
    pub const TEXT_LEN_MAX: usize = 6 + 18 * Self::ADDRESSES_MAX; // not a limit: our own text

    /// A filter that is not known, by which all frames pass whatever is added.
    pub fn unknown() -> MulticastFilter {
        MulticastFilter { is_partial: true, ..MulticastFilter::default() }
    }

    /// Adds an address, unless it is there.
    ///
    /// # Errors
    /// [`FilterFull`]; nothing has then changed.
    pub fn add(&self, address: MacAddr) -> Result<(), FilterFull> {
        let key = key_of(address);
        let has = |slot: &AtomicU64| slot.load(Relaxed) == key;
        let take = |slot: &AtomicU64| slot.compare_exchange(0, key, Relaxed, Relaxed).is_ok();
        match self.keys.iter().any(has) || self.keys.iter().any(take) {
            true => Ok(()),
            false => Err(FilterFull),
        }
    }

    /// Removes an address, if it is there.
    pub fn remove(&self, address: MacAddr) {
        let key = key_of(address);
        for slot in &self.keys {
            // Two queues may have added it at the same moment.
            let _ = slot.compare_exchange(key, 0, Relaxed, Relaxed);
        }
    }

    /// Whether a frame to this address passes. Broadcasts and frames to stations always do.
    pub fn passes(&self, to: MacAddr) -> bool {
        //= netif.h:multicast-filter
        if !to.is_multicast() || to == MacAddr::BROADCAST || self.is_partial {
            return true;
        }
        let key = key_of(to);
        self.keys.iter().any(|slot| slot.load(Relaxed) == key)
    }

    /// The addresses, in no particular order; `None` if they are not known.
    pub fn addresses(&self) -> Option<Vec<MacAddr>> {
        let keys = self.keys.iter().map(|slot| slot.load(Relaxed)).filter(|key| *key != 0);
        (!self.is_partial).then(|| keys.map(address_of).collect())
    }

    /// Reads what [`Display`](fmt::Display) has written, with any space behind it; `None` if it is
    /// something else.
    pub fn from_text(text: &str) -> Option<MulticastFilter> {
        let filter = MulticastFilter::default();
        let mut words = text.split_ascii_whitespace();
        (words.next() == Some(HEADING)).then_some(())?;
        for word in words {
            filter.add(MacAddr::parse(word)?).ok()?;
        }
        Some(filter)
    }
}

impl Default for MulticastFilter {
    /// A filter by which no multicast frame passes.
    fn default() -> MulticastFilter {
        MulticastFilter {
            keys: [const { AtomicU64::new(0) }; MulticastFilter::ADDRESSES_MAX],
            is_partial: false,
        }
    }
}

impl fmt::Display for MulticastFilter {
    /// One line. Of a filter that is not known, nothing, as if it had never been written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(addresses) = self.addresses() else { return Ok(()) };
        f.write_str(HEADING)?;
        addresses.iter().try_for_each(|address| write!(f, " {address}"))
    }
}

impl fmt::Debug for MulticastFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MulticastFilter").field(&self.addresses()).finish()
    }
}

/// The first word of a filter's text, so that an empty text is no empty filter.
const HEADING: &str = "groups";

/// A bit that no address has, so that no key is 0.
const IS_USED: u64 = 1 << 48;

fn key_of(address: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = address.0;
    IS_USED | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn address_of(key: u64) -> MacAddr {
    let [_, _, address @ ..] = key.to_be_bytes();
    MacAddr(address)
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;

    fn group(number: u8) -> MacAddr {
        MacAddr([0x33, 0x33, 0, 0, 0, number])
    }

    #[test]
    fn of_multicast_frames_those_for_its_addresses_pass() {
        let filter = MulticastFilter::default();
        //= netif.h:multicast-filter
        for to in [MacAddr::BROADCAST, MacAddr([2; 6])] {
            assert!(filter.passes(to), "{to}");
        }
        assert!(!filter.passes(group(1)));
        filter.add(group(1)).expect("there is room");
        assert!(filter.passes(group(1)) && !filter.passes(group(2)));
        filter.remove(group(2));
        filter.remove(group(1));
        assert!(!filter.passes(group(1)));
    }

    #[test]
    fn it_has_room_for_64_addresses_however_often_each_is_added() {
        let filter = MulticastFilter::default();
        //= netif.h:multicast-order
        for number in (0..64).chain(0..64) {
            filter.add(group(number)).expect("there is room");
        }
        assert_eq!(filter.add(group(64)), Err(FilterFull));
        assert!((0..64).all(|number| filter.passes(group(number))) && !filter.passes(group(64)));
        // A gap is used again.
        filter.remove(group(7));
        filter.add(group(64)).expect("one is gone");
        assert!(filter.passes(group(64)) && !filter.passes(group(7)));
        assert!(filter.to_string().len() <= MulticastFilter::TEXT_LEN_MAX);
    }

    #[test]
    fn an_unknown_filter_lets_all_frames_pass() {
        let filter = MulticastFilter::unknown();
        filter.add(group(1)).expect("there is room");
        assert!(filter.passes(group(1)) && filter.passes(group(2)));
        assert_eq!((filter.addresses(), filter.to_string()), (None, String::new()));
    }

    #[test]
    fn a_text_has_all_of_it_and_no_other_text_is_read() {
        let filter = MulticastFilter::default();
        let read = |text: &str| MulticastFilter::from_text(text).and_then(|it| it.addresses());
        assert_eq!(read(&filter.to_string()), Some(Vec::new()));
        filter.add(group(1)).expect("there is room");
        filter.add(group(2)).expect("there is room");
        let text = filter.to_string();
        assert_eq!(text, "groups 33:33:00:00:00:01 33:33:00:00:00:02");
        assert_eq!(read(&(text.clone() + "\n\n")), filter.addresses());
        for other in ["", "\n", "33:33:00:00:00:01", "groups 33:33", &text[..text.len() - 1]] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
