//! An isolated backend: the switch process, a process for each tenant, and their supervisor.
//!
//! [`Isolation`] starts and restarts the processes, creates the trunks between them, and assigns
//! each vif to its tenant. It moves no frame. A tenant's process that ends, hangs or breaks the
//! protocol of its trunk is replaced, and no other process notices; when the switch process ends,
//! all are replaced. Read [`Isolation::poll`] first.

mod additions;
mod child;
mod fanout;
mod outbox;
mod passing;
mod reload;
mod roster;
mod silence;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_control::{
    Permitted, Recipient, Reports, RunDir, SwitchOrder, TenantOrder, TenantStatus, TrunkRules,
};
use ringway_description::{Host, TenantName, Vhost};
use ringway_host::Purpose;
use ringway_host_shell::DeviceKeeper;
use ringway_trunk::{End, QUEUES_MAX, Trunk};
use ringway_xenstore::{Client, DomId, Watched};
use tracing::level_filters::LevelFilter;

use self::additions::Additions;
use self::child::{Child, ChildEvent};
pub(super) use self::fanout::ask_within;
use self::fanout::{Fanout, Respondents};
use self::reload::Reload;
use self::roster::{Change, Defaults, Roster};
use super::HypervisorKind;
use super::devices::owner;
use super::process::{Process, ProcessRecord};
use super::progress::{Event, Show};
use crate::vhosts;

/// Tenants of one host.
const TENANTS_MAX: usize = 512;
/// Watch events that are taken at a time, before other work.
const EVENTS_MAX: usize = 1024; // not a limit: a batch, the rest follows
/// How long processes may take to end when asked.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Processes that may end before the host is ready; more than that counts as a failed start.
const EARLY_DEATHS_MAX: u64 = 3; // not a limit: a start that fails

/// What an isolated backend is started with.
pub(crate) struct Setup {
    pub(crate) dir: RunDir,
    pub(crate) hypervisor: HypervisorKind,
    /// The domain whose vifs the backend serves.
    pub(crate) domid: DomId,
    pub(crate) level: LevelFilter,
    pub(crate) show: Show,
    /// The description.
    pub(crate) host: Host,
}

/// The processes of an isolated backend. Dropping it ends them at once.
pub(crate) struct Isolation {
    setup: Setup,
    /// Queues of each trunk.
    queues: u16,
    fanout: Fanout,
    additions: Additions,
    /// A description that is being taken over.
    reload: Option<Reload>,
    roster: Roster,
    devices: DeviceKeeper,
    tenants: BTreeMap<TenantName, Tenant>,
    /// Processes of tenants whose last vif is gone.
    leaving: Vec<Leaving>,
    switch: Child,
    reports: Reports,
    /// The processes that ran at the last call of `has_changed`.
    pids: Vec<u32>,
    /// Whether network devices of vifs that an earlier host served may still exist.
    must_sweep: bool,
}

/// A process that was asked to end. Without its link it would report that its supervisor is gone.
struct Leaving {
    name: TenantName,
    child: Child,
    deadline: Instant,
}

struct Tenant {
    child: Child,
    /// The other end of its trunk, until the switch process has it.
    trunk: Option<End>,
    /// What its trunk carries, as its process knows it.
    carried: TrunkRules,
    /// Whether the switch process moves its frames.
    is_attached: bool,
    /// Whether it ever moved them, or its process has ended.
    has_begun: bool,
    /// Whether its process has another one that opens the sockets of virtio vifs.
    has_opener: bool,
}

