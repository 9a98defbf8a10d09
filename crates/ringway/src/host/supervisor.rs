//! Starts and supervises the processes of a host, and is their toolstack.
//!
//! One thread runs one loop, which waits for the end of a process, a change in XenStore, or the
//! signal that ends the host. It never waits for a single guest.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_emu::{EmuHypervisor, NewDomain, Role};
use ringway_net::{LinkSetting, Netlink};
use ringway_sys::hangup::Hangup;
use ringway_sys::namespace;
use ringway_sys::poll::wait_readable;
use ringway_sys::tun;
use ringway_terminal::stop::Stop;
use ringway_vif_shell::device;
use ringway_xenbus::{Vif, XenbusState};
use ringway_xenstore::{Client, DomId};
use rustix::thread::{CapabilitySet, capabilities};
use tracing::level_filters::LevelFilter;

use super::HypervisorKind;
use super::accepted::Keep;
use super::bridges::Bridges;
use super::claim::Claim;
use super::devices::{Ending, HostDevices, check_bridges, check_uplink};
use super::isolation::{self, Isolation};
use super::nodes;
use super::notices::Notices;
use super::process::{Process, ProcessRecord};
use super::progress::{Event, ReadyGuest, Show};
use super::reload::Reloads;
use crate::description::{Guest, Host, HostNetwork, OnExit};

/// How long the broker may take until it serves.
const BROKER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to hold back an error to find out whether the broker's end is its cause.
const BROKER_END_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the backend may take to release a guest that is gone.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process may take to end when asked: a guest closes its vifs with the backend first.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// A process that ends sooner than this after its start did not work at all.
const LIFE_MIN: Duration = Duration::from_secs(1);
/// Time until the next attempt when a process did not work at all.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How often the backend may be killed before the host is ready; more than that fails the start.
const EARLY_DEATHS_MAX: u64 = 3;

/// A running host. Dropping it ends everything at once; [`run`](Supervisor::run) does it in order.
///
/// Fields are dropped from first to last, so what is needed longest comes last.
pub(crate) struct Supervisor {
    guests: Vec<GuestSlot>,
    backend: Backends,
    store: Client,
    toolstack: EmuHypervisor,
    broker: Process,
    _devices: HostDevices,
    bridges: Bridges,
    notices: Notices,
    claim: Claim,
    host: Host,
    level: LevelFilter,
    show: Show,
    is_ready: bool,
}

/// The processes that serve the guests' vifs.
enum Backends {
    /// One process serves all of them.
    Together(Backend),
    /// One process serves each tenant.
    Isolated(Box<Isolation>),
}

struct Backend {
    process: Option<Process>,
    restarts: u64,
    /// When to start it, if it is not running.
    due: Instant,
}

impl Backend {
    fn new(process: Process) -> Backend {
        Backend { process: Some(process), restarts: 0, due: Instant::now() }
    }
}

struct GuestSlot {
    guest: Guest,
    state: GuestState,
    is_connected: bool,
}

impl GuestSlot {
    /// A guest that has not been started.
    fn new(guest: Guest) -> GuestSlot {
        GuestSlot { guest, state: GuestState::Gone, is_connected: false }
    }
}

/// The state of a guest.
enum GuestState {
    Running(DomId, Process),
    /// Its process is gone; the backend has until this time to release its vifs.
    Leaving(DomId, Instant),
    /// It is created again at this time.
    Waiting(Instant),
    Gone,
}

impl Supervisor {
    /// Starts a host in a directory. Must be called before this process starts a thread, as it may
    /// move into namespaces of its own.
    ///
    /// `ending` says which network devices go with it.
    pub(crate) fn start(
        mut host: Host,
        dir: &Path,
        level: LevelFilter,
        show: Show,
        ending: Ending,
    ) -> Result<Supervisor> {
        let claim = claim_dir(dir, &mut host, ending)?;
        let notices = Notices::open(claim.dir())?;
        let bridges = Bridges::make(&host.bridges)?;
        let devices = HostDevices::take(&host, dir, ending);
        let broker = start_broker(&claim, level)?;
        let toolstack = EmuHypervisor::connect(dir, nodes::BACKEND)
            .context("connect to the broker as domain 0")?;
        let mut store = Client::connect(&claim.dir().xenstore())?;
        nodes::make_host(&mut store)?;
        store.watch(&Vif::backend_root(nodes::BACKEND), "vifs")?;
        let backend = match host.is_isolated {
            true => {
                let setup = isolation::Setup {
                    dir: claim.dir().clone(),
                    hypervisor: HypervisorKind::Emulated,
                    domid: nodes::BACKEND,
                    level,
                    show,
                    host: host.clone(),
                };
                Backends::Isolated(Box::new(Isolation::start(setup, &mut store)?))
            }
            false => Backends::Together(Backend::new(start_backend(&claim, &notices, level)?)),
        };
        let mut supervisor = Supervisor {
            guests: host.guests.iter().cloned().map(GuestSlot::new).collect(),
            backend,
            store,
            toolstack,
            broker,
            _devices: devices,
            bridges,
            notices,
            claim,
            host,
            level,
            show,
            is_ready: false,
        };
        let count = supervisor.guests.len();
        let started = (0..count).try_for_each(|index| supervisor.start_guest(index));
        started.map_err(|error| supervisor.explain(error))?;
        Ok(supervisor)
    }

