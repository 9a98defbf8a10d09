//! Replies to the command line, combined from the replies of all processes.
//!
//! Each process is queried on a thread of its own, with a time limit. The result names a process
//! that does not reply, and such a process delays the others' replies by no more than the limit.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringway_control::{
    BUSY, BackendRequest, BackendStatus, Call, ControlServer, ControlSocket, FdbStatus, Reply,
    ReplyLimits, RunDir, TenantStatus, VifStatus, listed, open_with_limits,
};
use ringway_datapath::Mirrored;
use ringway_host::{DeviceState, refuse_of_uplink, refuse_queues_of_uplink};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::target::{as_repeated, ask_while, may_be_repeated};

/// How long one process may take to report its state.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long all of them may take together: less than the command line's timeout.
const ALL_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a process may take to change something.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(8);
/// The pause before a process is asked again that is just being replaced.
const RETRY: Duration = Duration::from_millis(5);
/// Bytes of the reply of one process, which a guest may have taken over.
const REPLY_LEN_MAX: usize = 16 << 20;
/// Processes that are queried at the same time.
const THREADS_MAX: usize = 16; // not a limit: our own threads
/// Calls that are served at the same time.
const CALLS_MAX: usize = 8;
/// Name of the setting for a mirror.
const MIRROR: &str = "mirror";
/// Name of the trunk in the status of a tenant's process.
const TRUNK: &str = "trunk";

/// The control socket of an isolated backend.
pub(super) struct Fanout {
    calls: ControlServer<BackendRequest>,
    open: Arc<AtomicUsize>,
}

/// The processes to query, at this moment.
pub(super) struct Respondents {
    pub(super) switch: PathBuf,
    pub(super) tenants: Vec<(TenantStatus, PathBuf)>,
    /// Where the network devices of vifs are, by the vifs' names.
    pub(super) devices: BTreeMap<String, DeviceState>,
    /// The name of the uplink, if there is one.
    pub(super) uplink: Option<String>,
}

impl Fanout {
    pub(super) fn start(dir: &RunDir) -> io::Result<Fanout> {
        let calls = ControlServer::start(ControlSocket::bind(&dir.backend())?)?;
        Ok(Fanout { calls, open: Arc::default() })
    }

    /// The next pending call.
    pub(super) fn next_call(&self) -> Option<Call<BackendRequest>> {
        self.calls.next_call()
    }

