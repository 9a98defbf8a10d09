//! The broker: one thread, one epoll loop, at most one message per connection and round.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrayvec::ArrayVec;
use ringway_wire::DomId;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr, write};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit};

use crate::domains::{
    ChannelEnd, ConnectionId, DOMAINS_MAX, DomainEvent, Domains, NewPort, Requester, Role,
};
use crate::event::signal;
use crate::protocol::{Call, FDS_MAX, Reply};
use crate::socket::{self, Received};

/// Connections of one domain. Domain 0 has a toolstack and backends. A guest has one, but further
/// ones may be waiting for their refusal.
const CONNECTIONS_MAX: usize = 64;

/// Events taken from the kernel at once. Enough for every domain to have one.
const EVENTS_MAX: usize = 2 * DOMAINS_MAX; // not a limit: a batch, the rest follows

const DOM0: DomId = DomId(0);

/// The token of the event that ends the loop.
const STOP: u64 = 0;

/// Owns all domains of one socket directory.
pub struct Broker {
    dir: PathBuf,
    /// Keeps a second broker out of the directory.
    _lock: File,
    epoll: OwnedFd,
    stop: Arc<OwnedFd>,
    sources: HashMap<u64, Source>,
    last_token: u64,
    domains: Domains,
    on_change: Box<dyn FnMut(DomainEvent) + Send>,
    /// Closed for a moment when no descriptor is left, in order to turn a caller away.
    spare: Option<File>,
}

/// Stops a broker's loop from another thread.
#[derive(Debug, Clone)]
pub struct BrokerHandle {
    stop: Arc<OwnedFd>,
}

enum Source {
    Listener(Listener),
    Caller(Caller),
}

struct Listener {
    domid: DomId,
    socket: OwnedFd,
}

/// A process at the other end of a connection.
struct Caller {
    domid: DomId,
    socket: OwnedFd,
    /// It has sent `Hello`, so it is the domain.
    is_domain: bool,
    /// It has mapped other domains' memory, so it may have marked their grants.
    is_backend: bool,
}

/// A descriptor in a reply.
enum ReplyFd {
    Memory(Arc<OwnedFd>),
    Channel(ChannelEnd),
}

impl AsFd for ReplyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ReplyFd::Memory(fd) => fd.as_fd(),
            ReplyFd::Channel(end) => end.socket(),
        }
    }
}

struct Outcome {
    reply: Reply,
    fds: ArrayVec<ReplyFd, FDS_MAX>,
}

