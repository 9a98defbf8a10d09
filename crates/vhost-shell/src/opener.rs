//! Opens sockets for a process that may open none: the other end of its link.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_control::{AreaWanted, DeviceWanted, Link, OpenerEvent, OpenerOrder, Received};
use ringway_vhost::RING_SIZE_MAX;
use ringway_vhost::backend::{AreaRequest, PAIRS_MAX};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::Value;

use crate::connection::Connection;
use crate::endpoint::{ConnectionSource, Endpoint, Mode, Obstacle};
use crate::namespaces::Namespaces;
use crate::socket_file::SocketGroup;

/// The first pause after a socket could not be created: the time that an earlier process with that
/// socket may need to end. It doubles with each failure.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2); // not a limit: a pause of our own
/// The pause before a message is sent again for which the other end of a link had no room.
pub(crate) const RESEND: Duration = Duration::from_millis(10);
/// The most areas for one front-end over one connection: one, or one for each pair of queues.
const AREAS_MAX: u16 = PAIRS_MAX;
/// The interval at which to check whether the last connection is closed, before the next is
/// accepted.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Orders of the backend that are handled in one turn.
const ORDERS_MAX: usize = 256; // not a limit: a batch, the rest follows

/// All sockets of one backend.
#[derive(Debug)]
pub struct Opener {
    link: Link,
    group: Arc<Group>,
    places: BTreeMap<String, Opened>,
    namespaces: Namespaces,
    unsent: VecDeque<(OpenerEvent, Vec<OwnedFd>)>,
    resend: Option<Instant>,
}

/// A vif, and its socket path.
#[derive(Debug)]
pub struct VifSocket {
    /// The name of the vif.
    pub name: String,
    /// Where its socket is.
    pub path: PathBuf,
    /// Which end creates the socket.
    pub mode: Mode,
    /// Its `[[vhost]]` section, for the backend.
    pub vhost: Value,
    /// Whether it was added while the host ran.
    pub at_run_time: bool,
}

/// The vif of a network namespace, and its device.
#[derive(Debug)]
pub struct VifNamespace {
    /// The name of the vif.
    pub name: String,
    /// The device.
    pub device: DeviceWanted,
    /// Its `[[namespace]]` section, for the backend.
    pub vhost: Value,
    /// Whether it was added while the host ran.
    pub at_run_time: bool,
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    mode: Mode,
    group: Arc<Group>,
    endpoint: Option<Endpoint>,
    /// When to try again to create an endpoint, and the pause after the next failure.
    due: Option<Instant>,
    pause: Duration,
    /// Whether the backend has a connection.
    is_connected: bool,
    /// That connection, for messages that the backend may not send.
    connection: Option<Connection>,
    /// Areas that were sent over it.
    areas: u16,
    /// The thread that closes the last connection: closing descriptors that a peer has sent and
    /// that were not read may take long.
    closing: Option<JoinHandle<()>>,
    /// When to check whether it has finished.
    next_close_check: Option<Instant>,
    /// The obstacle that was last reported to the backend.
    reported: Option<String>,
}

/// The result of a turn.
#[derive(Debug)]
pub enum Turn {
    /// What the backend says of vifs and descriptions, in order.
    Outcomes(Vec<Outcome>),
    /// The backend has ended.
    End,
}

/// What a backend says of a vif or a description.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The vif with this name was added or removed, or not, for this reason.
    Vif(String, Result<(), String>),
    /// The description that was sent is in force, or not, for this reason.
    Described(Result<Reloaded, String>),
    /// The description should be read again.
    ReloadWanted,
}

/// The vifs that a new description has, or has not any more, by name.
#[derive(Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// The opener adds these.
    pub added: Vec<String>,
    /// The backend has these no more.
    pub removed: Vec<String>,
}

impl Opener {
    /// An opener without sockets.
    pub fn new(link: Link) -> Opener {
        let (places, unsent) = (BTreeMap::new(), VecDeque::new());
        let namespaces = Namespaces::default();
        Opener { link, group: Arc::default(), places, namespaces, unsent, resend: None }
    }

