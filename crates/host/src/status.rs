//! What users are shown of vifs and of the switch.

use std::sync::Arc;
use std::time::Instant;

use ringway_calls::{
    BackendStatus, FdbStatus, FloodStatus, GroupStatus, HashStatus, LimitsStatus, MulticastStatus,
    QueueStatus, RateStatus, VifStatus, offload_names,
};
use ringway_datapath::{MacAddr, OffloadCaps, PortRules, QueueCounters, Vid};
use ringway_engine::Roster;
use ringway_engine::steps::Engines;
use ringway_steering::control::HashControl;
use ringway_switch::{FloodLimit, GroupEntry, MulticastPort, PortId, Switch, Ticks};
use ringway_xenbus::limits::LinkState;
use ringway_xenbus::{Rate, Vif};
use ringway_xenstore::{Lost, unless_refused};

use crate::device::{Link, Place, Purpose, UplinkRules};
use crate::host::Host;
use crate::limited::{flood_limit, storm_limits};
use crate::notes::Notes;
use crate::other_port::OtherPort;
use crate::shared::Shared;
use crate::uplink::UplinkPort;
use crate::vif_state::VifState;
use crate::waits::{self, Receiver, Waits};
use crate::world::{Parts, World};
use crate::xen::XenVif;

impl OtherPort<'_> {
    /// Its status at this time.
    pub(crate) fn status(
        &self,
        switch: &Switch,
        engines: &mut impl Engines,
        now: Instant,
        name_of: &dyn Fn(PortId) -> String,
    ) -> VifStatus {
        let roster = engines.roster().ok().map(|roster| &*roster);
        let waits = Waits { now, name_of, receiver: Receiver::Other };
        VifStatus {
            name: self.name.to_owned(),
            state: "Connected".to_owned(),
            error_kind: self.fault.as_ref().map(|_| VifStatus::FAULT.to_owned()),
            error: self.fault.clone(),
            attached_to: SWITCH.to_owned(),
            multicast: multicast_status(switch, self.port),
            queues: queue_statuses(self.port, self.counters, roster, &waits),
            ..self.rules.map(of_uplink).unwrap_or_default()
        }
    }
}

/// What goes through an uplink, by the names of a vif's rules and limits.
fn of_uplink(rules: &UplinkRules) -> VifStatus {
    let UplinkRules { vlan, multicast_router, storm } = rules;
    let limits = LimitsStatus {
        broadcast: flood_status(storm.broadcast),
        multicast: flood_status(storm.multicast),
        unknown: flood_status(storm.unknown),
        ..LimitsStatus::default()
    };
    VifStatus {
        vlan: vlan.untagged.map(Vid::get),
        trunk: vlan.tagged.iter().copied().map(Vid::get).collect(),
        multicast_router: multicast_router.to_string(),
        limits,
        ..VifStatus::default()
    }
}

fn hash_status(set: &HashControl) -> Option<HashStatus> {
    let steering = set.steering()?;
    Some(HashStatus::new(steering.types(), set.key(), steering.mapping()))
}

/// The multicast addresses whose frames a guest gets, if it does not get all.
fn groups_wanted<W: World>(state: &VifState<W>) -> Option<Vec<String>> {
    let is_filtered = state.is_multicast_filtered && state.connection.is_some();
    let mut addresses = is_filtered.then(|| state.groups()).flatten()?;
    addresses.sort_unstable();
    Some(texts(&addresses))
}

/// What vifs without a network device are attached to.
const SWITCH: &str = "switch";

/// What the status of a vif is made from.
struct View<'a> {
    shared: &'a Shared,
    now: Instant,
    /// That of the clock of notes, in seconds.
    seconds: u64,
    roster: Option<&'a Roster>,
    /// The links of the host, if it could read them.
    links: Option<&'a [Link]>,
    name_of: &'a dyn Fn(PortId) -> String,
}

