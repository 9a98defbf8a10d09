//! Virtio vifs: guests behind vhost-user sockets.
//!
//! A [`VirtioVif`] has what a Xen vif has, except XenStore and the handshake over it: its
//! [`Session`] determines what to serve. A turn may change several queues; all of them are detached
//! from the engines when the first must stop, and attached again after the turn.

mod actions;
mod features;
mod guest;
mod keys;
mod status;
mod unattached;

use std::io;
use std::time::Instant;

use ringway_datapath::{MacAddr, OffloadCaps, PortRules};
use ringway_ovs::{Bind, Facts};
use ringway_wire::virtio::Features;
use ringway_xenbus::{Limit, VifLimits};

use crate::changes::VifChanges;
use crate::device::{Bridged, LowMtu, Purpose};
use crate::negotiated::Floor;
use crate::quarantine::Charged;
use crate::rules::Rules;
use crate::session::Session;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::vif_state::VifState;
use crate::world::{Hosting, SessionEventOf, World};
use actions::VirtioActions;
use guest::Guest;
pub use keys::{Change, KEYS, Key};
pub(crate) use keys::{differences, is_id};
use unattached::{Unattached, make_device};

/// What is wanted of a virtio vif.
#[derive(Debug, Clone)]
pub struct VirtioWanted {
    /// Its name for people.
    pub name: String,
    /// Queues that the guest may have.
    pub queues: u16,
    /// Work that this guest may leave to the host, in addition to what all guests may.
    pub offloads: OffloadCaps,
    /// The bridge that it is on instead of the switch: one of Linux, or of Open vSwitch, perhaps
    /// with VLANs.
    pub bridge: Option<String>,
    /// `iface-id` of its port on a bridge of Open vSwitch, if it has one of its own.
    pub iface_id: Option<String>,
    /// `vm-uuid` of that port, if it is known.
    pub vm_uuid: Option<String>,
    /// When it has that port.
    pub bind: Bind,
    /// Virtio features that may be offered.
    pub features: Features,
    /// Protocol features that may be offered.
    pub protocol: u64,
    /// The guest's address, if it is known.
    pub mac: Option<MacAddr>,
    /// What the guest may send.
    pub rules: PortRules,
    /// Its limits.
    pub limits: VifLimits,
    /// Other keys of its description, with their values: the host only compares them.
    pub others: Vec<(&'static str, String)>,
}

impl VirtioWanted {
    /// The most ports of the switch that it takes: its own, that of its device, and that of queues
    /// that its guest has disabled beside others.
    pub(crate) fn ports_max(&self) -> usize {
        1 + usize::from(self.bridge.is_some()) + usize::from(self.queues > 1)
    }

    /// From what the ids of its port of Open vSwitch follow.
    fn facts(&self) -> Facts {
        Facts {
            iface_id: self.iface_id.clone(),
            vm_name: Some(self.name.clone()),
            vm_uuid: self.vm_uuid.clone(),
            ..Facts::default()
        }
    }

    /// The device that it is to have, if it is to have one.
    pub fn bridged(&self, low_mtu: LowMtu) -> Option<Bridged> {
        Some(Bridged {
            purpose: Purpose::Virtio(self.name.clone()),
            name: self.name.clone(),
            bridge: self.bridge.clone()?,
            queues: self.queues,
            mtu: self.limits.mtu,
            mtu_min: 0,
            low_mtu,
        })
    }
}

/// A virtio vif that is served.
pub struct VirtioVif<W: World> {
    /// What it has in common with other vifs.
    pub state: VifState<W>,
    /// Its socket, its guest's memory and its rings.
    pub session: W::Session,
    wanted: VirtioWanted,
    /// Whether it was added while the host ran.
    at_run_time: bool,
    guest: Guest,
    settings: Settings,
    /// Why no front-end is accepted: panics over its guests.
    quarantined: Option<String>,
    /// Why it has no device on its bridge, so that no front-end is accepted.
    unattached: Option<Unattached>,
}

/// A vif to begin.
pub(crate) struct Begun {
    pub(crate) wanted: VirtioWanted,
    pub(crate) at_run_time: bool,
    /// Whether it may wait for its bridge.
    pub(crate) may_wait: bool,
}

impl<W: World> VirtioVif<W> {
    /// Starts waiting for a front-end.
    ///
    /// # Errors
    /// Its device cannot be made, and it may not wait for that.
    pub(crate) fn begin(
        Begun { wanted, at_run_time, may_wait }: Begun,
        session: W::Session,
        hosting: &mut Hosting<'_, W>,
    ) -> io::Result<VirtioVif<W>> {
        let now = hosting.now;
        let floor = Floor::read(&wanted.name, hosting.notes);
        // A user sees at once that an MTU cannot be; a description is served as far as possible.
        let low_mtu = if may_wait { LowMtu::Warn } else { LowMtu::Refuse };
        let made = make_device(&wanted, &floor, low_mtu, hosting).transpose();
        let (device, unattached) = match made {
            Ok(device) => (device, None),
            Err(error) if may_wait => (None, Some(Unattached::new(&error, now))),
            Err(error) => return Err(error),
        };
        let settings = Settings::read(&wanted.name, &wanted.limits, &wanted.rules, hosting.notes);
        let (of_port, mac) = (settings.rules(&wanted.rules), wanted.mac);
        let rules = Rules { wanted: of_port, mac, ..Rules::default() };
        let charged = Charged::Virtio(wanted.name.clone());
        let offer = hosting.shared.offer(Some(wanted.queues));
        let mut state = VifState::new(charged, offer, rules, hosting.shared, now);
        state.device = device;
        (state.facts, state.bind) = (wanted.facts(), wanted.bind);
        state.begin_on_ovs(hosting.shared);
        state.limited.mtu_min = floor.mtu();
        state.set_limits(&settings.keys(), hosting);
        let mut vif = VirtioVif {
            state,
            session,
            wanted,
            at_run_time,
            guest: Guest::new(floor, now),
            settings,
            quarantined: None,
            unattached,
        };
        vif.check_quarantine(hosting.shared);
        Ok(vif)
    }

