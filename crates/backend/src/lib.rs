//! The backend process: serves every vif that is assigned to its domain.
//!
//! It is one control thread around the workers. The thread watches XenStore for vifs, runs a
//! handshake with each guest, attaches the resulting queues, and serves the command line. What it
//! does about vifs of Xen is decided by [`Host`]; this crate is the process around it. Frames never
//! pass through it. All state of a backend can be recovered from XenStore and the shared rings, so
//! it may be killed and restarted at any time.

mod capture;
mod config;
mod control;
mod device_keeper;
mod inflight;
mod kernel;
mod liveness;
mod machinery;
mod notes;
mod opener;
mod orders;
mod passed;
mod purpose;
mod reports;
mod scope;
mod service;
mod sockets;
mod switch_process;
mod uplink;
mod vhost;
mod vif_or_trunk;
mod virtio_features;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

pub use capture::PcapngFile;
pub use config::{BackendConfig, VhostVif};
pub use device_keeper::DeviceKeeper;
pub use kernel::{HostKernel, HostTap};
pub use liveness::Liveness;
pub use notes::NoteFiles;
pub use purpose::for_tenant;
use ringway_control::{BackendRequest, Call, ControlServer, ControlSocket, Link as ControlLink};
use ringway_datapath::Mirrored;
pub use ringway_host::{
    DeviceChange, DeviceState, Purpose, Uplink, delete_devices, uplink_obstacle,
};
use ringway_host::{
    Devices, Event, Followed, Host, Link, Scope, Shared, VifState, refuse_mirror, refuse_pair,
    refuse_ports, update_mirrors, update_pairs, watch,
};
use ringway_hypervisor::Hypervisor;
use ringway_net::LinkWatch;
use ringway_vif_shell::device::remove_stale_errors;
use ringway_xenbus::Vif;
use ringway_xenstore::{Client, Lost};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
pub use scope::Tenancy;
pub use service::{Report, Service};
pub use sockets::Sockets;
pub use switch_process::run_switch;

use crate::machinery::{HostingOf, Machinery};
use crate::purpose::of_tenant;
use crate::reports::Reports;
use crate::scope::Orders;
use crate::uplink::{UplinkPort, attach_trunk, attach_uplink};

/// How often load is balanced and the forwarding table is swept, while anything happens.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// How often it is done while nothing happens: it costs time for every vif.
const IDLE_HOUSEKEEPING: Duration = Duration::from_secs(60);
/// The longest time after which a backend that is idle notices that workers have work again.
const IDLE_CHECK_MAX: Duration = Duration::from_secs(2); // not a limit: a pause of our own
/// Watch events that are recorded before other work gets a turn: guests can cause any number of
/// them.
const EVENTS_MAX: usize = 1024;
/// How long vifs are served before other work gets a turn.
const TURNS_TIME: Duration = Duration::from_millis(50);

/// The state of a backend.
struct Backend<H: Hypervisor> {
    host: Host<Machinery<H>>,
    store: Client,
    machinery: Machinery<H>,
    config: BackendConfig,
    /// What the kernel announces of links, in a process that keeps devices.
    links: Option<LinkWatch>,
    /// In the process of a tenant.
    orders: Option<Orders>,
    vhosts: Vec<vhost::VhostVif<H>>,
    opener: Option<Arc<ControlLink>>,
    uplink: Option<UplinkPort>,
    reports: Reports,
}

/// Serves vifs until `stop` becomes readable. The process may be confined before the call.
///
/// # Errors
/// If the connection to XenStore was lost, or if this host lacks threads, devices or sockets at the
/// start.
pub fn run<H: Hypervisor>(
    hypervisor: H,
    store: Client,
    config: BackendConfig,
    sockets: Sockets,
    stop: impl AsFd,
) -> io::Result<()> {
    let Sockets { control, net, opener } = sockets;
    let (wake, calls, _control) = serve_control(control)?;
    let (net, links) = net.unzip();
    let started = Backend::begin(hypervisor, store, config, Scope::Domain, net)?;
    let mut backend = Backend { links, opener, ..started };
    let mut hosting = backend.machinery.hosting(&mut backend.host.shared, Instant::now());
    backend.uplink = attach_uplink(backend.config.uplink.as_ref(), &mut hosting)?;
    backend.wait_for_vhosts()?;
    backend.start(&calls, &wake, stop)
}

