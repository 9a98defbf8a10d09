//! The front-end's end of a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use ringway_vhost::frontend::{Agreement, Event, Wish};
use ringway_vhost::{Area, Frontend, Region, Request};
use rustix::event::PollFlags;

use crate::TURN_READS;
use crate::backend::Note;
use crate::connection::{Broken, Connection, Received};
use crate::meeting::{Meeting, Place};

/// The process around a session: memory, rings, and what the frames are for.
///
/// What it refuses ends the connection, and the reason is shown.
pub trait Driver {
    /// What would be used of the next back-end.
    fn wish(&self) -> Wish;

    /// Makes memory and rings for what was agreed on, or has those that an earlier back-end had,
    /// with the area in which that one noted what was under way.
    ///
    /// # Errors
    /// Why not.
    fn make(&mut self, agreed: Agreement) -> Result<Parts, String>;

    /// An area came that a request of [`Driver::make`] asked for: what is to be asked for next.
    ///
    /// # Errors
    /// Why it is of no use.
    fn take_area(&mut self, area: Area) -> Result<Vec<Request>, String>;

    /// The back-end has all it needs: frames may flow.
    ///
    /// # Errors
    /// Why they cannot.
    fn carrier_up(&mut self) -> Result<(), String>;

    /// The connection is gone.
    fn carrier_down(&mut self);

    /// Something for the log.
    fn note(&mut self, note: Note<'_>);
}

/// What a back-end is handed.
#[derive(Debug)]
pub struct Parts {
    /// Memory.
    pub regions: Vec<Region>,
    /// What else is asked for, in order.
    pub requests: Vec<Request>,
}

/// One session after another, at one place.
#[derive(Debug)]
pub struct FrontendEnd {
    meeting: Meeting,
    met: Option<Met>,
    error: Option<String>,
}

#[derive(Debug)]
struct Met {
    connection: Connection,
    session: Frontend,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// What is used is being agreed on.
    Agrees,
    /// Memory and rings are on their way.
    Shares,
    /// Frames flow.
    Up,
}

impl FrontendEnd {
    /// An end without a back-end.
    pub fn new(meeting: Meeting) -> FrontendEnd {
        FrontendEnd { meeting, met: None, error: None }
    }

    /// What to wait for before the next turn.
    pub fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let Some(met) = &self.met else {
            return self.meeting.waker().map(|fd| (fd, PollFlags::IN));
        };
        let room = if met.connection.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
        Some((met.connection.as_fd(), PollFlags::IN | room))
    }

    /// When there is to be a turn though nothing happens.
    pub fn due(&self) -> Option<Instant> {
        if self.met.is_some() { None } else { self.meeting.due() }
    }

    /// Whether frames flow.
    pub fn is_up(&self) -> bool {
        self.met.as_ref().is_some_and(|met| met.stage == Stage::Up)
    }

    /// Why they do not, as far as it is known.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref().or(self.meeting.obstacle())
    }

    /// Does what there is to do, within bounds; whether there may be more.
    ///
    /// # Errors
    /// If no back-end can be met any more.
    pub fn turn(&mut self, driver: &mut impl Driver, now: Instant) -> io::Result<bool> {
        if self.met.is_none() {
            let Some(socket) = self.meeting.meet(now)? else { return Ok(false) };
            let (connection, session) = (Connection::new(socket), Frontend::new(driver.wish()));
            self.met = Some(Met { connection, session, stage: Stage::Agrees });
            driver.note(Note::Met);
        }
        let Some(met) = &mut self.met else { return Ok(false) };
        let outcome = met.turn(driver);
        if met.stage == Stage::Up {
            self.meeting.was_good();
            self.error = None;
        }
        match outcome {
            Ok(Outcome::More) => Ok(true),
            Ok(Outcome::Waits) => Ok(false),
            Ok(Outcome::End) => {
                driver.note(Note::Left);
                self.leave(driver, now);
                Ok(false)
            }
            Err(broken) => {
                self.close(driver, &broken.to_string(), now);
                Ok(false)
            }
        }
    }

    /// Closes the connection, such as for what a back-end did to the rings.
    pub fn close(&mut self, driver: &mut impl Driver, reason: &str, now: Instant) {
        if self.met.is_some() {
            driver.note(Note::Closed(reason));
            self.error = Some(reason.to_owned());
            self.leave(driver, now);
        }
    }

    fn leave(&mut self, driver: &mut impl Driver, now: Instant) {
        self.met = None;
        driver.carrier_down();
        self.meeting.again(now);
    }
}

enum Outcome {
    More,
    Waits,
    End,
}

impl Met {
    fn turn(&mut self, driver: &mut impl Driver) -> Result<Outcome, Broken> {
        self.act(driver)?;
        for _ in 0..TURN_READS {
            match self.connection.receive()? {
                Received::Message(message) => {
                    self.session.take(message)?;
                    self.act(driver)?;
                }
                Received::Part => {}
                Received::Nothing => return Ok(Outcome::Waits),
                Received::End => return Ok(Outcome::End),
            }
        }
        Ok(Outcome::More)
    }

    fn act(&mut self, driver: &mut impl Driver) -> Result<(), Broken> {
        while let Some(event) = self.session.next_event() {
            let requests = match event {
                Event::Agreed(agreed) => {
                    let Parts { regions, requests } =
                        driver.make(agreed).map_err(Broken::Undone)?;
                    self.session.share(regions);
                    self.stage = Stage::Shares;
                    requests
                }
                Event::Area(area) => driver.take_area(area).map_err(Broken::Undone)?,
                _ => continue,
            };
            requests.into_iter().for_each(|request| self.session.ask(request));
        }
        self.connection.flush()?;
        // What the back-end has no room for stays in the session, in order.
        while !self.connection.has_unsent() {
            match self.session.next_message() {
                Some(message) => self.connection.send(message)?,
                None if self.stage == Stage::Shares && !self.session.is_waiting() => {
                    self.stage = Stage::Up;
                    driver.carrier_up().map_err(Broken::Undone)?;
                }
                None => break,
            }
        }
        Ok(())
    }
}
