//! Keeps the network devices of vifs that other processes serve.
//!
//! A process with netlink can change every link of the host, so that of a tenant has no netlink.
//! Its supervisor makes, follows and removes the devices, as the toolstack's keys and the
//! description say, and passes open queues. Nothing that a tenant says matters for that.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use ringway_xenbus::{Keys, Vif, XenbusState};

use super::keeper::Keeper;
use super::kernel::{Kernel, Link};
use super::purpose::Purpose;
use super::{Bridged, HostDevice};
use crate::comparison::{Comparison, Followed};
use crate::notes::{Notes, Retried};
use crate::xen::XenWanted;

/// The network devices of vifs that other processes serve.
pub struct DeviceKeeper<K: Kernel, N> {
    keeper: Keeper<K>,
    notes: Retried<N>,
    comparison: Comparison,
    /// The most queues of a vif whose toolstack has not set it.
    queues_max: u16,
    vifs: BTreeMap<Purpose, KnownVif<K>>,
    /// When to try again to make missing devices of virtio vifs, as a bridge may appear later, and
    /// to write what could not be written.
    retry: Instant,
}

/// The pause between attempts.
const RETRY: Duration = Duration::from_secs(5);

/// A vif, and its device if it has one.
struct KnownVif<K: Kernel> {
    wish: Wish,
    /// Otherwise why it cannot be made.
    device: Result<Option<HostDevice<K>>, String>,
}

/// Which device a vif should have.
#[derive(PartialEq, Eq)]
enum Wish {
    /// What a toolstack's keys say.
    Keys(Request),
    /// That of a virtio vif.
    Bridged(Bridged),
}

/// The part of a vif's keys that decides which device it has.
#[derive(PartialEq, Eq)]
struct Request {
    script: Option<String>,
    bridge: Option<String>,
    name: Option<String>,
    mtu: Option<u16>,
    queues: Option<u16>,
}

impl Request {
    fn of(keys: &Keys) -> Request {
        Request {
            script: keys.script().map(str::to_owned),
            bridge: keys.bridge().map(str::to_owned),
            name: keys.device_name().ok().flatten().map(str::to_owned),
            mtu: keys.mtu_configured().ok().flatten(),
            queues: keys.max_queues_limit().ok().flatten(),
        }
    }
}

/// What has become of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChange {
    /// It was made at last, or cannot be made for another reason than before.
    Tried,
    /// It was made again: it has other queues.
    Renewed,
    /// It has this MTU now.
    Mtu(u32),
}

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceState {
    /// Its bridge, or its own name.
    pub attached_to: String,
    /// Whether it was set down.
    pub is_down: bool,
    /// Why it does not work as it should, if so.
    pub fault: Option<String>,
}

impl<K: Kernel, N: Notes> DeviceKeeper<K, N> {
    /// Keeps no devices yet, and knows the notes of an earlier process. `owner` is that of the
    /// host's devices; `queues_max` applies to vifs whose toolstack has not set the most queues.
    pub fn new(net: K, notes: N, owner: &str, queues_max: u16, now: Instant) -> Self {
        let mut notes = Retried::new(notes);
        let keeper = Keeper::new(net, owner, &mut notes);
        let (comparison, vifs) = (Comparison::new(now), BTreeMap::new());
        DeviceKeeper { keeper, notes, comparison, queues_max, vifs, retry: now }
    }

    /// Makes the device that the toolstack wants for a vif, or takes it over, unless it has it
    /// already. Returns whether a process that serves the vif must learn of it.
    pub fn make(&mut self, vif: Vif, keys: &Keys) -> bool {
        if !keys.is_online() {
            return false;
        }
        let (purpose, wish) = (Purpose::Xen(vif), Wish::Keys(Request::of(keys)));
        if let Some(known) = self.vifs.get(&purpose) {
            // Only a toolstack that makes a vif writes this state, and last.
            if keys.state() != XenbusState::Initialising || known.wish == wish {
                return false;
            }
            self.remove(&purpose);
        }
        // The process that serves it knows by the same keys why it cannot be served.
        let wanted = XenWanted::read(keys, self.queues_max).ok();
        let device = wanted.map_or(Ok(None), |wanted| self.open_device(vif, keys, &wanted));
        let device = device.map_err(|error| error.to_string());
        self.vifs.insert(purpose, KnownVif { wish, device });
        true
    }

