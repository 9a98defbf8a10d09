//! Vifs that cannot have their device on a bridge when the backend starts, because the bridge does
//! not exist or the name is in use: they are listed, and attached when they can be.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ringway_host::{Floor, LowMtu, Purpose, VifDevice};
use ringway_hypervisor::Hypervisor;
use rustix::event::PollFlags;

use super::VhostVif;
use crate::config::VhostVif as Config;
use crate::kernel::HostKernel;
use crate::machinery::HostingOf;

/// The pause between attempts.
const RETRY: Duration = Duration::from_secs(5);

/// A vif to begin.
pub(crate) struct Added {
    pub(crate) config: Config,
    pub(crate) at_run_time: bool,
    /// Whether it may wait for its bridge.
    pub(crate) may_wait: bool,
}

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
pub(super) fn make_device<H: Hypervisor>(
    config: &Config,
    floor: &Floor,
    low_mtu: LowMtu,
    hosting: &mut HostingOf<'_, H>,
) -> Option<io::Result<VifDevice<HostKernel>>> {
    let mut wanted = config.bridged(low_mtu)?;
    (wanted.queues, wanted.mtu_min) = (wanted.queues.max(floor.pairs()), floor.mtu());
    Some(hosting.devices.of_virtio(&wanted, hosting.notes))
}

impl<H: Hypervisor> VhostVif<H> {
    /// Whether a network device is for this vif.
    pub(crate) fn is_for(&self, purpose: &Purpose) -> bool {
        matches!(purpose, Purpose::Virtio(name) if *name == self.config.name)
    }

    /// Has the next turn try to get the missing device.
    pub(crate) fn attach_next_turn(&mut self) {
        if let Some(unattached) = &mut self.unattached {
            unattached.retry = Instant::now();
        }
    }

    /// Tries to make the missing device, if that is due. Returns whether the vif has all that it
    /// needs. It does not wait for an interface that has the name: others need the thread.
    pub(super) fn attach(&mut self, hosting: &mut HostingOf<'_, H>) -> bool {
        let now = hosting.now;
        match &self.unattached {
            None => return true,
            Some(unattached) if now < unattached.retry => return false,
            Some(_) => {}
        }
        let name = &self.config.name;
        let purpose = Purpose::Virtio(name.clone());
        let keeper = hosting.devices.keeper();
        let is_free = keeper.map_or(Ok(()), |keeper| keeper.check_name(name, &purpose));
        let made = is_free.and_then(|()| {
            make_device(&self.config, &self.parts.floor, LowMtu::Warn, hosting).transpose()
        });
        match made {
            Ok(device) => {
                (self.state.device, self.unattached) = (device, None);
                self.state.set_limits(&self.settings.keys(), hosting);
                tracing::info!(vif = self.state.name, "attached to its bridge");
            }
            Err(error) => self.unattached = Some(Unattached::new(&error, now)),
        }
        self.unattached.is_none()
    }

    /// Why it is not attached to its bridge, if so.
    pub(crate) fn why_unattached(&self) -> Option<&str> {
        self.unattached.as_ref().map(|unattached| unattached.reason.as_str())
    }

    /// Whether no front-end is accepted.
    fn is_closed(&self) -> bool {
        self.quarantined.is_some() || self.unattached.is_some()
    }

    /// What to wait for before the next turn.
    pub(crate) fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        if self.is_closed() { None } else { self.end.waker() }
    }

    /// When to run a turn even without an event.
    pub(crate) fn due(&self) -> Option<Instant> {
        match &self.unattached {
            _ if self.quarantined.is_some() => return None,
            Some(unattached) => return Some(unattached.retry),
            None => {}
        }
        self.end.due().into_iter().chain(self.parts.due).min()
    }
}
