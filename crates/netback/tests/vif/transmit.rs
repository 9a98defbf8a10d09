//! What a guest may transmit, however odd: it is served, and each slot gets its response.

use ringway_datapath::{
    Budget, Checksum, DropReason, Frame, FramePool, Gso, GsoKind, Offload, OffloadCaps, Pending,
    PoolBudget, PortQueue, Woken,
};
use ringway_hypervisor::{Access, Direction};
use ringway_ring::{Layout, Tx};
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_HASH, ExtraInfo, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, NETIF_RSP_ERROR,
    NETIF_RSP_NULL, NETIF_RSP_OKAY, NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED, NETTXF_EXTRA_INFO,
    NETTXF_MORE_DATA, TxRequest, TxResponse,
};
use ringway_wire::ring;

use crate::frames::pattern;
use crate::guest::Bench;

fn bytes(frames: &[Frame]) -> Vec<&[u8]> {
    frames.iter().map(Frame::bytes).collect()
}

/// Responses to `count` slots with consecutive ids.
fn responses(first_id: u16, count: usize, status: i16) -> Vec<(u16, i16)> {
    (0..count).map(|n| (first_id + u16::try_from(n).expect("few slots"), status)).collect()
}

#[test]
fn a_packet_of_one_slot_arrives_and_gets_a_response_with_its_own_id() {
    let mut bench = Bench::new();
    let data = pattern(1, 60);
    // The guest chooses ids freely: some guests use more of them than a ring has slots.
    //= netif.h:id-echo
    let packet = bench.packet(0xfffe, &[&data]);
    let _ = bench.send(&packet);
    assert_eq!(bytes(&bench.ingress().expect("a sound packet")), [&data[..]]);
    assert_eq!(bench.tx_statuses(), [(0xfffe, NETIF_RSP_OKAY)]);
    let totals = bench.counters.totals();
    assert_eq!((totals.tx_packets, totals.tx_bytes), (1, 60));
}

#[test]
fn a_call_stops_at_its_limit_and_leaves_later_packets_on_the_ring() {
    let mut bench = Bench::new();
    for id in 0..4 {
        let packet = bench.packet(id, &[&pattern(usize::from(id), 100)]);
        let _ = bench.send(&packet);
    }
    let few_bytes = Budget { bytes: 150, ..Budget::BATCH };
    assert_eq!(bench.ingress_within(few_bytes).expect("sound packets").len(), 2);
    assert_eq!(bench.tx_statuses(), responses(0, 2, NETIF_RSP_OKAY));
    let one_frame = Budget { frames: 1, bytes: usize::MAX };
    assert_eq!(bench.ingress_within(one_frame).expect("sound packets").len(), 1);
    assert_eq!(bench.ingress().expect("sound packets").len(), 1);
    assert_eq!(bench.tx_statuses(), responses(2, 2, NETIF_RSP_OKAY));
}

#[test]
fn repeated_ids_are_echoed_each_time() {
    let mut bench = Bench::new();
    for seed in 0..3 {
        let packet = bench.packet(5, &[&pattern(seed, 60)]);
        let _ = bench.send(&packet);
    }
    assert_eq!(bench.ingress().expect("sound packets").len(), 3);
    assert_eq!(bench.tx_statuses(), [(5, 0), (5, 0), (5, 0)]);
}

#[test]
fn the_first_slot_has_the_total_length_and_the_bytes_that_no_other_slot_has() {
    let mut bench = Bench::new();
    let data = pattern(2, 9000);
    //= netif.h:first-size-is-total
    let packet = bench.packet(10, &[&data[..904], &data[904..5000], &data[5000..]]);
    assert_eq!(packet[0].size, 9000);
    let _ = bench.send(&packet);
    assert_eq!(bytes(&bench.ingress().expect("a sound packet")), [&data[..]]);
    assert_eq!(bench.tx_statuses(), responses(10, 3, NETIF_RSP_OKAY));
}