    /// Supervises the host until it should end, and ends it in order.
    ///
    /// The description that it was started with is kept, and taken, as soon as it serves.
    /// It is read again when a signal asks for that.
    pub(crate) fn run(
        mut self,
        (stop, hangup): (&Stop, Option<&Hangup>),
        accepted: &mut Option<Keep>,
    ) -> Result<()> {
        let outcome = self.run_until((stop, hangup), accepted);
        // A terminal or a service manager may signal all processes, and the broker may end first.
        if outcome.is_err() && !stop.wait(Duration::ZERO)? {
            return outcome.map_err(|error| self.explain(error));
        }
        tracing::info!("stopping {} guests, the backend and the broker", self.guests.len());
        self.end();
        Ok(())
    }

    fn run_until(
        &mut self,
        (stop, hangup): (&Stop, Option<&Hangup>),
        accepted: &mut Option<Keep>,
    ) -> Result<()> {
        self.record_processes()?;
        let mut reloads = Reloads::on(hangup, &self.host, self.claim.dir())?;
        loop {
            self.check_broker()?;
            self.check_backend()?;
            self.notices.pass_on(|| keep(accepted))?;
            self.note_connections(accepted)?;
            reloads.iter_mut().try_for_each(|reloads| self.serve_reloads(reloads))?;
            for index in 0..self.guests.len() {
                self.check_guest(index)?;
            }
            // A watch event that arrived together with one of the replies above does not make the
            // descriptor readable, and may report a change made after the node was read.
            if self.take_watches()? {
                continue;
            }
            let mut fds = vec![self.store.as_fd(), self.broker.as_fd(), self.notices.as_fd()];
            match &self.backend {
                Backends::Together(backend) => {
                    fds.extend(backend.process.as_ref().map(AsFd::as_fd));
                }
                Backends::Isolated(isolation) => fds.extend(isolation.wakers()),
            }
            fds.extend(self.guests.iter().filter_map(|slot| match &slot.state {
                GuestState::Running(_, process) => Some(process.as_fd()),
                _ => None,
            }));
            fds.extend(reloads.iter().flat_map(Reloads::wakers));
            let due = reloads.as_ref().and_then(Reloads::due);
            if stop.wait_beside(&fds, self.next_deadline(due))? {
                return Ok(());
            }
        }
    }

    /// Takes over a description that is read again.
    fn serve_reloads(&mut self, reloads: &mut Reloads<'_>) -> io::Result<()> {
        let Supervisor { backend, bridges, notices, host, claim, is_ready, .. } = self;
        match backend {
            Backends::Isolated(isolation) => reloads.serve_isolated(isolation),
            Backends::Together(_) => reloads.serve(*is_ready, notices, (host, bridges), claim),
        }
    }