impl Isolation {
    /// Starts the switch process; tenants follow as vifs are found. If the service manager wants
    /// keep-alive messages, the watchdog monitors the calling thread from now on.
    ///
    /// # Errors
    /// What the system reports.
    pub(crate) fn start(setup: Setup, store: &mut Client) -> Result<Isolation> {
        // Each queue of a network device is an open file.
        ringway_sys::process::raise_open_files_limit()?;
        let (host, defaults) = (&setup.host, Defaults::of(&setup.host));
        let queues = host.trunk_queues()?.min(QUEUES_MAX);
        let fanout = Fanout::start(&setup.dir)?;
        let mut additions = Additions::start(&setup.dir)?;
        let owner = owner(setup.dir.path());
        let mut devices = DeviceKeeper::open(&setup.dir, &owner, defaults.queues_max)?;
        let mut roster = Roster::new(setup.domid, defaults);
        let added = additions.keep(|vhost| refuse_kept(host, vhost));
        for vhost in host.vhosts.iter().chain(added) {
            roster.add_vhost(vhost);
            devices.make_virtio(&vhosts::config(vhost));
        }
        let switch = Child::new("switch".to_owned());
        let recipient = Recipient::from_env().with_notice(host.notice().as_deref());
        let reports = Reports::start(recipient)?;
        store.transport_mut().watch_by(reports.pulse());
        let mut isolation = Isolation {
            setup,
            queues,
            fanout,
            additions,
            reload: None,
            roster,
            devices,
            tenants: BTreeMap::new(),
            leaving: Vec::new(),
            switch,
            reports,
            pids: Vec::new(),
            must_sweep: true,
        };
        isolation.start_switch()?;
        let tenants: Vec<TenantName> = isolation.roster.tenants_of_vhosts().cloned().collect();
        for name in tenants {
            isolation.add_tenant(&name);
            isolation.allow(&name);
        }
        Ok(isolation)
    }

    /// Takes all watch events below the backend's root; true if there were any.
    ///
    /// # Errors
    /// If the connection to XenStore was lost.
    pub(crate) fn take_watches(&mut self, store: &mut Client) -> Result<bool> {
        for count in 0..EVENTS_MAX {
            match store.next_watch().context("the connection to XenStore was lost")? {
                Some(Watched::Node(event)) => self.roster.note(&event.path),
                Some(Watched::Overflow) => self.roster.note_all(),
                None => return Ok(count > 0),
            }
        }
        Ok(true)
    }

    /// Does all pending work. `is_host_ready` says whether all processes have served before: until
    /// then a process that gives up is an error.
    ///
    /// # Errors
    /// If the connection to XenStore was lost, or a process cannot be started.
    pub(crate) fn poll(&mut self, store: &mut Client, is_host_ready: bool) -> Result<()> {
        self.reports.beat();
        for change in self.roster.poll(store)? {
            self.apply(change);
        }
        if std::mem::take(&mut self.must_sweep) {
            self.devices.delete_stale(|purpose| match purpose {
                Purpose::Xen(vif) => self.roster.has(*vif),
                Purpose::Virtio(_) => false,
                // The switch process removes what it does not need.
                Purpose::Uplink => true,
            });
        }
        self.follow_devices();
        let now = Instant::now();
        self.reap_leaving(now)?;
        self.supervise_switch(now, is_host_ready)?;
        let names: Vec<TenantName> = self.tenants.keys().cloned().collect();
        for name in names {
            self.supervise_tenant(&name, store, now, is_host_ready)?;
        }
        self.serve_reload();
        self.serve_additions();
        while let Some(call) = self.fanout.next_call() {
            let respondents = self.respondents();
            self.fanout.serve(call, respondents);
        }
        self.report();
        Ok(())
    }

    /// Whether the switch process moves the frames of all tenants.
    pub(crate) fn is_complete(&self) -> bool {
        self.tenants.values().all(|tenant| tenant.is_attached)
    }

