//! One vif of Xen: its end of the handshake, and its other state.
//!
//! A [`XenVif`] owns all state of its vif, and is given what it may use. Nothing here accesses
//! another vif.

use std::sync::Arc;
use std::time::Instant;
use std::{io, iter, mem};

use ringway_datapath::MacAddr;
use ringway_engine::PortSteering;
use ringway_engine::steps::{self, Engines as _};
use ringway_hypervisor::Hypervisor as _;
use ringway_netback::{Changes, ControlParts, ControlRole, FrontendFeatures, Interrupted};
use ringway_ovs::{Bind, Facts, check_id};
use ringway_vif_shell::{BackendEnd, BackendProcess, LeftOut, Note, device};
use ringway_xenbus::backend::{Attachment, Input, NotAttached};
use ringway_xenbus::keys::BIND;
use ringway_xenbus::{
    BadKeys, ControlConfig, Features, FrontendConfig, Hotplug, Keys, Offer, Vif, XenbusState,
};
use ringway_xenstore::{Client, Lost, Transport, XsError, domain_path, unless_refused};

use crate::attach::{NewQueues, connect, disconnect};
use crate::chosen::{self, Chosen};
use crate::cut;
use crate::device::{Devices, HOST_ADDRESS};
use crate::quarantine::{Charged, vif_name};
use crate::rules::Rules;
use crate::shared::Shared;
use crate::staged::Staged;
use crate::vif_state::VifState;
use crate::world::{DeviceOf, EventOf, Hosting, Parts, World};

mod rings;

use rings::{bind, is_shortage, map_ring, queue_parts};

/// A vif of Xen that is served.
pub struct XenVif<W: World> {
    /// Its handshake.
    pub end: BackendEnd,
    /// Whether it has a number of queues of its own, and not that of all vifs.
    pub(crate) has_own_queues: bool,
    /// All else.
    pub state: VifState<W>,
}

/// Why this host cannot serve a vif as the toolstack describes it.
#[derive(Debug, thiserror::Error)]
pub enum Unservable {
    /// A key cannot be read.
    #[error(transparent)]
    Keys(#[from] BadKeys),
    /// A guest cannot have this address.
    #[error("the vif's mac is {0}, expected a unicast address other than that of the host's end")]
    Mac(MacAddr),
    /// It is on a bridge, which cannot do what its keys say.
    #[error(
        "the vif uses VLANs, is private, a mirror's output or a multicast router's port, which \
         only ringway's own switch supports: remove its script and bridge, or let the bridge do it"
    )]
    NotOnSwitch,
    /// An id of its port cannot be used.
    #[error("{0}")]
    Id(String),
    /// Its network device cannot be made.
    #[error(transparent)]
    Device(#[from] io::Error),
    /// Panics over it.
    #[error("{0}")]
    Quarantined(String),
}

