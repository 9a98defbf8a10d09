//! The state of a vif of any kind, other than its handshake.

use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use ringway_calls::FRAMING;
use ringway_datapath::{DropReason, LockingMode, MacAddr, OffloadCaps, QueueCounters};
use ringway_engine::steps::{self, Attachment, Command, Engines, NewPort};
use ringway_engine::{BridgePort, Forwarding, Limits, Stations};
use ringway_netback::{Headroom, Interrupted};
use ringway_ovs::{Bind, Facts, OvsBridge, PortWanted};
use ringway_steering::control::HashControl;
use ringway_switch::{PortId, PortPolicy};
use ringway_vif_shell::{LeftOut, LogAllowance};
use ringway_xenbus::limits::LinkState;
use ringway_xenbus::{Keys, Offer, VifLimits};

use crate::arrival::Arrival;
use crate::chosen::Chosen;
use crate::comparison::Followed;
use crate::connection::Connection;
use crate::device::{HostLinks, Link, Purpose, Tap as _, VifDevice};
use crate::limited::{Limited, unlimited};
use crate::quarantine::Charged;
use crate::rules::Rules;
use crate::shared::Shared;
use crate::staged::Staged;
use crate::world::{DeviceOf, Hosting, QueueOf, World};

/// The state of a vif other than its handshake.
pub struct VifState<W: World> {
    /// What panics over its guest are charged to.
    pub charged: Charged,
    /// Its name for people.
    pub name: String,
    /// What its guest is offered.
    pub offer: Offer,
    /// What its guest may send, and the guest's address.
    pub rules: Rules,
    /// Its network device, if the vif is not on the switch.
    pub device: Option<DeviceOf<W>>,
    /// From what the ids of its port on a bridge of Open vSwitch follow, apart from its address.
    pub facts: Facts,
    /// When it has that port.
    pub bind: Bind,
    /// Its limits. Budgets outlive connections; otherwise each connection would bring a new budget.
    pub limited: Limited,
    /// The multicast frames that its guest has ordered in this connection, and what it has set over
    /// its control ring. The latter outlives connections: a guest that returns may rely on it.
    pub(crate) chosen: Chosen,
    /// Whether its guest gets only the multicast frames that it has ordered.
    pub is_multicast_filtered: bool,
    /// The bytes that its guest wants to be free before each frame.
    pub headroom: Arc<Headroom>,
    /// The pages of its guest that stay mapped.
    pub(crate) staged: Staged,
    /// Whether it is quarantined because of panics.
    pub is_quarantined: bool,
    /// What is still to be announced of its guest.
    pub(crate) arrival: Arrival,
    /// The connection, while queues are attached.
    pub connection: Option<Connection>,
    /// The lines that its guest may still cause in the log.
    pub log: LogAllowance,
}

impl<W: World> VifState<W> {
    /// A vif without a network device and without limits of its own.
    pub fn new(
        charged: Charged,
        offer: Offer,
        rules: Rules,
        shared: &Shared,
        now: Instant,
    ) -> Self {
        VifState {
            name: charged.to_string(),
            charged,
            offer,
            rules,
            device: None,
            facts: Facts::default(),
            bind: Bind::default(),
            limited: Limited::new(shared.flood_budget(now), now),
            chosen: Chosen::nothing(now),
            is_multicast_filtered: false,
            headroom: Arc::default(),
            staged: Staged::default(),
            is_quarantined: false,
            arrival: Arrival::none(now),
            connection: None,
            log: LogAllowance::new(now),
        }
    }

    /// Whether frames enter by this port.
    pub fn has_port(&self, port: PortId) -> bool {
        self.connection.as_ref().is_some_and(|it| it.ports().any(|own| own == port))
    }

    /// Frames that its guest has transmitted and received over its present connection.
    pub(crate) fn frames(&self) -> u64 {
        let queues = self.connection.iter().flat_map(|it| &it.queues);
        let frames = queues.map(|queue| queue.totals()).map(|it| it.tx_packets + it.rx_packets);
        frames.sum()
    }

    /// Whether an action of the guest may be logged, and how many lines were left out before.
    pub fn may_log(&mut self, now: Instant) -> Option<LeftOut> {
        self.log.line(now)
    }

