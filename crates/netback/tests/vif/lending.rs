//! Long packets that go from one guest's pages to another's.

use ringway_datapath::{
    Checksum, DropReason, Frame, FrameQueue, Gso, GsoKind, Offload, OffloadCaps, Pending, PortQueue,
};
use ringway_hypervisor::Access;
use ringway_loopback::FaultPoint;
use ringway_wire::netif::{NETIF_RSP_OKAY, NETTXF_MORE_DATA, RxResponse, TxRequest};
use ringway_wire::{GrantRef, PAGE_SIZE};

use crate::frames::pattern;
use crate::guest::Bench;
use crate::machine::GUEST;

/// A guest that lends its pages, whose ring indices begin at `start`.
fn lender(start: u32) -> Bench {
    let mut bench = Bench::starting_at(start, OffloadCaps::ALL);
    bench.back.lend_pages(bench.machine.memory());
    bench
}

/// Sends one packet, with bytes at these places in pages of their own, and takes its frame in.
fn take_packet(bench: &mut Bench, bytes: &[u8], places: &[(usize, usize)]) -> Frame {
    let mut left = bytes;
    let mut requests = Vec::new();
    for (index, (offset, len)) in places.iter().enumerate() {
        let (own, others) = left.split_at(*len);
        left = others;
        let size = if index == 0 { bytes.len() } else { *len };
        requests.push(TxRequest {
            gref: bench.page(*offset, own, Access::ReadOnly).0,
            offset: u16::try_from(*offset).expect("it is in a page"),
            flags: if index + 1 < places.len() { NETTXF_MORE_DATA } else { 0 },
            id: u16::try_from(index).expect("a packet has few slots"),
            size: u16::try_from(size).expect("a packet is at most 64 KiB"),
        });
    }
    assert!(left.is_empty(), "the places hold all bytes");
    let _ = bench.send(&requests);
    let mut frames = bench.ingress().expect("a sound packet");
    assert_eq!(frames.len(), 1);
    frames.pop().expect("one frame")
}

/// Sends frames of one guest to the other, in one engine. Returns those that wait.
fn pass(sender: &mut Bench, receiver: &mut Bench, frames: Vec<Frame>) -> FrameQueue {
    let mut queue = FrameQueue::from(frames);
    receiver.back.egress(&mut queue, &mut sender.pool).expect("the guest did nothing wrong");
    queue
}

/// Pages full of bytes, then the rest.
fn full_pages(len: usize) -> Vec<(usize, usize)> {
    let pages = (0..len / PAGE_SIZE).map(|_| (0, PAGE_SIZE));
    pages.chain((len % PAGE_SIZE > 0).then_some((0, len % PAGE_SIZE))).collect()
}

/// Where Linux's frontend has a segment: its headers at the end of a page, its data from within
/// another on.
fn as_linux_does(len: usize) -> Vec<(usize, usize)> {
    let mut places = vec![(PAGE_SIZE - 66, 66), (1000, PAGE_SIZE - 1000)];
    let rest = len - 66 - (PAGE_SIZE - 1000);
    places.extend(full_pages(rest));
    places
}

/// The bytes that a guest received in pages posted in this order, without extras.
fn received(bench: &mut Bench, pages: &[GrantRef], has_extra: bool) -> Vec<u8> {
    let responses = bench.rx_responses();
    let mut bytes = Vec::new();
    for (slot, (RxResponse { status, offset, .. }, gref)) in responses.iter().zip(pages).enumerate()
    {
        if has_extra && slot == 1 {
            continue;
        }
        assert_eq!(*offset, 0);
        let len = usize::try_from(*status).expect("no errors");
        bytes.extend(bench.read_page(*gref, len));
    }
    bytes
}

/// Slots with a response since the last call.
fn completed(bench: &mut Bench) -> usize {
    let statuses = bench.tx_statuses();
    assert!(statuses.iter().all(|(_, status)| *status == NETIF_RSP_OKAY), "{statuses:?}");
    statuses.len()
}

/// The long frames that the guest of this bench has sent, and how many left from its pages.
fn long_and_lent(bench: &Bench) -> (u64, u64) {
    let totals = bench.counters.totals();
    (totals.tx_long, totals.tx_lent)
}

