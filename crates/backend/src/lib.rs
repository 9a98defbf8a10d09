//! The backend process: serves every vif that is assigned to its domain.
//!
//! It is one control thread around the workers. The thread watches XenStore for vifs, runs a
//! handshake with each guest, attaches the resulting queues, and serves the command line. What it
//! does about vifs is decided by [`Host`]; this crate is the process around it. Frames never
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
mod session;
mod sockets;
mod switch_process;
mod uplink;
mod vif_or_trunk;

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
pub use ringway_host::{
    DeviceChange, DeviceState, Purpose, Uplink, VirtioWanted, delete_devices, uplink_obstacle,
};
use ringway_host::{Devices, Event, Followed, Host, Link, Scope, SessionEventOf, Shared, watch};
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
            let open = self.host.virtio().filter(|vif| !vif.is_closed());
            let sockets = open.filter_map(|vif| vif.session.waker());
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

    /// Notes what has happened to vifs.
    fn on(&mut self, event: Event<SessionEventOf<Machinery<H>>>) -> Result<(), Lost> {
        let Backend { host, store, machinery, .. } = self;
        host.on(event, Instant::now(), &mut machinery.parts(store))
    }

    /// Does what is due from time to time, for all vifs.
    fn do_housekeeping(&mut self, now: Instant) {
        if let Some(moved) = self.machinery.workers.rebalance() {
            tracing::debug!(?moved, "queue moved to another worker");
        }
        let Backend { host, store, machinery, .. } = self;
        host.housekeep(now, &mut machinery.parts(store));
        self.report_counts();
        self.host.release_expired(&mut self.machinery.notes);
    }

    /// Follows what has become of the network devices of this process.
    fn follow_links(&mut self) {
        let now = Instant::now();
        let has_uplink = self.uplink.as_ref().is_some_and(UplinkPort::has_device);
        let Backend { host, store, machinery, uplink, .. } = self;
        host.follow_all(has_uplink, now, &mut machinery.parts(store), |links, hosting| {
            let followed = uplink.as_mut().map(|it| it.follow_device(links, hosting));
            followed.unwrap_or(Followed::Done)
        });
    }

    /// Deletes network devices of vifs that were removed while no backend ran, or that the
    /// description no longer names. A failure does not affect other vifs.
    fn delete_stale_devices(&mut self) {
        let Backend { host, machinery, uplink, .. } = self;
        let is_kept = |purpose: &Purpose, link: &Link| match purpose {
            Purpose::Uplink => uplink.is_some(),
            purpose => host.needs_device(purpose, link),
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

    /// Updates the switch's mirrors and pairs to the present ports.
    fn follow_ports(&self) {
        let uplink = self.uplink.as_ref().map(|uplink| (uplink.name.as_str(), uplink.port));
        self.host.follow_ports(uplink);
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
        let due = self.host.shared.comparison.due().into_iter().chain(self.host.due()).min();
        let pause = due.map(|due| due.saturating_duration_since(now));
        pause.map_or(pause_max, |pause| pause.min(pause_max))
    }

    /// Serves each virtio socket for one turn; returns whether there may be more to do.
    fn turn_vhosts(&mut self) -> io::Result<bool> {
        let mut has_more = false;
        let Backend { host, store, machinery, .. } = self;
        let count = host.virtio().len();
        for place in 0..count {
            has_more |= host.turn_virtio(place, Instant::now(), &mut machinery.parts(store))?;
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
            let uplink = self.uplink.as_ref().filter(|uplink| uplink.port == down.port);
            match uplink {
                None => self.on(Event::QueueDown(down))?,
                Some(uplink) if uplink.has_lost_device(down.port) => {
                    self.host.shared.comparison.note_change(Instant::now());
                }
                Some(uplink) => return Err(uplink.failure(&down.reason)),
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
