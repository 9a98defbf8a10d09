//! Who keeps the network devices of vifs: this process, which then makes, follows and removes them,
//! or its supervisor, which passes their queues to it.
//!
//! Only a process that keeps devices has netlink, and with it power over all links of the host.

use std::collections::BTreeMap;
use std::io;

use ringway_xenbus::{Keys, Vif};

use super::follow::HostLinks;
use super::keeper::Keeper;
use super::kernel::{Kernel, Link, Tap};
use super::purpose::Purpose;
use super::vif_device::{Device, VifDevice};
use super::{Bridged, HostDevice};
use crate::notes::Notes;

/// Who keeps the devices of the vifs that a process serves.
pub enum Devices<K: Kernel> {
    /// It does.
    Kept(Keeper<K>),
    /// Its supervisor does, and has passed these.
    Passed(BTreeMap<Purpose, Passed<K::Tap>>),
}

/// What the supervisor has passed of a vif's device.
#[derive(Debug)]
pub enum Passed<T: Tap> {
    /// The vif has none.
    Nothing,
    /// It cannot be made, for this reason.
    NotMade(String),
    /// Its properties, and its open files.
    Made(Made, T::Files),
}

/// A device, as its keeper describes it to another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The queues that it was made with.
    pub queues: u16,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its bridge, as configured.
    pub attached_to: String,
}

impl<K: Kernel> Devices<K> {
    /// Those of a host, which this process keeps: see [`Keeper::new`].
    pub fn kept(net: K, owner: &str, notes: &mut impl Notes) -> Devices<K> {
        Devices::Kept(Keeper::new(net, owner, notes))
    }

    /// None yet; a supervisor will pass some.
    pub fn none() -> Devices<K> {
        Devices::Passed(BTreeMap::new())
    }

    /// What this process needs to keep them, if it does.
    pub fn keeper(&mut self) -> Option<&mut Keeper<K>> {
        match self {
            Devices::Kept(keeper) => Some(keeper),
            Devices::Passed(_) => None,
        }
    }

    /// Makes the device that a toolstack wants for a vif, if it wants one, or takes over that of an
    /// earlier process.
    ///
    /// # Errors
    /// Why it cannot be made, with the remedy.
    pub fn of_xen(
        &mut self,
        vif: Vif,
        keys: &Keys,
        queues: u16,
        notes: &mut impl Notes,
    ) -> io::Result<Option<VifDevice<K>>> {
        match self {
            Devices::Kept(keeper) => {
                let made = HostDevice::make(keeper, vif, keys, queues, notes)?;
                Ok(made.map(|device| VifDevice::Kept(Box::new(device))))
            }
            Devices::Passed(passed) => match passed.get(&Purpose::Xen(vif)) {
                // The supervisor has not seen these keys yet: it names the vif again.
                None | Some(Passed::Nothing)
                    if keys.script().is_some() || keys.bridge().is_some() =>
                {
                    Err(not_made())
                }
                passed => Ok(passed.map_or(Ok(None), Passed::open)?.map(VifDevice::Passed)),
            },
        }
    }

    /// The device of a virtio vif on its bridge.
    ///
    /// # Errors
    /// Why it cannot be made, with the remedy.
    pub fn of_virtio(
        &mut self,
        wanted: &Bridged,
        notes: &mut impl Notes,
    ) -> io::Result<VifDevice<K>> {
        match self {
            Devices::Kept(keeper) => {
                let made = HostDevice::make_bridged(keeper, wanted, notes);
                made.map(|device| VifDevice::Kept(Box::new(device)))
            }
            Devices::Passed(passed) => {
                let opened = passed.get(&wanted.purpose).map_or(Ok(None), Passed::open)?;
                opened.map(VifDevice::Passed).ok_or_else(not_made)
            }
        }
    }

    /// Follows what has become of a device. If it was deleted, it is made again, and is then
    /// [detached](super::Device::is_detached).
    ///
    /// # Errors
    /// Why it does not work as it should; that may change later.
    pub fn follow(
        &mut self,
        device: &mut VifDevice<K>,
        links: &HostLinks<K>,
        notes: &mut impl Notes,
    ) -> io::Result<()> {
        match (self, device) {
            (Devices::Kept(keeper), VifDevice::Kept(device)) => device.follow(links, keeper, notes),
            _ => Ok(()),
        }
    }

    /// Removes the device of a vif that has ended.
    ///
    /// # Errors
    /// It is gone already.
    pub fn remove(&mut self, device: VifDevice<K>, notes: &mut impl Notes) -> io::Result<()> {
        match (self, device) {
            (Devices::Kept(keeper), VifDevice::Kept(device)) => device.remove(keeper, notes),
            _ => Ok(()),
        }
    }

    /// All links of the host, for the places of devices; `None` if another process keeps the
    /// devices, or the links cannot be read.
    pub(crate) fn links(&mut self) -> Option<Vec<Link>> {
        self.keeper()?.net.links().ok()
    }

    /// Notes what the supervisor has passed of the device of a vif.
    pub fn pass(&mut self, vif: Purpose, passed: Passed<K::Tap>) {
        if let Devices::Passed(all) = self {
            all.insert(vif, passed);
        }
    }

    /// The supervisor passes nothing more for this vif.
    pub fn forget(&mut self, vif: &Purpose) {
        if let Devices::Passed(all) = self {
            all.remove(vif);
        }
    }

    /// The device that was passed for a vif, unless it was deleted meanwhile.
    pub(crate) fn passed(&self, vif: &Purpose) -> Option<VifDevice<K>> {
        let Devices::Passed(all) = self else { return None };
        all.get(vif)?.open().ok().flatten().map(VifDevice::Passed)
    }

    /// The MTU of a device that was passed, or will be opened again.
    pub(crate) fn set_mtu(&mut self, vif: &Purpose, mtu: u32) {
        let Devices::Passed(all) = self else { return };
        if let Some(Passed::Made(made, _)) = all.get_mut(vif) {
            made.mtu = mtu;
        }
    }
}

fn not_made() -> io::Error {
    io::Error::other("its network device is not made yet")
}

impl<T: Tap> Passed<T> {
    /// The device, with all its queues enabled.
    ///
    /// # Errors
    /// It was not made, or was deleted.
    pub fn open(&self) -> io::Result<Option<Device<T>>> {
        match self {
            Passed::Nothing => Ok(None),
            Passed::NotMade(reason) => Err(io::Error::other(reason.clone())),
            Passed::Made(made, files) => {
                let tap = T::from_files(files)?;
                Ok(Some(Device::new(tap, made.mtu, made.queues, made.attached_to.clone())))
            }
        }
    }
}
