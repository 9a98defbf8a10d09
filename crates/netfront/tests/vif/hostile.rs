//! Backends that follow no rules (`linux-netfront-hardening`): a guest survives them all.

use std::sync::atomic::Ordering;

use fastrand::Rng;
use ringway_datapath::{
    Checksum, DropReason, Gso, GsoKind, Offload, Pending, PortQueue, QueueDown,
};
use ringway_netfront::ResponseFault;
use ringway_ring::RingFault;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_HASH, ExtraInfo, GSO_TYPE_TCPV4, NETIF_RSP_OKAY,
    NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RxResponse,
    TxResponse,
};
use ringway_wire::ring::RSP_PROD;

use crate::backend::{Bench, response};
use crate::frames::pattern;

const MORE: u16 = NETRXF_MORE_DATA;

fn receive(bench: &mut Bench) -> Vec<Vec<u8>> {
    let frames = bench.ingress().expect("the backend did nothing wrong");
    frames.iter().map(|frame| frame.bytes().to_vec()).collect()
}

#[test]
fn a_frame_may_lie_anywhere_in_its_pages() {
    let mut bench = Bench::new();
    let data = pattern(1, 4000);
    bench.fill(0, 2, &data[..3000]);
    bench.fill(1, 3096, &data[3000..]);
    //= netif.h:rx-offset
    let _ = bench.respond(RxResponse { id: 0, offset: 2, flags: MORE, status: 3000 });
    let _ = bench.respond(RxResponse { id: 1, offset: 3096, flags: 0, status: 1000 });
    assert_eq!(receive(&mut bench), [data]);
}

#[test]
fn flags_report_the_state_of_the_checksum() {
    let (blank, validated) = (NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED);
    for (flags, checksum) in [
        (0, Checksum::Unverified),
        (validated, Checksum::Validated),
        (blank, Checksum::Blank),
        (blank | validated, Checksum::Blank),
    ] {
        let mut bench = Bench::new();
        let _ = bench.respond(response(0, flags, 60));
        let frames = bench.ingress().expect("no fault");
        assert_eq!(frames[0].offload, Offload { checksum, gso: None });
    }
}

#[test]
fn a_gso_extra_is_read_from_the_second_slot() {
    let mut bench = Bench::new();
    let data = pattern(2, 5000);
    bench.fill(0, 0, &data[..4096]);
    bench.fill(2, 0, &data[4096..]);
    let _ = bench.respond(response(0, NETRXF_EXTRA_INFO | MORE, 4096));
    let _ = bench.respond(ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4));
    let _ = bench.respond(response(2, 0, 904));
    let frames = bench.ingress().expect("no fault");
    assert_eq!(frames[0].bytes(), data);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    assert_eq!(frames[0].offload, Offload { checksum: Checksum::Blank, gso });
}

#[test]
fn pages_are_reposted_in_ring_order_indefinitely() {
    let mut bench = Bench::new();
    for round in 0..if cfg!(miri) { 300 } else { 1000 } {
        let data = pattern(round, 60 + round % 1000);
        bench.fill(round, 0, &data);
        let slot = u16::try_from(round % 256).expect("a ring is small");
        let _ = bench.respond(response(slot, 0, data.len().try_into().expect("short")));
        assert_eq!(receive(&mut bench), [data]);
        let mut request = [Default::default()];
        assert_eq!(bench.rx.peek_requests(&mut request), Ok((1, 1)), "its page is posted again");
        assert_eq!(request[0], bench.posted[round % 256], "each slot keeps its page");
        bench.rx.consume(1);
    }
}

#[test]
fn more_responses_than_requests_are_a_fault() {
    //= netif.h:producer-bound
    for produced in [257, 1 << 31, u32::MAX] {
        let mut bench = Bench::new();
        bench.rx_page.store(RSP_PROD, produced, Ordering::SeqCst);
        let (ahead, slots) = (produced, 256);
        let fault = RingFault { ring: "rx", produced, ahead, slots };
        assert_eq!(bench.ingress_fault::<RingFault>(), fault);

        let mut bench = Bench::new();
        bench.tx_page.store(RSP_PROD, produced, Ordering::SeqCst);
        let fault = RingFault { ring: "tx", produced, ahead, slots };
        assert_eq!(bench.egress_fault::<RingFault>(), fault);
    }
    // A response without a request is one too many; so is a producer that moves backwards.
    let mut bench = Bench::new();
    bench.tx_page.store(RSP_PROD, 1, Ordering::SeqCst);
    assert!(bench.egress(Vec::new()).is_err());
    let mut bench = Bench::new();
    let _ = bench.respond(response(0, 0, 60));
    assert_eq!(receive(&mut bench).len(), 1);
    bench.rx_page.store(RSP_PROD, 0, Ordering::SeqCst);
    assert_eq!(bench.ingress_fault::<RingFault>().ahead, u32::MAX);
}

