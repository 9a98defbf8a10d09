//! Replies to the command line.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringway_control::{
    BackendRequest, BackendStatus, Call, FdbStatus, FloodStatus, GroupStatus, LimitsStatus,
    MulticastStatus, QueueStatus, RateStatus, Reconnect, Reply, VifStatus, VirtioStatus,
    WorkerStatus, offload_names,
};
use ringway_datapath::{MacAddr, Mirrored, OffloadCaps, QueueCounters, Vid};
use ringway_host::{Event, Shared, VifState, World, XenVif, flood_limit, storm_limits, vif_name};
use ringway_hypervisor::Hypervisor;
use ringway_net::Link;
use ringway_switch::{FloodLimit, GroupEntry, MulticastPort, PortId, Switch};
use ringway_vhost::backend::{FEATURES, PROTOCOL_FEATURES};
use ringway_vhost_shell::{Mode, State};
use ringway_vif_shell::device;
use ringway_wire::vhost_user::protocol_names;
use ringway_wire::virtio::Features;
use ringway_worker::{Capture, Placement, Stall, Workers};
use ringway_xenbus::backend::{self, Input};
use ringway_xenbus::limits::Scope;
use ringway_xenbus::{
    BadKeys, KeyChange, Keys, LIMITS, Limit, MAX_QUEUES_KEY, MIRROR_KEY, Rate, Reconnects, Vif,
    VifLimits,
};
use ringway_xenstore::{Client, Lost, Refusal, or_refusal, unless_refused};

use crate::Backend;
use crate::capture::stream_pcapng;
use crate::device::VifDevice;
use crate::machinery::{AnyQueue, Machinery};
use crate::vhost::VhostVif;

/// The name of a mirror's setting.
const MIRROR: &str = "mirror";

impl<H: Hypervisor> Backend<H> {
    pub(crate) fn serve_call(&mut self, call: Call<BackendRequest>) -> Result<(), Lost> {
        let reply = match &call.request {
            BackendRequest::Status => Reply::ok(&self.status()?),
            BackendRequest::SetMaxQueues { vif, max_queues, reconnect } => {
                self.set_max_queues(vif, *max_queues, *reconnect)?
            }
            BackendRequest::SetLimit { vif, limit, value } => self.set_limit(vif, limit, value)?,
            BackendRequest::Release { vif } => self.release(vif),
            BackendRequest::Panic { vif } => self.disturb_for_test(vif, |workers, port| {
                workers.panic_for_test(port);
            }),
            BackendRequest::Stall { vif, asleep } => {
                let stall = if *asleep { Stall::Sleep } else { Stall::Loop };
                self.disturb_for_test(vif, |workers, port| workers.stall_for_test(port, stall))
            }
            BackendRequest::Capture { vif, snap_len } => self.capture(vif, *snap_len),
        };
        call.reply(reply);
        Ok(())
    }

