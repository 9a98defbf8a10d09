//! What a guest receives, however few pages it posts and whatever they are.

use ringway_datapath::{
    Checksum, DropReason, FrameQueue, Gso, GsoKind, Offload, OffloadCaps, Pending, PortQueue,
    QueueDown,
};
use ringway_hypervisor::Access;
use ringway_netback::FrontendFeatures;
use ringway_wire::GrantRef;
use ringway_wire::netif::{
    EXTRA_TYPE_GSO, ExtraInfo, GSO_TYPE_TCPV6, NETIF_RSP_ERROR, NETRXF_CSUM_BLANK,
    NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RxResponse,
};
use ringway_wire::ring;
use zerocopy::{FromBytes, IntoBytes};

use crate::frames::pattern;
use crate::guest::Bench;

fn response(id: u16, flags: u16, status: i16) -> RxResponse {
    RxResponse { id, offset: 0, flags, status }
}

#[test]
fn a_frame_uses_as_few_pages_as_possible() {
    let mut bench = Bench::new();
    let grefs = bench.post(100, 10);
    let data = pattern(1, 9000);
    let frame = bench.frame(&data, Offload::NONE);
    assert!(bench.egress(vec![frame]).is_empty());
    let more = NETRXF_MORE_DATA;
    let expected = [response(100, more, 4096), response(101, more, 4096), response(102, 0, 808)];
    assert_eq!(bench.rx_responses(), expected);
    let mut received = bench.read_page(grefs[0], 4096);
    received.extend(bench.read_page(grefs[1], 4096));
    received.extend(bench.read_page(grefs[2], 808));
    assert_eq!(received, data);
    let totals = bench.counters.totals();
    assert_eq!((totals.rx_packets, totals.rx_bytes), (1, 9000));
}

#[test]
fn responses_are_in_the_slots_of_their_requests() {
    let mut bench = Bench::starting_at(u32::MAX - 1, OffloadCaps::ALL);
    bench.post(0xfff0, 4);
    let frames = (0..4).map(|seed| bench.frame(&pattern(seed, 60 + seed), Offload::NONE)).collect();
    assert!(bench.egress(frames).is_empty());
    //= netif.h:rx-same-slot
    for (id, slot, len) in [(0xfff0, 254, 60), (0xfff1, 255, 61), (0xfff2, 0, 62), (0xfff3, 1, 63)]
    {
        let found: RxResponse = bench.rx_page.read(ring::SLOTS + slot * 8);
        assert_eq!(found, response(id, 0, len));
    }
}

#[test]
fn flags_report_the_state_of_the_checksum() {
    //= netif.h:flag-bits
    let (blank, validated) = (NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED);
    for (checksum, flags) in [
        (Checksum::Unverified, 0),
        (Checksum::Validated, validated),
        (Checksum::Blank, blank | validated),
    ] {
        let mut bench = Bench::new();
        bench.post(0, 1);
        let frame = bench.frame(&pattern(1, 60), Offload { checksum, gso: None });
        assert!(bench.egress(vec![frame]).is_empty());
        assert_eq!(bench.rx_responses(), [response(0, flags, 60)]);
    }
}

#[test]
fn a_gso_extra_takes_the_slot_after_the_first() {
    let mut bench = Bench::new();
    let grefs = bench.post(0, 3);
    let data = pattern(2, 6000);
    let gso = Some(Gso { kind: GsoKind::TcpV6, size: 1428 });
    let frame = bench.frame(&data, Offload { checksum: Checksum::Blank, gso });
    assert!(bench.egress(vec![frame]).is_empty());
    let responses = bench.rx_responses();
    let flags = NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED | NETRXF_EXTRA_INFO | NETRXF_MORE_DATA;
    //= netif.h:slot-order
    assert_eq!(responses[0], response(0, flags, 4096));
    let extra = ExtraInfo::read_from_bytes(responses[1].as_bytes()).expect("both have 8 bytes");
    assert_eq!((extra.kind, extra.flags, extra.gso()), (EXTRA_TYPE_GSO, 0, (1428, GSO_TYPE_TCPV6)));
    assert_eq!(responses[2], response(2, 0, 1904));
    assert_eq!(bench.read_page(grefs[2], 1904), &data[4096..]);
}

#[test]
fn a_frame_is_copied_only_when_all_its_pages_are_posted() {
    let mut bench = Bench::new();
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    // 65549 bytes are 17 pages, and the extra is the eighteenth slot.
    let data = pattern(3, 65549);
    let frame = bench.frame(&data, Offload { checksum: Checksum::Blank, gso });
    bench.post(0, 17);
    let mut waiting = bench.egress(vec![frame]);
    assert_eq!((waiting.len(), bench.rx_responses().len()), (1, 0));
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
    bench.post(17, 1);
    //= netif.h:slots-min
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
    bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert!(waiting.is_empty());
    let responses = bench.rx_responses();
    let bytes: i32 = responses.iter().map(|got| i32::from(got.status)).sum();
    assert_eq!(responses.len(), 18);
    assert_eq!(bytes - i32::from(responses[1].status), 65549);
}

