//! Flows of a port leave a queue that cannot keep up, and none is reordered.
//!
//! A [`Table`] has the queue of each bucket of flows ([`ringway_steering::balance`]). A bucket that
//! is to move is *leaving*: its frames are parked (`release.rs`) until those in the old queue have
//! left and the guest has taken them, and then go to the new queue. The steps:
//!
//! 1. The control plane marks the buckets, and waits until every engine has begun a round since:
//!    their frames are now in the old queue or its engine's inbox, and no more follow.
//! 2. That engine gets the [`Departure`]. It marks the end of what waits there (`outbox/drain.rs`),
//!    and moves the buckets when the guest has taken all before it, as shown by
//!    [`PeerProgress`](ringway_datapath::PeerProgress).
//! 3. If that takes longer than [`STALL`](crate::gauge::STALL), or too many frames are parked, the
//!    buckets stay: that is in order at any time.
//! 4. Each engine steers what it has parked when it begins its next round, before later frames.
//!
//! The place of a bucket is one number, which changes atomically, so a bucket moves or stays and
//! never both. While a queue changes engines no bucket is leaving, so all frames of a source are
//! parked in one engine.

use std::sync::Arc;

use ringway_steering::balance::{BUCKETS, Bucket, Relief, bucket_of, first_queue, relieve};

use crate::gauge::Gauge;
use crate::sync::{AtomicU64, Ordering};

/// The table of a port.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    queues: u16,
    /// The number of the last departure.
    departures: AtomicU64,
    /// How many buckets have moved.
    moved: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    /// The queue, and the number of the departure by which the bucket is leaving it, or 0.
    place: AtomicU64,
    /// Bytes steered. Engines add to it without a lock, so what some of them add may be lost.
    bytes: AtomicU64,
    /// Of these, what the control plane has seen.
    seen: AtomicU64,
}

/// A place of a bucket: its queue, and the number of the departure by which it is leaving.
fn place(queue: u16, departure: u64) -> u64 {
    departure << u16::BITS | u64::from(queue)
}

fn queue_at(place: u64) -> u16 {
    u16::try_from(place & u64::from(u16::MAX)).unwrap_or_default()
}

fn is_leaving(place: u64) -> bool {
    place >> u16::BITS != 0
}

