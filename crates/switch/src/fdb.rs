//! The forwarding table: which port an address was last seen at.
//!
//! A table of fixed size, allocated once: sets of eight entries, chosen by a hash of the address.
//! An entry is one 64-bit atomic with both address and port, so a reader never sees an address with
//! the port of another. A second array holds the times at which addresses were last seen.
//!
//! # Ownership of an address
//!
//! A live address keeps its port: it moves to another port only after it has aged, or when its port
//! is gone. Otherwise a guest could take over another's address by sending from it. A static
//! address ([`Fdb::bind`]) neither ages nor moves. It replaces a learned one, because only the
//! host's administrator binds addresses.
//!
//! A shared address ([`Fdb::assign`]) moves at once, but only between the ports that share it, and
//! those that may [`take`](Fdb::take) any shared one: no other port learns it.
//!
//! Every port has room for its first address, however many the others have learned, and a static
//! address counts against no limit.
//!
//! # Concurrent workers
//!
//! No thread waits for another, and all accesses are relaxed: an entry depends on no other memory.
//! An entry changes by compare-and-exchange only, and the thread that succeeds accounts for it, so
//! the numbers of learned addresses are exact. What can be observed in between:
//!
//! 1. *A new address with the time of the entry that it replaced.* It may count as aged: a frame is
//!    flooded once more, or the entry is removed and learned again.
//! 2. *An address removed as aged just as it is seen again.* It is learned from its next frame;
//!    until then frames to it are flooded.
//! 3. *One address in two entries*, learned by two workers while a third one frees an entry. The
//!    first in the set is used. The second is removed when the address moves, or when it ages; if
//!    the first is removed earlier, the second can direct frames to the address's former port, for
//!    at most one ageing time.
//! 4. *A port counted at its limit for a moment too long*, so that an address is refused although
//!    there is room. It is learned from its next frame.
//! 5. *An address at a port that does not share it*, which learned it at the moment when others
//!    began to share it. The first of them that sends takes it, for good.
//!
//! What cannot happen: a frame sent to a port at which its destination was never seen, a count that
//! drifts, an endless loop (attempts are bounded).

mod assigned;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ringway_datapath::MacAddr;

use crate::{PortId, Ticks};

use assigned::SharedAddresses;
pub use assigned::{Assigned, NotBound, Unbound};

/// One entry, as shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdbEntry {
    /// The address.
    pub mac: MacAddr,
    /// The port it was last seen at.
    pub port: PortId,
    /// Ticks since then; 0 for a static one.
    pub age_ticks: u32,
    /// It was bound to its port, and not learned.
    pub is_static: bool,
}

/// The result of learning a frame's source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It was known.
    Known,
    /// It is new.
    New,
    /// It was at another port and has aged there.
    Moved,
    /// It belongs to another port.
    OtherPort,
    /// Its port has as many addresses as it may have.
    PortFull,
    /// There was no room for it in the table, or it is a group's, or all zeros.
    Refused,
}

/// The forwarding table.
#[derive(Debug)]
pub struct Fdb {
    sets: Box<[Set]>,
    seen: Box<[[AtomicU32; WAYS]]>,
    ports: Box<[PortAddresses]>,
    learned: AtomicU32,
    learned_max: u32,
    ageing_ticks: u32,
    hash_seed: u64,
    shared: SharedAddresses,
    /// For the control plane: the ports that share each address.
    sharers: Mutex<BTreeMap<MacAddr, BTreeSet<PortId>>>,
}

/// Entries of one hash value: exactly a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// The number of addresses that a port has, and its maximum.
#[derive(Debug)]
struct PortAddresses {
    learned: AtomicU32,
    learned_max: AtomicU32,
    /// The last address that the port was refused because another has it, for people.
    taken: AtomicU64,
}

impl Fdb {
    /// A table for `entries_max` addresses, at most `per_port_max` for each of `ports` ports,
    /// forgotten `ageing_ticks` after they were last seen. `hash_seed` should be random: a guest
    /// that knows it can choose addresses that compete for the same entries.
    pub fn new(
        entries_max: u32,
        ports: u16,
        per_port_max: u32,
        ageing_ticks: u32,
        hash_seed: u64,
    ) -> Fdb {
        // Twice the room, so that a full table overflows few of its sets.
        let most = entries_max.saturating_add(ports.into());
        let set_count = usize::try_from(most).unwrap_or(usize::MAX).div_ceil(WAYS / 2);
        let set_count = set_count.max(1);
        let port = || PortAddresses {
            learned: AtomicU32::new(0),
            learned_max: AtomicU32::new(per_port_max),
            taken: AtomicU64::new(EMPTY),
        };
        Fdb {
            sets: std::iter::repeat_with(Set::default).take(set_count).collect(),
            seen: std::iter::repeat_with(Default::default).take(set_count).collect(),
            ports: std::iter::repeat_with(port).take(usize::from(ports)).collect(),
            learned: AtomicU32::new(0),
            learned_max: entries_max,
            ageing_ticks,
            hash_seed,
            shared: SharedAddresses::default(),
            sharers: Mutex::default(),
        }
    }