#[test]
fn a_long_packet_goes_from_page_to_page() {
    for start in [0, 250, u32::MAX - 3] {
        for (len, places) in [
            (65_226, full_pages(65_226)),
            (65_226, as_linux_does(65_226)),
            (13_000, full_pages(13_000)),
            (20_000, as_linux_does(20_000)),
        ] {
            for is_segmented in [false, true] {
                let mut sender = lender(start);
                let mut receiver = sender.beside();
                let bytes = pattern(len, len);
                let mut frame = take_packet(&mut sender, &bytes, &places);
                assert!(frame.is_lent() && frame.len() == len);
                let head = frame.bytes().len();
                assert!((256..=2 * PAGE_SIZE).contains(&head), "{head}");
                assert_eq!(frame.bytes(), &bytes[..head]);
                assert_eq!(completed(&mut sender), 0, "responses wait for the copy");
                if is_segmented {
                    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
                    frame.offload = Offload { checksum: Checksum::Blank, gso };
                }
                let posted = receiver.post(0, 20);
                let copies = sender.machine.loopback.passages(GUEST, FaultPoint::Copy);
                assert!(pass(&mut sender, &mut receiver, vec![frame]).is_empty());
                let read = sender.machine.loopback.passages(GUEST, FaultPoint::Copy);
                assert!(read > copies, "it was read at the egress");
                assert_eq!(received(&mut receiver, &posted, is_segmented), bytes);
                sender.settle().expect("no fault");
                assert_eq!(completed(&mut sender), places.len());
                assert_eq!(long_and_lent(&sender), (1, 1));
            }
        }
    }
}

#[test]
fn a_frame_that_cannot_leave_from_its_pages_is_completed() {
    let mut sender = lender(0);
    let bytes = pattern(1, 30_000);
    let mut frame = take_packet(&mut sender, &bytes, &as_linux_does(30_000));
    sender.pool.complete(&mut frame).expect("the pages are granted");
    assert!(!frame.is_lent());
    assert_eq!(frame.bytes(), bytes);
    sender.pool.recycle(frame);
    sender.settle().expect("no fault");
    assert_eq!(completed(&mut sender), as_linux_does(30_000).len());
    // The next ones are likely to go the same way.
    let frame = take_packet(&mut sender, &bytes, &full_pages(30_000));
    assert!(!frame.is_lent());
    assert_eq!(frame.bytes(), bytes);
    assert_eq!(long_and_lent(&sender), (2, 0));
    sender.pool.recycle(frame);
    for _ in 0..64 {
        let frame = take_packet(&mut sender, &bytes[..13_000], &full_pages(13_000));
        let is_last = frame.is_lent();
        sender.pool.recycle(frame);
        sender.settle().expect("no fault");
        let _ = sender.tx_responses();
        if is_last {
            return;
        }
    }
    panic!("after a while it is tried again");
}

/// The handle for completing frames is back after each use, also one that failed.
#[test]
fn frames_are_completed_one_after_the_other() {
    let mut sender = lender(0);
    let bytes = pattern(8, 20_000);
    let places = full_pages(20_000);
    let frames: Vec<Frame> = (0..3).map(|_| take_packet(&mut sender, &bytes, &places)).collect();
    assert!(frames.iter().all(Frame::is_lent));
    for (index, mut frame) in frames.into_iter().enumerate() {
        if index == 1 {
            sender.machine.loopback.fail_next(GUEST, FaultPoint::Copy);
            assert_eq!(sender.pool.complete(&mut frame), Err(DropReason::GrantCopy));
        } else {
            assert_eq!(sender.pool.complete(&mut frame), Ok(()));
            assert_eq!(frame.bytes(), bytes);
        }
        sender.pool.recycle(frame);
    }
    sender.settle().expect("no fault");
    assert_eq!(sender.tx_responses().len(), 3 * places.len());
}

