//! What the guest's frames look like in its tx ring.

use std::sync::Arc;

use ringway_datapath::{
    Checksum, DropReason, Gso, GsoKind, Offload, Pending, PortQueue, QueueCounters,
};
use ringway_hypervisor::{ForeignMemory, GrantCopy, GrantStatus};
use ringway_loopback::{Holdings, Limits};
use ringway_netfront::VifQueue;
use ringway_wire::GrantRef;
use ringway_wire::netif::{
    EXTRA_TYPE_GSO, ExtraInfo, GSO_TYPE_TCPV4, NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY,
    NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, TxResponse,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::backend::Bench;
use crate::frames::pattern;
use crate::machine::{GUEST, HOST, Machine};

fn respond_to_all(bench: &mut Bench, status: i16) -> usize {
    let requests = bench.take_tx();
    for request in &requests {
        bench.tx.push_response(TxResponse { id: request.id, status });
    }
    let _ = bench.tx.publish_responses();
    requests.len()
}

#[test]
fn a_long_frame_is_a_chain_whose_first_slot_has_the_total_length() {
    let mut bench = Bench::new();
    let data = pattern(1, 9000);
    let frame = bench.frame(&data, Offload::NONE);
    assert!(bench.egress(vec![frame]).expect("no fault").is_empty());
    let requests = bench.take_tx();
    let shape: Vec<_> = requests.iter().map(|slot| (slot.offset, slot.flags, slot.size)).collect();
    let more = NETTXF_MORE_DATA;
    //= netif.h:first-size-is-total
    assert_eq!(shape, [(0, more, 9000), (0, more, 4096), (0, 0, 808)]);
    let mut sent = bench.read(&requests[0], 4096);
    sent.extend(bench.read(&requests[1], 4096));
    sent.extend(bench.read(&requests[2], 808));
    assert_eq!(sent, data);
}

#[test]
fn a_segmented_frame_has_its_extra_in_the_second_slot() {
    let mut bench = Bench::new();
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let frame = bench.frame(&pattern(2, 5000), Offload { checksum: Checksum::Blank, gso });
    assert!(bench.egress(vec![frame]).expect("no fault").is_empty());
    let requests = bench.take_tx();
    let flags = NETTXF_CSUM_BLANK | NETTXF_DATA_VALIDATED | NETTXF_EXTRA_INFO | NETTXF_MORE_DATA;
    //= netif.h:slot-order
    assert_eq!((requests.len(), requests[0].flags, requests[0].size), (3, flags, 5000));
    let (extra, _) = ExtraInfo::read_from_prefix(requests[1].as_bytes()).expect("it is shorter");
    let expected = (EXTRA_TYPE_GSO, 0, (1448, GSO_TYPE_TCPV4));
    assert_eq!((extra.kind, extra.flags, extra.gso()), expected);
    assert_eq!((requests[2].flags, requests[2].size), (0, 904));
}

#[test]
fn room_is_counted_in_whole_frames_and_an_event_comes_when_there_is_some() {
    let mut bench = Bench::new();
    assert_eq!([65_226, 9000].map(|len| bench.front.room_for(len)), [Some(15), Some(64)]);
    let frames = (0..250).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    assert!(bench.egress(frames).expect("no fault").is_empty());
    assert_eq!(bench.front.room_for(65_226), Some(0));
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Nothing);
    assert_eq!(bench.front.room_for(65_226), Some(0));
    assert_eq!(respond_to_all(&mut bench, NETIF_RSP_OKAY), 250);
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Work);
    assert_eq!(bench.front.room_for(65_226), Some(15), "the responses are taken in");
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Nothing);
}