    /// The port that an address was last seen at.
    #[inline]
    pub fn lookup(&self, mac: MacAddr, now: Ticks) -> Option<PortId> {
        let (set, seen) = self.set_of(mac)?;
        let wanted = bits_of(mac) << 16;
        for (entry, seen) in set.0.iter().zip(seen) {
            let entry = entry.load(Relaxed);
            if is_same_address(entry, wanted) && !self.is_aged(entry, seen, now) {
                return Some(port_of(entry));
            }
        }
        None
    }

    /// Notes that a frame came from `mac` at `port`.
    #[inline]
    pub fn learn(&self, mac: MacAddr, port: PortId, now: Ticks) -> Learned {
        let Some((set, seen)) = self.set_of(mac) else { return Learned::Refused };
        let wanted = pack(mac, port);
        for (entry, seen) in set.0.iter().zip(seen) {
            let entry = entry.load(Relaxed);
            if is_same_address(entry, wanted) {
                if entry & !STATIC != wanted {
                    break;
                }
                // Store only when time has passed, so that the cache line stays shared by all
                // workers.
                if now.since(Ticks(seen.load(Relaxed))) > 0 {
                    seen.store(now.0, Relaxed);
                }
                return Learned::Known;
            }
        }
        self.claim(set, seen, wanted, (Authority::Learn, now))
    }

    /// As [`learn`](Fdb::learn), for a port that may have a shared address: it moves there from
    /// whatever port it is at. Refused for an address that no port shares.
    #[cold]
    pub fn take(&self, mac: MacAddr, port: PortId, now: Ticks) -> Learned {
        let Some((set, seen)) = self.set_of(mac) else { return Learned::Refused };
        self.claim(set, seen, pack(mac, port), (Authority::Share, now))
    }

    /// Makes `mac` the address of `port` until the port is removed, or other addresses are
    /// [assigned](Fdb::assign) to it.
    ///
    /// # Errors
    /// [`NotBound`].
    pub fn bind(&self, mac: MacAddr, port: PortId, now: Ticks) -> Result<(), NotBound> {
        let (set, seen) = self.set_of(mac).ok_or(NotBound::NoRoom)?;
        let sharer = self.sharers().get(&mac).and_then(|ports| ports.first().copied());
        if let Some(sharer) = sharer {
            return Err(NotBound::Shared(sharer));
        }
        let wanted = pack(mac, port) | STATIC;
        match self.claim(set, seen, wanted, (Authority::Bind, now)) {
            Learned::Known | Learned::New | Learned::Moved => Ok(()),
            Learned::PortFull | Learned::Refused => Err(NotBound::NoRoom),
            Learned::OtherPort => {
                let mut entries = set.0.iter().map(|entry| entry.load(Relaxed));
                let owner = entries.find(|entry| is_same_address(*entry, wanted)).map(port_of);
                Err(owner.map_or(NotBound::NoRoom, NotBound::OtherPort))
            }
        }
    }

    #[cold]
    fn claim(
        &self,
        set: &Set,
        seen: &[AtomicU32; WAYS],
        wanted: u64,
        (authority, now): (Authority, Ticks),
    ) -> Learned {
        if self.shared.has(wanted) != (authority == Authority::Share) {
            return Learned::OtherPort;
        }
        for _ in 0..ATTEMPTS_MAX {
            let (entry, seen, found) = match self.choose(set, seen, wanted, (authority, now)) {
                Choice::Replace(entry, seen, found) => (entry, seen, found),
                Choice::Known => return Learned::Known,
                Choice::OtherPort => return Learned::OtherPort,
                Choice::Nothing => return Learned::Refused,
            };
            match self.exchange(entry, found, wanted) {
                Exchange::Done => {
                    seen.store(now.0, Relaxed);
                    let was_known = is_same_address(found, wanted);
                    return if was_known { Learned::Moved } else { Learned::New };
                }
                Exchange::PortFull => return Learned::PortFull,
                Exchange::NoRoom => return Learned::Refused,
                // Another worker changed this entry, perhaps to what we want.
                Exchange::Raced => {}
            }
        }
        Learned::Refused
    }

