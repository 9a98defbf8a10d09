//! Virtio vifs that are added and removed while the host runs.
//!
//! A request comes to the supervisor. It chooses the tenant, starts a process for a new one, makes
//! the vif's network device, and passes the request on to the tenant's opener, which has the
//! tenant's process serve the vif. The tenant's process asks for nothing and names no path.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use ringway_control::{Call, ControlServer, ControlSocket, OpenerRequest, Reply, RunDir, listed};
use ringway_description::{TenantName, VHOSTS_MAX, Vhost};
use ringway_host::Purpose;
use ringway_sys::wake::WakeFd;

use super::fanout::order_within;
use super::{Isolation, TENANTS_MAX};
use crate::description;
use crate::vhosts;

/// How long a tenant's process may take to serve, before a request is refused.
pub(super) const START_MAX: Duration = Duration::from_secs(20);
/// How long its opener may take for a request.
const CHANGE_MAX: Duration = Duration::from_secs(10);

/// The vifs that were added, and the requests about them.
pub(super) struct Additions {
    calls: ControlServer<OpenerRequest>,
    outcomes: (Sender<io::Result<()>>, Receiver<io::Result<()>>),
    /// One request at a time: the others wait.
    pending: Option<Pending>,
    added: BTreeMap<String, Vhost>,
    /// Where they are kept.
    file: PathBuf,
}

/// A request that is carried out.
struct Pending {
    call: Call<OpenerRequest>,
    change: Change,
    tenant: TenantName,
    progress: Progress,
}

enum Change {
    Add(Box<Vhost>),
    Remove(String),
}

enum Progress {
    /// The tenant's process does not serve yet, and may take until then.
    Starting(Instant),
    /// The opener has the request, since the tenant's process was restarted so many times.
    Sent(u64),
}

impl Additions {
    /// Listens for requests, and reads what an earlier supervisor has saved.
    pub(super) fn start(dir: &RunDir) -> io::Result<Additions> {
        dir.opening().make()?;
        let calls = ControlServer::start(ControlSocket::bind(&dir.opener())?)?;
        let added = vhosts::read_added(&dir.vhosts()).into_iter();
        let added = added.map(|vhost| (vhost.name.0.clone(), vhost)).collect();
        let (outcomes, pending) = (mpsc::channel(), None);
        let file = dir.vhosts();
        Ok(Additions { calls, outcomes, pending, added, file })
    }

    /// The vifs that were added, apart from those for which `refuse` has a reason: the description
    /// may have changed since.
    pub(super) fn keep(
        &mut self,
        refuse: impl Fn(&Vhost) -> Option<String>,
    ) -> impl Iterator<Item = &Vhost> {
        let count = self.added.len();
        self.added.retain(|name, vhost| {
            let refused = refuse(vhost);
            if let Some(reason) = &refused {
                tracing::warn!("{name} was added, and is not served any more: {reason}");
            }
            refused.is_none()
        });
        if self.added.len() != count {
            let _ = self.save().inspect_err(|error| tracing::warn!("{error}"));
        }
        self.added.values()
    }

    /// Those that were added, by their names.
    pub(super) fn added(&self) -> &BTreeMap<String, Vhost> {
        &self.added
    }

    /// Whether a request is carried out.
    pub(super) fn is_changing(&self) -> bool {
        self.pending.is_some()
    }

    /// Has this thread look for requests, and for what has come of others.
    pub(super) fn bell(&self) -> &Arc<WakeFd> {
        self.calls.bell()
    }

    /// When to look again, even if no descriptor is readable.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.pending.as_ref()?.progress {
            Progress::Starting(until) => Some(until),
            Progress::Sent(_) => None,
        }
    }

    /// Keeps them for the next openers and the next supervisor.
    fn save(&self) -> Result<(), String> {
        vhosts::save_added(&self.file, self.added.values())
    }
}

impl AsFd for Additions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.calls.as_fd()
    }
}

impl Isolation {
    /// Carries out requests to add and remove vifs.
    pub(super) fn serve_additions(&mut self) {
        self.additions.calls.bell().clear();
        if self.reload.is_some() {
            return;
        }
        loop {
            let Some(pending) = self.additions.pending.take() else {
                let Some(call) = self.additions.calls.next_call() else { return };
                self.begin_change(call);
                continue;
            };
            let child = self.tenants.get(&pending.tenant).map(|tenant| &tenant.child);
            match (&pending.progress, child) {
                (Progress::Sent(_), _) => match self.additions.outcomes.1.try_recv() {
                    Ok(outcome) => self.finish_change(pending, outcome),
                    Err(_) => return self.additions.pending = Some(pending),
                },
                (Progress::Starting(_), Some(child)) if child.is_ready() => {
                    let restarts = child.restarts();
                    self.pass_on(&pending);
                    let progress = Progress::Sent(restarts);
                    self.additions.pending = Some(Pending { progress, ..pending });
                }
                (Progress::Starting(until), Some(_)) if *until > Instant::now() => {
                    return self.additions.pending = Some(pending);
                }
                _ => {
                    let tenant = &pending.tenant;
                    let reason = format!("the process of tenant {tenant} does not serve");
                    self.finish_change(pending, Err(io::Error::other(reason)));
                }
            }
        }
    }

    /// Does what has to be done before the tenant's opener gets the request.
    fn begin_change(&mut self, call: Call<OpenerRequest>) {
        let begun = match &call.request {
            OpenerRequest::Add { section } => self.begin_addition(section),
            OpenerRequest::Remove { name } => self.begin_removal(name),
            OpenerRequest::Reload { .. } | OpenerRequest::Describe { .. } => {
                Err("the host reads its description itself: send SIGHUP to it".to_owned())
            }
        };
        match begun {
            Ok((tenant, change)) => {
                let progress = Progress::Starting(Instant::now() + START_MAX);
                self.additions.pending = Some(Pending { call, change, tenant, progress });
            }
            Err(reason) => call.reply(Reply::error(&reason)),
        }
    }