    /// Makes the device of a virtio vif of the description, or takes it over. If it cannot be made
    /// now, that is tried again.
    pub fn make_virtio(&mut self, wanted: Bridged, now: Instant) {
        let made = self.open_bridged(&wanted);
        self.keep_bridged(wanted, made, now);
    }

    /// Makes the device of a virtio vif that is added while the host runs.
    ///
    /// # Errors
    /// Why it cannot have its device: then it is not known, and nothing is tried again.
    pub fn add_virtio(&mut self, wanted: Bridged, now: Instant) -> Result<(), String> {
        let made = self.open_bridged(&wanted)?;
        self.keep_bridged(wanted, Ok(made), now);
        Ok(())
    }

    fn open_bridged(&mut self, wanted: &Bridged) -> Result<HostDevice<K>, String> {
        let made = HostDevice::make_bridged(&mut self.keeper, wanted, &mut self.notes);
        made.map_err(|error| error.to_string())
    }

    fn keep_bridged(&mut self, wanted: Bridged, made: Result<HostDevice<K>, String>, now: Instant) {
        self.retry = now + RETRY;
        let purpose = wanted.purpose.clone();
        let known = KnownVif { wish: Wish::Bridged(wanted), device: made.map(Some) };
        self.vifs.insert(purpose, known);
    }

    /// Makes the device of a vif again, before the next process gets it, if it could not be made,
    /// or if the toolstack wants more queues by now.
    pub fn retry(&mut self, vif: Vif, keys: &Keys) {
        let purpose = Purpose::Xen(vif);
        let Some(known) = self.vifs.get(&purpose).filter(|_| keys.is_online()) else { return };
        let is_short = |device: &HostDevice<K>| {
            let wanted = XenWanted::read(keys, self.queues_max);
            wanted.is_ok_and(|wanted| wanted.queues > device.queues_made)
        };
        let must_make = match &known.device {
            Ok(device) => device.as_ref().is_some_and(is_short),
            Err(_) => true,
        };
        if must_make {
            // The device stays, and is taken over.
            self.vifs.remove(&purpose);
            self.make(vif, keys);
        }
    }

    /// Whether a vif has a device, or cannot have the one that it should.
    pub fn wants_device(&self, vif: &Purpose) -> bool {
        self.vifs.get(vif).is_some_and(|known| !matches!(known.device, Ok(None)))
    }

    /// Whether a vif is known.
    pub fn has(&self, vif: &Purpose) -> bool {
        self.vifs.contains_key(vif)
    }

    fn open_device(
        &mut self,
        vif: Vif,
        keys: &Keys,
        wanted: &XenWanted,
    ) -> io::Result<Option<HostDevice<K>>> {
        HostDevice::make(&mut self.keeper, vif, keys, wanted.queues, &mut self.notes)
    }

    /// Forgets a vif, and removes its device, whichever process still has queues of it.
    pub fn remove(&mut self, vif: &Purpose) {
        let Some(known) = self.vifs.remove(vif) else { return };
        if let Ok(Some(device)) = known.device {
            if let Err(error) = device.delete(&mut self.keeper, &mut self.notes) {
                tracing::warn!("cannot remove the network device of {vif}: {error}");
            }
        }
    }

    /// Deletes the devices of vifs that are not kept, and others for which `is_kept` is false.
    pub fn delete_stale(&mut self, is_kept: impl Fn(&Purpose) -> bool) {
        let DeviceKeeper { keeper, notes, vifs, .. } = self;
        let is_kept = |purpose: &Purpose, link: &Link| {
            match vifs.get(purpose).map(|known| &known.device) {
                Some(Ok(Some(device))) => device.index == link.index,
                // A vif that failed may be repaired.
                Some(_) => true,
                None => is_kept(purpose),
            }
        };
        keeper.delete_stale(is_kept, notes);
    }

