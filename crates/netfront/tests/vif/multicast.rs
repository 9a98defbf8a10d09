//! A frontend that gets only the multicast frames that it orders.

use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, MacAddr, MulticastFilter, Pending, PoolBudget,
    PortQueue,
};
use ringway_netback::{Changes, MulticastControl};
use ringway_netfront::GroupOrder;
use ringway_wire::netif::TX_RING_SLOTS;

use crate::joined::{Front, attach};
use crate::machine::{HOST, Machine};

fn group(number: u8) -> MacAddr {
    MacAddr([0x33, 0x33, 0, 0, 0, number])
}

#[test]
fn a_backend_carries_out_the_orders_of_our_frontend_which_gets_its_slots_back() {
    let machine = Machine::new();
    let (front_events, back_events) = machine.channels();
    let front = Front::new(machine.grants(), HOST, front_events, Arc::default());
    let mut front = front.expect("a new guest has memory");
    let filter = Arc::new(MulticastFilter::default());
    let changes = Arc::new(Changes::new(Waker::noop().clone()));
    let control = MulticastControl { filter: Arc::clone(&filter), changes: Arc::clone(&changes) };
    let chosen = (Some(Arc::new(control)), &Arc::default());
    let mut back = attach(&machine, &mut front, back_events, chosen);
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut serve = || {
        let mut frames = FrameBatch::new();
        // A batch has fewer slots than the ring, and its responses are sent by the next call.
        for _ in 0..6 {
            back.ingress(Budget::BATCH, &mut pool, &mut frames).expect("our frontend is honest");
            changes.note(|| ());
        }
        assert!(frames.is_empty(), "an order is no frame");
    };
    let groups: Vec<MacAddr> = (0..64).map(group).collect();
    // More often than the ring has slots.
    for _ in 0..10 {
        //= netif.h:multicast-order
        assert_eq!(front.order_groups(GroupOrder::Add, &groups).ok(), Some(64));
        serve();
        assert!(groups.iter().all(|group| filter.passes(*group)));
        assert_eq!(front.order_groups(GroupOrder::Remove, &groups).ok(), Some(64));
        serve();
        assert!(!groups.iter().any(|group| filter.passes(*group)));
    }
    // Without a backend that responds, the ring is full at some point.
    let pushed = [(); 3].map(|()| front.order_groups(GroupOrder::Add, &groups).ok());
    assert_eq!(pushed, [Some(64), Some(64), Some(0)]);
}

#[test]
fn frames_that_wait_for_room_find_it_if_an_order_took_the_responses() {
    let machine = Machine::new();
    let (front_events, back_events) = machine.channels();
    let front = Front::new(machine.grants(), HOST, front_events, Arc::default());
    let mut front = front.expect("a new guest has memory");
    let mut back = attach(&machine, &mut front, back_events, (None, &Arc::default()));
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut waiting: FrameQueue = (0..300).filter_map(|_| pool.take(100)).collect();
    front.egress(&mut waiting, &mut pool).expect("our backend is honest");
    assert_eq!(waiting.len(), 300 - TX_RING_SLOTS);
    assert_eq!(front.arm().ok(), Some(Pending::Nothing), "no response has come");
    let mut frames = FrameBatch::new();
    for _ in 0..2 {
        back.ingress(Budget::BATCH, &mut pool, &mut frames).expect("our frontend is honest");
        frames.drain(..).for_each(|frame| pool.recycle(frame));
    }
    assert_eq!(front.order_groups(GroupOrder::Add, &[group(1)]).ok(), Some(1));
    assert_eq!(front.arm().ok(), Some(Pending::Work), "there is room");
    front.egress(&mut waiting, &mut pool).expect("our backend is honest");
    assert!(waiting.len() < 300 - TX_RING_SLOTS);
}
