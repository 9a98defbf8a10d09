//! Replies to the command line.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringway_control::{
    BackendRequest, BackendStatus, Call, FdbStatus, FloodStatus, GroupStatus, LimitsStatus,
    MulticastStatus, QueueStatus, RateStatus, Reconnect, Reply, VifStatus, VirtioStatus,
    WorkerStatus, offload_names,
};
use ringway_datapath::{MacAddr, Mirrored, OffloadCaps, QueueCounters, Vid};
use ringway_host::{Charged, flood_limit, storm_limits, vif_name};
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
use crate::served::Served;
use crate::services::{AnyQueue, Hosting, Services};
use crate::vhost::VhostVif;
use crate::vif::VifShell;

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
        if self.vhosts.iter().any(|vhost| vhost.served.name == name) {
            return Ok(Reply::error(&format!(
                "{name} is a virtio vif: its guest chooses with `ethtool -L`, and `queues` in its \
                 [[vhost]] is the maximum"
            )));
        }
        let found = self.vifs.iter_mut().find(|(vif, _)| vif_name(**vif) == name);
        let Some((vif, shell)) = found else { return Ok(self.no_such_vif(name)) };
        let (served, reconnects) = (&mut shell.served, shell.end.reconnects());
        let made = served.device.as_ref().map(|it| (it.queues_made, &it.attached_to));
        if let Some((made, attached_to)) = made.filter(|(made, _)| queues_max > *made) {
            return Ok(Reply::error(&format!(
                "max-queues is {queues_max}, expected at most {made}: the TAP device of {name} on \
                 {attached_to} was created with so many",
            )));
        }
        let stays = served.connection.is_some() && reconnects == Reconnects::Never;
        if reconnect == Reconnect::Now && stays {
            return Ok(Reply::error(&format!(
                "the guest of {name} would not reconnect, because Linux's driver does not; \
                 without --reconnect it keeps its queues until it reconnects by itself",
            )));
        }
        let store = &mut self.services.store;
        let written = write_key(store, *vif, MAX_QUEUES_KEY, &queues_max.to_string())?;
        if written.is_err() {
            return Ok(reply_to(written));
        }
        served.offer.queues_max = queues_max;
        let reconnect = match reconnect {
            Reconnect::Now => backend::Reconnect::Now,
            Reconnect::Later => backend::Reconnect::Later,
        };
        shell.feed(Input::OfferChanged { queues_max, reconnect }, &mut self.services)?;
        Ok(Reply::ok(&()))
    }

    /// Writes the key, which we watch, so the limit lasts as long as the vif, whichever process
    /// serves it.
    fn set_limit(&mut self, name: &str, limit: &str, value: &str) -> Result<Reply, Lost> {
        if self.vhosts.iter().any(|vhost| vhost.served.name == name) {
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
        let written = write_key(&mut self.services.store, vif, key, value)?;
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
        let host = &mut self.services.host;
        let Some(vhost) = self.vhosts.iter_mut().find(|vhost| vhost.served.name == name) else {
            return Reply::error("the vif was removed in the meantime");
        };
        match vhost.set_limit(key, value, host) {
            Ok(()) => Reply::ok(&()),
            Err(reason) => Reply::error(&reason),
        }
    }

    /// Why a limit of floods would have no effect: it is the switch's, and a bridge has none.
    fn refuse_flood_limit(&self, name: &str, limit: &str) -> Option<String> {
        Limit::named(limit).filter(|limit| limit.is_of(Scope::Switch))?;
        let device = self.served(name)?.device.as_ref()?;
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
        let host = &mut self.services.host;
        let Some(vhost) = self.vhosts.iter_mut().find(|vhost| vhost.served.name == name) else {
            return Reply::error("the vif was removed in the meantime");
        };
        match vhost.set_mirror(mirror, value, host) {
            Ok(()) => Reply::ok(&()),
            Err(reason) => Reply::error(&format!("{name}: {reason}")),
        }
    }

    fn set_mirror(&mut self, vif: Vif, value: &str) -> Result<Reply, Lost> {
        if let Err(reason) = self.mirror(&vif_name(vif), value) {
            return Ok(Reply::error(&reason));
        }
        Ok(reply_to(write_key(&mut self.services.store, vif, MIRROR_KEY, value)?))
    }

    /// The ports of a mirror that a user requests, if this vif can be its output.
    fn mirror(&self, name: &str, value: &str) -> Result<Vec<Mirrored>, String> {
        let mirror = Mirrored::parse_list(value)?;
        let device = self.served(name).and_then(|served| served.device.as_ref());
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
        let host = &mut self.services.host;
        let was_any =
            if let Some(vhost) = self.vhosts.iter_mut().find(|vhost| vhost.served.name == name) {
                let was_any = host.quarantine.release(&vhost.charged(), &mut host.notes);
                vhost.check_quarantine(host);
                was_any
            } else {
                let Some(vif) = self.find(name) else { return self.no_such_vif(name) };
                let host = &mut self.services.host;
                let was_any = host.quarantine.release(&Charged::Xen(vif), &mut host.notes);
                self.restart_if_released(vif);
                was_any
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
        let connection = self.served(name).and_then(|served| served.connection.as_ref());
        let Some(connection) = connection else { return self.no_such_vif(name) };
        disturb(&self.services.host.workers, connection.port);
        Reply::ok(&())
    }

    fn capture(&mut self, name: &str, snap_len: u32) -> Reply {
        let Some(served) = self.served(name) else { return self.no_such_vif(name) };
        let snap = usize::try_from(snap_len).unwrap_or(usize::MAX);
        let capture = Arc::new(Capture::new(snap, (Instant::now(), SystemTime::now())));
        let connection = served.connection.as_ref();
        let workers = &self.services.host.workers;
        if !connection.is_some_and(|it| workers.capture(it.port, &capture)) {
            return Reply::error(&format!("{name} is not connected, so it has no frames"));
        }
        let name = name.to_owned();
        Reply::stream(move |stream| stream_pcapng(&capture, &name, snap_len, stream))
    }

    fn find(&self, name: &str) -> Option<Vif> {
        self.vifs.keys().copied().find(|vif| vif_name(*vif) == name)
    }

    /// A vif of any kind.
    fn served(&self, name: &str) -> Option<&Served> {
        self.all_served().find(|it| it.name == name)
    }

    fn no_such_vif(&self, name: &str) -> Reply {
        let known: Vec<String> = self.all_served().map(|served| served.name.clone()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Reply::error(&format!("there is no vif {name:?}; there is {known}"))
    }

    fn status(&mut self) -> Result<BackendStatus, Lost> {
        let Services { store, host } = &mut self.services;
        let placements = host.workers.placements();
        // What is so, not what was configured: an administrator may move devices.
        let has_devices = (self.vifs.values().map(|shell| &shell.served))
            .chain(self.vhosts.iter().map(|vhost| &vhost.served))
            .any(|served| served.device.is_some());
        let links = if has_devices { host.devices.links() } else { Vec::new() };
        let mut vifs = Vec::new();
        for (vif, shell) in &self.vifs {
            let name = store.read(&format!("/local/domain/{}/name", vif.frontend));
            // A driver domain may be unable to read the name, which may be any text.
            let guest = unless_refused(name, None)?;
            vifs.push(vif_status(shell, guest, host, &placements, &links));
        }
        vifs.extend(self.vhosts.iter().map(|it| vhost_status(it, host, &placements, &links)));
        let host = &self.services.host;
        let uplink = self.uplink.as_ref().map(|uplink| VifStatus {
            name: uplink.name.clone(),
            state: "Connected".to_owned(),
            error: uplink.fault(),
            attached_to: "switch".to_owned(),
            multicast: multicast_status(&host.switch, uplink.port),
            queues: queue_statuses(uplink.port, &uplink.counters, &placements),
            ..VifStatus::default()
        });
        Ok(BackendStatus {
            pid: std::process::id(),
            policy: host.config.workers.policy.to_string(),
            workers: worker_statuses(host.workers.busy(), &placements),
            vifs,
            uplink,
            fdb: self.fdb(),
            groups: groups_status(&self.services.host.switch, |port| self.port_name(port)),
            ..BackendStatus::default()
        })
    }

    fn port_name(&self, port: PortId) -> String {
        let vif = self.vifs.iter().find(|(_, shell)| shell.has_port(port));
        let vhost = self.vhosts.iter().find(|vhost| vhost.served.has_port(port));
        let uplink = self.uplink.as_ref().filter(|uplink| uplink.port == port);
        let name = vif.map(|(vif, _)| vif_name(*vif));
        let name = name.or_else(|| vhost.map(|vhost| vhost.served.name.clone()));
        let name = name.or_else(|| uplink.map(|uplink| uplink.name.clone()));
        name.unwrap_or_else(|| format!("port {port}"))
    }

    fn fdb(&self) -> Vec<FdbStatus> {
        let host = &self.services.host;
        let entries = host.switch.entries(host.ticks());
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

fn vif_status<H: Hypervisor>(
    shell: &VifShell,
    guest: Option<String>,
    host: &Hosting<H>,
    placements: &[Placement],
    links: &[Link],
) -> VifStatus {
    let served = &shell.served;
    let vif = served.vif;
    VifStatus {
        state: shell.state().to_string(),
        guest,
        error: shell
            .error()
            .map(str::to_owned)
            .or_else(|| served.fault())
            .or_else(|| served.why_not_assigned(host)),
        kind: "xen".to_owned(),
        domid: Some(vif.frontend.0),
        handle: vif.handle,
        ..served_status(served, host, placements, links)
    }
}

/// The status of a vif of any kind.
fn served_status<H: Hypervisor>(
    served: &Served,
    host: &Hosting<H>,
    placements: &[Placement],
    links: &[Link],
) -> VifStatus {
    let config = &host.config;
    let rules = &served.rules;
    let connection = served.connection.as_ref();
    let place = served.device.as_ref().map(|device| match device {
        VifDevice::Kept(device) => device.place(links),
        // Who keeps it knows where it is.
        VifDevice::Passed(device) => (device.attached_to.clone(), false),
    });
    let (attached_to, is_down) = place.unwrap_or_else(|| ("switch".to_owned(), false));
    VifStatus {
        name: served.name.clone(),
        mac: rules.mac().map(|mac| mac.to_string()),
        locking_mode: rules
            .mode(config.locking)
            .map_or_else(|| "default".to_owned(), |mode| mode.to_string()),
        allowed_ips: rules.allowed(),
        addresses_max: rules.addresses_max(config.locking, config.switch.addresses_per_port_max),
        allowed_macs: texts(&rules.wanted.allowed_macs),
        shared_macs: texts(&rules.wanted.shared_macs),
        refused: served.refused(),
        taken: served.taken(host),
        vlan: rules.vlan().untagged.map(Vid::get),
        trunk: rules.vlan().tagged.iter().copied().map(Vid::get).collect(),
        is_private: rules.is_private(),
        link_local_to: rules.wanted.link_local_to.clone(),
        mirror: rules.mirror().iter().map(ToString::to_string).collect(),
        multicast: connection
            .filter(|it| it.device_port.is_none())
            .and_then(|it| multicast_status(&host.switch, it.port)),
        attached_to,
        is_down,
        tenant: None,
        max_queues: served.offer.queues_max,
        offloads: offload_names(connection.map_or(OffloadCaps::NONE, |it| it.caps)),
        limits: limits_status(served, host),
        queues: connection.map_or(Vec::new(), |it| queue_statuses(it.port, &it.queues, placements)),
        ..VifStatus::default()
    }
}

fn texts(macs: &[MacAddr]) -> Vec<String> {
    macs.iter().map(ToString::to_string).collect()
}

fn vhost_status<H: Hypervisor>(
    vhost: &VhostVif,
    host: &Hosting<H>,
    placements: &[Placement],
    links: &[Link],
) -> VifStatus {
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
    let mut status = served_status(&vhost.served, host, placements, links);
    if let (None, Some(bridge)) = (&vhost.served.device, &vhost.config.bridge) {
        // It waits for this bridge.
        status.attached_to.clone_from(bridge);
    }
    VifStatus {
        kind: "virtio".to_owned(),
        state: state.to_owned(),
        error: vhost
            .error()
            .or_else(|| vhost.served.fault())
            .or_else(|| vhost.served.why_not_assigned(host)),
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

fn limits_status<H: Hypervisor>(served: &Served, host: &Hosting<H>) -> LimitsStatus {
    let wanted = served.limited.wanted;
    let flood = flood_status(flood_limit(wanted.flood, host.config.switch.flood));
    let storm = storm_limits(&wanted, host.config.switch.storm);
    let rate = |rate: Rate| RateStatus { bytes: rate.bytes, interval_us: rate.interval_us };
    LimitsStatus {
        weight: served.limited.weight().get(),
        rate: wanted.rate.map(rate),
        rate_rx: wanted.rate_rx.map(rate),
        flood_frames_per_second: flood.frames_per_second,
        flood_bytes_per_second: flood.bytes_per_second,
        broadcast: flood_status(storm.broadcast),
        multicast: flood_status(storm.multicast),
        unknown: flood_status(storm.unknown),
        frame_len_max: served.limits(host).frame_len_max,
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
