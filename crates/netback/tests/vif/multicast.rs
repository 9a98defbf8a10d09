//! Orders of multicast frames: requests of the tx ring without a packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use ringway_datapath::{DropReason, FrameBatch, MacAddr, MulticastFilter, Pending, PortQueue};
use ringway_netback::Changes;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_HASH, EXTRA_TYPE_MCAST_ADD, EXTRA_TYPE_MCAST_DEL, ExtraInfo,
    NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA,
    TxRequest,
};

use crate::frames::pattern;
use crate::guest::Bench;

fn group(number: u8) -> [u8; 6] {
    [0x33, 0x33, 0, 0, 0, number]
}

/// The first slot of an order, as the Windows driver fills it: it names no page.
const FIRST: TxRequest = TxRequest { gref: 0, offset: 0, flags: NETTXF_EXTRA_INFO, id: 9, size: 0 };

fn push(bench: &mut Bench, kind: u8, address: [u8; 6]) {
    bench.push(FIRST);
    bench.push(ExtraInfo::for_multicast(kind, address));
}

fn statuses(bench: &mut Bench) -> Vec<i16> {
    bench.tx_responses().iter().map(|response| response.status).collect()
}

/// Polls once, has the control plane note what was ordered, and polls again.
fn poll_noted(bench: &mut Bench) -> FrameBatch {
    let mut frames = bench.ingress().expect("all is sound");
    bench.note_orders();
    frames.extend(bench.ingress().expect("all is sound"));
    frames
}