    /// Also writes the key, so the setting lasts as long as the vif, whichever process serves it.
    fn set_max_queues(
        &mut self,
        name: &str,
        queues_max: u16,
        reconnect: Reconnect,
    ) -> Result<Reply, Lost> {
        if queues_max == 0 {
            return Ok(Reply::error("max-queues is 0, expected 1 or more"));
        }
        if self.vhosts.iter().any(|vhost| vhost.state.name == name) {
            return Ok(Reply::error(&format!(
                "{name} is a virtio vif: its guest chooses with `ethtool -L`, and `queues` in its \
                 [[vhost]] is the maximum"
            )));
        }
        let found = self.host.vifs().find(|(vif, _)| vif_name(*vif) == name);
        let Some((vif, XenVif { end, state })) = found else { return Ok(self.no_such_vif(name)) };
        let made = state.device.as_ref().map(|it| (it.queues_made, &it.attached_to));
        if let Some((made, attached_to)) = made.filter(|(made, _)| queues_max > *made) {
            return Ok(Reply::error(&format!(
                "max-queues is {queues_max}, expected at most {made}: the TAP device of {name} on \
                 {attached_to} was created with so many",
            )));
        }
        let stays = state.connection.is_some() && end.reconnects() == Reconnects::Never;
        if reconnect == Reconnect::Now && stays {
            return Ok(Reply::error(&format!(
                "the guest of {name} would not reconnect, because Linux's driver does not; \
                 without --reconnect it keeps its queues until it reconnects by itself",
            )));
        }
        let written = write_key(&mut self.store, vif, MAX_QUEUES_KEY, &queues_max.to_string())?;
        if written.is_err() {
            return Ok(reply_to(written));
        }
        if let Some(state) = self.host.state_mut(vif) {
            state.offer.queues_max = queues_max;
        }
        let reconnect = match reconnect {
            Reconnect::Now => backend::Reconnect::Now,
            Reconnect::Later => backend::Reconnect::Later,
        };
        self.on(Event::Offer(vif, Input::OfferChanged { queues_max, reconnect }))?;
        Ok(Reply::ok(&()))
    }

    /// Writes the key, which we watch, so the limit lasts as long as the vif, whichever process
    /// serves it.
    fn set_limit(&mut self, name: &str, limit: &str, value: &str) -> Result<Reply, Lost> {
        if self.vhosts.iter().any(|vhost| vhost.state.name == name) {
            return Ok(self.set_vhost_limit(name, limit, value));
        }
        let is_uplink = self.uplink.as_ref().is_some_and(|uplink| uplink.name == name);
        if limit == MIRROR && is_uplink {
            return Ok(Reply::error(&format!(
                "{name} carries all other frames to the host, and the output of a mirror carries \
                 only copies: expected a vif"
            )));
        }
        let Some(vif) = self.find(name) else { return Ok(self.no_such_vif(name)) };
        if limit == MIRROR {
            return self.set_mirror(vif, value);
        }
        if let Some(reason) = self.refuse_flood_limit(name, limit) {
            return Ok(Reply::error(&reason));
        }
        let key = match limit_key(limit, value) {
            Ok(key) => key,
            Err(reason) => return Ok(Reply::error(&reason)),
        };
        let written = write_key(&mut self.store, vif, key, value)?;
        Ok(reply_to(written))
    }

    /// A virtio vif has no keys in XenStore: a file has them for the next process.
    fn set_vhost_limit(&mut self, name: &str, limit: &str, value: &str) -> Reply {
        if limit == MIRROR {
            return self.set_vhost_mirror(name, value);
        }
        if let Some(reason) = self.refuse_flood_limit(name, limit) {
            return Reply::error(&reason);
        }
        let key = match limit_key(limit, value) {
            Ok(key) => key,
            Err(reason) => return Reply::error(&reason),
        };
        let Backend { host, machinery, vhosts, .. } = self;
        let Some(vhost) = vhosts.iter_mut().find(|vhost| vhost.state.name == name) else {
            return Reply::error("the vif was removed in the meantime");
        };
        let mut hosting = machinery.hosting(&mut host.shared, Instant::now());
        match vhost.set_limit(key, value, &mut hosting) {
            Ok(()) => Reply::ok(&()),
            Err(reason) => Reply::error(&reason),
        }
    }

    /// Why a limit of floods would have no effect: it is the switch's, and a bridge has none.
    fn refuse_flood_limit(&self, name: &str, limit: &str) -> Option<String> {
        Limit::named(limit).filter(|limit| limit.is_of(Scope::Switch))?;
        let device = self.state(name)?.device.as_ref()?;
        Some(format!(
            "{name} is on the bridge {}, which floods its frames itself: expected a vif on the \
             switch, or the limit `rate`",
            device.attached_to
        ))
    }