    /// Lets a group connect to the sockets that it creates. If the group is unknown, no vif can
    /// have such a socket, and each has the reason.
    pub fn with_group(self, group: Result<SocketGroup, String>) -> Opener {
        Opener { group: Arc::new(Some(group)), ..self }
    }

    /// Has the process at the other end of a link make devices in network namespaces, if there is
    /// one.
    pub fn with_attacher(self, link: Option<Link>) -> Opener {
        Opener { namespaces: Namespaces::made_by(link), ..self }
    }

    /// Adds the vif of a network namespace. Its device may come later, and again and again.
    pub fn attach(&mut self, wanted: VifNamespace, now: Instant) {
        let VifNamespace { name, device, vhost, at_run_time } = wanted;
        let waits = self.namespaces.add(&name, device);
        self.send(OpenerEvent::Added { name, vhost, at_run_time });
        waits.into_iter().for_each(|waits| self.send(waits));
        self.resend = Some(now);
    }

    /// Adds a vif that has existed before. If its socket cannot be created, that is tried again.
    pub fn add(&mut self, wanted: VifSocket, now: Instant) {
        self.insert(wanted, None, Some(now));
    }

    /// Adds a new vif. A later turn returns the outcome.
    ///
    /// # Errors
    /// If its socket cannot be created.
    pub fn add_now(&mut self, wanted: VifSocket, now: Instant) -> io::Result<()> {
        let endpoint = endpoint(&wanted.path, wanted.mode, &self.group, now)?;
        self.insert(wanted, Some(endpoint), None);
        Ok(())
    }

    fn insert(&mut self, wanted: VifSocket, endpoint: Option<Endpoint>, due: Option<Instant>) {
        let VifSocket { name, path, mode, vhost, at_run_time } = wanted;
        self.send(OpenerEvent::Added { name: name.clone(), vhost, at_run_time });
        let opened = Opened {
            path,
            mode,
            group: Arc::clone(&self.group),
            endpoint,
            due,
            pause: RETRY_PAUSE_MIN,
            is_connected: false,
            connection: None,
            areas: 0,
            closing: None,
            next_close_check: None,
            reported: None,
        };
        self.places.insert(name, opened);
    }

    /// Reports to the backend that all vifs of the start have been added.
    pub fn ready(&mut self) {
        self.send(OpenerEvent::Ready);
    }

    /// Sends the backend all vifs of a description that was read again, with what it says of the
    /// switch and the uplink, and the keys of that with other values. A later turn returns the
    /// outcome.
    pub fn describe(
        &mut self,
        vhosts: Vec<Value>,
        (common, changed): (Value, Vec<String>),
        now: Instant,
    ) {
        vhosts.into_iter().for_each(|vhost| self.send(OpenerEvent::Described { vhost }));
        self.send(OpenerEvent::Reload { common, changed });
        // The order for it has come in this turn.
        self.resend = Some(now);
    }

    /// Tells the backend that the description that was read again is wrong.
    pub fn refuse(&mut self, now: Instant) {
        self.send(OpenerEvent::Refused);
        self.resend = Some(now);
    }

    /// Removes a vif, and its socket if we created it. A later turn returns the outcome.
    pub fn remove(&mut self, name: &str) {
        self.forget(name);
        self.send(OpenerEvent::Removed { name: name.to_owned() });
    }

    /// Removes a vif that the backend does not have.
    pub fn remove_unserved(&mut self, name: &str, now: Instant) {
        self.forget(name);
        // This may follow a turn, and its network device is removed by an order.
        self.resend = Some(now);
    }

    fn forget(&mut self, name: &str) {
        self.namespaces.remove(name);
        let Some(mut opened) = self.places.remove(name) else { return };
        opened.close();
        // The socket may not exist any more.
        let _ = opened.endpoint.map(|endpoint| endpoint.remove_socket());
    }

    /// Removes the sockets that we created.
    fn remove_sockets(&self) {
        for endpoint in self.places.values().filter_map(|opened| opened.endpoint.as_ref()) {
            // The next opener replaces one that stays.
            let _ = endpoint.remove_socket();
        }
    }

