//! What an engine does round by round, in simulated time.
#![cfg(not(feature = "loom"))]

mod announcements;
mod balance;
mod bench;
mod bridges;
mod engines;
mod lent;
mod limits;
mod mirrors;
mod pair;
mod steering;
mod vlans;

use std::time::{Duration, Instant};

use ringway_datapath::{DropReason, Gso, GsoKind, Probe, QueueTraits};
use ringway_engine::{IfIdle, Stations, Wait, Weight};

use bench::{Bench, DEVICE, ONE, Station, TRAITS, byte_at};

const SECOND: Duration = Duration::from_secs(1);
const MEMORY: usize = 64 << 20;

/// Lets one frame leave in each `pause`.
fn page_each(station: &Station, pause: Duration) -> impl FnMut(Instant) + '_ {
    let mut next: Option<Instant> = None;
    move |now| {
        if next.is_none_or(|next| next <= now) {
            next = Some(now + pause);
            station.far().room += 1;
        }
    }
}

/// The part of its frames that a good station still gets, in two seconds, from a source that also
/// sends to a station that takes one page per `pause`.
fn part_beside_a_slow_receiver(source: Stations, pause: Duration) -> f64 {
    let mut received = [0.0; 2];
    for (slow, received) in [false, true].into_iter().zip(&mut received) {
        let mut bench = Bench::new(MEMORY);
        let sender = bench.port(1, 1, source).remove(0);
        let good = bench.port(2, 1, ONE).remove(0);
        let bad = bench.port(3, 1, ONE).remove(0);
        sender.far().script = [(2, 1514), (2, 1514), (2, 1514), (3, 60)].into();
        sender.far().is_endless = true;
        if slow {
            bad.far().room = 0;
            bench.run(2 * SECOND, page_each(&bad, pause));
        } else {
            bench.run(2 * SECOND, |_| ());
        }
        *received = u32::try_from(good.far().received).expect("not so many").into();
    }
    received[1] / received[0]
}

#[test]
fn a_slow_receiver_costs_its_senders_little() {
    for pause_ms in [1, 5, 45, 49, 500] {
        let part = part_beside_a_slow_receiver(ONE, Duration::from_millis(pause_ms));
        assert!(part >= 0.9, "a page in {pause_ms} ms leaves {part}");
    }
}

#[test]
fn a_port_with_many_stations_waits_for_no_receiver() {
    let part = part_beside_a_slow_receiver(Stations::Many, Duration::from_millis(45));
    assert!(part >= 0.99, "{part}");
}

#[test]
fn a_receiver_slightly_slower_than_its_sender_loses_nothing() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    sender.far().script = [(2, 1514)].into();
    sender.far().is_endless = true;
    receiver.far().room = 0;
    // 50 frames per millisecond: far fewer than arrive, but far more than a slow receiver takes.
    let mut next = bench.now;
    bench.run(SECOND, |now| {
        if next <= now {
            next = now + Duration::from_millis(1);
            receiver.far().room += 50;
        }
    });
    assert!(receiver.far().received > 45_000);
    assert_eq!(receiver.dropped(DropReason::QueueFull), 0);
}

#[test]
fn a_flood_waits_for_no_receiver_and_is_dropped_at_full_queues() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let good = bench.port(2, 1, ONE).remove(0);
    let bad = bench.port(3, 1, ONE).remove(0);
    bad.far().room = 0;
    sender.far().script = (0..10_000).map(|_| (255, 60)).collect();
    bench.run(SECOND / 10, |_| ());
    assert_eq!(good.far().received, 10_000);
    let dropped = bad.dropped(DropReason::QueueFull);
    assert!((9_800..10_000).contains(&dropped), "{dropped}");
}

/// Bytes that two senders with endless frames have sent after a second.
fn race(honest: (u16, usize, Stations), other: (u16, usize)) -> (u64, u64) {
    let mut bench = Bench::new(MEMORY);
    let stations = honest.2;
    bench.port(9, 1, ONE);
    let senders = [(1, honest.0, honest.1, stations), (2, other.0, other.1, ONE)];
    let senders = senders.map(|(number, queues, len, stations)| {
        let queues = bench.port(number, queues, stations);
        for queue in &queues {
            queue.far().script = [(9, len)].into();
            queue.far().is_endless = true;
        }
        queues
    });
    bench.run(SECOND / 10, |_| ());
    let [honest, other] =
        senders.map(|queues| queues.iter().map(|queue| queue.far().taken_bytes).sum::<u64>());
    (honest, other)
}

