//! Backends that are killed after they have written responses and before they have published them.

use std::sync::atomic::Ordering;

use ringway_datapath::{Checksum, Frame, Gso, GsoKind, Offload, OffloadCaps};
use ringway_netback::Interrupted;
use ringway_ring::{BackRing, Rx, Tx};
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, ExtraInfo, GSO_TYPE_TCPV4, NETIF_RSP_ERROR, NETIF_RSP_NULL,
    NETIF_RSP_OKAY, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, NETTXF_EXTRA_INFO, RxResponse, TxResponse,
};
use ringway_wire::ring::{PAGE_END, RSP_PROD};

use crate::frames::pattern;
use crate::guest::Bench;

/// What the guest has published: packets of one slot with ids 0 and 20, and between them one of two
/// extras and three data slots.
const STATUSES: [(u16, i16); 7] = [
    (0, NETIF_RSP_OKAY),
    (10, NETIF_RSP_OKAY),
    (0, NETIF_RSP_NULL),
    (0, NETIF_RSP_NULL),
    (11, NETIF_RSP_OKAY),
    (12, NETIF_RSP_OKAY),
    (20, NETIF_RSP_OKAY),
];

fn send(bench: &mut Bench) {
    let first = bench.packet(0, &[&pattern(0, 60)]);
    let mut long = bench.packet(10, &[&pattern(1, 1000), &pattern(2, 4096), &pattern(3, 4096)]);
    let last = bench.packet(20, &[&pattern(4, 64)]);
    long[0].flags |= NETTXF_EXTRA_INFO;
    let mut extra = ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4);
    bench.push(first[0]);
    bench.push(long[0]);
    extra.flags |= EXTRA_FLAG_MORE;
    bench.push(extra);
    extra.flags = 0;
    bench.push(extra);
    let _ = bench.send(&[long[1], long[2], last[0]]);
}

/// The responses, without the ids of those to extras.
fn responses(bench: &mut Bench) -> Vec<(u16, i16)> {
    let of_data = |(id, status)| (if status == NETIF_RSP_NULL { 0 } else { id }, status);
    bench.tx_statuses().into_iter().map(of_data).collect()
}

#[test]
fn packets_with_responses_are_not_served_again_and_others_are() {
    for written in 0..=STATUSES.len() {
        let mut bench = Bench::starting_at(u32::MAX - 3, OffloadCaps::ALL);
        send(&mut bench);
        let mut killed = BackRing::<Tx>::attach(bench.tx_page.clone()).expect("a sound ring");
        killed.consume(STATUSES.len());
        // As `ingress` writes them: extras keep their kind and flags.
        let kind_of = |index| if index == 2 { EXTRA_FLAG_MORE } else { 0 };
        for (index, (id, status)) in STATUSES.into_iter().enumerate().take(written) {
            let null_id = u16::from_ne_bytes([EXTRA_TYPE_GSO, kind_of(index)]);
            let id = if status == NETIF_RSP_NULL { null_id } else { id };
            killed.push_response(TxResponse { id, status });
        }
        drop(killed);

        bench.attach_again().expect("the rings are sound");
        let packets_done = [0, 1, 2, 2, 2, 2, 2, 3][written];
        let slots_done = [0, 1, 6, 7][packets_done];
        assert_eq!(responses(&mut bench), STATUSES[..slots_done], "{written} were written");
        let frames = bench.ingress().expect("sound packets");
        let lens: Vec<usize> = frames.iter().map(Frame::len).collect();
        assert_eq!(lens, [60, 9192, 64][packets_done..], "{written} were written");
        assert_eq!(responses(&mut bench), STATUSES[slots_done..], "{written} were written");
    }
}

#[test]
fn our_own_responses_leave_the_shape_of_a_packet_readable() {
    let mut bench = Bench::new();
    send(&mut bench);
    assert_eq!(bench.ingress().expect("sound packets").len(), 3);
    // These slots again, as if their responses had not been published.
    bench.tx_page.store(RSP_PROD, 0, Ordering::Relaxed);
    bench.attach_again().expect("the rings are sound");
    assert!(bench.ingress().expect("sound packets").is_empty());
    assert_eq!(responses(&mut bench), STATUSES);
}

#[test]
fn pages_with_responses_are_returned_and_others_are_filled() {
    for written in 0..=5 {
        let mut bench = Bench::starting_at(u32::MAX - 2, OffloadCaps::ALL);
        bench.post(100, 10);
        let mut killed = BackRing::<Rx>::attach(bench.rx_page.clone()).expect("a sound ring");
        killed.consume(5);
        for id in 100..100 + written {
            let flags = NETRXF_EXTRA_INFO | NETRXF_MORE_DATA;
            match id {
                101 => killed.push_response(ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4)),
                _ => killed.push_response(RxResponse { id, offset: 0, flags, status: 4096 }),
            }
        }
        drop(killed);

        bench.attach_again().expect("the rings are sound");
        assert_eq!(bench.back.interrupted(), Interrupted { tx_slots: 0, rx_slots: written.into() });
        let returned = bench.rx_responses();
        let is_empty =
            |got: &RxResponse| (got.offset, got.flags, got.status) == (0, 0, NETIF_RSP_ERROR);
        assert!(returned.iter().all(is_empty), "{written} were written");
        // The slot of an extra has no id.
        let ids = (100..100 + written).map(|id| if id == 101 { 1 } else { id });
        assert!(returned.iter().map(|got| got.id).eq(ids), "{written} were written");
        let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
        let offload = Offload { checksum: Checksum::Blank, gso };
        let frame = bench.frame(&pattern(1, 9000), offload);
        assert!(bench.egress(vec![frame]).is_empty());
        let received = bench.rx_responses();
        assert_eq!((received.len(), received[0].id), (4, 100 + written));
    }
}

/// The note is in memory of the guest. With it, it gets responses to its own requests, and no more
/// than it has published.
#[test]
fn a_note_of_the_guest_concerns_its_own_requests_only() {
    let note = |half: u32| half | !half << 16;
    for (word, done) in [(note(1), 1), (note(2), 2), (note(3), 0), (note(0xFFFF), 0), (7, 0)] {
        let mut bench = Bench::new();
        for id in 0..2 {
            let packet = bench.packet(id, &[&pattern(usize::from(id), 60)]);
            let _ = bench.send(&packet);
        }
        bench.tx_page.store(PAGE_END, word, Ordering::Relaxed);
        bench.attach_again().expect("the rings are sound");
        let interrupted = Interrupted { tx_slots: done, rx_slots: 0 };
        assert_eq!(bench.back.interrupted(), interrupted);
        assert_eq!(bench.tx_statuses().len(), done);
        assert_eq!(bench.ingress().expect("sound packets").len(), 2 - done);
    }
}
