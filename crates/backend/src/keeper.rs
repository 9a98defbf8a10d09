//! Who keeps the network devices of vifs: this process, which then makes, follows and removes them,
//! or its supervisor, which passes their queues to it.
//!
//! Only a process that keeps devices has netlink, and with it power over all links of the host.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{MadeDevice, PassedDevice};
use ringway_net::{Link, LinkWatch, Netlink};
use ringway_tap::{Tap, TapFile};
use ringway_xenbus::{Keys, Vif};

use crate::applied::AppliedNotes;
use crate::device::{Bridged, Device, Followed, HostDevice, HostLinks, VifDevice};
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
    pub(crate) fn keeper(&mut self) -> Option<&mut Keeper> {
        match self {
            Devices::Kept(keeper) => Some(keeper),
            Devices::Passed(_) => None,
        }
    }

    /// The device that the toolstack wants for a vif, if it wants one.
    pub(crate) fn of_vif(
        &mut self,
        vif: Vif,
        keys: &Keys,
        queues: u16,
    ) -> io::Result<Option<VifDevice>> {
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

    /// Removes the device of a vif that has ended.
    pub(crate) fn remove(&mut self, device: VifDevice) -> io::Result<()> {
        match (self, device) {
            (Devices::Kept(keeper), VifDevice::Kept(device)) => device.remove(&mut keeper.notes),
            _ => Ok(()),
        }
    }

    /// All links of the host, for the places of devices.
    pub(crate) fn links(&mut self) -> Vec<Link> {
        self.keeper().and_then(|keeper| keeper.net.links().ok()).unwrap_or_default()
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

/// Says when the devices of this process have to be compared with what the kernel has.
#[derive(Debug)]
pub(crate) struct Links {
    /// Absent if another process keeps them.
    watch: Option<LinkWatch>,
    /// When to compare them.
    due: Option<Instant>,
}

/// The pause before links are read after a change: changes come in bursts, and reading all links
/// takes longer the more there are.
const LINKS_SETTLE: Duration = Duration::from_millis(250);
/// The pause before what could not be done for a device is tried again.
const LINKS_RETRY: Duration = Duration::from_secs(2);

impl Links {
    pub(crate) fn new(watch: Option<LinkWatch>) -> Links {
        Links { watch, due: Some(Instant::now()) }
    }

    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Notes what the kernel has announced.
    pub(crate) fn take_changes(&mut self) {
        if self.watch.as_mut().is_some_and(LinkWatch::has_changed) {
            self.note_change();
        }
    }

    /// Notes that something has changed.
    pub(crate) fn note_change(&mut self) {
        self.note_due(LINKS_SETTLE);
    }

    /// Notes that a device was made again, which others wait for.
    pub(crate) fn note_made(&mut self) {
        self.note_due(Duration::ZERO);
    }

    /// When to compare, if there is a reason.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether to compare them now.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    /// Compares them, if that is due and there is any.
    pub(crate) fn take_due(&mut self, has_devices: bool) -> bool {
        let is_due = self.is_due();
        self.due.take_if(|_| is_due);
        // Links of others come and go all the time on some hosts.
        is_due && has_devices
    }

    /// Notes whether all was done.
    pub(crate) fn done(&mut self, followed: Followed) {
        if followed == Followed::Again {
            self.note_due(LINKS_RETRY);
        }
    }

    fn note_due(&mut self, pause: Duration) {
        let due = Instant::now() + pause;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }
}

impl Keeper {
    /// What the kernel has now.
    pub(crate) fn read_links(&mut self) -> Option<HostLinks> {
        let read = HostLinks::read(&mut self.net);
        read.inspect_err(|error| tracing::debug!("{error}: trying again")).ok()
    }
}