#[test]
fn more_queues_give_a_port_no_larger_share() {
    for queues in [1, 2, 8] {
        let (honest, greedy) = race((1, 60_000, ONE), (queues, 60_000));
        assert!(honest * 100 >= greedy * 95, "{queues} queues: {honest} beside {greedy}");
    }
    // Short frames keep their batches.
    let (alone, _) = race((1, 60, ONE), (0, 0));
    let (beside, _) = race((1, 60, ONE), (8, 60_000));
    assert!(beside * 100 >= alone * 95, "{beside} of {alone}");
}

#[test]
fn weights_determine_shares() {
    let double = Stations::One(Weight::new(2).expect("a weight"));
    let (heavy, light) = race((1, 60_000, double), (4, 60_000));
    assert!((190..=210).contains(&(heavy * 100 / light)), "{heavy} and {light}");
}

#[test]
fn queues_that_are_full_leave_memory_for_others() {
    let mut bench = Bench::new(8 << 20);
    let sender = bench.port(1, 1, Stations::Many).remove(0);
    let full: Vec<Station> = (2..8).map(|number| bench.port(number, 1, ONE).remove(0)).collect();
    // Each takes a buffer of 64 KiB.
    let mut script = Vec::new();
    for (number, station) in (2..8).zip(&full) {
        station.far().room = 0;
        script.push((number, 4097));
    }
    sender.far().script = script.into();
    sender.far().is_endless = true;
    bench.run(SECOND / 100, |_| ());
    assert!(bench.budget.bytes_left() > 1 << 20, "{} left", bench.budget.bytes_left());
}

#[test]
fn any_number_of_stalled_queues_leaves_memory_for_others() {
    let mut bench = Bench::new(2 << 20);
    let sender = bench.port(1, 1, Stations::Many).remove(0);
    let good = bench.port(2, 1, ONE).remove(0);
    let full = (3..7_u8).flat_map(|number| bench.port(number, 16, ONE));
    let full: Vec<Station> = full.inspect(|queue| queue.far().room = 0).collect();
    sender.far().flows = 64;
    sender.far().script = (3..7).flat_map(|number| [(number, 1500); 64]).collect();
    sender.far().is_endless = true;
    bench.run(SECOND / 8, |_| ());
    // Each keeps some memory, but together not all of it.
    assert_eq!(full.len(), 64);
    sender.far().script = [(2, 60_000)].into();
    bench.run(SECOND / 50, |_| ());
    assert!(good.far().received > 10, "{} frames", good.far().received);
}

/// A sender, and a receiver that stalled with a frame that its queue may not keep.
fn stalled_without_backlog(bench: &mut Bench) -> [Station; 2] {
    let sender = bench.port(1, 1, Stations::Many).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    receiver.far().room = 0;
    sender.far().script = [(2, 60_000)].into();
    bench.run(SECOND / 8, |_| ());
    assert_eq!(receiver.dropped(DropReason::QueueFull), 1, "it is more than the queue may keep");
    [sender, receiver]
}

#[test]
fn a_stalled_queue_without_backlog_sends_later_frames() {
    let mut bench = Bench::new(512 << 10);
    let [sender, receiver] = stalled_without_backlog(&mut bench);
    receiver.far().room = usize::MAX;
    sender.far().script = [(2, 60)].into();
    bench.ready(&sender);
    bench.run(SECOND / 8, |_| ());
    assert_eq!(receiver.far().received, 1);
}

#[test]
fn a_queue_whose_waiting_frames_were_dropped_looks_for_no_room() {
    let mut bench = Bench::new(512 << 10);
    let [_sender, receiver] = stalled_without_backlog(&mut bench);
    receiver.far().room = usize::MAX;
    bench.ready(&receiver);
    bench.round();
    assert_eq!(bench.round(), Wait::Event, "its engine may sleep");
}

