//! Flows leave a queue that cannot keep up when the guest has taken their frames, and none is
//! reordered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ringway_datapath::DropReason;
use ringway_engine::{PortSteering, Stations};

use crate::bench::{Bench, Far, ONE, Station};

const MILLISECOND: Duration = Duration::from_millis(1);
const FLOWS: u16 = 64;

/// A host with a sender of many flows, and a receiver with four queues, of which the first has the
/// flows of long frames.
struct Busy {
    bench: Bench,
    sender: Station,
    receivers: Vec<Station>,
    steering: Arc<PortSteering>,
    /// Bytes of a frame, by flow.
    lens: Vec<usize>,
    /// The number of the newest frame that the guest has taken, by flow.
    newest: BTreeMap<u16, u16>,
    /// How many frames the guest takes from the first queue in a millisecond.
    pace: usize,
    sent: usize,
    taken: usize,
}

/// The flows of the frames that the guest has taken from each queue.
type Seen = Vec<BTreeSet<u16>>;

impl Busy {
    fn new(source: Stations) -> Busy {
        let mut bench = Bench::new(1 << 24);
        let sender = bench.port(1, 1, source).remove(0);
        let receivers = bench.port(2, 4, ONE);
        let steering = bench.let_balance(2, 4);
        sender.far().flows = FLOWS;
        receivers.iter().for_each(|queue| queue.far().ring = Some(VecDeque::new()));
        let mut busy = Busy {
            bench,
            sender,
            receivers,
            steering,
            lens: vec![100; FLOWS.into()],
            newest: BTreeMap::new(),
            pace: usize::MAX,
            sent: 0,
            taken: 0,
        };
        for flow in busy.send().remove(0) {
            busy.lens[usize::from(flow)] = 1400;
        }
        busy
    }

    /// One in which flows begin to leave the first queue, from which the guest takes no more.
    fn leaving() -> Busy {
        let mut busy = Busy::new(ONE);
        busy.pace = 0;
        busy.first().room = 0;
        busy.send();
        assert!(busy.bench.balance_flows());
        busy.first().room = usize::MAX;
        busy
    }

    fn first(&self) -> MutexGuard<'_, Far> {
        self.receivers[0].far()
    }

    /// Sends a frame of each flow and runs for a millisecond.
    fn send(&mut self) -> Seen {
        self.sender.far().script.extend(self.lens.iter().map(|len| (2, *len)));
        self.sent += self.lens.len();
        self.bench.ready(&self.sender);
        self.run(1)
    }

    /// Runs; the guest takes frames after each millisecond.
    fn run(&mut self, milliseconds: u32) -> Seen {
        let mut seen = vec![BTreeSet::new(); self.receivers.len()];
        for _ in 0..milliseconds {
            self.bench.run(MILLISECOND, |_| ());
            for (queue, seen) in seen.iter_mut().enumerate().rev() {
                seen.extend(self.take(queue));
            }
        }
        seen
    }

    /// Has the guest take frames from a queue, checks that none has overtaken another of its flow,
    /// and returns their flows.
    fn take(&mut self, queue: usize) -> Vec<u16> {
        let mut far = self.receivers[queue].far();
        let ring = far.ring.as_mut().expect("it has one");
        let pace = if queue == 0 { self.pace } else { usize::MAX };
        let frames: Vec<(u16, u16)> = ring.drain(..ring.len().min(pace)).collect();
        far.room = far.room.saturating_add(frames.len());
        self.taken += frames.len();
        for (flow, number) in &frames {
            let before = self.newest.insert(*flow, *number);
            assert!(before < Some(*number), "flow {flow}: {number} after {before:?}");
        }
        frames.into_iter().map(|(flow, _)| flow).collect()
    }
}

#[test]
fn flows_move_under_load_and_none_is_reordered() {
    for source in [ONE, Stations::Many] {
        let mut busy = Busy::new(source);
        let before = busy.send();
        assert_eq!(before.iter().map(BTreeSet::len).sum::<usize>(), FLOWS.into());
        // The first ring is short, and the guest takes less from it than comes.
        busy.first().room = before[0].len();
        busy.pace = before[0].len() * 3 / 4;
        (0..20).for_each(|_| drop(busy.send()));
        assert!(busy.taken < busy.sent && busy.bench.balance_flows());
        let during = busy.send();
        assert_eq!(during[1..], before[1..], "none goes where it is not in order yet");
        assert_eq!(busy.steering.moved(), Some(0));
        (0..40).for_each(|_| drop(busy.send()));

        assert!(busy.steering.moved() > Some(0));
        let after = busy.send();
        assert!(after[0].len() < before[0].len() && after[0].is_subset(&before[0]), "{after:?}");
        assert!((1..4).all(|queue| after[queue].is_superset(&before[queue])), "{after:?}");
        assert_eq!(busy.taken, busy.sent, "no frame is lost");
    }
}

#[test]
fn flows_stay_if_their_guest_does_not_take_their_frames_in_time() {
    let mut busy = Busy::leaving();
    busy.send();
    busy.run(60);
    busy.pace = usize::MAX;
    busy.run(1);
    assert_eq!((busy.taken, busy.steering.moved()), (busy.sent, Some(0)));
    let long = busy.lens.iter().filter(|len| **len == 1400).count();
    assert_eq!(busy.send()[0].len(), long);
}

#[test]
fn flows_stay_if_too_many_of_their_frames_would_have_to_wait() {
    let mut busy = Busy::leaving();
    for _ in 0..120 {
        busy.sender.far().script.extend(busy.lens.iter().map(|len| (2, *len)));
        busy.sent += busy.lens.len();
    }
    busy.send();
    busy.run(10);
    busy.pace = usize::MAX;
    busy.run(5);
    assert_eq!((busy.taken, busy.steering.moved()), (busy.sent, Some(0)), "no frame is lost");
}

#[test]
fn nothing_begins_without_a_queue_that_cannot_keep_up_or_a_table() {
    let mut busy = Busy::new(ONE);
    busy.send();
    assert!(!busy.bench.balance_flows());
    busy.first().room = 0;
    busy.bench.let_steer(2);
    busy.send();
    assert!(!busy.bench.balance_flows());
}

#[test]
fn what_is_parked_for_a_port_that_goes_is_dropped_and_counted() {
    let mut busy = Busy::leaving();
    busy.send();
    let before = busy.sender.dropped(DropReason::NoRoute);
    busy.bench.forget_port(2);
    busy.run(1);
    assert!(busy.sender.dropped(DropReason::NoRoute) > before);
}