    /// Descriptors that are readable when there is something to read.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let tenants = self.tenants.values().flat_map(|tenant| tenant.child.wakers());
        let leaving = self.leaving.iter().filter_map(|leaving| leaving.child.end());
        let ours =
            [self.fanout.as_fd(), self.additions.as_fd()].into_iter().chain(self.switch.wakers());
        let ours = ours.chain([self.devices.waker()]);
        ours.chain(tenants).chain(leaving)
    }

    /// When to call [`poll`](Isolation::poll) next, even if no descriptor becomes readable.
    pub(crate) fn deadline(&self) -> Instant {
        let tenants = self.tenants.values().map(|tenant| tenant.child.deadline());
        let turn = self.reports.beat_interval_max().map(|time| Instant::now() + time);
        let leaving = self.leaving.iter().map(|leaving| leaving.deadline);
        let first = tenants.chain(turn).chain(leaving).chain(self.devices.due());
        let of_reload = self.reload.as_ref().and_then(Reload::due);
        let first = first.chain(self.additions.due()).chain(of_reload).min();
        first.map_or(self.switch.deadline(), |first| first.min(self.switch.deadline()))
    }

    /// Whether the set of running processes has changed since the last call.
    pub(crate) fn has_changed(&mut self) -> bool {
        let pids: Vec<u32> = self.records().map(|record| record.pid).collect();
        std::mem::replace(&mut self.pids, pids.clone()) != pids
    }

    /// The processes that run.
    pub(crate) fn records(&self) -> impl Iterator<Item = ProcessRecord> {
        let tenants = self.tenants.values().filter_map(|tenant| tenant.child.record());
        self.switch.record().into_iter().chain(tenants).cloned()
    }

    /// The host is about to end: stops the watchdog of this thread and informs the service manager,
    /// so that processes may take their time.
    pub(crate) fn stopping(&mut self) {
        self.reports.stopping();
    }

    /// Ends the tenants' processes, then the switch process, each in order. Call it after
    /// [`stopping`](Isolation::stopping).
    pub(crate) fn end(&mut self) {
        let mut ending: Vec<&mut Process> =
            self.tenants.values_mut().filter_map(|tenant| tenant.child.process_mut()).collect();
        ending.iter_mut().for_each(|process| process.terminate());
        let deadline = Instant::now() + END_TIMEOUT;
        ending.into_iter().for_each(|process| process.wait_or_kill(deadline));
        self.leaving.clear();
        if let Some(process) = self.switch.process_mut() {
            process.terminate();
            process.wait_or_kill(Instant::now() + END_TIMEOUT);
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Added(name, vif, keys) => {
                if !self.tenants.contains_key(&name) && self.tenants.len() >= TENANTS_MAX {
                    let dir = vif.backend_dir();
                    tracing::error!(dir, "not served: there are {TENANTS_MAX} tenants");
                    return;
                }
                self.add_tenant(&name);
                // Its rules hold before its first frame.
                self.allow(&name);
                self.devices.make(vif, &keys);
                self.serve(&name, &Purpose::Xen(vif));
            }
            Change::Keys(name, vif, keys) => self.update_device(&name, vif, &keys),
            Change::Removed(name, vif) => {
                self.forget(&name, &Purpose::Xen(vif));
                self.allow(&name);
                if !self.roster.has_any(&name) {
                    self.dismiss(&name);
                }
            }
            Change::Rules(name) => self.allow(&name),
        }
    }

    /// Has a tenant be served, if it is not yet.
    fn add_tenant(&mut self, name: &TenantName) {
        self.tenants.entry(name.clone()).or_insert_with(|| Tenant {
            child: Child::new(format!("tenant {name}")),
            trunk: None,
            carried: TrunkRules::default(),
            is_attached: false,
            has_begun: false,
            has_opener: false,
        });
    }

    /// Sends the addresses that a tenant may use, and what its trunk carries, to the switch process
    /// and the tenant's, where each has been started and attached.
    fn allow(&mut self, name: &TenantName) {
        let permitted = self.roster.permitted(name);
        let carried = permitted.trunk.clone();
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let before = std::mem::replace(&mut tenant.carried, carried.clone());
        if before.vlans.is_empty() != carried.vlans.is_empty() && tenant.child.record().is_some() {
            // A trunk without VLANs carries frames unchanged, guests' own tags included. If one end
            // still did so and the other did not, a guest could choose its VLAN. So both ends are
            // replaced.
            tracing::info!("tenant {name}: its use of VLANs changed; replacing its process");
            return self.replace(name);
        }
        self.switch.send(&SwitchOrder::Allow { tenant: name.to_string(), permitted }, &[]);
        if before != carried {
            tenant.child.order(&TenantOrder::Trunk(carried), Vec::new());
        }
    }

    /// Replaces the process of a tenant, together with its trunk.
    fn replace(&mut self, name: &TenantName) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.child.replace();
        tenant.trunk = None;
        tenant.is_attached = false;
        self.switch.send(&SwitchOrder::Detach { tenant: name.to_string() }, &[]);
    }

    /// Ends a tenant whose last vif is gone.
    fn dismiss(&mut self, name: &TenantName) {
        let Some(tenant) = self.tenants.remove(name) else { return };
        self.switch.send(&SwitchOrder::Detach { tenant: name.to_string() }, &[]);
        let mut child = tenant.child;
        let Some(process) = child.process_mut() else {
            return remove_files_of(&self.setup.dir, name);
        };
        process.terminate();
        let deadline = Instant::now() + END_TIMEOUT;
        self.leaving.push(Leaving { name: name.clone(), child, deadline });
    }

    /// Collects processes of tenants without vifs, and kills those that have taken too long to end.
    fn reap_leaving(&mut self, now: Instant) -> Result<()> {
        for mut leaving in std::mem::take(&mut self.leaving) {
            let is_back = self.tenants.contains_key(&leaving.name);
            let has_ended = match leaving.child.process_mut() {
                Some(process) => process.ended()?.is_some(),
                None => true,
            };
            if !has_ended && leaving.deadline > now && !is_back {
                self.leaving.push(leaving);
                continue;
            }
            let Leaving { name, child, .. } = leaving;
            drop(child);
            remove_files_of(&self.setup.dir, &name);
        }
        Ok(())
    }

    fn supervise_switch(&mut self, now: Instant, is_host_ready: bool) -> Result<()> {
        for happened in self.switch.poll(now)? {
            match happened {
                ChildEvent::Ready => {
                    let names: Vec<TenantName> = self.tenants.keys().cloned().collect();
                    names.iter().for_each(|name| self.attach(name));
                }
                ChildEvent::Attached { tenant } => {
                    if let Some(tenant) = self.tenants.get_mut(&TenantName(tenant)) {
                        tenant.is_attached = true;
                        tenant.has_begun = true;
                    }
                }
                ChildEvent::CutOff { tenant, reason } => {
                    let name = TenantName(tenant);
                    if let Some(tenant) = self.tenants.get_mut(&name) {
                        tenant.child.kill(&format!("it was cut off: {reason}"));
                    }
                }
                ChildEvent::Ended { status, has_given_up } => {
                    let deaths = self.switch.restarts() + 1;
                    fail_early(is_host_ready, "switch", &status, has_given_up, deaths)?;
                    tracing::warn!(
                        "the switch process ended ({status}); starting all processes again"
                    );
                    for tenant in self.tenants.values_mut() {
                        tenant.child.replace();
                        tenant.trunk = None;
                        tenant.is_attached = false;
                    }
                }
            }
        }
        if self.switch.is_due(now) {
            self.start_switch()?;
            self.show_restart("switch", &self.switch);
        }
        Ok(())
    }

    fn supervise_tenant(
        &mut self,
        name: &TenantName,
        store: &mut Client,
        now: Instant,
        is_host_ready: bool,
    ) -> Result<()> {
        let Some(tenant) = self.tenants.get_mut(name) else { return Ok(()) };
        for happened in tenant.child.poll(now)? {
            match happened {
                ChildEvent::Ready => self.attach(name),
                ChildEvent::Attached { .. } | ChildEvent::CutOff { .. } => {}
                ChildEvent::Ended { status, has_given_up } => {
                    let Some(tenant) = self.tenants.get_mut(name) else { return Ok(()) };
                    let deaths = tenant.child.restarts() + 1;
                    let process = format!("tenant {name}");
                    let is_ready = is_host_ready || self.setup.hypervisor == HypervisorKind::Xen;
                    fail_early(is_ready, &process, &status, has_given_up, deaths)?;
                    tracing::warn!("the process of {process} ended ({status})");
                    tenant.trunk = None;
                    tenant.is_attached = false;
                    tenant.has_begun = true;
                    let order = SwitchOrder::Detach { tenant: name.to_string() };
                    self.switch.send(&order, &[]);
                }
            }
        }
        let Some(tenant) = self.tenants.get_mut(name) else { return Ok(()) };
        if tenant.child.is_due(now) {
            self.start_tenant(name, store)?;
            if let Some(tenant) = self.tenants.get(name) {
                self.show_restart(&name.to_string(), &tenant.child);
            }
        }
        Ok(())
    }

    fn show_restart(&self, process: &str, child: &Child) {
        if let (1.., Some(record)) = (child.restarts(), child.record()) {
            let (restarts, pid) = (child.restarts(), record.pid);
            self.setup.show.event(&Event::ProcessRestarted { process, restarts, pid });
        }
    }

    fn start_switch(&mut self) -> Result<()> {
        self.setup.dir.switch().make()?;
        let arguments = self.arguments(&["--role", "switch"])?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.switch.start(self.setup.level, &arguments)
    }

    fn start_tenant(&mut self, name: &TenantName, store: &mut Client) -> Result<()> {
        self.setup.dir.tenant(&name.0).make()?;
        let has_opener = self.roster.vhosts_of(name).next().is_some();
        let mut role = vec!["--role", "tenant", "--tenant", &name.0];
        role.extend(has_opener.then_some("--virtio"));
        let arguments = self.arguments(&role)?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (theirs, ours) = Trunk::make(self.queues)?.split()?;
        let vifs = self.given_to(name);
        self.retry_devices(&vifs, store)?;
        let Some(tenant) = self.tenants.get_mut(name) else { return Ok(()) };
        tenant.child.start(self.setup.level, &arguments)?;
        tenant.has_opener = has_opener;
        let start = TenantOrder::Start { vifs: vifs.len(), trunk: tenant.carried.clone() };
        tenant.child.send(&start, &theirs.fds());
        tenant.trunk = Some(ours);
        vifs.iter().for_each(|vif| self.serve(name, vif));
        Ok(())
    }

    fn arguments(&self, role: &[&str]) -> Result<Vec<String>> {
        let dir =
            self.setup.dir.path().to_str().context("the run directory's name is not UTF-8")?;
        let hypervisor = match self.setup.hypervisor {
            HypervisorKind::Emulated => "emulated",
            HypervisorKind::Xen => "xen",
        };
        let fixed = ["backend", "--dir", dir, "--hypervisor", hypervisor];
        Ok(fixed.iter().chain(role).map(|argument| (*argument).to_owned()).collect())
    }

    /// Gives the switch process its end of a tenant's trunk, once both serve.
    fn attach(&mut self, name: &TenantName) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        if !tenant.child.is_ready() || !self.switch.is_ready() {
            return;
        }
        if let Some(trunk) = tenant.trunk.take() {
            let carried = tenant.carried.clone();
            let permitted = Permitted { trunk: carried, ..self.roster.permitted(name) };
            let order = SwitchOrder::Attach { tenant: name.to_string(), permitted };
            self.switch.send(&order, &trunk.fds());
        }
    }

    fn respondents(&mut self) -> Respondents {
        let devices = self.devices.states().into_iter();
        let devices = devices.map(|(vif, state)| (vif.to_string(), state)).collect();
        let tenants = self.tenants.iter().map(|(name, tenant)| {
            let status = TenantStatus {
                name: name.to_string(),
                pid: tenant.child.record().map(|record| record.pid),
                restarts: tenant.child.restarts(),
                state: tenant.child.state().to_owned(),
                error: tenant.child.trouble().map(str::to_owned),
                vifs: (self.roster.of_tenant(name).map(|vif| Purpose::Xen(vif).to_string()))
                    .chain(self.roster.vhosts_of(name).map(str::to_owned))
                    .collect(),
            };
            (status, self.setup.dir.tenant(&name.0).backend())
        });
        let (switch, tenants) = (self.setup.dir.switch().backend(), tenants.collect());
        let uplink = self.setup.host.uplink.as_ref().map(|uplink| uplink.name.0.clone());
        Respondents { switch, tenants, devices, uplink }
    }

    /// Reports to the service manager that all processes serve, and how many vifs there are.
    fn report(&mut self) {
        let has_begun = self.tenants.values().all(|tenant| tenant.has_begun);
        if self.switch.is_ready() && has_begun {
            self.reports.ready();
        }
        let vifs = self.tenants.values().map(|tenant| tenant.child.vifs());
        self.reports.vifs(vifs.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)));
    }
}

