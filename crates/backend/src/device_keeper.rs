//! Keeps the network devices of vifs that other processes serve.
//!
//! A process with netlink can change every link of the host, so that of a tenant has no netlink.
//! Its supervisor makes, follows and removes the devices, as the toolstack's keys and the
//! description say, and passes open queues. Nothing that a tenant says matters for that.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{MadeDevice, PassedDevice, RunDir};
use ringway_host::{Comparison, Followed, XenWanted};
use ringway_net::{Link, LinkWatch, Netlink};
use ringway_tap::TapFile;
use ringway_xenbus::{Keys, Vif, XenbusState};

use crate::applied::AppliedNotes;
use crate::config::VhostVif;
use crate::device::{Bridged, HostDevice, LowMtu, in_use};
use crate::keeper::Keeper;
use crate::purpose::Purpose;

/// The network devices of vifs that other processes serve.
pub struct DeviceKeeper {
    keeper: Keeper,
    links: LinkWatch,
    comparison: Comparison,
    /// The most queues of a vif whose toolstack has not set it.
    queues_max: u16,
    vifs: BTreeMap<Purpose, KeptVif>,
    /// When to try again to make missing devices of virtio vifs: a bridge may appear later.
    retry: Instant,
}

/// The pause between attempts.
const RETRY: Duration = Duration::from_secs(5);

/// A vif, and its device if it has one.
struct KeptVif {
    wish: Wish,
    /// Otherwise why it cannot be made.
    device: Result<Option<HostDevice>, String>,
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

impl DeviceKeeper {
    /// Opens netlink, and reads the notes of an earlier process in `dir`. `owner` is that of the
    /// host's devices; `queues_max` applies to vifs whose toolstack has not set the most queues.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &RunDir, owner: &str, queues_max: u16) -> io::Result<DeviceKeeper> {
        let keeper = Keeper { net: Netlink::open()?, notes: AppliedNotes::read(dir, owner) };
        let (links, now) = (LinkWatch::open()?, Instant::now());
        let (comparison, vifs) = (Comparison::new(now), BTreeMap::new());
        Ok(DeviceKeeper { keeper, links, comparison, queues_max, vifs, retry: now })
    }

    /// Makes the device that the toolstack wants for a vif, or takes it over, unless it has it
    /// already. Returns whether a process that serves the vif must learn of it.
    pub fn make(&mut self, vif: Vif, keys: &Keys) -> bool {
        if !keys.is_online() {
            return false;
        }
        let (purpose, wish) = (Purpose::Xen(vif), Wish::Keys(Request::of(keys)));
        if let Some(kept) = self.vifs.get(&purpose) {
            // Only a toolstack that makes a vif writes this state, and last.
            if keys.state() != XenbusState::Initialising || kept.wish == wish {
                return false;
            }
            self.remove(&purpose);
        }
        // The process that serves it knows by the same keys why it cannot be served.
        let wanted = XenWanted::read(keys, self.queues_max).ok();
        let device = wanted.map_or(Ok(None), |wanted| self.open_device(vif, keys, &wanted));
        let device = device.map_err(|error| error.to_string());
        self.vifs.insert(purpose, KeptVif { wish, device });
        true
    }

    /// Makes the device of a virtio vif of the description, or takes it over, if the vif is to have
    /// one. If it cannot be made now, that is tried again.
    pub fn make_virtio(&mut self, config: &VhostVif) {
        let Some(wanted) = Bridged::of_virtio(config, LowMtu::Warn) else { return };
        let made = self.open_bridged(&wanted);
        self.keep_bridged(wanted, made);
    }

    /// Makes the device of a virtio vif that is added while the host runs, if it is to have one.
    ///
    /// # Errors
    /// Why it cannot have its device: then it is not known, and nothing is tried again.
    pub fn add_virtio(&mut self, config: &VhostVif) -> Result<(), String> {
        let Some(wanted) = Bridged::of_virtio(config, LowMtu::Refuse) else { return Ok(()) };
        let made = self.open_bridged(&wanted)?;
        self.keep_bridged(wanted, Ok(made));
        Ok(())
    }

    fn open_bridged(&mut self, wanted: &Bridged) -> Result<HostDevice, String> {
        let Keeper { net, notes } = &mut self.keeper;
        HostDevice::make_bridged(net, notes, wanted).map_err(|error| error.to_string())
    }

    fn keep_bridged(&mut self, wanted: Bridged, made: Result<HostDevice, String>) {
        self.retry = Instant::now() + RETRY;
        let purpose = wanted.purpose.clone();
        let kept = KeptVif { wish: Wish::Bridged(wanted), device: made.map(Some) };
        self.vifs.insert(purpose, kept);
    }