impl<W: World> XenVif<W> {
    /// Creates what the vif needs before its guest appears, and begins the handshake.
    pub(crate) fn begin(
        vif: Vif,
        keys: &Keys,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<XenVif<W>, Lost> {
        let charged = Charged::Xen(vif);
        let quarantined = shared.quarantine.reason(&charged);
        let is_quarantined = quarantined.is_some();
        let prepared = match quarantined {
            Some(reason) => Err(Unservable::Quarantined(reason)),
            None => prepare(vif, keys, shared, parts),
        };
        let (wanted, device, refused) = match prepared {
            Ok((wanted, device)) => (Some(wanted), device, None),
            Err(reason) => (None, None, Some(reason.to_string())),
        };
        if let Some(key) = keys.obsolete() {
            tracing::warn!(
                vif = vif_name(vif),
                "{key} has no effect any more, because the backend responds when it has copied a \
                 frame: remove it"
            );
        }
        let control_ring = wanted.as_ref().is_some_and(|wanted| wanted.control_ring);
        let bind = wanted.as_ref().map_or_else(Bind::default, |wanted| wanted.bind);
        let multicast_control = wanted.as_ref().is_some_and(|wanted| wanted.multicast_control);
        let has_own_queues = wanted.as_ref().is_some_and(|wanted| wanted.has_own_queues);
        let staged = Staged::new(wanted.as_ref().is_some_and(|wanted| wanted.staging));
        let offer = shared.offer(wanted.as_ref().map(|wanted| wanted.queues_max));
        let offer = Offer { control_ring, multicast_control, ..offer };
        let rules = wanted.map(|wanted| wanted.rules).unwrap_or_default();
        let state = VifState::new(charged, offer, rules, shared, now);
        shared.restarts.begin(&state.name, parts.notes);
        let chosen = Chosen::known(&state.name, keys, parts.notes, now);
        let mut state = VifState { device, is_quarantined, chosen, staged, ..state };
        if state.is_for_ovs() {
            state.facts = facts(vif, keys, parts.store)?;
            state.bind = bind;
            state.begin_on_ovs(shared);
        }
        state.set_limits(keys, &mut parts.split(shared, now).1);
        state.offer.features = state.offloads_offered(shared).into();
        let end = BackendEnd::new(vif, state.offer, Hotplug::read(keys), now);
        let mut begun = XenVif { end, has_own_queues, state };
        cut::restore(vif, keys, parts.store)?;
        match refused {
            Some(reason) => begun.feed(Input::Refused(reason), shared, parts, now)?,
            None => begun.act(shared, parts, now, |end, store, actions| {
                end.start(store, actions, keys, now)
            })?,
        }
        Ok(begun)
    }

    /// Handles a change or removal of the backend's directory by the toolstack or one of its
    /// scripts.
    pub(crate) fn device_changed(
        &mut self,
        keys: Option<&Keys>,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<(), Lost> {
        if let Some(keys) = keys.filter(|keys| keys.is_online()) {
            // A host that is stopped may end after this one has begun.
            cut::restore(self.end.vif(), keys, parts.store)?;
            let (_, mut hosting) = parts.split(shared, now);
            self.state.set_limits(keys, &mut hosting);
            self.state.set_rules(keys, &mut hosting);
            let iface_id = keys.iface_id().map(str::to_owned);
            let facts = Facts { iface_id, ..self.state.facts.clone() };
            self.state.set_facts(facts, hosting.shared);
            self.offer_offloads(shared, parts, now)?;
        }
        self.act(shared, parts, now, |end, store, actions| {
            end.device_changed(store, actions, keys, now)
        })
    }

    /// Offers the guest what is decided of its offloads, for when it connects the next time.
    fn offer_offloads(
        &mut self,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<(), Lost> {
        let features = Features::from(self.state.offloads_offered(shared));
        if mem::replace(&mut self.state.offer.features, features) == features {
            return Ok(());
        }
        self.feed(Input::FeaturesChanged(features), shared, parts, now)
    }

    pub(crate) fn frontend_changed(
        &mut self,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<(), Lost> {
        self.act(shared, parts, now, |end, store, actions| {
            end.frontend_changed(store, actions, now)
        })
    }

    /// When something is due that was deferred.
    pub fn due(&self) -> Option<Instant> {
        let is_connected = self.end.state() == XenbusState::Connected;
        let announcement = self.state.announcement_due().filter(|_| is_connected);
        self.end.due().into_iter().chain(self.state.chosen.due()).chain(announcement).min()
    }

    /// Does what was deferred, if its time has come.
    pub(crate) fn resume(
        &mut self,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<(), Lost> {
        self.state.note_chosen(&mut parts.split(shared, now).1);
        self.announce(&mut parts.split(shared, now).1);
        self.act(shared, parts, now, |end, store, actions| end.resume(store, actions, now))
    }

    /// Announces its guest, if that is due: not before its script is done.
    pub(crate) fn announce(&mut self, hosting: &mut Hosting<'_, W>) {
        if self.end.state() == XenbusState::Connected {
            self.state.announce(hosting);
        }
    }

    /// Handles what was read of its frontend's keys.
    pub(crate) fn found_keys(
        &mut self,
        read: Result<Option<Keys>, XsError>,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<(), Lost> {
        self.act(shared, parts, now, |end, store, actions| {
            end.found_keys(store, actions, read, now)
        })
    }

    pub(crate) fn feed(
        &mut self,
        input: Input,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
    ) -> Result<(), Lost> {
        self.act(shared, parts, now, |end, store, actions| end.feed(store, actions, input, now))
    }

    fn act(
        &mut self,
        shared: &mut Shared,
        parts: &mut Parts<'_, W>,
        now: Instant,
        act: impl FnOnce(
            &mut BackendEnd,
            &mut Client<W::Store>,
            &mut XenActions<'_, '_, W>,
        ) -> Result<(), Lost>,
    ) -> Result<(), Lost> {
        let vif = self.end.vif();
        let (store, mut hosting) = parts.split(shared, now);
        let XenVif { end, state, .. } = self;
        act(end, store, &mut XenActions { vif, state, hosting: &mut hosting })
    }

    /// Handles a write to the backend's own state, usually by this end. Returns whether another
    /// process wrote it.
    pub(crate) fn is_state_foreign(&self, store: &mut Client<W::Store>) -> Result<bool, Lost> {
        let found = device::state(store, &self.end.vif().backend_state());
        Ok(unless_refused(found, XenbusState::Unknown)? != self.end.state())
    }

    /// Releases the network device, and forgets what the guest has set, after the vif was removed.
    pub(crate) fn remove(
        self,
        shared: &mut Shared,
        devices: &mut Devices<W::Kernel>,
        notes: &mut W::Notes,
    ) {
        chosen::forget(&self.state.name, notes);
        self.state.remove_from_ovs(shared);
        let Some(device) = self.state.device else { return };
        let name = device.name();
        if let Err(error) = devices.remove(device, notes) {
            tracing::debug!(name, %error, "the network device was already gone");
        }
    }
}

/// What the toolstack has written of a vif and its machine, from which the ids of its port follow.
fn facts<T: Transport>(vif: Vif, keys: &Keys, store: &mut Client<T>) -> Result<Facts, Lost> {
    let mut read = |path: &str| unless_refused(store.read(path), None);
    let home = domain_path(vif.frontend);
    let vm_name = read(&format!("{home}/name"))?;
    // `/vm/UUID`
    let machine = read(&format!("{home}/vm"))?;
    let vm_uuid = machine.and_then(|path| path.strip_prefix("/vm/").map(str::to_owned));
    let vif_uuid = match &vm_uuid {
        Some(uuid) => read(&format!("/xapi/{uuid}/private/vif/{}/vif-uuid", vif.handle))?,
        None => None,
    };
    let iface_id = keys.iface_id().map(str::to_owned);
    Ok(Facts { iface_id, mac: None, vm_name, handle: vif.handle, vif_uuid, vm_uuid })
}

fn prepare<W: World>(
    vif: Vif,
    keys: &Keys,
    shared: &Shared,
    parts: &mut Parts<'_, W>,
) -> Result<(XenWanted, Option<DeviceOf<W>>), Unservable> {
    let wanted = XenWanted::read(keys, shared.config.max_queues)?;
    let device = parts.devices.of_xen(vif, keys, wanted.queues, parts.notes)?;
    Ok((wanted, device))
}

/// What a toolstack wants of a vif.
#[derive(Debug)]
pub struct XenWanted {
    rules: Rules,
    /// The most queues to offer.
    queues_max: u16,
    /// Whether the toolstack has set that.
    has_own_queues: bool,
    /// The queues of its network device, if it has one.
    pub queues: u16,
    /// Whether to offer a control ring.
    control_ring: bool,
    /// When it has a port of Open vSwitch.
    bind: Bind,
    /// Whether to offer the choice of multicast frames.
    multicast_control: bool,
    /// Whether to keep pages of the guest mapped.
    staging: bool,
}

impl XenWanted {
    /// Reads it. `queues_max` applies to a vif whose toolstack has not set the most queues.
    ///
    /// # Errors
    /// Why this host cannot serve the vif.
    pub fn read(keys: &Keys, queues_max: u16) -> Result<XenWanted, Unservable> {
        let rules = Rules::read(keys)?;
        if let Some(mac) = rules.mac().filter(|mac| mac.is_multicast() || *mac == HOST_ADDRESS) {
            return Err(Unservable::Mac(mac));
        }
        if (keys.script().is_some() || keys.bridge().is_some()) && rules.is_for_switch() {
            return Err(Unservable::NotOnSwitch);
        }
        keys.iface_id().map_or(Ok(()), |id| check_id("iface-id", id)).map_err(Unservable::Id)?;
        let bind = keys.bind().map_or(Ok(Bind::default()), str::parse);
        let bind = bind.map_err(|error| Unservable::Id(format!("{BIND} is {error}")))?;
        let own_queues = keys.max_queues_limit()?;
        let queues_max = own_queues.unwrap_or(queues_max).max(1);
        // A connected guest keeps the offer of the backend's previous run.
        let queues = queues_max.max(keys.queues_offered().unwrap_or(1));
        let control_ring = keys.wants_control_ring()?;
        let multicast_control = keys.wants_multicast_control()?;
        let staging = keys.wants_staging()?;
        let has_own_queues = own_queues.is_some();
        Ok(XenWanted {
            rules,
            queues_max,
            has_own_queues,
            queues,
            control_ring,
            multicast_control,
            staging,
            bind,
        })
    }
}

/// What a vif does apart from XenStore.
struct XenActions<'a, 'b, W: World> {
    vif: Vif,
    state: &'a mut VifState<W>,
    hosting: &'a mut Hosting<'b, W>,
}

impl<W: World> BackendProcess for XenActions<'_, '_, W> {
    fn attach(
        &mut self,
        config: &FrontendConfig,
        attachment: Attachment,
    ) -> Result<(), NotAttached> {
        if attachment == Attachment::Fresh {
            self.state.chosen.begin_again();
        }
        self.state.is_multicast_filtered = config.multicast_control;
        self.state.headroom.set(config.headroom);
        let mut interrupted = Interrupted::default();
        let connected = self.connect(config, &mut interrupted);
        // Also if that failed: the next attempt does not find these responses again.
        self.state.log_interruption(interrupted, self.hosting.now);
        if attachment == Attachment::Fresh && connected.is_ok() {
            self.state.arrive(self.hosting.shared);
        }
        connected.map_err(|error| match is_shortage(&error) {
            true => NotAttached::NoResources(format!("{error}; retrying until there is enough")),
            false => NotAttached::Refused(error.to_string()),
        })
    }

    /// Takes the queues back from their engines, which unmaps and unbinds them.
    fn detach(&mut self) {
        if !disconnect(self.state, self.hosting) {
            return;
        }
        self.state.arrival.end();
        if let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) {
            tracing::info!(vif = self.state.name, left_out, "disconnected");
        }
    }

    fn filter_multicast(&mut self, is_requested: bool) {
        if self.state.is_multicast_filtered != is_requested {
            self.state.is_multicast_filtered = is_requested;
            self.state.apply_limits(self.hosting);
        }
    }

    fn set_headroom(&mut self, headroom: u16) {
        self.state.headroom.set(headroom);
        self.state.apply_limits(self.hosting);
    }

    fn note(&mut self, note: Note<'_>) {
        let vif = self.state.name.clone();
        if let Note::State(state) = note {
            tracing::debug!(vif, %state, "backend state");
            if state == XenbusState::Connected {
                self.state.announce(self.hosting);
            }
            return;
        }
        let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) else { return };
        match note {
            Note::State(_) => {}
            Note::AwaitsHotplug => {
                tracing::info!(vif, left_out, "served, waiting for the hotplug script");
            }
            Note::Refused(refusal) => tracing::warn!(vif, left_out, "{refusal}"),
            Note::Waits(reason) | Note::Closed(reason) => tracing::warn!(vif, left_out, "{reason}"),
        }
    }
}

impl<W: World> XenActions<'_, '_, W> {
    /// Maps the guest's rings, binds its event channels and gives the queues to engines. Counts
    /// what an earlier backend left in the rings.
    fn connect(
        &mut self,
        config: &FrontendConfig,
        interrupted: &mut Interrupted,
    ) -> io::Result<()> {
        let caps = config.features.caps();
        let features = FrontendFeatures { caps, rx_notify: config.rx_notify };
        let waker = self.hosting.engines.waker();
        let VifState { chosen, name, .. } = &mut *self.state;
        let (multicast, changes) = chosen.connect(name, self.hosting.notes, waker);
        let (steering, roles) = self.control_roles(config, changes)?;
        let mut enabled = Vec::new();
        for (queue, role) in config.queues.iter().zip(roles) {
            let hypervisor = self.hosting.hypervisor;
            let chosen = (Some(Arc::clone(&multicast)), Arc::clone(&self.state.headroom));
            let parts = queue_parts::<W>(hypervisor, self.vif, queue, features, chosen)?;
            let counters = Arc::clone(&parts.counters);
            // Its frames may go to other vifs of this process.
            let lent = self.state.device.is_none().then(|| hypervisor.memory()).transpose()?;
            let queue = W::vif_queue(parts, lent, role, interrupted, self.hosting.engines)?;
            let flood = Arc::clone(&self.state.limited.flood);
            let stations = self.state.limited.stations();
            enabled.push(steps::Attachment { queue, counters, flood, stations });
        }
        let queues = enabled.len();
        let new = NewQueues { enabled, disabled: Vec::new(), steering, caps };
        connect(self.state, new, self.hosting)?;
        if let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) {
            tracing::info!(vif = self.state.name, queues, left_out, "connected");
        }
        Ok(())
    }
}

impl<W: World> XenActions<'_, '_, W> {
    /// How frames to the guest are steered, if it may choose that or they are balanced, and the
    /// part of each queue in that: the first serves the control ring, if there is one.
    fn control_roles(
        &mut self,
        config: &FrontendConfig,
        changes: Arc<Changes>,
    ) -> io::Result<Control<EventOf<W>>> {
        let balanced = self.hosting.shared.config.balanced(config.queues.len());
        let Some(ControlConfig { ring_ref, event }) = config.control else {
            let absent = config.queues.iter().map(|_| ControlRole::Absent);
            return Ok((balanced.map(Arc::new), absent.collect()));
        };
        let (hypervisor, peer) = (self.hosting.hypervisor, self.vif.frontend);
        let steering = Arc::new(balanced.unwrap_or_default());
        let chosen = Arc::clone(&steering);
        let count = config.queues.len();
        let staging = self.state.staged.connect(count, &self.hosting.shared.staging);
        let pages_of = |queue: usize| Some(Arc::clone(staging.as_ref()?.queues.get(queue)?));
        let others = (1..count).map(|queue| ControlRole::ServedByAnother(pages_of(queue)));
        let others: Vec<_> = others.collect();
        let parts = ControlParts {
            ring: map_ring(&mut hypervisor.memory()?, peer, ring_ref)?,
            event: bind(hypervisor, peer, event)?,
            settings: Arc::clone(self.state.chosen.hashing()),
            queues: u16::try_from(count).unwrap_or(u16::MAX),
            publish: Box::new(move |settings| chosen.set(settings.steering().cloned())),
            changes,
            staging,
        };
        let roles = iter::once(ControlRole::Serves(parts)).chain(others).collect();
        Ok((Some(steering), roles))
    }
}

type Control<E> = (Option<Arc<PortSteering>>, Vec<ControlRole<E>>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vif_has_the_queues_of_its_toolstack_and_those_that_it_was_offered() {
        let read = |values: &[(&str, &str)]| {
            let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            XenWanted::read(&Keys::new("/b", values.iter().map(own)), 4)
        };
        let queues = |values: &[(&str, &str)]| {
            let wanted = read(values).expect("it can be served");
            (wanted.queues_max, wanted.queues)
        };
        assert_eq!(queues(&[]), (4, 4));
        let (limit, offered) = (("ringway-max-queues", "2"), ("multi-queue-max-queues", "3"));
        assert_eq!(queues(&[limit]), (2, 2));
        assert_eq!(queues(&[limit, offered]), (2, 3), "a connected guest keeps them");
        assert_eq!(queues(&[offered]), (4, 4));
        assert!(XenWanted::read(&Keys::new("/b", []), 0).is_ok_and(|wanted| wanted.queues == 1));

        let vlan = ("ringway-vlan", "7");
        for placed in [("script", "/etc/xen/scripts/vif-bridge"), ("bridge", "xenbr0")] {
            assert!(matches!(read(&[vlan, placed]), Err(Unservable::NotOnSwitch)));
            read(&[placed]).expect("its rules are for any network");
        }
        read(&[vlan]).expect("it is on the switch");
        assert!(matches!(read(&[("mac", "fe:ff:ff:ff:ff:ff")]), Err(Unservable::Mac(_))));
        assert!(matches!(read(&[("mac", "01:00:00:00:00:00")]), Err(Unservable::Keys(_))));
    }
}