    /// A vif's device for the process that serves it, if it has one.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn passed(&self, vif: &Purpose) -> Result<Option<&HostDevice<K>>, &str> {
        match self.vifs.get(vif).map(|known| &known.device) {
            None => Ok(None),
            Some(made) => made.as_ref().map(Option::as_ref).map_err(String::as_str),
        }
    }

    /// Follows what has become of the devices, if it is time to.
    pub fn follow(&mut self, now: Instant) -> Vec<(Purpose, DeviceChange)> {
        let mut changes = self.make_missing(now);
        let DeviceKeeper { keeper, notes, comparison, vifs, .. } = self;
        let has_devices = vifs.values().any(|known| matches!(known.device, Ok(Some(_))));
        if !comparison.take_due(has_devices, now) {
            return changes;
        }
        let Some(links) = keeper.read_links() else {
            comparison.done(Followed::Again, now);
            return changes;
        };
        let mut all = Followed::Done;
        for (vif, known) in vifs {
            let Ok(Some(device)) = &mut known.device else { continue };
            let mtu = device.mtu;
            let done = device.follow(&links, keeper, notes);
            if std::mem::take(&mut device.is_detached) {
                changes.push((vif.clone(), DeviceChange::Renewed));
            } else if device.mtu != mtu {
                changes.push((vif.clone(), DeviceChange::Mtu(device.mtu)));
            }
            all = all.max(device.show(done));
        }
        comparison.done(all, now);
        changes
    }

    /// Tries again to make missing devices of virtio vifs, if it is time to. It does not wait for
    /// interfaces that have their names: others need the thread.
    fn make_missing(&mut self, now: Instant) -> Vec<(Purpose, DeviceChange)> {
        let mut changes = Vec::new();
        if self.retry > now {
            return changes;
        }
        self.retry = now + RETRY;
        self.notes.catch_up();
        let DeviceKeeper { keeper, notes, vifs, .. } = self;
        for (vif, known) in vifs {
            let (Wish::Bridged(wanted), Err(reason)) = (&known.wish, &known.device) else {
                continue;
            };
            let is_free = keeper.check_name(&wanted.name, vif);
            let made = is_free.and_then(|()| HostDevice::make_bridged(keeper, wanted, notes));
            let device = made.map(Some).map_err(|error| error.to_string());
            if device.as_ref().err() != Some(reason) {
                known.device = device;
                changes.push((vif.clone(), DeviceChange::Tried));
            }
        }
        changes
    }

    /// Where the devices are now.
    pub fn states(&mut self) -> BTreeMap<Purpose, DeviceState> {
        let devices = self.vifs.iter().filter_map(|(vif, known)| match &known.device {
            Ok(Some(device)) => Some((vif.clone(), device)),
            _ => None,
        });
        let devices: Vec<_> = devices.collect();
        if devices.is_empty() {
            return BTreeMap::new();
        }
        let links = self.keeper.net.links().ok();
        let state = |device: &HostDevice<K>| {
            let place = device.place(links.as_deref());
            let fault = device.fault.clone().or_else(|| place.fault());
            DeviceState { attached_to: place.attached_to, is_down: place.is_down, fault }
        };
        devices.into_iter().map(|(vif, device)| (vif, state(device))).collect()
    }

    /// Notes that links have changed.
    pub fn note_change(&mut self, now: Instant) {
        self.comparison.note_change(now);
    }

    /// When to [follow](DeviceKeeper::follow) devices even without a change.
    pub fn due(&self) -> Option<Instant> {
        let is_missing = |known: &KnownVif<K>| {
            matches!((&known.wish, &known.device), (Wish::Bridged(_), Err(_)))
        };
        let must_retry = self.notes.is_owing() || self.vifs.values().any(is_missing);
        let retry = must_retry.then_some(self.retry);
        self.comparison.due().into_iter().chain(retry).min()
    }
}