    fn set_vhost_mirror(&mut self, name: &str, value: &str) -> Reply {
        let mirror = match self.mirror(name, value) {
            Ok(mirror) => mirror,
            Err(reason) => return Reply::error(&reason),
        };
        let Backend { host, machinery, vhosts, .. } = self;
        let Some(vhost) = vhosts.iter_mut().find(|vhost| vhost.state.name == name) else {
            return Reply::error("the vif was removed in the meantime");
        };
        let mut hosting = machinery.hosting(&mut host.shared, Instant::now());
        match vhost.set_mirror(mirror, value, &mut hosting) {
            Ok(()) => Reply::ok(&()),
            Err(reason) => Reply::error(&format!("{name}: {reason}")),
        }
    }

    fn set_mirror(&mut self, vif: Vif, value: &str) -> Result<Reply, Lost> {
        if let Err(reason) = self.mirror(&vif_name(vif), value) {
            return Ok(Reply::error(&reason));
        }
        Ok(reply_to(write_key(&mut self.store, vif, MIRROR_KEY, value)?))
    }

    /// The ports of a mirror that a user requests, if this vif can be its output.
    fn mirror(&self, name: &str, value: &str) -> Result<Vec<Mirrored>, String> {
        let mirror = Mirrored::parse_list(value)?;
        let device = self.state(name).and_then(|state| state.device.as_ref());
        if let Some(device) = device.filter(|_| !mirror.is_empty()) {
            return Err(format!(
                "{name} is on the bridge {}: expected a vif on the switch",
                device.attached_to
            ));
        }
        let refusal = self.refuse_ports(&mirror).or_else(|| self.refuse_mirror(name, &mirror));
        refusal.map_or(Ok(mirror), Err)
    }

    fn release(&mut self, name: &str) -> Reply {
        let Backend { host, machinery, vhosts, .. } = self;
        let notes = &mut machinery.notes;
        let was_any = if let Some(vhost) = vhosts.iter_mut().find(|it| it.state.name == name) {
            let was_any = host.shared.quarantine.release(&vhost.state.charged, notes);
            vhost.check_quarantine(&host.shared);
            was_any
        } else {
            let found = host.vifs().map(|(vif, _)| vif).find(|vif| vif_name(*vif) == name);
            let Some(vif) = found else { return self.no_such_vif(name) };
            host.release(vif, notes)
        };
        if was_any {
            return Reply::ok(&());
        }
        Reply::error(&format!("{name} is not quarantined, and no panic is charged to it"))
    }

    /// For tests of the consequences of a defect: works only if the environment declares a test.
    fn disturb_for_test(
        &mut self,
        name: &str,
        disturb: impl FnOnce(&Workers<AnyQueue<H>>, PortId),
    ) -> Reply {
        if std::env::var_os("RINGWAY_TEST_PANICS").is_none() {
            return Reply::error("this process is not under test");
        }
        let connection = self.state(name).and_then(|state| state.connection.as_ref());
        let Some(connection) = connection else { return self.no_such_vif(name) };
        disturb(&self.machinery.workers, connection.port);
        Reply::ok(&())
    }

    fn capture(&mut self, name: &str, snap_len: u32) -> Reply {
        let Some(state) = self.state(name) else { return self.no_such_vif(name) };
        let snap = usize::try_from(snap_len).unwrap_or(usize::MAX);
        let capture = Arc::new(Capture::new(snap, (Instant::now(), SystemTime::now())));
        let connection = state.connection.as_ref();
        let workers = &self.machinery.workers;
        if !connection.is_some_and(|it| workers.capture(it.port, &capture)) {
            return Reply::error(&format!("{name} is not connected, so it has no frames"));
        }
        let name = name.to_owned();
        Reply::stream(move |stream| stream_pcapng(&capture, &name, snap_len, stream))
    }

    fn find(&self, name: &str) -> Option<Vif> {
        self.host.vifs().map(|(vif, _)| vif).find(|vif| vif_name(*vif) == name)
    }

