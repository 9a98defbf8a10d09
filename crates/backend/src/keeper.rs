//! Who keeps the network devices of vifs: this process, which then makes, follows and removes them,
//! or its supervisor, which passes their queues to it.
//!
//! Only a process that keeps devices has netlink, and with it power over all links of the host.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_control::{MadeDevice, PassedDevice};
use ringway_net::{Link, Netlink};
use ringway_tap::{Tap, TapFile};
use ringway_xenbus::{Keys, Vif};

use crate::applied::AppliedNotes;
use crate::device::{Bridged, Device, HostDevice, HostLinks, VifDevice};
use crate::purpose::Purpose;

/// What a process needs to keep devices.
pub(crate) struct Keeper {
    pub(crate) net: Netlink,
    /// What was applied to the devices.
    pub(crate) notes: AppliedNotes,
}

/// Who keeps the devices of the vifs that a process serves.
pub(crate) enum Devices {
    /// It does.
    Kept(Keeper),
    /// Its supervisor does, and has passed these.
    Passed(BTreeMap<Purpose, Passed>),
}

/// What the supervisor has passed of a vif's device.
#[derive(Debug)]
pub(crate) enum Passed {
    /// The vif has none.
    Nothing,
    /// It cannot be made, for this reason.
    NotMade(String),
    Made(MadeDevice, Vec<Arc<TapFile>>),
}

impl Devices {
    /// None yet; a supervisor will pass some.
    pub(crate) fn none() -> Devices {
        Devices::Passed(BTreeMap::new())
    }

    pub(crate) fn keeper(&mut self) -> Option<&mut Keeper> {
        match self {
            Devices::Kept(keeper) => Some(keeper),
            Devices::Passed(_) => None,
        }
    }

    /// The device of a virtio vif on its bridge.
    pub(crate) fn of_virtio(&mut self, wanted: &Bridged) -> io::Result<VifDevice> {
        match self {
            Devices::Kept(Keeper { net, notes }) => {
                let made = HostDevice::make_bridged(net, notes, wanted);
                made.map(|device| VifDevice::Kept(Box::new(device)))
            }
            Devices::Passed(passed) => {
                let opened = passed.get(&wanted.purpose).map_or(Ok(None), Passed::open)?;
                opened.map(VifDevice::Passed).ok_or_else(not_made)
            }
        }
    }

    /// All links of the host, for the places of devices.
    pub(crate) fn links(&mut self) -> Vec<Link> {
        self.keeper().and_then(|keeper| keeper.net.links().ok()).unwrap_or_default()
    }
}

impl ringway_host::Devices for Devices {
    type Device = VifDevice;
    type Links = HostLinks;

    fn of_xen(&mut self, vif: Vif, keys: &Keys, queues: u16) -> io::Result<Option<VifDevice>> {
        match self {
            Devices::Kept(Keeper { net, notes }) => {
                let made = HostDevice::make(net, notes, vif, keys, queues)?;
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

    fn follow(&mut self, device: &mut VifDevice, links: &HostLinks) -> io::Result<()> {
        match (self, device) {
            (Devices::Kept(Keeper { net, notes }), VifDevice::Kept(device)) => {
                device.follow(links, net, notes)
            }
            _ => Ok(()),
        }
    }

    fn remove(&mut self, device: VifDevice) -> io::Result<()> {
        match (self, device) {
            (Devices::Kept(keeper), VifDevice::Kept(device)) => device.remove(&mut keeper.notes),
            _ => Ok(()),
        }
    }
}

fn not_made() -> io::Error {
    io::Error::other("its network device is not made yet")
}

impl Passed {
    pub(crate) fn new(device: Option<PassedDevice>, queues: Vec<OwnedFd>) -> Passed {
        match device {
            None => Passed::Nothing,
            Some(PassedDevice::NotMade { reason }) => Passed::NotMade(reason),
            Some(PassedDevice::Made(made)) => {
                let files = queues.into_iter().map(|queue| TapFile::from_fd(queue).map(Arc::new));
                match files.collect() {
                    Ok(files) => Passed::Made(made, files),
                    // It was deleted meanwhile: its next queues follow.
                    Err(error) => Passed::NotMade(io::Error::to_string(&error)),
                }
            }
        }
    }

    /// The device, with all its queues enabled.
    pub(crate) fn open(&self) -> io::Result<Option<Device>> {
        match self {
            Passed::Nothing => Ok(None),
            Passed::NotMade(reason) => Err(io::Error::other(reason.clone())),
            Passed::Made(made, files) => {
                let tap = Tap::from_files(files.clone())?;
                Ok(Some(Device::new(tap, made.mtu, made.queues, made.attached_to.clone())))
            }
        }
    }
}

impl Keeper {
    /// What the kernel has now.
    pub(crate) fn read_links(&mut self) -> Option<HostLinks> {
        let read = HostLinks::read(&mut self.net);
        read.inspect_err(|error| tracing::debug!("{error}: trying again")).ok()
    }
}
