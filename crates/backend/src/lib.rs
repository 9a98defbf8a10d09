//! The backend process: serves every vif that is assigned to its domain.
//!
//! It is one control thread around the workers. The thread watches XenStore for vifs, runs a
//! handshake with each guest ([`vif`]), attaches the resulting queues, and serves the command line.
//! Frames never pass through it. All state of a backend can be recovered from XenStore and the
//! shared rings, so it may be killed and restarted at any time.

mod applied;
mod capture;
mod config;
mod control;
mod device;
mod device_keeper;
mod inflight;
mod keeper;
mod links;
mod liveness;
mod mirrors;
mod notes;
mod opener;
mod orders;
mod policy;
mod purpose;
mod reports;
mod scope;
mod served;
mod service;
mod services;
mod serving;
mod sockets;
mod stale;
mod switch_process;
mod uplink;
mod vhost;
mod vif;
mod vif_or_trunk;
mod virtio_features;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

pub use capture::PcapngFile;
pub use config::{BackendConfig, Uplink, VhostVif};
pub use device::uplink_obstacle;
pub use device_keeper::{DeviceChange, DeviceKeeper, DeviceState};
pub use liveness::Liveness;
pub use purpose::Purpose;
use ringway_control::{BackendRequest, Call, ControlServer, ControlSocket, Link as ControlLink};
use ringway_host::{Charged, RoundRobin, VifEvents};
use ringway_hypervisor::Hypervisor;
use ringway_vif_shell::device::{read_keys, remove_error, remove_stale_errors, set_state};
use ringway_xenbus::backend::Input;
use ringway_xenbus::{KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{Client, Errno, Lost, Watched, or_refusal, unless_refused};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
pub use scope::Tenancy;
pub use service::{Report, Service};
pub use sockets::Sockets;
pub use stale::delete_devices;
pub use switch_process::run_switch;

use crate::device::Followed;
use crate::keeper::Devices;
use crate::reports::Reports;
use crate::scope::Scope;
use crate::services::{Hosting, Services};
use crate::uplink::UplinkPort;
use crate::vif::VifShell;

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
/// The token of the watch for new vifs.
const ROOT_TOKEN: &str = "vifs";

/// The state of a backend.
struct Backend<H: Hypervisor> {
    services: Services<H>,
    scope: Scope,
    vifs: BTreeMap<Vif, VifShell>,
    vhosts: Vec<vhost::VhostVif>,
    opener: Option<Arc<ControlLink>>,
    turns: RoundRobin,
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
    mut store: Client,
    config: BackendConfig,
    sockets: Sockets,
    stop: impl AsFd,
) -> io::Result<()> {
    let Sockets { control, net, opener } = sockets;
    let (wake, calls, _control) = serve_control(control)?;
    let root = Vif::backend_root(hypervisor.domid());
    match or_refusal(store.mkdir(&root))? {
        // In a driver domain, the toolstack may not have created the directory or granted access
        // yet.
        Err(refusal) if refusal.is(Errno::Acces) => {}
        made => made.map_err(io::Error::other)?,
    }
    or_refusal(store.watch(&root, ROOT_TOKEN))?.map_err(io::Error::other)?;
    remove_stale_errors(&mut store, hypervisor.domid())?;
    let reports = Reports::start(config.service.clone())?;
    store.transport_mut().watch_by(reports.liveness.pulse());
    let mut host = Hosting::start(hypervisor, config, net, &reports.liveness)?;
    let uplink = host.attach_uplink()?;
    let scope = Scope::Domain;
    let services = Services { store, host };
    let (vifs, vhosts, turns) = (BTreeMap::new(), Vec::new(), RoundRobin::default());
    let mut backend = Backend { services, scope, vifs, vhosts, opener, turns, uplink, reports };
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
    mut store: Client,
    config: BackendConfig,
    sockets: Sockets,
    tenancy: Tenancy,
    stop: impl AsFd,
) -> io::Result<()> {
    let Sockets { control, net, opener } = sockets;
    let (wake, calls, _control) = serve_control(control)?;
    let Tenancy { link, trunk, carried, vifs } = tenancy;
    let backend = hypervisor.domid();
    let passed = vifs.into_iter().map(|(vif, passed)| (Purpose::of_tenant(vif, backend), passed));
    let passed: BTreeMap<Purpose, _> = passed.collect();
    let of_xen = passed.keys().filter_map(|purpose| match purpose {
        Purpose::Xen(vif) => Some(*vif),
        Purpose::Virtio(_) | Purpose::Uplink => None,
    });
    let scope = Scope::of_tenant(&link, of_xen.clone());
    for vif in of_xen {
        or_refusal(store.watch(&vif.backend_dir(), ROOT_TOKEN))?.map_err(io::Error::other)?;
    }
    let reports = Reports::start(config.service.clone())?;
    store.transport_mut().watch_by(reports.liveness.pulse());
    let mut host = Hosting::start(hypervisor, config, net, &reports.liveness)?;
    host.devices = Devices::Passed(passed);
    let uplink = Some(host.attach_trunk(trunk, &carried)?);
    let services = Services { store, host };
    let (vifs, vhosts, turns) = (BTreeMap::new(), Vec::new(), RoundRobin::default());
    let mut backend = Backend { services, scope, vifs, vhosts, opener, turns, uplink, reports };
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
    /// Reads all existing vifs, then begins to serve.
    fn start(
        mut self,
        calls: &Receiver<Call<BackendRequest>>,
        wake: &OwnedFd,
        stop: impl AsFd,
    ) -> io::Result<()> {
        self.scan()?;
        while !self.turns.is_empty() {
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
            self.services.host.links.take_changes();
            self.take_port_events()?;
            while let Ok(call) = calls.try_recv() {
                self.serve_call(call)?;
            }
            self.update_mirrors();
            self.update_links();
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
                busy = self.services.host.workers.busy().sum();
                self.do_housekeeping(swept);
            }
            // What happens after the last housekeeping needs another.
            let pause_max = if is_due { IDLE_HOUSEKEEPING } else { HOUSEKEEPING };
            let pause = self.note_due(pause_max);
            let is_idle = watches == Watches::Taken && self.turns.is_empty() && !has_more;
            let pause = if is_idle { pause } else { Duration::ZERO };
            let mut fds = vec![
                PollFd::new(&self.services.store, PollFlags::IN),
                PollFd::new(&self.services.host.workers, PollFlags::IN),
                PollFd::new(wake, PollFlags::IN),
                PollFd::new(&stop, PollFlags::IN),
            ];
            let others = self.services.host.links.waker().into_iter().chain(self.scope.waker());
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

    /// Does what is due from time to time, for all vifs.
    fn do_housekeeping(&mut self, now: Instant) {
        let host = &mut self.services.host;
        host.switch.expire(host.ticks());
        if let Some(moved) = host.workers.rebalance() {
            tracing::debug!(?moved, "queue moved to another worker");
        }
        let xen = self.vifs.values_mut().map(|shell| &mut shell.served);
        for served in xen.chain(self.vhosts.iter_mut().map(|vhost| &mut vhost.served)) {
            served.assign_refused(host);
            served.log_refusals(host, now);
        }
        self.vhosts.iter_mut().for_each(vhost::VhostVif::log_unshared);
        self.report_counts();
        self.release_expired();
    }

    /// Follows what has become of the network devices of this process.
    fn follow_links(&mut self) {
        if !self.services.host.links.is_due() {
            return;
        }
        let Backend { services: Services { host, .. }, vifs, vhosts, uplink, .. } = self;
        let has_devices = uplink.as_ref().is_some_and(UplinkPort::has_device)
            || vifs.values().any(|shell| shell.served.device.is_some())
            || vhosts.iter().any(|vhost| vhost.served.device.is_some());
        host.follow_links(has_devices, |now, host| {
            let shells = vifs.values_mut().map(|shell| &mut shell.served);
            let all = shells.chain(vhosts.iter_mut().map(|vhost| &mut vhost.served));
            let all = all.map(|served| served.follow_device(now, host)).max();
            let of_uplink = uplink.as_mut().map(|uplink| uplink.follow_device(now, host));
            all.max(of_uplink).unwrap_or(Followed::Done)
        });
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
            if self.services.host.workers.busy().sum::<Duration>() != busy {
                return Ok(());
            }
        }
    }

    /// Vifs of all kinds.
    pub(crate) fn all_served(&self) -> impl Iterator<Item = &served::Served> {
        let vifs = self.vifs.values().map(|shell| &shell.served);
        vifs.chain(self.vhosts.iter().map(|vhost| &vhost.served))
    }

    /// Reads every existing vif, and every vif that was known.
    fn scan(&mut self) -> Result<(), Lost> {
        let backend = self.services.host.hypervisor.domid();
        let root = Vif::backend_root(backend);
        let mut vifs: BTreeSet<Vif> = self.vifs.keys().copied().collect();
        match &self.scope {
            Scope::Tenant { vifs: ours, .. } => vifs.extend(ours),
            Scope::Domain => {
                for guest in list(&mut self.services.store, &root)? {
                    for handle in list(&mut self.services.store, &format!("{root}/{guest}"))? {
                        vifs.extend(Vif::from_backend_path(&format!("{root}/{guest}/{handle}")));
                    }
                }
            }
        }
        for vif in vifs {
            self.turns.note(vif, |events| events.has_device_changed = true);
        }
        Ok(())
    }

    /// Serves vifs again once their panics are forgotten.
    fn release_expired(&mut self) {
        let host = &mut self.services.host;
        if !host.quarantine.expire(&mut host.notes) {
            return;
        }
        let vifs: Vec<Vif> = self.vifs.keys().copied().collect();
        for vif in vifs {
            self.restart_if_released(vif);
        }
        let host = &self.services.host;
        self.vhosts.iter_mut().for_each(|vhost| vhost.check_quarantine(host));
    }

    /// Serves a vif that is no longer quarantined.
    pub(crate) fn restart_if_released(&mut self, vif: Vif) {
        let is_released = self.services.host.quarantine.reason(&Charged::Xen(vif)).is_none();
        let is_it = |shell: &VifShell| shell.served.is_quarantined && is_released;
        if self.vifs.get(&vif).is_some_and(is_it) {
            self.vifs.remove(&vif);
            self.turns.note(vif, |events| events.has_device_changed = true);
        }
    }

    /// Notes the watch events that have arrived.
    fn take_watches(&mut self) -> Result<Watches, Lost> {
        let mut must_scan = false;
        let mut watches = Watches::More;
        for _ in 0..EVENTS_MAX {
            match self.services.store.next_watch()? {
                Some(Watched::Node(event)) if event.token == ROOT_TOKEN => {
                    match Vif::from_backend_path(&event.path) {
                        Some(vif) => self.note_device(vif, &event.path),
                        None => must_scan = true,
                    }
                }
                Some(Watched::Node(event)) => {
                    if let Some(vif) = Vif::from_backend_path(&event.token) {
                        self.turns.note(vif, |events| events.has_frontend_changed = true);
                    }
                }
                Some(Watched::Overflow) => {
                    // Any vif may have been added, changed or removed.
                    must_scan = true;
                    for vif in self.vifs.keys() {
                        self.turns.note(*vif, |events| events.has_frontend_changed = true);
                    }
                }
                None => {
                    watches = Watches::Taken;
                    break;
                }
            }
        }
        if must_scan {
            self.scan()?;
            watches = Watches::More;
        }
        Ok(watches)
    }

    /// Notes a change in a backend's directory, perhaps one of our own.
    fn note_device(&mut self, vif: Vif, path: &str) {
        // Our own writes cause events as well: only the toolstack's writes count.
        if !self.vifs.contains_key(&vif) || vif.is_toolstacks(path) {
            self.turns.note(vif, |events| events.has_device_changed = true);
        } else if path == vif.backend_state() {
            self.turns.note(vif, |events| events.was_own_state_written = true);
        }
    }

    /// Notes the deferred work of vifs that is due, and returns how long the rest may wait, at most
    /// `pause_max`.
    fn note_due(&mut self, pause_max: Duration) -> Duration {
        let now = Instant::now();
        let mut pause = pause_max;
        for (vif, shell) in &self.vifs {
            match shell.due() {
                Some(due) if due <= now => self.turns.note(*vif, |events| events.is_due = true),
                Some(due) => pause = pause.min(due.saturating_duration_since(now)),
                None => {}
            }
        }
        let due = self.vhosts.iter().filter_map(vhost::VhostVif::due);
        let due = due.chain(self.services.host.links.due()).min();
        due.map_or(pause, |due| pause.min(due.saturating_duration_since(now)))
    }

    /// Serves each virtio socket for one turn; returns whether there may be more to do.
    fn turn_vhosts(&mut self) -> io::Result<bool> {
        let mut has_more = false;
        for vhost in &mut self.vhosts {
            has_more |= vhost.turn(&mut self.services.host, Instant::now())?;
            self.reports.liveness.beat();
        }
        Ok(has_more)
    }

    /// Serves vifs, each once, until none is left or the time is up. At least one is always served.
    fn serve_pending(&mut self) -> Result<(), Lost> {
        let started = Instant::now();
        while let Some((vif, events)) = self.turns.next() {
            self.take_turn(vif, events)?;
            self.reports.liveness.beat();
            if started.elapsed() >= TURNS_TIME {
                break;
            }
        }
        Ok(())
    }

    fn take_turn(&mut self, vif: Vif, events: VifEvents) -> Result<(), Lost> {
        let was_forged = events.was_own_state_written && self.is_state_foreign(vif)?;
        if events.has_device_changed || was_forged {
            self.device_changed(vif)?;
        }
        let Some(shell) = self.vifs.get_mut(&vif) else { return Ok(()) };
        if events.has_frontend_changed {
            shell.frontend_changed(&mut self.services)?;
        }
        if events.is_due {
            shell.resume(&mut self.services)?;
        }
        Ok(())
    }

    fn is_state_foreign(&mut self, vif: Vif) -> Result<bool, Lost> {
        let Some(shell) = self.vifs.get(&vif) else { return Ok(false) };
        shell.is_state_foreign(&mut self.services)
    }

    /// Handles a vif that the toolstack has created, changed or removed.
    fn device_changed(&mut self, vif: Vif) -> Result<(), Lost> {
        let read = read_keys(&mut self.services.store, &vif.backend_dir(), KeySet::BackendDevice);
        // Treat a directory that we may not read, or another process's vif, as absent.
        let keys = unless_refused(read, None)?.filter(|_| self.scope.has(vif));
        if let Some(shell) = self.vifs.get_mut(&vif) {
            // Only the toolstack that creates the vif writes this state. If it writes its keys one
            // by one, that may be after our offer, which the frontend then never sees.
            let is_made_again = keys
                .as_ref()
                .is_some_and(|keys| keys.is_online() && keys.state() == XenbusState::Initialising);
            match is_made_again && shell.state() != XenbusState::Initialising {
                true => shell.feed(Input::Gone, &mut self.services)?,
                false => shell.device_changed(keys.as_ref(), &mut self.services)?,
            }
            self.drop_if_finished(vif);
            if !is_made_again {
                return Ok(());
            }
        }
        match keys {
            // The toolstack writes the state last.
            Some(keys) if keys.is_online() && keys.state() != XenbusState::Unknown => {
                if !self.vifs.contains_key(&vif) {
                    let shell = VifShell::begin(vif, &keys, &mut self.services)?;
                    self.vifs.insert(vif, shell);
                }
                Ok(())
            }
            Some(keys) => self.close_unwanted(vif, &keys),
            None => remove_error(&mut self.services.store, vif),
        }
    }

    /// Handles a vif whose keys are incomplete, or that is being removed. The toolstack may be
    /// waiting for an earlier backend, which has ended, to close it.
    fn close_unwanted(&mut self, vif: Vif, keys: &Keys) -> Result<(), Lost> {
        remove_error(&mut self.services.store, vif)?;
        if keys.state().is_gone() || keys.state() == XenbusState::Initialising {
            return Ok(());
        }
        let node = vif.backend_state();
        let closed = set_state(&mut self.services.store, &node, XenbusState::Closed);
        unless_refused(closed, ())
    }

    fn drop_if_finished(&mut self, vif: Vif) {
        if self.vifs.get(&vif).is_some_and(VifShell::is_finished) {
            if let Some(shell) = self.vifs.remove(&vif) {
                shell.remove_device(&mut self.services.host);
            }
            let host = &mut self.services.host;
            host.quarantine.release(&vif.into(), &mut host.notes);
        }
    }

    /// Handles queues that workers gave up.
    fn take_port_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.services.host.next_port_event() {
            let (port, reason) = (event.port_id, event.down.to_string());
            let is_lost = self.all_served().any(|served| served.has_lost_device(port));
            if is_lost || self.uplink.as_ref().is_some_and(|uplink| uplink.has_lost_device(port)) {
                self.services.host.links.note_change();
                continue;
            }
            let shell = self.vifs.values_mut().find(|shell| shell.has_port(event.port_id));
            let uplink = self.uplink.as_ref().filter(|uplink| uplink.port == event.port_id);
            // Drops the port, which unmaps its rings.
            drop(event.queue);
            if let Some(shell) = shell {
                let fault = format!("queue {}: {reason}", event.queue_index);
                shell.feed(Input::PeerFault(fault), &mut self.services)?;
            } else if let Some(vhost) = self.vhosts.iter_mut().find(|it| it.served.has_port(port)) {
                let fault = format!("queue {}: {reason}", event.queue_index);
                vhost.close(&mut self.services.host, &fault);
            } else if let Some(uplink) = uplink {
                return Err(uplink.failure(&reason));
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

/// The entries of a directory; empty if it does not exist or may not be read.
fn list(store: &mut Client, dir: &str) -> Result<Vec<String>, Lost> {
    unless_refused(store.directory(dir), Vec::new())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