#[test]
fn an_order_changes_what_the_guest_gets_and_is_no_frame() {
    let mut bench = Bench::new();
    //= netif.h:multicast-order
    for (kind, passes) in [(EXTRA_TYPE_MCAST_ADD, true), (EXTRA_TYPE_MCAST_DEL, false)] {
        push(&mut bench, kind, group(1));
        let _ = bench.send(&[]);
        assert!(poll_noted(&mut bench).is_empty());
        assert_eq!(bench.filter.passes(MacAddr(group(1))), passes);
        assert_eq!(statuses(&mut bench), [NETIF_RSP_OKAY, NETIF_RSP_NULL]);
    }
    let totals = bench.counters.totals();
    assert_eq!((totals.tx_packets, totals.tx_bytes), (0, 0));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn orders_have_their_responses_when_they_are_noted_and_frames_behind_them_wait() {
    let mut bench = Bench::new();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    bench.changes = Arc::new(Changes::new(waker));
    bench.attach_again().expect("its rings are sound");
    let (okay, null) = (NETIF_RSP_OKAY, NETIF_RSP_NULL);

    let before = bench.packet(1, &[&pattern(1, 60)]);
    let _ = bench.send(&before);
    (1..=3).for_each(|number| push(&mut bench, EXTRA_TYPE_MCAST_ADD, group(number)));
    let behind = bench.packet(2, &[&pattern(2, 60)]);
    let _ = bench.send(&behind);
    assert_eq!(bench.ingress().expect("all is sound").len(), 1);
    assert_eq!(statuses(&mut bench), [okay], "a frame before them waits for nothing");
    for _ in 0..3 {
        assert!(bench.ingress().expect("all is sound").is_empty());
        assert_eq!(bench.back.arm().expect("all is sound"), Pending::Nothing, "it would be woken");
    }
    assert!(statuses(&mut bench).is_empty());
    assert_eq!((bell.0.load(Ordering::Relaxed), bench.changes.has_unnoted()), (1, true));

    assert_eq!(bench.note_orders().split(' ').count(), 1 + 3, "one note for all of a batch");
    assert!(!bench.changes.has_unnoted());
    assert_eq!(bench.back.arm().expect("all is sound"), Pending::Work);
    assert!(bench.ingress().expect("all is sound").is_empty());
    assert_eq!(statuses(&mut bench), [okay, null].repeat(3));
    assert_eq!(bench.ingress().expect("all is sound").len(), 1);
    assert_eq!((statuses(&mut bench), bell.0.load(Ordering::Relaxed)), (vec![okay], 1));
}

#[test]
fn a_backend_carries_out_what_the_one_before_has_not_noted() {
    let mut bench = Bench::new();
    push(&mut bench, EXTRA_TYPE_MCAST_ADD, group(1));
    let _ = bench.send(&[]);
    assert!(poll_noted(&mut bench).is_empty());
    assert_eq!(statuses(&mut bench).len(), 2);
    let noted = bench.filter.to_string();
    push(&mut bench, EXTRA_TYPE_MCAST_DEL, group(1));
    push(&mut bench, EXTRA_TYPE_MCAST_ADD, group(2));
    let _ = bench.send(&[]);
    assert!(bench.ingress().expect("all is sound").is_empty());

    // It is killed now, before it has noted these two.
    let known = MulticastFilter::from_text(&noted).expect("it is a note");
    bench.filter = Arc::new(known);
    bench.changes = Arc::new(Changes::new(Waker::noop().clone()));
    bench.attach_again().expect("its rings are sound");
    assert!(poll_noted(&mut bench).is_empty());
    assert_eq!(bench.filter.addresses(), Some(vec![MacAddr(group(2))]));
    assert_eq!(statuses(&mut bench), [NETIF_RSP_OKAY, NETIF_RSP_NULL].repeat(2));
}

#[test]
fn an_address_more_than_a_vif_may_have_is_refused_and_counted() {
    let mut bench = Bench::new();
    let most = u8::try_from(MulticastFilter::ADDRESSES_MAX).expect("it is 64");
    let orders = |bench: &mut Bench, numbers: std::ops::Range<u8>| {
        let mut all = Vec::new();
        for number in numbers {
            push(bench, EXTRA_TYPE_MCAST_ADD, group(number));
            let _ = bench.send(&[]);
            assert!(poll_noted(bench).is_empty());
            all.extend(statuses(bench));
        }
        all
    };
    let accepted = [NETIF_RSP_OKAY, NETIF_RSP_NULL].repeat(64);
    assert_eq!(orders(&mut bench, 0..most), accepted);
    //= netif.h:multicast-order
    assert_eq!(orders(&mut bench, most..most + 1), [NETIF_RSP_ERROR, NETIF_RSP_NULL]);
    assert!(!bench.filter.passes(MacAddr(group(most))));
    assert_eq!(bench.dropped(DropReason::MulticastFull), 1);
    // One that it has already needs no room.
    assert_eq!(orders(&mut bench, 0..1), [NETIF_RSP_OKAY, NETIF_RSP_NULL]);
}

/// Linux' backend would take the slots behind such an order for further packets.
#[test]
fn an_order_may_have_other_extras_and_slots_of_any_content() {
    let mut bench = Bench::new();
    let flags = NETTXF_EXTRA_INFO | NETTXF_MORE_DATA;
    bench.push(TxRequest { gref: 7, offset: 4000, size: 0xffff, flags, ..FIRST });
    let hash = ExtraInfo { kind: EXTRA_TYPE_HASH, flags: EXTRA_FLAG_MORE, payload: [1; 6] };
    bench.push(hash);
    bench.push(ExtraInfo::for_multicast(EXTRA_TYPE_MCAST_ADD, group(1)));
    let _ = bench.send(&[TxRequest { flags: 0, size: 60, ..FIRST }]);
    assert!(poll_noted(&mut bench).is_empty());
    assert!(bench.filter.passes(MacAddr(group(1))));
    let null = NETIF_RSP_NULL;
    assert_eq!(statuses(&mut bench), [NETIF_RSP_OKAY, null, null, NETIF_RSP_OKAY]);
}

#[test]
fn a_queue_without_orders_drops_them() {
    let mut bench = Bench::new();
    bench.may_order = false;
    bench.attach_again().expect("its rings are sound");
    push(&mut bench, EXTRA_TYPE_MCAST_ADD, group(1));
    let _ = bench.send(&[]);
    assert!(bench.ingress().expect("it is sound").is_empty());
    assert_eq!(statuses(&mut bench), [NETIF_RSP_ERROR, NETIF_RSP_NULL]);
}
