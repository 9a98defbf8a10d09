//! Sockets for a process that may open none: the other end of a link to it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_control::{AreaWanted, Link, OpenerNews, OpenerOrder, Received};
use ringway_vhost::RING_SIZE_MAX;
use ringway_vhost::backend::{PAIRS_MAX, Wanted as Area};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::Value;

use crate::connection::Connection;
use crate::meeting::{Meeting, Mode, Place};

/// How long a socket that could not be made is left alone: at first as long as an earlier process
/// may take to end that still has it, then twice as long each time.
const RETRY_FIRST: Duration = Duration::from_millis(10);
/// The same at most.
const RETRY_LAST: Duration = Duration::from_secs(2);
/// The same for a message that the backend has no room for.
const RESEND: Duration = Duration::from_millis(10);
/// Areas that one front-end gets over one connection: one, or one for each pair of queues.
const AREAS_MAX: u16 = PAIRS_MAX;
/// How often it is looked whether a connection is closed, before there is another.
const CLOSING_LOOK: Duration = Duration::from_millis(100);
/// Orders that are taken in a turn.
const ORDERS_MAX: usize = 256;

/// All sockets of one backend.
#[derive(Debug)]
pub struct Opener {
    link: Link,
    places: BTreeMap<String, Opened>,
    unsent: VecDeque<(OpenerNews, Option<OwnedFd>)>,
    resend: Option<Instant>,
}

/// A vif, and the place of its socket.
#[derive(Debug)]
pub struct Wanted {
    /// What the vif is called.
    pub name: String,
    /// Where its socket is.
    pub path: PathBuf,
    /// Who makes it.
    pub mode: Mode,
    /// Its `[[vhost]]`, for the backend.
    pub vhost: Value,
    /// Whether it was added while the host ran.
    pub at_run_time: bool,
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    mode: Mode,
    meeting: Option<Meeting>,
    /// When to make a meeting that could not be made, and the pause after the next failure.
    due: Option<Instant>,
    pause: Duration,
    /// Whether the backend has a connection.
    is_used: bool,
    /// The same connection, for what the backend may not send.
    connection: Option<Connection>,
    /// Areas that were sent over it.
    areas: u16,
    /// What closes the last one: to close what a peer has sent and no one has read may take long.
    closing: Option<JoinHandle<()>>,
    /// When to see whether it has.
    next_look: Option<Instant>,
    /// What the backend was last shown as an obstacle.
    shown: Option<String>,
}

/// What a turn has brought.
#[derive(Debug)]
pub enum Turn {
    /// What the backend says has become of vifs that were added or removed.
    Outcomes(Vec<(String, Result<(), String>)>),
    /// The backend has ended.
    End,
}

impl Opener {
    /// One without sockets.
    pub fn new(link: Link) -> Opener {
        Opener { link, places: BTreeMap::new(), unsent: VecDeque::new(), resend: None }
    }

    /// Adds a vif that has been there before. A socket that cannot be made is tried again.
    pub fn add(&mut self, wanted: Wanted, now: Instant) {
        self.insert(wanted, None, Some(now));
    }

    /// Adds a new vif. The outcome is of a later turn.
    ///
    /// # Errors
    /// If its socket cannot be made.
    pub fn add_now(&mut self, wanted: Wanted, now: Instant) -> io::Result<()> {
        let meeting = Meeting::new(&wanted.path, wanted.mode, now)?;
        self.insert(wanted, Some(meeting), None);
        Ok(())
    }

    fn insert(&mut self, wanted: Wanted, meeting: Option<Meeting>, due: Option<Instant>) {
        let Wanted { name, path, mode, vhost, at_run_time } = wanted;
        self.send(OpenerNews::Added { name: name.clone(), vhost, at_run_time });
        let opened = Opened {
            path,
            mode,
            meeting,
            due,
            pause: RETRY_FIRST,
            is_used: false,
            connection: None,
            areas: 0,
            closing: None,
            next_look: None,
            shown: None,
        };
        self.places.insert(name, opened);
    }

    /// Lets the backend know that all vifs have been added that are there at its start.
    pub fn ready(&mut self) {
        self.send(OpenerNews::Ready);
    }

    /// Removes a vif, and its socket if it was made here. The outcome is of a later turn.
    pub fn remove(&mut self, name: &str) {
        self.forget(name);
        self.send(OpenerNews::Removed { name: name.to_owned() });
    }

    /// The same where the backend has not got it.
    pub fn forget(&mut self, name: &str) {
        let Some(mut opened) = self.places.remove(name) else { return };
        opened.close();
        if opened.mode == Mode::Server && opened.meeting.is_some() {
            // It may be gone already.
            let _ = std::fs::remove_file(&opened.path);
        }
    }

    /// Whether there is a vif of this name, or at this path.
    pub fn has(&self, name: &str, path: &Path) -> bool {
        self.places.iter().any(|(known, opened)| known == name || opened.path == path)
    }

