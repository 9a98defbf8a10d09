//! The back-end's end of a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_sys::descriptor::{self, Kind};
use ringway_vhost::backend::{Action, Awaits, Bases, Log, Offer, Wanted};
use ringway_vhost::{Area, Backend, Message, PairPlan, Region, RegionKey};
use ringway_wire::vhost_user::Op;
use ringway_wire::virtio::Features;
use rustix::event::PollFlags;

use crate::connection::{Broken, Connection, Received};
use crate::meeting::{GOOD_AFTER, Meeting, Place};

/// Reads of a socket in one turn: a front-end that sends as fast as it can, or byte by byte, has no
/// more than that before others have theirs.
pub const TURN_READS: usize = 64;
/// How often it is looked whether a connection is closed, before there is another.
const CLOSING_LOOK: Duration = Duration::from_millis(100);

/// The process around a session: memory, rings, and the network.
///
/// What it refuses ends the connection, and the reason is shown.
pub trait Device {
    /// What is offered to the next front-end.
    fn offer(&self) -> Offer;

    /// Lets go of all memory, and maps this.
    ///
    /// # Errors
    /// Why not.
    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), String>;

    /// Maps one more region.
    ///
    /// # Errors
    /// Why not.
    fn add_region(&mut self, region: Region) -> Result<(), String>;

    /// Lets go of a region.
    ///
    /// # Errors
    /// Why not.
    fn remove_region(&mut self, region: RegionKey) -> Result<(), String>;

    /// Notes writes here from now on.
    ///
    /// # Errors
    /// Why not.
    fn set_log(&mut self, log: Log) -> Result<(), String>;

    /// Serves a pair from [`Device::settle`] on: more may change before.
    ///
    /// # Errors
    /// Why not.
    fn start(&mut self, plan: PairPlan) -> Result<(), String>;

    /// Stops a pair at once.
    fn stop(&mut self, pair: u16) -> Bases;

    /// All that a turn brought has been said.
    ///
    /// # Errors
    /// Why something of it cannot be done.
    fn settle(&mut self) -> Result<(), String>;

    /// Has the network know that a guest with this address is here.
    fn announce(&mut self, mac: [u8; 6]);

    /// The front-end shows its guest this MTU.
    fn set_mtu(&mut self, mtu: u16);

    /// Has the front-end replied to with an area of zeros, by someone who passes descriptors on: of
    /// this connection nothing is read before [`BackendEnd::area_came`].
    ///
    /// # Errors
    /// Why not.
    fn make_area(&mut self, wanted: Wanted) -> Result<(), String>;

    /// Goes on by what is noted here, and notes here what is under way.
    ///
    /// # Errors
    /// Why not.
    fn set_area(&mut self, area: Area) -> Result<(), String>;

    /// That area is of no more use.
    fn forget_area(&mut self);

    /// The guest has taken these features.
    fn agreed(&mut self, features: Features);

    /// The connection is gone: nothing is served, and no memory is mapped any more.
    fn reset(&mut self);

    /// Something for the log.
    fn note(&mut self, note: Note<'_>);
}

/// What happens to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    /// A front-end is there.
    Met,
    /// It has left.
    Left,
    /// Its connection was closed, for this reason.
    Closed(&'a str),
    /// Its connection was closed because a user wants no more of it.
    Removed,
    /// It is there and nothing is served any more, for this reason. It may go on; this is said once
    /// of a connection.
    Stopped(&'a str),
}

/// How far an end has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is no front-end.
    Alone,
    /// One is there, and something is missing.
    Awaits(Awaits),
    /// Frames can flow.
    Serves,
}

/// One session after another, at one place.
#[derive(Debug)]
pub struct BackendEnd<P = Meeting> {
    place: P,
    met: Option<Met>,
    error: Option<String>,
    /// What closes the last connection.
    closing: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Met {
    connection: Connection,
    session: Backend,
    features: Option<Features>,
    has_asked_queues: bool,
    has_said_taken_back: bool,
    /// Since when frames can flow.
    works_since: Option<Instant>,
    /// Descriptors that are not to be used, nor closed by this thread.
    unwanted: Vec<OwnedFd>,
    /// An area is on its way to the front-end, by another hand.
    awaits_area: bool,
}

impl<P: Place> BackendEnd<P> {
    /// An end without a front-end.
    pub fn new(place: P) -> BackendEnd<P> {
        BackendEnd { place, met: None, error: None, closing: None }
    }

    /// Where front-ends are met.
    pub fn place(&mut self) -> &mut P {
        &mut self.place
    }

