//! The virtio vifs of a host: which are added and removed, and when each has its turn.

use std::io;
use std::time::Instant;

use crate::host::Host;
use crate::mirrors::{refuse_mirror, refuse_ports};
use crate::pairs::refuse_pair;
use crate::virtio::{Begun, VirtioVif, VirtioWanted};
use crate::world::{Parts, World};

/// A virtio vif to add.
#[derive(Debug)]
pub struct AddedVirtio {
    /// What is wanted.
    pub wanted: VirtioWanted,
    /// Whether it is added while the host runs, and is not in the description.
    pub at_run_time: bool,
    /// Whether all other vifs are known.
    pub phase: Phase,
}

/// Whether all vifs of the description are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// More may follow.
    Start,
    /// They are.
    Serving,
}

impl<W: World> Host<W> {
    /// Adds a virtio vif, whose session is made once nothing else refuses the vif.
    ///
    /// # Errors
    /// Why it cannot be served, with the remedy.
    pub fn add_virtio(
        &mut self,
        added: AddedVirtio,
        session: impl FnOnce() -> io::Result<W::Session>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), String> {
        self.refuse_virtio(&added).map_or(Ok(()), Err)?;
        let AddedVirtio { wanted, at_run_time, phase } = added;
        // A user sees at once that a bridge is missing; at the start it may appear later. So it may
        // where a supervisor, which has seen that it is there, passes the device.
        let may_wait = phase == Phase::Start || parts.devices.keeper().is_none();
        let begun = Begun { wanted, at_run_time, may_wait };
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        let begun = session().and_then(|session| VirtioVif::begin(begun, session, &mut hosting));
        let vif = begun.map_err(|error| error.to_string())?;
        self.shared.restarts.begin(&vif.state.name, parts.notes);
        if let Some(reason) = vif.why_unattached() {
            let vif = &vif.state.name;
            tracing::warn!(vif, "not attached until the reason is gone: {reason}");
        }
        self.virtio.push(vif);
        Ok(())
    }

    /// Why a new vif cannot be served beside the others; `None` if it can.
    fn refuse_virtio(&self, added: &AddedVirtio) -> Option<String> {
        let (wanted, uplink) = (&added.wanted, self.uplink_name());
        let VirtioWanted { name, rules, .. } = wanted;
        if self.states().any(|state| state.name == *name) {
            return Some(format!("a vif {name} exists already"));
        }
        if uplink == Some(name) {
            return Some(format!("{name} is the name of the uplink: choose another"));
        }
        let of_mirror = || refuse_mirror(self.states(), name, &rules.mirror);
        // At the start, other vifs are not known yet.
        if added.phase == Phase::Start {
            return of_mirror();
        }
        let of_pair = || refuse_pair(self.states(), name, rules.link_local_to.as_deref());
        let of_ports = || refuse_ports(self.states(), uplink, &rules.mirror);
        self.refuse_macs(wanted, self.states())
            .or_else(of_pair)
            .or_else(of_mirror)
            .or_else(of_ports)
    }

    /// Its virtio vifs, in the order in which they were added.
    pub fn virtio(&self) -> impl ExactSizeIterator<Item = &VirtioVif<W>> {
        self.virtio.iter()
    }

    /// Gives a virtio vif a turn, by its place among them; returns whether it may have more to do.
    ///
    /// # Errors
    /// None of its front-ends can connect any more.
    pub fn turn_virtio(
        &mut self,
        place: usize,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> io::Result<bool> {
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        self.virtio.get_mut(place).map_or(Ok(false), |vif| vif.turn(&mut hosting))
    }

    /// Ends the virtio vif with this name.
    pub(crate) fn remove_virtio(&mut self, name: &str, now: Instant, parts: &mut Parts<'_, W>) {
        let place = self.virtio.iter().position(|vif| vif.state.name == name);
        let Some(place) = place else { return };
        self.virtio.remove(place).end(&mut parts.split(&mut self.shared, now).1);
    }
}
