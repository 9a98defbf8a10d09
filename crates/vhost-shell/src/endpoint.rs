//! Where connections come from.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_sys::process::peer_of;
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::socket_file::{
    Found, OwnSocket, SocketGroup, at, dial, foreign_link, missing_directory, not_a_socket,
    other_type,
};

/// Which end creates the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The front-end does, such as QEMU with `server=on`: we dial.
    Client,
    /// We do: the front-end dials.
    Server,
}

/// The first pause before an existing socket is connected to again.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest one.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a front-end must work before the next one is accepted without a pause. It equals the
/// longest pause, so that a front-end that works for a moment, breaks a rule and reconnects does so
/// rarely.
pub(crate) const WORKED_AFTER: Duration = RETRY_PAUSE_MAX;
/// Bytes of directory events that are read at once.
const EVENTS_LEN: usize = 4096;
/// How often to check that a socket that we created still exists while there is no front-end.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A check that is not yet due takes part in another turn after this time, so that many idle
/// endpoints wake their process no more often than a few.
const CHECK_EARLY: Duration = Duration::from_millis(2500);
/// Shorter pauses are not worth a message.
const REPORTED_PAUSE_MIN: Duration = Duration::from_secs(1);

/// The kind of peer, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    FrontEnd,
    BackEnd,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// For people.
    pub reason: String,
    /// Whether nothing is wrong: the other end, such as a machine that is off, is not there.
    pub is_absence: bool,
}

impl Obstacle {
    /// The other end is not there.
    pub fn absence(reason: String) -> Obstacle {
        Obstacle { reason, is_absence: true }
    }

    /// Something is wrong.
    pub fn fault(reason: String) -> Obstacle {
        Obstacle { reason, is_absence: false }
    }
}

/// A source of connections.
pub trait ConnectionSource {
    /// Tries to get a connection. Call it when the descriptor is readable, and when it is due.
    ///
    /// # Errors
    /// If no connection can be made any more.
    fn poll_connection(&mut self, now: Instant) -> io::Result<Option<OwnedFd>>;

    /// The connection has ended: the next one is wanted.
    fn disconnected(&mut self, now: Instant);

    /// A front-end has worked for [`WORKED_AFTER`]: the next one need not wait.
    fn worked(&mut self);

    /// Accepts no connection before then.
    fn defer_until(&mut self, until: Instant);

    /// Why there is no connection yet, if that is known.
    fn obstacle(&self) -> Option<&Obstacle>;

    /// What is awaited if there is no known obstacle.
    fn awaited(&self) -> Obstacle;

    /// When to call [`ConnectionSource::poll_connection`] even if nothing is readable.
    fn due(&self) -> Option<Instant>;

    /// The descriptor to poll; none during a pause, or if another process polls it.
    fn waker(&self) -> Option<BorrowedFd<'_>>;

    /// The process at the other end of a connection, if it is known: see [`peer_of`].
    fn process_of(&self, connection: &OwnedFd) -> Option<u32> {
        peer_of(connection).ok().flatten()
    }

    /// Drops what is left of a connection. If that takes as long as the process behind a descriptor
    /// likes, a thread does it, which is returned.
    fn discard(&self, connection: impl Send + 'static) -> Option<JoinHandle<()>> {
        let closing = thread::Builder::new().name("closing".to_owned());
        closing.spawn(move || drop(connection)).ok()
    }
}

/// A socket path at which one front-end after another connects, or one back-end after another.
#[derive(Debug)]
pub struct Endpoint {
    peer: Peer,
    path: PathBuf,
    socket: Socket,
    /// The pause after the next peer that does not work.
    pause: Duration,
    /// The present pause, if the last peer has disconnected.
    paused: Option<Duration>,
    /// When to try again.
    due: Option<Instant>,
    /// Why there is no connection.
    obstacle: Option<Obstacle>,
}

#[derive(Debug)]
enum Socket {
    /// Waits for the socket to appear in the watched directory.
    Dial { watch: OwnedFd },
    Listen {
        own: OwnSocket,
        group: Option<SocketGroup>,
        /// When to check that it still exists.
        check: Instant,
    },
}

impl Endpoint {
    /// Prepares to connect front-ends at `path`.
    ///
    /// # Errors
    /// If a socket cannot be created there, or the system has no room for another watch.
    pub fn new(path: &Path, mode: Mode, now: Instant) -> io::Result<Endpoint> {
        Endpoint::for_group(path, mode, None, now)
    }