impl<W: World> Host<W> {
    /// The status of all vifs, of the uplink and of the switch.
    pub(crate) fn status(
        &self,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<BackendStatus, Lost> {
        let shared = &self.shared;
        let roster = parts.engines.roster().ok().map(|roster| &*roster);
        // What is so, not what was configured: an administrator may move devices.
        let has_devices = self.states().any(|state| state.device.is_some());
        let links = has_devices.then(|| parts.devices.links()).flatten();
        let name_of = |port| self.name_at(port);
        let (links, seconds) = (links.as_deref(), Notes::seconds(&*parts.notes));
        let view = View { shared, now, seconds, roster, links, name_of: &name_of };
        let mut vifs = Vec::new();
        for (vif, xen) in self.vifs() {
            let name = parts.store.read(&format!("/local/domain/{}/name", vif.frontend));
            // A driver domain may be unable to read the name, which may be any text.
            let guest = unless_refused(name, None)?;
            vifs.push(view.xen_vif(vif, xen, guest));
        }
        vifs.extend(self.virtio.iter().map(|vif| vif.describe(view.vif(&vif.state))));
        let uplink = self.uplink.as_ref().map(UplinkPort::describe);
        let (switch, engines) = (&shared.switch, &mut *parts.engines);
        Ok(BackendStatus {
            vifs,
            uplink: uplink.map(|uplink| uplink.status(switch, engines, now, &name_of)),
            fdb: fdb_status(&shared.switch, shared.ticks(now), name_of),
            groups: groups_status(&shared.switch, name_of),
            ..BackendStatus::default()
        })
    }

    fn name_at(&self, port: PortId) -> String {
        let vif = self.states().find(|state| state.has_port(port));
        let uplink = self.uplink.as_ref().filter(|uplink| uplink.port == port);
        let name = vif.map(|vif| vif.name.clone());
        let name = name.or_else(|| uplink.map(|uplink| uplink.name.clone()));
        name.unwrap_or_else(|| format!("port {port}"))
    }
}

impl View<'_> {
    fn xen_vif<W: World>(&self, vif: Vif, xen: &XenVif<W>, guest: Option<String>) -> VifStatus {
        let XenVif { end, state, .. } = xen;
        let caps = state.connection.as_ref().map_or(OffloadCaps::NONE, |it| it.caps);
        let passing = state.offloading(self.shared).passing;
        let status = self.vif(state);
        let error = end.error().map(str::to_owned).or(status.error);
        VifStatus {
            state: end.state().to_string(),
            guest,
            error_kind: error.as_ref().map(|_| VifStatus::FAULT.to_owned()),
            error,
            kind: "xen".to_owned(),
            domid: Some(vif.frontend.0),
            handle: vif.handle,
            // Its guest may accept more than we do.
            offloads: offload_names(caps.and(self.shared.config.offloads).and(passing)),
            staged_pages: state.staged_pages(),
            hash: hash_status(&state.hashing()),
            groups_wanted: groups_wanted(state),
            headroom: state.connection.as_ref().map_or(0, |_| state.headroom.get()),
            waits: waits::of_end(end, self.now).chain(status.waits).collect(),
            refusals: waits::refusals(end, self.now),
            ..status
        }
    }

    /// The status of a vif of any kind.
    fn vif<W: World>(&self, state: &VifState<W>) -> VifStatus {
        let View { shared, now, roster, .. } = *self;
        let config = &shared.config;
        let rules = &state.rules;
        let connection = state.connection.as_ref();
        let device = state.device.as_ref();
        let on_switch = || Place { attached_to: SWITCH.to_owned(), is_down: false, is_gone: false };
        let place = device.map_or_else(on_switch, |device| device.place(self.links));
        let caps = connection.map_or(OffloadCaps::NONE, |it| it.caps);
        let offloading = state.offloading(shared);
        // Why it does not work as it should, although it is served.
        let error = state
            .fault()
            .or_else(|| place.fault())
            .or_else(|| shared.ovs.fault(&Purpose::of(&state.charged)))
            .or_else(|| state.why_not_assigned(shared));
        VifStatus {
            name: state.name.clone(),
            error_kind: error.as_ref().map(|_| VifStatus::FAULT.to_owned()),
            error,
            mac: rules.mac().map(|mac| mac.to_string()),
            locking_mode: rules
                .mode(config.locking)
                .map_or_else(|| "default".to_owned(), |mode| mode.to_string()),
            allowed_ips: rules.allowed(),
            addresses_max: rules
                .addresses_max(config.locking, config.switch.addresses_per_port_max),
            refused: state.refused(),
            taken: state.taken(shared, now),
            announced: state.announced(shared),
            flows_moved: connection.and_then(|it| it.steering.as_ref()?.moved()),
            multicast: connection
                .filter(|it| it.device_port.is_none())
                .and_then(|it| multicast_status(&shared.switch, it.port)),
            attached_to: place.attached_to,
            ovs: shared.ovs.status(&Purpose::of(&state.charged)),
            is_down: place.is_down,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            restarts: shared.restarts.of(&state.name),
            max_queues: state.offer.queues_max,
            offloads: offload_names(caps.and(offloading.passing)),
            offloads_because: offloading.why.into_owned(),
            limits: limits_status(state, shared),
            waits: waits::of_quarantine(&shared.quarantine, &state.charged, self.seconds)
                .into_iter()
                .collect(),
            queues: connection.map_or(Vec::new(), |it| {
                let receiver = Receiver::Guest(it.device_port);
                let waits = Waits { now, name_of: self.name_of, receiver };
                queue_statuses(it.port, &it.queues, roster, &waits)
            }),
            ..of_rules(&rules.wanted)
        }
    }
}