    /// A vif of any kind.
    fn state(&self, name: &str) -> Option<&VifState<Machinery<H>>> {
        self.all_states().find(|it| it.name == name)
    }

    fn no_such_vif(&self, name: &str) -> Reply {
        let known: Vec<String> = self.all_states().map(|state| state.name.clone()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Reply::error(&format!("there is no vif {name:?}; there is {known}"))
    }

    fn status(&mut self) -> Result<BackendStatus, Lost> {
        // What is so, not what was configured: an administrator may move devices.
        let has_devices = self.all_states().any(|state| state.device.is_some());
        let links = if has_devices { self.machinery.devices.links() } else { Vec::new() };
        let placements = self.machinery.workers.placements();
        let view = View {
            shared: &self.host.shared,
            now: Instant::now(),
            placements: &placements,
            links: &links,
        };
        let mut vifs = Vec::new();
        for (vif, served) in self.host.vifs() {
            let name = self.store.read(&format!("/local/domain/{}/name", vif.frontend));
            // A driver domain may be unable to read the name, which may be any text.
            let guest = unless_refused(name, None)?;
            vifs.push(vif_status(vif, served, guest, &view));
        }
        vifs.extend(self.vhosts.iter().map(|vhost| vhost_status(vhost, &view)));
        let switch = &self.host.shared.switch;
        let uplink = self.uplink.as_ref().map(|uplink| VifStatus {
            name: uplink.name.clone(),
            state: "Connected".to_owned(),
            error: uplink.fault(),
            attached_to: "switch".to_owned(),
            multicast: multicast_status(switch, uplink.port),
            queues: queue_statuses(uplink.port, &uplink.counters, &placements),
            ..VifStatus::default()
        });
        Ok(BackendStatus {
            pid: std::process::id(),
            policy: self.config.workers.policy.to_string(),
            workers: worker_statuses(self.machinery.workers.busy(), &placements),
            vifs,
            uplink,
            fdb: self.fdb(),
            groups: groups_status(switch, |port| self.port_name(port)),
            ..BackendStatus::default()
        })
    }

    fn port_name(&self, port: PortId) -> String {
        let vif = self.host.vifs().find(|(_, vif)| vif.state.has_port(port));
        let vhost = self.vhosts.iter().find(|vhost| vhost.state.has_port(port));
        let uplink = self.uplink.as_ref().filter(|uplink| uplink.port == port);
        let name = vif.map(|(vif, _)| vif_name(vif));
        let name = name.or_else(|| vhost.map(|vhost| vhost.state.name.clone()));
        let name = name.or_else(|| uplink.map(|uplink| uplink.name.clone()));
        name.unwrap_or_else(|| format!("port {port}"))
    }

    fn fdb(&self) -> Vec<FdbStatus> {
        let shared = &self.host.shared;
        let entries = shared.switch.entries(shared.ticks(Instant::now()));
        let entry = entries.into_iter().map(|(vlan, entry)| FdbStatus {
            vlan: vlan.map(Vid::get),
            mac: entry.mac.to_string(),
            port: self.port_name(entry.port),
            age_seconds: entry.age_ticks,
            is_static: entry.is_static,
        });
        entry.collect()
    }
}

/// What a status is made from.
struct View<'a> {
    shared: &'a Shared,
    now: Instant,
    placements: &'a [Placement],
    links: &'a [Link],
}

fn vif_status<H: Hypervisor>(
    vif: Vif,
    served: &XenVif<Machinery<H>>,
    guest: Option<String>,
    view: &View<'_>,
) -> VifStatus {
    let XenVif { end, state } = served;
    let caps = state.connection.as_ref().map_or(OffloadCaps::NONE, |it| it.caps);
    VifStatus {
        state: end.state().to_string(),
        guest,
        error: end.error().map(str::to_owned).or_else(|| fault(state, view)),
        kind: "xen".to_owned(),
        domid: Some(vif.frontend.0),
        handle: vif.handle,
        // Its guest may accept more than we do.
        offloads: offload_names(caps.and(view.shared.config.offloads)),
        ..state_status(state, view)
    }
}

