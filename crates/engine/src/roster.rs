//! The control plane's record of which engine owns which queue; directories are made from it.
//!
//! A queue moves between engines in five steps, which keep the order of every flow
//! ([`steps::move_queue`](crate::steps::move_queue)):
//!
//! 1. [`Roster::redirect`] names the new place, and [`Engine::expect`](crate::Engine::expect)
//!    prepares it.
//! 2. A directory that shows the new place is published.
//! 3. Every engine has begun a round with that directory: no engine sends to the old place any
//!    more.
//! 4. [`Engine::detach`](crate::Engine::detach) takes the queue from the old place, with all frames
//!    sent there, and [`Roster::free`] frees that place.
//! 5. [`Engine::attach`](crate::Engine::attach) puts it into the new place, or
//!    [`Engine::forget`](crate::Engine::forget) abandons the move if the queue failed meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_switch::PortId;

use crate::balance::Departure;
use crate::bridge::{BridgeBackpressure, BridgePort, Bridges};
use crate::directory::{Directory, QueueAddress};
use crate::gauge::Gauge;
use crate::hops::Hopped;
use crate::inbox::Inbox;
use crate::slot::SlotId;
use crate::steering::PortSteering;

/// A queue and its place.
#[derive(Debug)]
pub struct Placed {
    /// The queue's port.
    pub port: PortId,
    /// Its number within the port.
    pub queue: u16,
    /// The port that all its frames go to, if it is patched.
    pub patched_to: Option<PortId>,
    /// Where it is.
    pub address: QueueAddress,
    /// Its counts when work was last compared.
    before: Work,
    /// When load was last balanced by a move of this queue.
    pub balanced_at: Option<Instant>,
    /// How long it should stay after that, unless its engine is saturated.
    pub rest: Duration,
}

/// What a queue has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// See [`Gauge::load`].
    pub load: u64,
    /// See [`Gauge::taken`].
    pub taken: u64,
    /// See [`Gauge::hopped`].
    pub hopped: Option<Hopped>,
}

impl Work {
    fn until_now(gauge: &Gauge) -> Work {
        Work { load: gauge.load(), taken: gauge.taken(), hopped: gauge.hopped() }
    }
}

impl Placed {
    /// The queue's work since work was last compared.
    pub fn work(&self) -> Work {
        let (now, before) = (Work::until_now(&self.address.gauge), self.before);
        Work {
            load: now.load - before.load,
            taken: now.taken - before.taken,
            hopped: now.hopped.map(|hopped| hopped.since(before.hopped)),
        }
    }

    /// Begins a new comparison.
    pub fn begin_comparison(&mut self) {
        self.before = Work::until_now(&self.address.gauge);
    }
}

/// All queues, and the free places.
#[derive(Debug, Default)]
pub struct Roster {
    placed: Vec<Placed>,
    places: Vec<Places>,
    bridges: Bridges,
    /// By port number: what guests may choose for frames to them.
    steering: BTreeMap<u16, Arc<PortSteering>>,
    next_generation: u64,
}

/// The slots of one engine.
#[derive(Debug, Default)]
struct Places {
    used: usize,
    free: Vec<usize>,
}

/// The two places of a moving queue.
#[derive(Debug)]
pub struct Move {
    /// Its present place.
    pub from: QueueAddress,
    /// Its future place.
    pub to: QueueAddress,
}

impl Roster {
    /// Adds an engine; the first has number 0.
    pub fn add_engine(&mut self) -> usize {
        self.places.push(Places::default());
        self.places.len() - 1
    }

    /// Every queue.
    pub fn queues(&self) -> &[Placed] {
        &self.placed
    }

