//! The steps by which a control plane attaches, detaches and moves queues, whether its engines run
//! on threads or in a simulation. `roster.rs` describes the steps of a move.
//!
//! [`Engines`] abstracts the difference: how an engine gets a command, and what the control plane
//! does while it waits.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use ringway_datapath::{PortQueue, QueueCounters};
use ringway_switch::{FloodBudget, PortId, PortPolicy};

use crate::announcement::Announcement;
use crate::attached::{Attached, AttachedParts};
use crate::balance::Departure;
use crate::capture::Capture;
use crate::directory::{Forwarding, QueueAddress};
use crate::engine::{Engine, Failure};
use crate::gauge::Gauge;
use crate::limits::Limits;
use crate::roster::{Move, Roster};
use crate::share::{Stations, Weight};
use crate::slot::SlotId;
use crate::steering::PortSteering;

/// What a control plane asks of an engine.
pub enum Command<Q> {
    /// A queue is about to arrive.
    Expect {
        /// Its place.
        id: SlotId,
        /// The queue's back-pressure.
        gauge: Arc<Gauge>,
    },
    /// An expected queue does not arrive: it failed on its way.
    Forget {
        /// Its place.
        id: SlotId,
    },
    /// Take over a queue.
    Attach {
        /// The queue.
        attached: Box<Attached<Q>>,
    },
    /// Copy frames of a queue to a capture, which replaces any earlier one.
    Capture {
        /// The place of the queue.
        id: SlotId,
        /// The capture.
        capture: Arc<Capture>,
    },
    /// Limit what enters and leaves by a queue.
    Limit {
        /// The place of the queue.
        id: SlotId,
        /// What limits it.
        limits: Limits,
    },
    /// Move flows from a queue once their frames have left it.
    Relieve {
        /// The place of the queue.
        id: SlotId,
        /// Which flows.
        departure: Departure,
    },
    /// Poll a queue, which waited for the control plane.
    Poll {
        /// The place of the queue.
        id: SlotId,
    },
    /// Send what is to be announced of a port's stations.
    Announce {
        /// The place of a queue of the port.
        id: SlotId,
        /// What is announced, by whichever queue of the port is first.
        announcement: Arc<Announcement>,
    },
    /// Give a queue's port another share of the engine.
    SetWeight {
        /// The place of the queue.
        id: SlotId,
        /// The port's weight.
        weight: Weight,
    },
    /// Panic, for a test.
    #[doc(hidden)]
    Panic {
        /// The place of the queue.
        id: SlotId,
    },
    /// Get stuck, for a test.
    #[doc(hidden)]
    Stall {
        /// The place of the queue.
        id: SlotId,
        /// The way to get stuck.
        stall: Stall,
    },
    /// Set what may enter by a queue from now on.
    SetPolicy {
        /// The place of the queue.
        id: SlotId,
        /// The policy.
        policy: Arc<PortPolicy>,
    },
}

/// A way to get stuck forever, for tests of the consequences.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// In a loop.
    Loop,
    /// Asleep.
    Sleep,
}

impl<Q: PortQueue> Engine<Q> {
    /// Gives the port of a queue another weight, if a single station is behind the port.
    pub fn set_weight(&mut self, id: SlotId, weight: Weight) {
        let Some(source) = self.source(id) else { return };
        source.stations = source.stations.with_weight(weight);
        let share = source.share;
        self.shares.set_weight(share, weight);
    }

    /// Sends what is to be announced, unless another queue of the port has sent it.
    pub fn announce(&mut self, id: SlotId, announcement: Arc<Announcement>) {
        let Some(source) = self.source(id) else { return };
        source.announcing.begin(announcement);
        self.wake(id.index);
    }

    /// Moves the flows that are leaving a queue once their frames have left it. They are all here.
    pub fn relieve(&mut self, id: SlotId, departure: Departure) {
        self.drain_inbox();
        let outbox = self.outboxes.get(id.index).filter(|outbox| outbox.id == id);
        let Some(outbox) = outbox else { return };
        let was_active = outbox.is_active();
        outbox.begin_drain(departure);
        if !was_active && outbox.is_active() {
            self.outboxes.draining.push(id.index);
        }
    }

    /// Panics as a defect would while the engine serves a queue: for tests of the consequences.
    #[doc(hidden)]
    pub fn panic_for_test(&mut self, id: SlotId) {
        let Some(source) = self.source(id) else { return };
        self.current_queue = Some((source.port_id, source.queue_index));
        panic!("a test asked for it");
    }

    /// Does not return, as with a defect while the engine serves a queue: for tests of the
    /// consequences.
    #[doc(hidden)]
    pub fn stall_for_test(&mut self, id: SlotId, stall: Stall) {
        if self.source(id).is_none() {
            return;
        }
        loop {
            match stall {
                Stall::Loop => std::hint::spin_loop(),
                Stall::Sleep => std::thread::park(),
            }
        }
    }