/// Why a vif that was added to an earlier run of this host is not served, if so.
fn refuse_kept(host: &Host, vhost: &Vhost) -> Option<String> {
    match host.vhosts.iter().any(|other| vhosts::is_same(other, vhost)) {
        true => Some("the description has the same vif".to_owned()),
        false => host.obstacle_to_addition(std::iter::empty(), vhost),
    }
}

/// Before the host is ready, a process that gives up has a lasting reason, and one that is killed
/// repeatedly is no accident: both fail the start.
fn fail_early(
    is_host_ready: bool,
    process: &str,
    status: &str,
    has_given_up: bool,
    deaths: u64,
) -> Result<()> {
    if is_host_ready {
        return Ok(());
    }
    if has_given_up {
        bail!("{process} did not start; see the reason above");
    }
    if deaths >= EARLY_DEATHS_MAX {
        bail!("{process} ended {deaths} times ({status}) before the host was ready");
    }
    Ok(())
}

/// Removes the directory of a tenant's process that has ended, and the socket of its opener.
fn remove_files_of(dir: &RunDir, name: &TenantName) {
    let of_process = dir.tenant(&name.0);
    if let Err(error) = fs::remove_dir_all(of_process.path()) {
        tracing::warn!("{}: {error}", of_process.path().display());
    }
    let _ = fs::remove_file(dir.opener_of(&name.0));
}