#[test]
fn empty_slots_are_accepted_anywhere_in_a_packet() {
    let data = pattern(3, 200);
    let (whole, head, tail): (&[u8], &[u8], &[u8]) = (&data, &data[..100], &data[100..]);
    let shapes: [&[&[u8]]; 4] =
        [&[b"", whole], &[head, b"", tail], &[whole, b""], &[b"", b"", whole, b"", b""]];
    //= netif.h:empty-slot
    for shape in shapes {
        let mut bench = Bench::new();
        let packet = bench.packet(0, shape);
        let _ = bench.send(&packet);
        assert_eq!(bytes(&bench.ingress().expect("a sound packet")), [&data[..]]);
        assert_eq!(bench.tx_statuses(), responses(0, shape.len(), NETIF_RSP_OKAY));
    }
}

#[test]
fn a_slot_may_end_at_the_end_of_its_page() {
    let mut bench = Bench::new();
    let data = pattern(4, 15);
    let gref = bench.page(4095, &data[..1], Access::ReadOnly).0;
    let first = TxRequest { gref, offset: 4095, flags: NETTXF_MORE_DATA, id: 1, size: 15 };
    let gref = bench.page(4082, &data[1..], Access::ReadOnly).0;
    let _ = bench.send(&[first, TxRequest { gref, offset: 4082, flags: 0, id: 2, size: 14 }]);
    assert_eq!(bytes(&bench.ingress().expect("a sound packet")), [&data[..]]);
}

#[test]
fn the_largest_packet_fits() {
    let mut bench = Bench::new();
    let data = pattern(5, 65535);
    let chunks: Vec<&[u8]> = data.chunks(4096).collect();
    let packet = bench.packet(0, &chunks);
    assert_eq!(packet[0].size, u16::MAX);
    let _ = bench.send(&packet);
    assert_eq!(bytes(&bench.ingress().expect("a sound packet")), [&data[..]]);
}

#[test]
fn the_longest_accepted_packet_has_eighteen_further_slots() {
    for (slots, is_served) in [(18, true), (19, true), (20, false), (21, false)] {
        let mut bench = Bench::new();
        let data = pattern(6, 40 * slots);
        let chunks: Vec<&[u8]> = data.chunks(40).collect();
        let (odd, good) = (bench.packet(0, &chunks), bench.packet(100, &[&data[..60]]));
        let _ = bench.send(&odd);
        let _ = bench.send(&good);
        let frames = bench.ingress().expect("no fault");
        //= netif.h:slots-min
        let (status, expected): (i16, Vec<&[u8]>) = match is_served {
            true => (NETIF_RSP_OKAY, vec![&data, &data[..60]]),
            false => (NETIF_RSP_ERROR, vec![&data[..60]]),
        };
        assert_eq!(bytes(&frames), expected);
        let mut statuses = responses(0, slots, status);
        statuses.push((100, NETIF_RSP_OKAY));
        assert_eq!(bench.tx_statuses(), statuses);
        assert_eq!(bench.dropped(DropReason::TooLong), u64::from(!is_served));
    }
}

#[test]
fn flags_report_the_state_of_the_checksum() {
    let (blank, validated) = (NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED);
    for (flags, checksum) in [
        (0, Checksum::Unverified),
        (validated, Checksum::Validated),
        (blank, Checksum::Blank),
        (blank | validated, Checksum::Blank),
        (0xfff0, Checksum::Unverified),
    ] {
        let mut bench = Bench::new();
        let mut packet = bench.packet(0, &[&pattern(7, 60)]);
        packet[0].flags = flags;
        let _ = bench.send(&packet);
        let frames = bench.ingress().expect("a sound packet");
        assert_eq!(frames[0].offload, Offload { checksum, gso: None }, "flags {flags:#x}");
    }
}

