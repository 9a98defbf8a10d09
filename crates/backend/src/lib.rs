//! The backend process: serves every vif that is assigned to its domain.
//!
//! It is one control thread around the workers. The thread watches XenStore for vifs, runs a
//! handshake with each guest, attaches the resulting queues, and serves the command line. What it
//! does about vifs is decided by [`Host`]; this crate is the process around it. Frames never
//! pass through it. All state of a backend can be recovered from XenStore and the shared rings, so
//! it may be killed and restarted at any time.

mod config;
mod control;
mod machinery;
mod opener;
mod orders;
mod plugger;
mod process;
mod reload;
mod sockets;
mod switch_process;
mod trunk;
mod vif_or_trunk;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use config::{BackendConfig, Common};
use ringway_control::Link as ControlLink;
use ringway_host::{
    Devices, Event, Host, Joining, Link, Purpose, Scope, SessionEventOf, UplinkPort, watch,
};
use ringway_host_shell::{Orders, Tenancy};
use ringway_hypervisor::Hypervisor;
use ringway_sys::poll::{self, Source, Turns, readable, take_turns};
use ringway_vif_shell::device::remove_stale_errors;
use ringway_xenbus::Vif;
use ringway_xenstore::{Client, Lost};
pub use sockets::Sockets;
pub use switch_process::run_switch;

use crate::machinery::Machinery;
use crate::process::{HOUSEKEEPING, Process, Token};
use crate::reload::Reloading;
use crate::trunk::attach_trunk;

/// How often housekeeping is done while nothing happens: it costs time for every vif.
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
    /// In the process of a tenant.
    orders: Option<Orders>,
    opener: Option<Arc<ControlLink>>,
    plugger: Option<Arc<ControlLink>>,
    /// Orders that the plugger was given; the number of the last one.
    port_orders: u64,
    reloading: Reloading,
    /// The time for which workers had worked at the last housekeeping.
    busy: Duration,
    process: Process<H>,
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
    let mut backend = Backend::begin(hypervisor, store, config, Scope::Domain, sockets)?;
    let Backend { host, process, .. } = &mut backend;
    let mut hosting = process.machinery.hosting(&mut host.shared);
    host.uplink = UplinkPort::open(process.config.uplink.as_ref(), &mut hosting)?;
    backend.start(&stop)
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
    let Tenancy { orders, trunk, carried, vifs } = tenancy;
    let of_xen = vifs.keys().filter_map(|purpose| match purpose {
        Purpose::Xen(vif) => Some(*vif),
        Purpose::Virtio(_) | Purpose::Uplink => None,
    });
    let scope = Scope::Only(of_xen.collect::<BTreeSet<Vif>>());
    let started = Backend::begin(hypervisor, store, config, scope, sockets)?;
    let mut backend = Backend { orders: Some(orders), ..started };
    let Backend { host, process, .. } = &mut backend;
    process.machinery.devices = Devices::Passed(vifs);
    let mut hosting = process.machinery.hosting(&mut host.shared);
    host.uplink = Some(attach_trunk(trunk, &carried, &mut hosting)?);
    backend.start(&stop)
}

impl<H: Hypervisor> Backend<H> {
    /// A backend that watches for its vifs, and has yet to serve them.
    fn begin(
        hypervisor: H,
        mut store: Client,
        config: BackendConfig,
        scope: Scope,
        sockets: Sockets,
    ) -> io::Result<Backend<H>> {
        let Sockets { control, net, opener, plugger, hangup } = sockets;
        let domid = hypervisor.domid();
        watch(&mut store, &scope, domid)?.map_err(io::Error::other)?;
        if scope == Scope::Domain {
            remove_stale_errors(&mut store, domid)?;
        }
        let (mut process, shared) = Process::start(hypervisor, config, control, net)?;
        if let Some(keeper) = process.machinery.devices.keeper() {
            keeper.joining = match plugger {
                Some(_) => Joining::Possible,
                None => Joining::WithoutVsctl,
            };
        }
        store.transport_mut().watch_by(process.reports.pulse());
        let (host, busy) = (Host::new(shared, scope), Duration::ZERO);
        let (reloading, port_orders) = (Reloading::on(hangup), 0);
        let orders = None;
        Ok(Backend { host, store, orders, opener, plugger, port_orders, reloading, busy, process })
    }

    /// Reads all existing vifs, then serves until `stop` becomes readable.
    fn start(mut self, stop: &impl AsFd) -> io::Result<()> {
        self.wait_for_vhosts()?;
        while self.host.has_turns() {
            self.serve_pending()?;
            self.process.reports.vifs(self.host.counts());
        }
        self.delete_stale_devices();
        self.process.reports.ready();
        take_turns(&mut self, stop)?;
        self.process.reports.stopping();
        self.leave_opener();
        Ok(())
    }

    /// Notes what has happened to vifs.
    fn on(&mut self, event: Event<SessionEventOf<Machinery<H>>>) -> Result<(), Lost> {
        let Backend { host, store, process, .. } = self;
        host.on(event, Instant::now(), &mut process.machinery.parts(store))
    }

    /// Does what is due from time to time, for all vifs.
    fn do_housekeeping(&mut self, now: Instant) {
        let Backend { host, store, process, .. } = self;
        host.housekeep(now, &mut process.machinery.parts(store));
        self.process.reports.vifs(self.host.counts());
        self.host.release_expired(&mut self.process.machinery.notes);
    }