    /// Whether there is a vif with this name, or at this path.
    pub fn has(&self, name: &str, path: Option<&Path>) -> bool {
        let is_there = |opened: &Opened| path.is_some_and(|path| opened.path == path);
        self.namespaces.has(name)
            || self.places.iter().any(|(known, opened)| known == name || is_there(opened))
    }

    /// Does the pending work.
    ///
    /// # Errors
    /// What the link to the backend reports.
    pub fn turn(&mut self, now: Instant) -> io::Result<Turn> {
        let mut outcomes = Vec::new();
        for _ in 0..ORDERS_MAX {
            match self.link.receive()? {
                Received::Nothing => break,
                Received::End => return Ok(Turn::End),
                Received::Message(OpenerOrder::Done { name, error }, _) => {
                    outcomes.push(Outcome::Vif(name, error.map_or(Ok(()), Err)));
                }
                Received::Message(OpenerOrder::Reload, _) => outcomes.push(Outcome::ReloadWanted),
                Received::Message(OpenerOrder::Reloaded { added, removed, error }, _) => {
                    let reloaded = Reloaded { added, removed };
                    outcomes.push(Outcome::Described(error.map_or(Ok(reloaded), Err)));
                }
                Received::Message(OpenerOrder::Disconnected { name, has_worked }, _) => {
                    self.disconnected(&name, has_worked, now);
                }
                Received::Message(OpenerOrder::Area { name, wanted }, _) => {
                    let opened = self.places.get_mut(&name);
                    let opened = opened.ok_or_else(|| "the vif is gone".to_owned());
                    let error = opened.and_then(|opened| opened.send_area(wanted)).err();
                    self.send(OpenerEvent::AreaSent { name, error });
                }
                Received::Message(OpenerOrder::Leave, _) => {
                    self.remove_sockets();
                    return Ok(Turn::End);
                }
            }
        }
        for (name, opened) in &mut self.places {
            let news = opened.turn(name, now);
            let news = news.map(|(news, connection)| (news, Vec::from_iter(connection)));
            self.unsent.extend(news);
        }
        self.unsent.extend(self.namespaces.news()?);
        match self.flush(now) {
            // The backend has ended; its last messages were read above.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Turn::End),
            flushed => flushed.map(|()| Turn::Outcomes(outcomes)),
        }
    }

    fn disconnected(&mut self, name: &str, has_worked: bool, now: Instant) {
        self.namespaces.lost(name);
        let Some(opened) = self.places.get_mut(name) else { return };
        opened.is_connected = false;
        opened.close();
        opened.reported = None;
        if let Some(endpoint) = &mut opened.endpoint {
            if has_worked {
                endpoint.worked();
            }
            endpoint.disconnected(now);
        }
    }

    fn send(&mut self, news: OpenerEvent) {
        self.unsent.push_back((news, Vec::new()));
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.resend = self.namespaces.flush()?.then_some(now + RESEND);
        while let Some((news, files)) = self.unsent.front() {
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            match self.link.send(news, &files) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.resend = Some(now + RESEND);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// When to take a turn even if nothing is readable.
    pub fn due(&self) -> Option<Instant> {
        let places = self.places.values().filter_map(Opened::due);
        places.chain(self.resend).min()
    }

    /// The descriptors to poll.
    pub fn wakers(&self) -> Vec<BorrowedFd<'_>> {
        let waits = |opened: &&Opened| !opened.is_connected && opened.next_close_check.is_none();
        let places = self.places.values().filter(waits);
        let places = places.filter_map(|opened| opened.endpoint.as_ref()?.waker());
        [self.link.as_fd()].into_iter().chain(self.namespaces.waker()).chain(places).collect()
    }
}

impl Opened {
    /// Makes an area and sends it to the front-end, in reply to its request. The socket has room
    /// for that, unless the front-end reads none of its replies.
    fn send_area(&mut self, wanted: AreaWanted) -> Result<(), String> {
        let AreaWanted { rings, size, len } = wanted;
        let Some(connection) = &mut self.connection else {
            return Err("there is no front-end for an inflight area".to_owned());
        };
        let rings_max = 2 * u64::from(PAIRS_MAX);
        let len_max = rings_max * (u64::from(RING_SIZE_MAX) + 2) * AREA_DESC_LEN;
        if u64::from(rings) > rings_max || len > len_max {
            return Err(format!("an inflight area of {len} bytes, expected at most {len_max}"));
        }
        if self.areas == AREAS_MAX {
            return Err(format!("the front-end asks for more than {AREAS_MAX} inflight areas"));
        }
        self.areas += 1;
        let file =
            make_area(len).map_err(|error| format!("memory for an inflight area: {error}"))?;
        let reply = AreaRequest { rings, size, len }.reply(file);
        connection.send(reply).map_err(|error| error.to_string())?;
        match connection.has_unsent() {
            true => {
                Err("the front-end has no room for the descriptor of an inflight area".to_owned())
            }
            false => Ok(()),
        }
    }