    /// The cause of an error: the broker's end if it has ended, else the error itself.
    fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        // Its connections close a moment before it has ended.
        let _ = wait_readable(&self.broker, Some(BROKER_END_TIMEOUT));
        self.check_broker().err().unwrap_or(error)
    }

    /// Takes all watch events; true if there were any.
    fn take_watches(&mut self) -> Result<bool> {
        if let Backends::Isolated(isolation) = &mut self.backend {
            return isolation.take_watches(&mut self.store);
        }
        let mut is_any = false;
        while self.store.next_watch().context("the connection to XenStore was lost")?.is_some() {
            is_any = true;
        }
        Ok(is_any)
    }

    /// The time until the next deadline.
    fn next_deadline(&self, of_reload: Option<Instant>) -> Option<Duration> {
        let backend = match &self.backend {
            Backends::Together(backend) => backend.process.is_none().then_some(backend.due),
            Backends::Isolated(isolation) => Some(isolation.deadline()),
        };
        let guests = self.guests.iter().filter_map(|slot| match slot.state {
            GuestState::Leaving(_, due) | GuestState::Waiting(due) => Some(due),
            GuestState::Running(..) | GuestState::Gone => None,
        });
        let due = guests.chain(backend).chain(of_reload).min();
        due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    fn check_broker(&mut self) -> Result<()> {
        match self.broker.ended()? {
            Some(status) => bail!("the broker ended ({status}), which ends every domain"),
            None => Ok(()),
        }
    }

    fn check_backend(&mut self) -> Result<()> {
        let backend = match &mut self.backend {
            Backends::Together(backend) => backend,
            Backends::Isolated(isolation) => {
                isolation.poll(&mut self.store, self.is_ready)?;
                return if isolation.has_changed() { self.record_processes() } else { Ok(()) };
            }
        };
        if let Some(process) = &mut backend.process {
            let Some(status) = process.ended()? else { return Ok(()) };
            let is_young = process.started.elapsed() < LIFE_MIN;
            if !self.is_ready {
                fail_if_failed("backend", status)?;
                // The first process counts, too.
                let deaths = backend.restarts + 1;
                if deaths >= EARLY_DEATHS_MAX {
                    bail!("the backend ended {deaths} times ({status}) before the host was ready");
                }
            }
            tracing::warn!("the backend ended ({status}); restarting it");
            let pause = if is_young { RESTART_PAUSE } else { Duration::ZERO };
            backend.process = None;
            backend.due = Instant::now() + pause;
        }
        if backend.due > Instant::now() {
            return Ok(());
        }
        let process = start_backend(&self.claim, &self.notices, self.level)?;
        backend.restarts += 1;
        let (restarts, pid) = (backend.restarts, process.record().pid);
        backend.process = Some(process);
        self.record_processes()?;
        self.show.event(&Event::BackendRestarted { restarts, pid });
        Ok(())
    }

    fn check_guest(&mut self, index: usize) -> Result<()> {
        let Some(slot) = self.guests.get_mut(index) else { return Ok(()) };
        let now = Instant::now();
        let vifs = u32::try_from(slot.guest.vifs.len()).unwrap_or(u32::MAX);
        match &mut slot.state {
            GuestState::Running(domid, process) => {
                let Some(status) = process.ended()? else { return Ok(()) };
                let domid = *domid;
                if !self.is_ready {
                    let name = format!("guest {}", slot.guest.name);
                    fail_if_failed(&name, status)?;
                    // Without it the host would never be ready, and a new one may be killed as
                    // well, so the first end of a guest ends the start.
                    bail!("{name} ended ({status}) before the host was ready");
                }
                tracing::warn!("guest {} (domain {domid}) ended ({status})", slot.guest.name);
                slot.state = GuestState::Leaving(domid, now + RELEASE_TIMEOUT);
                slot.is_connected = false;
                nodes::request_release(&mut self.store, domid, vifs)?;
                self.show.event(&Event::GuestEnded { name: &slot.guest.name.0, domid: domid.0 });
                self.record_processes()?;
            }
            GuestState::Leaving(domid, due) => {
                let (domid, is_late) = (*domid, *due <= now);
                if !is_late && !nodes::is_released(&mut self.store, domid, vifs)? {
                    return Ok(());
                }
                if is_late {
                    tracing::warn!("the backend did not release domain {domid} in time");
                }
                slot.state = match slot.guest.on_exit {
                    OnExit::Destroy => GuestState::Gone,
                    OnExit::Restart => GuestState::Waiting(now + RESTART_PAUSE),
                };
                // Its process may change nothing in the run directory.
                let _ = fs::remove_file(self.claim.dir().guest(&slot.guest.name.0));
                self.remove_domain(domid)?;
            }
            GuestState::Waiting(due) if *due <= now => {
                self.start_guest(index)?;
                self.record_processes()?;
                if let Some(GuestSlot {
                    guest, state: GuestState::Running(domid, process), ..
                }) = self.guests.get(index)
                {
                    self.show.event(&Event::GuestStarted {
                        name: &guest.name.0,
                        domid: domid.0,
                        pid: process.record().pid,
                    });
                }
            }
            GuestState::Waiting(_) | GuestState::Gone => {}
        }
        Ok(())
    }

    fn start_guest(&mut self, index: usize) -> Result<()> {
        let Some(slot) = self.guests.get_mut(index) else { return Ok(()) };
        let (guest, name) = (&slot.guest, &slot.guest.name.0);
        let domid = self
            .toolstack
            .create_domain(NewDomain {
                domid: None,
                memory_bytes: guest.memory_mib << 20,
                role: Role::Guest,
            })
            .with_context(|| format!("create a domain for guest {name}"))?;
        let started = nodes::make_guest(&mut self.store, domid, guest)
            .with_context(|| format!("write the XenStore nodes of guest {name}"))
            .and_then(|()| {
                let dir = self.claim.dir().path().as_os_str();
                let number = domid.to_string();
                let arguments =
                    ["guest".as_ref(), "run".as_ref(), name.as_ref(), "--dir".as_ref(), dir];
                let arguments = arguments.into_iter().chain(["--domid".as_ref(), number.as_ref()]);
                Process::start(&format!("guest {name}"), self.level, arguments, Stdio::null())
            });
        match started {
            Ok(process) => {
                slot.state = GuestState::Running(domid, process);
                Ok(())
            }
            Err(error) => {
                self.remove_domain(domid)?;
                Err(error)
            }
        }
    }

    fn remove_domain(&mut self, domid: DomId) -> Result<()> {
        nodes::remove_guest(&mut self.store, domid)
            .with_context(|| format!("remove the XenStore nodes of domain {domid}"))?;
        self.toolstack.destroy_domain(domid).with_context(|| format!("destroy domain {domid}"))
    }

    /// Records which guests have connected, and reports when all of them have. The description is
    /// accepted by then, and kept.
    fn note_connections(&mut self, accepted: &mut Option<Keep>) -> Result<()> {
        for slot in &mut self.guests {
            let GuestState::Running(domid, _) = slot.state else { continue };
            let mut is_connected = true;
            for (handle, _) in (0..).zip(&slot.guest.vifs) {
                let vif = nodes::vif(domid, handle);
                is_connected = is_connected
                    && device::state(&mut self.store, &vif.backend_state())?
                        == XenbusState::Connected
                    && device::state(&mut self.store, &vif.frontend_state())?
                        == XenbusState::Connected;
            }
            if is_connected != slot.is_connected {
                let word = if is_connected { "is connected" } else { "is not connected" };
                tracing::info!("guest {} (domain {domid}) {word}", slot.guest.name);
                slot.is_connected = is_connected;
            }
        }
        let is_served = match &self.backend {
            Backends::Together(_) => self.notices.is_ready(),
            Backends::Isolated(isolation) => isolation.is_complete(),
        };
        if !self.is_ready && is_served && self.guests.iter().all(|slot| slot.is_connected) {
            self.is_ready = true;
            keep(accepted);
            let guests = self.guests.iter().filter_map(|slot| match &slot.state {
                GuestState::Running(domid, process) => Some(ReadyGuest {
                    name: &slot.guest.name.0,
                    domid: domid.0,
                    pid: process.record().pid,
                    addresses: slot
                        .guest
                        .vifs
                        .iter()
                        .flat_map(|vif| vif.addresses.iter().map(ToString::to_string))
                        .collect(),
                }),
                _ => None,
            });
            let dir = self.claim.dir().path().display().to_string();
            self.show.event(&Event::Ready { dir: &dir, guests: guests.collect() });
        }
        Ok(())
    }

    fn record_processes(&mut self) -> Result<()> {
        let mut processes = vec![
            ProcessRecord::of("ringway run", std::process::id())?,
            self.broker.record().clone(),
        ];
        match &self.backend {
            Backends::Together(backend) => {
                processes.extend(backend.process.as_ref().map(|process| process.record().clone()));
            }
            Backends::Isolated(isolation) => processes.extend(isolation.records()),
        }
        processes.extend(self.guests.iter().filter_map(|slot| match &slot.state {
            GuestState::Running(_, process) => Some(process.record().clone()),
            _ => None,
        }));
        self.claim.record(|state| state.processes = processes)
    }

    /// Ends guests, backend and broker, in this order; the rest is removed on drop.
    fn end(&mut self) {
        if let Backends::Isolated(isolation) = &mut self.backend {
            isolation.stopping();
        } else {
            self.notices.stopping();
        }
        let deadline = Instant::now() + END_TIMEOUT;
        let mut ending: Vec<&mut Process> = self
            .guests
            .iter_mut()
            .filter_map(|slot| match &mut slot.state {
                GuestState::Running(_, process) => Some(process),
                _ => None,
            })
            .collect();
        for process in &mut ending {
            process.terminate();
        }
        for process in ending {
            process.wait_or_kill(deadline);
        }
        let backend = match &mut self.backend {
            Backends::Together(backend) => backend.process.as_mut(),
            Backends::Isolated(isolation) => {
                isolation.end();
                None
            }
        };
        for process in backend.into_iter().chain([&mut self.broker]) {
            process.terminate();
            process.wait_or_kill(Instant::now() + END_TIMEOUT);
        }
        tracing::debug!(guests = self.host.guests.len(), "the host has ended");
    }
}

