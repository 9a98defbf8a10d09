//! What an engine does round by round, in simulated time.
#![cfg(not(feature = "loom"))]

mod bench;
mod vlans;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{DropReason, Gso, GsoKind, Probe, QueueTraits};
use ringway_engine::{
    Credit, IfIdle, Limits, Stations, Wait, Weight, egress_credit, segment_credit,
};

use bench::{Bench, DEVICE, ONE, Station, TRAITS};

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

/// Frames that a good station gets in two seconds from a source that also sends to one which takes
/// a page in each `pause`, of the frames that it gets without that one.
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
fn a_receiver_that_takes_a_page_now_and_then_costs_those_who_send_to_it_little() {
    for pause_ms in [1, 5, 45, 49, 500] {
        let part = part_beside_a_slow_receiver(ONE, Duration::from_millis(pause_ms));
        assert!(part >= 0.9, "a page in {pause_ms} ms leaves {part}");
    }
}

/// Sender, receiver, one more port, and the output of a mirror.
fn mirrored(ingress: &[u8], egress: &[u8]) -> (Bench, [Station; 4]) {
    let mut bench = Bench::new(MEMORY);
    let stations = [1, 2, 3, 9].map(|number| bench.port(number, 1, ONE).remove(0));
    bench.mirror(9, ingress, egress);
    (bench, stations)
}

#[test]
fn a_mirror_gets_what_enters_or_leaves_by_its_ports_once_and_nothing_else() {
    for (ingress, egress, copies) in [
        (&[1_u8][..], &[][..], 3),
        (&[], &[2], 3),
        (&[1, 2, 3], &[1, 2, 3], 5),
        (&[3], &[3], 4),
        (&[], &[1], 2),
    ] {
        let (mut bench, [sender, receiver, third, output]) = mirrored(ingress, egress);
        sender.far().script = [(2, 100), (3, 200), (255, 300)].into();
        // The second is for the station at the output, which the switch does not know.
        third.far().script = [(1, 400), (9, 500)].into();
        for _ in 0..20 {
            bench.round();
        }
        assert_eq!((receiver.far().received, third.far().received), (3, 2));
        assert_eq!(output.far().received, copies, "{ingress:?} {egress:?}");
    }
}

#[test]
fn what_the_output_of_a_mirror_sends_goes_nowhere_by_its_policy_and_no_flood_reaches_it() {
    let (mut bench, [sender, receiver, _, output]) = mirrored(&[], &[]);
    sender.far().script = [(255, 300), (9, 300)].into();
    for _ in 0..20 {
        bench.round();
    }
    assert!(receiver.far().received >= 1);
    assert_eq!(output.far().received, 0);
}

#[test]
fn a_mirror_that_takes_nothing_costs_the_mirrored_no_frame() {
    let (mut bench, [sender, receiver, _, output]) = mirrored(&[1], &[2]);
    output.far().room = 0;
    sender.far().script = [(2, 1514)].into();
    sender.far().is_endless = true;
    bench.run(SECOND / 10, |_| ());
    let (taken, received) = (sender.far().taken, receiver.far().received);
    assert!(taken > 10_000 && taken - received < 1024, "{taken} {received}");
    assert_eq!(receiver.dropped(DropReason::QueueFull), 0);
    // They are counted where they were for, and not as the sender's.
    assert!(output.dropped(DropReason::QueueFull) > 1000);
    assert_eq!(sender.dropped(DropReason::QueueFull), 0);
}

#[test]
fn a_frame_that_waits_for_its_receiver_is_copied_once() {
    let (mut bench, [sender, receiver, _, output]) = mirrored(&[1], &[2]);
    sender.far().script = [(2, 60)].into();
    sender.far().is_endless = true;
    receiver.far().room = 0;
    bench.run(SECOND / 50, page_each(&receiver, Duration::from_millis(1)));
    sender.far().script.clear();
    receiver.far().room = usize::MAX;
    bench.run(SECOND / 2, |_| ());
    let taken = sender.far().taken;
    let lost = output.dropped(DropReason::QueueFull);
    assert_eq!(output.far().received + lost, taken, "of {taken}, {lost} were lost");
}

#[test]
fn a_port_with_many_stations_behind_it_waits_for_no_receiver() {
    let part = part_beside_a_slow_receiver(Stations::Many, Duration::from_millis(45));
    assert!(part >= 0.99, "{part}");
}