    /// Logs what an earlier backend left in the vif's rings, if it left something. The guest can
    /// make rings look like that.
    pub(crate) fn log_interruption(&mut self, interrupted: Interrupted, now: Instant) {
        if interrupted == Interrupted::default() {
            return;
        }
        let Some(LeftOut(left_out)) = self.may_log(now) else { return };
        let Interrupted { tx_slots, rx_slots } = interrupted;
        let vif = &self.name;
        tracing::info!(
            vif,
            tx_slots,
            rx_slots,
            left_out,
            "the rings say that the previous backend was killed while it wrote responses to these \
             slots: the guest gets the responses now, and the frames may be lost"
        );
    }

    /// Applies the toolstack's limits to the vif.
    pub fn set_limits(&mut self, keys: &Keys, hosting: &mut Hosting<'_, W>) {
        let (wanted, bad) = VifLimits::read(keys);
        if self.limited.wanted == wanted && self.limited.bad == bad {
            return;
        }
        let vif = &self.name;
        bad.iter().for_each(|bad| tracing::warn!(vif, "{bad}: this limit is not applied"));
        if wanted != (VifLimits { mtu: wanted.mtu, ..VifLimits::default() }) {
            tracing::info!(vif, "limits: {wanted}");
        }
        self.limited.bad = bad;
        let config = &hosting.shared.config.switch;
        self.limited.set(wanted, (config.flood, config.storm), hosting.now);
        self.apply_offloads(hosting);
        let Some(connection) = &self.connection else { return };
        let weight = self.limited.weight();
        for port in connection.device_port.into_iter().chain([connection.port]) {
            command(hosting.engines, port, |id| Command::SetWeight { id, weight });
        }
    }

    /// Gives the engines the limits as they are now, if the vif's guest is connected.
    pub(crate) fn apply_limits(&self, hosting: &mut Hosting<'_, W>) {
        let Some(connection) = &self.connection else { return };
        let shared = &*hosting.shared;
        let of_device = connection.device_port.map(|port| (port, self.device_limits(shared)));
        let own = (connection.port, self.limits(shared));
        for (port, limits) in of_device.into_iter().chain([own]) {
            let limit = |id| Command::Limit { id, limits: limits.clone() };
            command(hosting.engines, port, limit);
        }
        if let Some(device) = &self.device {
            device.tap.merge_read(self.merged(connection.caps, shared));
        }
    }

    /// The multicast addresses that its guest has ordered; `None` if they are not known.
    pub fn groups(&self) -> Option<Vec<MacAddr>> {
        self.chosen.filter().addresses()
    }

    /// What its guest has set over its control ring.
    pub fn hashing(&self) -> MutexGuard<'_, HashControl> {
        self.chosen.hashing().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many pages of its guest are mapped for good.
    pub fn staged_pages(&self) -> usize {
        self.staged.count()
    }

    /// Notes what its guest has chosen, if that is due, and has its queues respond.
    pub(crate) fn note_chosen(&mut self, hosting: &mut Hosting<'_, W>) {
        if !self.chosen.note(&self.name, hosting.notes, hosting.now) {
            return;
        }
        if let Some(connection) = &self.connection {
            command(hosting.engines, connection.port, |id| Command::Poll { id });
        }
    }

    /// Attaches the queues of the vif's network device to engines, as another port.
    pub(crate) fn attach_device(
        &mut self,
        port: PortId,
        to: PortId,
        (count, caps): (u16, OffloadCaps),
        shared: &mut Shared,
        engines: &mut W::Engines,
        now: Instant,
    ) -> io::Result<()> {
        // What is for its guest is dropped at the guest's port, if it is.
        let policy = Arc::new(PortPolicy::open());
        let (limits, passing) = (self.device_limits(shared), self.offloading(shared).passing);
        let merged = self.merged(caps, shared);
        let Some(device) = &mut self.device else { return Ok(()) };
        // Until it has engines, a comparison of devices attaches it again.
        device.is_detached = true;
        if device.is_deleted() {
            // It is made again soon. Meanwhile, frames to it are lost.
            shared.comparison.note_change(now);
            return Ok(());
        }
        // Its guest may have more queues since a supervisor made the device.
        let count = count.min(device.queues_made);
        device.enable(count, caps.and(passing))?;
        device.tap.set_plain(limits.is_plain);
        device.tap.merge_read(merged);
        let counters: Vec<Arc<QueueCounters>> = (0..count).map(|_| Arc::default()).collect();
        let queues = device.queues(&counters);
        let attachments = queues.into_iter().zip(counters).map(|(queue, counters)| Attachment {
            queue: Into::<QueueOf<W>>::into(queue),
            counters,
            flood: unlimited(),
            stations: Stations::Bridge(self.limited.weight()),
        });
        let attachments = attachments.collect();
        if let Some(address) = self.rules.mac() {
            // Other guests on the bridge wait for this one, as on the switch.
            let bridge = device.attached_to.as_str().into();
            let roster = engines.roster().map_err(io::Error::other)?;
            roster.join_bridge(port, BridgePort { bridge, address });
        }
        let forwarding = Forwarding::Patch(to);
        let new = NewPort {
            id: port,
            forwarding: &forwarding,
            policy: &policy,
            limits: &limits,
            steering: None,
        };
        steps::attach(engines, new, attachments)?;
        if let Some(device) = &mut self.device {
            device.is_detached = false;
        }
        Ok(())
    }