#[test]
fn a_gso_extra_sets_the_segmentation_and_gets_a_null_response() {
    for (wire, kind) in [(GSO_TYPE_TCPV4, GsoKind::TcpV4), (GSO_TYPE_TCPV6, GsoKind::TcpV6)] {
        let mut bench = Bench::new();
        let data = pattern(8, 5000);
        let mut packet = bench.packet(30, &[&data[..4096], &data[4096..]]);
        packet[0].flags |= NETTXF_EXTRA_INFO;
        //= netif.h:slot-order
        bench.push(packet[0]);
        bench.push(ExtraInfo::for_gso(1448, wire));
        bench.push(packet[1]);
        let _ = bench.send(&[]);
        let frames = bench.ingress().expect("a sound packet");
        assert_eq!(bytes(&frames), [&data[..]]);
        let gso = Some(Gso { kind, size: 1448 });
        assert_eq!(frames[0].offload, Offload { checksum: Checksum::Blank, gso });
        let statuses: Vec<i16> =
            bench.tx_responses().iter().map(|response| response.status).collect();
        //= netif.h:extra-null
        assert_eq!(statuses, [NETIF_RSP_OKAY, NETIF_RSP_NULL, NETIF_RSP_OKAY]);
    }
}

#[test]
fn each_extra_gets_a_response_and_unknown_extras_are_ignored() {
    let mut bench = Bench::new();
    let data = pattern(9, 100);
    let mut packet = bench.packet(1, &[&data]);
    packet[0].flags |= NETTXF_EXTRA_INFO;
    bench.push(packet[0]);
    for payload in [[9; 6], [8; 6]] {
        bench.push(ExtraInfo { kind: EXTRA_TYPE_HASH, flags: EXTRA_FLAG_MORE, payload });
    }
    bench.push(ExtraInfo::for_gso(50, GSO_TYPE_TCPV4));
    let _ = bench.send(&[]);
    let frames = bench.ingress().expect("a sound packet");
    assert_eq!(frames[0].offload.gso, Some(Gso { kind: GsoKind::TcpV4, size: 50 }));
    let statuses: Vec<i16> = bench.tx_responses().iter().map(|response| response.status).collect();
    assert_eq!(statuses, [0, NETIF_RSP_NULL, NETIF_RSP_NULL, NETIF_RSP_NULL]);
}

#[test]
fn the_same_page_may_be_sent_in_many_slots() {
    let mut bench = Bench::new();
    let data = pattern(10, 600);
    let gref = bench.page(0, &data, Access::ReadOnly).0;
    let slot = |offset, size, flags| TxRequest { gref, offset, flags, id: 3, size };
    let more = NETTXF_MORE_DATA;
    let _ = bench.send(&[slot(0, 600, more), slot(200, 200, more), slot(400, 200, 0)]);
    for _ in 0..50 {
        let _ = bench.send(&[slot(100, 60, 0)]);
    }
    let frames = bench.ingress().expect("sound packets");
    assert_eq!(frames.len(), 51);
    assert_eq!(frames[0].bytes(), data);
    assert!(frames[1..].iter().all(|frame| frame.bytes() == &data[100..160]));
}

#[test]
fn a_full_ring_is_taken_in_batches_with_one_hypercall_each() {
    for start in [0, u32::MAX - 100] {
        let mut bench = Bench::starting_at(start, OffloadCaps::ALL);
        let gref = bench.page(0, &pattern(11, 4096), Access::ReadOnly).0;
        for id in 0..256 {
            let _ = bench.send(&[TxRequest { gref, offset: id, flags: 0, id, size: 60 }]);
        }
        let mut taken = Vec::new();
        while taken.len() < 256 {
            let before = bench.copy_calls();
            let frames = bench.ingress().expect("sound packets");
            assert_eq!((frames.len(), bench.copy_calls() - before), (64, 1));
            taken.extend(frames);
        }
        for (offset, frame) in taken.iter().enumerate() {
            assert_eq!(frame.bytes(), &pattern(11, 4096)[offset..offset + 60]);
        }
        assert_eq!(bench.tx_statuses(), responses(0, 256, NETIF_RSP_OKAY));
    }
}