/// Serves the vifs of one tenant until `stop` becomes readable. Frames for other tenants leave by
/// the tenant's trunk.
///
/// # Errors
/// As [`run`], and if the supervisor has ended.
pub fn run_tenant<H: Hypervisor>(
    hypervisor: H,
    store: Client,
    config: BackendConfig,
    sockets: Sockets,
    tenancy: Tenancy,
    stop: impl AsFd,
) -> io::Result<()> {
    let Sockets { control, opener, .. } = sockets;
    let (wake, calls, _control) = serve_control(control)?;
    let Tenancy { link, trunk, carried, vifs } = tenancy;
    let backend = hypervisor.domid();
    let passed = vifs.into_iter().map(|(vif, passed)| (of_tenant(vif, backend), passed));
    let passed: BTreeMap<Purpose, _> = passed.collect();
    let of_xen = passed.keys().filter_map(|purpose| match purpose {
        Purpose::Xen(vif) => Some(*vif),
        Purpose::Virtio(_) | Purpose::Uplink => None,
    });
    let scope = Scope::Only(of_xen.collect::<BTreeSet<Vif>>());
    let started = Backend::begin(hypervisor, store, config, scope, None)?;
    let mut backend = Backend { orders: Some(Orders::of(link)), opener, ..started };
    backend.machinery.devices = Devices::Passed(passed);
    let mut hosting = backend.machinery.hosting(&mut backend.host.shared, Instant::now());
    backend.uplink = Some(attach_trunk(trunk, &carried, &mut hosting)?);
    backend.wait_for_vhosts()?;
    backend.start(&calls, &wake, stop)
}

type Control = (Arc<OwnedFd>, Receiver<Call<BackendRequest>>, ControlServer);

/// Listens for the command line. The descriptor becomes readable when there is a call.
fn serve_control(control: ControlSocket) -> io::Result<Control> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let caller = Arc::clone(&wake);
    let (control, calls) = ControlServer::start(control, move || {
        // The counter cannot overflow between two turns of the loop.
        let _ = rustix::io::write(&caller, &1_u64.to_ne_bytes());
    })?;
    Ok((wake, calls, control))
}

impl<H: Hypervisor> Backend<H> {
    /// A backend that watches for its vifs, and has yet to serve them.
    fn begin(
        hypervisor: H,
        mut store: Client,
        config: BackendConfig,
        scope: Scope,
        net: Option<HostKernel>,
    ) -> io::Result<Backend<H>> {
        watch(&mut store, &scope, hypervisor.domid())?.map_err(io::Error::other)?;
        if scope == Scope::Domain {
            remove_stale_errors(&mut store, hypervisor.domid())?;
        }
        let reports = Reports::start(config.service.clone())?;
        store.transport_mut().watch_by(reports.liveness.pulse());
        let mut notes = NoteFiles::new(&config.dir);
        let shared = Shared::new(config.of_host(), &mut notes, Instant::now());
        let (liveness, occupants) = (&reports.liveness, &shared.occupants);
        let machinery = Machinery::start(hypervisor, &config, net, (liveness, occupants), notes)?;
        Ok(Backend {
            host: Host::new(shared, scope),
            store,
            machinery,
            config,
            links: None,
            orders: None,
            vhosts: Vec::new(),
            opener: None,
            uplink: None,
            reports,
        })
    }

    /// Reads all existing vifs, then begins to serve.
    fn start(
        mut self,
        calls: &Receiver<Call<BackendRequest>>,
        wake: &OwnedFd,
        stop: impl AsFd,
    ) -> io::Result<()> {
        while self.host.has_turns() {
            self.serve_pending()?;
            self.report_counts();
        }
        self.delete_stale_devices();
        self.reports.ready();
        self.serve(calls, wake, stop)
    }

    fn serve(
        &mut self,
        calls: &Receiver<Call<BackendRequest>>,
        wake: &OwnedFd,
        stop: impl AsFd,
    ) -> io::Result<()> {
        let mut swept = Instant::now();
        let mut busy = Duration::ZERO;
        loop {
            self.reports.liveness.beat();
            if self.links.as_mut().is_some_and(LinkWatch::has_changed) {
                self.host.shared.comparison.note_change(Instant::now());
            }
            self.take_queues_down()?;
            while let Ok(call) = calls.try_recv() {
                self.serve_call(call)?;
            }
            self.follow_ports();
            self.take_orders()?;
            self.serve_pending()?;
            // Last, because all of the above uses XenStore, and an event that arrives together with
            // a reply does not make the descriptor readable.
            let watches = self.take_watches()?;
            self.serve_opener()?;
            self.follow_links();
            let has_more = self.turn_vhosts()?;
            let is_due = swept.elapsed() >= HOUSEKEEPING;
            if is_due {
                swept = Instant::now();
                busy = self.machinery.workers.busy().sum();
                self.do_housekeeping(swept);
            }
            // What happens after the last housekeeping needs another.
            let pause_max = if is_due { IDLE_HOUSEKEEPING } else { HOUSEKEEPING };
            let pause = self.note_due(pause_max);
            let is_idle = watches == Watches::Taken && !self.host.has_turns() && !has_more;
            let pause = if is_idle { pause } else { Duration::ZERO };
            let mut fds = vec![
                PollFd::new(&self.store, PollFlags::IN),
                PollFd::new(&self.machinery.workers, PollFlags::IN),
                PollFd::new(wake, PollFlags::IN),
                PollFd::new(&stop, PollFlags::IN),
            ];
            let others = self.links.as_ref().map(AsFd::as_fd).into_iter();
            let others = others.chain(self.orders.as_ref().map(AsFd::as_fd));
            fds.extend(others.map(|link| PollFd::from_borrowed_fd(link, PollFlags::IN)));
            let sockets = self.vhosts.iter().filter_map(vhost::VhostVif::waker);
            fds.extend(sockets.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
            fds.extend(self.opener_waker());
            self.wait(&mut fds, pause, busy)?;
            let should_stop = !fds[3].revents().is_empty();
            let _ = rustix::io::read(wake, &mut [0; 8]);
            if should_stop {
                self.reports.stopping();
                self.leave_opener();
                return Ok(());
            }
        }
    }

    /// What serves a vif.
    fn hosting(&mut self) -> HostingOf<'_, H> {
        self.machinery.hosting(&mut self.host.shared, Instant::now())
    }