    /// Deletes network devices of vifs that were removed while no backend ran, or that the
    /// description no longer names. A failure does not affect other vifs.
    fn delete_stale_devices(&mut self) {
        let Backend { host, process: Process { machinery, .. }, .. } = self;
        let is_kept = |purpose: &Purpose, link: &Link| host.needs_device(purpose, link);
        machinery.devices.delete_stale(is_kept, &mut machinery.notes);
    }

    /// Notes the watch events that have arrived; returns whether there may be more.
    fn take_watches(&mut self) -> Result<bool, Lost> {
        for _ in 0..EVENTS_MAX {
            let Some(watched) = self.store.next_watch()? else { return Ok(false) };
            self.on(Event::Watch(watched))?;
        }
        Ok(true)
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
        let Backend { host, store, process, .. } = self;
        let Process { machinery, reports, .. } = process;
        let count = host.virtio().len();
        for place in 0..count {
            has_more |= host.turn_virtio(place, Instant::now(), &mut machinery.parts(store))?;
            reports.beat();
        }
        Ok(has_more)
    }

    /// Serves vifs, each once, until none is left or the time is up. At least one is always served.
    fn serve_pending(&mut self) -> Result<(), Lost> {
        let started = Instant::now();
        let Backend { host, store, process, .. } = self;
        let Process { machinery, reports, .. } = process;
        while host.turn(Instant::now(), &mut machinery.parts(store))? {
            reports.beat();
            if started.elapsed() >= TURNS_TIME {
                break;
            }
        }
        Ok(())
    }

    /// Handles queues that workers gave up.
    fn take_queues_down(&mut self) -> io::Result<()> {
        while let Some(down) = self.host.shared.next_report(&mut self.process.machinery.workers) {
            let Host { uplink, shared, .. } = &mut self.host;
            let lost = uplink.as_ref().map(|uplink| uplink.lose(&down, shared, Instant::now()));
            if !lost.transpose()?.unwrap_or(false) {
                self.on(Event::QueueDown(down))?;
            }
        }
        Ok(())
    }
}

impl<H: Hypervisor> Turns for Backend<H> {
    type Token = Token;
    const STOP: Token = Token::Stop;

    fn turn(&mut self, ready: &[Token]) -> io::Result<Option<Duration>> {
        self.process.begin_turn(ready, &mut self.host.shared);
        self.take_queues_down()?;
        while let Some(call) = self.process.next_call(ready) {
            self.serve_call(call)?;
        }
        self.host.follow_ports();
        if ready.contains(&Token::Supervisor) {
            self.take_orders()?;
        }
        self.serve_pending()?;
        // Last, because all of the above uses XenStore, and an event that arrives together with
        // a reply does not make the descriptor readable.
        let mut has_more = self.take_watches()?;
        if ready.contains(&Token::Hangup) {
            self.order_reload()?;
        }
        if ready.contains(&Token::Opener) {
            self.serve_opener()?;
        }
        let Backend { host, store, process, .. } = self;
        host.follow_devices(Instant::now(), &mut process.machinery.parts(store));
        has_more |= self.turn_vhosts()?;
        // What has changed in this turn is one order.
        self.serve_plugger()?;
        let swept = self.process.rebalance();
        if let Some(swept) = swept {
            self.busy = self.process.machinery.workers.busy().sum();
            self.do_housekeeping(swept);
        }
        // What happens after the last housekeeping needs another.
        let pause_max = if swept.is_some() { IDLE_HOUSEKEEPING } else { HOUSEKEEPING };
        let pause = self.note_due(pause_max);
        has_more |= self.host.has_turns();
        Ok(Some(if has_more { Duration::ZERO } else { pause }))
    }

    fn sources(&self) -> Vec<Source<'_, Token>> {
        let mut sources = self.process.sources();
        sources.push(readable(Token::Store, &self.store));
        sources.extend(self.orders.iter().map(|orders| readable(Token::Supervisor, orders)));
        sources.extend(self.opener.iter().map(|opener| readable(Token::Opener, opener)));
        let plugger = self.plugger.iter();
        sources.extend(plugger.map(|plugger| readable(Token::Plugger, plugger)));
        sources.extend(self.reloading.waker().map(|waker| readable(Token::Hangup, waker)));
        let open = self.host.virtio().filter(|vif| !vif.is_closed());
        let sockets = open.filter_map(|vif| vif.session.waker());
        sources.extend(sockets.map(|(fd, events)| (Token::Session, fd, events)));
        sources
    }

    /// Waits also until workers have had more work than at the last housekeeping, which is checked
    /// the less often the longer it takes.
    fn wait(
        &self,
        sources: &[Source<'_, Token>],
        pause: Option<Duration>,
    ) -> io::Result<Vec<Token>> {
        let reports = &self.process.reports;
        let check_max = reports.beat_interval_max().unwrap_or(IDLE_CHECK_MAX);
        let (start, pause) = (Instant::now(), pause.unwrap_or(IDLE_HOUSEKEEPING));
        loop {
            let waited = start.elapsed();
            let check = HOUSEKEEPING.max(waited / 4).min(check_max).min(IDLE_CHECK_MAX);
            let rest = pause.saturating_sub(waited);
            let ready = poll::wait(sources, Some(rest.min(check)))?;
            reports.beat();
            let busy: Duration = self.process.machinery.workers.busy().sum();
            if !ready.is_empty() || rest <= check || busy != self.busy {
                return Ok(ready);
            }
        }
    }
}