/// Takes the directory for this process, moves it into the host's namespaces, and records both.
fn claim_dir(dir: &Path, host: &mut Host, ending: Ending) -> Result<Claim> {
    let mut claim = Claim::take(dir)?;
    // The domains of this host are not those of an earlier one, even if their numbers are the
    // same.
    claim.forget_vifs();
    let network = enter_namespaces(host.network)?;
    let is_private = network == HostNetwork::Private;
    if is_private || ending == Ending::All {
        claim.forget_devices();
    }
    check_uplink(host, dir)?;
    check_bridges(host, network)?;
    if host.guests.iter().any(|guest| !guest.vifs.is_empty()) {
        // Without it a guest reports that in XenStore and stays, so the host would never be ready.
        tun::check_driver()?;
    }
    claim.write_description(host)?;
    let ours = ProcessRecord::of("ringway run", std::process::id())?;
    claim.record(|state| {
        state.processes = vec![ours];
        if !is_private {
            state.bridges = host.bridges.iter().map(|bridge| bridge.name.0.clone()).collect();
        }
    })?;
    Ok(claim)
}

/// Moves this process into the host's namespaces. Returns which network that is.
fn enter_namespaces(network: HostNetwork) -> Result<HostNetwork> {
    let is_root = rustix::process::geteuid().is_root();
    // A service may have this right and no other of root's.
    let may =
        |right| is_root || capabilities(None).is_ok_and(|sets| sets.effective.contains(right));
    if network == HostNetwork::Caller && may(CapabilitySet::NET_ADMIN) {
        return Ok(HostNetwork::Caller);
    }
    if !may(CapabilitySet::SYS_ADMIN) {
        namespace::enter_user_namespace()?;
    }
    namespace::unshare_network()?;
    Netlink::open()?.set("lo", &[LinkSetting::Up])?;
    Ok(HostNetwork::Private)
}