// All accesses are relaxed: a thread that sees a new place has nothing else to see of the one that
// wrote it. That all engines see the marks of a departure follows from the rounds that they begin.
impl Table {
    /// The table of a port with so many queues.
    pub(crate) fn new(queues: u16) -> Table {
        let entry = |bucket| Entry {
            place: AtomicU64::new(place(first_queue(bucket, queues).0, 0)),
            bytes: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        };
        Table {
            entries: (0..BUCKETS).map(entry).collect(),
            queues,
            departures: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }

    /// The queue of a frame of `len` bytes with this hash; `None` while its bucket is leaving.
    #[inline]
    pub(crate) fn queue_of(&self, hash: u32, len: usize) -> Option<usize> {
        let entry = &self.entries[bucket_of(hash)];
        let at = entry.place.load(Ordering::Relaxed);
        if is_leaving(at) {
            return None;
        }
        let bytes = entry.bytes.load(Ordering::Relaxed);
        let len = u64::try_from(len).unwrap_or_default();
        entry.bytes.store(bytes.saturating_add(len), Ordering::Relaxed);
        Some(queue_at(at).into())
    }

    /// Whether the bucket of this hash is leaving its queue.
    pub(crate) fn is_leaving(&self, hash: u32) -> bool {
        is_leaving(self.entries[bucket_of(hash)].place.load(Ordering::Relaxed))
    }

    /// How many buckets have moved.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Has all buckets that are leaving stay.
    pub(crate) fn give_up(&self) {
        for Entry { place: at, .. } in &self.entries {
            let leaving = at.load(Ordering::Relaxed);
            if is_leaving(leaving) {
                // It may have moved meanwhile.
                let stays = place(queue_at(leaving), 0);
                let _ = at.compare_exchange(leaving, stays, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Ends a departure for the buckets that are still leaving by it.
    fn end(&self, Departure { number, relief, .. }: &Departure, outcome: Outcome) {
        for (bucket, to) in &relief.moves {
            let leaving = place(relief.from, *number);
            let next = match outcome {
                Outcome::Moves => place(*to, 0),
                Outcome::Stays => place(relief.from, 0),
            };
            let at = &self.entries[*bucket].place;
            let ended = at.compare_exchange(leaving, next, Ordering::Relaxed, Ordering::Relaxed);
            if ended.is_ok() && outcome == Outcome::Moves {
                self.moved.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Entry {
    /// Bytes steered since the last call.
    fn take_bytes(&self) -> u64 {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let seen = self.seen.load(Ordering::Relaxed);
        self.seen.store(bytes, Ordering::Relaxed);
        // What one engine adds late may undo what another has added since.
        bytes.saturating_sub(seen)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Moves,
    Stays,
}

/// Buckets of a port's flows that are leaving one of its queues. If it is dropped, they stay.
#[derive(Debug)]
pub struct Departure {
    table: Arc<Table>,
    /// From 1 on.
    number: u64,
    relief: Relief,
}

impl Departure {
    /// Begins the departure that the traffic since the last call asks for. `gauges` are those of
    /// the port's queues. Only the control plane calls this.
    pub(crate) fn begin(table: &Arc<Table>, gauges: &[&Gauge]) -> Option<Departure> {
        if gauges.len() != usize::from(table.queues) {
            return None;
        }
        // From here on, no engine changes a place.
        table.give_up();
        let bucket = |entry: &Entry| Bucket {
            queue: queue_at(entry.place.load(Ordering::Relaxed)),
            bytes: entry.take_bytes(),
        };
        let buckets: Vec<Bucket> = table.entries.iter().map(bucket).collect();
        let is_saturated = |gauge: &&Gauge| gauge.has_pressure() || gauge.memory() > 0;
        let saturated: Vec<bool> = gauges.iter().map(is_saturated).collect();
        let relief = relieve(&buckets, &saturated)?;
        let number = table.departures.fetch_add(1, Ordering::Relaxed) + 1;
        for (bucket, _) in &relief.moves {
            table.entries[*bucket].place.store(place(relief.from, number), Ordering::Relaxed);
        }
        Some(Departure { table: Arc::clone(table), number, relief })
    }

    /// The number of the queue.
    pub(crate) fn queue(&self) -> usize {
        self.relief.from.into()
    }

    /// Moves the buckets, as the guest has taken their frames.
    pub(crate) fn finish(self) {
        self.table.end(&self, Outcome::Moves);
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.table.end(self, Outcome::Stays);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// A table of two queues in which buckets 1 to 3 have traffic, and the gauges of the queues, of
    /// which the first is saturated.
    fn busy() -> (Arc<Table>, [Gauge; 2]) {
        let gauges: [Gauge; 2] = Default::default();
        gauges[0].raise();
        let table = Arc::new(Table::new(2));
        assert_eq!(send(&table, [1, 2, 3], 100), [Some(0); 3]);
        (table, gauges)
    }

    /// Begins what the traffic asks for.
    fn begin(table: &Arc<Table>, gauges: &[Gauge]) -> Option<Departure> {
        Departure::begin(table, &gauges.iter().collect::<Vec<_>>())
    }

    /// Sends a frame of a flow in each of these buckets. Returns the queues.
    fn send<const N: usize>(table: &Table, buckets: [u32; N], len: usize) -> [Option<usize>; N] {
        buckets.map(|bucket| table.queue_of(bucket << 24, len))
    }

    #[test]
    fn buckets_have_no_queue_while_they_are_leaving_and_then_another() {
        let (table, gauges) = busy();
        let departure = begin(&table, &gauges).expect("the first queue is saturated");
        assert_eq!(departure.queue(), 0);
        let buckets = [1, 2, 3, 200];
        assert_eq!(send(&table, buckets, 0), [Some(0), None, Some(0), Some(1)]);
        assert_eq!(table.moved(), 0);
        departure.finish();
        assert_eq!(send(&table, buckets, 0), [Some(0), Some(1), Some(0), Some(1)]);
        // And 125 without traffic.
        assert_eq!(table.moved(), 126);
    }

    #[test]
    fn buckets_stay_if_their_departure_is_dropped() {
        let (table, gauges) = busy();
        drop(begin(&table, &gauges).expect("the first queue is saturated"));
        assert_eq!((table.moved(), send(&table, [2, 9], 0)), (0, [Some(0); 2]));
    }

    #[test]
    fn a_departure_that_was_given_up_finishes_no_other() {
        let (table, gauges) = busy();
        let first = begin(&table, &gauges).expect("the first queue is saturated");
        table.give_up();
        assert_eq!(send(&table, [2, 3, 9], 0), [Some(0); 3]);
        send(&table, [2, 3], 400);
        let second = begin(&table, &gauges).expect("it is so again");
        first.finish();
        assert_eq!((table.moved(), send(&table, [3, 9], 0)), (0, [None; 2]));
        second.finish();
        assert_eq!(send(&table, [2, 3, 9], 0), [Some(0), Some(1), Some(1)]);
    }

    #[test]
    fn a_departure_replaces_one_that_has_not_ended() {
        let (table, gauges) = busy();
        let first = begin(&table, &gauges).expect("the first queue is saturated");
        // What is leaving has no traffic by then, and another bucket has more.
        send(&table, [1, 3], 100);
        let second = begin(&table, &gauges).expect("it is so again");
        drop(first);
        assert_eq!(send(&table, [1, 2, 3], 0), [Some(0), None, None]);
        drop(second);
        assert_eq!(send(&table, [1, 2, 3], 0), [Some(0); 3]);
    }

    #[test]
    fn traffic_stays_if_nothing_waits() {
        let (table, gauges) = busy();
        gauges[0].lower();
        assert!(begin(&table, &gauges).is_none());
    }

    #[test]
    fn only_a_queue_with_traffic_is_left() {
        let (table, gauges) = busy();
        drop(begin(&table, &gauges).expect("the first queue is saturated"));
        assert!(begin(&table, &gauges).is_none(), "nothing was sent since");
    }

    #[test]
    fn memory_of_frames_that_wait_shows_that_a_queue_is_saturated() {
        let (table, gauges) = busy();
        gauges[0].lower();
        gauges[0].set_memory(1);
        assert!(begin(&table, &gauges[..1]).is_none(), "a queue is missing");
        let departure = begin(&table, &gauges);
        assert_eq!(departure.map(|it| it.queue()), Some(0));
    }
}