#[test]
fn a_source_resumes_when_the_queue_that_held_it_fails() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let bad = bench.port(3, 1, ONE).remove(0);
    let good = bench.port(2, 1, ONE).remove(0);
    bad.far().room = 0;
    sender.far().script = (0..200).map(|_| (3, 60)).chain([(2, 60)]).collect();
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(good.far().received, 0, "it is held");
    bad.far().fails = true;
    bench.ready(&bad);
    // Others may have been held as well, and sleep: the next round wakes them.
    assert_eq!(bench.round(), Wait::Now);
    bench.round();
    assert_eq!(good.far().received, 1);
    assert!(bench.engine.next_failure().is_some());
}

#[test]
fn work_without_buffers_is_retried_once_a_millisecond() {
    for probe in [Probe::Memory, Probe::SystemCall] {
        let mut bench = Bench::new(0);
        let sender = bench.port_with(1, 1, ONE, QueueTraits { probe, ..TRAITS }).remove(0);
        sender.far().script = [(2, 60)].into();
        for _ in 0..3 {
            let before = bench.now;
            assert_eq!(bench.round(), Wait::Until(before + Duration::from_millis(1)), "{probe:?}");
        }
    }
}

#[test]
fn an_engine_stays_awake_for_room_but_not_for_frames_of_a_held_source() {
    let mut bench = Bench::new(MEMORY);
    let left = bench.port(1, 1, ONE).remove(0);
    let right = bench.port(2, 1, ONE).remove(0);
    // Each is full of the other's frames, and has more to send.
    for (station, to) in [(&left, 2), (&right, 1)] {
        station.far().room = 0;
        station.far().script = (0..400).map(|_| (to, 60)).collect();
    }
    bench.run(Duration::from_millis(1), |_| ());
    assert!(matches!(bench.round(), Wait::Until(_)), "both wait for room, and for no longer");
    left.far().room = 400;
    bench.ready(&left);
    assert_eq!(bench.round(), Wait::Now);
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(left.far().received, 400);
}

#[test]
fn a_stalled_queue_lets_its_engine_sleep() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let still = bench.port(2, 1, ONE).remove(0);
    still.far().room = 0;
    sender.far().script = (0..10).map(|_| (2, 60)).collect();
    bench.run(Duration::from_millis(10), |_| ());
    assert!(matches!(bench.round(), Wait::Until(_)));
    bench.run(Duration::from_millis(60), |_| ());
    assert_eq!(bench.round(), Wait::Event);
}

#[test]
fn a_queue_without_an_event_for_room_is_retried() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let retry = Duration::from_millis(5);
    let traits = QueueTraits { retry: Some(retry), ..TRAITS };
    let full = bench.port_with(2, 1, ONE, traits).remove(0);
    full.far().room = 0;
    sender.far().script = (0..10).map(|_| (2, 60)).collect();
    bench.run(Duration::from_millis(1), |_| ());
    let before = bench.now;
    assert_eq!(bench.round(), Wait::Until(before + retry));
    // While it is stalled, it is retried less often, because each retry costs its engine a wake-up.
    bench.run(Duration::from_millis(60), |_| ());
    let before = bench.now;
    assert_eq!(bench.round(), Wait::Until(before + Duration::from_millis(50)));
    full.far().room = 2;
    bench.run(Duration::from_millis(51), |_| ());
    assert_eq!(full.far().received, 2);
    bench.run(Duration::from_millis(9_900), |_| ());
    assert!(matches!(bench.round(), Wait::Until(_)), "not given up so far");
    bench.run(Duration::from_millis(200), |_| ());
    assert_eq!(bench.round(), Wait::Event);
    assert_eq!(full.dropped(DropReason::QueueFull), 8);
    full.far().room = 10;
    bench.ready(&full);
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(bench.round(), Wait::Event, "it does not look for room any more");
}

#[test]
fn a_frame_with_tiny_segments_is_dropped_at_every_port() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    for (size, is_sent) in [(1, false), (47, false), (48, true), (1448, true)] {
        let before = (receiver.far().received, sender.dropped(DropReason::BadOffload));
        sender.far().gso = Some(Gso { kind: GsoKind::TcpV4, size });
        sender.far().script = [(2, 60_000)].into();
        bench.ready(&sender);
        bench.run(Duration::from_millis(1), |_| ());
        let after = (receiver.far().received, sender.dropped(DropReason::BadOffload));
        let expected = if is_sent { (before.0 + 1, before.1) } else { (before.0, before.1 + 1) };
        assert_eq!(after, expected, "{size}");
    }
}

