//! Limits of a port: the length of frames, how much enters and leaves, and the size of segments.

use std::sync::Arc;
use std::time::Duration;

use ringway_datapath::{DropReason, Gso, GsoKind, MulticastFilter, PortId, WaitReason};
use ringway_engine::{Credit, Limits, Stations, Wait, egress_credit, segment_credit};

use crate::bench::{Bench, GROUP, ONE, address};
use crate::{MEMORY, SECOND};

#[test]
fn frames_longer_than_the_mtu_are_dropped_and_counted() {
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
fn a_port_whose_link_is_down_gets_and_sends_nothing() {
    expect_shut(DropReason::LinkDown);
}

#[test]
fn a_port_that_is_disabled_gets_and_sends_nothing() {
    expect_shut(DropReason::PortDisabled);
}

fn expect_shut(reason: DropReason) {
    let mut bench = Bench::new(MEMORY);
    let (cut_off, other) = (bench.port(1, 1, ONE).remove(0), bench.port(2, 1, ONE).remove(0));
    let shut = |shut| Limits { shut, ..Limits::default() };
    bench.limit(&cut_off, &shut(Some(reason)));
    cut_off.far().script = [(2, 60), (255, 60)].into();
    // By several ways into the queue: together, and one by one.
    other.far().script = [(1, 60), (1, 60), (255, 60), (1, 60_000)].into();
    bench.run(Duration::from_millis(1), |_| ());
    //= netif.h:carrier-down
    assert_eq!((cut_off.far().received, other.far().received), (0, 0));
    assert_eq!((cut_off.dropped(reason), other.dropped(reason)), (2 + 4, 0));

    bench.limit(&cut_off, &shut(None));
    cut_off.far().script = [(2, 60)].into();
    other.far().script = [(1, 60)].into();
    bench.ready(&cut_off);
    bench.ready(&other);
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!((cut_off.far().received, other.far().received), (1, 1));
}

#[test]
fn multicast_frames_that_a_guest_does_not_want_stop_at_its_port_and_are_no_drops() {
    let mut bench = Bench::new(MEMORY);
    let (sender, other) = (bench.port(1, 1, ONE).remove(0), bench.port(2, 1, ONE).remove(0));
    let picky = bench.port(3, 1, ONE).remove(0);
    // As the device of a guest on a bridge of the host.
    let device = bench.patched_port(4, 1, 3).remove(0);
    let filter = Arc::new(MulticastFilter::default());
    let limits = Limits { multicast: Some(Arc::clone(&filter)), ..Limits::default() };
    bench.limit(&picky, &limits);
    let send = |bench: &mut Bench| {
        for source in [&sender, &device] {
            source.far().script = [(GROUP, 60), (255, 60)].into();
            bench.ready(source);
        }
        bench.run(Duration::from_millis(1), |_| ());
        (picky.far().received, other.far().received)
    };
    //= netif.h:multicast-filter
    assert_eq!(send(&mut bench), (2, 2));
    filter.add(address(GROUP)).expect("there is room");
    assert_eq!(send(&mut bench), (2 + 4, 2 + 2));
    filter.remove(address(GROUP));
    bench.limit(&picky, &Limits::default());
    assert_eq!(send(&mut bench), (6 + 4, 4 + 2));
    for station in [&sender, &device, &picky] {
        assert!(DropReason::ALL.iter().all(|reason| station.dropped(*reason) == 0));
    }
}

#[test]
fn egress_is_limited_over_all_queues_and_the_engine_sleeps_meanwhile() {
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
        // What the limit drops is no fault of the receiver.
        let dropped = |reason| receiver.iter().map(|queue| queue.dropped(reason)).sum::<u64>();
        assert!(dropped(DropReason::RateLimit) > 1000);
        assert_eq!(dropped(DropReason::QueueFull), 0);
        // Waiting frames leave in the end, and waiting for credit is not work.
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
fn a_rate_of_what_leaves_is_spread_over_its_interval_if_that_is_long() {
    let now = std::time::Instant::now();
    let at_once =
        |bytes, millis| egress_credit(bytes, Duration::from_millis(millis), now).available(now);
    assert_eq!(at_once(500_000, 50), 10_000);
    assert_eq!(at_once(500_000, 1), 500_000);
    assert_eq!(at_once(49, 50), 49, "not a byte for each part");
}

#[test]
fn only_short_segments_are_limited_over_all_queues() {
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
        // Frames with segments of the usual length pay back the debt and cost nothing.
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
fn after_an_egress_limit_is_lifted_all_frames_leave_in_order() {
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
fn a_queue_shows_what_it_waits_for_and_since_when() {
    let mut bench = Bench::new(MEMORY);
    let receiver = bench.port(2, 1, ONE).remove(0);
    let device = bench.patched_port(1, 1, 2).remove(0);
    let start = bench.now;
    receiver.far().room = 0;
    device.far().script = [(2, 60)].into();
    device.far().is_endless = true;
    bench.run(Duration::from_millis(20), |_| ());
    // The device is held before the receiver counts as stalled.
    let (reason, since) = device.counters.tx_wait.get().expect("it is held");
    assert_eq!((reason, receiver.counters.rx_wait.get()), (WaitReason::Port(PortId(2)), None));
    assert!((start..start + Duration::from_millis(20)).contains(&since));
    bench.run(Duration::from_millis(100), |_| ());
    let (reason, since) = receiver.counters.rx_wait.get().expect("it has stalled");
    assert_eq!(reason, WaitReason::NoRoom);
    assert!(since < start + Duration::from_millis(20), "since its last frame");
    receiver.far().room = usize::MAX;
    device.far().is_endless = false;
    bench.ready(&receiver);
    bench.run(SECOND, |_| ());
    assert_eq!((device.counters.tx_wait.get(), receiver.counters.rx_wait.get()), (None, None));

    let credit = Some(Arc::new(Credit::new(1, Duration::from_secs(3600), bench.now)));
    bench.limit(&device, &Limits { ingress: credit, ..Limits::default() });
    device.far().script = [(2, 60), (2, 60), (2, 60)].into();
    bench.ready(&device);
    bench.run(Duration::from_millis(1), |_| ());
    let awaited = || device.counters.tx_wait.get().map(|(reason, _)| reason);
    assert_eq!(awaited(), Some(WaitReason::Rate));

    let segments = Some(Arc::new(segment_credit(bench.now)));
    bench.limit(&device, &Limits { segments, ..Limits::default() });
    device.far().gso = Some(Gso { kind: GsoKind::TcpV4, size: 48 });
    device.far().script = [(2, 60_000), (2, 60_000)].into();
    bench.ready(&device);
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!(awaited(), Some(WaitReason::Segments));
}
