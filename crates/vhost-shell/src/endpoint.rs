//! Where connections come from.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, CWD, FileType, Gid, OFlags, chownat, fstat, inotify, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

/// Which end creates the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The front-end does, such as QEMU with `server=on`: we dial.
    Client,
    /// We do: the front-end dials.
    Server,
}

/// A group of the host that may connect to sockets that we create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketGroup {
    /// Its name, for messages.
    pub name: String,
    /// Its number.
    pub id: u32,
}

/// The first pause before an existing socket is dialled again.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest one.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a front-end must work before the next one is accepted without a pause. It equals the
/// longest pause, so that a front-end that works for a moment, breaks a rule and reconnects does so
/// rarely.
pub(crate) const WORKED_AFTER: Duration = RETRY_PAUSE_MAX;
/// Rights of a socket to which its user and its group may connect.
const RIGHTS_WITH_GROUP: fs::Mode = fs::Mode::from_bits_truncate(0o660);
/// Bytes of directory events that are read at once.
const EVENTS_LEN: usize = 4096;
/// Connections that may wait while one is active.
const BACKLOG: i32 = 1;

/// The kind of peer, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    FrontEnd,
    BackEnd,
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
    fn obstacle(&self) -> Option<&str>;

    /// What is awaited if there is no known obstacle, for people.
    fn awaited(&self) -> String;

    /// When to call [`ConnectionSource::poll_connection`] even if nothing is readable.
    fn due(&self) -> Option<Instant>;

    /// The descriptor to poll; none during a pause, or if another process polls it.
    fn waker(&self) -> Option<BorrowedFd<'_>>;
}

/// A socket path at which one front-end after another connects, or one back-end after another.
#[derive(Debug)]
pub struct Endpoint {
    peer: Peer,
    path: PathBuf,
    socket: Socket,
    pause: Duration,
    /// When to try again.
    due: Option<Instant>,
    /// Why there is no connection, for people.
    obstacle: Option<String>,
}

