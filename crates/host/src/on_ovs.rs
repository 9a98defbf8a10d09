//! Vifs on bridges of Open vSwitch: what follows when the process that asks it has a reply.

use std::collections::BTreeSet;
use std::time::Instant;

use ringway_ovs::{Datapath, Ids};
use ringway_xenstore::Lost;

use crate::device::Purpose;
use crate::host::Host;
use crate::vif_state::VifState;
use crate::world::{Parts, World};

impl<W: World> Host<W> {
    /// An order about the port of a vif was carried out, or why not.
    pub(crate) fn port_done(
        &mut self,
        outcome: Result<Ids, String>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let is_done = outcome.is_ok();
        let Some((vif, fault)) = self.shared.ovs.done(outcome, now) else { return Ok(()) };
        let bridge = self.state_for(&vif).filter(|_| is_done).and_then(|it| it.ovs().cloned());
        bridge.iter().for_each(|bridge| self.shared.datapaths.ask(bridge));
        match vif {
            Purpose::Xen(vif) => {
                let Some(xen) = self.vifs.get_mut(&vif) else { return Ok(()) };
                xen.end.show_fault(parts.store, fault)?;
                xen.announce(&mut parts.split(&mut self.shared, now).1);
            }
            Purpose::Virtio(name) => {
                let found = self.virtio.iter_mut().find(|it| it.state.name == name);
                let (_, mut hosting) = parts.split(&mut self.shared, now);
                found.into_iter().for_each(|it| it.state.announce(&mut hosting));
            }
            Purpose::Uplink => {}
        }
        Ok(())
    }

    /// Has frames leave to a bridge as its datapath takes them.
    pub(crate) fn datapath_found(
        &mut self,
        found: Result<Datapath, String>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) {
        let Host { shared, vifs, virtio, .. } = self;
        let Some(bridge) = shared.datapaths.found(found) else { return };
        let (_, mut hosting) = parts.split(shared, now);
        let states = vifs.values().map(|it| &it.state).chain(virtio.iter().map(|it| &it.state));
        for state in states.filter(|it| it.ovs().is_some_and(|it| it.name == bridge.name)) {
            state.apply_offloads(&mut hosting);
        }
    }

    /// Forgets the datapaths of bridges on which no vif is any more. A vif that is made again at
    /// once finds what was known.
    pub(crate) fn forget_datapaths(&mut self) {
        let Host { shared, vifs, virtio, .. } = self;
        let states = vifs.values().map(|it| &it.state).chain(virtio.iter().map(|it| &it.state));
        let used: BTreeSet<&str> = states.filter_map(|it| Some(it.ovs()?.name.as_str())).collect();
        shared.datapaths.keep(|bridge| used.contains(bridge));
    }

    /// Removes the port of a vif that is not served any more, or not by such a port. That of a vif
    /// whose guest has yet to return to this process stays.
    pub(crate) fn leave_if_unneeded(&mut self, path: &str) {
        let Some(vif) = Purpose::parse(path) else { return };
        let is_needed = |state: &VifState<W>| state.device.is_none() || state.is_for_ovs();
        match self.state_for(&vif).is_some_and(|state| is_needed(state)) {
            true => self.shared.ovs.found(vif),
            false => self.shared.ovs.remove(vif),
        }
    }
}
