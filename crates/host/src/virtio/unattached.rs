//! Vifs that cannot have their device on a bridge when the backend starts, because the bridge does
//! not exist or the name is in use: they are listed, and attached when they can be.

use std::io;
use std::time::{Duration, Instant};

use super::{VirtioVif, VirtioWanted};
use crate::device::{LowMtu, Purpose};
use crate::negotiated::Floor;
use crate::session::Session as _;
use crate::world::{DeviceOf, Hosting, World};

/// The pause between attempts.
const RETRY: Duration = Duration::from_secs(5);

/// Why a vif has no device on its bridge.
#[derive(Debug)]
pub(super) struct Unattached {
    reason: String,
    /// When to try again.
    retry: Instant,
}

impl Unattached {
    pub(super) fn new(error: &io::Error, now: Instant) -> Unattached {
        Unattached { reason: error.to_string(), retry: now + RETRY }
    }
}

/// The device of a vif on its bridge, if it is to have one.
pub(super) fn make_device<W: World>(
    wanted: &VirtioWanted,
    floor: &Floor,
    low_mtu: LowMtu,
    hosting: &mut Hosting<'_, W>,
) -> Option<io::Result<DeviceOf<W>>> {
    let mut wanted = wanted.bridged(low_mtu)?;
    (wanted.queues, wanted.mtu_min) = (wanted.queues.max(floor.pairs()), floor.mtu());
    Some(hosting.devices.of_virtio(&wanted, hosting.notes))
}

impl<W: World> VirtioVif<W> {
    /// Has the next turn try to get the missing device.
    pub(crate) fn attach_next_turn(&mut self, now: Instant) {
        if let Some(unattached) = &mut self.unattached {
            unattached.retry = now;
        }
    }

    /// Tries to make the missing device, if that is due. Returns whether the vif has all that it
    /// needs. It does not wait for an interface that has the name: others need the thread.
    pub(super) fn attach(&mut self, hosting: &mut Hosting<'_, W>) -> bool {
        let now = hosting.now;
        match &self.unattached {
            None => return true,
            Some(unattached) if now < unattached.retry => return false,
            Some(_) => {}
        }
        let name = &self.wanted.name;
        let purpose = Purpose::Virtio(name.clone());
        let keeper = hosting.devices.keeper();
        let is_free = keeper.map_or(Ok(()), |keeper| keeper.check_name(name, &purpose));
        let made = is_free.and_then(|()| {
            make_device(&self.wanted, &self.guest.floor, LowMtu::Warn, hosting).transpose()
        });
        match made {
            Ok(device) => {
                (self.state.device, self.unattached) = (device, None);
                self.state.begin_on_ovs(hosting.shared);
                self.state.set_limits(&self.settings.keys(), hosting);
                tracing::info!(vif = self.state.name, "attached to its bridge");
            }
            Err(error) => self.unattached = Some(Unattached::new(&error, now)),
        }
        self.unattached.is_none()
    }

    /// Why it is not attached to its bridge, if so.
    pub fn why_unattached(&self) -> Option<&str> {
        self.unattached.as_ref().map(|unattached| unattached.reason.as_str())
    }

    /// Whether no front-end is accepted.
    pub fn is_closed(&self) -> bool {
        self.quarantined.is_some() || self.unattached.is_some()
    }

    /// When to run a turn even without an event.
    pub fn due(&self) -> Option<Instant> {
        match &self.unattached {
            _ if self.quarantined.is_some() => return None,
            Some(unattached) => return Some(unattached.retry),
            None => {}
        }
        let announced = self.state.announcement_due();
        self.session.due().into_iter().chain(self.guest.due).chain(announced).min()
    }
}
