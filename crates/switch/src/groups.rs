//! Which ports receive which multicast groups, learned as in RFC 4541.
//!
//! A table of fixed size, allocated once: sets of eight groups, chosen by a hash of VLAN and
//! address, with a set of ports for each group. In addition, two sets of ports hear every group:
//! ports with multicast routers, and ports whose memberships are not all known. Frames only cause
//! reads of these bit sets; only reports, queries and [`Groups::expire`] change them.
//!
//! # No port misses a requested group
//!
//! If a membership cannot be recorded, its port hears all groups until the membership would have
//! aged. This happens if the port has its maximum of memberships, the table has no room, or another
//! worker is changing the table. A port that has just been attached also hears all groups until its
//! station has been queried, because the station may have reported earlier. Other ports are not
//! affected: no entry displaces another.
//!
//! # Concurrent workers
//!
//! No worker waits for another. Any worker may add a port to a group at any time. Only one worker
//! at a time inserts or removes a group (`is_changing`); another worker then gives up its change. A
//! worker that adds a port checks afterwards whether the entry still has that group, and a worker
//! that removes a group or a port checks whether it has come back: these steps are sequentially
//! consistent, so one of the two sees the other. Readers may see a group that was replaced a moment
//! ago, so one frame may go to the wrong ports of its own VLAN.

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use ringway_datapath::{MacAddr, MulticastRouter, words};

use crate::domain::{PortSet, place};
use crate::fdb::add_one;
use crate::querier::{Awaited, Deadline, Family, Queriers};
use crate::{PortId, Ticks};

/// How multicast is snooped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastConfig {
    /// Groups in the table, of all VLANs together. Each takes 4 bytes per port.
    pub groups_max: u16,
    /// Groups of which one port may be a member before it hears all.
    pub groups_per_port_max: u16,
    /// Where frames for groups without known members go.
    pub unregistered: Unregistered,
    /// Ticks in a second.
    pub ticks_per_second: u32,
}

/// Where frames for groups without known members go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unregistered {
    /// To all ports.
    #[default]
    Flood,
    /// To ports with multicast routers, and those that hear all groups.
    Routers,
}

words! {
    Unregistered { Flood = "flood", Routers = "routers" }
    else |text| format!("{text:?} is not a valid value: expected flood or routers")
}

/// A group of a VLAN, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupEntry {
    /// The VLAN; 0 for ports in none.
    pub vlan: u16,
    /// The group's Ethernet address.
    pub group: MacAddr,
    /// Its members.
    pub ports: Vec<PortId>,
}

/// A port's multicast state, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastPort {
    /// Groups of which it is a member.
    pub groups: u32,
    /// Whether a multicast router is behind the port.
    pub is_router: bool,
    /// Whether it hears all groups: a router is behind it, or not all memberships are known.
    pub hears_all: bool,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Groups {
    config: MulticastConfig,
    /// By slot: VLAN and group, or [`EMPTY`] or [`LEAVING`].
    keys: Box<[AtomicU64]>,
    /// Bits of ports, by slot.
    members: Box<[AtomicU64]>,
    /// Words of the bit set of one slot.
    words: usize,
    /// When memberships end, by slot and port, in ticks.
    ends: Box<[AtomicU32]>,
    ports: Box<[PortGroups]>,
    /// Ports with multicast routers.
    pub(crate) routers: PortSet,
    /// These, and the ports whose memberships are not all known, for each protocol.
    hears_all: [PortSet; 2],
    is_changing: AtomicBool,
    hash_seed: u64,
}

/// The state of one port.
#[derive(Debug)]
struct PortGroups {
    groups: AtomicU32,
    mode: AtomicU8,
    router: Deadline,
    hears_all: [Deadline; 2],
}

/// The ports that hear a group.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Receivers<'a> {
    All,
    Routers(&'a PortSet),
    Members { all: &'a PortSet, members: &'a [AtomicU64] },
}

impl Receivers<'_> {
    #[inline]
    pub(crate) fn has(&self, port: PortId) -> bool {
        match self {
            Receivers::All => true,
            Receivers::Routers(routers) => routers.has(port),
            Receivers::Members { all, members } => {
                let (word, bit) = place(port);
                all.has(port) || members.get(word).is_some_and(|it| it.load(Relaxed) & bit != 0)
            }
        }
    }
}

