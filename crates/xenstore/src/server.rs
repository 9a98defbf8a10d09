//! The tree behind Unix sockets: one thread, one epoll loop.
//!
//! A client that breaks the protocol or never reads loses its own connection and nothing else. Each
//! round takes a bounded amount from each client, so none can keep the others waiting, and requests
//! of a guest are served at a limited [rate](Quota::requests_per_second).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use ringway_wire::DomId;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::connection::Connection;
use crate::quota::Quota;
use crate::rate_limit::RateLimit;
use crate::session::SessionId;
use crate::tree::Tree;

/// The most calls on handles that may wait for the server.
const COMMANDS_MAX: usize = 4096; // not a limit: our own threads
/// Events taken from epoll at a time.
const EVENTS_MAX: usize = 64; // not a limit: a batch, the rest follows
/// The shortest pause of a client that has sent requests too fast.
const THROTTLE_MIN: Duration = Duration::from_millis(10);

/// A XenStore server. [`run`](Server::run) it in a thread of its own.
#[derive(Debug)]
pub struct Server {
    tree: Tree,
    epoll: OwnedFd,
    sources: BTreeMap<u64, Source>,
    next_key: u64,
    by_session: BTreeMap<SessionId, u64>,
    /// Listeners that are not polled because the process has no descriptors left.
    paused: Vec<u64>,
    /// The request rate of each guest. Kept as long as the guest exists, so that it gains nothing
    /// by opening another connection.
    rate_limits: BTreeMap<DomId, RateLimit>,
    /// Clients that have exceeded it, and when they are served again.
    throttled: BTreeMap<u64, Instant>,
    requests_per_second: u32,
    commands: Receiver<Command>,
    handle: ServerHandle,
}

/// Controls a server from any thread.
#[derive(Debug, Clone)]
pub struct ServerHandle {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
}

/// What epoll watches; its data is the key in [`Server::sources`].
#[derive(Debug)]
enum Source {
    Wake,
    Listener(UnixListener, DomId),
    Client(Connection, SessionId, DomId),
}

#[derive(Debug)]
enum Command {
    Listen(UnixListener, DomId),
    Connect(UnixStream, DomId),
    Introduce(DomId),
    Release(DomId),
    Stop,
}

impl ServerHandle {
    /// Serves every connection to `listener` with the rights of `domain`.
    ///
    /// # Errors
    /// Of kind `BrokenPipe` if the server has stopped, `WouldBlock` if too many calls wait.
    pub fn listen(&self, listener: UnixListener, domain: DomId) -> io::Result<()> {
        self.send(Command::Listen(listener, domain))
    }