    /// The entry to replace: the address's own, else an empty one, else an aged one, else the
    /// oldest of the same port. A live entry of another port is never replaced, so that one guest
    /// cannot make the switch forget the others; only a static address may replace any learned one,
    /// and a shared one its own.
    fn choose<'fdb>(
        &self,
        set: &'fdb Set,
        seen: &'fdb [AtomicU32; WAYS],
        wanted: u64,
        (authority, now): (Authority, Ticks),
    ) -> Choice<'fdb> {
        let mut best = Choice::Nothing;
        let mut best_rank = (Rank::Kept, 0);
        for (entry, seen) in set.0.iter().zip(seen) {
            let found = entry.load(Relaxed);
            let rank = if is_same_address(found, wanted) {
                if found == wanted || found == wanted | STATIC {
                    return Choice::Known;
                }
                let gives_way = found & STATIC == 0 && authority != Authority::Learn;
                let is_own = port_of(found) == port_of(wanted);
                if !(is_own || gives_way || self.is_aged(found, seen, now)) {
                    return Choice::OtherPort;
                }
                if best_rank.0 == Rank::SameAddress {
                    // A second entry of one address: see 3. above.
                    self.remove(entry, found);
                    continue;
                }
                (Rank::SameAddress, 0)
            } else if found == EMPTY {
                (Rank::Empty, 0)
            } else if self.is_aged(found, seen, now) {
                (Rank::Aged, 0)
            } else if found & STATIC != 0 {
                (Rank::Kept, 0)
            } else if port_of(found) == port_of(wanted) {
                (Rank::OwnLive, now.since(Ticks(seen.load(Relaxed))))
            } else if authority == Authority::Bind {
                (Rank::OthersLive, now.since(Ticks(seen.load(Relaxed))))
            } else {
                (Rank::Kept, 0)
            };
            let is_better = match best {
                Choice::Nothing => rank.0 != Rank::Kept,
                _ => rank > best_rank,
            };
            if is_better {
                best = Choice::Replace(entry, seen, found);
                best_rank = rank;
            }
        }
        best
    }

    /// Removes the entries that have aged, and returns how many. One thread must call this
    /// periodically, at least once per ageing time: an aged entry counts against its port's limit.
    pub fn expire(&self, now: Ticks) -> usize {
        self.remove_if(|entry, seen| self.is_aged(entry, seen, now))
    }

    /// Removes all entries of a port, and returns how many. Its workers must have stopped taking
    /// frames from it, or the table would learn its addresses again.
    pub fn remove_port(&self, port: PortId) -> usize {
        self.forget_assigned(port);
        self.remove_if(|entry, _| port_of(entry) == port)
    }

    /// Changes how many addresses a port may have. Addresses that it already has stay.
    pub fn set_addresses_max(&self, port: PortId, addresses_max: u32) {
        if let Some(addresses) = self.ports.get(usize::from(port.0)) {
            addresses.learned_max.store(addresses_max, Relaxed);
        }
    }

    /// The number of addresses of a port, including aged ones not removed yet.
    pub fn port_len(&self, port: PortId) -> u32 {
        self.ports.get(usize::from(port.0)).map_or(0, |port| port.learned.load(Relaxed))
    }

    /// The number of addresses in the table, including aged ones not removed yet.
    pub fn len(&self) -> u32 {
        self.learned.load(Relaxed)
    }

    /// True if nothing has been learned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries that have not aged, in no particular order. Workers change the table meanwhile:
    /// each entry existed at some moment, but they need not all have existed at the same moment.
    pub fn entries(&self, now: Ticks) -> impl Iterator<Item = FdbEntry> + '_ {
        self.slots().filter_map(move |(entry, seen)| {
            let entry = entry.load(Relaxed);
            let age_ticks = now.since(Ticks(seen.load(Relaxed)));
            let is_static = entry & STATIC != 0;
            let age_ticks = if is_static { 0 } else { age_ticks };
            let is_shown = entry != EMPTY && age_ticks <= self.ageing_ticks;
            let (mac, port) = (mac_of(entry), port_of(entry));
            is_shown.then_some(FdbEntry { mac, port, age_ticks, is_static })
        })
    }

    fn remove_if(&self, matches: impl Fn(u64, &AtomicU32) -> bool) -> usize {
        let mut removed = 0;
        for (entry, seen) in self.slots() {
            let found = entry.load(Relaxed);
            if found != EMPTY && matches(found, seen) && self.remove(entry, found) {
                removed += 1;
            }
        }
        removed
    }

    fn slots(&self) -> impl Iterator<Item = (&AtomicU64, &AtomicU32)> {
        let sets = self.sets.iter().zip(&self.seen);
        sets.flat_map(|(set, seen)| set.0.iter().zip(seen))
    }

    /// Empties an entry if it is unchanged.
    fn remove(&self, entry: &AtomicU64, found: u64) -> bool {
        let is_ours = entry.compare_exchange(found, EMPTY, Relaxed, Relaxed).is_ok();
        if is_ours {
            self.release(port_of(found));
            self.learned.fetch_sub(1, Relaxed);
        }
        is_ours
    }

    /// Replaces an entry if it is unchanged and the limits allow it.
    fn exchange(&self, entry: &AtomicU64, found: u64, wanted: u64) -> Exchange {
        let (port, is_new) = (port_of(wanted), found == EMPTY);
        let is_static = wanted & STATIC != 0;
        let changes_port = is_new || port_of(found) != port;
        let before = match changes_port {
            true => self.reserve(port, is_static),
            false => Some(1),
        };
        let Some(before) = before else { return Exchange::PortFull };
        // There is always room for a port's first address.
        let total_max = if is_static || before == 0 { u32::MAX } else { self.learned_max };
        if is_new && add_one(&self.learned, total_max).is_none() {
            self.release(port);
            return Exchange::NoRoom;
        }
        if entry.compare_exchange(found, wanted, Relaxed, Relaxed).is_ok() {
            if changes_port && !is_new {
                self.release(port_of(found));
            }
            return Exchange::Done;
        }
        if is_new {
            self.learned.fetch_sub(1, Relaxed);
        }
        if changes_port {
            self.release(port);
        }
        Exchange::Raced
    }

    /// Counts one more address of a port, and returns the count before.
    fn reserve(&self, port: PortId, is_static: bool) -> Option<u32> {
        let port = self.ports.get(usize::from(port.0))?;
        let max = if is_static { u32::MAX } else { port.learned_max.load(Relaxed) };
        add_one(&port.learned, max)
    }

    fn release(&self, port: PortId) {
        if let Some(addresses) = self.ports.get(usize::from(port.0)) {
            addresses.learned.fetch_sub(1, Relaxed);
        }
    }

    #[inline]
    fn is_aged(&self, entry: u64, seen: &AtomicU32, now: Ticks) -> bool {
        now.since(Ticks(seen.load(Relaxed))) > self.ageing_ticks && entry & STATIC == 0
    }

    #[inline]
    fn set_of(&self, mac: MacAddr) -> Option<(&Set, &[AtomicU32; WAYS])> {
        if bits_of(mac) == EMPTY || mac.is_multicast() {
            // It would match every empty entry, or a static one.
            return None;
        }
        // Two rounds of multiply and fold, the second on the secret: the upper half of a product
        // depends on all bits below.
        let mixed = (bits_of(mac) ^ self.hash_seed).wrapping_mul(HASH_FACTOR);
        let mixed =
            (mixed ^ (mixed >> 32) ^ self.hash_seed.rotate_left(32)).wrapping_mul(HASH_FACTOR);
        let count = u64::try_from(self.sets.len()).ok()?;
        let index = usize::try_from(((mixed >> 32) * count) >> 32).ok()?;
        self.sets.get(index).zip(self.seen.get(index))
    }
}

