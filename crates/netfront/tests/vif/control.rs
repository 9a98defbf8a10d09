//! A guest that wishes to receive by its own hash, with our backend and with hostile ones.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use ringway_datapath::{
    Budget, FlowHash, FrameBatch, FramePool, FrameQueue, Offload, Pending, PoolBudget, PortQueue,
    QueueDown, Woken,
};
use ringway_hypervisor::{Access, EventChannel, Hypervisor};
use ringway_loopback::LoopbackEvent;
use ringway_netback::{Changes, ControlParts, ControlRole};
use ringway_netfront::{HashWish, Progress, ResponseFault, WishRefused};
use ringway_ring::{BackRing, Control, RingFault};
use ringway_steering::QueueIndex;
use ringway_steering::toeplitz::{HASH_TYPES_KNOWN, ToeplitzSteering};
use ringway_wire::netif::{
    CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_NOT_SUPPORTED, CTRL_STATUS_SUCCESS,
    CTRL_TYPE_SET_HASH_ALGORITHM, CTRL_TYPE_SET_HASH_FLAGS, CTRL_TYPE_SET_HASH_KEY,
    CTRL_TYPE_SET_HASH_MAPPING, CTRL_TYPE_SET_HASH_MAPPING_SIZE, CtrlRequest, CtrlResponse,
};
use ringway_wire::ring::RSP_PROD;

use crate::backend::fault_of;
use crate::frames::{frame, pattern};
use crate::joined::{Front, pair};
use crate::machine::{GUEST, HOST, Machine};

fn wish(mapping: &[u16]) -> HashWish {
    let mapping = mapping.iter().copied().collect();
    HashWish { key: [7; 40].into(), types: HASH_TYPES_KNOWN, mapping }
}

/// A control ring of a queue, and the backend's end of its channel.
fn add_control(machine: &Machine, front: &mut Front) -> (BackRing<Control>, LoopbackEvent) {
    let event = machine.guest.alloc_unbound(HOST).expect("a port is left");
    let config = front.add_control(HOST, event).expect("a new guest has memory");
    let event = machine.host.bind_interdomain(GUEST, config.event);
    let page = machine.map(config.ring_ref, Access::ReadWrite);
    let ring = BackRing::attach(page.pages().clone()).expect("a new ring is sound");
    (ring, event.expect("the port is for the host"))
}

fn poll(front: &mut Front) -> Result<(), QueueDown> {
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    front.ingress(Budget::BATCH, &mut pool, &mut FrameBatch::new())
}

#[test]
fn our_backend_carries_out_a_wish_and_shows_the_hash() {
    let (machine, mut front, mut back) = pair();
    let event = machine.guest.alloc_unbound(HOST).expect("a port is left");
    let config = front.add_control(HOST, event).expect("a new guest has memory");
    let published: Arc<Mutex<Option<ToeplitzSteering>>> = Arc::default();
    let publish_to = Arc::clone(&published);
    let event = machine.host.bind_interdomain(GUEST, config.event);
    let changes = Arc::new(Changes::new(Waker::noop().clone()));
    let joined = back.join_control(ControlRole::Serves(ControlParts {
        ring: machine.map(config.ring_ref, Access::ReadWrite),
        event: event.expect("the port is for the host"),
        settings: Arc::default(),
        queues: 4,
        publish: Box::new(move |settings| {
            let steering = settings.steering().cloned();
            *publish_to.lock().expect("no test panics with the lock") = steering;
        }),
        changes: Arc::clone(&changes),
        staging: None,
    }));
    joined.expect("a new ring is sound");
    assert_eq!(front.progress(), Progress::Done);
    front.wish(wish(&[3, 1, 2])).expect("no fault");
    let mut messages = 0;
    while front.progress() == Progress::Waiting {
        assert_eq!(front.arm().expect("no fault"), Pending::Nothing);
        back.woken(Woken::Unknown).expect("no fault");
        assert_eq!(front.arm().expect("no fault"), Pending::Nothing, "it is not noted");
        changes.note(|| ());
        back.woken(Woken::Unknown).expect("no fault");
        assert_eq!(front.arm().expect("no fault"), Pending::Work);
        front.woken(Woken::Unknown).expect("no fault");
        messages += 1;
    }
    assert_eq!((front.progress(), messages), (Progress::Done, 5));
    let steering = published.lock().expect("no test panics with the lock").clone();
    let steering = steering.expect("an algorithm is selected");
    let queues = [0, 1, 2, 3].map(|hash| steering.queue_of(Some(hash), 4));
    assert_eq!(queues, [3, 1, 2, 3].map(QueueIndex));
    assert_eq!(steering.types(), HASH_TYPES_KNOWN);

    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut hashed = frame(&mut pool, &pattern(1, 60), Offload::NONE);
    hashed.flow = Some(FlowHash { value: 1, kind: 1 });
    let mut leaving = FrameQueue::from([hashed]);
    back.egress(&mut leaving, &mut pool).expect("no fault");
    let mut arrived = FrameBatch::new();
    front.ingress(Budget::BATCH, &mut pool, &mut arrived).expect("no fault");
    assert_eq!(arrived[0].bytes(), pattern(1, 60));
    drop(back);
    front.close().expect("the backend has released all pages");
}