    /// Makes a connection that acts as `domain`, and returns its client's end.
    ///
    /// # Errors
    /// As [`listen`](ServerHandle::listen), or what the system reports.
    pub fn connect(&self, domain: DomId) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.send(Command::Connect(ours, domain))?;
        Ok(theirs)
    }

    /// Introduces a domain; fires `@introduceDomain`.
    ///
    /// # Errors
    /// As [`listen`](ServerHandle::listen).
    pub fn introduce(&self, domain: DomId) -> io::Result<()> {
        self.send(Command::Introduce(domain))
    }

    /// Releases a domain: its listeners, connections, watches and transactions, the nodes it owns
    /// and its rights. Fires `@releaseDomain`. Domain 0 cannot be released.
    ///
    /// # Errors
    /// As [`listen`](ServerHandle::listen).
    pub fn release(&self, domain: DomId) -> io::Result<()> {
        self.send(Command::Release(domain))
    }

    /// Ends [`Server::run`] and with it all connections. Harmless when it has ended.
    pub fn stop(&self) {
        // An error means that the server has stopped already, or that a pending wake-up will find
        // this command.
        let _ = self.send(Command::Stop);
    }

    fn send(&self, command: Command) -> io::Result<()> {
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => {
                io::Error::new(ErrorKind::WouldBlock, "too many calls wait for the XenStore server")
            }
            mpsc::TrySendError::Disconnected(_) => {
                io::Error::new(ErrorKind::BrokenPipe, "the XenStore server has stopped")
            }
        })?;
        match rustix::io::write(&self.wake, &1u64.to_ne_bytes()) {
            // A full counter wakes the server just as well.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Server {
    /// A server with an empty tree, which limits guests by `quota`.
    ///
    /// # Errors
    /// What the system reports.
    pub fn new(quota: Quota) -> io::Result<Server> {
        let (sender, commands) = mpsc::sync_channel(COMMANDS_MAX);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let requests_per_second = quota.requests_per_second.max(1);
        let mut server = Server {
            tree: Tree::new(quota),
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            sources: BTreeMap::new(),
            next_key: 0,
            by_session: BTreeMap::new(),
            paused: Vec::new(),
            rate_limits: BTreeMap::new(),
            throttled: BTreeMap::new(),
            requests_per_second,
            commands,
            handle: ServerHandle { commands: sender, wake: Arc::clone(&wake) },
        };
        let key = server.register(&wake)?;
        server.sources.insert(key, Source::Wake);
        Ok(server)
    }

    /// Returns a handle, which works before the server runs and from other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Serves until [`ServerHandle::stop`].
    ///
    /// # Errors
    /// Only if the loop itself fails; a client's failure ends that client.
    pub fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let timeout = self.throttle_left(Instant::now());
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let (key, flags) = (event.data.u64(), event.flags);
                match self.sources.get(&key) {
                    Some(Source::Wake) => match self.take_commands()? {
                        Next::Stop => return Ok(()),
                        Next::Continue => {}
                    },
                    Some(Source::Listener(..)) => self.accept(key),
                    // The client has gone; epoll would report that forever.
                    Some(Source::Client(..))
                        if self.throttled.contains_key(&key)
                            && flags.intersects(EventFlags::HUP | EventFlags::ERR) =>
                    {
                        self.close(key);
                    }
                    Some(Source::Client(..)) => self.serve_client(key),
                    // It was closed by an earlier event of this round.
                    None => {}
                }
                self.deliver();
            }
            self.resume(Instant::now());
        }
    }

    /// How long to wait for the first of the throttled clients, if there are any.
    fn throttle_left(&self, now: Instant) -> Option<Timespec> {
        let due = self.throttled.values().min()?;
        Timespec::try_from(due.saturating_duration_since(now)).ok()
    }

    /// Serves clients again whose pause is over.
    fn resume(&mut self, now: Instant) {
        let due = |at: &Instant| *at <= now;
        let over: Vec<u64> =
            self.throttled.iter().filter(|(_, at)| due(at)).map(|(key, _)| *key).collect();
        for key in over {
            self.throttled.remove(&key);
            self.serve_client(key);
            self.deliver();
        }
    }

    /// Carries out the commands of handles.
    fn take_commands(&mut self) -> io::Result<Next> {
        let mut count = [0; 8];
        match rustix::io::read(&self.handle.wake, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        for _ in 0..COMMANDS_MAX {
            let Ok(command) = self.commands.try_recv() else { break };
            match command {
                Command::Listen(listener, domain) => self.listen(listener, domain)?,
                Command::Connect(stream, domain) => self.add_client(stream, domain),
                Command::Introduce(domain) => self.tree.introduce(domain),
                Command::Release(domain) if domain != DomId(0) => {
                    self.sources.retain(
                        |_, source| !matches!(source, Source::Listener(_, of) if *of == domain),
                    );
                    self.rate_limits.remove(&domain);
                    self.tree.release(domain);
                }
                Command::Release(_) => {}
                Command::Stop => return Ok(Next::Stop),
            }
        }
        Ok(Next::Continue)
    }

    fn listen(&mut self, listener: UnixListener, domain: DomId) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let key = self.register(&listener)?;
        self.sources.insert(key, Source::Listener(listener, domain));
        Ok(())
    }

    /// Accepts one connection; epoll reports the listener again if there are more.
    fn accept(&mut self, key: u64) {
        let Some(Source::Listener(listener, domain)) = self.sources.get(&key) else { return };
        match listener.accept() {
            Ok((stream, _)) => {
                let domain = *domain;
                self.add_client(stream, domain);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => {
                // Most likely no descriptors are left. epoll would report the same connection
                // forever, so the listener pauses until another connection closes.
                if epoll::modify(
                    &self.epoll,
                    listener,
                    EventData::new_u64(key),
                    EventFlags::empty(),
                )
                .is_ok()
                {
                    self.paused.push(key);
                }
            }
        }
    }

    /// Begins to serve a stream. If that fails, the client sees it close.
    fn add_client(&mut self, stream: UnixStream, domain: DomId) {
        let Some(session) = self.tree.open(domain) else { return };
        let admitted = Connection::new(stream).and_then(|connection| {
            let key = self.register(&connection)?;
            Ok((key, connection))
        });
        match admitted {
            Ok((key, connection)) => {
                self.sources.insert(key, Source::Client(connection, session, domain));
                self.by_session.insert(session, key);
            }
            Err(_) => self.tree.close(session),
        }
    }

    /// Serves a client's requests.
    fn serve_client(&mut self, key: u64) {
        let Some(Source::Client(connection, session, domain)) = self.sources.get_mut(&key) else {
            return;
        };
        if self.throttled.contains_key(&key) {
            return;
        }
        let now = Instant::now();
        let mut rate_limit = (*domain != DomId(0)).then(|| {
            let rate = self.requests_per_second;
            let make = || RateLimit::new(rate, Duration::from_secs(1) / rate, now);
            self.rate_limits.entry(*domain).or_insert_with(make)
        });
        let mut throttled_until = None;
        let served = connection.receive().and_then(|()| {
            // Requests that wait for room must be served as soon as there is some, because no other
            // event would wake the server for them. The loop reads nothing, so the buffered
            // requests bound it.
            while connection.make_room()? {
                if let Some(later) = rate_limit.as_mut().and_then(|rate_limit| rate_limit.due(now))
                {
                    // Rest for several requests at once: a wake-up costs more than a request.
                    throttled_until = Some(later.max(now + THROTTLE_MIN));
                    break;
                }
                let Some((request, payload)) = connection.next_request()? else { break };
                let outcome = self.tree.request(*session, request.kind, request.tx_id, &payload);
                connection.reply(&request, outcome);
                if let Some(rate_limit) = &mut rate_limit {
                    let _ = rate_limit.take(now);
                }
            }
            Ok(())
        });
        if served.is_err() {
            return self.close(key);
        }
        if let Some(until) = throttled_until {
            self.throttled.insert(key, until);
        }
        self.push_out(key);
    }

    /// Sends events to clients with new ones, and drops those that the tree has closed.
    fn deliver(&mut self) {
        while let Some(session) = self.tree.next_ready() {
            if let Some(key) = self.by_session.get(&session).copied() {
                self.push_out(key);
            }
        }
    }

    /// Moves events and replies into the client's socket, as far as they fit.
    fn push_out(&mut self, key: u64) {
        let Some(Source::Client(connection, session, _)) = self.sources.get_mut(&key) else {
            return;
        };
        let mut is_alive = self.tree.is_open(*session);
        while is_alive {
            // As above: the events in the tree bound the loop.
            match connection.make_room() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => is_alive = false,
            }
            let Some(event) = self.tree.next_event(*session) else { break };
            connection.event(&event);
        }
        is_alive &= connection.flush().is_ok();
        if let Some(interest) = connection.changed_interest(self.throttled.contains_key(&key)) {
            let data = EventData::new_u64(key);
            is_alive &= epoll::modify(&self.epoll, &*connection, data, interest).is_ok();
        }
        if !is_alive {
            self.close(key);
        }
    }

    fn close(&mut self, key: u64) {
        if let Some(Source::Client(_, session, _)) = self.sources.remove(&key) {
            self.throttled.remove(&key);
            self.by_session.remove(&session);
            self.tree.close(session);
        }
        for key in std::mem::take(&mut self.paused) {
            if let Some(Source::Listener(listener, _)) = self.sources.get(&key) {
                let data = EventData::new_u64(key);
                // If this fails, no new client is accepted; connected clients are unaffected.
                let _ = epoll::modify(&self.epoll, listener, data, EventFlags::IN);
            }
        }
    }

    /// Registers a descriptor with epoll, and returns its key.
    fn register(&mut self, source: &impl AsFd) -> io::Result<u64> {
        let key = self.next_key;
        epoll::add(&self.epoll, source, EventData::new_u64(key), EventFlags::IN)?;
        self.next_key += 1;
        Ok(key)
    }
}

/// Whether to continue.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}
