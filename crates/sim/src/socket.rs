//! The sockets of virtio vifs, and the process that opens them for the backend, without a file
//! system: what is at a path is part of the world.

use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Instant;

use ringway_backend::{SessionEvent, SessionSource};
use ringway_vhost::backend::AreaRequest;
use ringway_vhost_shell::ConnectionSource;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::canary::Canary;

/// What is at the path of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Socket,
    Nothing,
    OtherFile,
}

impl Found {
    /// Why no one can connect there, if so.
    fn obstacle(self) -> Option<&'static str> {
        match self {
            Found::Socket => None,
            Found::Nothing => Some("the socket does not exist"),
            Found::OtherFile => Some("what is there is not a socket"),
        }
    }
}

/// What the opener knows of a session, and the other way round.
#[derive(Debug, Default)]
struct Shared {
    /// The front-end that has connected last.
    process: Option<u32>,
    is_connected: bool,
}

/// Where the connections of one virtio vif come from, for its session.
#[derive(Debug)]
pub(crate) struct Source {
    shared: Rc<RefCell<Shared>>,
    connection: Option<OwnedFd>,
    obstacle: Option<String>,
    canary: Option<Canary>,
}

impl SessionSource for Source {
    fn connected(&mut self, connection: OwnedFd) {
        (self.connection, self.obstacle) = (Some(connection), None);
    }

    fn waits(&mut self, reason: String) {
        if self.canary != Some(Canary::HiddenObstacle) {
            self.obstacle = Some(reason);
        }
    }

    fn send_area_order(&self, _: AreaRequest) -> io::Result<()> {
        Err(io::Error::other("no front-end of a world wants an inflight area"))
    }
}

impl ConnectionSource for Source {
    fn poll_connection(&mut self, _: Instant) -> io::Result<Option<OwnedFd>> {
        Ok(self.connection.take())
    }

    fn disconnected(&mut self, _: Instant) {
        self.shared.borrow_mut().is_connected = false;
    }

    fn worked(&mut self) {}

    fn defer_until(&mut self, _: Instant) {}

    fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    fn awaited(&self) -> String {
        "no front-end is connected".to_owned()
    }

    fn due(&self) -> Option<Instant> {
        None
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn process_of(&self, _: &OwnedFd) -> Option<u32> {
        self.shared.borrow().process
    }

    fn discard(&self, connection: impl Send + 'static) -> Option<JoinHandle<()>> {
        drop(connection);
        None
    }
}

/// The opener of one socket.
#[derive(Debug)]
pub(crate) struct Opener {
    shared: Rc<RefCell<Shared>>,
    pub(crate) found: Found,
    /// The next attempt finds no descriptor left.
    pub(crate) has_shortage: bool,
    reported: Option<String>,
}

impl Opener {
    /// An opener of a socket that exists.
    pub(crate) fn new() -> Opener {
        let shared = Rc::default();
        Opener { shared, found: Found::Socket, has_shortage: false, reported: None }
    }

    /// A process of the backend begins: it knows nothing of the last one's connection.
    pub(crate) fn begin(&mut self, canary: Option<Canary>) -> Source {
        self.shared = Rc::default();
        self.reported = None;
        let shared = Rc::clone(&self.shared);
        Source { shared, connection: None, obstacle: None, canary }
    }

    /// Why there is no connection, as far as it was reported.
    pub(crate) fn reported(&self) -> Option<&str> {
        self.reported.as_deref()
    }

    /// Whether a front-end has connected since the process of the backend began.
    pub(crate) fn has_connected(&self) -> bool {
        self.shared.borrow().process.is_some()
    }

    /// Tries to connect a front-end, if this process waits for that. Returns what the session has
    /// to learn, and the end of the front-end.
    pub(crate) fn turn(&mut self, waiting: Option<u32>) -> Option<(SessionEvent, Option<OwnedFd>)> {
        if self.shared.borrow().is_connected {
            return None;
        }
        let shortage = std::mem::take(&mut self.has_shortage).then_some("Too many open files");
        let obstacle = shortage.or(self.found.obstacle());
        let (None, Some(process)) = (obstacle, waiting) else {
            let reason = obstacle.unwrap_or("no one listens there").to_owned();
            let is_new = self.reported.as_ref() != Some(&reason);
            self.reported = Some(reason.clone());
            return is_new.then_some((SessionEvent::Waits(reason), None));
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (own, peer) = pair.expect("a world needs few descriptors");
        *self.shared.borrow_mut() = Shared { process: Some(process), is_connected: true };
        self.reported = None;
        Some((SessionEvent::Connected(own), Some(peer)))
    }
}