    /// Executes a command.
    pub fn apply(&mut self, command: Command<Q>) {
        match command {
            Command::Expect { id, gauge } => self.expect(id, gauge),
            Command::Forget { id } => self.forget(id),
            Command::Attach { attached } => self.attach(*attached),
            Command::Capture { id, capture } => self.capture(id, &capture),
            Command::Limit { id, limits } => self.limit(id, limits),
            Command::Relieve { id, departure } => self.relieve(id, departure),
            Command::Poll { id } if self.source(id).is_some() => self.wake(id.index),
            // It is gone.
            Command::Poll { .. } => {}
            Command::Announce { id, announcement } => self.announce(id, announcement),
            Command::SetWeight { id, weight } => self.set_weight(id, weight),
            Command::Panic { id } => self.panic_for_test(id),
            Command::Stall { id, stall } => self.stall_for_test(id, stall),
            Command::SetPolicy { id, policy } => self.set_policy(id, &policy),
        }
    }
}

/// The engines of a process, as seen by its control plane.
pub trait Engines {
    /// The queues that they own.
    type Queue: PortQueue;
    /// Why they can no longer be reached. An empty type if that cannot happen.
    type Gone: Error + Send + Sync + 'static;

    /// Which engine owns which queue.
    ///
    /// # Errors
    /// The engines are gone; the same for all methods.
    fn roster(&mut self) -> Result<&mut Roster, Self::Gone>;

    /// The present time.
    fn now(&self) -> Instant;

    /// Chooses an engine for each of the queues of a new port, and gives the queue a place there.
    /// If the frames of the port go to one other only, that is considered.
    ///
    /// # Errors
    /// The host lacks something for another engine, or the engines are gone; no queue has a place
    /// then.
    fn choose_places(&mut self, port: &NewPort<'_>, count: u16) -> io::Result<Vec<QueueAddress>>;

    /// All queues of a port have been attached: they may now change places.
    fn attached(&mut self, port: PortId);

    /// Wakes the control plane, from any thread: a queue has work for it.
    fn waker(&self) -> Waker;

    /// A queue that failed since the last call. The other queues of its port are served until they
    /// are detached.
    fn next_failure(&mut self) -> Option<Failure<Self::Queue>>;

    /// Gives an engine a command. An engine applies its commands in order, between two rounds.
    ///
    /// # Errors
    /// See [`roster`](Engines::roster).
    fn command(&mut self, engine: usize, command: Command<Self::Queue>) -> Result<(), Self::Gone>;

    /// Waits until these engines have applied every command so far.
    ///
    /// # Errors
    /// See [`roster`](Engines::roster).
    fn wait_until_applied(&mut self, engines: &BTreeSet<usize>) -> Result<(), Self::Gone>;

    /// Replaces the directory with one made from the current roster.
    ///
    /// # Errors
    /// See [`roster`](Engines::roster).
    fn publish(&mut self) -> Result<(), Self::Gone>;

    /// Waits until each engine has begun a round with the newest directory.
    ///
    /// # Errors
    /// See [`roster`](Engines::roster).
    fn wait_until_seen(&mut self) -> Result<(), Self::Gone>;

    /// Takes a queue from its engine; `None` if it has failed. Nothing serves the queue while the
    /// caller has it.
    ///
    /// # Errors
    /// See [`roster`](Engines::roster).
    fn take_back(&mut self, from: &QueueAddress) -> Result<Taken<Self::Queue>, Self::Gone>;

    /// Drops a queue that its engine has returned, and with it the frames that wait in it.
    fn release(&mut self, attached: Attached<Self::Queue>);

    /// Wakes every engine that sleeps.
    ///
    /// # Errors
    /// See [`roster`](Engines::roster).
    fn nudge_all(&mut self) -> Result<(), Self::Gone>;
}

/// A queue taken from its engine; `None` if it had failed.
pub type Taken<Q> = Option<Box<Attached<Q>>>;

/// A port whose queues are attached.
#[derive(Debug, Clone, Copy)]
pub struct NewPort<'a> {
    /// Its number.
    pub id: PortId,
    /// Where its frames go.
    pub forwarding: &'a Forwarding,
    /// What may enter, from the first frame on.
    pub policy: &'a Arc<PortPolicy>,
    /// Limits, from the first frame on.
    pub limits: &'a Limits,
    /// What its guest chooses for the frames that it receives, if it may.
    pub steering: Option<&'a Arc<PortSteering>>,
}

/// One queue to attach.
pub struct Attachment<Q> {
    /// The queue.
    pub queue: Q,
    /// Its counters.
    pub counters: Arc<QueueCounters>,
    /// The flooding that the port may cause: one budget shared by all its queues.
    pub flood: Arc<FloodBudget>,
    /// How many stations are behind the port, which is the same for all its queues.
    pub stations: Stations,
}

