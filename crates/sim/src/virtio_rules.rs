//! What must be so of virtio vifs.

use ringway_calls::BackendStatus;
use ringway_host::{Note, Notes as _};

use crate::flaw::{Checked, Rule, ensure};
use crate::marks::Mark;
use crate::scenario::{QUEUES_MAX, mac_of};
use crate::socket::Found;
use crate::toolstack::vif_of;
use crate::vmm::Order;
use crate::world::World;

/// How often guests are started before they must run.
const ATTEMPTS_MAX: usize = 4;

impl World {
    /// Whether a guest's pairs are attached, all that it uses.
    pub(crate) fn is_virtio_connected(&self, number: usize) -> bool {
        let vmm = &self.virtio.vmms[number];
        let state = self.backend.as_ref().and_then(|backend| backend.state(&vmm.name));
        let connection = state.and_then(|state| state.connection.as_ref());
        let queues = connection.map_or(0, |connection| connection.queues.len());
        queues > 0 && queues == usize::from(vmm.pairs_ready())
    }

    /// A front-end that comes again is offered at least what it uses, whatever the description says
    /// by now. A new one is offered what the description says.
    pub(crate) fn check_offer(&mut self, number: usize) -> Checked {
        let vmm = &mut self.virtio.vmms[number];
        let Some((agreed, before)) = vmm.agreed.take() else { return Ok(()) };
        let Some(before) = before else { return Ok(()) };
        self.plane.marks.add(Mark::OfferKept, u64::from(self.virtio.queues[number] < before.pairs));
        let is_all = agreed.features.or(before.features) == agreed.features
            && agreed.protocol | before.protocol == agreed.protocol
            && agreed.pairs >= before.pairs;
        let is_noted = !self.notes.is_stale(&Note::Negotiated(vmm.name.clone()));
        ensure(is_all || !is_noted, Rule::Settings, || {
            format!("{} uses {before:?}, and is offered only {agreed:?}", vmm.name)
        })?;
        if !is_all {
            // Its guest has no network any more: its administrator starts it again.
            vmm.kill(&mut self.plane);
            vmm.must_start = true;
            self.start_front_end(number);
        }
        Ok(())
    }

    /// At rest, a vif whose guest is served says nothing, and one whose guest is not says why.
    pub(crate) fn explain_virtio(&mut self) -> Checked {
        for number in 0..self.virtio.vmms.len() {
            let vmm = &self.virtio.vmms[number];
            let (guest, name, ready) = (vmm.guest, vmm.name.clone(), vmm.pairs_ready());
            if self.virtio.is_gone(number) || self.is_quarantined(guest) {
                continue;
            }
            let is_connected = self.is_virtio_connected(number);
            ensure(is_connected == (ready > 0), Rule::Handshake, || {
                format!("{name} has {ready} pairs ready, and connected is {is_connected}")
            })?;
            let error = self.error_of(guest)?;
            if self.is_displaced(guest) {
                continue;
            }
            let vmm = &self.virtio.vmms[number];
            let opener = &self.virtio.openers[number];
            let expected = match vmm.waiting().is_some() || vmm.process.is_none() {
                true => opener.reported().unwrap_or_default(),
                false => vmm.expected_error(),
            };
            let is_clean = self.virtio.are_clean[number];
            let is_right = match &error {
                None => ready > 0,
                Some(error) => ready == 0 && (!is_clean || error.contains(expected)),
            };
            self.plane.marks.add(Mark::VirtioExplained, u64::from(error.is_some() && is_clean));
            ensure(is_right, Rule::Explanation, || {
                format!("{name} has {ready} pairs ready, and says {error:?}, not {expected:?}")
            })?;
        }
        Ok(())
    }

    /// Vifs and sockets come back, front-ends start, and their guests run.
    pub(crate) fn repair_virtio(&mut self) -> Checked {
        self.describe_all()?;
        for number in 0..self.virtio.openers.len() {
            self.virtio.openers[number].found = Found::Socket;
        }
        for vmm in 0..self.virtio.vmms.len() {
            self.start_front_end(vmm);
        }
        // Another front-end may have come meanwhile, whose guest has yet to start.
        for _ in 0..ATTEMPTS_MAX {
            self.settle()?;
            let pairs = u16::try_from(self.plane.choices.from_to(1, usize::from(QUEUES_MAX)));
            for order in [Order::Start(pairs.unwrap_or(1)), Order::Resume, Order::Enable] {
                let World { plane, virtio, .. } = self;
                let followed = virtio.vmms.iter_mut().map(|vmm| vmm.follow(order, plane));
                if followed.filter(|has_followed| *has_followed).count() > 0 {
                    self.settle()?;
                }
            }
            if self.virtio.vmms.iter().all(|vmm| vmm.pairs_ready() > 0) {
                break;
            }
        }
        Ok(())
    }

    /// A guest is connected if it is ready, which it is unless the backend was killed and had no
    /// room for a note.
    pub(crate) fn check_virtio(&mut self) -> Checked {
        for number in 0..self.virtio.vmms.len() {
            let vmm = &self.virtio.vmms[number];
            let (guest, ready, is_started) = (vmm.guest, vmm.pairs_ready(), vmm.is_started());
            let is_right = self.is_virtio_connected(number) || self.is_release_lost(guest);
            ensure(is_right, Rule::Handshake, || {
                format!("virtio vif {number} is not connected: {is_started}, {ready} pairs")
            })?;
            self.check_budget(guest)?;
        }
        Ok(())
    }

    /// A virtio vif is shown as it was set, with the queues that its guest uses.
    pub(crate) fn check_virtio_status(&mut self, status: &BackendStatus) -> Checked {
        for number in 0..self.virtio.vmms.len() {
            let vmm = &self.virtio.vmms[number];
            if self.is_release_lost(vmm.guest) {
                continue;
            }
            let shown = status.vifs.iter().find(|shown| shown.name == vmm.name);
            let mac = mac_of(vmm.guest).to_string();
            let is_right = shown.is_some_and(|shown| {
                shown.state == "Connected"
                    && shown.error.is_none()
                    && shown.mac.as_ref() == Some(&mac)
                    && self.is_shown_in_place(vmm.guest, shown)
                    && shown.queues.len() == usize::from(vmm.pairs_ready())
                    && self.settings.are_limits_shown(shown)
            });
            ensure(is_right, Rule::Calls, || format!("{} is shown as {shown:?}", vmm.name))?;
        }
        Ok(())
    }

    /// The error of a guest's vif, as users see it.
    pub(crate) fn error_of(&mut self, guest: usize) -> Checked<Option<String>> {
        if guest < self.drivers.len() {
            return Ok(self.toolstack.error(vif_of(self.plane.guests[guest].domid)));
        }
        let name = self.name_of(guest);
        let status = self.status()?;
        Ok(status.vifs.into_iter().find(|shown| shown.name == name).and_then(|shown| shown.error))
    }

    /// A vif that was removed leaves no note.
    pub(crate) fn check_virtio_release(&mut self, names: &[String]) -> Checked {
        for name in names {
            for note in [Note::Negotiated(name.clone()), Note::Settings(name.clone())] {
                let left = self.notes.read(&note, 1);
                ensure(left.is_empty(), Rule::Release, || format!("{note:?} is left"))?;
            }
        }
        Ok(())
    }
}