    /// What to wait for before the next turn.
    pub fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let Some(met) = &self.met else {
            return self.place.waker().map(|fd| (fd, PollFlags::IN));
        };
        if met.awaits_area {
            return None;
        }
        let room = if met.connection.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
        Some((met.connection.as_fd(), PollFlags::IN | room))
    }

    /// When there is to be a turn though nothing happens.
    pub fn due(&self) -> Option<Instant> {
        if self.met.is_some() { None } else { self.place.due() }
    }

    /// Whether the last connection has still to be closed. To close a descriptor of a peer's may
    /// take as long as its keeper likes; until then there is no other front-end.
    fn is_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| !closing.is_finished())
    }

    /// The session, while there is one.
    pub fn session(&self) -> Option<&Backend> {
        self.met.as_ref().map(|met| &met.session)
    }

    /// How far it has got.
    pub fn state(&self) -> State {
        match self.met.as_ref().map(|met| met.session.awaits()) {
            None => State::Alone,
            Some(Awaits::Nothing) => State::Serves,
            Some(awaits) => State::Awaits(awaits),
        }
    }

    /// Why nothing is served, if that is so: what the last front-end did, or what is missing.
    pub fn error(&self) -> Option<String> {
        match self.state() {
            State::Serves => None,
            State::Alone => {
                let obstacle = || self.place.obstacle().map(str::to_owned);
                Some(self.error.clone().or_else(obstacle).unwrap_or_else(|| self.place.awaited()))
            }
            State::Awaits(Awaits::Version1) => Some(
                "the driver of the guest knows no version 1 of virtio: it is too old".to_owned(),
            ),
            State::Awaits(Awaits::Memory) if self.taken_back().is_some() => self.taken_back(),
            State::Awaits(Awaits::Memory) => Some(
                "the front-end shares no memory (QEMU: -object memory-backend-memfd,...,share=on; \
                 libvirt: <access mode='shared'/> in <memoryBacking>)"
                    .to_owned(),
            ),
            State::Awaits(_) => self.error.clone(),
        }
    }

    /// What the front-end took back, if that is why nothing is served.
    fn taken_back(&self) -> Option<String> {
        Some(self.session()?.taken_back()?.to_string())
    }

    /// Does what there is to do, within bounds; whether there may be more.
    ///
    /// # Errors
    /// If no front-end can be met any more.
    pub fn turn(&mut self, device: &mut impl Device, now: Instant) -> io::Result<bool> {
        if self.met.is_none() {
            if self.is_closing() {
                self.place.put_off(now + CLOSING_LOOK);
                return Ok(false);
            }
            let Some(socket) = self.place.meet(now)? else { return Ok(false) };
            let session = Backend::new(device.offer());
            let connection = Connection::new(socket);
            self.met = Some(Met::new(connection, session));
            device.note(Note::Met);
        }
        let Some(met) = &mut self.met else { return Ok(false) };
        let outcome = met.turn(device).and_then(|outcome| {
            device.settle().map_err(Broken::Undone)?;
            Ok(outcome)
        });
        if met.session.awaits() == Awaits::Nothing {
            self.error = None;
            if now.saturating_duration_since(*met.works_since.get_or_insert(now)) >= GOOD_AFTER {
                self.place.was_good();
            }
        }
        if outcome.is_ok() && !met.has_said_taken_back {
            if let Some(taken_back) = met.session.taken_back() {
                met.has_said_taken_back = true;
                device.note(Note::Stopped(&taken_back.to_string()));
            }
        }
        match outcome {
            Ok(Outcome::More) => Ok(true),
            Ok(Outcome::Waits) => Ok(false),
            Ok(Outcome::End) => {
                self.error = met.left_why();
                device.note(Note::Left);
                self.leave(device, now);
                Ok(false)
            }
            Err(broken) => {
                let reason = broken.to_string();
                device.note(Note::Closed(&reason));
                self.error = Some(reason);
                self.leave(device, now);
                Ok(false)
            }
        }
    }

    /// Closes the connection for a reason of ours, such as what a guest did to its rings.
    pub fn close(&mut self, device: &mut impl Device, reason: &str, now: Instant) {
        if self.met.is_some() {
            device.note(Note::Closed(reason));
            self.error = Some(reason.to_owned());
            self.leave(device, now);
        }
    }

    /// Closes the connection because a user wants no more of it.
    pub fn remove(&mut self, device: &mut impl Device, now: Instant) {
        if self.met.is_some() {
            device.note(Note::Removed);
            self.leave(device, now);
        }
    }

    /// What became of the area that [`Device::make_area`] was to have the front-end get.
    pub fn area_came(
        &mut self,
        device: &mut impl Device,
        outcome: Result<(), String>,
        now: Instant,
    ) {
        let Some(met) = &mut self.met else { return };
        let was_awaited = std::mem::take(&mut met.awaits_area);
        if let (true, Err(reason)) = (was_awaited, outcome) {
            self.close(device, &reason, now);
        }
    }

    fn leave(&mut self, device: &mut impl Device, now: Instant) {
        let met = self.met.take();
        // Another process may have the socket, too, until it hears of this.
        if let Some(met) = &met {
            met.connection.shut();
        }
        device.reset();
        // What lies unread in the socket is closed with it.
        let closing = thread::Builder::new().name("closing".to_owned()).spawn(move || drop(met));
        self.closing = closing.ok();
        self.place.again(now);
    }
}