    /// Makes the device of a vif again, before the next process gets it, if it could not be made,
    /// or if the toolstack wants more queues by now.
    pub fn retry(&mut self, vif: Vif, keys: &Keys) {
        let purpose = Purpose::Xen(vif);
        let Some(kept) = self.vifs.get(&purpose).filter(|_| keys.is_online()) else { return };
        let is_short = |device: &HostDevice| {
            let wanted = XenWanted::read(keys, self.queues_max);
            wanted.is_ok_and(|wanted| wanted.queues > device.queues_made)
        };
        let must_make = match &kept.device {
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
        self.vifs.get(vif).is_some_and(|kept| !matches!(kept.device, Ok(None)))
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
    ) -> io::Result<Option<HostDevice>> {
        let Keeper { net, notes } = &mut self.keeper;
        HostDevice::make(net, notes, vif, keys, wanted.queues)
    }

    /// Forgets a vif, and removes its device, whichever process still has queues of it.
    pub fn remove(&mut self, vif: &Purpose) {
        let Some(kept) = self.vifs.remove(vif) else { return };
        let Keeper { net, notes } = &mut self.keeper;
        if let Ok(Some(device)) = kept.device {
            if let Err(error) = device.delete(net, notes) {
                tracing::warn!("cannot remove the network device of {vif}: {error}");
            }
        }
    }

    /// Deletes the devices of vifs that are not kept, and others for which `is_kept` is false.
    pub fn delete_stale(&mut self, is_kept: impl Fn(&Purpose) -> bool) {
        let DeviceKeeper { keeper: Keeper { net, notes }, vifs, .. } = self;
        notes.delete_devices(net, |purpose, link: &Link| {
            match vifs.get(purpose).map(|kept| &kept.device) {
                Some(Ok(Some(device))) => device.index == link.index,
                // A vif that failed may be repaired.
                Some(_) => true,
                None => is_kept(purpose),
            }
        });
    }

    /// A vif's device for the process that serves it: what it is, and its open files.
    pub fn passed(&self, vif: &Purpose) -> (Option<PassedDevice>, Vec<Arc<TapFile>>) {
        match self.vifs.get(vif).map(|kept| &kept.device) {
            None | Some(Ok(None)) => (None, Vec::new()),
            Some(Err(reason)) => {
                (Some(PassedDevice::NotMade { reason: reason.clone() }), Vec::new())
            }
            Some(Ok(Some(device))) => {
                let made = MadeDevice {
                    queues: device.queues_made,
                    mtu: device.mtu,
                    attached_to: device.attached_to.clone(),
                };
                let files = device.tap.files().map(Arc::clone).collect();
                (Some(PassedDevice::Made(made)), files)
            }
        }
    }

    /// Follows what has become of the devices, if it is time to.
    pub fn follow(&mut self) -> Vec<(Purpose, DeviceChange)> {
        let mut changes = self.make_missing();
        let now = Instant::now();
        if self.links.has_changed() {
            self.comparison.note_change(now);
        }
        let DeviceKeeper { keeper, comparison, vifs, .. } = self;
        let has_devices = vifs.values().any(|kept| matches!(kept.device, Ok(Some(_))));
        if !comparison.take_due(has_devices, now) {
            return changes;
        }
        let Some(links) = keeper.read_links() else {
            comparison.done(Followed::Again, now);
            return changes;
        };
        let mut all = Followed::Done;
        for (vif, kept) in vifs {
            let Ok(Some(device)) = &mut kept.device else { continue };
            let mtu = device.mtu;
            let done = device.follow(&links, &mut keeper.net, &mut keeper.notes);
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
    fn make_missing(&mut self) -> Vec<(Purpose, DeviceChange)> {
        let mut changes = Vec::new();
        if self.retry > Instant::now() {
            return changes;
        }
        self.retry = Instant::now() + RETRY;
        let DeviceKeeper { keeper: Keeper { net, notes }, vifs, .. } = self;
        for (vif, kept) in vifs {
            let (Wish::Bridged(wanted), Err(reason)) = (&kept.wish, &kept.device) else { continue };
            let is_free = |link: &Link| vif.is_of(link, &notes.owner);
            let made = match net.link(&wanted.name).is_ok_and(|link| !is_free(&link)) {
                true => Err(in_use(&wanted.name)),
                false => HostDevice::make_bridged(net, notes, wanted).map(Some),
            };
            let device = made.map_err(|error| error.to_string());
            if device.as_ref().err() != Some(reason) {
                kept.device = device;
                changes.push((vif.clone(), DeviceChange::Tried));
            }
        }
        changes
    }

    /// Where the devices are now.
    pub fn states(&mut self) -> BTreeMap<Purpose, DeviceState> {
        let devices = self.vifs.iter().filter_map(|(vif, kept)| match &kept.device {
            Ok(Some(device)) => Some((vif.clone(), device)),
            _ => None,
        });
        let devices: Vec<_> = devices.collect();
        if devices.is_empty() {
            return BTreeMap::new();
        }
        let links = self.keeper.net.links().unwrap_or_default();
        let state = |device: &HostDevice| {
            let (attached_to, is_down) = device.place(&links);
            DeviceState { attached_to, is_down, fault: device.fault.clone() }
        };
        devices.into_iter().map(|(vif, device)| (vif, state(device))).collect()
    }

    /// Readable when links have changed.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.links.as_fd()
    }

    /// When to [follow](DeviceKeeper::follow) devices even without a change.
    pub fn due(&self) -> Option<Instant> {
        let is_missing =
            |kept: &KeptVif| matches!((&kept.wish, &kept.device), (Wish::Bridged(_), Err(_)));
        let retry = self.vifs.values().any(is_missing).then_some(self.retry);
        self.comparison.due().into_iter().chain(retry).min()
    }
}

#[cfg(test)]
mod tests;
