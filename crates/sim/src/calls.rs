//! The calls of an administrator, and what the world knows of the replies.

use ringway_calls::{BackendRequest, BackendStatus, Reconnect, VifStatus};
use ringway_host::{CallReply, NotDone, vif_name};
use ringway_xenbus::limits::Scope;
use ringway_xenbus::{Limit, MIRROR_KEY, Vif};

use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::links::bridge_of;
use crate::marks::Mark;
use crate::scenario::{QUEUES_MAX, mac_of};
use crate::toolstack::{is_of, vif_of};
use crate::world::{World, lost};

/// Limits by their names, some values, and what a refusal of them says. Floods of honest guests are
/// below these.
const CALLED: [(&str, &str, &[&str]); 10] = [
    ("offloads", "none", &[]),
    ("offloads", "some", &["offloads: expected"]),
    ("weight", "1", &[]),
    ("weight", "7", &[]),
    ("weight", "0", &["weight: expected"]),
    ("rate", "a lot", &["rate: expected"]),
    ("flood-rate", "1000000", &[]),
    ("broadcast-mbit", "40000", &[]),
    ("unknown-rate", "0", &[]),
    ("bandwidth", "1", &["there is no limit"]),
];

/// The reply of a process that was killed meanwhile.
pub(crate) const ENDED: &str = "the process has ended";

impl World {
    /// An administrator makes a call.
    pub(crate) fn call(&mut self, guest: usize) -> Checked {
        let vif = vif_of(self.plane.guests[guest].domid);
        let own = vif_name(vif);
        // Until it has its device, it is refused for what is wrong on the switch, too.
        let of_bridged = |refusal| match self.scenario.are_patched[guest] {
            true => vec!["is on the bridge", refusal],
            false => vec![refusal],
        };
        match self.plane.choices.below(7) {
            0 => self.check_status(false),
            1 => {
                let (name, value, refusals) = self.plane.choices.pick(&CALLED);
                let limit = Limit::named(name);
                let is_flood = limit.is_some_and(|limit| limit.is_of(Scope::Switch));
                // A bridge floods by itself. A vif is known to be on one once it has its device.
                if is_flood && self.scenario.are_patched[guest] {
                    return Ok(());
                }
                self.set(vif, (name, limit.map_or("", |limit| limit.key), value), refusals)
            }
            2 if !self.plane.hostiles.is_empty() => {
                let hostile = self.plane.choices.below(self.plane.hostiles.len());
                let mirror = self.plane.choices.pick(&["all", "all:rx", ""]);
                let vif = vif_of(self.plane.hostiles[hostile].domid);
                self.set(vif, ("mirror", MIRROR_KEY, mirror), &[])
            }
            // An honest guest would lose its frames.
            2 => {
                let refusals = of_bridged("copies of its own copies");
                self.set(vif, ("mirror", MIRROR_KEY, &own), &refusals)
            }
            3 => self.offer_queues(guest),
            4 => self.release(guest),
            _ => {
                let refusals = of_bridged("there is no port");
                self.set(vif, ("mirror", MIRROR_KEY, "vif9.9"), &refusals)
            }
        }
    }

    /// Begins or ends a capture of a guest's frames.
    pub(crate) fn toggle_capture(&mut self, guest: usize) -> Checked {
        if let Some(capture) = self.captures.pop() {
            capture.close();
            self.plane.marks.hit(Mark::CaptureOff);
            return Ok(());
        }
        let vif = self.name_of(guest);
        if let Ok(CallReply::Capture(capture, ..)) =
            self.ask(&BackendRequest::Capture { vif, snap_len: 64 })?
        {
            self.plane.marks.hit(Mark::CaptureOn);
            self.captures.push(capture);
        }
        Ok(())
    }