    /// Notes what has happened to vifs of Xen.
    fn on(&mut self, event: Event) -> Result<(), Lost> {
        let Backend { host, store, machinery, .. } = self;
        host.on(event, Instant::now(), &mut machinery.parts(store))
    }

    /// Does what is due from time to time, for all vifs.
    fn do_housekeeping(&mut self, now: Instant) {
        if let Some(moved) = self.machinery.workers.rebalance() {
            tracing::debug!(?moved, "queue moved to another worker");
        }
        let Backend { host, store, machinery, vhosts, .. } = self;
        host.housekeep(now, &mut machinery.parts(store));
        let mut hosting = machinery.hosting(&mut host.shared, now);
        for vhost in vhosts {
            vhost.state.assign_refused(&mut hosting);
            vhost.state.log_refusals(hosting.shared, now);
            vhost.log_unshared();
        }
        self.report_counts();
        self.release_expired();
    }

    /// Follows what has become of the network devices of this process.
    fn follow_links(&mut self) {
        let now = Instant::now();
        let has_devices = self.uplink.as_ref().is_some_and(UplinkPort::has_device)
            || self.all_states().any(|state| state.device.is_some());
        let Backend { host, store, machinery, vhosts, uplink, .. } = self;
        host.follow_all(has_devices, now, &mut machinery.parts(store), |links, hosting| {
            let vhosts = vhosts.iter_mut().map(|it| it.state.follow_device(links, hosting)).max();
            let uplink = uplink.as_mut().map(|it| it.follow_device(links, hosting));
            vhosts.max(uplink).unwrap_or(Followed::Done)
        });
    }

    /// Deletes network devices of vifs that were removed while no backend ran, or that the
    /// description no longer names. A failure does not affect other vifs.
    fn delete_stale_devices(&mut self) {
        let Backend { host, machinery, vhosts, uplink, .. } = self;
        let is_kept = |purpose: &Purpose, link: &Link| match purpose {
            Purpose::Xen(vif) => host.needs_device(*vif, link),
            Purpose::Virtio(name) => {
                let vhost = vhosts.iter().find(|vhost| vhost.state.name == *name);
                vhost.is_some_and(|it| it.config.bridge.is_some() && it.state.needs_device(link))
            }
            Purpose::Uplink => uplink.is_some(),
        };
        machinery.devices.delete_stale(is_kept, &mut machinery.notes);
    }

