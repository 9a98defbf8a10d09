//! Addresses that the control plane assigns to ports: static ones, and those that ports share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{MutexGuard, PoisonError};

use ringway_datapath::MacAddr;

use super::{EMPTY, Fdb, STATIC, bits_of, is_same_address, mac_of, pack, port_of};
use crate::{PortId, Ticks};

/// Why an address was not assigned to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBound {
    /// It is bound to this port.
    OtherPort(PortId),
    /// This port and perhaps others share it.
    Shared(PortId),
    /// There is no room for it, or it is a group's or all zeros, or its port does not exist.
    NoRoom,
}

/// An address that a port did not get, and why.
pub type Unbound = (MacAddr, NotBound);

/// The Ethernet addresses that are assigned to a port.
#[derive(Debug, Clone, Copy, Default)]
pub struct Assigned<'a> {
    /// Its own, which are static: no other port can have them.
    pub own: &'a [MacAddr],
    /// Those that it shares with other ports.
    pub shared: &'a [MacAddr],
    /// How many it may have: its first own one counts, further ones and shared ones do not.
    pub addresses_max: u32,
}

/// Addresses that only some ports may learn.
#[derive(Debug)]
pub(super) struct SharedAddresses {
    slots: Box<[AtomicU64]>,
    /// Slots that have been used; there may be empty ones among them.
    used: AtomicUsize,
}

impl Fdb {
    /// Replaces the assigned addresses of a port, and returns those that it did not get.
    pub fn assign(&self, port: PortId, assigned: &Assigned<'_>, now: Ticks) -> Vec<Unbound> {
        let Assigned { own, shared, addresses_max } = *assigned;
        self.remove_if(|entry, _| {
            entry & STATIC != 0 && port_of(entry) == port && !own.contains(&mac_of(entry))
        });
        self.unshare(port, shared);
        let others = own.len().saturating_sub(1).saturating_add(shared.len());
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        self.set_addresses_max(port, addresses_max.saturating_add(others));
        let bound = own.iter().map(|mac| (*mac, self.bind(*mac, port, now)));
        let shared = shared.iter().map(|mac| (*mac, self.share(*mac, port)));
        bound.chain(shared).filter_map(|(mac, result)| Some((mac, result.err()?))).collect()
    }

    /// Makes `mac` an address that this port shares.
    fn share(&self, mac: MacAddr, port: PortId) -> Result<(), NotBound> {
        let (set, _) = self.set_of(mac).ok_or(NotBound::NoRoom)?;
        if self.ports.get(usize::from(port.0)).is_none() {
            return Err(NotBound::NoRoom);
        }
        let found = || {
            let mut entries = set.0.iter().map(|entry| entry.load(Relaxed));
            entries.find(|entry| is_same_address(*entry, bits_of(mac) << 16))
        };
        if let Some(bound) = found().filter(|entry| entry & STATIC != 0) {
            return Err(NotBound::OtherPort(port_of(bound)));
        }
        let mut sharers = self.sharers();
        if !sharers.contains_key(&mac) {
            if !self.shared.add(mac) {
                return Err(NotBound::NoRoom);
            }
            // A port that has learned it may not share it.
            self.remove_if(|entry, _| mac_of(entry) == mac);
        }
        sharers.entry(mac).or_default().insert(port);
        Ok(())
    }

    /// Ends a port's share in all addresses.
    pub(super) fn forget_assigned(&self, port: PortId) {
        self.unshare(port, &[]);
        if let Some(addresses) = self.ports.get(usize::from(port.0)) {
            addresses.taken.store(EMPTY, Relaxed);
        }
    }

    /// Ends a port's share in all addresses except these.
    fn unshare(&self, port: PortId, except: &[MacAddr]) {
        self.sharers().retain(|mac, ports| {
            if !except.contains(mac) && ports.remove(&port) {
                self.remove_if(|entry, _| mac_of(entry) == *mac && port_of(entry) == port);
            }
            if ports.is_empty() {
                self.shared.remove(*mac);
            }
            !ports.is_empty()
        });
    }

    pub(super) fn sharers(&self) -> MutexGuard<'_, BTreeMap<MacAddr, BTreeSet<PortId>>> {
        // Nothing panics while the lock is held; even then the map would be consistent.
        self.sharers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a frame from `mac` was refused at a port because another port has the address.
    pub(crate) fn note_taken(&self, mac: MacAddr, port: PortId) {
        if let Some(addresses) = self.ports.get(usize::from(port.0)) {
            addresses.taken.store(pack(mac, port), Relaxed);
        }
    }

    /// The last address that a port was refused because another has it, and who that is now.
    pub fn taken(&self, port: PortId, now: Ticks) -> Option<(MacAddr, Option<PortId>)> {
        let taken = self.ports.get(usize::from(port.0))?.taken.load(Relaxed);
        let mac = mac_of(taken);
        (taken != EMPTY).then(|| (mac, self.lookup(mac, now)))
    }
}

impl Default for SharedAddresses {
    fn default() -> SharedAddresses {
        SharedAddresses {
            slots: std::iter::repeat_with(AtomicU64::default).take(SHARED_MAX).collect(),
            used: AtomicUsize::new(0),
        }
    }
}

impl SharedAddresses {
    /// Whether the address of an entry is shared.
    pub(super) fn has(&self, entry: u64) -> bool {
        let used = self.used.load(Relaxed).min(self.slots.len());
        self.slots[..used].iter().any(|slot| is_same_address(slot.load(Relaxed), entry))
    }

    /// Adds an address that is not among them. False if there is no room.
    fn add(&self, mac: MacAddr) -> bool {
        let free = self.slots.iter().position(|slot| slot.load(Relaxed) == EMPTY);
        let Some(free) = free else { return false };
        self.slots[free].store(bits_of(mac) << 16, Relaxed);
        self.used.fetch_max(free + 1, Relaxed);
        true
    }

    fn remove(&self, mac: MacAddr) {
        let shared = self.slots.iter().filter(|slot| slot.load(Relaxed) == bits_of(mac) << 16);
        shared.for_each(|slot| slot.store(EMPTY, Relaxed));
    }
}

/// Addresses of one table that ports may share: each unknown source is compared with them. VRRP has
/// 255 in a network.
const SHARED_MAX: usize = 256;