#[test]
fn every_response_is_in_the_slot_of_its_request() {
    let mut bench = Bench::starting_at(u32::MAX - 1, OffloadCaps::ALL);
    for id in 0..5 {
        // The third and the fifth are refused, which changes nothing in the order.
        let len = if id % 2 == 0 && id > 0 { 13 } else { 60 };
        let packet = bench.packet(id, &[&pattern(12, len)]);
        let _ = bench.send(&packet);
    }
    assert_eq!(bench.ingress().expect("no fault").len(), 3);
    for (id, slot, status) in [(0, 254, 0), (1, 255, 0), (2, 0, -1), (3, 1, 0), (4, 2, -1)] {
        let response: TxResponse = bench.tx_page.read(ring::SLOTS + slot * Tx::SLOT_LEN);
        assert_eq!(response, TxResponse { id, status });
    }
}

#[test]
fn packets_wait_in_the_ring_while_the_pool_is_empty() {
    let mut bench = Bench::new();
    bench.pool = FramePool::new(PoolBudget::new(2 * 2048));
    for id in 0..5 {
        let packet = bench.packet(id, &[&pattern(usize::from(id), 60)]);
        let _ = bench.send(&packet);
    }
    for first in [0, 2, 4] {
        let frames = bench.ingress().expect("sound packets");
        let count = frames.len();
        assert_eq!(count, if first == 4 { 1 } else { 2 });
        assert!(bench.ingress().expect("no fault").is_empty() || first == 4);
        assert_eq!(bench.tx_statuses(), responses(first, count, NETIF_RSP_OKAY));
        for (seed, frame) in (usize::from(first)..).zip(frames) {
            assert_eq!(frame.bytes(), pattern(seed, 60));
            bench.pool.recycle(frame);
        }
    }
    assert_eq!(bench.dropped(DropReason::NoBuffer), 0);
}

#[test]
fn a_successor_backend_serves_requests_without_a_response() {
    let mut bench = Bench::starting_at(u32::MAX - 2, OffloadCaps::ALL);
    for id in 0..3 {
        let packet = bench.packet(id, &[&pattern(usize::from(id), 60)]);
        let _ = bench.send(&packet);
        if id == 0 {
            assert_eq!(bench.ingress().expect("a sound packet").len(), 1);
        }
    }
    //= netif.h:back-ring-attach
    bench.attach_again().expect("the rings are sound");
    bench.events.ack().expect("an eventfd can be read");
    let frames = bench.ingress().expect("sound packets");
    assert_eq!(bytes(&frames), [&pattern(1, 60)[..], &pattern(2, 60)[..]]);
    assert_eq!(bench.tx_statuses(), responses(0, 3, NETIF_RSP_OKAY));
}

#[test]
fn events_are_sent_only_when_the_guest_requested_them() {
    let mut bench = Bench::new();
    assert!(bench.events.ack().expect("an eventfd can be read"), "attaching kicks the guest");
    let packet = bench.packet(1, &[&pattern(1, 60)]);
    let _ = bench.send(&packet);
    bench.ingress().expect("a sound packet");
    assert!(bench.events.ack().expect("an eventfd can be read"), "a new ring asks for the first");
    let _ = bench.send(&packet);
    bench.ingress().expect("a sound packet");
    assert!(!bench.events.ack().expect("an eventfd can be read"), "the second was not asked for");
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
    let _ = bench.send(&packet);
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
}

#[test]
fn an_event_is_taken_from_the_channel_that_reported_it() {
    let mut bench = Bench::new();
    let _ = bench.back.woken(Woken::Unknown);
    let received = |bench: &Bench| bench.counters.totals().events_received;
    let before = received(&bench);
    for direction in [Direction::Tx, Direction::Rx] {
        bench.events.notify(direction).expect("the other end is there");
    }
    // In the order in which their descriptors are shown; there is no eighth.
    for (by, count) in [(1, 1), (1, 1), (7, 1), (0, 2), (0, 2)] {
        bench.back.woken(Woken::By(by)).expect("no fault");
        assert_eq!(received(&bench) - before, count, "{by}");
    }
}