    /// An endpoint at this path. If we create the socket, the members of `group` may connect to it,
    /// as our own user may. The umask of this process changes for a moment, here and when the
    /// socket is made again, so no other thread may create files then.
    ///
    /// # Errors
    /// Also if this process is not in the group and has no right to give files away.
    pub fn for_group(
        path: &Path,
        mode: Mode,
        group: Option<&SocketGroup>,
        now: Instant,
    ) -> io::Result<Endpoint> {
        let socket = match mode {
            Mode::Client => {
                let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
                Socket::Dial { watch: inotify::init(flags).map_err(at(path, "a watch"))? }
            }
            Mode::Server => {
                let own = OwnSocket::make(path, group)?;
                Socket::Listen { own, group: group.cloned(), check: now + CHECK_INTERVAL }
            }
        };
        let due = (mode == Mode::Client).then_some(now);
        let (peer, path) = (Peer::FrontEnd, path.to_owned());
        let (pause, paused) = (RETRY_PAUSE_MIN, None);
        Ok(Endpoint { peer, path, socket, pause, paused, due, obstacle: None })
    }

    /// Makes it the endpoint of a front-end, which connects to back-ends.
    pub fn with_back_ends(self) -> Endpoint {
        Endpoint { peer: Peer::BackEnd, ..self }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket if we created it. A socket that replaced it stays.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove_socket(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Dial { .. } => Ok(()),
            Socket::Listen { own, .. } => own.remove(),
        }
    }

    /// Makes our socket again if it was removed, for front-ends.
    fn check_socket(&mut self, now: Instant) {
        let Socket::Listen { own, group, check } = &mut self.socket else { return };
        if now + CHECK_EARLY < *check {
            return;
        }
        *check = now + CHECK_INTERVAL;
        let path = self.path.display();
        let fault = match own.find() {
            Found::Ours => None,
            // A guest's process can make no listener after its start: it is confined.
            Found::Nothing if self.peer == Peer::BackEnd => {
                Some(format!("the socket {path} was removed: start this guest again"))
            }
            Found::Nothing => match OwnSocket::make(&self.path, group.as_ref()) {
                Ok(made) => {
                    *own = made;
                    None
                }
                Err(error) => Some(format!("the socket was removed: {error}")),
            },
            Found::Other => Some(format!(
                "another process has replaced the socket {path} by a file of its own: end that \
                 process, and remove this file"
            )),
        };
        self.obstacle = fault.map(Obstacle::fault);
    }

    /// Dials, or watches the directory in which the socket will appear.
    fn dial(&mut self, now: Instant) -> Option<OwnedFd> {
        // Before the attempt, so that a socket that appears in between is not missed.
        if let Err(reason) = self.watch_directory() {
            self.obstacle = Some(Obstacle::fault(reason));
            self.disconnected(now);
            return None;
        }
        let reported = self.path.clone();
        let path = reported.display();
        let obstacle = match dial(&self.path) {
            Ok(connection) => {
                self.obstacle = None;
                return Some(connection);
            }
            Err(Errno::NOENT) if missing_directory(&self.path).is_some() => {
                Obstacle::fault(missing_directory(&self.path).unwrap_or_default())
            }
            Err(Errno::NOENT) if self.peer == Peer::BackEnd => Obstacle::absence(format!(
                "{path} does not exist: the back-end must create it, such as ringway with \
                 mode = \"server\" in its [[vhost]]"
            )),
            Err(Errno::NOENT) => Obstacle::absence(format!(
                "{path} does not exist: the front-end must create it (QEMU: -chardev \
                 socket,path={path},server=on; libvirt: mode='server')"
            )),
            Err(error) => {
                self.disconnected(now);
                self.refused(error)
            }
        };
        self.obstacle = Some(obstacle);
        None
    }

    /// What keeps us from a socket that exists.
    fn refused(&self, error: Errno) -> Obstacle {
        let path = self.path.display();
        let fault = match error {
            // The socket file appears before its owner listens on it, and listening causes no
            // event.
            Errno::CONNREFUSED
                if self.path.metadata().is_ok_and(|it| !it.file_type().is_socket()) =>
            {
                not_a_socket(&self.path)
            }
            Errno::CONNREFUSED | Errno::AGAIN => {
                return Obstacle::absence(format!(
                    "{path}: the process that created this socket does not listen, or is busy"
                ));
            }
            Errno::PROTOTYPE => other_type(&self.path),
            Errno::LOOP => foreign_link(&self.path),
            Errno::ACCESS | Errno::PERM => format!(
                "{path}: no permission{}: it must be writable for the user of ringway",
                rights(&self.path)
            ),
            error => format!("{path}: {}", io::Error::from(error)),
        };
        Obstacle::fault(fault)
    }

