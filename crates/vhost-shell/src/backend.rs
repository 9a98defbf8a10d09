//! The back-end's end of a vhost-user socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringway_sys::descriptor::{self, Kind};
use ringway_vhost::backend::{Action, AreaRequest, Bases, Log, Missing, Negotiated, Offer};
use ringway_vhost::{Area, Backend, Message, PairPlan, Region, RegionKey};
use ringway_wire::vhost_user::Op;
use rustix::event::PollFlags;

use crate::connection::{Broken, Connection, PART_MAX, Received};
use crate::endpoint::{ConnectionSource, Endpoint, Obstacle, WORKED_AFTER};

/// Reads of a socket in one turn. A front-end that sends as fast as it can, or byte by byte, gets
/// no more than this before the others get their turns.
pub const TURN_READS: usize = 64;
/// The interval at which to check whether the last connection is closed, before the next is
/// accepted.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The process around a session: it owns memory, rings and the network.
///
/// An error from a method ends the connection, and the reason is reported.
pub trait Device {
    /// What to offer to the next front-end, which is this process if that is known.
    fn offer(&mut self, front_end: Option<u32>) -> Offer;

    /// Unmaps all memory, and maps these regions.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), String>;

    /// Maps one more region.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn add_region(&mut self, region: Region) -> Result<(), String>;

    /// Unmaps a region.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn remove_region(&mut self, region: RegionKey) -> Result<(), String>;

    /// Logs writes here from now on.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn set_log(&mut self, log: Log) -> Result<(), String>;

    /// Prepares to serve a pair. Serving begins with [`Device::apply_changes`], because more may
    /// change before.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn start(&mut self, plan: PairPlan) -> Result<(), String>;

    /// Stops a pair at once.
    fn stop(&mut self, pair: u16) -> Bases;

    /// Called after all changes of a turn were passed to the device.
    ///
    /// # Errors
    /// The reason why one of the changes failed.
    fn apply_changes(&mut self) -> Result<(), String>;

    /// Announces to the network that a guest with this address is here.
    fn announce(&mut self, mac: [u8; 6]);

    /// The front-end shows its guest this MTU.
    fn set_mtu(&mut self, mtu: u16);

    /// Has a process that may pass descriptors send the front-end a zeroed area. Until
    /// [`BackendEnd::on_area_sent`] nothing is read from this connection.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn make_area(&mut self, wanted: AreaRequest) -> Result<(), String>;

    /// Continues from the chains recorded here, and records chains in flight here.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    fn set_area(&mut self, area: Area) -> Result<(), String>;

    /// The area is no longer valid.
    fn drop_area(&mut self);

    /// The front-end and its guest have negotiated this.
    fn negotiated(&mut self, negotiated: Negotiated);

    /// The connection is closed: no pair is served, and no memory is mapped any more.
    fn reset(&mut self);