#[test]
fn a_receiver_that_is_only_slower_than_its_sender_loses_nothing() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    sender.far().script = [(2, 1514)].into();
    sender.far().is_endless = true;
    receiver.far().room = 0;
    // 50 frames in each millisecond: far less than comes, far more than now and then.
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
fn a_flood_waits_for_no_receiver_and_is_dropped_where_it_does_not_fit() {
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

/// Bytes that two senders have taken in after a second, if both have frames without end.
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
fn a_port_gets_no_more_of_an_engine_by_having_more_queues() {
    for queues in [1, 2, 8] {
        let (honest, greedy) = race((1, 60_000, ONE), (queues, 60_000));
        assert!(honest * 100 >= greedy * 95, "{queues} queues: {honest} beside {greedy}");
    }
    // Short frames keep the batches that they had.
    let (alone, _) = race((1, 60, ONE), (0, 0));
    let (beside, _) = race((1, 60, ONE), (8, 60_000));
    assert!(beside * 100 >= alone * 95, "{beside} of {alone}");
}

#[test]
fn a_weight_is_a_share() {
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
fn a_source_that_a_failed_queue_held_goes_on() {
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
fn work_without_buffers_is_tried_each_millisecond_and_not_all_the_time() {
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
fn frames_for_a_held_source_are_no_reason_to_stay_awake_and_room_is() {
    let mut bench = Bench::new(MEMORY);
    let left = bench.port(1, 1, ONE).remove(0);
    let right = bench.port(2, 1, ONE).remove(0);
    // Each is full of what the other sent, and has more to send.
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
fn a_queue_that_has_stalled_lets_its_engine_sleep() {
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
fn a_queue_without_an_event_for_room_is_tried_again() {
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
    // While it stands still it is tried less often: it costs its engine a wake-up each time.
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
fn a_frame_that_asks_for_tiny_segments_leaves_by_no_port() {
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

/// Memory that two ports of so many queues take which take nothing in, each as much as it can.
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
        // Short enough not to count as standing still.
        bench.run(Duration::from_millis(20), |_| ());
        sender.far().script.clear();
        u64::try_from(before - bench.budget.bytes_left()).expect("it takes memory")
    };
    (waiting(2, first), waiting(3, second))
}

#[test]
fn a_port_takes_no_more_memory_by_having_more_queues() {
    let (one, _) = memory_of_full_ports(1, 1);
    let (eight, after) = memory_of_full_ports(8, 1);
    // A fifth of all: a quarter of what is then left. Above it may be a round's batch.
    assert!(one <= 7 << 20, "{one}");
    assert!(eight <= 12 << 20, "{eight} beside {one}");
    assert!(after >= 4 << 20, "{after} are left for another port");
}

#[test]
fn frames_that_are_longer_than_the_link_allows_are_dropped_and_counted() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    bench.limit(&sender, &Limits { frame_len_max: Some(1518), ..Limits::default() });
    sender.far().script = [(2, 1518), (2, 1519), (2, 60_000), (255, 1519), (2, 60)].into();
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(receiver.far().received, 2);
    assert_eq!(sender.dropped(DropReason::TooLong), 3);
}

#[test]
fn what_leaves_is_limited_over_all_queues_and_the_engine_sleeps_meanwhile() {
    for (queues, len) in [(1, 1000), (4, 1000), (2, 60_000)] {
        let mut bench = Bench::new(MEMORY);
        let sender = bench.port(1, 1, Stations::Many).remove(0);
        let receiver = bench.port(2, queues, ONE);
        // 10 MB a second.
        let credit = egress_credit(500_000, Duration::from_millis(50), bench.now);
        let limits = Limits { egress: Some(Arc::new(credit)), ..Limits::default() };
        receiver.iter().for_each(|queue| bench.limit(queue, &limits));
        sender.far().flows = 64;
        sender.far().script = [(2, len)].into();
        sender.far().is_endless = true;
        bench.run(SECOND / 2, |_| ());
        let received: u64 = receiver.iter().map(|queue| queue.far().received_bytes).sum();
        assert!((4_900_000..5_400_000).contains(&received), "{received}");
        // What waits leaves in the end, and what it waits for is no work.
        sender.far().script.clear();
        let mut sleeps = 0;
        while let wait @ (Wait::Now | Wait::Until(_)) = bench.round() {
            if let Wait::Until(then) = wait {
                sleeps += 1;
                assert!(then > bench.now - Duration::from_millis(1), "it would wake at once");
                bench.now = bench.now.max(then);
            }
            assert!(sleeps < 10_000, "{queues} queues");
        }
        assert!(sleeps > 10, "{sleeps}");
    }
}

#[test]
fn short_segments_are_limited_over_all_queues_and_nothing_else_is() {
    for (queues, size) in [(1, 48), (4, 48), (2, 250)] {
        let mut bench = Bench::new(MEMORY);
        let sender = bench.port(1, queues, ONE);
        let receiver = bench.port(2, 1, ONE).remove(0);
        let credit = Arc::new(segment_credit(bench.now));
        let limits = Limits { segments: Some(credit), ..Limits::default() };
        for queue in &sender {
            bench.limit(queue, &limits);
            queue.far().script = [(2, 60_000)].into();
            queue.far().is_endless = true;
            queue.far().gso = Some(Gso { kind: GsoKind::TcpV4, size });
        }
        bench.run(SECOND, |_| ());
        let excess = 60_000 / u64::from(size) - 60_000 / 512;
        let segments = receiver.far().received * excess;
        assert!((49_000..53_000).contains(&segments), "{queues} queues, {size}: {segments}");
        // Those of the usual length pay the debt, and are free.
        for queue in &sender {
            queue.far().gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
        }
        let before = receiver.far().received;
        bench.run(SECOND / 10, |_| ());
        let frames = receiver.far().received - before;
        assert!(frames > 1000, "{queues} queues, {size}: {frames}");
    }
}

#[test]
fn a_limit_of_what_leaves_that_is_lifted_lets_all_leave_in_order() {
    let mut bench = Bench::new(MEMORY);
    let sender = bench.port(1, 1, Stations::Many).remove(0);
    let receiver = bench.port(2, 1, ONE).remove(0);
    let year = Duration::from_secs(365 * 86400);
    let credit = Arc::new(Credit::new(1, year, bench.now));
    bench.limit(&receiver, &Limits { egress: Some(credit), ..Limits::default() });
    receiver.far().room = 0;
    sender.far().script = (60..160).map(|len| (2, len)).collect();
    bench.run(Duration::from_millis(1), |_| ());
    receiver.far().room = usize::MAX;
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(receiver.far().received, 1, "one on credit");
    bench.limit(&receiver, &Limits::default());
    bench.run(Duration::from_millis(1), |_| ());
    let lens: Vec<usize> = receiver.far().lens.iter().copied().collect();
    assert_eq!(lens, (60..160).collect::<Vec<usize>>());
}

#[test]
fn a_weight_that_is_changed_is_another_share_from_then_on() {
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
    bench.weigh(&one, Weight::new(4).expect("a weight"));
    let heavy = ratio(&mut bench);
    assert!((380..=420).contains(&heavy), "{heavy}");
}

#[test]
fn an_event_that_comes_when_a_port_has_had_its_share_is_not_forgotten() {
    let mut bench = Bench::new(MEMORY);
    let device = bench.port_with(2, 1, ONE, DEVICE).remove(0);
    let busy = bench.port(1, 1, ONE).remove(0);
    bench.port(9, 1, ONE);
    busy.far().script = [(9, 60_000)].into();
    busy.far().is_endless = true;
    // In its first round it takes in the shares of many.
    device.far().script = (0..60).map(|_| (9, 60_000)).collect();
    bench.round();
    assert_eq!(device.far().taken, 60);
    device.far().script.push_back((9, 60));
    bench.ready(&device);
    bench.run(Duration::from_millis(10), |_| ());
    assert_eq!(device.far().taken, 61);
}

#[test]
fn an_event_that_comes_to_a_held_source_is_not_forgotten() {
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
fn frames_of_a_patched_queue_go_the_same_way_before_its_port_is_in_the_directory() {
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
    assert!(idle.far().asked < 100, "{}", idle.far().asked);
    // What it gets does not wake it, and an event does.
    idle.far().script = [(1, 60)].into();
    bench.ready(&idle);
    bench.round();
    assert_eq!(busy.far().received, 1);
}

#[test]
fn a_queue_whose_frames_come_between_two_looks_is_asked_again() {
    let mut bench = Bench::new(MEMORY);
    let busy = bench.port(1, 1, ONE).remove(0);
    let idle = bench.port(2, 1, ONE).remove(0);
    busy.far().script = [(2, 60)].into();
    busy.far().is_endless = true;
    // Each number of turns without a frame, that at which it would rest among them.
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
fn an_engine_that_polls_asks_all_its_queues() {
    let mut bench = Bench::new(MEMORY);
    let idle = bench.port(1, 1, ONE).remove(0);
    for _ in 0..1000 {
        assert_eq!(bench.round_that(IfIdle::Poll), Wait::Poll);
    }
    assert_eq!(idle.far().asked, 1000);
}