fn start_broker(claim: &Claim, level: LevelFilter) -> Result<Process> {
    let dir = claim.dir().path().as_os_str();
    let arguments = ["broker".as_ref(), "--dir".as_ref(), dir];
    let mut broker = Process::start("broker", level, arguments, Stdio::piped())?;
    let stdout = broker.stdout().context("the broker has no standard output")?;
    wait_readable(&stdout, Some(BROKER_TIMEOUT))?;
    // This does not block: there is either the word, or the end of the output of a process that is
    // gone.
    let mut word = String::new();
    if wait_readable(&stdout, Some(Duration::ZERO))? {
        BufReader::new(stdout).read_line(&mut word)?;
    }
    if word.trim() != super::BROKER_READY {
        bail!("the broker did not start; see the reason above");
    }
    Ok(broker)
}

fn start_backend(claim: &Claim, notices: &Notices, level: LevelFilter) -> Result<Process> {
    let dir = claim.dir().path().as_os_str();
    let arguments = ["backend".as_ref(), "--dir".as_ref(), dir];
    let (files, variable) = ([Stdio::null(), Stdio::null()], Some(notices.variable()));
    Process::start_in("backend", level, arguments, files, variable)
}

/// Before the host is ready, a process that gives up has a lasting reason.
fn fail_if_failed(name: &str, status: ExitStatus) -> Result<()> {
    match status.code() {
        Some(_) => bail!("{name} did not start; see the reason above"),
        None => Ok(()),
    }
}

/// Keeps the description that a host was started with, once.
fn keep(accepted: &mut Option<Keep>) {
    if let Some(accepted) = accepted.take() {
        accepted.keep();
    }
}