/// The rules of a vif that are as they were set.
fn of_rules(rules: &PortRules) -> VifStatus {
    let vlan = &rules.vlan;
    VifStatus {
        allowed_macs: texts(&rules.allowed_macs),
        shared_macs: texts(&rules.shared_macs),
        is_router: rules.is_router,
        is_dhcp_server: rules.is_dhcp_server,
        is_unannounced: rules.is_unannounced,
        vlan: vlan.untagged.map(Vid::get),
        trunk: vlan.tagged.iter().copied().map(Vid::get).collect(),
        is_private: rules.is_private,
        multicast_router: rules.multicast_router.to_string(),
        link_local_to: rules.link_local_to.clone(),
        mirror: rules.mirror.iter().map(ToString::to_string).collect(),
        ..VifStatus::default()
    }
}

fn texts(macs: &[MacAddr]) -> Vec<String> {
    macs.iter().map(ToString::to_string).collect()
}

fn limits_status<W: World>(state: &VifState<W>, shared: &Shared) -> LimitsStatus {
    let wanted = state.limited.wanted;
    let flood = flood_status(flood_limit(wanted.flood, shared.config.switch.flood));
    let storm = storm_limits(&wanted, shared.config.switch.storm);
    let rate = |rate: Rate| RateStatus { bytes: rate.bytes, interval_us: rate.interval_us };
    LimitsStatus {
        weight: state.limited.weight().get(),
        link_down: wanted.link == Some(LinkState::Down),
        offloads: wanted.offloads.unwrap_or_default().to_string(),
        rate: wanted.rate.map(rate),
        rate_rx: wanted.rate_rx.map(rate),
        flood_frames_per_second: flood.frames_per_second,
        flood_bytes_per_second: flood.bytes_per_second,
        broadcast: flood_status(storm.broadcast),
        multicast: flood_status(storm.multicast),
        unknown: flood_status(storm.unknown),
        frame_len_max: state.limits(shared).frame_len_max,
    }
}

/// Ticks are seconds.
fn flood_status(limit: FloodLimit) -> FloodStatus {
    FloodStatus {
        frames_per_second: Some(limit.frames_per_tick).filter(|it| *it != u32::MAX),
        bytes_per_second: Some(limit.bytes_per_tick).filter(|it| *it != u64::MAX),
    }
}

/// A port's multicast state; `None` if multicast is not snooped or the port is not on a switch.
fn multicast_status(switch: &Switch, port: PortId) -> Option<MulticastStatus> {
    let MulticastPort { groups, is_router, hears_all } = switch.multicast_port(port)?;
    Some(MulticastStatus { groups, is_router, hears_all })
}

/// The forwarding table.
pub(crate) fn fdb_status(
    switch: &Switch,
    now: Ticks,
    name_of: impl Fn(PortId) -> String,
) -> Vec<FdbStatus> {
    let entries = switch.entries(now).into_iter();
    let entry = entries.map(|(vlan, entry)| FdbStatus {
        vlan: vlan.map(Vid::get),
        mac: entry.mac.to_string(),
        port: name_of(entry.port),
        age_seconds: entry.age_ticks,
        is_static: entry.is_static,
    });
    entry.collect()
}

/// The groups that have members.
pub(crate) fn groups_status(
    switch: &Switch,
    name_of: impl Fn(PortId) -> String,
) -> Vec<GroupStatus> {
    let status = |entry: GroupEntry| GroupStatus {
        group: entry.group.to_string(),
        vlan: Some(entry.vlan).filter(|vlan| *vlan != 0),
        ports: entry.ports.into_iter().map(&name_of).collect(),
    };
    switch.group_entries().into_iter().map(status).collect()
}

fn queue_statuses(
    port: PortId,
    counters: &[Arc<QueueCounters>],
    roster: Option<&Roster>,
    waits: &Waits<'_>,
) -> Vec<QueueStatus> {
    let status = |(index, counters): (u16, &Arc<QueueCounters>)| {
        let placed = roster.and_then(|roster| roster.queue(port, index));
        let engine = placed.map_or(0, |placed| placed.address.engine);
        let [tx_wait, rx_wait] = [&counters.tx_wait, &counters.rx_wait].map(|it| waits.status(it));
        QueueStatus { tx_wait, rx_wait, ..QueueStatus::read(index, engine, counters) }
    };
    (0..).zip(counters).map(status).collect()
}