/// Why a vif of any kind does not work as it should, although it is served.
fn fault<W: World>(state: &VifState<W>, view: &View<'_>) -> Option<String> {
    state.fault().or_else(|| state.why_not_assigned(view.shared))
}

/// The status of a vif of any kind.
fn state_status<H: Hypervisor>(state: &VifState<Machinery<H>>, view: &View<'_>) -> VifStatus {
    let View { shared, now, placements, links } = *view;
    let config = &shared.config;
    let rules = &state.rules;
    let connection = state.connection.as_ref();
    let place = state.device.as_ref().map(|device| match device {
        VifDevice::Kept(device) => device.place(links),
        // Who keeps it knows where it is.
        VifDevice::Passed(device) => (device.attached_to.clone(), false),
    });
    let (attached_to, is_down) = place.unwrap_or_else(|| ("switch".to_owned(), false));
    VifStatus {
        name: state.name.clone(),
        mac: rules.mac().map(|mac| mac.to_string()),
        locking_mode: rules
            .mode(config.locking)
            .map_or_else(|| "default".to_owned(), |mode| mode.to_string()),
        allowed_ips: rules.allowed(),
        addresses_max: rules.addresses_max(config.locking, config.switch.addresses_per_port_max),
        allowed_macs: texts(&rules.wanted.allowed_macs),
        shared_macs: texts(&rules.wanted.shared_macs),
        refused: state.refused(),
        taken: state.taken(shared, now),
        vlan: rules.vlan().untagged.map(Vid::get),
        trunk: rules.vlan().tagged.iter().copied().map(Vid::get).collect(),
        is_private: rules.is_private(),
        link_local_to: rules.wanted.link_local_to.clone(),
        mirror: rules.mirror().iter().map(ToString::to_string).collect(),
        multicast: connection
            .filter(|it| it.device_port.is_none())
            .and_then(|it| multicast_status(&shared.switch, it.port)),
        attached_to,
        is_down,
        tenant: None,
        max_queues: state.offer.queues_max,
        offloads: offload_names(connection.map_or(OffloadCaps::NONE, |it| it.caps)),
        limits: limits_status(state, shared),
        queues: connection.map_or(Vec::new(), |it| queue_statuses(it.port, &it.queues, placements)),
        ..VifStatus::default()
    }
}

fn texts(macs: &[MacAddr]) -> Vec<String> {
    macs.iter().map(ToString::to_string).collect()
}

fn vhost_status<H: Hypervisor>(vhost: &VhostVif<H>, view: &View<'_>) -> VifStatus {
    let names = |features: Features| features.names().map(str::to_owned).collect();
    let session = vhost.end.session();
    let offered = session.map_or(Features::NONE, |session| session.offer().features());
    let features = session.and_then(ringway_vhost::Backend::features).unwrap_or(Features::NONE);
    let of_protocol = |set: u64| protocol_names(set).map(str::to_owned).collect();
    let protocol_offered = session.map_or(0, |session| session.offer().protocol());
    let protocol = session.map_or(0, ringway_vhost::Backend::protocol);
    let regions = session.map_or(&[][..], |session| session.regions());
    let state = match vhost.end.state() {
        State::Disconnected => "Waiting",
        State::Waiting(_) => "Initialising",
        State::Serving => "Connected",
    };
    let mode = match vhost.config.mode {
        Mode::Client => "client",
        Mode::Server => "server",
    };
    let mut status = state_status(&vhost.state, view);
    if let (None, Some(bridge)) = (&vhost.state.device, &vhost.config.bridge) {
        // It waits for this bridge.
        status.attached_to.clone_from(bridge);
    }
    VifStatus {
        kind: "virtio".to_owned(),
        state: state.to_owned(),
        error: vhost.error().or_else(|| fault(&vhost.state, view)),
        max_queues: session.map_or(vhost.config.queues, |session| session.offer().pairs),
        virtio: Some(VirtioStatus {
            socket: vhost.config.socket.display().to_string(),
            mode: mode.to_owned(),
            at_run_time: vhost.at_run_time,
            max_queues_next: vhost.config.queues,
            features: names(features),
            not_taken: names(offered.without(features)),
            not_offered: session.map_or(Vec::new(), |_| names(FEATURES.without(offered))),
            protocol: of_protocol(protocol),
            protocol_not_taken: of_protocol(protocol_offered & !protocol),
            protocol_not_offered: of_protocol(
                session.map_or(0, |_| PROTOCOL_FEATURES) & !protocol_offered,
            ),
            memory_mib: regions.iter().map(|region| region.size).sum::<u64>() >> 20,
            memory_sealed: !vhost.may_lose_memory(),
        }),
        ..status
    }
}