    /// Follows what has become of the vif's network device: its guest stays connected. Without
    /// `links`, another process keeps the device.
    pub fn follow_device(
        &mut self,
        links: Option<&HostLinks<W::Kernel>>,
        hosting: &mut Hosting<'_, W>,
    ) -> Followed {
        let Some(device) = &mut self.device else { return Followed::Done };
        let Hosting { devices, notes, .. } = hosting;
        let follow = |links| devices.follow(device, links, *notes);
        let mut done = links.map_or(Ok(()), follow);
        if device.is_detached && !device.is_deleted() {
            done = self.attach_device_again(hosting).and(done);
        }
        let Some(device) = &mut self.device else { return Followed::Done };
        let name = device.name();
        device.show(&name, done)
    }

    /// Attaches the queues of a device that was made again, in place of those of the deleted one.
    fn attach_device_again(&mut self, hosting: &mut Hosting<'_, W>) -> io::Result<()> {
        let Hosting { shared, engines, now, .. } = hosting;
        let connection = self.connection.as_ref();
        let ports = connection.and_then(|it| Some((it.port, it.device_port?)));
        if let (Some((to, port)), Some(connection)) = (ports, connection) {
            let count = u16::try_from(connection.queues.len()).unwrap_or(u16::MAX);
            let caps = connection.caps;
            shared.detach(port, *engines);
            self.attach_device(port, to, (count, caps), shared, engines, *now)?;
            self.join_ovs(shared);
            return Ok(());
        }
        if let Some(device) = &mut self.device {
            device.is_detached = false;
        }
        self.begin_on_ovs(shared);
        Ok(())
    }

    /// Asks for what a new network device needs, if that is for a bridge of Open vSwitch: its
    /// datapath, and the port if that does not wait for a guest.
    pub(crate) fn begin_on_ovs(&self, shared: &mut Shared) {
        self.ovs().into_iter().for_each(|bridge| shared.datapaths.ask(bridge));
        if self.bind == Bind::Plugged {
            self.join_ovs(shared);
        }
    }

    /// Asks for the port of its network device, if that is for a bridge of Open vSwitch.
    pub(crate) fn join_ovs(&self, shared: &mut Shared) {
        let Some(device) = &self.device else { return };
        let Some(bridge) = self.ovs().cloned() else { return };
        let mac = self.rules.mac().map(|mac| mac.to_string());
        let facts = Facts { mac, ..self.facts.clone() };
        let Some(index) = device.kept().map(|kept| kept.index) else { return };
        let wanted = PortWanted { device: device.name(), index, bridge, facts };
        shared.ovs.join(Purpose::of(&self.charged), wanted);
    }

    /// Takes over from what the ids of that port follow now. Its address may be another, too.
    pub(crate) fn set_facts(&mut self, facts: Facts, shared: &mut Shared) {
        self.facts = facts;
        if self.connection.is_some() || self.bind == Bind::Plugged {
            self.join_ovs(shared);
        }
    }

    /// Asks for the removal of that port, because its guest has left.
    pub(crate) fn leave_ovs(&self, shared: &mut Shared) {
        if self.is_for_ovs() && self.bind == Bind::Connected {
            shared.ovs.leave(Purpose::of(&self.charged));
        }
    }

    /// Asks for its removal, because the vif ends. It may have a port, and no device so far.
    pub(crate) fn remove_from_ovs(&self, shared: &mut Shared) {
        let vif = Purpose::of(&self.charged);
        if self.is_for_ovs() || shared.ovs.knows(&vif) {
            shared.ovs.remove(vif);
        }
    }