    /// Serves a call on a thread of its own.
    pub(super) fn serve(&self, call: Call<BackendRequest>, respondents: Respondents) {
        if self.open.fetch_add(1, Ordering::Relaxed) >= CALLS_MAX {
            self.open.fetch_sub(1, Ordering::Relaxed);
            call.reply(Reply::error(BUSY));
            return;
        }
        let open = Arc::clone(&self.open);
        std::thread::spawn(move || {
            let reply = respondents.reply(&call.request);
            call.reply(reply);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

impl AsFd for Fanout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.calls.as_fd()
    }
}

impl Respondents {
    fn reply(self, request: &BackendRequest) -> Reply {
        let is_uplink = |name: &String| self.uplink.as_ref() == Some(name);
        let refused = match request {
            BackendRequest::SetMaxQueues { vif, .. } if is_uplink(vif) => {
                Some(refuse_queues_of_uplink(vif))
            }
            BackendRequest::SetLimit { vif, limit, .. } if is_uplink(vif) => {
                Some(refuse_of_uplink(vif, limit, "restart the host"))
            }
            BackendRequest::SetLimit { vif, limit, value } if limit == MIRROR => {
                self.refuse_mirror(vif, value)
            }
            _ => None,
        };
        if let Some(reason) = refused {
            return Reply::error(&reason);
        }
        match request {
            BackendRequest::Status => Reply::ok(&self.status()),
            BackendRequest::SetMaxQueues { vif, .. }
            | BackendRequest::SetLimit { vif, .. }
            | BackendRequest::Release { vif } => {
                self.change(vif, |socket| order_within(socket, request, CHANGE_TIMEOUT))
            }
            // The successor of one that panics must not do so, too.
            BackendRequest::Panic { vif } | BackendRequest::Stall { vif, .. } => {
                self.change(vif, |socket| ask_within(socket, request, CHANGE_TIMEOUT))
            }
            BackendRequest::Capture { vif, .. } => match self.of_vif(vif) {
                Ok(socket) => Reply::error(&format!(
                    "only the process of its tenant sees the frames of {vif}: use {}",
                    socket.display()
                )),
                Err(reason) => Reply::error(&reason),
            },
        }
    }

    fn change(&self, vif: &str, ask: impl FnOnce(&Path) -> io::Result<()>) -> Reply {
        match self.of_vif(vif).map(|socket| ask(socket)) {
            Ok(Ok(())) => Reply::ok(&()),
            Ok(Err(error)) => Reply::error(&error.to_string()),
            Err(reason) => Reply::error(&reason),
        }
    }

    /// Why a vif cannot be the output of such a mirror although its own process would accept it.
    fn refuse_mirror(&self, output: &str, wanted: &str) -> Option<String> {
        let tenant_of = |name: &str| {
            let mut tenants = self.tenants.iter().map(|(tenant, _)| tenant);
            tenants.find(|tenant| tenant.serves(name))
        };
        let own = tenant_of(output)?;
        // The process itself refuses an invalid list.
        let wanted = Mirrored::parse_list(wanted).ok()?;
        let whose = wanted.iter().find_map(|Mirrored { port, .. }| match tenant_of(port) {
            Some(tenant) => {
                (tenant.name != own.name).then(|| format!("{port} is of tenant {}", tenant.name))
            }
            None => {
                let may_be_own = port.starts_with("vif") || port == Mirrored::ALL || port == TRUNK;
                (!may_be_own).then(|| format!("{port} is a port of the switch process"))
            }
        })?;
        Some(format!(
            "{whose}, and no process sees frames of another tenant: expected vifs of tenant {}, \
             or {TRUNK}, its connection to the others",
            own.name
        ))
    }

    /// The socket of the process that serves a vif.
    fn of_vif(&self, vif: &str) -> Result<&PathBuf, String> {
        let found = self.tenants.iter().find(|(tenant, _)| tenant.serves(vif));
        found.map(|(_, socket)| socket).ok_or_else(|| {
            let known = listed(self.tenants.iter().flat_map(|(tenant, _)| &tenant.vifs));
            format!("there is no vif {vif:?}; there is {known}")
        })
    }

    fn status(self) -> BackendStatus {
        let socket = self.switch.as_path();
        let of_switch = Asked { socket, vifs: &[], is_new: false, may_return: false };
        let of_tenants = self.tenants.iter().map(|(tenant, socket)| Asked::new(tenant, socket));
        let asked: Vec<Asked<'_>> = [of_switch].into_iter().chain(of_tenants).collect();
        let mut replies = ask_all(&asked);
        let of_tenants = replies.split_off(1);
        let mut all = replies.pop().and_then(Result::ok).unwrap_or_default();
        for ((mut tenant, _), reply) in self.tenants.into_iter().zip(of_tenants) {
            match reply {
                Ok(status) => {
                    // A tenant's process reports its own vifs only: anything it says about others
                    // is ignored.
                    let own = status.vifs.into_iter().filter(|vif| tenant.vifs.contains(&vif.name));
                    all.vifs.extend(own.map(|mut vif| {
                        vif.tenant = Some(tenant.name.clone());
                        if let Some(device) = self.devices.get(&vif.name).cloned() {
                            (vif.attached_to, vif.is_down) = (device.attached_to, device.is_down);
                            vif.add_fault(device.fault);
                        }
                        vif
                    }));
                }
                Err(error) if tenant.state == "serving" => {
                    tenant.state = "silent".to_owned();
                    tenant.error = Some(error.to_string());
                }
                Err(_) => {}
            }
            all.tenants.push(tenant);
        }
        all.vifs.sort_by_key(|vif| (vif.domid, vif.handle));
        name_taken_addresses(&mut all);
        all
    }
}

/// Shows as an error that a vif's address is one of another tenant, according to the switch
/// process, which alone knows. What a tenant says concerns its own vifs only.
fn name_taken_addresses(all: &mut BackendStatus) {
    let owner = |vif: &VifStatus| {
        let is_of_vif = |entry: &&FdbStatus| {
            let is_in = match entry.vlan {
                None => vif.vlan.is_none() && vif.trunk.is_empty(),
                Some(vlan) => vif.vlan == Some(vlan) || vif.trunk.contains(&vlan),
            };
            is_in && entry.is_static && Some(&entry.mac) == vif.mac.as_ref()
        };
        let entry = all.fdb.iter().find(is_of_vif)?;
        let tenant = entry.port.strip_prefix("trunk-")?;
        (vif.tenant.as_deref() != Some(tenant)).then(|| tenant.to_owned())
    };
    let errors: Vec<Option<String>> = all
        .vifs
        .iter()
        .map(|vif| {
            let is_asked = vif.error.is_none() && vif.attached_to == "switch";
            let (mac, tenant) = (vif.mac.as_ref()?, owner(vif).filter(|_| is_asked)?);
            let is_other = |it: &&VifStatus| {
                it.tenant.as_deref() == Some(tenant.as_str()) && it.mac.as_ref() == Some(mac)
            };
            let other = all.vifs.iter().find(is_other).map_or("a vif", |vif| &vif.name);
            Some(format!(
                "its mac {mac} is that of {other} of tenant {tenant}, so its frames are dropped: \
                 give one of the two another one"
            ))
        })
        .collect();
    for (vif, error) in all.vifs.iter_mut().zip(errors) {
        vif.add_fault(error);
    }
}

/// A process to query.
struct Asked<'a> {
    socket: &'a Path,
    /// Vifs that it serves once it has begun.
    vifs: &'a [String],
    /// Whether it is a successor that begins.
    is_new: bool,
    /// Whether one that does not reply is just being replaced.
    may_return: bool,
}

impl<'a> Asked<'a> {
    fn new(tenant: &'a TenantStatus, socket: &'a Path) -> Asked<'a> {
        // A first process begins, and one that ends again and again comes back much later.
        let is_new = tenant.state == "starting" && tenant.restarts > 0;
        let may_return = is_new || tenant.state == "serving";
        Asked { socket, vifs: &tenant.vifs, is_new, may_return }
    }