/// Memory that the frames of two ports with these numbers of queues take, if neither accepts
/// frames.
fn memory_of_full_ports(first: u16, second: u16) -> (u64, u64) {
    const TOTAL: usize = 32 << 20;
    let mut bench = Bench::new(TOTAL);
    let sender = bench.port(1, 1, Stations::Many).remove(0);
    let mut waiting = |number: u8, queues: u16| {
        let full = bench.port(number, queues, ONE);
        full.iter().for_each(|queue| queue.far().room = 0);
        // A different flow for each, so that all queues get some.
        sender.far().script = (0..64).map(|_| (number, 60_000)).collect();
        sender.far().is_endless = true;
        sender.far().flows = 64;
        let before = bench.budget.bytes_left();
        // Too short to count as a stall.
        bench.run(Duration::from_millis(20), |_| ());
        sender.far().script.clear();
        u64::try_from(before - bench.budget.bytes_left()).expect("it takes memory")
    };
    (waiting(2, first), waiting(3, second))
}

#[test]
fn more_queues_give_a_port_no_more_memory() {
    let (one, _) = memory_of_full_ports(1, 1);
    let (eight, after) = memory_of_full_ports(8, 1);
    // A fifth of the total is a quarter of what then remains. A round's batch may exceed it.
    assert!(one <= 7 << 20, "{one}");
    assert!(eight <= 12 << 20, "{eight} beside {one}");
    assert!(after >= 4 << 20, "{after} are left for another port");
}

#[test]
fn a_changed_weight_takes_effect_at_once() {
    let mut bench = Bench::new(MEMORY);
    bench.port(9, 1, ONE);
    let [one, other] = [1, 2].map(|number| {
        let queue = bench.port(number, 1, ONE).remove(0);
        queue.far().script = [(9, 60_000)].into();
        queue.far().is_endless = true;
        queue
    });
    let ratio = |bench: &mut Bench| {
        let before = [&one, &other].map(|queue| queue.far().taken_bytes);
        bench.run(SECOND / 10, |_| ());
        (one.far().taken_bytes - before[0]) * 100 / (other.far().taken_bytes - before[1])
    };
    let equal = ratio(&mut bench);
    assert!((95..=105).contains(&equal), "{equal}");
    bench.set_weight(&one, Weight::new(4).expect("a weight"));
    let heavy = ratio(&mut bench);
    assert!((380..=420).contains(&heavy), "{heavy}");
}

#[test]
fn an_event_for_a_port_without_share_left_is_remembered() {
    let mut bench = Bench::new(MEMORY);
    let device = bench.port_with(2, 1, ONE, DEVICE).remove(0);
    let busy = bench.port(1, 1, ONE).remove(0);
    bench.port(9, 1, ONE);
    busy.far().script = [(9, 60_000)].into();
    busy.far().is_endless = true;
    // In its first round it takes in the share of a port with many stations.
    device.far().script = (0..60).map(|_| (9, 60_000)).collect();
    bench.round();
    assert_eq!(device.far().taken, 60);
    device.far().script.push_back((9, 60));
    bench.ready(&device);
    bench.run(Duration::from_millis(10), |_| ());
    assert_eq!(device.far().taken, 61);
}

#[test]
fn an_event_for_a_held_source_is_remembered() {
    let mut bench = Bench::new(MEMORY);
    let device = bench.port_with(1, 1, ONE, DEVICE).remove(0);
    let full = bench.port(2, 1, ONE).remove(0);
    full.far().room = 0;
    device.far().script = (0..150).map(|_| (2, 60)).collect();
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(device.far().taken, 150, "the last of them are kept");
    device.far().script.push_back((2, 60));
    bench.ready(&device);
    full.far().room = usize::MAX;
    bench.ready(&full);
    bench.run(Duration::from_millis(10), |_| ());
    assert_eq!((device.far().taken, full.far().received), (151, 151));
}

#[test]
fn frames_of_a_patched_queue_take_the_same_path_before_its_port_is_in_the_directory() {
    let mut bench = Bench::new(MEMORY);
    let device = bench.port(2, 2, ONE);
    let vif = bench.patched_port(1, 2, 2);
    for expected in [1, 2] {
        // Without a flow that could be hashed.
        vif[1].far().script.push_back((2, 60));
        bench.ready(&vif[1]);
        bench.run(Duration::from_millis(1), |_| ());
        let received = [&device[0], &device[1]].map(|queue| queue.far().received);
        assert_eq!(received, [0, expected]);
        bench.publish();
    }
}

