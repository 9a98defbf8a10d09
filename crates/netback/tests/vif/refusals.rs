//! What a guest may not transmit: the packet is refused, or the guest is at fault.

use std::sync::atomic::Ordering;

use ringway_datapath::{Budget, DropReason, Frame, FrameBatch, FrameQueue, PortQueue, QueueDown};
use ringway_hypervisor::Access;
use ringway_loopback::{Fault, FaultPoint, Holdings};
use ringway_netback::TxFault;
use ringway_ring::RingFault;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_HASH, ExtraInfo, NETIF_RSP_ERROR, NETIF_RSP_OKAY,
    NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, TxRequest,
};
use ringway_wire::ring::REQ_PROD;

use crate::frames::pattern;
use crate::guest::{Bench, fault_of};
use crate::machine::{GUEST, HOST};

/// Sends a good packet first, to check that it survives the fault behind it.
#[track_caller]
fn fault_after_a_good_packet(bench: &mut Bench) -> TxFault {
    let (fault, frames) = bench.ingress_fault();
    assert_eq!(frames.len(), 1, "the packet before the fault is good");
    assert_eq!(frames[0].bytes(), pattern(99, 60));
    assert_eq!(bench.tx_statuses(), [(99, NETIF_RSP_OKAY)]);
    fault
}

fn bench_with_good_packet() -> Bench {
    let mut bench = Bench::new();
    let packet = bench.packet(99, &[&pattern(99, 60)]);
    let _ = bench.send(&packet);
    bench
}

#[track_caller]
fn attach_fault(bench: &mut Bench) -> RingFault {
    fault_of(&bench.attach_again().expect_err("the indices are not possible"))
}

#[test]
fn a_producer_beyond_the_ring_is_a_fault_in_both_directions() {
    //= netif.h:producer-bound
    for jump in [1 << 31, u32::MAX, u32::MAX - 256, 257] {
        let mut bench = Bench::new();
        bench.tx_page.store(REQ_PROD, jump, Ordering::SeqCst);
        let (ring, slots) = ("tx", 256);
        let fault = RingFault { ring, produced: jump, ahead: jump, slots };
        assert_eq!(bench.ingress_fault::<RingFault>().0, fault);
        assert_eq!(attach_fault(&mut bench), fault);

        let mut bench = Bench::new();
        bench.rx_page.store(REQ_PROD, jump, Ordering::SeqCst);
        let frame = bench.frame(&pattern(1, 60), Default::default());
        let mut queue = FrameQueue::from([frame]);
        let result = PortQueue::egress(&mut bench.back, &mut queue, &mut bench.pool);
        let fault = RingFault { ring: "rx", produced: jump, ahead: jump, slots };
        assert_eq!(fault_of::<RingFault>(&result.expect_err("the index is not possible")), fault);
        assert_eq!(attach_fault(&mut bench), fault);
    }
}

#[test]
fn a_packet_with_a_missing_slot_is_a_fault() {
    //= netif.h:packet-published-whole
    for flags in [NETTXF_MORE_DATA, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA | NETTXF_EXTRA_INFO] {
        let mut bench = bench_with_good_packet();
        let mut packet = bench.packet(1, &[&pattern(1, 60)]);
        packet[0].flags = flags;
        let _ = bench.send(&packet);
        assert_eq!(
            fault_after_a_good_packet(&mut bench),
            TxFault::PacketCutOff { slot: 1 },
            "{flags:#x}"
        );
    }
    let mut bench = bench_with_good_packet();
    let mut packet = bench.packet(1, &[&pattern(1, 60)]);
    packet[0].flags = NETTXF_EXTRA_INFO | NETTXF_MORE_DATA;
    bench.push(packet[0]);
    bench.push(ExtraInfo::for_gso(100, 1));
    let _ = bench.send(&[]);
    assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::PacketCutOff { slot: 2 });
}