/// What the messages of a wish are, and what they name.
#[test]
fn a_wish_is_one_message_at_a_time() {
    let (machine, mut front, _back) = pair();
    let (mut ring, event) = add_control(&machine, &mut front);
    front.wish(wish(&[1, 0])).expect("no fault");
    assert!(event.ack().expect("the channel is there"), "the backend is notified");
    let mut kinds = Vec::new();
    loop {
        let mut requests = [CtrlRequest::default(); 8];
        let (count, _) = ring.peek_requests(&mut requests).expect("our frontend is honest");
        if count == 0 {
            break;
        }
        assert_eq!(count, 1, "one is in flight");
        ring.consume(1);
        let [CtrlRequest { id, kind, data }, ..] = requests;
        kinds.push(kind);
        let named: &[u8] = match kind {
            CTRL_TYPE_SET_HASH_MAPPING => &[1, 0, 0, 0, 0, 0, 0, 0],
            CTRL_TYPE_SET_HASH_KEY => &[7; 40],
            _ => &[],
        };
        if !named.is_empty() {
            let page = machine.map(ringway_wire::GrantRef(data[0]), Access::ReadOnly);
            let mut bytes = vec![0; named.len()];
            page.pages().copy_to(0, &mut bytes);
            assert_eq!(bytes, named);
        }
        ring.push_response(CtrlResponse { id, kind, status: CTRL_STATUS_SUCCESS, data: 0 });
        let _ = ring.publish_responses();
        poll(&mut front).expect("no fault");
    }
    assert_eq!(
        kinds,
        [
            CTRL_TYPE_SET_HASH_ALGORITHM,
            CTRL_TYPE_SET_HASH_MAPPING_SIZE,
            CTRL_TYPE_SET_HASH_MAPPING,
            CTRL_TYPE_SET_HASH_KEY,
            CTRL_TYPE_SET_HASH_FLAGS,
        ]
    );
    assert_eq!(front.progress(), Progress::Done);
}

/// The backend's response to the message in flight.
fn respond(ring: &mut BackRing<Control>, status: u32) -> CtrlRequest {
    let mut requests = [CtrlRequest::default()];
    assert_eq!(ring.peek_requests(&mut requests), Ok((1, 1)));
    ring.consume(1);
    let [CtrlRequest { id, kind, .. }] = requests;
    ring.push_response(CtrlResponse { id, kind, status, data: 0 });
    let _ = ring.publish_responses();
    requests[0]
}

#[test]
fn a_refused_wish_ends_and_another_one_may_follow() {
    let (machine, mut front, _back) = pair();
    let (mut ring, _event) = add_control(&machine, &mut front);
    let refusal = front.refusal();
    for status in [CTRL_STATUS_NOT_SUPPORTED, CTRL_STATUS_INVALID_PARAMETER, 77, u32::MAX] {
        front.wish(wish(&[1, 0])).expect("no fault");
        assert_eq!(refusal.get(), None);
        let kind = respond(&mut ring, status).kind;
        poll(&mut front).expect("no fault");
        assert_eq!(front.progress(), Progress::Refused(WishRefused { kind, status }));
        assert_eq!(refusal.get(), Some(WishRefused { kind, status }), "others see it, too");
        assert_eq!(ring.pending(), Ok(0), "no message follows");
    }
}

#[test]
fn a_wish_replaces_one_that_is_under_way() {
    let (machine, mut front, _back) = pair();
    let (mut ring, _event) = add_control(&machine, &mut front);
    front.wish(wish(&[1, 0])).expect("no fault");
    respond(&mut ring, CTRL_STATUS_SUCCESS);
    poll(&mut front).expect("no fault");
    front.wish(wish(&[1, 1])).expect("no fault");
    // The message that is in flight is of the first wish, and what happens to it means nothing.
    assert_eq!(respond(&mut ring, 77).kind, CTRL_TYPE_SET_HASH_MAPPING_SIZE);
    poll(&mut front).expect("no fault");
    assert_eq!(respond(&mut ring, CTRL_STATUS_SUCCESS).kind, CTRL_TYPE_SET_HASH_ALGORITHM);
    assert_eq!(front.progress(), Progress::Waiting);
}

#[test]
fn a_response_to_no_message_is_a_fault() {
    //= netif.h:ctrl-response
    for (id_by, kind_by) in [(1, 0), (0, 1), (u16::MAX, 0)] {
        let (machine, mut front, _back) = pair();
        let (mut ring, _event) = add_control(&machine, &mut front);
        front.wish(wish(&[1, 0])).expect("no fault");
        let mut request = [CtrlRequest::default()];
        assert_eq!(ring.peek_requests(&mut request), Ok((1, 1)));
        let [CtrlRequest { id, kind, .. }] = request;
        let (id, kind) = (id.wrapping_add(id_by), kind.wrapping_add(kind_by));
        ring.consume(1);
        ring.push_response(CtrlResponse { id, kind, status: CTRL_STATUS_SUCCESS, data: 0 });
        let _ = ring.publish_responses();
        let down = poll(&mut front).expect_err("no such message is outstanding");
        assert_eq!(fault_of::<ResponseFault>(&down), ResponseFault::NoMessage { id });
    }
}

#[test]
fn a_second_response_is_a_fault() {
    //= netif.h:producer-bound
    let (machine, mut front, _back) = pair();
    let event = machine.guest.alloc_unbound(HOST).expect("a port is left");
    let config = front.add_control(HOST, event).expect("a new guest has memory");
    let page = machine.map(config.ring_ref, Access::ReadWrite);
    front.wish(wish(&[1, 0])).expect("no fault");
    for produced in [2, 1 << 31, u32::MAX] {
        page.pages().store(RSP_PROD, produced, Ordering::SeqCst);
        let down = poll(&mut front).expect_err("there is one message");
        assert_eq!(fault_of::<RingFault>(&down).ring, "control");
    }
}