fn limits_status<W: World>(state: &VifState<W>, shared: &Shared) -> LimitsStatus {
    let wanted = state.limited.wanted;
    let flood = flood_status(flood_limit(wanted.flood, shared.config.switch.flood));
    let storm = storm_limits(&wanted, shared.config.switch.storm);
    let rate = |rate: Rate| RateStatus { bytes: rate.bytes, interval_us: rate.interval_us };
    LimitsStatus {
        weight: state.limited.weight().get(),
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
pub(crate) fn multicast_status(switch: &Switch, port: PortId) -> Option<MulticastStatus> {
    let MulticastPort { groups, is_router, hears_all } = switch.multicast_port(port)?;
    Some(MulticastStatus { groups, is_router, hears_all })
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

pub(crate) fn worker_statuses(
    busy: impl Iterator<Item = Duration>,
    placements: &[Placement],
) -> Vec<WorkerStatus> {
    let status = |(index, busy): (usize, Duration)| WorkerStatus {
        index,
        queues: placements.iter().filter(|placed| placed.worker == index).count(),
        busy_ns: u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX),
    };
    busy.enumerate().map(status).collect()
}

pub(crate) fn queue_statuses(
    port: PortId,
    counters: &[Arc<QueueCounters>],
    placements: &[Placement],
) -> Vec<QueueStatus> {
    let status = |(index, counters): (u16, &Arc<QueueCounters>)| {
        let placed = placements.iter().find(|placed| (placed.port, placed.queue) == (port, index));
        QueueStatus::read(index, placed.map_or(0, |placed| placed.worker), counters)
    };
    (0..).zip(counters).map(status).collect()
}

/// The key of a limit, if the value is valid.
fn limit_key(name: &str, value: &str) -> Result<&'static str, String> {
    let Some(limit) = Limit::named(name) else {
        let known: Vec<&str> = LIMITS.iter().map(Limit::name).collect();
        return Err(format!("there is no limit {name:?}; there are {}", known.join(", ")));
    };
    let keys = Keys::new("", [(limit.key.to_owned(), value.to_owned())]);
    match VifLimits::read(&keys).1.pop() {
        None => Ok(limit.key),
        Some(BadKeys::Unreadable { found, expected, .. }) => {
            Err(format!("{name}: expected {expected}, not \"{found}\""))
        }
        Some(bad) => Err(format!("{name}: {bad}")),
    }
}

/// Sets one key of a vif in the backend's directory, if XenStore permits it.
fn write_key(
    store: &mut Client,
    vif: Vif,
    key: &str,
    value: &str,
) -> Result<Result<(), Refusal>, Lost> {
    let changes = [KeyChange::Set(key.to_owned(), value.to_owned())];
    or_refusal(device::change(store, &vif.backend_dir(), &changes))
}

fn reply_to(written: Result<(), Refusal>) -> Reply {
    match written {
        Ok(()) => Reply::ok(&()),
        Err(refusal) => Reply::error(&refusal.to_string()),
    }
}