    /// The bridge of Open vSwitch that its network device is for, if that is for one.
    pub(crate) fn ovs(&self) -> Option<&OvsBridge> {
        self.device.as_ref()?.ovs()
    }

    /// Whether its network device is for a bridge of Open vSwitch.
    pub(crate) fn is_for_ovs(&self) -> bool {
        self.ovs().is_some()
    }

    /// Serves the vif by another network device in place of the present one: its guest stays
    /// connected. Returns false if it has none, or there is no other.
    pub fn renew_device(&mut self, renewed: Option<DeviceOf<W>>) -> bool {
        let (Some(device), Some(renewed)) = (&mut self.device, renewed) else { return false };
        *device = renewed;
        device.is_detached = true;
        true
    }

    /// The bridge that it is on instead of the switch, as configured.
    pub fn bridge(&self) -> Option<&str> {
        self.device.as_ref().map(|device| device.attached_to.as_str())
    }

    /// Whether a network device is the one of this vif. A vif that failed may have been repaired.
    pub fn needs_device(&self, link: &Link) -> bool {
        let kept = self.device.as_ref().and_then(VifDevice::kept);
        kept.is_none_or(|device| device.index == link.index)
    }

    /// Why its network device does not work as it should, if so.
    pub fn fault(&self) -> Option<String> {
        self.device.as_ref().and_then(|device| device.fault.clone())
    }

    /// Whether the queues of a port are those of a network device that was deleted.
    pub fn has_lost_device(&self, port: PortId) -> bool {
        let connection = self.connection.as_ref();
        let is_lost = |device: &&DeviceOf<W>| device.is_detached || device.is_deleted();
        let device = self.device.as_ref().filter(is_lost);
        device.is_some() && connection.is_some_and(|it| it.device_port == Some(port))
    }

    /// The MTU of the vif, in bytes.
    pub fn mtu(&self, shared: &Shared) -> u32 {
        let mtu = match (self.limited.wanted.mtu, &self.device) {
            (Some(mtu), _) => mtu.into(),
            (None, Some(device)) => device.mtu,
            (None, None) => shared.config.mtu,
        };
        mtu.max(self.limited.mtu_min.into())
    }

    /// The largest MTU that a front-end may use if none is configured: on the switch any, on a
    /// bridge that of the device.
    pub fn mtu_max(&self) -> u16 {
        let mtu = self.device.as_ref().map(|device| device.mtu);
        mtu.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(u16::MAX)
    }

    /// Why no frame passes the vif, in either direction, if none does.
    fn why_shut(&self, shared: &Shared) -> Option<DropReason> {
        if self.limited.wanted.link == Some(LinkState::Down) {
            return Some(DropReason::LinkDown);
        }
        let is_disabled = self.rules.mode(shared.config.locking) == Some(LockingMode::Disabled);
        // The output of a mirror gets its copies whatever its mode is, and sends nothing.
        let is_shut = is_disabled && self.rules.mirror().is_empty();
        is_shut.then_some(DropReason::PortDisabled)
    }

    /// The limits of the vif's port.
    pub fn limits(&self, shared: &Shared) -> Limits {
        let mtu = match (self.limited.wanted.mtu, &self.device) {
            // The toolstack has set none, and the bridge applies its own.
            (None, Some(_)) => None,
            _ => Some(self.mtu(shared)),
        };
        let frame_len = |mtu| usize::try_from(mtu).unwrap_or(usize::MAX).saturating_add(FRAMING);
        Limits {
            shut: self.why_shut(shared),
            multicast: self.is_multicast_filtered.then(|| Arc::clone(self.chosen.filter())),
            // A program of XDP sees frames as they are on a wire, and may send them back.
            is_plain: self.headroom.get() > 0 || self.is_plain(shared),
            ingress: self.limited.tx.clone(),
            segments: Some(Arc::clone(&self.limited.segments)),
            egress: self.limited.rx.clone(),
            frame_len_max: mtu.map(frame_len),
        }
    }
}

/// Gives a command to the engines of a port. If they are gone, so is the port.
pub(crate) fn command<E: Engines>(
    engines: &mut E,
    port: PortId,
    command: impl Fn(ringway_engine::SlotId) -> Command<E::Queue>,
) {
    let _: Result<bool, E::Gone> = steps::command_port(engines, port, command);
}