impl Groups {
    pub(crate) fn new(config: MulticastConfig, ports_max: u16, hash_seed: u64) -> Groups {
        let slots = usize::from(config.groups_max).div_ceil(WAYS).max(1) * WAYS;
        let (ports, words) = (usize::from(ports_max), usize::from(ports_max).div_ceil(64));
        let port = || PortGroups {
            groups: AtomicU32::new(0),
            mode: AtomicU8::new(mode_bits(MulticastRouter::Never)),
            router: Deadline::default(),
            hears_all: Default::default(),
        };
        Groups {
            config,
            keys: zeros(slots),
            members: zeros(slots * words),
            words,
            ends: zeros(slots * ports),
            ports: std::iter::repeat_with(port).take(ports).collect(),
            routers: PortSet::new(ports_max),
            hears_all: [PortSet::new(ports_max), PortSet::new(ports_max)],
            is_changing: AtomicBool::new(false),
            hash_seed,
        }
    }

    /// The ports that receive a frame for a group.
    pub(crate) fn receivers(&self, vlan: u16, (family, group): (Family, MacAddr)) -> Receivers<'_> {
        let key = key_of(vlan, group);
        let all = &self.hears_all[family.index()];
        let mut is_unsure = false;
        for slot in self.slots_of(key) {
            match self.keys[slot].load(Relaxed) {
                found if found == key => {
                    return Receivers::Members { all, members: self.members_of(slot) };
                }
                LEAVING => is_unsure = true,
                _ => {}
            }
        }
        match self.config.unregistered {
            Unregistered::Routers if !is_unsure => Receivers::Members { all, members: &[] },
            Unregistered::Routers | Unregistered::Flood => Receivers::All,
        }
    }

    /// Whether a multicast router may be behind a port.
    pub(crate) fn may_route(&self, port: PortId) -> bool {
        self.port(port).is_some_and(|it| it.mode.load(Relaxed) != mode_bits(MulticastRouter::Never))
    }

    /// Handles a general query from a port that may have a router behind it; it goes to the ports
    /// for which `is_asked` is true.
    pub(crate) fn on_query(
        &self,
        queriers: &Queriers,
        (family, response_seconds): (Family, u32),
        now: Ticks,
        is_asked: impl Fn(PortId) -> bool,
    ) {
        let response = response_seconds.min(RESPONSE_SECONDS_MAX).saturating_add(1);
        let response = self.ticks(response);
        queriers.of(family).on_query(now, self.ticks(QUERIER_SECONDS), response);
        for (port, listens) in (0..).map(PortId).zip(&self.ports) {
            let hears_all = &listens.hears_all[family.index()];
            if hears_all.awaits(Awaited::Query) && is_asked(port) {
                hears_all.resolve(Awaited::Query, now, response);
            }
        }
    }

    /// Handles a router's message at a port that may have a router behind it.
    pub(crate) fn on_router(&self, port: PortId, now: Ticks) {
        let Some(listens) = self.port(port) else { return };
        listens.router.set(now, self.ticks(QUERIER_SECONDS));
        self.routers.set(port, true);
        self.hears_all.iter().for_each(|set| set.set(port, true));
    }

    /// Handles a join: a station behind a port listens to a group.
    pub(crate) fn join(&self, port: PortId, vlan: u16, group: MacAddr, now: Ticks) {
        if !self.is_router(port) && !self.add(port, key_of(vlan, group), now) {
            self.set_hears_all(port, Family::of(group), now);
        }
    }

    /// Handles a leave. The querier asks whether other stations behind the port listen, and these
    /// get time to report.
    pub(crate) fn leave(&self, port: PortId, vlan: u16, group: MacAddr, now: Ticks) {
        let key = key_of(vlan, group);
        let Some(slot) = self.find(key) else { return };
        let Some(end) = self.ends.get(self.end_at(slot, port)) else { return };
        let soon = now.0.wrapping_add(self.ticks(LEAVE_SECONDS));
        if Ticks(end.load(SeqCst)).since(Ticks(soon)) > 0 {
            end.store(soon, SeqCst);
        }
    }

    /// Makes a port hear all groups, for as long as a membership lasts.
    pub(crate) fn set_hears_all(&self, port: PortId, family: Family, now: Ticks) {
        let Some(listens) = self.port(port) else { return };
        listens.hears_all[family.index()].set(now, self.ticks(MEMBERSHIP_SECONDS));
        self.hears_all[family.index()].set(port, true);
    }

    /// Resets a port that has been attached or has changed VLANs: what was known about it is
    /// obsolete. It hears all groups until its stations have been queried; if it is in several
    /// VLANs, each of which has its own querier, for as long as a membership lasts.
    pub(crate) fn begin(&self, port: PortId, mode: MulticastRouter, awaited: Awaited) {
        self.forget(port);
        let Some(listens) = self.port(port) else { return };
        listens.mode.store(mode_bits(mode), Relaxed);
        listens.hears_all.iter().for_each(|it| it.set_when(awaited));
        self.routers.set(port, mode == MulticastRouter::Always);
        self.hears_all.iter().for_each(|set| set.set(port, true));
    }

    /// Removes a port.
    pub(crate) fn forget(&self, port: PortId) {
        let Some(listens) = self.port(port) else { return };
        listens.mode.store(mode_bits(MulticastRouter::Never), Relaxed);
        listens.router.clear();
        listens.hears_all.iter().for_each(Deadline::clear);
        self.routers.set(port, false);
        self.hears_all.iter().for_each(|set| set.set(port, false));
        let (word, bit) = place(port);
        for slot in 0..self.keys.len() {
            self.clear(&self.members_of(slot)[word], bit, listens);
        }
    }

    /// Removes what has aged. Called by one thread, several times a second.
    pub(crate) fn expire<'a>(&self, now: Ticks, queriers: impl Iterator<Item = &'a Queriers>) {
        queriers.for_each(|it| it.expire(now));
        for (number, listens) in (0..).zip(&self.ports) {
            let port = PortId(number);
            let is_always = listens.mode.load(Relaxed) == mode_bits(MulticastRouter::Always);
            take_back(&self.routers, port, || is_always || listens.router.is_ahead(now));
            for (deadline, set) in listens.hears_all.iter().zip(&self.hears_all) {
                deadline.resolve(Awaited::Time, now, self.ticks(MEMBERSHIP_SECONDS));
                take_back(set, port, || self.routers.has(port) || deadline.is_ahead(now));
            }
        }
        for slot in 0..self.keys.len() {
            self.expire_members(slot, now);
            self.free(slot);
        }
    }

    /// The groups that have members, in no particular order.
    pub(crate) fn entries(&self) -> Vec<GroupEntry> {
        let entry = |slot: usize| {
            let key = self.keys[slot].load(Relaxed);
            let ports = (0..).map(PortId).take(self.ports.len());
            let members = self.members_of(slot);
            let is_member = |port: &PortId| {
                let (word, bit) = place(*port);
                members[word].load(Relaxed) & bit != 0
            };
            let [_, _, a, b, c, d, e, f] = key.to_be_bytes();
            let [high, low, ..] = key.to_be_bytes();
            let vlan = u16::from_be_bytes([high, low]) & 0x0fff;
            let group = MacAddr([a, b, c, d, e, f]);
            let ports: Vec<PortId> = ports.filter(is_member).collect();
            let is_shown = !matches!(key, EMPTY | LEAVING) && !ports.is_empty();
            is_shown.then_some(GroupEntry { vlan, group, ports })
        };
        (0..self.keys.len()).filter_map(entry).collect()
    }

    /// A port's multicast state.
    pub(crate) fn of_port(&self, port: PortId) -> MulticastPort {
        MulticastPort {
            groups: self.port(port).map_or(0, |it| it.groups.load(Relaxed)),
            is_router: self.routers.has(port),
            hears_all: self.hears_all.iter().any(|set| set.has(port)),
        }
    }

    /// Records a membership; false if it was not recorded, or perhaps not.
    fn add(&self, port: PortId, key: u64, now: Ticks) -> bool {
        let Some(slot) = self.find(key).or_else(|| self.put_in(key)) else { return false };
        let (Some(listens), Some(end)) = (self.port(port), self.ends.get(self.end_at(slot, port)))
        else {
            return false;
        };
        let (word, bit) = place(port);
        let member = &self.members_of(slot)[word];
        if member.load(SeqCst) & bit == 0 {
            let most = u32::from(self.config.groups_per_port_max);
            if add_one(&listens.groups, most).is_none() {
                return false;
            }
            end.store(now.0.wrapping_add(self.ticks(MEMBERSHIP_SECONDS)), SeqCst);
            if member.fetch_or(bit, SeqCst) & bit != 0 {
                listens.groups.fetch_sub(1, Relaxed);
            }
        } else {
            end.store(now.0.wrapping_add(self.ticks(MEMBERSHIP_SECONDS)), SeqCst);
            // The sweep, which read the old time, may be removing it at this moment.
            if member.load(SeqCst) & bit == 0 {
                return false;
            }
        }
        self.keys[slot].load(SeqCst) == key
    }

    fn find(&self, key: u64) -> Option<usize> {
        self.slots_of(key).find(|slot| self.keys[*slot].load(SeqCst) == key)
    }

    /// Inserts a group; `None` if there is no room, or another worker is changing the table.
    fn put_in(&self, key: u64) -> Option<usize> {
        self.change(|| {
            let slot = self.find(key).or_else(|| self.find_empty(key))?;
            self.keys[slot].store(key, SeqCst);
            Some(slot)
        })
        .flatten()
    }

    fn find_empty(&self, key: u64) -> Option<usize> {
        self.slots_of(key).find(|slot| self.keys[*slot].load(SeqCst) == EMPTY)
    }

    /// Removes a group that has no members.
    fn free(&self, slot: usize) {
        let key = &self.keys[slot];
        let found = key.load(SeqCst);
        if found == EMPTY || !self.is_empty(slot) {
            return;
        }
        self.change(|| {
            key.store(LEAVING, SeqCst);
            key.store(if self.is_empty(slot) { EMPTY } else { found }, SeqCst);
        });
    }

    /// Inserts or removes a group, unless another worker is doing so.
    fn change<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        if self.is_changing.swap(true, SeqCst) {
            return None;
        }
        let changed = change();
        self.is_changing.store(false, SeqCst);
        Some(changed)
    }

    fn expire_members(&self, slot: usize, now: Ticks) {
        for (index, word) in self.members_of(slot).iter().enumerate() {
            let mut bits = word.load(SeqCst);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                let port = index * 64 + usize::try_from(bit.trailing_zeros()).unwrap_or(0);
                let (Some(listens), Some(end)) =
                    (self.ports.get(port), self.ends.get(slot * self.ports.len() + port))
                else {
                    continue;
                };
                let has_ended = || now.since(Ticks(end.load(SeqCst))) > 0;
                if has_ended() {
                    self.clear(word, bit, listens);
                    // It was reported meanwhile.
                    if !has_ended() && word.fetch_or(bit, SeqCst) & bit == 0 {
                        listens.groups.fetch_add(1, Relaxed);
                    }
                }
            }
        }
    }

    fn clear(&self, word: &AtomicU64, bit: u64, listens: &PortGroups) {
        if word.load(SeqCst) & bit != 0 && word.fetch_and(!bit, SeqCst) & bit != 0 {
            listens.groups.fetch_sub(1, Relaxed);
        }
    }

    fn is_empty(&self, slot: usize) -> bool {
        self.members_of(slot).iter().all(|word| word.load(SeqCst) == 0)
    }

    fn is_router(&self, port: PortId) -> bool {
        self.port(port)
            .is_some_and(|it| it.mode.load(Relaxed) == mode_bits(MulticastRouter::Always))
    }

    fn port(&self, port: PortId) -> Option<&PortGroups> {
        self.ports.get(usize::from(port.0))
    }

    fn members_of(&self, slot: usize) -> &[AtomicU64] {
        &self.members[slot * self.words..][..self.words]
    }

    fn end_at(&self, slot: usize, port: PortId) -> usize {
        match usize::from(port.0) {
            port if port < self.ports.len() => slot * self.ports.len() + port,
            _ => usize::MAX,
        }
    }

    fn slots_of(&self, key: u64) -> std::ops::Range<usize> {
        let mixed = (key ^ self.hash_seed).wrapping_mul(HASH_FACTOR);
        let mixed =
            (mixed ^ (mixed >> 32) ^ self.hash_seed.rotate_left(32)).wrapping_mul(HASH_FACTOR);
        let sets = u64::try_from(self.keys.len() / WAYS).unwrap_or(1);
        let first = usize::try_from(((mixed >> 32) * sets) >> 32).unwrap_or(0) * WAYS;
        first..first + WAYS
    }

    fn ticks(&self, seconds: u32) -> u32 {
        seconds.saturating_mul(self.config.ticks_per_second)
    }
}

