//! The front-end's end of a vhost-user socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use ringway_vhost::frontend::{Event, Negotiated, Preferences};
use ringway_vhost::{Area, Frontend, Region, Request};
use rustix::event::PollFlags;

use crate::TURN_READS;
use crate::backend::Note;
use crate::connection::{Broken, Connection, Received};
use crate::endpoint::{ConnectionSource, Endpoint};

/// The process around a session: it owns memory and rings, and uses the frames.
///
/// An error from a method ends the connection, and the reason is reported.
pub trait Driver {
    /// What to negotiate with the next back-end.
    fn preferences(&self) -> Preferences;

    /// Makes memory and rings for the negotiated features, or returns those of the previous
    /// back-end together with the area in which that one recorded chains in flight.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn make(&mut self, negotiated: Negotiated) -> Result<Parts, String>;

    /// Takes an area that a request of [`Driver::make`] asked for. Returns the next requests.
    ///
    /// # Errors
    /// Why the area cannot be used.
    fn take_area(&mut self, area: Area) -> Result<Vec<Request>, String>;

    /// The back-end has everything it needs: frames may flow.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn carrier_up(&mut self) -> Result<(), String>;

    /// The connection is closed.
    fn carrier_down(&mut self);

    /// Passes a note for the log.
    fn note(&mut self, note: Note<'_>);
}

/// What to pass to a back-end.
#[derive(Debug)]
pub struct Parts {
    /// Memory.
    pub regions: Vec<Region>,
    /// Further requests, in order.
    pub requests: Vec<Request>,
}

/// Serves one session after another, at one place.
#[derive(Debug)]
pub struct FrontendEnd {
    endpoint: Endpoint,
    connected: Option<Connected>,
    error: Option<String>,
}

#[derive(Debug)]
struct Connected {
    connection: Connection,
    session: Frontend,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Negotiation is in progress.
    Agrees,
    /// Memory and rings are being passed.
    Shares,
    /// The status of the driver is being passed.
    Finishes,
    /// Frames flow.
    Up,
}

impl FrontendEnd {
    /// An end without a back-end.
    pub fn new(endpoint: Endpoint) -> FrontendEnd {
        FrontendEnd { endpoint, connected: None, error: None }
    }

    /// What to wait for before the next turn.
    pub fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let Some(connected) = &self.connected else {
            return self.endpoint.waker().map(|fd| (fd, PollFlags::IN));
        };
        let room =
            if connected.connection.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
        Some((connected.connection.as_fd(), PollFlags::IN | room))
    }

    /// When to take a turn even without an event.
    pub fn due(&self) -> Option<Instant> {
        if self.connected.is_some() { None } else { self.endpoint.due() }
    }

    /// Whether frames flow.
    pub fn is_up(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| connected.stage == Stage::Up)
    }

    /// Why they do not, as far as it is known.
    pub fn error(&self) -> Option<&str> {
        let obstacle = || self.endpoint.obstacle().map(|it| it.reason.as_str());
        self.error.as_deref().or_else(obstacle)
    }

    /// Does the pending work, within bounds. Returns whether there may be more.
    ///
    /// # Errors
    /// If no back-end can connect any more.
    pub fn turn(&mut self, driver: &mut impl Driver, now: Instant) -> io::Result<bool> {
        if self.connected.is_none() {
            let Some(socket) = self.endpoint.poll_connection(now)? else { return Ok(false) };
            let (connection, session) =
                (Connection::new(socket), Frontend::new(driver.preferences()));
            self.connected = Some(Connected { connection, session, stage: Stage::Agrees });
            driver.note(Note::Connected);
        }
        let Some(connected) = &mut self.connected else { return Ok(false) };
        let outcome = connected.turn(driver);
        if connected.stage == Stage::Up {
            self.endpoint.worked();
            self.error = None;
        }
        match outcome {
            Ok(Outcome::More) => Ok(true),
            Ok(Outcome::Waits) => Ok(false),
            Ok(Outcome::End) => {
                driver.note(Note::Disconnected);
                self.leave(driver, now);
                Ok(false)
            }
            Err(broken) => {
                self.close(driver, &broken.to_string(), now);
                Ok(false)
            }
        }
    }

    /// Closes the connection for a reason of ours, such as a back-end's violation of the rings.
    pub fn close(&mut self, driver: &mut impl Driver, reason: &str, now: Instant) {
        if self.connected.is_some() {
            driver.note(Note::Closed(reason));
            self.error = Some(reason.to_owned());
            self.leave(driver, now);
        }
    }

    fn leave(&mut self, driver: &mut impl Driver, now: Instant) {
        self.connected = None;
        driver.carrier_down();
        self.endpoint.disconnected(now);
    }
}

enum Outcome {
    More,
    Waits,
    End,
}

impl Connected {
    fn turn(&mut self, driver: &mut impl Driver) -> Result<Outcome, Broken> {
        self.run_actions(driver)?;
        for _ in 0..TURN_READS {
            match self.connection.receive()? {
                Received::Message(message) => {
                    self.session.take(message)?;
                    self.run_actions(driver)?;
                }
                Received::Part => {}
                Received::Nothing => return Ok(Outcome::Waits),
                Received::End => return Ok(Outcome::End),
            }
        }
        Ok(Outcome::More)
    }

    fn run_actions(&mut self, driver: &mut impl Driver) -> Result<(), Broken> {
        while let Some(event) = self.session.next_event() {
            let requests = match event {
                Event::Negotiated(negotiated) => {
                    let Parts { regions, requests } =
                        driver.make(negotiated).map_err(Broken::Failed)?;
                    self.session.share(regions);
                    self.stage = Stage::Shares;
                    requests
                }
                Event::Area(area) => driver.take_area(area).map_err(Broken::Failed)?,
                _ => continue,
            };
            requests.into_iter().for_each(|request| self.session.ask(request));
        }
        self.connection.flush()?;
        // Messages that the socket has no room for stay in the session, in order.
        while !self.connection.has_unsent() {
            match self.session.next_message() {
                Some(message) => self.connection.send(message)?,
                None if self.session.is_waiting() => break,
                None if self.stage == Stage::Shares => {
                    self.stage = Stage::Finishes;
                    self.session.finish();
                }
                None if self.stage == Stage::Finishes => {
                    self.stage = Stage::Up;
                    driver.carrier_up().map_err(Broken::Failed)?;
                }
                None => break,
            }
        }
        Ok(())
    }
}