#[test]
fn a_response_without_a_request_is_a_fault() {
    //= netif.h:id-echo
    let ask = |bench: &mut Bench| {
        let frames = vec![
            bench.frame(&pattern(1, 60), Offload::NONE),
            bench.frame(&pattern(2, 60), Offload::NONE),
        ];
        assert!(bench.egress(frames).expect("no fault").is_empty());
        bench.take_tx()
    };
    for id in [256, 257, 0x8000, u16::MAX, 3] {
        let mut bench = Bench::new();
        let requests = ask(&mut bench);
        assert!(requests.iter().all(|request| request.id != id));
        bench.tx.push_response(TxResponse { id, status: NETIF_RSP_OKAY });
        let _ = bench.tx.publish_responses();
        assert_eq!(bench.egress_fault::<ResponseFault>(), ResponseFault::Unknown { id });
    }
    let mut bench = Bench::new();
    let id = ask(&mut bench)[1].id;
    for _ in 0..2 {
        bench.tx.push_response(TxResponse { id, status: NETIF_RSP_OKAY });
    }
    let _ = bench.tx.publish_responses();
    let fault: ResponseFault = bench.egress_fault();
    assert_eq!(fault, ResponseFault::Unknown { id }, "twice is once too much");
}

#[test]
fn responses_in_any_order_are_accepted() {
    let mut bench = Bench::new();
    for round in 0..4 {
        let frames = (0..100).map(|seed| bench.frame(&pattern(seed, 60), Offload::NONE)).collect();
        assert!(bench.egress(frames).expect("no fault").is_empty(), "round {round}");
        for request in bench.take_tx().iter().rev() {
            bench.tx.push_response(TxResponse { id: request.id, status: NETIF_RSP_OKAY });
        }
        let _ = bench.tx.publish_responses();
    }
}

#[test]
fn bytes_outside_the_page_are_a_fault() {
    //= netif.h:slot-in-page
    for (offset, status) in [(0, 4097), (1, 4096), (4096, 1), (u16::MAX, 1), (4000, i16::MAX)] {
        for is_first in [true, false] {
            let mut bench = Bench::new();
            if !is_first {
                let _ = bench.respond(response(0, MORE, 100));
            }
            let _ = bench.respond(RxResponse { id: 0, offset, flags: 0, status });
            assert_eq!(
                bench.ingress_fault::<ResponseFault>(),
                ResponseFault::LeavesPage { offset, status }
            );
        }
    }
}

#[test]
fn failed_slots_cost_only_their_frame() {
    let mut bench = Bench::new();
    for (slot, status) in [(0, -1), (1, 60), (2, -2), (3, i16::MIN), (4, 61)] {
        let _ = bench.respond(response(slot, 0, status));
    }
    // A frame of which only the middle failed.
    let _ = bench.respond(response(5, MORE, 100));
    let _ = bench.respond(response(6, MORE, -1));
    let _ = bench.respond(response(7, 0, 100));
    let lens: Vec<usize> = receive(&mut bench).iter().map(Vec::len).collect();
    assert_eq!(lens, [60, 61]);
    assert_eq!(bench.dropped(DropReason::Malformed), 4);
    assert_eq!(bench.rx.pending(), Ok(8), "all pages are posted again");
}

#[test]
fn frames_too_short_for_an_ethernet_header_are_dropped() {
    let mut bench = Bench::new();
    for (slot, status) in [(0, 0), (1, 1), (2, 13), (3, 14)] {
        let _ = bench.respond(response(slot, 0, status));
    }
    assert_eq!(receive(&mut bench).len(), 1);
    assert_eq!(bench.dropped(DropReason::Malformed), 3);
}

#[test]
fn extras_of_other_types_are_skipped_and_counted() {
    //= netif.h:extras-skipped
    let mut bench = Bench::new();
    let kinds = [0, 2, 3, EXTRA_TYPE_HASH, 6, 255];
    let chain = kinds.map(|kind| ExtraInfo { kind, flags: EXTRA_FLAG_MORE, payload: [0xff; 6] });
    let data = pattern(1, 100);
    bench.fill(0, 0, &data[..60]);
    bench.fill(8, 0, &data[60..]);
    let _ = bench.respond(response(0, NETRXF_EXTRA_INFO | MORE, 60));
    for extra in chain {
        let _ = bench.respond(extra);
    }
    let _ = bench.respond(ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4));
    let _ = bench.respond(response(8, 0, 40));
    let frames = bench.ingress().expect("an extra is no fault");
    assert_eq!(frames[0].bytes(), data);
    assert_eq!(frames[0].offload.gso, Some(Gso { kind: GsoKind::TcpV4, size: 1448 }));
    assert_eq!(bench.counters.totals().extras_skipped, 6);
    assert_eq!(bench.rx.pending(), Ok(9), "all pages are posted again");
}