#[test]
fn a_frame_that_waits_leaves_although_its_responses_were_taken_in_for_another() {
    let mut bench = Bench::new();
    let mut frames: Vec<_> =
        (0..250).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    frames.push(bench.frame(&pattern(251, 65_226), Offload::NONE));
    let mut waiting = bench.egress(frames).expect("no fault");
    assert_eq!(waiting.len(), 1, "it waits for many responses");
    let requests = bench.take_tx();
    let respond_to = |bench: &mut Bench, from: usize, to: usize| {
        for request in &requests[from..to] {
            let response = TxResponse { id: request.id, status: NETIF_RSP_OKAY };
            bench.tx.push_response(response);
        }
        let _ = bench.tx.publish_responses();
    };
    respond_to(&mut bench, 0, 230);
    assert!(bench.front.room_for(65_226).is_some_and(|room| room > 0));
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Work, "it is tried again");
    respond_to(&mut bench, 230, 250);
    bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert!(waiting.is_empty(), "there will be no more responses");
}

#[test]
fn flags_report_the_state_of_the_checksum() {
    //= netif.h:flag-bits
    for (checksum, flags) in [
        (Checksum::Unverified, 0),
        (Checksum::Validated, NETTXF_DATA_VALIDATED),
        (Checksum::Blank, NETTXF_CSUM_BLANK | NETTXF_DATA_VALIDATED),
    ] {
        let mut bench = Bench::new();
        let frame = bench.frame(&pattern(3, 60), Offload { checksum, gso: None });
        assert!(bench.egress(vec![frame]).expect("no fault").is_empty());
        assert_eq!(bench.take_tx()[0].flags, flags);
    }
}

#[test]
fn a_frame_that_the_ring_cannot_describe_is_dropped() {
    let mut bench = Bench::new();
    let frames = vec![
        bench.frame(&pattern(4, 65536), Offload::NONE),
        bench.frame(&pattern(5, 60), Offload::NONE),
    ];
    assert!(bench.egress(frames).expect("no fault").is_empty());
    assert_eq!(bench.dropped(DropReason::TooLong), 1);
    assert_eq!(bench.take_tx().len(), 1);
}

#[test]
fn pages_that_are_sent_are_granted_read_only() {
    let mut bench = Bench::new();
    let frame = bench.frame(&pattern(6, 60), Offload::NONE);
    assert!(bench.egress(vec![frame]).expect("no fault").is_empty());
    let gref = GrantRef(bench.take_tx()[0].gref);
    let status = GrantStatus::GeneralError;
    let mut copy = [GrantCopy { gref, offset: 0, len: 4, local: 0, local_offset: 0, status }];
    let copied = bench.machine.memory().copy_to_peer(GUEST, &mut copy, &[[0_u8; 4]]);
    copied.expect("the call is made");
    assert_eq!(copy[0].status, GrantStatus::PermissionDenied);
}

#[test]
fn frames_wait_for_a_full_ring_and_leave_when_some_requests_complete() {
    let mut bench = Bench::new();
    let frames: Vec<_> =
        (0..300).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    let mut waiting = bench.egress(frames).expect("no fault");
    assert_eq!(waiting.len(), 44);
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Nothing);
    bench.events.ack().expect("an eventfd can be read");
    let requests = bench.take_tx();
    for (completed, request) in requests.iter().enumerate() {
        bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
        // Neither a wake-up nor room for a single frame is worth an exchange with a busy backend,
        // whether the queue sleeps or polls.
        let batches = completed / 32;
        assert_eq!(waiting.len(), 44_usize.saturating_sub(32 * batches), "{completed}");
        bench.tx.push_response(TxResponse { id: request.id, status: NETIF_RSP_OKAY });
        let notify = bench.tx.publish_responses();
        assert_eq!(notify == ringway_ring::Notify::Peer, completed == 31, "{completed}");
    }
    bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert!(waiting.is_empty());
    assert_eq!(bench.take_tx().len(), 44);
}