impl Broker {
    /// Takes over a directory, creating it if needed, and listens for domain 0.
    ///
    /// The broker keeps about four descriptors per domain and two per event channel; raise
    /// `RLIMIT_NOFILE` before serving many. Guests get only as many as it has room for.
    ///
    /// # Errors
    /// Of kind `AddrInUse` if a broker already uses the directory, or what the system reports.
    pub fn bind(dir: &Path) -> io::Result<Broker> {
        fs::create_dir_all(dir)?;
        let lock = File::open(dir)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => io::Error::from(ErrorKind::AddrInUse),
            error => error.into(),
        })?;
        remove_sockets(dir)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut broker = Broker {
            dir: dir.to_owned(),
            _lock: lock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            stop,
            sources: HashMap::new(),
            last_token: STOP,
            domains: Domains::new(descriptors_max()),
            on_change: Box::new(|_| {}),
            spare: Some(File::open("/dev/null")?),
        };
        broker.watch(STOP, &broker.stop)?;
        broker.listen(DOM0)?;
        Ok(broker)
    }

    /// Calls `observer` for every domain that is created, dies or is destroyed, on the broker's
    /// thread. It must not block.
    pub fn on_change(&mut self, observer: impl FnMut(DomainEvent) + Send + 'static) {
        self.on_change = Box::new(observer);
    }

    /// A handle that stops [`run`](Broker::run).
    pub fn handle(&self) -> BrokerHandle {
        BrokerHandle { stop: Arc::clone(&self.stop) }
    }

    /// Serves until it is stopped. Then all connections end, and the sockets are removed.
    ///
    /// # Errors
    /// What epoll reports. No caller can cause one.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), None))?;
            // Handle disconnects first. A process that has waited for another process to end then
            // finds its ports free: the kernel reports a disconnect no later than a later request.
            for event in &events {
                let (flags, token) = (event.flags, event.data.u64());
                let is_caller = matches!(self.sources.get(&token), Some(Source::Caller(_)));
                if is_caller && flags.contains(EventFlags::HUP) {
                    self.end(token);
                }
            }
            for event in events.drain(..) {
                match (event.data.u64(), self.sources.get(&event.data.u64())) {
                    (STOP, _) => return Ok(()),
                    (token, Some(Source::Listener(_))) => self.accept(token),
                    (token, Some(Source::Caller(_))) => self.serve(token),
                    // It was closed earlier in this round.
                    (_, None) => {}
                }
            }
        }
    }

    fn accept(&mut self, listener: u64) {
        let Some(Source::Listener(Listener { domid, socket })) = self.sources.get(&listener) else {
            return;
        };
        let (domid, flags) = (*domid, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match accept_with(socket, flags) {
            Ok(accepted) => {
                let callers = self.callers().filter(|(_, caller)| caller.domid == domid).count();
                let token = self.new_token();
                if callers < CONNECTIONS_MAX && self.watch(token, &accepted).is_ok() {
                    let socket = accepted;
                    let caller = Caller { domid, socket, is_domain: false, is_backend: false };
                    self.sources.insert(token, Source::Caller(caller));
                }
            }
            // The caller would wait, and wake the broker, forever: close its connection instead.
            Err(Errno::MFILE | Errno::NFILE) => {
                self.spare = None;
                drop(accept_with(socket, flags));
                self.spare = File::open("/dev/null").ok();
            }
            // The caller has disconnected, or the kernel is short of memory for a moment.
            Err(_) => {}
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(Source::Caller(caller)) = self.sources.get(&token) else { return };
        let requester = Requester { connection: ConnectionId(token), domid: caller.domid };
        let call = match socket::receive_call(&caller.socket) {
            Received::Nothing => return,
            // `Hello` comes first and once.
            Received::Call(call) if caller.is_domain != (call == Call::Hello) => call,
            Received::Call(_) | Received::End => return self.end(token),
        };
        let outcome = self.carry_out(requester, &call);
        let Some(Source::Caller(caller)) = self.sources.get_mut(&token) else { return };
        caller.is_domain |= outcome.is_ok();
        caller.is_backend |= outcome.is_ok() && matches!(call, Call::ForeignDomain(_));
        let (reply, fds) = match &outcome {
            Ok(Outcome { reply, fds }) => (*reply, fds.iter().map(AsFd::as_fd).collect()),
            Err(error) => (Reply::refusal(error.kind()), ArrayVec::<_, FDS_MAX>::new()),
        };
        let is_sent = socket::send_reply(&caller.socket, &reply, &fds).is_ok();
        if !is_sent || !caller.is_domain {
            self.end(token);
        }
    }

    fn carry_out(&mut self, requester: Requester, call: &Call) -> io::Result<Outcome> {
        let (info, generation) = self.domains.describe(requester.domid)?;
        let is_toolstack = requester.domid == DOM0;
        let is_backend = info.role == Role::DriverDomain;
        match *call {
            Call::Hello => {
                self.domains.start(requester.domid)?;
                let fds = self.domains.memory(requester.domid).into_iter().flatten();
                let fds = fds.map(ReplyFd::Memory).collect();
                Ok(Outcome { reply: Reply::domain(info, generation), fds })
            }
            Call::CreateDomain(new) if is_toolstack => {
                let domid = self.domains.create(new)?;
                self.listen(domid).inspect_err(|_| {
                    self.domains.destroy(domid).expect("it was created a line ago");
                })?;
                (self.on_change)(DomainEvent::Created(domid));
                Ok(Outcome::bare(Reply::domid(domid)))
            }
            Call::DestroyDomain(domid) if is_toolstack => {
                self.destroy(domid)?;
                Ok(Outcome::bare(Reply::done()))
            }
            Call::NextDomain(from) if is_toolstack => {
                let (info, generation) = self.domains.next(from)?;
                Ok(Outcome::bare(Reply::domain(info, generation)))
            }
            Call::ForeignDomain(domid) if is_backend => {
                let (info, generation) = self.domains.describe(domid)?;
                let fds = self.domains.memory(domid)?.into_iter().map(ReplyFd::Memory).collect();
                Ok(Outcome { reply: Reply::domain(info, generation), fds })
            }
            Call::AllocUnbound { remote } => {
                self.domains.alloc_unbound(requester, remote).map(Outcome::port)
            }
            Call::BindInterdomain { remote, port } => {
                let bound = self.domains.bind_interdomain(requester, remote, port)?;
                // Notifications may have been lost while no end was bound. As on Xen, the new end
                // is made pending at once, so that its owner checks for work.
                signal(bound.end.other().socket())?;
                Ok(Outcome::port(bound))
            }
            Call::ClosePort(port) => {
                self.domains.close_port(requester, port)?;
                Ok(Outcome::bare(Reply::done()))
            }
            Call::CreateDomain(_)
            | Call::DestroyDomain(_)
            | Call::NextDomain(_)
            | Call::ForeignDomain(_) => Err(ErrorKind::PermissionDenied.into()),
        }
    }

    fn destroy(&mut self, domid: DomId) -> io::Result<()> {
        let is_domain = |(_, caller): &(u64, &Caller)| caller.domid == domid && caller.is_domain;
        let running = self.callers().find(is_domain).map(|(token, _)| token);
        if let Some(token) = running.filter(|_| domid != DOM0) {
            self.end(token);
        }
        self.domains.destroy(domid)?;
        self.stop_listening(domid);
        (self.on_change)(DomainEvent::Destroyed(domid));
        Ok(())
    }

    /// Handles the end of a connection: its ports and its uses of others' grants end, and so does
    /// its domain, except domain 0.
    fn end(&mut self, token: u64) {
        let Some(Source::Caller(caller)) = self.sources.remove(&token) else { return };
        let domid = caller.domid;
        if !caller.is_domain {
            return;
        }
        self.domains.close_ports_of(Requester { connection: ConnectionId(token), domid });
        // A mark names the domain, not the process. So marks are cleared when the last process that
        // may have set some is gone; until then those of a killed one stay. They affect only the
        // grants' owner, which cannot end such a grant before.
        let others = self.callers().any(|(_, other)| other.domid == domid && other.is_backend);
        if caller.is_backend && !others {
            self.domains.end_uses_by(domid);
        }
        if domid != DOM0 {
            self.domains.stop(domid);
            self.stop_listening(domid);
            (self.on_change)(DomainEvent::Died(domid));
        }
    }

    fn listen(&mut self, domid: DomId) -> io::Result<()> {
        let socket = socket::listen_at(&socket::path(&self.dir, domid))?;
        let token = self.new_token();
        self.watch(token, &socket)?;
        self.sources.insert(token, Source::Listener(Listener { domid, socket }));
        Ok(())
    }

    /// Stops clients from becoming this domain, including those that are waiting for it.
    fn stop_listening(&mut self, domid: DomId) {
        self.sources.retain(|_, source| match source {
            Source::Listener(listener) => listener.domid != domid,
            Source::Caller(caller) => caller.domid != domid,
        });
        // Nothing depends on the result: a socket without a listener refuses connections.
        let _ = fs::remove_file(socket::path(&self.dir, domid));
    }

    fn callers(&self) -> impl Iterator<Item = (u64, &Caller)> {
        self.sources.iter().filter_map(|(token, source)| match source {
            Source::Caller(caller) => Some((*token, caller)),
            Source::Listener(_) => None,
        })
    }

    fn watch(&self, token: u64, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Tokens are never reused, so an event cannot reach the wrong source.
    fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The next broker removes what is left.
        let _ = remove_sockets(&self.dir);
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl BrokerHandle {
    /// Stops the loop soon, or at its start.
    pub fn stop(&self) {
        write(&self.stop, &1u64.to_ne_bytes()).expect("our own eventfd accepts a small number");
    }
}

impl Outcome {
    fn bare(reply: Reply) -> Outcome {
        Outcome { reply, fds: ArrayVec::new() }
    }

    fn port(new: NewPort) -> Outcome {
        let fds = [ReplyFd::Channel(new.end)].into_iter().collect();
        Outcome { reply: Reply::port(new.port), fds }
    }
}

/// The number of descriptors that this process may open.
fn descriptors_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Removes the sockets of a killed broker.
fn remove_sockets(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.starts_with("dom-") && name.ends_with(".sock") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
