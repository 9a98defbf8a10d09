//! Keeps the network devices of vifs that other processes serve.
//!
//! A process with netlink can change every link of the host, so that of a tenant has no netlink.
//! Its supervisor keeps the devices by this, and passes open queues.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use ringway_control::{MadeDevice, PassedDevice, RunDir};
use ringway_host::{DeviceChange, LowMtu, Purpose};
use ringway_net::LinkWatch;
use ringway_tap::TapFile;

use crate::kernel::HostKernel;
use crate::notes::NoteFiles;
use crate::session::VhostVif;

/// The network devices of vifs that other processes serve.
pub struct DeviceKeeper {
    devices: ringway_host::DeviceKeeper<HostKernel, NoteFiles>,
    links: LinkWatch,
}

impl DeviceKeeper {
    /// Opens netlink, and reads the notes of an earlier process in `dir`. `owner` is that of the
    /// host's devices; `queues_max` applies to vifs whose toolstack has not set the most queues.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &RunDir, owner: &str, queues_max: u16) -> io::Result<DeviceKeeper> {
        let (net, notes, now) = (HostKernel::open()?, NoteFiles::new(dir), Instant::now());
        let devices = ringway_host::DeviceKeeper::new(net, notes, owner, queues_max, now);
        Ok(DeviceKeeper { devices, links: LinkWatch::open()? })
    }

    /// Makes the device of a virtio vif of the description, or takes it over, if the vif is to have
    /// one. If it cannot be made now, that is tried again.
    pub fn make_virtio(&mut self, config: &VhostVif) {
        if let Some(wanted) = config.wanted.bridged(LowMtu::Warn) {
            self.devices.make_virtio(wanted, Instant::now());
        }
    }

    /// Makes the device of a virtio vif that is added while the host runs, if it is to have one.
    ///
    /// # Errors
    /// Why it cannot have its device: then it is not known, and nothing is tried again.
    pub fn add_virtio(&mut self, config: &VhostVif) -> Result<(), String> {
        let wanted = config.wanted.bridged(LowMtu::Refuse);
        wanted.map_or(Ok(()), |wanted| self.devices.add_virtio(wanted, Instant::now()))
    }

    /// A vif's device for the process that serves it: what it is, and its open files.
    pub fn passed(&self, vif: &Purpose) -> (Option<PassedDevice>, Vec<Arc<TapFile>>) {
        match self.devices.passed(vif) {
            Ok(None) => (None, Vec::new()),
            Err(reason) => (Some(PassedDevice::NotMade { reason: reason.to_owned() }), Vec::new()),
            Ok(Some(device)) => {
                let made = MadeDevice {
                    queues: device.queues_made,
                    mtu: device.mtu,
                    attached_to: device.attached_to.clone(),
                };
                let files = device.tap.0.files().map(Arc::clone).collect();
                (Some(PassedDevice::Made(made)), files)
            }
        }
    }

    /// Follows what has become of the devices, if it is time to.
    pub fn follow(&mut self) -> Vec<(Purpose, DeviceChange)> {
        let now = Instant::now();
        if self.links.has_changed() {
            self.devices.note_change(now);
        }
        self.devices.follow(now)
    }

    /// Readable when links have changed.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.links.as_fd()
    }
}

impl Deref for DeviceKeeper {
    type Target = ringway_host::DeviceKeeper<HostKernel, NoteFiles>;

    fn deref(&self) -> &Self::Target {
        &self.devices
    }
}

impl DerefMut for DeviceKeeper {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.devices
    }
}

#[cfg(test)]
mod tests;