    /// Passes a note for the log.
    fn note(&mut self, note: Note<'_>);
}

/// Events of an end, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    /// A front-end has connected.
    Connected,
    /// The front-end has disconnected.
    Disconnected,
    /// The front-end has disconnected, and this is the likely reason.
    Left(&'a str),
    /// We closed the connection, for this reason.
    Closed(&'a str),
    /// We closed the connection because the user removed the vif.
    Removed,
    /// The front-end is connected and no pair is served, or none any more, for this reason. It may
    /// resume. Reported once per connection.
    Stopped(&'a str),
}

/// The progress of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is no front-end.
    Disconnected,
    /// One is connected, and something is missing.
    Waiting(Missing),
    /// Frames can flow.
    Serving,
}

/// Serves one session after another, at one place.
#[derive(Debug)]
pub struct BackendEnd<P = Endpoint> {
    source: P,
    connected: Option<Connected>,
    error: Option<String>,
    /// The thread that closes the last connection.
    closing: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Connected {
    connection: Connection,
    session: Backend,
    negotiated: Option<Negotiated>,
    /// When the message began that is incomplete.
    part_since: Option<Instant>,
    has_asked_queues: bool,
    has_reported_stop: bool,
    /// When frames began to flow.
    serving_since: Option<Instant>,
    /// Descriptors that must neither be used, nor closed by this thread.
    unwanted: Vec<OwnedFd>,
    /// Another process is sending the front-end an area.
    awaits_area: bool,
}

impl<P: ConnectionSource> BackendEnd<P> {
    /// An end without a front-end.
    pub fn new(source: P) -> BackendEnd<P> {
        BackendEnd { source, connected: None, error: None, closing: None }
    }

    /// Where front-ends connect.
    pub fn source(&mut self) -> &mut P {
        &mut self.source
    }

    /// What to wait for before the next turn.
    pub fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let Some(connected) = &self.connected else {
            return self.source.waker().map(|fd| (fd, PollFlags::IN));
        };
        if connected.awaits_area {
            return None;
        }
        let room =
            if connected.connection.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
        Some((connected.connection.as_fd(), PollFlags::IN | room))
    }

    /// When to take a turn even without an event.
    pub fn due(&self) -> Option<Instant> {
        match &self.connected {
            Some(connected) => connected.part_since.map(|since| since + PART_MAX),
            None => self.source.due(),
        }
    }

    /// Whether the last connection is still being closed. Closing a descriptor that a peer sent may
    /// take as long as the process behind it likes; until then no other front-end is accepted.
    fn is_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| !closing.is_finished())
    }

    /// The session, while there is one.
    pub fn session(&self) -> Option<&Backend> {
        self.connected.as_ref().map(|connected| &connected.session)
    }

    /// The progress of the session.
    pub fn state(&self) -> State {
        match self.connected.as_ref().map(|connected| connected.session.missing()) {
            None => State::Disconnected,
            Some(Missing::Nothing) => State::Serving,
            Some(missing) => State::Waiting(missing),
        }
    }

    /// Why nothing is served, if so: what the last front-end did, or what is missing.
    pub fn error(&self) -> Option<String> {
        self.obstacle().map(|obstacle| obstacle.reason)
    }

    /// Whether nothing is served only because its machine is off, starts or is paused.
    pub fn lacks_guest(&self) -> bool {
        self.obstacle().is_some_and(|obstacle| obstacle.is_absence)
    }

    fn obstacle(&self) -> Option<Obstacle> {
        let fault = match self.state() {
            State::Serving => return None,
            State::Disconnected => {
                let Some(error) = &self.error else {
                    let known = self.source.obstacle().cloned();
                    return Some(known.unwrap_or_else(|| self.source.awaited()));
                };
                error.clone()
            }
            State::Waiting(Missing::Version1) => {
                "the driver of the guest knows no version 1 of virtio: it is too old".to_owned()
            }
            State::Waiting(Missing::Memory) => self.removed_memory().unwrap_or_else(|| {
                "the front-end shares no memory (QEMU: -object memory-backend-memfd,...,share=on; \
                 libvirt: <access mode='shared'/> in <memoryBacking>)"
                    .to_owned()
            }),
            State::Waiting(missing) => match self.refused_mtu().or_else(|| self.error.clone()) {
                Some(fault) => fault,
                None => return self.expected(missing),
            },
        };
        Some(Obstacle::fault(fault))
    }

    /// What the front-end has to do next.
    fn expected(&self, missing: Missing) -> Option<Obstacle> {
        let Connected { connection, session, .. } = self.connected.as_ref()?;
        if let Some((found, len)) = connection.partial_message() {
            let part = format!("{found} of the {len} bytes of a message have come");
            return Some(Obstacle::fault(part));
        }
        Some(match missing {
            Missing::Driver => Obstacle::absence(
                "the driver of the guest is not ready, or its machine is paused".to_owned(),
            ),
            Missing::Rings => Obstacle::fault(session.unset_ring().map_or_else(
                || "the front-end has not passed the guest's rings".to_owned(),
                |ring| ring.to_string(),
            )),
            Missing::Enabled => Obstacle::fault("no queue is enabled".to_owned()),
            Missing::Version1 | Missing::Memory | Missing::Nothing => return None,
        })
    }