#[derive(Debug)]
enum Socket {
    /// Waits for the socket to appear in the watched directory.
    Dial {
        watch: OwnedFd,
    },
    Listen {
        socket: OwnedFd,
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

    /// The same; if we create the socket, the members of `group` may connect to it, as our own user
    /// may. The umask of this process changes for a moment, so nothing else may create files then.
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
            Mode::Server => Socket::Listen { socket: make_socket(path, group)? },
        };
        let due = (mode == Mode::Client).then_some(now);
        let (peer, path) = (Peer::FrontEnd, path.to_owned());
        Ok(Endpoint { peer, path, socket, pause: RETRY_PAUSE_MIN, due, obstacle: None })
    }

    /// The same, for a front-end that connects to back-ends.
    pub fn with_back_ends(self) -> Endpoint {
        Endpoint { peer: Peer::BackEnd, ..self }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Dials, or watches the directory in which the socket will appear.
    fn dial(&mut self, now: Instant) -> Option<OwnedFd> {
        // Before the attempt, so that a socket that appears in between is not missed.
        if let Err(obstacle) = self.watch_directory() {
            self.obstacle = Some(obstacle);
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
            Err(Errno::NOENT) if self.peer == Peer::BackEnd => format!(
                "{path} does not exist: the back-end must create it, such as ringway with \
                 mode = \"server\" in its [[vhost]]"
            ),
            Err(Errno::NOENT) => format!(
                "{path} does not exist: the front-end must create it (QEMU: -chardev \
                 socket,path={path},server=on; libvirt: mode='server')"
            ),
            // The socket file appears before its owner listens on it, and listening causes no
            // event.
            Err(Errno::CONNREFUSED)
                if self.path.metadata().is_ok_and(|it| !it.file_type().is_socket()) =>
            {
                self.disconnected(now);
                not_a_socket(&self.path)
            }
            Err(Errno::CONNREFUSED | Errno::AGAIN) => {
                self.disconnected(now);
                format!("{path}: the process that created this socket does not listen, or is busy")
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                self.disconnected(now);
                format!(
                    "{path}: no permission{}: it must be writable for the user of ringway",
                    rights(&self.path)
                )
            }
            Err(error) => {
                self.disconnected(now);
                format!("{path}: {}", io::Error::from(error))
            }
        };
        self.obstacle = Some(obstacle);
        None
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
    fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    fn awaited(&self) -> String {
        let path = self.path.display();
        match self.socket {
            Socket::Dial { .. } => format!("there is no front-end at {path} any more, or not yet"),
            Socket::Listen { .. } => format!(
                "no front-end has connected to {path} (QEMU: -chardev \
                 socket,path={path},reconnect=1; \
                 libvirt: mode='client')"
            ),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn worked(&mut self) {
        self.pause = RETRY_PAUSE_MIN;
    }

    fn defer_until(&mut self, until: Instant) {
        self.due = Some(until);
    }

    fn disconnected(&mut self, now: Instant) {
        self.due = Some(now + self.pause);
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
            Socket::Listen { socket } => {
                if self.due.is_some_and(|due| now < due) {
                    return Ok(None);
                }
                self.due = None;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(socket, flags) {
                    Ok(connection) => {
                        self.obstacle = None;
                        Ok(Some(connection))
                    }
                    Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
                    // A temporary shortage of the system is no reason to give up the socket.
                    Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                        let obstacle = at(&self.path, "accept")(error);
                        self.obstacle = Some(obstacle.to_string());
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
            Socket::Listen { socket } => socket.as_fd(),
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

fn dial(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&connection, &SocketAddrUnix::new(path)?)?;
    Ok(connection)
}

/// Removes a socket. Any other file stays, whatever path the administrator gave.
pub(crate) fn remove_socket(path: &Path) -> io::Result<()> {
    if is_other_file(path) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, not_a_socket(path)));
    }
    std::fs::remove_file(path)
}

/// Whether something other than a socket exists at a path; a link is not followed.
fn is_other_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.file_type().is_socket())
}

fn not_a_socket(path: &Path) -> String {
    let path = path.display();
    format!("{path} exists and is not a socket: choose another path, or remove it")
}

/// Creates a listening socket, replacing one that has no listener any more.
fn make_socket(path: &Path, group: Option<&SocketGroup>) -> io::Result<OwnedFd> {
    if is_other_file(path) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, not_a_socket(path)));
    }
    match dial(path) {
        Ok(_) => {
            let message = format!("{}: another process listens at it", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        Err(Errno::CONNREFUSED) => remove_socket(path)?,
        Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(at(path, "a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(at(path, "a socket's path"))?;
    let umask = group.map(|_| rustix::process::umask(RIGHTS_WITH_GROUP.complement()));
    let bound = bind(&socket, &address).map_err(at(path, "make the socket"));
    umask.map(rustix::process::umask);
    bound?;
    // No one can connect before it listens.
    let given = group.map_or(Ok(()), |group| give(path, group));
    let ready = given.and_then(|()| listen(&socket, BACKLOG).map_err(at(path, "listen")));
    if ready.is_err() {
        let _ = remove_socket(path);
    }
    ready.map(|()| socket)
}

/// Gives a new socket to a group. It follows no link at the end of the path, and changes nothing
/// but a socket.
fn give(path: &Path, group: &SocketGroup) -> io::Result<()> {
    let given = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, path, flags, fs::Mode::empty())?;
        if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_socket() {
            return Err(Errno::NOTSOCK);
        }
        chownat(&file, "", None, Some(Gid::from_raw(group.id)), AtFlags::EMPTY_PATH)
    };
    given().map_err(|error| {
        let error = io::Error::from(error);
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => ": the user of ringway must be in this group",
            io::ErrorKind::InvalidInput => ": ringway's user namespace does not have this group",
            _ => "",
        };
        let (path, name) = (path.display(), &group.name);
        let message = format!("{path}: give it to the group {name}: {error}{remedy}");
        io::Error::new(error.kind(), message)
    })
}

fn at(path: &Path, what: &'static str) -> impl Fn(Errno) -> io::Error {
    let path = path.display().to_string();
    move |error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{path}: {what}: {error}"))
    }
}