    /// Every queue, to note its load.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut Placed> {
        self.placed.iter_mut()
    }

    /// One queue.
    pub fn queue(&self, port: PortId, queue: u16) -> Option<&Placed> {
        self.placed.iter().find(|placed| (placed.port, placed.queue) == (port, queue))
    }

    /// The queue of `to` with this number, if `to` is patched to `port` in turn.
    pub fn partner(&self, port: PortId, queue: u16, to: PortId) -> Option<&Placed> {
        self.queue(to, queue).filter(|placed| placed.patched_to == Some(port))
    }

    /// The queue that exchanges frames with this one and no other, if there is one.
    pub fn partner_of(&self, port: PortId, queue: u16) -> Option<&Placed> {
        self.partner(port, queue, self.queue(port, queue)?.patched_to?)
    }

    /// How many queues a port has.
    pub fn count(&self, port: PortId) -> usize {
        self.placed.iter().filter(|placed| placed.port == port).count()
    }

    /// Gives a queue a place in an engine. Queues of one port are placed in the order of their
    /// numbers.
    pub fn place(
        &mut self,
        port: PortId,
        queue: u16,
        patched_to: Option<PortId>,
        engine: usize,
    ) -> QueueAddress {
        let slot = self.take_slot(engine);
        let address = QueueAddress { engine, slot, gauge: Arc::new(Gauge::of(port)) };
        self.placed.push(Placed {
            port,
            queue,
            patched_to,
            address: address.clone(),
            before: Work::default(),
            balanced_at: None,
            rest: Duration::ZERO,
        });
        address
    }

    /// Declares the port about to be attached as a device on a bridge of the host; frames from it
    /// are for the guest with this address. Other guests on the bridge wait for that guest.
    pub fn join_bridge(&mut self, port: PortId, at: BridgePort) {
        self.bridges.join(port, at);
    }

    /// Lets the guest of the port about to be attached choose the queues of its frames.
    pub fn let_steer(&mut self, port: PortId, by: Arc<PortSteering>) {
        self.steering.insert(port.0, by);
    }

    /// Has flows leave queues that cannot keep up, where ports are balanced: those that the traffic
    /// since the last call asks for. Returns the queues, and what leaves each.
    ///
    /// [`Engine::relieve`](crate::Engine::relieve) follows when every engine has begun a round.
    pub fn begin_departures(&self) -> Vec<(QueueAddress, Departure)> {
        let mut of_port: BTreeMap<u16, Vec<&QueueAddress>> = BTreeMap::new();
        for Placed { port, address, .. } in &self.placed {
            of_port.entry(port.0).or_default().push(address);
        }
        let begin = |(port, steering): (&u16, &Arc<PortSteering>)| {
            let (table, addresses) = (steering.table()?, of_port.get(port)?);
            let gauges: Vec<&Gauge> = addresses.iter().map(|it| &*it.gauge).collect();
            let departure = Departure::begin(table, &gauges)?;
            Some((QueueAddress::clone(addresses.get(departure.queue())?), departure))
        };
        self.steering.iter().filter_map(begin).collect()
    }

    /// Has flows that are leaving queues stay there. Engines steer what they have parked of them
    /// when they begin their next rounds.
    fn end_departures(&self) {
        let tables = self.steering.values().filter_map(|steering| steering.table());
        tables.for_each(|table| table.give_up());
    }

    /// Where the queues of a port on a bridge report; `None` for any other port.
    pub fn arrivals(&self, port: PortId) -> Option<Arc<BridgeBackpressure>> {
        self.bridges.arrivals(port)
    }

    /// Removes all queues of a port. Their places stay taken until they are [freed](Roster::free).
    pub fn remove(&mut self, port: PortId) -> Vec<Placed> {
        self.end_departures();
        let (gone, kept): (Vec<Placed>, Vec<Placed>) =
            std::mem::take(&mut self.placed).into_iter().partition(|placed| placed.port == port);
        self.placed = kept;
        self.bridges.leave(port);
        self.steering.remove(&port.0);
        gone
    }

    /// Gives a queue a place in another engine; its gauge goes along.
    pub fn redirect(&mut self, port: PortId, queue: u16, engine: usize) -> Option<Move> {
        let is_it = |placed: &Placed| (placed.port, placed.queue) == (port, queue);
        let position = self.placed.iter().position(is_it)?;
        self.end_departures();
        let slot = self.take_slot(engine);
        let address = &mut self.placed[position].address;
        let to = QueueAddress { engine, slot, gauge: Arc::clone(&address.gauge) };
        let from = std::mem::replace(address, to.clone());
        Some(Move { from, to })
    }

    /// Frees a place that its engine has vacated.
    pub fn free(&mut self, address: &QueueAddress) {
        self.places[address.engine].free.push(address.slot.index);
    }

    /// The directory that engines see. `inboxes` are theirs, in order.
    pub fn directory(&self, version: u64, inboxes: Vec<Arc<Inbox>>) -> Directory {
        let ports_end = self.placed.iter().map(|placed| usize::from(placed.port.0) + 1).max();
        let mut ports = vec![Vec::new(); ports_end.unwrap_or(0)];
        for placed in &self.placed {
            ports[usize::from(placed.port.0)].push(placed.address.clone());
        }
        let steering_end = self.steering.keys().last().map_or(0, |port| usize::from(*port) + 1);
        let mut steering = vec![None; steering_end];
        for (port, by) in &self.steering {
            steering[usize::from(*port)] = Some(Arc::clone(by));
        }
        Directory { version, ports, inboxes, neighbors: self.bridges.neighbors(), steering }
    }

    fn take_slot(&mut self, engine: usize) -> SlotId {
        self.next_generation += 1;
        let places = &mut self.places[engine];
        let index = places.free.pop().unwrap_or_else(|| {
            places.used += 1;
            places.used - 1
        });
        SlotId { index, generation: self.next_generation }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// That of two engines.
    fn roster() -> Roster {
        let mut roster = Roster::default();
        assert_eq!([roster.add_engine(), roster.add_engine()], [0, 1]);
        roster
    }

    #[test]
    fn a_queue_that_moves_keeps_its_gauge_and_its_old_place_is_used_again() {
        let mut roster = roster();
        let first = roster.place(PortId(3), 0, None, 0);
        let second = roster.place(PortId(3), 1, None, 0);
        assert_eq!([first.slot.index, second.slot.index], [0, 1]);
        assert_eq!((roster.count(PortId(3)), roster.count(PortId(4))), (2, 0));
        let moved = roster.redirect(PortId(3), 1, 1).expect("it is there");
        assert_eq!((moved.from.engine, moved.from.slot), (0, second.slot));
        assert_eq!((moved.to.engine, moved.to.slot.index), (1, 0));
        assert!(Arc::ptr_eq(&moved.from.gauge, &moved.to.gauge));
        assert_eq!(roster.queue(PortId(3), 1).map(|it| it.address.engine), Some(1));
        assert_eq!(roster.queue(PortId(3), 0).map(|it| it.address.engine), Some(0));
        assert!(roster.redirect(PortId(3), 2, 1).is_none());
        assert_eq!(roster.place(PortId(4), 0, None, 0).slot.index, 2, "it is not free yet");
        roster.free(&moved.from);
        let next = roster.place(PortId(4), 1, None, 0);
        assert_eq!(next.slot.index, 1);
        assert_ne!(next.slot, second.slot, "frames for the old queue are not for this one");
    }

    #[test]
    fn the_partner_of_a_queue_is_patched_to_it_in_turn() {
        let mut roster = roster();
        for (port, patched_to) in [(1, Some(2)), (2, Some(1)), (5, Some(1)), (6, None)] {
            roster.place(PortId(port), 0, patched_to.map(PortId), 0);
        }
        let partner = |port, queue| roster.partner_of(PortId(port), queue).map(|it| it.port.0);
        assert_eq!([partner(1, 0), partner(2, 0)], [Some(2), Some(1)]);
        assert_eq!([partner(1, 1), partner(5, 0), partner(6, 0)], [None; 3]);
    }

    #[test]
    fn a_directory_has_all_queues_and_what_guests_may_choose() {
        let mut roster = roster();
        for (port, queue) in [(0, 0), (2, 0), (2, 1)] {
            roster.place(PortId(port), queue, None, 0);
        }
        roster.let_steer(PortId(2), Arc::default());
        let directory = roster.directory(7, Vec::new());
        let counts: Vec<usize> = directory.ports.iter().map(Vec::len).collect();
        assert_eq!((directory.version, counts), (7, vec![1, 0, 2]));
        let may_steer = |directory: &Directory, port| directory.steering(PortId(port)).is_some();
        assert!(may_steer(&directory, 2) && !may_steer(&directory, 0) && !may_steer(&directory, 3));
        let gone = roster.remove(PortId(2));
        assert_eq!(gone.iter().map(|it| it.queue).collect::<Vec<_>>(), [0, 1]);
        let directory = roster.directory(8, Vec::new());
        assert_eq!(directory.ports.len(), 1);
        assert!(!may_steer(&directory, 2) && directory.queues(PortId(2)).is_empty());
    }

    #[test]
    fn work_is_counted_from_one_comparison_to_the_next() {
        let mut roster = roster();
        let gauge = roster.place(PortId(0), 0, None, 0).gauge;
        gauge.add_taken(5);
        gauge.add_delivered(7);
        let work = |roster: &Roster| roster.queues()[0].work();
        assert_eq!((work(&roster).load, work(&roster).taken), (12, 5));
        roster.queues_mut().for_each(Placed::begin_comparison);
        assert_eq!(work(&roster), Work::default());
        gauge.add_taken(1);
        assert_eq!((work(&roster).load, work(&roster).taken), (1, 1));
    }
}