#[test]
fn short_packets_and_scattered_ones_are_copied() {
    let mut sender = lender(0);
    for places in [
        vec![(0, 4000)],
        vec![(0, 300), (0, 4000)],
        // Four runs of bytes behind the head.
        vec![(0, 300), (0, 4000), (0, 4000), (0, 4000), (0, 4000)],
    ] {
        let len = places.iter().map(|(_, len)| len).sum();
        let bytes = pattern(2, len);
        let frame = take_packet(&mut sender, &bytes, &places);
        assert!(!frame.is_lent(), "{places:?}");
        assert_eq!(frame.bytes(), bytes);
        assert_eq!(completed(&mut sender), places.len(), "nothing waits");
        sender.pool.recycle(frame);
    }
}

#[test]
fn responses_keep_their_order() {
    let mut sender = lender(0);
    let long = take_packet(&mut sender, &pattern(1, 20_000), &full_pages(20_000));
    let short = take_packet(&mut sender, &pattern(2, 60), &[(0, 60)]);
    let next = take_packet(&mut sender, &pattern(3, 13_000), &full_pages(13_000));
    assert!(long.is_lent() && next.is_lent());
    assert_eq!(completed(&mut sender), 0);
    assert_eq!(sender.counters.totals().tx_unanswered, 10);
    assert_eq!(sender.back.arm().expect("no fault"), Pending::Nothing);
    [next, short, long].into_iter().for_each(|frame| sender.pool.recycle(frame));
    sender.settle().expect("no fault");
    let ids: Vec<u16> = sender.tx_responses().iter().map(|response| response.id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 0, 0, 1, 2, 3]);
    assert_eq!(sender.counters.totals().tx_unanswered, 0);
}

/// The engine does not know that something was lent.
#[test]
fn a_lent_packet_whose_head_is_lost_has_its_responses_at_once() {
    let mut sender = lender(0);
    let bytes = pattern(10, 20_000);
    let mut requests = sender.packet(0, &bytes.chunks(PAGE_SIZE).collect::<Vec<_>>());
    requests[0].gref = 0x00ff_ffff;
    let _ = sender.send(&requests);
    assert!(sender.ingress().expect("the ring is sound").is_empty());
    assert_eq!(sender.tx_responses().len(), 5);
    assert_eq!(sender.dropped(DropReason::GrantCopy), 1);
    sender.pool.end_loans();

    let mut frame = take_packet(&mut sender, &bytes, &full_pages(20_000));
    assert!(frame.is_lent());
    assert_eq!(sender.pool.complete(&mut frame), Ok(()));
    assert_eq!(frame.bytes(), bytes);
}

#[test]
fn a_successor_backend_serves_packets_without_a_response_again() {
    let mut sender = lender(u32::MAX - 2);
    let bytes = pattern(4, 20_000);
    let frame = take_packet(&mut sender, &bytes, &full_pages(20_000));
    sender.attach_again().expect("the rings are sound");
    let again = sender.ingress().expect("a sound packet");
    assert_eq!(again.iter().map(Frame::bytes).collect::<Vec<_>>(), [bytes]);
    assert_eq!(completed(&mut sender), 5);
    // A frame may outlive its queue.
    sender.pool.recycle(frame);
}

/// The sender names a page that it does not grant. Its frame is lost, and the receiver sees nothing
/// of it: not even a slot with an error.
#[test]
fn a_bad_page_costs_only_its_own_frame() {
    let mut sender = lender(0);
    let mut receiver = sender.beside();
    let bytes = pattern(3, 20_000);
    let good = take_packet(&mut sender, &bytes, &full_pages(20_000));
    let mut requests = sender.packet(5, &bytes.chunks(PAGE_SIZE).collect::<Vec<_>>());
    requests[3].gref = 0x00ff_ffff;
    let _ = sender.send(&requests);
    let mut frames = sender.ingress().expect("the ring is sound");
    let bad = frames.pop().expect("its head is sound");
    assert!(bad.is_lent());
    let short = receiver.frame(&pattern(4, 100), Offload::default());

    let posted = receiver.post(0, 20);
    assert!(pass(&mut sender, &mut receiver, vec![good, bad, short]).is_empty());
    let responses = receiver.rx_responses();
    let lens: Vec<i16> = responses.iter().map(|response| response.status).collect();
    assert_eq!(lens, [4096, 4096, 4096, 4096, 3616, 100]);
    let read: Vec<u8> = posted[..5]
        .iter()
        .zip(lens)
        .flat_map(|(gref, len)| receiver.read_page(*gref, usize::try_from(len).expect("no error")))
        .collect();
    assert_eq!(read, bytes);
    assert_eq!(receiver.dropped(DropReason::GrantCopy), 1);
    sender.settle().expect("no fault");
    assert_eq!(sender.tx_responses().len(), 10, "the guest has all its pages back");
}