#[test]
fn more_than_twenty_further_slots_are_a_fault() {
    let data = pattern(2, 22 * 40);
    let chunks: Vec<&[u8]> = data.chunks(40).collect();
    let mut bench = bench_with_good_packet();
    let packet = bench.packet(0, &chunks);
    let _ = bench.send(&packet);
    assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::TooManySlots { limit: 20 });
}

#[test]
fn an_endless_packet_is_a_fault_before_the_ring_ends() {
    let mut bench = bench_with_good_packet();
    let gref = bench.page(0, &[], Access::ReadOnly).0;
    let slot = TxRequest { gref, offset: 0, flags: NETTXF_MORE_DATA, id: 0, size: 60 };
    let _ = bench.send(&[slot; 255]);
    assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::TooManySlots { limit: 20 });
}

#[test]
fn a_slot_that_crosses_its_page_is_a_fault() {
    let more = NETTXF_MORE_DATA;
    for (offset, size) in [(4095, 15), (4096, 14), (u16::MAX, u16::MAX), (0, 4097), (4083, 14)] {
        let gref = 0;
        //= netif.h:slot-in-page
        let mut bench = bench_with_good_packet();
        let _ = bench.send(&[TxRequest { gref, offset, flags: 0, id: 0, size }]);
        assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::CrossesPage { offset, size });

        let mut bench = bench_with_good_packet();
        let first = TxRequest { gref, offset: 0, flags: more, id: 0, size: u16::MAX };
        let _ = bench.send(&[first, TxRequest { gref, offset, flags: 0, id: 0, size }]);
        assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::CrossesPage { offset, size });
    }
    let mut bench = bench_with_good_packet();
    let first = TxRequest { gref: 0, offset: 0, flags: more, id: 0, size: 60 };
    let _ = bench.send(&[first, TxRequest { offset: 4095, flags: 0, size: 2, ..first }]);
    assert_eq!(
        fault_after_a_good_packet(&mut bench),
        TxFault::CrossesPage { offset: 4095, size: 2 }
    );
}

fn send_with_extras(bench: &mut Bench, extras: &[ExtraInfo]) {
    let mut packet = bench.packet(1, &[&pattern(3, 60)]);
    packet[0].flags = NETTXF_EXTRA_INFO;
    bench.push(packet[0]);
    for extra in extras {
        bench.push(*extra);
    }
    let _ = bench.send(&[]);
}

#[test]
fn extras_of_undefined_types_are_a_fault() {
    //= netif.h:extra-types
    for kind in [0, 5, 6, 255] {
        let mut bench = bench_with_good_packet();
        send_with_extras(&mut bench, &[ExtraInfo { kind, flags: 0, payload: [0; 6] }]);
        assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::BadExtra { kind });
    }
}

#[test]
fn segments_of_zero_bytes_or_of_an_unknown_protocol_are_a_fault() {
    //= netif.h:gso-extra
    for (size, kind) in [(0, 1), (0, 2), (1448, 0), (1448, 3), (1448, 255)] {
        let mut bench = bench_with_good_packet();
        let mut extra = ExtraInfo::for_gso(size, kind);
        assert_eq!(extra.kind, EXTRA_TYPE_GSO);
        extra.payload[5] = 0xff;
        send_with_extras(&mut bench, &[extra]);
        assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::BadGso { kind, size });
    }
}

#[test]
fn an_endless_chain_of_extras_is_a_fault() {
    let mut bench = bench_with_good_packet();
    let extra = ExtraInfo { kind: EXTRA_TYPE_HASH, flags: EXTRA_FLAG_MORE, payload: [0; 6] };
    send_with_extras(&mut bench, &[extra; 250]);
    assert_eq!(fault_after_a_good_packet(&mut bench), TxFault::TooManySlots { limit: 20 });
}