    /// Closes the connection. That also closes descriptors that its peer has sent and that were not
    /// read, which may take as long as the processes behind them like.
    fn close(&mut self) {
        self.areas = 0;
        if let Some(connection) = self.connection.take() {
            let closing = thread::Builder::new().name("closing".to_owned());
            self.closing = closing.spawn(move || drop(connection)).ok();
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| !closing.is_finished())
    }

    fn turn(&mut self, name: &str, now: Instant) -> Option<(OpenerEvent, Option<OwnedFd>)> {
        if self.is_connected {
            return None;
        }
        match self.poll_connection(now) {
            Ok(None) => self.waiting(name, None),
            Ok(Some(connection)) => {
                self.is_connected = true;
                // Without it, requests for an area are refused.
                self.connection = connection.try_clone().ok().map(Connection::new);
                Some((OpenerEvent::Connected { name: name.to_owned() }, Some(connection)))
            }
            Err(error) => {
                self.endpoint = None;
                self.due = Some(now + self.pause);
                self.pause = (2 * self.pause).min(RETRY_PAUSE_MAX);
                self.waiting(name, Some(error.to_string()))
            }
        }
    }

    fn poll_connection(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        self.next_close_check = self.is_closing().then(|| now + CLOSE_POLL_INTERVAL);
        if self.next_close_check.is_some() {
            return Ok(None);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.endpoint = Some(endpoint(&self.path, self.mode, &self.group, now)?);
            self.pause = RETRY_PAUSE_MIN;
        }
        self.endpoint.as_mut().map_or(Ok(None), |endpoint| endpoint.poll_connection(now))
    }

    /// The obstacle to report, if it is new.
    fn waiting(
        &mut self,
        name: &str,
        failure: Option<String>,
    ) -> Option<(OpenerEvent, Option<OwnedFd>)> {
        let is_failure = failure.is_some();
        let Obstacle { reason, is_absence } = failure.map(Obstacle::fault).or_else(|| {
            let endpoint = self.endpoint.as_ref()?;
            Some(endpoint.obstacle().cloned().unwrap_or_else(|| endpoint.awaited()))
        })?;
        if self.reported.as_ref() == Some(&reason) {
            return None;
        }
        self.reported = Some(reason.clone());
        let name = name.to_owned();
        Some((OpenerEvent::Waiting { name, reason, is_failure, is_absence }, None))
    }

    fn due(&self) -> Option<Instant> {
        match (&self.endpoint, self.is_connected) {
            (_, true) => None,
            _ if self.next_close_check.is_some() => self.next_close_check,
            (Some(endpoint), _) => endpoint.due(),
            (None, _) => self.due,
        }
    }
}

/// The group that may connect to the sockets that we create, if there is one; or why it is unknown.
type Group = Option<Result<SocketGroup, String>>;

fn endpoint(path: &Path, mode: Mode, group: &Group, now: Instant) -> io::Result<Endpoint> {
    match group {
        Some(Err(unknown)) if mode == Mode::Server => Err(io::Error::other(unknown.clone())),
        group => {
            let group = group.as_ref().and_then(|group| group.as_ref().ok());
            Endpoint::for_group(path, mode, group, now)
        }
    }
}

/// The most bytes of a descriptor in an area: those of a packed ring.
const AREA_DESC_LEN: u64 = 32;

/// A zeroed file of fixed length.
fn make_area(len: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("ringway-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