#[test]
fn frames_for_a_guest_that_sends_no_event_for_new_pages_are_retried() {
    let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: false };
    let mut bench = Bench::with(0, features);
    bench.post(0, 1);
    let frames = [60, 5000, 61].map(|len| bench.frame(&pattern(len, len), Offload::NONE));
    let mut waiting = bench.egress(frames.into());
    assert_eq!(waiting.len(), 2);
    assert_eq!(bench.rx_responses(), [response(0, 0, 60)]);
    assert!(bench.back.describe().retry.is_some(), "the engine has to try again");
    bench.post(1, 3);
    bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert!(waiting.is_empty());
    assert_eq!(bench.rx_responses().len(), 3);
    assert_eq!(bench.dropped(DropReason::QueueFull), 0);
    assert!(Bench::new().back.describe().retry.is_none(), "an event comes from all others");
}

#[test]
fn a_guest_that_posts_eighteen_pages_at_a_time_receives_everything() {
    let mut bench = Bench::new();
    let grefs = bench.post(0, 18);
    let mut waiting: FrameQueue = (0..40)
        .map(|seed| bench.frame(&pattern(seed, 1000 * (seed % 9) + 60), Offload::NONE))
        .collect();
    let (mut received, mut expected) = (0, 0);
    while received < 40 {
        bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
        let responses = bench.rx_responses();
        assert!(!responses.is_empty(), "18 pages are enough for any frame");
        let mut pages = Vec::new();
        for got in responses {
            expected += usize::try_from(got.status).expect("no errors");
            if got.flags & NETRXF_MORE_DATA == 0 {
                assert_eq!(expected, 1000 * (received % 9) + 60);
                (received, expected) = (received + 1, 0);
            }
            pages.push((got.id, grefs[usize::from(got.id)]));
        }
        bench.post_grants(&pages);
    }
    assert!(waiting.is_empty());
}

#[test]
fn room_is_counted_in_whole_frames_and_an_event_comes_when_there_is_some() {
    let mut bench = Bench::new();
    bench.post(0, 33);
    assert_eq!(bench.back.room_for(65_226), Some(1), "16 pages, and a slot for segmentation");
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing, "nothing waits for more");
    bench.post(33, 1);
    assert_eq!([9000, 65_226].map(|len| bench.back.room_for(len)), [Some(8), Some(2)]);
    let frames = (0..20).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    assert!(bench.egress(frames).is_empty());
    assert_eq!(bench.back.room_for(65_226), Some(0));
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing, "14 pages are too few");
    assert_eq!(bench.back.room_for(65_226), Some(0));
    bench.post(34, 3);
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
    assert_eq!(bench.back.room_for(65_226), Some(1));
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
}

#[test]
fn a_guest_shows_what_it_has_taken_by_the_pages_that_it_posts() {
    let mut bench = Bench::new();
    bench.post(0, 256);
    let progress = |bench: &mut Bench| bench.back.peer_progress().expect("a ring shows it");
    let before = progress(&mut bench).mark();
    assert!(progress(&mut bench).has_taken(before), "nothing has left");
    let frames = (0..3).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    assert!(bench.egress(frames).is_empty());
    let mark = progress(&mut bench).mark();
    assert_eq!(bench.rx_responses().len(), 3);
    for taken in 0..3 {
        let progress = progress(&mut bench);
        assert!(progress.has_taken(before) && !progress.has_taken(mark), "{taken}");
        bench.post(256 + taken, 1);
    }
    assert!(progress(&mut bench).has_taken(mark));
}

#[test]
fn frames_wait_for_pages_and_leave_in_order() {
    let mut bench = Bench::new();
    let frames = (0..3).map(|seed| bench.frame(&pattern(seed, 60 + seed), Offload::NONE)).collect();
    let mut waiting = bench.egress(frames);
    assert_eq!(waiting.len(), 3);
    for len in [60, 61, 62] {
        bench.post(9, 1);
        bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
        assert_eq!(bench.rx_responses(), [response(9, 0, len)]);
    }
}