    /// Waits for an event, for the end of `pause`, or until workers have had more work than `busy`,
    /// which is checked the less often the longer it takes.
    fn wait(&self, fds: &mut [PollFd<'_>], pause: Duration, busy: Duration) -> io::Result<()> {
        let check_max = self.reports.liveness.beat_interval_max().unwrap_or(IDLE_CHECK_MAX);
        let start = Instant::now();
        loop {
            let waited = start.elapsed();
            let check = HOUSEKEEPING.max(waited / 4).min(check_max).min(IDLE_CHECK_MAX);
            let rest = pause.saturating_sub(waited);
            match poll(fds, Some(&timespec(rest.min(check)))) {
                Ok(0) if rest > check => {}
                Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            self.reports.liveness.beat();
            if self.machinery.workers.busy().sum::<Duration>() != busy {
                return Ok(());
            }
        }
    }

    /// Vifs of all kinds.
    pub(crate) fn all_states(&self) -> impl Iterator<Item = &VifState<Machinery<H>>> + Clone {
        self.host.states().chain(self.vhosts.iter().map(|vhost| &vhost.state))
    }

    /// Updates the switch's mirrors and pairs to the present ports.
    fn follow_ports(&self) {
        let switch = &self.host.shared.switch;
        let uplink = self.uplink.as_ref().map(|uplink| (uplink.name.as_str(), uplink.port));
        update_mirrors(switch, self.all_states(), uplink);
        update_pairs(switch, self.all_states());
    }

    /// Why a new vif cannot be the output of such a mirror; `None` if it can.
    fn refuse_mirror(&self, output: &str, wanted: &[Mirrored]) -> Option<String> {
        refuse_mirror(self.all_states(), output, wanted)
    }

    /// Why one of these ports cannot be mirrored now; `None` if all can.
    fn refuse_ports(&self, wanted: &[Mirrored]) -> Option<String> {
        let uplink = self.uplink.as_ref().map(|uplink| uplink.name.as_str());
        refuse_ports(self.all_states(), uplink, wanted)
    }

    /// Why a new vif cannot be the partner of the one that it names.
    fn refuse_link(&self, config: &VhostVif) -> Option<String> {
        refuse_pair(self.all_states(), &config.name, config.rules.link_local_to.as_deref())
    }

    /// Serves vifs again once their panics are forgotten.
    fn release_expired(&mut self) {
        if self.host.release_expired(&mut self.machinery.notes) {
            let shared = &self.host.shared;
            self.vhosts.iter_mut().for_each(|vhost| vhost.check_quarantine(shared));
        }
    }

    /// Notes the watch events that have arrived.
    fn take_watches(&mut self) -> Result<Watches, Lost> {
        for _ in 0..EVENTS_MAX {
            match self.store.next_watch()? {
                Some(watched) => self.on(Event::Watch(watched))?,
                None => return Ok(Watches::Taken),
            }
        }
        Ok(Watches::More)
    }

    /// Notes the deferred work of vifs that is due, and returns how long the rest may wait, at most
    /// `pause_max`.
    fn note_due(&mut self, pause_max: Duration) -> Duration {
        let now = Instant::now();
        self.host.note_due(now);
        let due = self.vhosts.iter().filter_map(vhost::VhostVif::due);
        let due = due.chain(self.host.shared.comparison.due()).chain(self.host.due()).min();
        let pause = due.map(|due| due.saturating_duration_since(now));
        pause.map_or(pause_max, |pause| pause.min(pause_max))
    }

    /// Serves each virtio socket for one turn; returns whether there may be more to do.
    fn turn_vhosts(&mut self) -> io::Result<bool> {
        let mut has_more = false;
        for vhost in &mut self.vhosts {
            let mut hosting = self.machinery.hosting(&mut self.host.shared, Instant::now());
            has_more |= vhost.turn(&mut hosting)?;
            self.reports.liveness.beat();
        }
        Ok(has_more)
    }

    /// Serves vifs, each once, until none is left or the time is up. At least one is always served.
    fn serve_pending(&mut self) -> Result<(), Lost> {
        let started = Instant::now();
        let Backend { host, store, machinery, .. } = self;
        while host.turn(Instant::now(), &mut machinery.parts(store))? {
            self.reports.liveness.beat();
            if started.elapsed() >= TURNS_TIME {
                break;
            }
        }
        Ok(())
    }

    /// Handles queues that workers gave up.
    fn take_queues_down(&mut self) -> io::Result<()> {
        while let Some(down) = self.host.shared.next_report(&mut self.machinery.workers) {
            let port = down.port;
            let is_lost = self.vhosts.iter().any(|it| it.state.has_lost_device(port));
            if is_lost || self.uplink.as_ref().is_some_and(|uplink| uplink.has_lost_device(port)) {
                self.host.shared.comparison.note_change(Instant::now());
                continue;
            }
            let vif = self.host.vifs().find(|(_, vif)| vif.state.has_port(port));
            if let Some((vif, _)) = vif {
                self.on(Event::QueueDown(vif, down))?;
                continue;
            }
            let Backend { host, machinery, vhosts, uplink, .. } = self;
            let uplink = uplink.as_ref().filter(|uplink| uplink.port == port);
            if let Some(vhost) = vhosts.iter_mut().find(|it| it.state.has_port(port)) {
                let fault = format!("queue {}: {}", down.queue, down.reason);
                vhost.close(&mut machinery.hosting(&mut host.shared, Instant::now()), &fault);
            } else if let Some(uplink) = uplink {
                return Err(uplink.failure(&down.reason));
            }
        }
        Ok(())
    }
}

/// Whether there may be more watch events.
#[derive(Debug, PartialEq, Eq)]
enum Watches {
    Taken,
    More,
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
