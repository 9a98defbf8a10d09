//! Where connections come from.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

/// Who makes the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The front-end, such as QEMU with `server=on`: we dial.
    Client,
    /// We do: the front-end dials.
    Server,
}

/// The first pause before a socket that is there is dialled once more.
const RETRY_FIRST: Duration = Duration::from_millis(10);
/// The longest one.
const RETRY_LAST: Duration = Duration::from_secs(10);
/// How long a front-end has to work well before the next one need not wait: the longest pause, so
/// that one that works for a moment, breaks a rule and comes back does so seldom.
pub(crate) const GOOD_AFTER: Duration = RETRY_LAST;
/// Events of a directory that are read at once.
const EVENTS_LEN: usize = 4096;
/// Connections that may wait while there is one.
const BACKLOG: i32 = 1;

/// Who is met, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    FrontEnd,
    BackEnd,
}

/// Where an end finds its connections.
pub trait Place {
    /// Looks for a connection. To be called when the descriptor is readable, and when it is due.
    ///
    /// # Errors
    /// If none can be found any more.
    fn meet(&mut self, now: Instant) -> io::Result<Option<OwnedFd>>;

    /// The connection has ended: another is wanted.
    fn again(&mut self, now: Instant);

    /// A front-end has worked well for [`GOOD_AFTER`]: the next one need not wait.
    fn was_good(&mut self);

    /// Looks for no connection before then.
    fn put_off(&mut self, until: Instant);

    /// Why there is no connection yet, if that is known.
    fn obstacle(&self) -> Option<&str>;

    /// What is awaited while nothing is known to stand in the way, for people.
    fn awaited(&self) -> String;

    /// When to call [`Place::meet`] though nothing is readable.
    fn due(&self) -> Option<Instant>;

    /// What to wait for; nothing while a pause lasts, or where others wait for it.
    fn waker(&self) -> Option<BorrowedFd<'_>>;
}

/// A place at which one front-end after another is met, or one back-end.
#[derive(Debug)]
pub struct Meeting {
    peer: Peer,
    path: PathBuf,
    way: Way,
    pause: Duration,
    /// When to try once more.
    due: Option<Instant>,
    /// Why there is no connection, for people.
    obstacle: Option<String>,
}

#[derive(Debug)]
enum Way {
    /// The directory is watched for the socket.
    Dial {
        watch: OwnedFd,
    },
    Listen {
        socket: OwnedFd,
    },
}

impl Meeting {
    /// Prepares to meet front-ends at `path`.
    ///
    /// # Errors
    /// If a socket cannot be made there, or the system has no room for another watch.
    pub fn new(path: &Path, mode: Mode, now: Instant) -> io::Result<Meeting> {
        let way = match mode {
            Mode::Client => {
                let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
                Way::Dial { watch: inotify::init(flags).map_err(at(path, "a watch"))? }
            }
            Mode::Server => Way::Listen { socket: make_socket(path)? },
        };
        let due = (mode == Mode::Client).then_some(now);
        let (peer, path) = (Peer::FrontEnd, path.to_owned());
        Ok(Meeting { peer, path, way, pause: RETRY_FIRST, due, obstacle: None })
    }