    /// Does what there is to do.
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
                    outcomes.push((name, error.map_or(Ok(()), Err)));
                }
                Received::Message(OpenerOrder::Again { name, was_good }, _) => {
                    self.again(&name, was_good, now);
                }
                Received::Message(OpenerOrder::Area { name, wanted }, _) => {
                    let opened = self.places.get_mut(&name);
                    let opened = opened.ok_or_else(|| "the vif is gone".to_owned());
                    let error = opened.and_then(|opened| opened.send_area(wanted)).err();
                    self.send(OpenerNews::AreaSent { name, error });
                }
            }
        }
        let mut news = Vec::new();
        for (name, opened) in &mut self.places {
            news.extend(opened.turn(name, now));
        }
        for (news, connection) in news {
            self.unsent.push_back((news, connection));
        }
        match self.flush(now) {
            // It has ended; what it had to say was taken above.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Turn::End),
            flushed => flushed.map(|()| Turn::Outcomes(outcomes)),
        }
    }

    fn again(&mut self, name: &str, was_good: bool, now: Instant) {
        let Some(opened) = self.places.get_mut(name) else { return };
        opened.is_used = false;
        opened.close();
        opened.shown = None;
        if let Some(meeting) = &mut opened.meeting {
            if was_good {
                meeting.was_good();
            }
            meeting.again(now);
        }
    }

    fn send(&mut self, news: OpenerNews) {
        self.unsent.push_back((news, None));
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.resend = None;
        while let Some((news, connection)) = self.unsent.front() {
            let files: Vec<BorrowedFd<'_>> = connection.iter().map(AsFd::as_fd).collect();
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

    /// When to have a turn though nothing is readable.
    pub fn due(&self) -> Option<Instant> {
        let places = self.places.values().filter_map(Opened::due);
        places.chain(self.resend).min()
    }

    /// What to wait for.
    pub fn wakers(&self) -> Vec<BorrowedFd<'_>> {
        let waits = |opened: &&Opened| !opened.is_used && opened.next_look.is_none();
        let places = self.places.values().filter(waits);
        let places = places.filter_map(|opened| opened.meeting.as_ref()?.waker());
        [self.link.as_fd()].into_iter().chain(places).collect()
    }
}

impl Opened {
    /// Makes an area and sends it to the front-end, in reply to its request. It has room for that,
    /// or reads none of its replies.
    fn send_area(&mut self, wanted: AreaWanted) -> Result<(), String> {
        let AreaWanted { rings, size, len } = wanted;
        let Some(connection) = &mut self.connection else {
            return Err("there is no front-end to get an area".to_owned());
        };
        let rings_max = 2 * u64::from(PAIRS_MAX);
        let len_max = rings_max * (u64::from(RING_SIZE_MAX) + 2) * AREA_DESC_LEN;
        if u64::from(rings) > rings_max || len > len_max {
            return Err(format!("an area of {len} bytes, expected at most {len_max}"));
        }
        if self.areas == AREAS_MAX {
            return Err(format!("the front-end asks for more than {AREAS_MAX} areas (inflight)"));
        }
        self.areas += 1;
        let file = make_area(len).map_err(|error| format!("memory for an area: {error}"))?;
        let reply = Area { rings, size, len }.reply(file);
        connection.send(reply).map_err(|error| error.to_string())?;
        match connection.has_unsent() {
            true => Err("the front-end has no room for the descriptor of an area".to_owned()),
            false => Ok(()),
        }
    }

    /// Lets go of the connection. What its peer has sent and no one has read goes with it, and may
    /// take as long to close as who keeps it likes.
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

    fn turn(&mut self, name: &str, now: Instant) -> Option<(OpenerNews, Option<OwnedFd>)> {
        if self.is_used {
            return None;
        }
        match self.look(now) {
            Ok(None) => self.waits(name, None),
            Ok(Some(connection)) => {
                self.is_used = true;
                // Without it, an area that is asked for is refused.
                self.connection = connection.try_clone().ok().map(Connection::new);
                Some((OpenerNews::Connected { name: name.to_owned() }, Some(connection)))
            }
            Err(error) => {
                self.meeting = None;
                self.due = Some(now + self.pause);
                self.pause = (2 * self.pause).min(RETRY_LAST);
                self.waits(name, Some(error.to_string()))
            }
        }
    }

    fn look(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        self.next_look = self.is_closing().then(|| now + CLOSING_LOOK);
        if self.next_look.is_some() {
            return Ok(None);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.meeting = Some(Meeting::new(&self.path, self.mode, now)?);
            self.pause = RETRY_FIRST;
        }
        self.meeting.as_mut().map_or(Ok(None), |meeting| meeting.meet(now))
    }

    /// What to show, if it is new.
    fn waits(
        &mut self,
        name: &str,
        failure: Option<String>,
    ) -> Option<(OpenerNews, Option<OwnedFd>)> {
        let reason = failure.or_else(|| {
            let meeting = self.meeting.as_ref()?;
            Some(meeting.obstacle().map_or_else(|| meeting.awaited(), str::to_owned))
        })?;
        if self.shown.as_ref() == Some(&reason) {
            return None;
        }
        self.shown = Some(reason.clone());
        Some((OpenerNews::Waits { name: name.to_owned(), reason }, None))
    }

    fn due(&self) -> Option<Instant> {
        match (&self.meeting, self.is_used) {
            (_, true) => None,
            _ if self.next_look.is_some() => self.next_look,
            (Some(meeting), _) => meeting.due(),
            (None, _) => self.due,
        }
    }
}

/// Bytes of a descriptor in an area, at most: those of a packed ring.
const AREA_DESC_LEN: u64 = 32;

/// A file of zeros whose length stays.
fn make_area(len: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("ringway-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