    /// What the front-end took back, if that is why nothing is served.
    fn removed_memory(&self) -> Option<String> {
        Some(self.session()?.removed_memory()?.to_string())
    }

    fn refused_mtu(&self) -> Option<String> {
        Some(self.session()?.refused_mtu()?.to_string())
    }

    /// Does the pending work, within bounds. Returns whether there may be more.
    ///
    /// # Errors
    /// If no front-end can connect any more.
    pub fn turn(&mut self, device: &mut impl Device, now: Instant) -> io::Result<bool> {
        if self.connected.is_none() {
            if self.is_closing() {
                self.source.defer_until(now + CLOSE_POLL_INTERVAL);
                return Ok(false);
            }
            let Some(socket) = self.source.poll_connection(now)? else { return Ok(false) };
            let session = Backend::new(device.offer(self.source.process_of(&socket)));
            self.connected = Some(Connected::new(Connection::new(socket), session));
            device.note(Note::Connected);
        }
        let Some(connected) = &mut self.connected else { return Ok(false) };
        let outcome = connected.turn(device, now).and_then(|outcome| {
            device.apply_changes().map_err(Broken::Failed)?;
            Ok(outcome)
        });
        if connected.session.missing() == Missing::Nothing {
            self.error = None;
            if now.saturating_duration_since(*connected.serving_since.get_or_insert(now))
                >= WORKED_AFTER
            {
                self.source.worked();
            }
        }
        if outcome.is_ok() && !connected.has_reported_stop {
            let session = &connected.session;
            let removed_memory = session.removed_memory().map(|removed| removed.to_string());
            let refused_mtu = || session.refused_mtu().map(|refused| refused.to_string());
            if let Some(why) = removed_memory.or_else(refused_mtu) {
                connected.has_reported_stop = true;
                device.note(Note::Stopped(&why));
            }
        }
        match outcome {
            Ok(Outcome::More) => Ok(true),
            Ok(Outcome::Waits) => Ok(false),
            Ok(Outcome::End) => {
                self.error = connected.left_why();
                device.note(self.error.as_deref().map_or(Note::Disconnected, Note::Left));
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

    /// Closes the connection for a reason of ours, such as a guest's violation of its rings.
    pub fn close(&mut self, device: &mut impl Device, reason: &str, now: Instant) {
        if self.connected.is_some() {
            device.note(Note::Closed(reason));
            self.error = Some(reason.to_owned());
            self.leave(device, now);
        }
    }

    /// Closes the connection because the user removed the vif.
    pub fn remove(&mut self, device: &mut impl Device, now: Instant) {
        if self.connected.is_some() {
            device.note(Note::Removed);
            self.leave(device, now);
        }
    }

    /// The outcome of sending the area that [`Device::make_area`] requested.
    pub fn on_area_sent(
        &mut self,
        device: &mut impl Device,
        outcome: Result<(), String>,
        now: Instant,
    ) {
        let Some(connected) = &mut self.connected else { return };
        let was_awaited = std::mem::take(&mut connected.awaits_area);
        if let (true, Err(reason)) = (was_awaited, outcome) {
            self.close(device, &reason, now);
        }
    }

    fn leave(&mut self, device: &mut impl Device, now: Instant) {
        let connected = self.connected.take();
        // Another process may also hold the socket until it is notified.
        if let Some(connected) = &connected {
            connected.connection.shut();
        }
        device.reset();
        // Closing the socket also closes unread descriptors in it.
        self.closing = self.source.discard(connected);
        self.source.disconnected(now);
    }
}

enum Outcome {
    More,
    Waits,
    End,
}

impl Connected {
    fn new(connection: Connection, session: Backend) -> Connected {
        Connected {
            connection,
            session,
            negotiated: None,
            part_since: None,
            has_asked_queues: false,
            has_reported_stop: false,
            serving_since: None,
            unwanted: Vec::new(),
            awaits_area: false,
        }
    }

    fn turn(&mut self, device: &mut impl Device, now: Instant) -> Result<Outcome, Broken> {
        self.connection.flush()?;
        for _ in 0..TURN_READS {
            if self.awaits_area {
                return Ok(Outcome::Waits);
            }
            match self.connection.receive()? {
                Received::Message(mut message) => {
                    self.part_since = None;
                    self.check_files(&mut message)?;
                    self.session.take(message)?;
                    self.has_asked_queues |= self.session.last() == Some(Op::GetQueueNum);
                    self.run_actions(device)?;
                }
                Received::Part => self.check_part(now)?,
                Received::Nothing => {
                    self.check_part(now)?;
                    return Ok(Outcome::Waits);
                }
                Received::End => return Ok(Outcome::End),
            }
        }
        Ok(Outcome::More)
    }

    /// Limits how long a message may be incomplete.
    fn check_part(&mut self, now: Instant) -> Result<(), Broken> {
        let Some((found, len)) = self.connection.partial_message() else { return Ok(()) };
        let since = *self.part_since.get_or_insert(now);
        match now.saturating_duration_since(since) < PART_MAX {
            true => Ok(()),
            false => Err(Broken::Unfinished { found, len }),
        }
    }

    /// Keeps descriptors that are neither memory nor events for the closing thread.
    fn check_files(&mut self, message: &mut Message) -> Result<(), Broken> {
        let unwanted = message.files.iter().find_map(|file| match descriptor::kind(file) {
            Ok(Kind::Local | Kind::Anonymous) => None,
            Ok(kind) => Some(kind.name()),
            Err(_) => Some("a descriptor that says nothing of itself"),
        });
        let Some(kind) = unwanted else { return Ok(()) };
        self.unwanted = std::mem::take(&mut message.files);
        Err(Broken::UnsafeDescriptor { request: message.name(), kind })
    }

    fn run_actions(&mut self, device: &mut impl Device) -> Result<(), Broken> {
        let negotiated = self.session.negotiated();
        if negotiated != self.negotiated {
            self.negotiated = negotiated;
            negotiated.into_iter().for_each(|negotiated| device.negotiated(negotiated));
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
                    // Replies must arrive in order, and another process sends this one.
                    if self.connection.has_unsent() {
                        return Err(Broken::NotReading);
                    }
                    self.awaits_area = true;
                    device.make_area(wanted)
                }
                Action::SetArea(area) => device.set_area(area),
                Action::DropArea => {
                    device.drop_area();
                    Ok(())
                }
            };
            done.map_err(Broken::Failed)?;
        }
        Ok(())
    }

    /// The likely reason why a front-end left, since it does not report one. It compares our
    /// number of queues with its own, which it never sends. A front-end with enough queues sets
    /// up all of them before the driver is ready.
    fn left_why(&self) -> Option<String> {
        let Connected { session, has_asked_queues, serving_since, .. } = self;
        let pairs = session.offer().pairs;
        let is_early = session.features().is_none() && !session.has_more_pairs();
        if serving_since.is_none() && session.missing() == Missing::Rings {
            let ring = session.unset_ring()?;
            return Some(format!("the front-end disconnected before it was served: {ring}"));
        }
        (*has_asked_queues && is_early).then(|| {
            format!(
                "the front-end disconnected after it asked for the number of queues, which is \
                 {pairs}. If its log says `you are asking more queues than supported: {pairs}`, \
                 raise `queues` of this vif to its number (at most 64), or lower the \
                 front-end's"
            )
        })
    }
}
