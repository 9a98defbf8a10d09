//! Sockets for a process that may open none: the other end of a link to it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringway_control::{Link, OpenerNews, OpenerOrder, Received};
use serde_json::Value;

use crate::meeting::{Meeting, Mode, Place};

/// How long a socket that could not be made is left alone.
const RETRY: Duration = Duration::from_secs(2);
/// The same for a message that the backend has no room for.
const RESEND: Duration = Duration::from_millis(10);
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
    /// When to make a meeting that could not be made.
    due: Option<Instant>,
    /// Whether the backend has a connection.
    is_used: bool,
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
        let opened = Opened { path, mode, meeting, due, is_used: false, shown: None };
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
        let Some(opened) = self.places.remove(name) else { return };
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
        let places = self.places.values().filter(|opened| !opened.is_used);
        let places = places.filter_map(|opened| opened.meeting.as_ref()?.waker());
        [self.link.as_fd()].into_iter().chain(places).collect()
    }
}

impl Opened {
    fn turn(&mut self, name: &str, now: Instant) -> Option<(OpenerNews, Option<OwnedFd>)> {
        if self.is_used {
            return None;
        }
        match self.look(now) {
            Ok(None) => self.waits(name, None),
            Ok(Some(connection)) => {
                self.is_used = true;
                Some((OpenerNews::Connected { name: name.to_owned() }, Some(connection)))
            }
            Err(error) => {
                self.meeting = None;
                self.due = Some(now + RETRY);
                self.waits(name, Some(error.to_string()))
            }
        }
    }

    fn look(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.meeting = Some(Meeting::new(&self.path, self.mode, now)?);
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
            (Some(meeting), _) => meeting.due(),
            (None, _) => self.due,
        }
    }
}