enum Outcome {
    More,
    Waits,
    End,
}

impl Met {
    fn new(connection: Connection, session: Backend) -> Met {
        Met {
            connection,
            session,
            features: None,
            has_asked_queues: false,
            has_said_taken_back: false,
            works_since: None,
            unwanted: Vec::new(),
            awaits_area: false,
        }
    }

    fn turn(&mut self, device: &mut impl Device) -> Result<Outcome, Broken> {
        self.connection.flush()?;
        for _ in 0..TURN_READS {
            if self.awaits_area {
                return Ok(Outcome::Waits);
            }
            match self.connection.receive()? {
                Received::Message(mut message) => {
                    self.check_files(&mut message)?;
                    self.session.take(message)?;
                    self.has_asked_queues |= self.session.last() == Some(Op::GetQueueNum);
                    self.act(device)?;
                }
                Received::Part => {}
                Received::Nothing => return Ok(Outcome::Waits),
                Received::End => return Ok(Outcome::End),
            }
        }
        Ok(Outcome::More)
    }

    /// Keeps descriptors aside that are neither memory nor events.
    fn check_files(&mut self, message: &mut Message) -> Result<(), Broken> {
        let unwanted = message.files.iter().find_map(|file| match descriptor::kind(file) {
            Ok(Kind::Local | Kind::Nameless) => None,
            Ok(kind) => Some(kind.name()),
            Err(_) => Some("a descriptor that says nothing of itself"),
        });
        let Some(kind) = unwanted else { return Ok(()) };
        self.unwanted = std::mem::take(&mut message.files);
        Err(Broken::Unwanted { request: message.name(), kind })
    }

    fn act(&mut self, device: &mut impl Device) -> Result<(), Broken> {
        if self.session.features() != self.features {
            self.features = self.session.features();
            self.features.into_iter().for_each(|features| device.agreed(features));
        }
        while let Some(action) = self.session.next_action() {
            let done = match action {
                Action::Send(message) => {
                    self.connection.send(message)?;
                    Ok(())
                }
                Action::StopPair(pair) => {
                    let bases = device.stop(pair);
                    self.session.stopped(pair, bases);
                    Ok(())
                }
                Action::StartPair(plan) => device.start(*plan),
                Action::SetMemory(regions) => device.set_memory(regions),
                Action::AddRegion(region) => device.add_region(region),
                Action::RemoveRegion(region) => device.remove_region(region),
                Action::SetLog(log) => device.set_log(log),
                Action::Announce(mac) => {
                    device.announce(mac);
                    Ok(())
                }
                Action::SetMtu(mtu) => {
                    device.set_mtu(mtu);
                    Ok(())
                }
                Action::MakeArea(wanted) => {
                    // Replies come in order, and this one comes by another hand.
                    if self.connection.has_unsent() {
                        return Err(Broken::Deaf);
                    }
                    self.awaits_area = true;
                    device.make_area(wanted)
                }
                Action::SetArea(area) => device.set_area(area),
                Action::ForgetArea => {
                    device.forget_area();
                    Ok(())
                }
            };
            done.map_err(Broken::Undone)?;
        }
        Ok(())
    }

    /// Why a front-end may have left, where it does not say so itself.
    fn left_why(&self) -> Option<String> {
        let pairs = self.session.offer().pairs;
        (self.has_asked_queues && self.session.features().is_none()).then(|| {
            format!(
                "the front-end left before the driver of its guest was ready; there are {pairs} \
                 queues: does it want more? (QEMU: queues=, libvirt: <driver queues=''/>)"
            )
        })
    }
}