/// Attaches all queues of a port at once.
///
/// # Errors
/// Of kind `AlreadyExists` if the port has queues, `InvalidInput` if there are more than 65535;
/// errors of [`Engines::choose_places`]; the engines are gone.
pub fn attach<E: Engines>(
    engines: &mut E,
    port: NewPort<'_>,
    queues: Vec<Attachment<E::Queue>>,
) -> io::Result<()> {
    if engines.roster().map_err(io::Error::other)?.count(port.id) > 0 {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let count = u16::try_from(queues.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let places = engines.choose_places(&port, count)?;
    attach_at(engines, port, places.into_iter().zip(queues).collect()).map_err(io::Error::other)?;
    engines.attached(port.id);
    Ok(())
}

/// Attaches queues in the order of their numbers, each to its place in the roster.
fn attach_at<E: Engines>(
    engines: &mut E,
    port: NewPort<'_>,
    queues: Vec<(QueueAddress, Attachment<E::Queue>)>,
) -> Result<(), E::Gone> {
    let arrivals = engines.roster()?.arrivals(port.id);
    if let Some(steering) = port.steering {
        engines.roster()?.let_steer(port.id, Arc::clone(steering));
    }
    let queue_count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
    let mut owners = BTreeSet::new();
    for (queue_index, (address, attachment)) in (0..).zip(queues) {
        let parts = AttachedParts {
            id: address.slot,
            port_id: port.id,
            queue_index,
            queue_count,
            queue: attachment.queue,
            forwarding: port.forwarding.clone(),
            policy: Arc::clone(port.policy),
            flood: attachment.flood,
            counters: attachment.counters,
            gauge: address.gauge,
            limits: port.limits.clone(),
            stations: attachment.stations,
            arrivals: arrivals.clone(),
        };
        let attached = Box::new(Attached::new(parts, engines.now()));
        engines.command(address.engine, Command::Attach { attached })?;
        owners.insert(address.engine);
    }
    // From its publication on, an engine that looks the port up may send to it.
    engines.wait_until_applied(&owners)?;
    engines.publish()
}

/// Takes back all queues of a port, in the order of their numbers, except those that have failed.
///
/// # Errors
/// The engines are gone.
pub fn detach<E: Engines>(
    engines: &mut E,
    port: PortId,
    mut let_go: impl FnMut(&mut E, Attached<E::Queue>),
) -> Result<(), E::Gone> {
    let gone = engines.roster()?.remove(port);
    engines.publish()?;
    engines.wait_until_seen()?;
    for placed in gone {
        let attached = engines.take_back(&placed.address)?;
        engines.roster()?.free(&placed.address);
        attached.into_iter().for_each(|attached| let_go(engines, *attached));
    }
    // Sources that these queues held may continue, and their engines may be asleep.
    engines.nudge_all()
}

/// Hands one queue to another engine, keeping the order of all flows. False if there is no such
/// queue.
///
/// # Errors
/// The engines are gone.
pub fn move_queue<E: Engines>(
    engines: &mut E,
    port: PortId,
    queue: u16,
    engine: usize,
) -> Result<bool, E::Gone> {
    let redirected = engines.roster()?.redirect(port, queue, engine);
    let Some(Move { from, to }) = redirected else { return Ok(false) };
    let gauge = Arc::clone(&to.gauge);
    engines.command(to.engine, Command::Expect { id: to.slot, gauge })?;
    // Before a directory names a slot, its engine must know the slot: otherwise the first frames
    // might arrive before the engine reads the command.
    engines.wait_until_applied(&BTreeSet::from([to.engine]))?;
    engines.publish()?;
    engines.wait_until_seen()?;
    let attached = engines.take_back(&from)?;
    engines.roster()?.free(&from);
    let command = match attached {
        Some(attached) => {
            let attached = Box::new(attached.moved_to(to.slot, engines.now()));
            Command::Attach { attached }
        }
        // Without this, its frames would stay until another queue gets the slot.
        None => Command::Forget { id: to.slot },
    };
    engines.command(to.engine, command)?;
    Ok(true)
}

/// Has flows leave queues that cannot keep up, where ports are balanced: which these are follows
/// from the traffic since the last call. They move later, or not at all (`balance.rs`).
///
/// # Errors
/// The engines are gone.
pub fn balance_flows<E: Engines>(engines: &mut E) -> Result<(), E::Gone> {
    let begun = engines.roster()?.begin_departures();
    if begun.is_empty() {
        return Ok(());
    }
    engines.publish()?;
    engines.wait_until_seen()?;
    for (QueueAddress { engine, slot: id, .. }, departure) in begun {
        engines.command(engine, Command::Relieve { id, departure })?;
    }
    Ok(())
}

/// Gives the same command to the engine of each queue of a port. False if the port has none.
///
/// # Errors
/// The engines are gone.
pub fn command_port<E: Engines>(
    engines: &mut E,
    port: PortId,
    command: impl Fn(SlotId) -> Command<E::Queue>,
) -> Result<bool, E::Gone> {
    let queues = engines.roster()?.queues().iter().filter(|placed| placed.port == port);
    let places: Vec<_> = queues.map(|it| (it.address.engine, it.address.slot)).collect();
    for (engine, slot) in &places {
        engines.command(*engine, command(*slot))?;
    }
    Ok(!places.is_empty())
}