#[test]
fn segments_of_zero_bytes_or_of_an_unknown_protocol_are_a_fault() {
    for (size, kind) in [(0, 1), (100, 0), (100, 3)] {
        let mut bench = Bench::new();
        let _ = bench.respond(response(0, NETRXF_EXTRA_INFO, 60));
        let _ = bench.respond(ExtraInfo::for_gso(size, kind));
        assert_eq!(bench.ingress_fault::<ResponseFault>(), ResponseFault::BadGso { kind, size });
    }
}

#[test]
fn endless_packets_are_a_fault() {
    let mut bench = Bench::new();
    for slot in 0..256 {
        let _ = bench.respond(response(slot, MORE, 100));
    }
    assert_eq!(bench.ingress_fault::<ResponseFault>(), ResponseFault::TooManySlots { limit: 24 });

    let mut bench = Bench::new();
    let _ = bench.respond(response(0, NETRXF_EXTRA_INFO, 60));
    for _ in 0..255 {
        let mut extra = ExtraInfo::for_gso(100, 1);
        assert_eq!(extra.kind, EXTRA_TYPE_GSO);
        extra.flags = EXTRA_FLAG_MORE;
        let _ = bench.respond(extra);
    }
    assert_eq!(bench.ingress_fault::<ResponseFault>(), ResponseFault::TooManySlots { limit: 24 });
}

#[test]
fn a_truncated_packet_is_dropped() {
    for flags in [MORE, NETRXF_EXTRA_INFO] {
        let mut bench = Bench::new();
        let _ = bench.respond(response(0, 0, 60));
        let _ = bench.respond(response(1, flags, 100));
        assert_eq!(receive(&mut bench).len(), 1);
        assert_eq!(bench.dropped(DropReason::Malformed), 1);
    }
}

#[test]
fn a_packet_that_is_completed_after_a_poll_arrives_whole_with_the_next() {
    for short in 60..90 {
        let mut bench = Bench::new();
        for slot in 0..short {
            let _ = bench.respond(response(slot, 0, 60));
        }
        for slot in 0..17 {
            let flags = if slot < 16 { MORE } else { 0 };
            let _ = bench.respond(response(slot, flags, 1000));
        }
        let mut lens = Vec::new();
        loop {
            let frames = receive(&mut bench);
            if frames.is_empty() {
                break;
            }
            lens.extend(frames.iter().map(Vec::len));
        }
        let mut expected = vec![60; short.into()];
        expected.push(17000);
        assert_eq!(lens, expected);
    }
}

#[test]
fn frames_wait_in_the_ring_while_the_pool_is_empty() {
    let mut bench = Bench::new();
    bench.pool = ringway_datapath::FramePool::new(ringway_datapath::PoolBudget::new(2048));
    for slot in 0..3 {
        bench.fill(slot, 0, &pattern(slot, 60));
        let _ = bench.respond(response(0, 0, 60));
    }
    for seed in 0..3 {
        let frames = bench.ingress().expect("no fault");
        assert_eq!(frames.len(), 1);
        assert!(bench.ingress().expect("no fault").is_empty(), "the only buffer is in use");
        for frame in frames {
            assert_eq!(frame.bytes(), pattern(seed, 60));
            bench.pool.recycle(frame);
        }
    }
    assert_eq!(bench.dropped(DropReason::NoBuffer), 0);
}

#[test]
fn arming_finds_packets_that_arrived_meanwhile() {
    let mut bench = Bench::new();
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Nothing);
    assert_eq!(bench.respond(response(0, 0, 60)), ringway_ring::Notify::Peer);
    assert_eq!(bench.front.arm().expect("no fault"), Pending::Work);
}

#[test]
fn random_writes_of_a_backend_cause_frames_or_a_fault_but_no_panic() {
    for seed in 0..if cfg!(miri) { 4 } else { 400 } {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut bench = Bench::new();
        for _ in 0..12 {
            let mut room = 256;
            while room > 0 && random.u8(0..100) > 0 {
                let flags = if random.u8(0..8) == 0 { random.u16(..) } else { random.u16(0..8) };
                let status = match random.u8(0..10) {
                    0 => random.i16(..),
                    _ => random.i16(-2..2000),
                };
                let offset = if random.u8(0..200) == 0 { random.u16(..) } else { 0 };
                let outstanding = bench.rx.pending().expect("our frontend is honest");
                bench.rx.consume(usize::try_from(outstanding).expect("a ring is small"));
                let _ = bench.respond(RxResponse { id: random.u16(..), offset, flags, status });
                room -= 1;
            }
            match bench.ingress() {
                Ok(frames) => {
                    for frame in frames {
                        assert!(frame.len() >= 14);
                        bench.pool.recycle(frame);
                    }
                }
                Err(QueueDown::Peer(_)) => break,
                Err(QueueDown::Host(error)) => panic!("the host did nothing wrong: {error}"),
            }
            let posted = bench.rx.pending().expect("our frontend is honest");
            bench.rx.consume(usize::try_from(posted).expect("a ring is small"));
            if posted == 0 {
                break;
            }
        }
    }
}