    fn begin_addition(&mut self, section: &str) -> Result<(TenantName, Change), String> {
        let vhost = description::parse_vhost(section).map_err(|error| error.to_string())?;
        if let Some(refusal) = self.refuse_addition(&vhost) {
            return Err(refusal);
        }
        let tenant = self.roster.add_vhost(&vhost).ok_or("it has no tenant")?;
        if !self.tenants.contains_key(&tenant) && self.tenants.len() >= TENANTS_MAX {
            self.roster.remove_vhost(&vhost.name.0);
            return Err(format!("there are {TENANTS_MAX} tenants, which is the limit"));
        }
        if let Err(reason) = self.devices.add_virtio(&vhosts::config(&vhost)) {
            self.roster.remove_vhost(&vhost.name.0);
            return Err(reason);
        }
        self.begin_tenant(&tenant);
        let vif = Purpose::Virtio(vhost.name.0.clone());
        if self.devices.wants_device(&vif) {
            self.serve(&tenant, &vif);
        }
        Ok((tenant, Change::Add(Box::new(vhost))))
    }

    /// Has a tenant with virtio vifs be served, with an opener.
    pub(super) fn begin_tenant(&mut self, tenant: &TenantName) {
        self.add_tenant(tenant);
        // Its rules hold before its first frame.
        self.allow(tenant);
        if self.tenants.get(tenant).is_some_and(|it| it.child.record().is_some() && !it.has_opener)
        {
            // A confined process cannot start one.
            tracing::info!("tenant {tenant}: its first virtio vif; replacing its process");
            self.replace(tenant);
        }
    }

    /// Why a vif cannot be added to this host, if so.
    fn refuse_addition(&self, vhost: &Vhost) -> Option<String> {
        let (host, added) = (&self.setup.host, &self.additions.added);
        let (name, place) = (&vhost.name, &vhost.place);
        if host.vhosts.len() + added.len() >= usize::from(VHOSTS_MAX) {
            return Some(format!("there are {VHOSTS_MAX} virtio vifs, which is the limit"));
        }
        if host.vhosts.iter().chain(added.values()).any(|other| vhosts::is_same(other, vhost)) {
            return Some(format!("a vif {name}, or one with {place}, exists already"));
        }
        if host.uplink.as_ref().is_some_and(|uplink| uplink.name.0 == name.0) {
            return Some(format!("{name} is the name of the uplink: choose another"));
        }
        host.obstacle_to_addition(added.values(), vhost)
    }

    fn begin_removal(&mut self, name: &str) -> Result<(TenantName, Change), String> {
        if self.setup.host.vhosts.iter().any(|vhost| vhost.name.0 == name) {
            return Err(format!(
                "{name} is in the description: remove its section there, and have the host read \
                 it again"
            ));
        }
        let tenant = self.additions.added.get(name).and_then(Vhost::tenant);
        let Some(tenant) = tenant else {
            let known = listed(self.additions.added.keys());
            return Err(format!("no vif {name:?} was added; there is {known}"));
        };
        Ok((tenant, Change::Remove(name.to_owned())))
    }

    /// Gives the request to the tenant's opener, on a thread of its own. The next opener, if this
    /// one ends first, begins with the vifs that were added before the request.
    fn pass_on(&self, pending: &Pending) {
        let socket = self.setup.dir.opener_of(&pending.tenant.0);
        let request = pending.call.request.clone();
        let (outcomes, bell) =
            (self.additions.outcomes.0.clone(), Arc::clone(self.additions.calls.bell()));
        thread::spawn(move || {
            let _ = outcomes.send(order_within(&socket, &request, CHANGE_MAX));
            bell.ring();
        });
    }

    fn finish_change(&mut self, pending: Pending, outcome: io::Result<()>) {
        let Pending { call, change, tenant, progress } = pending;
        let done = match (change, outcome) {
            (Change::Add(vhost), Ok(())) => {
                self.additions.added.insert(vhost.name.0.clone(), *vhost);
                let saved = self.additions.save();
                let child = self.tenants.get(&tenant).map(|tenant| &tenant.child);
                let is_other = |restarts| child.is_some_and(|child| child.restarts() != restarts);
                if matches!(progress, Progress::Sent(restarts) if is_other(restarts)) {
                    // Its successor may have read the file before.
                    self.replace(&tenant);
                }
                saved
            }
            (Change::Remove(name), Ok(())) => {
                self.additions.added.remove(&name);
                self.drop_vhost(&tenant, &name);
                self.additions.save()
            }
            (Change::Add(vhost), Err(error)) => {
                self.drop_vhost(&tenant, &vhost.name.0);
                Err(error.to_string())
            }
            (Change::Remove(_), Err(error)) => Err(error.to_string()),
        };
        call.reply(match done {
            Ok(()) => Reply::ok(&()),
            Err(reason) => Reply::error(&reason),
        });
    }

    /// Forgets a virtio vif, and its tenant if that has no other one.
    pub(super) fn drop_vhost(&mut self, tenant: &TenantName, name: &str) {
        self.roster.remove_vhost(name);
        self.forget(tenant, &Purpose::Virtio(name.to_owned()));
        self.allow(tenant);
        if !self.roster.has_any(tenant) {
            self.dismiss(tenant);
        }
    }
}