/// By what right an address is claimed for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Authority {
    /// The port has sent from it.
    Learn,
    /// The port has sent from it, and may have an address that ports share.
    Share,
    /// An administrator has assigned it.
    Bind,
}

/// How suitable an entry is for replacement, the best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Kept,
    OthersLive,
    OwnLive,
    Aged,
    Empty,
    SameAddress,
}

/// The entry that an address gets.
enum Choice<'fdb> {
    /// This entry, with the content that was read.
    Replace(&'fdb AtomicU64, &'fdb AtomicU32, u64),
    /// It already has one.
    Known,
    /// Another port has the address.
    OtherPort,
    /// No entry.
    Nothing,
}

enum Exchange {
    Done,
    Raced,
    PortFull,
    NoRoom,
}

/// Adds one to a count that must not exceed `max`, and returns the count before. It reads first, so
/// that a port at its limit does not take the cache line from others with every frame.
pub(crate) fn add_one(count: &AtomicU32, max: u32) -> Option<u32> {
    if count.load(Relaxed) >= max {
        return None;
    }
    let before = count.fetch_add(1, Relaxed);
    if before >= max {
        count.fetch_sub(1, Relaxed);
        return None;
    }
    Some(before)
}

/// Whether an entry is not empty and has the same address as another.
#[inline]
fn is_same_address(entry: u64, other: u64) -> bool {
    (entry ^ other) & ADDRESS == 0
}