#[test]
fn a_limited_queue_sends_while_fewer_requests_are_unanswered() {
    let (cases, count) = if cfg!(miri) { (2, 10) } else { (8, 300) };
    for (len, limit, expected) in [
        (60, 1, 1),
        (60, 2, 2),
        (60, 255, 255),
        (60, 256, 256),
        (60, 1000, 256),
        (65_535, 2, 1),
        (9000, 4, 2),
        (9000, 1, 1),
    ]
    .into_iter()
    .take(cases)
    {
        let mut bench = Bench::new();
        bench.front.limit_unanswered(limit);
        let frames: Vec<_> =
            (0..count).map(|seed| bench.frame(&pattern(seed, len), Offload::NONE)).collect();
        let mut waiting = bench.egress(frames).expect("no fault");
        assert_eq!(count - waiting.len(), expected, "{len} {limit}");
        let pages = u64::try_from(expected * len.div_ceil(4096)).expect("few");
        assert_eq!(bench.counters.totals().tx_unanswered, pages);
        // Nothing more leaves until there is a response, and then as much as before.
        bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
        assert_eq!(count - waiting.len(), expected, "{len} {limit}");
        respond_to_all(&mut bench, NETIF_RSP_OKAY);
        bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
        assert_eq!(count - waiting.len(), (2 * expected).min(count), "{len} {limit}");
    }
}

#[test]
fn a_queue_limited_to_one_unanswered_page_is_woken_by_every_response() {
    let mut bench = Bench::new();
    bench.front.limit_unanswered(1);
    let frames = (0..10).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
    let mut waiting = bench.egress(frames).expect("no fault");
    for left in (0..9).rev() {
        assert_eq!(bench.front.arm().expect("no fault"), Pending::Nothing);
        let requests = bench.take_tx();
        assert_eq!(requests.len(), 1);
        bench.tx.push_response(TxResponse { id: requests[0].id, status: NETIF_RSP_OKAY });
        assert_eq!(bench.tx.publish_responses(), ringway_ring::Notify::Peer);
        bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
        assert_eq!(waiting.len(), left);
    }
}

#[test]
fn buffers_are_reused_whatever_the_status_of_their_response() {
    for status in [NETIF_RSP_OKAY, NETIF_RSP_ERROR, -2, i16::MIN, i16::MAX] {
        let mut bench = Bench::new();
        for round in 0..5 {
            let frames =
                (0..200).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
            assert!(bench.egress(frames).expect("no fault").is_empty(), "round {round}");
            assert_eq!(respond_to_all(&mut bench, status), 200);
        }
    }
}

#[test]
fn a_null_response_to_data_does_no_harm() {
    let mut bench = Bench::new();
    let mut waiting = std::collections::VecDeque::new();
    for _ in 0..3 {
        waiting.extend((0..200).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)));
        bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
        respond_to_all(&mut bench, NETIF_RSP_NULL);
    }
    bench.front.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert_eq!(waiting.len(), 600 - 256, "each buffer was used once and is lost");
}

#[test]
fn a_queue_that_cannot_allocate_all_its_pages_keeps_none() {
    let machine = Machine::with(Limits { pages_max: 1024, ..Limits::default() });
    let grants_in_use = || machine.loopback.holdings().grants;
    let make = || {
        let (events, _) = machine.channels();
        VifQueue::new(machine.grants(), HOST, events, Arc::new(QueueCounters::default()))
    };
    let first = make().expect("a new guest has memory");
    assert_eq!(grants_in_use(), 514);
    let error = make().err().expect("the guest has 1024 pages, and two queues take 1028");
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    assert_eq!(grants_in_use(), 514);
    first.close().expect("the pages are not in use");
    assert_eq!(machine.loopback.holdings(), Holdings::default());
}

#[test]
fn a_page_still_in_use_by_the_backend_is_not_reused() {
    let (machine, front, rings) = Bench::new().into_parts();
    assert!(front.close().is_err());
    let held = machine.loopback.holdings_of(GUEST);
    assert_eq!((held.grants, held.pages), (2, 2), "the rings are mapped, and nothing else is");
    drop(rings);

    let (machine, front, rings) = Bench::new().into_parts();
    drop(rings);
    assert!(front.close().is_ok());
    assert_eq!(machine.loopback.holdings(), Holdings::default());
}