#[test]
fn a_queue_without_frames_costs_no_turns_while_others_work() {
    let mut bench = Bench::new(MEMORY);
    let busy = bench.port(1, 1, ONE).remove(0);
    let idle = bench.port(2, 1, ONE).remove(0);
    busy.far().script = [(2, 60)].into();
    busy.far().is_endless = true;
    for _ in 0..1000 {
        bench.round();
    }
    assert!(busy.far().asked >= 1000);
    // It was polled for a while before that: its next frames may be close behind.
    let asked = idle.far().asked;
    assert!((60..100).contains(&asked), "{asked}");
    // Arriving frames do not wake it, but an event does.
    idle.far().script = [(1, 60)].into();
    bench.ready(&idle);
    bench.round();
    assert_eq!(busy.far().received, 1);
}

#[test]
fn a_queue_whose_frames_arrive_between_two_polls_is_polled_again() {
    let mut bench = Bench::new(MEMORY);
    let busy = bench.port(1, 1, ONE).remove(0);
    let idle = bench.port(2, 1, ONE).remove(0);
    busy.far().script = [(2, 60)].into();
    busy.far().is_endless = true;
    // Every number of turns without a frame, including that at which it would be armed.
    for turns in 1..100 {
        idle.far().script = [(1, 60)].into();
        bench.ready(&idle);
        for _ in 0..turns {
            bench.round();
        }
        assert_eq!(busy.far().received, turns, "{turns}");
    }
}

#[test]
fn a_queue_that_has_more_when_it_is_armed_keeps_its_engine_awake() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    sender.far().late = [(2, 60)].into();
    assert_eq!(bench.round(), Wait::Now, "a frame has come since the queue was polled");
    bench.round();
    assert_eq!(receiver.far().received, 1, "no event was needed");
    assert_eq!(bench.round(), Wait::Event);
}

#[test]
fn a_queue_that_has_more_when_it_rests_beside_a_busy_one_is_polled_again() {
    let mut bench = Bench::new(MEMORY);
    let busy = bench.port(1, 1, ONE).remove(0);
    let resting = bench.port(2, 1, ONE).remove(0);
    let receiver = bench.port(3, 1, ONE).remove(0);
    busy.far().script = [(3, 60)].into();
    busy.far().is_endless = true;
    resting.far().late = [(1, 60)].into();
    bench.run(Duration::from_millis(20), |_| ());
    assert!(resting.far().late.is_empty(), "it was armed");
    assert_eq!(busy.far().received, 1, "no event was needed");
    assert!(receiver.far().received > 0);
}

#[test]
fn a_device_that_has_more_than_it_hands_over_at_once_is_read_without_an_event() {
    let mut bench = Bench::new(MEMORY);
    let device = bench.port_with(1, 1, ONE, DEVICE).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    device.far().at_once = 1;
    device.far().script = [(2, 60); 5].into();
    for _ in 0..5 {
        assert_eq!(bench.round(), Wait::Now);
    }
    assert_eq!(receiver.far().received, 5);
    bench.round();
    assert_eq!(bench.round(), Wait::Event, "it was found empty");
}

#[test]
fn a_polling_engine_polls_all_its_queues() {
    let mut bench = Bench::new(MEMORY);
    let idle = bench.port(1, 1, ONE).remove(0);
    for _ in 0..1000 {
        assert_eq!(bench.round_that(IfIdle::Poll), Wait::Poll);
    }
    assert_eq!(idle.far().asked, 1000);
}

#[test]
fn a_queue_that_does_not_accept_pages_gets_all_bytes_in_the_buffer() {
    for is_patched in [false, true] {
        let mut bench = Bench::new(MEMORY);
        let [sender, receiver] = [(1, 2), (2, 1)].map(|(from, to)| {
            let mut attached = match is_patched {
                true => bench.patched_port(from, 1, to),
                false => bench.port(from, 1, ONE),
            };
            attached.remove(0)
        });
        bench.publish();
        sender.far().is_in_pages = true;
        sender.far().script.push_back((2, 9000));
        bench.run(SECOND, |_| ());
        let expected: Vec<u8> = (14..9000).map(byte_at).collect();
        // What follows the addresses and the EtherType.
        assert_eq!(receiver.far().last[2..], expected);
    }
}