    /// Accepts front-ends, or not, according to the remembered panics.
    pub(crate) fn check_quarantine(&mut self, shared: &Shared) {
        self.quarantined = shared.quarantine.reason(&self.state.charged);
        if let Some(reason) = &self.quarantined {
            tracing::warn!(vif = self.state.name, "{reason}");
        }
        self.state.is_quarantined = self.quarantined.is_some();
    }

    /// Does pending work; returns whether there may be more.
    pub(crate) fn turn(&mut self, hosting: &mut Hosting<'_, W>) -> io::Result<bool> {
        if self.quarantined.is_some() || !self.attach(hosting) {
            return Ok(false);
        }
        self.state.announce(hosting);
        self.act(hosting, |session, actions, now| session.turn(actions, now))
    }

    /// Handles what its session learns from elsewhere.
    pub(crate) fn on(&mut self, event: SessionEventOf<W>, hosting: &mut Hosting<'_, W>) {
        self.act(hosting, |session, actions, now| session.on(event, actions, now));
    }

    /// Handles a queue that an engine gave up: the guest is disconnected, and may reconnect.
    pub(crate) fn close(&mut self, reason: &str, hosting: &mut Hosting<'_, W>) {
        self.act(hosting, |session, actions, now| session.close(reason, actions, now));
    }

    /// Ends it for good: a later vif with this name is a different one.
    pub(crate) fn end(mut self, hosting: &mut Hosting<'_, W>) {
        self.act(hosting, |session, actions, now| session.end(actions, now));
        let notes = &mut *hosting.notes;
        for forgotten in [self.guest.floor.forget(notes), self.settings.forget(notes)] {
            let _ = forgotten.inspect_err(|reason| tracing::warn!("{reason}"));
        }
        hosting.shared.quarantine.release(&self.state.charged, notes);
        self.state.remove_from_ovs(hosting.shared);
        hosting.shared.restarts.end(&self.state.name, notes);
        let device = self.state.device;
        let removed = device.map(|device| hosting.devices.remove(device, hosting.notes));
        if let Some(Err(error)) = removed {
            tracing::debug!(%error, "the network device was already gone");
        }
    }

    /// Sets a valid limit or rule, by its key, for as long as it exists. It has no keys in
    /// XenStore: a note has them for the next process.
    ///
    /// # Errors
    /// Why this host cannot do that, or why the next process will not know it.
    pub(crate) fn set(
        &mut self,
        key: &str,
        value: &str,
        hosting: &mut Hosting<'_, W>,
    ) -> Result<(), String> {
        let mut settings = self.settings.clone();
        settings.set(key, value);
        let rules = settings.rules(&self.wanted.rules);
        let named = |reason: String| format!("{}: {reason}", self.wanted.name);
        self.state.update_rules(rules, None, hosting).map_err(named)?;
        self.state.set_limits(&settings.keys(), hosting);
        self.settings = settings;
        self.settings.keep(hosting.notes)
    }

    /// What is wanted of it.
    pub(crate) fn wanted(&self) -> &VirtioWanted {
        &self.wanted
    }

    /// Whether it was added while the host ran, and is not in the description.
    pub fn is_added(&self) -> bool {
        self.at_run_time
    }

    /// Takes over what its description says now, as far as that can change while it is served. What
    /// a user has set since stays, unless the description has another value of that key, too.
    pub(crate) fn describe_again(
        &mut self,
        described: VirtioWanted,
        hosting: &mut Hosting<'_, W>,
    ) -> VifChanges {
        let found = differences(&self.wanted, &described);
        let mut changes = VifChanges { vif: self.wanted.name.clone(), ..found };
        if changes.changed.is_empty() {
            return changes;
        }
        let limits = VifLimits { mtu: self.wanted.limits.mtu, ..described.limits };
        let settings = self.settings.described(&limits, &described.rules);
        let rules = settings.rules(&described.rules);
        let mut rules_now = described.rules;
        if let Err(reason) = self.state.update_rules(rules, None, hosting) {
            rules_now = self.wanted.rules.clone();
            changes.changed.retain(|key| Limit::named(key).is_some() || is_id(key));
            changes.refused = Some(reason);
        }
        self.settings = self.settings.described(&limits, &rules_now);
        (self.wanted.limits, self.wanted.rules) = (limits, rules_now);
        (self.wanted.iface_id, self.wanted.vm_uuid) = (described.iface_id, described.vm_uuid);
        self.state.set_facts(self.wanted.facts(), hosting.shared);
        if let Err(reason) = self.settings.keep(hosting.notes) {
            tracing::warn!(vif = self.state.name, "{reason}");
        }
        self.state.set_limits(&self.settings.keys(), hosting);
        changes
    }

    /// Does what is due from time to time.
    pub(crate) fn housekeep(&mut self) {
        self.guest.log_unshared(&self.state.name, &self.session.blank_pairs());
    }

    /// Whether it is to have a network device.
    pub(crate) fn is_on_bridge(&self) -> bool {
        self.wanted.bridge.is_some()
    }

    fn act<R>(
        &mut self,
        hosting: &mut Hosting<'_, W>,
        act: impl FnOnce(&mut W::Session, &mut VirtioActions<'_, '_, W>, Instant) -> R,
    ) -> R {
        let now = hosting.now;
        let VirtioVif { state, session, wanted, guest, .. } = self;
        act(session, &mut VirtioActions { state, wanted, guest, hosting }, now)
    }
}