#[test]
fn an_unwritable_page_costs_only_its_own_frame() {
    for bad in 0..3 {
        let mut bench = Bench::new();
        let mut pages = Vec::new();
        for id in 0..3 {
            let access = if id == bad { Access::ReadOnly } else { Access::ReadWrite };
            pages.push((id, bench.page(0, &[], access)));
        }
        let grefs = bench.post_grants(&pages);
        let frames = (0..3).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
        assert!(bench.egress(frames).is_empty());
        for (id, got) in (0..).zip(bench.rx_responses()) {
            let status = if id == bad { NETIF_RSP_ERROR } else { 60 };
            assert_eq!(got, response(id, 0, status));
            if id != bad {
                let gref = grefs[usize::from(id)];
                assert_eq!(bench.read_page(gref, 60), pattern(id.into(), 60));
            }
        }
        assert_eq!(bench.dropped(DropReason::GrantCopy), 1);
        assert_eq!(bench.counters.totals().rx_packets, 2);
    }
}

#[test]
fn invalid_references_get_error_responses() {
    let mut bench = Bench::new();
    let pages = [0, 7, 6000, u32::MAX].map(|gref| (1, GrantRef(gref)));
    bench.post_grants(&pages);
    let frames = (0..4).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    assert!(bench.egress(frames).is_empty());
    assert_eq!(bench.rx_responses(), [response(1, 0, NETIF_RSP_ERROR); 4]);
}

#[test]
fn one_bad_page_of_a_long_frame_counts_one_drop() {
    let mut bench = Bench::new();
    let mut pages = Vec::new();
    for id in 0..4 {
        pages.push((id, bench.page(0, &[], Access::ReadWrite)));
    }
    pages[1].1 = GrantRef(0);
    bench.post_grants(&pages);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let long = bench.frame(&pattern(1, 5000), Offload { checksum: Checksum::Blank, gso });
    let short = bench.frame(&pattern(2, 60), Offload::NONE);
    assert!(bench.egress(vec![long, short]).is_empty());
    // Slot 1 holds the extra, whose request's page is not touched: nothing failed.
    let responses = bench.rx_responses();
    assert_eq!((responses[0].status, responses[2].status, responses[3].status), (4096, 904, 60));
    assert_eq!(bench.dropped(DropReason::GrantCopy), 0);

    pages[2].1 = GrantRef(0);
    bench.post_grants(&pages);
    let long = bench.frame(&pattern(1, 5000), Offload { checksum: Checksum::Blank, gso });
    let short = bench.frame(&pattern(2, 60), Offload::NONE);
    assert!(bench.egress(vec![long, short]).is_empty());
    let responses = bench.rx_responses();
    let statuses = (responses[0].status, responses[2].status, responses[3].status);
    assert_eq!(statuses, (4096, NETIF_RSP_ERROR, 60));
    assert_eq!(bench.dropped(DropReason::GrantCopy), 1);
}

#[test]
fn a_guest_without_scatter_gather_gets_no_frame_of_two_pages() {
    let mut bench = Bench::starting_at(0, OffloadCaps::NONE);
    bench.post(0, 3);
    let long = bench.frame(&pattern(1, 4097), Offload::NONE);
    let page = bench.frame(&pattern(2, 4096), Offload::NONE);
    assert!(bench.egress(vec![long, page]).is_empty());
    assert_eq!(bench.rx_responses(), [response(0, 0, 4096)]);
    assert_eq!(bench.dropped(DropReason::TooLong), 1);
}

#[test]
fn a_batch_is_written_with_one_call_and_at_most_one_event() {
    let mut bench = Bench::new();
    bench.post(0, 200);
    bench.events.ack().expect("an eventfd can be read");
    let (calls, sent) = (bench.copy_calls(), bench.counters.totals().events_sent);
    let frames = (0..70).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    let mut waiting = bench.egress(frames);
    assert_eq!(waiting.len(), 6, "a call moves one batch");
    bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert_eq!(bench.copy_calls() - calls, 2);
    assert_eq!(bench.counters.totals().events_sent - sent, 1, "the guest asked for the first only");
    assert_eq!(bench.rx_responses().len(), 70);
}

/// The budget of the pools outlives a port; a port that goes down must return its frames to it.
#[test]
fn frames_of_a_failed_call_return_to_the_pool() {
    let mut bench = Bench::new();
    bench.pool = ringway_datapath::FramePool::new(ringway_datapath::PoolBudget::new(2048));
    bench.post(0, 1);
    let frame = bench.frame(&pattern(1, 60), Offload::NONE);
    bench.fail_next_copy_call();
    let mut queue = FrameQueue::from([frame]);
    let result = bench.back.egress(&mut queue, &mut bench.pool);
    assert!(matches!(result, Err(QueueDown::Host(_))), "{result:?}");
    queue.clear();
    assert!(bench.pool.take(60).is_some(), "the only buffer is in the pool again");
}