/// A frame for which there was no slot until the one before it was dropped.
#[test]
fn a_frame_in_the_slots_of_one_that_was_lost_is_whole() {
    let mut sender = lender(0);
    let mut receiver = sender.beside();
    let bytes = pattern(9, 20_000);
    let mut requests = sender.packet(0, &bytes.chunks(PAGE_SIZE).collect::<Vec<_>>());
    requests[3].gref = 0x00ff_ffff;
    let _ = sender.send(&requests);
    let mut frames = sender.ingress().expect("the ring is sound");
    let bad = frames.pop().expect("its head is sound");
    let good = take_packet(&mut sender, &bytes, &full_pages(20_000));
    assert!(bad.is_lent() && good.is_lent());

    let posted = receiver.post(0, 5);
    assert!(pass(&mut sender, &mut receiver, vec![bad, good]).is_empty());
    assert_eq!(received(&mut receiver, &posted, false), bytes);
    assert_eq!(receiver.dropped(DropReason::GrantCopy), 1);
    sender.settle().expect("no fault");
    assert_eq!(sender.tx_responses().len(), 10, "the guest has all its pages back");
}

/// The receiver posted a page that may not be written: only its own slot reports that.
#[test]
fn a_receivers_bad_page_is_an_error_in_its_ring() {
    let mut sender = lender(0);
    let mut receiver = sender.beside();
    let bytes = pattern(5, 20_000);
    let frame = take_packet(&mut sender, &bytes, &full_pages(20_000));
    let mut pages = Vec::new();
    for id in 0..5 {
        let access = if id == 2 { Access::ReadOnly } else { Access::ReadWrite };
        pages.push((id, receiver.page(0, &[], access)));
    }
    let _ = receiver.post_grants(&pages);
    let left = pass(&mut sender, &mut receiver, vec![frame]);
    assert!(left.is_empty());
    let statuses: Vec<i16> = receiver.rx_responses().iter().map(|it| it.status).collect();
    assert_eq!(statuses, [4096, 4096, -1, 4096, 3616]);
    assert_eq!(receiver.dropped(DropReason::GrantCopy), 1);
}

/// A guest that is gone takes only its own frames with it.
#[test]
fn a_sender_that_dies_costs_only_its_own_frame() {
    let mut sender = lender(0);
    let mut receiver = sender.beside();
    let frame = take_packet(&mut sender, &pattern(6, 20_000), &full_pages(20_000));
    let short = receiver.frame(&pattern(7, 100), Offload::default());
    sender.machine.loopback.destroy_domain(GUEST);
    receiver.post(0, 20);
    assert!(pass(&mut sender, &mut receiver, vec![frame, short]).is_empty());
    let statuses: Vec<i16> = receiver.rx_responses().iter().map(|it| it.status).collect();
    assert_eq!(statuses, [100]);
}

#[test]
fn an_end_for_a_guest_with_headroom_is_completed() {
    let mut sender = lender(0);
    let mut receiver = sender.beside();
    receiver.headroom.set(256);
    let bytes = pattern(3, 20_000);
    let frame = take_packet(&mut sender, &bytes, &as_linux_does(20_000));
    assert!(frame.is_lent());
    let posted = receiver.post(0, 6);
    assert!(pass(&mut sender, &mut receiver, vec![frame]).is_empty());
    let responses = receiver.rx_responses();
    assert_eq!((responses.len(), responses[0].offset, responses[0].status), (6, 256, 3840));
    let mut found = receiver.read_page(posted[0], PAGE_SIZE)[256..].to_vec();
    for (response, gref) in responses.iter().zip(&posted).skip(2) {
        assert_eq!(response.offset, 0);
        let len = usize::try_from(response.status).expect("no errors");
        found.extend(receiver.read_page(*gref, len));
    }
    assert_eq!(found, bytes);
    sender.settle().expect("no fault");
    assert_eq!(long_and_lent(&sender), (1, 0));
}
