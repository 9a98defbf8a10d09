//! A guest that gets responses when its frames have left: not before, in order, and always.

use std::time::Duration;

use ringway_datapath::{Budget, Frame, OffloadCaps, Pending, PortQueue, Wakers, Woken};
use ringway_hypervisor::Access;
use ringway_wire::netif::{
    ExtraInfo, GSO_TYPE_TCPV4, NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY, NETTXF_EXTRA_INFO,
    TxRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frames::pattern;
use crate::guest::Bench;
use crate::machine::GUEST;

fn patient(start: u32) -> Bench {
    let mut bench = Bench::starting_at(start, OffloadCaps::ALL);
    bench.back.respond_when_sent().expect("the test has descriptors");
    bench
}

/// Sends packets of one slot with consecutive ids, and takes their frames in.
fn take_packets(bench: &mut Bench, ids: std::ops::Range<u16>) -> Vec<Frame> {
    for id in ids {
        let packet = bench.packet(id, &[&pattern(usize::from(id), 60)]);
        let _ = bench.send(&packet);
    }
    bench.ingress().expect("sound packets").into_iter().collect()
}

/// Ids of requests that have a response by now.
fn completed(bench: &mut Bench) -> Vec<u16> {
    bench.ingress_within(Budget::NOTHING).expect("no fault");
    bench.tx_responses().iter().map(|response| response.id).collect()
}

/// Whether the queue wakes its worker.
fn is_awake(bench: &Bench) -> bool {
    let mut is_readable = false;
    bench.back.wakers(&mut |fd, _| {
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        // waits: this thread made all events, so no other is to come
        is_readable |= poll(&mut polled, Some(&Timespec::default())) == Ok(1);
    });
    is_readable
}

#[test]
fn a_packet_is_completed_once_its_frame_has_left() {
    let mut bench = patient(0);
    let mut frames = take_packets(&mut bench, 0..1);
    assert_eq!(frames[0].bytes(), pattern(0, 60));
    assert!(bench.ingress().expect("no fault").is_empty());
    assert_eq!(completed(&mut bench), []);
    assert_eq!(bench.counters.totals().tx_unanswered, 1);
    let frame = frames.pop().expect("one frame");
    bench.pool.recycle(frame);
    assert_eq!(completed(&mut bench), [0]);
    assert_eq!(bench.counters.totals().tx_unanswered, 0);
}

#[test]
fn the_measured_latency_ends_when_the_frame_has_left() {
    let wait = Duration::from_millis(20);
    let longest_ns = |bench: &Bench| {
        bench.counters.tx_response_times.snapshot().map(|(range, _)| range.end).max()
    };
    let mut bench = patient(u32::MAX);
    let frames = take_packets(&mut bench, 0..1);
    assert_eq!(longest_ns(&bench), None, "it has no response");
    // waits: the time is what is measured, and a longer one is as good
    std::thread::sleep(wait);
    drop(frames);
    assert_eq!(completed(&mut bench), [0]);
    assert!(longest_ns(&bench).is_some_and(|ns| u128::from(ns) > wait.as_nanos()));

    let mut bench = Bench::starting_at(u32::MAX, OffloadCaps::ALL);
    let frames = take_packets(&mut bench, 0..1);
    assert!(longest_ns(&bench).is_some(), "it is copied, and so completed");
    drop(frames);
}

#[test]
fn responses_keep_ring_order_whichever_frame_leaves_first() {
    let mut bench = patient(u32::MAX - 1);
    let mut frames = take_packets(&mut bench, 0..5);
    drop(frames.remove(3));
    drop(frames.remove(1));
    assert_eq!(completed(&mut bench), []);
    drop(frames.remove(0));
    assert_eq!(completed(&mut bench), [0, 1]);
    drop(frames.remove(0));
    assert_eq!(completed(&mut bench), [2, 3]);
    drop(frames);
    assert_eq!(completed(&mut bench), [4]);
}

#[test]
fn a_dropped_packet_gets_its_response_in_ring_order() {
    let mut bench = patient(0);
    let (good, short) = (pattern(1, 60), pattern(2, 13));
    let sent = [bench.packet(0, &[&good]), bench.packet(1, &[&short]), bench.packet(2, &[&good])];
    let revoked = ringway_wire::GrantRef(sent[2][0].gref);
    sent.iter().for_each(|packet| {
        let _ = bench.send(packet);
    });
    bench.machine.loopback.revoke(GUEST, revoked);
    let frames = bench.ingress().expect("no fault");
    assert_eq!((frames.len(), bench.tx_statuses()), (1, vec![]));
    drop(frames);
    bench.ingress_within(Budget::NOTHING).expect("no fault");
    let statuses = [(0, NETIF_RSP_OKAY), (1, NETIF_RSP_ERROR), (2, NETIF_RSP_ERROR)];
    assert_eq!(bench.tx_statuses(), statuses);
}

#[test]
fn a_packet_without_a_frame_does_not_let_the_worker_sleep() {
    let mut bench = patient(0);
    let short = bench.packet(0, &[&pattern(1, 13)]);
    let _ = bench.send(&short);
    assert!(bench.ingress().expect("no fault").is_empty());
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
    assert_eq!(completed(&mut bench), [0]);
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
}

#[test]
fn all_slots_of_a_packet_are_completed_together() {
    let mut bench = patient(0);
    let data = pattern(3, 9000);
    let mut packet = bench.packet(1, &[&data[..904], &data[904..5000], &data[5000..]]);
    packet[0].flags |= NETTXF_EXTRA_INFO;
    bench.push(packet[0]);
    bench.push(ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4));
    let _ = bench.send(&packet[1..]);
    let frames = bench.ingress().expect("a sound packet");
    assert_eq!(completed(&mut bench), []);
    // A frame made from this one delays the response just as this one does.
    let copy = frames[0].receipt().cloned();
    drop(frames);
    assert_eq!(completed(&mut bench), []);
    drop(copy);
    bench.ingress_within(Budget::NOTHING).expect("no fault");
    let statuses: Vec<i16> = bench.tx_responses().iter().map(|response| response.status).collect();
    assert_eq!(statuses, [NETIF_RSP_OKAY, NETIF_RSP_NULL, NETIF_RSP_OKAY, NETIF_RSP_OKAY]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no ppoll(2)")]
fn the_awaited_frame_wakes_the_worker() {
    let mut bench = patient(0);
    let mut frames = take_packets(&mut bench, 0..3);
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
    bench.back.woken(Woken::Unknown).expect("no fault");
    drop(frames.remove(1));
    assert!(!is_awake(&bench), "the second can have no response before the first");
    drop(frames.remove(0));
    assert!(is_awake(&bench));
    bench.back.woken(Woken::Unknown).expect("no fault");
    assert!(!is_awake(&bench));
    assert_eq!(completed(&mut bench), [0, 1]);
    // A port with an empty budget is woken as well, because its last call asked for that.
    drop(frames);
    assert!(is_awake(&bench));
    assert_eq!(completed(&mut bench), [2]);
}

#[test]
fn a_ring_with_deferred_responses_accepts_no_more_than_its_slots_and_resumes_when_frames_leave() {
    let mut bench = patient(u32::MAX - 300);
    let gref = bench.page(0, &pattern(4, 4096), Access::ReadOnly).0;
    for round in 0..4 {
        for id in 0..256 {
            let _ = bench.send(&[TxRequest { gref, offset: id, flags: 0, id, size: 60 }]);
        }
        let mut frames = Vec::new();
        for _ in 0..8 {
            frames.extend(bench.ingress().expect("sound packets"));
        }
        assert_eq!((frames.len(), bench.tx_responses().len()), (256, 0), "round {round}");
        assert_eq!(bench.counters.totals().tx_unanswered, 256);
        // The newest first, which is the worst order.
        frames.into_iter().rev().for_each(|frame| bench.pool.recycle(frame));
        assert_eq!(completed(&mut bench), (0..256).collect::<Vec<u16>>());
    }
}

#[test]
fn a_successor_backend_sends_uncompleted_packets_again() {
    let mut bench = patient(u32::MAX - 2);
    let mut frames = take_packets(&mut bench, 0..5);
    frames.drain(..2).for_each(|frame| bench.pool.recycle(frame));
    assert_eq!(completed(&mut bench), [0, 1]);
    bench.attach_again().expect("the rings are sound");
    bench.back.respond_when_sent().expect("the test has descriptors");
    let again = bench.ingress().expect("sound packets");
    let bytes: Vec<&[u8]> = again.iter().map(Frame::bytes).collect();
    assert_eq!(bytes, [2, 3, 4].map(|seed| pattern(seed, 60)));
    // Receipts of the old backend no longer have an effect.
    drop(frames);
    assert_eq!(completed(&mut bench), []);
    drop(again);
    assert_eq!(completed(&mut bench), [2, 3, 4]);
}

#[test]
fn frames_outlive_their_ingress_queue() {
    let mut bench = patient(0);
    let frames = take_packets(&mut bench, 0..3);
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
    bench.attach_again().expect("the rings are sound");
    frames.into_iter().for_each(|frame| bench.pool.recycle(frame));
}
