//! The sockets of virtio vifs, and the process that opens them for the backend, without a file
//! system: what is at a path is part of the world.

use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Instant;

use ringway_host_shell::SessionEvent;
use ringway_vhost::backend::AreaRequest;
use ringway_vhost_shell::{Connection, ConnectionSource, Obstacle, SessionSource};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::canary::Canary;

/// Why there is neither a connection nor an area.
const SHORTAGE: &str = "Too many open files";

/// A file that holds zeros.
pub(crate) fn zeros(len: u64) -> OwnedFd {
    let file = memfd_create("zeros", MemfdFlags::CLOEXEC).expect("a world needs few descriptors");
    ftruncate(&file, len).expect("a world needs little memory");
    file
}

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
    /// An area that is to be sent to the front-end.
    wanted: Option<AreaRequest>,
}

/// Where the connections of one virtio vif come from, for its session.
#[derive(Debug)]
pub(crate) struct Source {
    shared: Rc<RefCell<Shared>>,
    connection: Option<OwnedFd>,
    obstacle: Option<Obstacle>,
    canary: Option<Canary>,
}

impl SessionSource for Source {
    fn connected(&mut self, connection: OwnedFd) {
        (self.connection, self.obstacle) = (Some(connection), None);
    }

    fn waits(&mut self, obstacle: Obstacle) {
        if self.canary != Some(Canary::HiddenObstacle) {
            self.obstacle = Some(obstacle);
        }
    }

    fn send_area_order(&self, wanted: AreaRequest) -> io::Result<()> {
        self.shared.borrow_mut().wanted = Some(wanted);
        Ok(())
    }
}

impl ConnectionSource for Source {
    fn poll_connection(&mut self, _: Instant) -> io::Result<Option<OwnedFd>> {
        Ok(self.connection.take())
    }

    fn disconnected(&mut self, _: Instant) {
        let shared = &mut *self.shared.borrow_mut();
        (shared.is_connected, shared.wanted) = (false, None);
    }

    fn worked(&mut self) {}

    fn defer_until(&mut self, _: Instant) {}

    fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref()
    }

    fn awaited(&self) -> Obstacle {
        Obstacle::absence("no front-end is connected".to_owned())
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
    /// The next connection or area finds no descriptor left.
    pub(crate) has_shortage: bool,
    reported: Option<String>,
    /// The last connection, for areas.
    connection: Option<Connection>,
}

impl Opener {
    /// An opener of a socket that exists.
    pub(crate) fn new() -> Opener {
        let shared = Rc::default();
        let found = Found::Socket;
        Opener { shared, found, has_shortage: false, reported: None, connection: None }
    }

    /// A process of the backend begins: it knows nothing of the last one's connection.
    pub(crate) fn begin(&mut self, canary: Option<Canary>) -> Source {
        self.shared = Rc::default();
        (self.reported, self.connection) = (None, None);
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

    /// Sends the area that the session wants, or tries to connect a front-end, if this process
    /// waits for that. Returns what the session has to learn, and the end of the front-end.
    pub(crate) fn turn(&mut self, waiting: Option<u32>) -> Option<(SessionEvent, Option<OwnedFd>)> {
        let wanted = self.shared.borrow_mut().wanted.take();
        if let Some(wanted) = wanted {
            return Some((SessionEvent::AreaSent(self.send_area(wanted)), None));
        }
        if self.shared.borrow().is_connected {
            return None;
        }
        let shortage = std::mem::take(&mut self.has_shortage).then_some(SHORTAGE);
        let obstacle = shortage.or(self.found.obstacle());
        let (None, Some(process)) = (obstacle, waiting) else {
            let reason = obstacle.unwrap_or("no one listens there").to_owned();
            let is_new = self.reported.as_ref() != Some(&reason);
            self.reported = Some(reason.clone());
            let is_absence = shortage.is_none() && self.found != Found::OtherFile;
            let waits = SessionEvent::Waits(Obstacle { reason, is_absence });
            return is_new.then_some((waits, None));
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (own, peer) = pair.expect("a world needs few descriptors");
        self.connection = own.try_clone().ok().map(Connection::new);
        *self.shared.borrow_mut() =
            Shared { process: Some(process), is_connected: true, wanted: None };
        self.reported = None;
        Some((SessionEvent::Connected(own), Some(peer)))
    }

    /// Sends an area of zeros.
    fn send_area(&mut self, wanted: AreaRequest) -> Result<(), String> {
        let connection = self.connection.as_mut().filter(|_| !self.has_shortage);
        self.has_shortage = false;
        let sent = connection.map(|it| it.send(wanted.reply(zeros(wanted.len))));
        sent.ok_or(SHORTAGE)?.map_err(|error| error.to_string())
    }
}