    /// The same, where a front-end looks for back-ends.
    pub fn with_back_ends(self) -> Meeting {
        Meeting { peer: Peer::BackEnd, ..self }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Dials, or has the directory watched in which the socket will appear.
    fn dial(&mut self, now: Instant) -> Option<OwnedFd> {
        // Before the attempt, so that no socket appears between the two.
        if let Err(obstacle) = self.watch_directory() {
            self.obstacle = Some(obstacle);
            self.again(now);
            return None;
        }
        let shown = self.path.clone();
        let path = shown.display();
        let obstacle = match dial(&self.path) {
            Ok(connection) => {
                self.obstacle = None;
                return Some(connection);
            }
            Err(Errno::NOENT) if self.peer == Peer::BackEnd => format!(
                "{path} does not exist: the back-end has to make it, such as ringway with \
                 mode = \"server\" in its [[vhost]]"
            ),
            Err(Errno::NOENT) => format!(
                "{path} does not exist: the front-end has to make it (QEMU: -chardev \
                 socket,path={path},server=on; libvirt: mode='server')"
            ),
            // It is made before it is listened at, and of the latter there is no event.
            Err(Errno::CONNREFUSED | Errno::AGAIN) => {
                self.again(now);
                format!("{path}: the process that made this socket does not listen, or is busy")
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                self.again(now);
                format!("{path}: no permission: it has to be writable for the user of ringway")
            }
            Err(error) => {
                self.again(now);
                format!("{path}: {}", io::Error::from(error))
            }
        };
        self.obstacle = Some(obstacle);
        None
    }

    fn watch_directory(&self) -> Result<(), String> {
        let Way::Dial { watch } = &self.way else { return Ok(()) };
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ATTRIB;
        // Where the directory is not there, its parent tells when it comes.
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

impl Place for Meeting {
    fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    fn awaited(&self) -> String {
        let path = self.path.display();
        match self.way {
            Way::Dial { .. } => format!("there is no front-end at {path} any more, or not yet"),
            Way::Listen { .. } => format!(
                "no front-end has dialled {path} (QEMU: -chardev socket,path={path},reconnect=1; \
                 libvirt: mode='client')"
            ),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn was_good(&mut self) {
        self.pause = RETRY_FIRST;
    }

    fn put_off(&mut self, until: Instant) {
        self.due = Some(until);
    }

    fn again(&mut self, now: Instant) {
        self.due = Some(now + self.pause);
        self.pause = (2 * self.pause).min(RETRY_LAST);
    }

    fn meet(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        match &self.way {
            Way::Dial { watch } => {
                let has_changed = take_events(watch);
                let is_due = self.due.is_some_and(|due| due <= now);
                // A pause after a peer that did not work holds whatever happens there; one after a
                // socket that could not be dialled ends with a change.
                let is_new = has_changed && (self.due.is_none() || self.obstacle.is_some());
                if !is_due && !is_new {
                    return Ok(None);
                }
                if is_new {
                    self.pause = RETRY_FIRST;
                }
                self.due = None;
                Ok(self.dial(now))
            }
            Way::Listen { socket } => {
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
                    // What others use up for a while is no reason to give the place up.
                    Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                        let obstacle = at(&self.path, "accept")(error);
                        self.obstacle = Some(obstacle.to_string());
                        self.again(now);
                        Ok(None)
                    }
                    Err(error) => Err(at(&self.path, "accept")(error)),
                }
            }
        }
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        let is_open = matches!(self.way, Way::Dial { .. }) || self.due.is_none();
        is_open.then(|| self.as_fd())
    }
}

impl AsFd for Meeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Dial { watch } => watch.as_fd(),
            Way::Listen { socket } => socket.as_fd(),
        }
    }
}

/// Takes the events of a watch; whether there were any.
fn take_events(watch: &OwnedFd) -> bool {
    let mut space = [MaybeUninit::uninit(); EVENTS_LEN];
    let mut reader = inotify::Reader::new(watch, &mut space);
    // What is left makes the descriptor readable again.
    reader.next().is_ok()
}

fn dial(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&connection, &SocketAddrUnix::new(path)?)?;
    Ok(connection)
}

/// Makes a socket to be dialled, in the place of one that has no listener any more.
fn make_socket(path: &Path) -> io::Result<OwnedFd> {
    match dial(path) {
        Ok(_) => {
            let message = format!("{}: another process listens at it", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(at(path, "a socket"))?;
    bind(&socket, &SocketAddrUnix::new(path).map_err(at(path, "a socket's path"))?)
        .map_err(at(path, "make the socket"))?;
    listen(&socket, BACKLOG).map_err(at(path, "listen"))?;
    Ok(socket)
}

fn at(path: &Path, what: &'static str) -> impl Fn(Errno) -> io::Error {
    let path = path.display().to_string();
    move |error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{path}: {what}: {error}"))
    }
}