/// Sends slots between two good packets; they are refused, the good ones are not.
#[track_caller]
fn is_refused(bench: &mut Bench, slots: &[TxRequest], reason: DropReason) {
    let (before, after) = (pattern(20, 60), pattern(21, 70));
    for packet in [bench.packet(500, &[&before]), slots.to_vec(), bench.packet(501, &[&after])] {
        let _ = bench.send(&packet);
    }
    let frames = bench.ingress().expect("no fault");
    let found: Vec<&[u8]> = frames.iter().map(Frame::bytes).collect();
    assert_eq!(found, [&before[..], &after[..]]);
    let mut expected = vec![(500, NETIF_RSP_OKAY)];
    expected.extend(slots.iter().map(|slot| (slot.id, NETIF_RSP_ERROR)));
    expected.push((501, NETIF_RSP_OKAY));
    assert_eq!(bench.tx_statuses(), expected);
    assert_eq!(bench.dropped(reason), 1);
    let totals = bench.counters.totals();
    assert_eq!((totals.tx_packets, totals.tx_bytes), (2, 130));
}

#[test]
fn a_packet_shorter_than_an_ethernet_header_is_refused() {
    for len in [0, 1, 13] {
        let mut bench = Bench::new();
        let packet = bench.packet(0, &[&pattern(1, len)]);
        is_refused(&mut bench, &packet, DropReason::Malformed);
    }
    let mut bench = Bench::new();
    let packet = bench.packet(0, &[b"", b"", b""]);
    is_refused(&mut bench, &packet, DropReason::Malformed);

    let mut bench = Bench::new();
    let packet = bench.packet(0, &[&pattern(1, 14)]);
    let _ = bench.send(&packet);
    assert_eq!(bench.ingress().expect("a header alone is a frame").len(), 1);
}

#[test]
fn a_packet_whose_slots_hold_more_than_its_total_is_refused() {
    //= netif.h:first-size-is-total
    for total in [14, 60, 119] {
        let mut bench = Bench::new();
        let data = pattern(2, 60);
        let mut packet = bench.packet(7, &[&data, &data, &data]);
        packet[0].size = total;
        is_refused(&mut bench, &packet, DropReason::Malformed);
    }
    // A frame of 64 KiB, whose length wraps to 0 in 16 bits, as buggy guests have sent.
    let mut bench = Bench::new();
    let data = pattern(3, 4096);
    let mut packet = bench.packet(7, &[&data[..]; 15]);
    packet[0].size = 0;
    is_refused(&mut bench, &packet, DropReason::Malformed);
}

#[test]
fn a_page_that_cannot_be_copied_costs_only_its_packet() {
    let data = pattern(4, 300);
    // The first copy is that of the good packet before.
    for nth in 2..5 {
        let mut bench = Bench::new();
        let packet = bench.packet(40, &[&data[..100], &data[100..200], &data[200..]]);
        let fault = Fault { domid: GUEST, point: FaultPoint::Copy, nth };
        bench.machine.loopback.add_fault(fault);
        //= netif.h:one-response-per-request
        is_refused(&mut bench, &packet, DropReason::GrantCopy);
    }
    for gref in [0, 7, 5000, u32::MAX] {
        let mut bench = Bench::new();
        let mut packet = bench.packet(40, &[&data]);
        packet[0].gref = gref;
        is_refused(&mut bench, &packet, DropReason::GrantCopy);
    }
}

#[test]
fn one_bad_page_in_a_full_batch_costs_one_packet_and_keeps_the_order() {
    for bad in [0, 1, 31, 62, 63] {
        let mut bench = Bench::new();
        for id in 0..64 {
            let mut packet = bench.packet(id, &[&pattern(usize::from(id), 60)]);
            if id == bad {
                packet[0].gref = u32::MAX;
            }
            let _ = bench.send(&packet);
        }
        let frames = bench.ingress().expect("no fault");
        let expected = (0..64).filter(|id| *id != bad);
        assert_eq!(frames.len(), 63);
        for (id, frame) in expected.zip(&frames) {
            assert_eq!(frame.bytes(), pattern(usize::from(id), 60));
        }
        let error = |(id, status): &(u16, i16)| (*id == bad) == (*status == NETIF_RSP_ERROR);
        assert!(bench.tx_statuses().iter().all(error));
    }
}