    /// Sets something of a vif. One of `refusals` is in the reply unless the value is good.
    fn set(
        &mut self,
        vif: Vif,
        (setting, key, value): (&str, &'static str, &str),
        refusals: &[&str],
    ) -> Checked {
        let is_known = self.backend.as_ref().is_some_and(|it| it.host.vif(vif).is_some());
        let refusals = if is_known { refusals } else { &["there is no vif"] };
        let (vif_name, limit, value) = (vif_name(vif), setting.to_owned(), value.to_owned());
        let named = vif_name.clone();
        let request = BackendRequest::SetLimit { vif: named, limit, value: value.clone() };
        match self.ask(&request)? {
            Ok(CallReply::Done) if refusals.is_empty() => {
                self.plane.marks.hit(Mark::CallDone);
                self.settings.set(&vif_name, key, &value);
                let guest = self.plane.guests.iter().position(|it| vif_of(it.domid) == vif);
                let unwritten = guest.map(|guest| &mut self.unwritten[guest]);
                unwritten
                    .into_iter()
                    .for_each(|keys| keys.retain(|unwritten| !is_of(unwritten, key)));
                Ok(())
            }
            Err(reason) if refusals.iter().any(|refusal| reason.contains(refusal)) => {
                self.plane.marks.hit(Mark::CallRefused);
                Ok(())
            }
            reply => {
                let found = format!("{request:?}: {reply:?}, expected {refusals:?}");
                Err(Flaw::new(Rule::Calls, found))
            }
        }
    }

    /// Offers a guest another number of queues, at once or when it reconnects.
    fn offer_queues(&mut self, guest: usize) -> Checked {
        let vif = vif_of(self.plane.guests[guest].domid);
        let max_queues = self.plane.choices.pick(&[0, 1, QUEUES_MAX, QUEUES_MAX]);
        let reconnect = self.plane.choices.pick(&[Reconnect::Now, Reconnect::Later]);
        // Its device has as many queues as were offered when it was made.
        let is_more = self.scenario.are_patched[guest] && max_queues > 1;
        let may_refuse = if is_more { "was created with so many" } else { "expected 1 or more" };
        let request = BackendRequest::SetMaxQueues { vif: vif_name(vif), max_queues, reconnect };
        if reconnect == Reconnect::Now {
            self.plane.guests[guest].is_disturbed = true;
        }
        let is_known = self.backend.as_ref().is_some_and(|it| it.host.vif(vif).is_some());
        match self.ask(&request)? {
            Ok(CallReply::Done) if is_known && max_queues > 0 => {
                self.plane.marks.hit(Mark::QueuesOffered);
                self.settings.offered(vif, max_queues, reconnect == Reconnect::Now);
                Ok(())
            }
            Err(reason) if !is_known && max_queues > 0 && reason.contains("there is no vif") => {
                Ok(())
            }
            // It has written the key first, and the next process offers what is there.
            Err(reason) if reason == ENDED => {
                self.settings.offered(vif, max_queues, false);
                Ok(())
            }
            Err(reason) if (max_queues == 0 || is_more) && reason.contains(may_refuse) => Ok(()),
            reply => Err(Flaw::new(Rule::Calls, format!("{request:?}: {reply:?}"))),
        }
    }

    /// Lets a vif be served again, if panics are charged to it.
    pub(crate) fn release(&mut self, guest: usize) -> Checked {
        let vif = self.name_of(guest);
        let is_charged = self.panics[guest] > 0;
        let is_known = self.backend.as_ref().is_some_and(|it| it.state(&vif).is_some());
        let refusal = if is_known { "is not quarantined" } else { "there is no vif" };
        match self.ask(&BackendRequest::Release { vif })? {
            // Panics over an earlier vif may be charged to it, if the backend did not see that go.
            Ok(CallReply::Done) if is_known => {
                self.panics[guest] = 0;
                self.settings.forget_budget(&self.name_of(guest));
                Ok(())
            }
            Err(reason) if !(is_known && is_charged) && reason.contains(refusal) => Ok(()),
            reply => {
                let panics = self.panics[guest];
                let found = format!("guest {guest} with {panics} panics is released: {reply:?}");
                Err(Flaw::new(Rule::Quarantine, found))
            }
        }
    }

    pub(crate) fn status(&mut self) -> Checked<BackendStatus> {
        match self.ask(&BackendRequest::Status)? {
            Ok(CallReply::Status(status)) => Ok(*status),
            other => Err(Flaw::new(Rule::Calls, format!("the status is {other:?}"))),
        }
    }

    pub(crate) fn ask(&mut self, request: &BackendRequest) -> Checked<Result<CallReply, String>> {
        self.plane.journal.note(|| format!("an administrator calls: {request:?}"));
        let World { plane, backend, .. } = self;
        match backend.as_mut().expect("the backend lives").call(request, plane) {
            Ok(reply) => Ok(Ok(reply)),
            Err(NotDone::Refused(reason)) => Ok(Err(reason)),
            Err(NotDone::Lost(_)) if !plane.is_alive.get() => Ok(Err(ENDED.to_owned())),
            Err(NotDone::Lost(error)) => Err(lost(&error)),
        }
    }

    /// Whether a vif is shown where its device is.
    pub(crate) fn is_shown_in_place(&self, guest: usize, shown: &VifStatus) -> bool {
        if !self.scenario.are_patched[guest] {
            return shown.attached_to == "switch";
        }
        if self.scenario.on_ovs[guest] {
            return self.is_shown_on_ovs(guest, &shown.attached_to);
        }
        let is_configured = shown.attached_to == bridge_of(guest);
        let Some(link) = self.device_link(guest) else {
            return is_configured && shown.error.is_some();
        };
        let master = link
            .master
            .and_then(|index| self.kernel.all().into_iter().find(|other| other.index == index));
        let place = master.map_or(link.name, |master| master.name);
        // The kernel may have refused to say where it is.
        (shown.attached_to == place && shown.is_down != link.is_up) || is_configured
    }

    /// Every vif that is connected is shown as it was made, and at rest all are connected and shown
    /// as they were set.
    pub(crate) fn check_status(&mut self, is_at_rest: bool) -> Checked {
        let status = self.status()?;
        for guest in 0..self.drivers.len() {
            let vif = vif_of(self.plane.guests[guest].domid);
            let shown = status.vifs.iter().find(|shown| shown.name == vif_name(vif));
            let is_made_so = |shown: &VifStatus| {
                // A vif may connect before its toolstack has written its address.
                let is_its_own = match &shown.mac {
                    None => !is_at_rest,
                    Some(mac) => *mac == mac_of(guest).to_string(),
                };
                is_its_own && self.is_shown_in_place(guest, shown)
            };
            let is_right = match shown.filter(|shown| shown.state == "Connected") {
                Some(shown) if is_at_rest => {
                    // Its device has as many as were offered when it was made.
                    let is_patched = self.scenario.are_patched[guest];
                    let of_all = (!is_patched).then_some(self.scenario.queues_max);
                    is_made_so(shown)
                        && shown.error.is_none()
                        && self.settings.are_shown(vif, shown, of_all)
                        && shown.queues.len() == self.plane.guests[guest].nics.len()
                }
                Some(shown) => is_made_so(shown),
                None => !is_at_rest || self.is_release_lost(guest),
            };
            ensure(is_right, Rule::Calls, || format!("guest {guest} is shown as {shown:?}"))?;
        }
        for hostile in &self.plane.hostiles {
            let vif = vif_of(hostile.domid);
            let shown = status.vifs.iter().find(|shown| shown.name == vif_name(vif));
            let is_right = shown.is_none_or(|shown| self.settings.are_shown(vif, shown, None));
            ensure(!is_at_rest || is_right, Rule::Calls, || format!("set and shown: {shown:?}"))?;
        }
        if is_at_rest { self.check_virtio_status(&status) } else { Ok(()) }
    }
}