/// Removes a port from a set if it no longer belongs there, and puts it back if it belongs there
/// again meanwhile.
fn take_back(set: &PortSet, port: PortId, belongs: impl Fn() -> bool) {
    if set.has(port) && !belongs() {
        set.set(port, false);
        if belongs() {
            set.set(port, true);
        }
    }
}

fn key_of(vlan: u16, group: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = group.0;
    let [high, low] = (vlan | 0x1000).to_be_bytes();
    u64::from_be_bytes([high, low, a, b, c, d, e, f])
}

fn mode_bits(mode: MulticastRouter) -> u8 {
    match mode {
        MulticastRouter::Never => 0,
        MulticastRouter::Learn => 1,
        MulticastRouter::Always => 2,
    }
}

fn zeros<T: Default>(count: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(count).collect()
}

/// Groups of a set.
const WAYS: usize = 8;
/// No group: keys of groups have an additional bit beside their VLAN.
const EMPTY: u64 = 0;
/// A group that is being removed, unless it comes back at this moment.
const LEAVING: u64 = 1;
/// 2^64 divided by the golden ratio, made odd.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// How long a membership lasts: two queries and the time to report (RFC 3376, 8.4; RFC 3810, 9.4).
const MEMBERSHIP_SECONDS: u32 = 260;
/// How long a querier or a router counts as present (RFC 3376, 8.5).
const QUERIER_SECONDS: u32 = 255;
/// How long a member that leaves is kept: the querier asks twice, a second apart (RFC 3376, 8.8).
const LEAVE_SECONDS: u32 = 2;
/// The longest response time that a querier gets; a longer one counts as this.
const RESPONSE_SECONDS_MAX: u32 = 250;