    /// Its state, of its successor if it is being replaced.
    fn state(&self, limit: Duration) -> io::Result<BackendStatus> {
        let deadline = Instant::now() + limit;
        let mut is_new = self.is_new;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let reply: io::Result<BackendStatus> =
                ask_within(self.socket, &BackendRequest::Status, left.max(RETRY));
            let is_whole = match &reply {
                Ok(status) => {
                    let has = |name: &String| status.vifs.iter().any(|vif| vif.name == *name);
                    !is_new || self.vifs.iter().all(has)
                }
                Err(error) => !self.may_return || error.kind() == io::ErrorKind::TimedOut,
            };
            if is_whole || left <= RETRY {
                return reply;
            }
            is_new = true;
            thread::sleep(RETRY);
        }
    }
}

/// Queries all for their state; the replies are in the order of the processes.
fn ask_all(all: &[Asked<'_>]) -> Vec<io::Result<BackendStatus>> {
    let deadline = Instant::now() + ALL_TIMEOUT;
    let next = AtomicUsize::new(0);
    let (sender, replies) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..all.len().min(THREADS_MAX) {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(index) else { return };
                    let left = deadline.saturating_duration_since(Instant::now());
                    let reply = match left.min(STATUS_TIMEOUT) {
                        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
                        limit => one.state(limit),
                    };
                    if sender.send((index, reply)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    drop(sender);
    let mut replies: Vec<_> = replies.into_iter().collect();
    replies.sort_by_key(|(index, _)| *index);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

/// Gives a process an order. If it is just being replaced, its successor gets it, perhaps again.
pub(super) fn order_within(
    socket: &Path,
    order: &impl Serialize,
    limit: Duration,
) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let left = || deadline.saturating_duration_since(Instant::now());
    let may_return = |error: &io::Error| may_be_repeated(error) && left() > RETRY;
    ask_while(may_return, |turn| as_repeated(turn, ask_within(socket, order, left().max(RETRY))))
}

/// Sends a request to a process of this host, which a guest may have taken over.
pub(in crate::host) fn ask_within<T: DeserializeOwned>(
    socket: &Path,
    request: &impl Serialize,
    limit: Duration,
) -> io::Result<T> {
    let patience = ReplyLimits { time: limit, bytes: REPLY_LEN_MAX };
    open_with_limits(socket, request, patience).map(|(reply, _)| reply)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What comes of an order to processes of which each but the last ends before it replies.
    fn ordered(replies: &[&'static str]) -> io::Result<()> {
        let place = tempfile::tempdir().expect("a directory");
        let socket = place.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let replies = replies.to_vec();
        let processes = thread::spawn(move || {
            for reply in replies {
                let mut stream = listener.accept().expect("a client connects").0;
                BufReader::new(&stream).read_line(&mut String::new()).expect("a request");
                stream.write_all(reply.as_bytes()).expect("a client waits");
            }
        });
        let order = BackendRequest::Release { vif: "vif1.0".to_owned() };
        let done = order_within(&socket, &order, PATIENCE);
        processes.join().expect("it ends");
        done
    }

    #[test]
    fn the_successor_of_a_process_that_ends_before_its_reply_gets_the_order() {
        let refused = "{\"error\":\"vif1.0 is not quarantined, and no panic is charged to it\"}\n";
        ordered(&["{\"ok\":null}\n"]).expect("it is done");
        ordered(&["", "", "{\"ok\":null}\n"]).expect("it is done");
        ordered(&["", refused]).expect("the first has done it");
        ordered(&[refused]).expect_err("it was not done");
        ordered(&["", "{\"error\":\"no\"}\n"]).expect_err("it was not done");
    }
}