#[inline]
fn bits_of(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[inline]
fn pack(mac: MacAddr, port: PortId) -> u64 {
    bits_of(mac) << 16 | u64::from(port.0)
}

#[inline]
fn port_of(entry: u64) -> PortId {
    let [.., high, low] = entry.to_be_bytes();
    PortId(u16::from_be_bytes([high, low]))
}

fn mac_of(entry: u64) -> MacAddr {
    let [a, b, c, d, e, f, _, _] = (entry & !STATIC).to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// Entries of a set.
const WAYS: usize = 8;
/// Attempts to learn an address while other workers change its set: each failure means that another
/// worker succeeded.
const ATTEMPTS_MAX: usize = 4; // not a limit: our own threads
/// No address: the zero address belongs to no station, and is never learned.
const EMPTY: u64 = 0;
/// Marks a bound entry: the group bit of an address, which no stored address has.
const STATIC: u64 = 1 << 56;
/// The bits of an entry that are its address.
const ADDRESS: u64 = !(STATIC | 0xffff);
/// 2^64 divided by the golden ratio, made odd.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(size_of::<Set>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_set_evicts_an_aged_entry_or_else_the_oldest_of_the_same_port() {
        let fdb = one_set();
        for number in 0..8 {
            // Ports 1 and 2 in turn; seen at ticks 0 to 7.
            let port = PortId(1 + u16::from(number % 2));
            assert_eq!(fdb.learn(mac(number), port, Ticks(number.into())), Learned::New);
        }
        // A third port has no entry to give up, and no entry of the others is given up.
        assert_eq!(fdb.learn(mac(100), PortId(0), Ticks(8)), Learned::Refused);
        assert_eq!(fdb.len(), 8);
        // Port 2 has seen 1, 3, 5 and 7: it gives up 1.
        assert_eq!(fdb.learn(mac(101), PortId(2), Ticks(8)), Learned::New);
        assert_eq!(fdb.lookup(mac(1), Ticks(8)), None);
        assert_eq!((fdb.len(), fdb.port_len(PortId(2))), (8, 4));
        // Once 0 has aged, any port may have its entry.
        let now = Ticks(AGEING + 1);
        assert_eq!(fdb.learn(mac(100), PortId(0), now), Learned::New);
        assert_eq!(fdb.lookup(mac(100), now), Some(PortId(0)));
        assert_eq!((fdb.len(), fdb.port_len(PortId(0)), fdb.port_len(PortId(1))), (8, 1, 3));
        for number in [2, 3, 4, 5, 6, 7, 101] {
            assert!(fdb.lookup(mac(number), now).is_some(), "{number}");
        }
    }

    #[test]
    fn an_address_in_two_entries_is_in_one_after_it_moves() {
        let fdb = one_set();
        fdb.learn(mac(1), PortId(1), Ticks(0));
        // The state that two workers leave if they learn the address while a third one frees an
        // entry.
        fdb.sets[0].0[5].store(pack(mac(1), PortId(2)), Relaxed);
        fdb.learned.fetch_add(1, Relaxed);
        fdb.ports[2].learned.fetch_add(1, Relaxed);

        assert_eq!(fdb.learn(mac(1), PortId(2), Ticks(1)), Learned::OtherPort);
        let now = Ticks(AGEING + 1);
        assert_eq!(fdb.bind(mac(1), PortId(2), now), Ok(()));
        assert_eq!(fdb.lookup(mac(1), now), Some(PortId(2)));
        assert_eq!(fdb.entries(now).count(), 1);
        assert_eq!((fdb.len(), fdb.port_len(PortId(1)), fdb.port_len(PortId(2))), (1, 0, 1));
    }

    const AGEING: u32 = 50;

    fn one_set() -> Fdb {
        let fdb = Fdb { learned_max: 100, ..Fdb::new(1, 3, 100, AGEING, 7) };
        assert_eq!(fdb.sets.len(), 1);
        fdb
    }

    fn mac(number: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, number])
    }
}