    fn watch_directory(&self) -> Result<(), String> {
        let Socket::Dial { watch } = &self.socket else { return Ok(()) };
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ATTRIB;
        // If the directory does not exist, watch its parent for it.
        let mut last = None;
        for dir in self.path.ancestors().skip(1) {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            match inotify::add_watch(watch, dir, flags) {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(format!("{}: {}", dir.display(), io::Error::from(error))),
            }
        }
        Err(last.unwrap_or_else(|| "there is no directory to watch".to_owned()))
    }
}

/// The owner and mode of a socket, if it can be seen, for messages.
fn rights(socket: &Path) -> String {
    socket.metadata().map_or_else(
        |_| String::new(),
        |found| format!(", user {} has it with mode {:o}", found.uid(), found.mode() & 0o7777),
    )
}

impl ConnectionSource for Endpoint {
    fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref()
    }

    fn awaited(&self) -> Obstacle {
        let path = self.path.display();
        match (&self.socket, self.paused) {
            (Socket::Dial { .. }, _) => {
                Obstacle::absence(format!("no front-end is listening at {path}"))
            }
            (Socket::Listen { .. }, Some(pause)) if pause >= REPORTED_PAUSE_MIN => {
                Obstacle::fault(format!(
                    "the next front-end is accepted at {path} in at most {} s, because earlier \
                     ones disconnected too soon",
                    pause.as_secs_f64().ceil()
                ))
            }
            (Socket::Listen { .. }, _) => Obstacle::absence(format!(
                "no front-end has connected to {path} (QEMU: -chardev \
                 socket,path={path},reconnect=1; \
                 libvirt: mode='client')"
            )),
        }
    }

    fn due(&self) -> Option<Instant> {
        match &self.socket {
            Socket::Dial { .. } => self.due,
            Socket::Listen { check, .. } => self.due.or(Some(*check)),
        }
    }

    fn worked(&mut self) {
        self.pause = RETRY_PAUSE_MIN;
    }

    fn defer_until(&mut self, until: Instant) {
        self.due = Some(until);
    }

    fn disconnected(&mut self, now: Instant) {
        if let Socket::Listen { check, .. } = &mut self.socket {
            *check = now;
        }
        self.due = Some(now + self.pause);
        self.paused = Some(self.pause);
        self.pause = (2 * self.pause).min(RETRY_PAUSE_MAX);
    }

    fn poll_connection(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        match &self.socket {
            Socket::Dial { watch } => {
                let has_changed = take_events(watch);
                let is_due = self.due.is_some_and(|due| due <= now);
                // A pause after a peer that did not work lasts whatever happens in the directory; a
                // pause after a failed dial ends with a change.
                let is_new = has_changed && (self.due.is_none() || self.obstacle.is_some());
                if !is_due && !is_new {
                    return Ok(None);
                }
                if is_new {
                    self.pause = RETRY_PAUSE_MIN;
                }
                self.due = None;
                Ok(self.dial(now))
            }
            Socket::Listen { own, .. } => {
                if self.due.is_some_and(|due| now < due) {
                    return Ok(None);
                }
                (self.due, self.paused) = (None, None);
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(&own.socket, flags) {
                    Ok(connection) => {
                        self.obstacle = None;
                        Ok(Some(connection))
                    }
                    // A front-end that connected before the socket was removed comes first.
                    Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {
                        self.check_socket(now);
                        Ok(None)
                    }
                    // A temporary shortage of the system is no reason to give up the socket.
                    Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                        let reason = at(&self.path, "accept")(error).to_string();
                        self.obstacle = Some(Obstacle::fault(reason));
                        self.disconnected(now);
                        Ok(None)
                    }
                    Err(error) => Err(at(&self.path, "accept")(error)),
                }
            }
        }
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        let is_open = matches!(self.socket, Socket::Dial { .. }) || self.due.is_none();
        is_open.then(|| self.as_fd())
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Dial { watch } => watch.as_fd(),
            Socket::Listen { own, .. } => own.socket.as_fd(),
        }
    }
}

/// Reads the events of a watch. Returns whether there were any.
fn take_events(watch: &OwnedFd) -> bool {
    let mut space = [MaybeUninit::uninit(); EVENTS_LEN];
    let mut reader = inotify::Reader::new(watch, &mut space);
    // Unread events keep the descriptor readable.
    reader.next().is_ok()
}
