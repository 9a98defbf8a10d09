//! Peers that write invalid data into the page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ringway_ring::{BackRing, Control, FrontRing, Layout, RingFault, Rx, Tx, Waiting};
use ringway_wire::ring::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD};

use crate::page::{self, Numbered, set};

/// Indices of the rings when the peer misbehaves; the last two wrap around within a ring's length.
const STARTS: [u32; 4] = [0, 1000, u32::MAX - 100, u32::MAX];

/// Distances of a producer from its consumer: half the range, behind by one, behind by a ring, one
/// more than a ring of so many slots holds.
fn jumps(slots: u32) -> [u32; 6] {
    [1 << 31, u32::MAX, u32::MAX - (slots - 1), slots + 1, slots + 44, (1 << 31) - 1]
}

/// How often to read a producer that flips. The interpreter of Miri is slow.
const READS: usize = if cfg!(miri) { 200 } else { 100_000 };

fn overrun<L: Layout>(produced: u32, ahead: u32) -> RingFault {
    RingFault { ring: L::NAME, produced, ahead, slots: L::SLOTS }
}

//= netif.h:producer-bound
fn hostile_request_producers<L: Numbered>() {
    for start in STARTS {
        for jump in jumps(L::SLOTS) {
            let [front, back, peer, again] = page::handles();
            let _front = FrontRing::<L>::starting_at(front, start);
            let mut back = BackRing::<L>::attach(back).expect("a new ring is sound");
            let produced = start.wrapping_add(jump);
            set(&peer, REQ_PROD, produced);
            let fault = overrun::<L>(produced, jump);
            assert_eq!(back.pending(), Err(fault));
            assert_eq!(back.peek_requests(&mut [L::request(0); 8]), Err(fault));
            assert_eq!(back.arm(1), Waiting::Enough, "or it would go unreported");
            assert_eq!(BackRing::<L>::attach(again).err(), Some(fault));

            set(&peer, REQ_PROD, start.wrapping_add(L::SLOTS));
            assert_eq!(back.pending(), Ok(L::SLOTS), "a full ring is no fault");
            back.consume(usize::try_from(L::SLOTS).expect("a ring is small"));
        }
    }
}

#[test]
fn a_request_producer_beyond_the_ring_is_a_fault_in_every_ring() {
    hostile_request_producers::<Tx>();
    hostile_request_producers::<Rx>();
    hostile_request_producers::<Control>();
}

#[test]
fn slots_whose_requests_have_no_response_cannot_hold_new_ones() {
    let [front, back, peer] = page::handles();
    let _front = FrontRing::<Tx>::new(front);
    let mut back = BackRing::<Tx>::attach(back).expect("a new ring is sound");
    set(&peer, REQ_PROD, 200);
    back.consume(200);
    set(&peer, REQ_PROD, 256);
    assert_eq!(back.pending(), Ok(56));
    set(&peer, REQ_PROD, 257);
    assert_eq!(back.pending(), Err(overrun::<Tx>(257, 57)));
    back.push_response(Tx::response(0));
    assert_eq!(back.pending(), Ok(57), "a response to one request makes room for one");
}

#[test]
fn more_responses_than_requests_are_a_fault_of_the_backend() {
    for start in STARTS {
        for jump in [1 << 31, u32::MAX, 11, 256, 257] {
            let [front, peer] = page::handles();
            let mut front = FrontRing::<Rx>::starting_at(front, start);
            for number in 0..10 {
                front.push_request(Rx::request(number));
            }
            let _ = front.publish_requests();
            front.push_request(Rx::request(10));
            // The eleventh is pushed but not published: no honest backend can have responded to it.
            let produced = start.wrapping_add(jump);
            set(&peer, RSP_PROD, produced);
            let seen = front.peek_responses(&mut [Rx::response(0); 300]);
            assert_eq!(seen, Err(overrun::<Rx>(produced, jump)));
            assert_eq!(front.arm(1), Waiting::Enough);
            set(&peer, RSP_PROD, start.wrapping_add(10));
            assert_eq!(front.peek_responses(&mut [Rx::response(0); 300]), Ok(10));
        }
    }
}

#[test]
fn an_arbitrary_event_index_causes_at_most_one_event_per_publish() {
    for event in [0, 5, 6, 1 << 31, u32::MAX] {
        let [front, back, peer] = page::handles();
        let mut front = FrontRing::<Tx>::new(front);
        let mut back = BackRing::<Tx>::attach(back).expect("a new ring is sound");
        set(&peer, REQ_EVENT, event);
        set(&peer, RSP_EVENT, event);
        for number in 0..256 {
            front.push_request(Tx::request(number));
            let _ = front.publish_requests();
        }
        back.consume(256);
        for number in 0..256 {
            back.push_response(Tx::response(number));
            let _ = back.publish_responses();
        }
        assert_eq!(front.peek_responses(&mut [Tx::response(0); 300]), Ok(256));
    }
}

#[test]
fn a_ring_whose_responses_are_ahead_of_its_requests_is_not_attached() {
    let [front, back, peer] = page::handles();
    let _front = FrontRing::<Rx>::new(front);
    set(&peer, RSP_PROD, 1);
    let attached = BackRing::<Rx>::attach(back);
    assert_eq!(attached.err(), Some(overrun::<Rx>(0, u32::MAX)));
}

/// A check and a use of the producer must be of one value (XSA-155): the peer flips it between a
/// valid and an invalid one all the time, and every read yields one or the other, never a mixture.
#[test]
fn a_changing_producer_is_read_once_per_poll() {
    let [front, back, peer] = page::handles();
    let _front = FrontRing::<Tx>::new(front);
    let back = BackRing::<Tx>::attach(back).expect("a new ring is sound");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                set(&peer, REQ_PROD, 3);
                set(&peer, REQ_PROD, 1 << 31);
            }
        });
        let mut window = [Tx::request(0); 300];
        for _ in 0..READS {
            match back.peek_requests(&mut window) {
                Ok(seen) => assert!(seen == (3, 3) || seen == (0, 0)),
                Err(fault) => assert_eq!(fault, overrun::<Tx>(1 << 31, 1 << 31)),
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