#[test]
fn frames_of_another_port_in_the_batch_are_unchanged() {
    let mut bench = Bench::new();
    let mut frames = FrameBatch::new();
    let earlier = bench.frame(&pattern(50, 90), Default::default());
    frames.push(earlier);
    let mut bad = bench.packet(0, &[&pattern(1, 60)]);
    bad[0].gref = u32::MAX;
    let good = bench.packet(1, &[&pattern(2, 60)]);
    let _ = bench.send(&bad);
    let _ = bench.send(&good);
    PortQueue::ingress(&mut bench.back, Budget::BATCH, &mut bench.pool, &mut frames)
        .expect("no fault");
    let found: Vec<&[u8]> = frames.iter().map(Frame::bytes).collect();
    assert_eq!(found, [&pattern(50, 90)[..], &pattern(2, 60)[..]]);
}

#[test]
fn a_ring_page_sent_as_data_is_treated_as_data() {
    let mut bench = Bench::new();
    // The rings are the first two grants of the guest.
    let _ = bench.send(&[TxRequest { gref: 8, offset: 0, flags: 0, id: 1, size: 64 }]);
    assert_eq!(bench.ingress().expect("no fault").len(), 1);
    assert_eq!(bench.tx_statuses(), [(1, NETIF_RSP_OKAY)]);
}

/// If the hypervisor makes no copy at all, buffers contain data of other guests.
#[test]
fn frames_that_were_not_filled_are_never_returned() {
    let mut bench = Bench::new();
    let mut frames = FrameBatch::new();
    let earlier = bench.frame(&pattern(50, 90), Default::default());
    frames.push(earlier);
    let packet = bench.packet(0, &[&pattern(1, 60)]);
    let _ = bench.send(&packet);
    bench.fail_next_copy_call();
    let result = PortQueue::ingress(&mut bench.back, Budget::BATCH, &mut bench.pool, &mut frames);
    assert!(matches!(result, Err(QueueDown::Host(_))), "{result:?}");
    let found: Vec<&[u8]> = frames.iter().map(Frame::bytes).collect();
    assert_eq!(found, [&pattern(50, 90)[..]]);
}

#[test]
fn a_failed_event_does_not_let_a_failed_frame_through() {
    let mut bench = Bench::new();
    let good = bench.packet(0, &[&pattern(1, 60)]);
    let mut bad = bench.packet(1, &[&pattern(2, 60)]);
    bad[0].gref = u32::MAX;
    let _ = bench.send(&bad);
    let _ = bench.send(&good);
    bench.machine.loopback.fail_next(HOST, FaultPoint::Notify);
    let mut frames = FrameBatch::new();
    let result = PortQueue::ingress(&mut bench.back, Budget::BATCH, &mut bench.pool, &mut frames);
    assert!(matches!(result, Err(QueueDown::Host(_))), "{result:?}");
    let found: Vec<&[u8]> = frames.iter().map(Frame::bytes).collect();
    assert_eq!(found, [&pattern(1, 60)[..]]);
}

#[test]
fn a_fault_reports_both_numbers() {
    let mut bench = Bench::new();
    bench.tx_page.store(REQ_PROD, 300, Ordering::SeqCst);
    let mut frames = FrameBatch::new();
    let down = PortQueue::ingress(&mut bench.back, Budget::BATCH, &mut bench.pool, &mut frames);
    let expected = "tx ring: producer 300 is 300 ahead of consumer, the ring has 256";
    assert_eq!(down.expect_err("the index is not possible").to_string(), expected);
}

#[test]
fn a_dropped_queue_unmaps_its_rings() {
    let bench = Bench::new();
    let loopback = bench.machine.loopback.clone();
    let attached = Holdings { mappings: 2, ports: 2, ports_bound: 2, ..Holdings::default() };
    assert_eq!(loopback.holdings_of(HOST), attached);
    drop(bench);
    assert_eq!(loopback.holdings_of(HOST), Holdings::default());
}
