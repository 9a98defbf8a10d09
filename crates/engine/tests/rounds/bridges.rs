//! Guests on a bridge of the host, whose kernel drops frames that a device does not read in time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bench::{Bench, Station};
use crate::{MEMORY, SECOND};

/// Frames that the kernel keeps for a queue of a TAP device (`TUN_READQ_SIZE` of
/// drivers/net/tun.c).
const KEPT_MAX: usize = 500;
/// The cost of frames of these lengths to a worker that reads and writes them by system calls.
const COST_LONG: u64 = 60_000 + (16 << 10);
const COST_SHORT: u64 = 60 + (16 << 10);

/// A bridge: frames that leave by a sender's device arrive at the receiver's, chosen by their
/// length.
#[derive(Default)]
struct Kernel {
    /// By length: frames that were passed on, and that were dropped.
    passed: BTreeMap<usize, u64>,
    dropped: BTreeMap<usize, u64>,
}

impl Kernel {
    /// Passes on what has left by the senders' devices since the last call. `receivers` has,
    /// for each length of frames, the number of the guest and its device.
    fn forward(
        &mut self,
        bench: &mut Bench,
        senders: &[&[Station]],
        receivers: &[(usize, u8, &Station)],
    ) {
        for queue in senders.iter().copied().flatten() {
            let lens = std::mem::take(&mut queue.far().lens);
            for len in lens {
                let found = receivers.iter().find(|(it, ..)| *it == len);
                let (_, number, receiver) = found.expect("each length has a receiver");
                let mut far = receiver.far();
                let is_full = far.script.len() >= KEPT_MAX;
                let count = if is_full { &mut self.dropped } else { &mut self.passed };
                *count.entry(len).or_default() += 1;
                if !is_full {
                    far.script.push_back((*number, len));
                }
                drop(far);
                bench.ready(receiver);
            }
        }
    }

    fn count(&self, len: usize) -> (u64, u64) {
        let count = |map: &BTreeMap<usize, u64>| map.get(&len).copied().unwrap_or(0);
        (count(&self.passed), count(&self.dropped))
    }
}

/// Gives a station room for a number of frames per millisecond.
struct Pace {
    per_ms: usize,
    next: std::time::Instant,
}

impl Pace {
    fn new(bench: &Bench, per_ms: usize) -> Pace {
        Pace { per_ms, next: bench.now }
    }

    fn give(&mut self, bench: &Bench, station: &Station) {
        if self.next <= bench.now {
            self.next += Duration::from_millis(1);
            station.far().room = self.per_ms;
        }
    }
}

/// Two guests send to a third on their bridge as fast as they can: one sends long frames, the other
/// short ones by eight queues. The third has room for `room_per_ms` frames per millisecond. Returns
/// how many frames of each were passed on and dropped.
fn race(room_per_ms: usize) -> [(u64, u64); 2] {
    let mut bench = Bench::new(MEMORY);
    let [honest, honest_device] = bench.bridged(1, 1);
    let [greedy, greedy_device] = bench.bridged(2, 8);
    let [receiver, receiver_device] = bench.bridged(3, 1);
    for (queues, len) in [(&honest, 60_000), (&greedy, 60)] {
        for queue in queues {
            queue.far().script = [(3, len)].into();
            queue.far().is_endless = true;
        }
    }
    let mut kernel = Kernel::default();
    let senders = [honest_device.as_slice(), &greedy_device];
    let device = &receiver_device[0];
    receiver[0].far().room = 0;
    let mut pace = Pace::new(&bench, room_per_ms);
    let end = bench.now + SECOND;
    while bench.now < end {
        pace.give(&bench, &receiver[0]);
        kernel.forward(&mut bench, &senders, &[(60_000, 3, device), (60, 3, device)]);
        bench.round();
    }
    [kernel.count(60_000), kernel.count(60)]
}

#[test]
fn guests_on_a_bridge_wait_for_their_receiver_and_share_its_rate() {
    // From a receiver faster than both senders to one that is hardly worth waiting for.
    for room_per_ms in [10_000, 200, 100, 50] {
        let [(long, long_dropped), (short, short_dropped)] = race(room_per_ms);
        assert_eq!((long_dropped, short_dropped), (0, 0), "with room for {room_per_ms}");
        let (long, short) = (long * COST_LONG, short * COST_SHORT);
        assert!(long * 10 > short * 9, "with room for {room_per_ms}: {long} beside {short}");
    }
}

#[test]
fn senders_wait_for_a_device_that_has_more_however_few_frames_it_hands_over_at_once() {
    let mut bench = Bench::new(MEMORY);
    let [sender, sender_device] = bench.bridged(1, 1);
    let [receiver, receiver_device] = bench.bridged(3, 1);
    sender[0].far().script = [(3, 1514)].into();
    sender[0].far().is_endless = true;
    // Half of what it may take in, and of what the sender's device gets, in a round.
    receiver_device[0].far().at_once = 8;
    let mut kernel = Kernel::default();
    for _ in 0..1000 {
        kernel.forward(&mut bench, &[&sender_device], &[(1514, 3, &receiver_device[0])]);
        bench.round();
    }
    assert_eq!(kernel.count(1514).1, 0, "dropped");
    let received = receiver[0].far().received;
    assert!(received > 5_000, "{received} of 8000: the sender waits no longer than it must");
}

#[test]
fn a_slow_receiver_on_a_bridge_does_not_delay_frames_for_others() {
    let mut received = Vec::new();
    for has_room in [true, false] {
        let mut bench = Bench::new(MEMORY);
        let [sender, sender_device] = bench.bridged(1, 1);
        let [good, good_device] = bench.bridged(3, 1);
        let [slow, slow_device] = bench.bridged(4, 1);
        sender[0].far().script = [(3, 1514), (3, 1514), (3, 1514), (4, 60)].into();
        sender[0].far().is_endless = true;
        let mut kernel = Kernel::default();
        // A frame in 45 ms: it never stalls.
        let mut next = bench.now;
        let end = bench.now + 2 * SECOND;
        while bench.now < end {
            if !has_room && next <= bench.now {
                next += Duration::from_millis(45);
                slow[0].far().room = 1;
            }
            let receivers = [(1514, 3, &good_device[0]), (60, 4, &slow_device[0])];
            kernel.forward(&mut bench, &[&sender_device], &receivers);
            bench.round();
        }
        received.push(good[0].far().received);
    }
    assert!(received[1] * 10 >= received[0] * 9, "{received:?}");
}

#[test]
fn a_detached_receiver_leaves_no_sender_waiting() {
    let mut bench = Bench::new(MEMORY);
    let [sender, sender_device] = bench.bridged(1, 1);
    let [receiver, receiver_device] = bench.bridged(3, 1);
    sender[0].far().script = [(3, 1514)].into();
    sender[0].far().is_endless = true;
    receiver[0].far().room = 0;
    let mut kernel = Kernel::default();
    for _ in 0..100 {
        kernel.forward(&mut bench, &[&sender_device], &[(1514, 3, &receiver_device[0])]);
        bench.round();
    }
    let before = sender_device[0].far().received;
    assert!(before < 700, "{before} frames for a receiver that takes none");
    bench.detach(&receiver_device[0]);
    for _ in 0..10 {
        bench.round();
    }
    assert!(sender_device[0].far().received > before + 64);
}
