//! A guest whose pages its backend keeps mapped: with our backend, with one that does not, and with
//! hostile ones.

use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, Offload, PoolBudget, PortQueue, QueueDown,
    Woken,
};
use ringway_hypervisor::{Access, Hypervisor};
use ringway_loopback::FaultPoint;
use ringway_netback::{Changes, ControlParts, ControlRole, PageBudget, StagedPages, Staging};
use ringway_netfront::{HashWish, Progress, QueuePages, Slabs};
use ringway_ring::{BackRing, Control};
use ringway_wire::GrantRef;
use ringway_wire::netif::{
    CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_NOT_SUPPORTED, CTRL_STATUS_SUCCESS,
    CTRL_TYPE_ADD_GREF_MAPPING, CTRL_TYPE_GET_GREF_MAPPING_SIZE, CtrlRequest, CtrlResponse,
    GREF_READONLY, GrefEntry,
};
use zerocopy::IntoBytes;

use crate::frames::{frame, pattern};
use crate::joined::{Back, Front, pair};
use crate::machine::{GUEST, HOST, Machine};

/// Pages of a queue, and of the slabs that it sends from.
const PAGES: usize = 512;
const SLABS: usize = 240;

/// Joins both ends by a control ring of the guest's.
fn join(machine: &Machine, front: &mut Front, back: &mut Back, staging: Option<Staging>) {
    let event = machine.guest.alloc_unbound(HOST).expect("a port is left");
    let config = front.add_control(HOST, event).expect("a new guest has memory");
    let event = machine.host.bind_interdomain(GUEST, config.event);
    let joined = back.join_control(ControlRole::Serves(ControlParts {
        ring: machine.map(config.ring_ref, Access::ReadWrite),
        event: event.expect("the port is for the host"),
        settings: Arc::default(),
        queues: 1,
        publish: Box::new(|_| ()),
        changes: Arc::new(Changes::new(Waker::noop().clone())),
        staging,
    }));
    joined.expect("a new ring is sound");
}

fn staging() -> Staging {
    let queues = vec![Arc::<StagedPages>::default()];
    Staging { queues, budget: Arc::new(PageBudget::new(2000)) }
}

/// Has both ends polled as often as the longest list needs it.
fn settle(front: &mut Front, back: &mut Back, pool: &mut FramePool) {
    for _ in 0..200 {
        poll(back, pool);
        poll(front, pool);
    }
}

fn poll(end: &mut impl PortQueue, pool: &mut FramePool) {
    end.woken(Woken::Unknown).expect("both are honest");
    end.ingress(Budget::BATCH, pool, &mut FrameBatch::new()).expect("both are honest");
}

/// Sends frames of these lengths, and compares what arrives.
fn pass(from: &mut impl PortQueue, to: &mut impl PortQueue, lens: &[usize], pool: &mut FramePool) {
    let frames: Vec<Frame> =
        lens.iter().map(|len| frame(pool, &pattern(*len, *len), Offload::NONE)).collect();
    from.egress(&mut FrameQueue::from(frames), pool).expect("both are honest");
    let mut arrived = FrameBatch::new();
    to.ingress(Budget::BATCH, pool, &mut arrived).expect("both are honest");
    assert_eq!(arrived.len(), lens.len());
    for (frame, len) in arrived.drain(..).zip(lens) {
        assert_eq!(frame.bytes(), pattern(*len, *len));
        pool.recycle(frame);
    }
    to.ingress(Budget::BATCH, pool, &mut arrived).expect("both are honest");
}

#[test]
fn our_backend_keeps_all_pages_mapped_and_copies_without_the_hypervisor() {
    let (machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(8 << 20));
    join(&machine, &mut front, &mut back, Some(staging()));
    let slabs = Slabs::new(&mut machine.grants(), HOST).expect("the guest has memory");
    front.send_from(&slabs);
    let staged = front.staged();
    front.stage(vec![front.pages()]).expect("the backend is honest");
    settle(&mut front, &mut back, &mut pool);
    assert_eq!(staged.get(), PAGES + SLABS);
    let of_rings = 3;
    assert_eq!(machine.loopback.holdings_of(HOST).mappings, PAGES + SLABS + of_rings);
    let calls = machine.loopback.passages(GUEST, FaultPoint::CopyCall);
    // More than there are pages.
    for _ in 0..40 {
        pass(&mut front, &mut back, &[60, 1500, 9000, 65_000], &mut pool);
        pass(&mut back, &mut front, &[60, 1500, 9000, 65_000], &mut pool);
    }
    assert_eq!(machine.loopback.passages(GUEST, FaultPoint::CopyCall), calls);
    drop(back);
    front.close().expect("the backend has released all pages");
    slabs.close(&mut machine.grants()).expect("the backend has released all pages");
}

#[test]
fn pages_do_not_end_while_a_backend_has_them_mapped() {
    let (machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    join(&machine, &mut front, &mut back, Some(staging()));
    front.stage(vec![front.pages()]).expect("the backend is honest");
    settle(&mut front, &mut back, &mut pool);
    front.close().expect_err("they are in use");
    assert!(machine.loopback.holdings_of(GUEST).pages_kept >= PAGES);
}

#[test]
fn a_backend_that_maps_nothing_serves_the_guest_as_well() {
    let (machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(8 << 20));
    join(&machine, &mut front, &mut back, None);
    front.stage(vec![front.pages()]).expect("the backend is honest");
    settle(&mut front, &mut back, &mut pool);
    assert_eq!(front.staged().get(), 0);
    pass(&mut front, &mut back, &[60, 9000], &mut pool);
    pass(&mut back, &mut front, &[60, 9000], &mut pool);
    drop(back);
    front.close().expect("the backend has released all pages");
}

/// A control ring, served by the test.
fn served(machine: &Machine, front: &mut Front) -> BackRing<Control> {
    let event = machine.guest.alloc_unbound(HOST).expect("a port is left");
    let config = front.add_control(HOST, event).expect("a new guest has memory");
    let page = machine.map(config.ring_ref, Access::ReadWrite);
    BackRing::attach(page.pages().clone()).expect("a new ring is sound")
}

/// The message in flight, to which the backend responds like this.
fn respond(
    ring: &mut BackRing<Control>,
    front: &mut Front,
    (status, data): (u32, u32),
) -> Result<Option<CtrlRequest>, QueueDown> {
    let mut requests = [CtrlRequest::default(); 2];
    let (count, _) = ring.peek_requests(&mut requests).expect("our frontend is honest");
    assert!(count <= 1, "one is in flight");
    ring.consume(count);
    let [CtrlRequest { id, kind, .. }, _] = requests;
    if count > 0 {
        ring.push_response(CtrlResponse { id, kind, status, data });
        let _ = ring.publish_responses();
    }
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    front.ingress(Budget::BATCH, &mut pool, &mut FrameBatch::new())?;
    Ok((count > 0).then_some(requests[0]))
}

/// The messages for two queues like this one, to a backend that permits so many pages.
fn messages(room: u32) -> Vec<(u16, u32, u32)> {
    let (machine, mut front, _back) = pair();
    let mut ring = served(&machine, &mut front);
    let pages: QueuePages = front.pages();
    front.stage(vec![pages.clone(), pages]).expect("no fault");
    let mut messages = Vec::new();
    let response = (CTRL_STATUS_SUCCESS, room);
    while let Some(request) = respond(&mut ring, &mut front, response).expect("no fault") {
        let CtrlRequest { kind, data: [queue, list, count], .. } = request;
        if (kind, queue, count) == (CTRL_TYPE_ADD_GREF_MAPPING, 0, 512) {
            let page = machine.map(GrantRef(list), Access::ReadWrite);
            let mut entries = [GrefEntry::default(); 512];
            page.pages().copy_to(0, entries.as_mut_bytes());
            let (tx, rx) = entries.split_at(256);
            assert!(tx.iter().all(|entry| entry.flags == GREF_READONLY));
            assert!(rx.iter().all(|entry| entry.flags == 0));
        }
        messages.push((kind, queue, count));
        assert!(messages.len() < 20, "{messages:?}");
    }
    assert_eq!(u32::try_from(front.staged().get()), Ok(2 * room.min(512)));
    messages
}

#[test]
fn no_more_is_asked_for_than_the_backend_permits() {
    //= netif.h:gref-mapping-size
    let (get, add) = (CTRL_TYPE_GET_GREF_MAPPING_SIZE, CTRL_TYPE_ADD_GREF_MAPPING);
    assert_eq!(messages(0), [(get, 0, 0), (get, 1, 0)]);
    assert_eq!(messages(3), [(get, 0, 0), (add, 0, 3), (get, 1, 0), (add, 1, 3)]);
    for room in [512, 513, 1 << 31, u32::MAX] {
        let all = [(get, 0, 0), (add, 0, 512), (get, 1, 0), (add, 1, 512)];
        assert_eq!(messages(room), all, "{room}");
    }
}

#[test]
fn a_message_that_is_refused_is_the_last() {
    for good in 0..4 {
        for status in [CTRL_STATUS_NOT_SUPPORTED, CTRL_STATUS_INVALID_PARAMETER, 77, u32::MAX] {
            let (machine, mut front, _back) = pair();
            let mut ring = served(&machine, &mut front);
            front.stage(vec![front.pages(), front.pages()]).expect("no fault");
            for _ in 0..good {
                let sent = respond(&mut ring, &mut front, (CTRL_STATUS_SUCCESS, 1024));
                assert!(sent.expect("no fault").is_some());
            }
            respond(&mut ring, &mut front, (status, 5)).expect("no fault");
            assert_eq!(respond(&mut ring, &mut front, (0, 0)).expect("no fault"), None);
            assert_eq!(front.staged().get(), good / 2 * PAGES);
        }
    }
}

#[test]
fn a_wish_goes_before_pages_and_is_done_without_them() {
    let (machine, mut front, _back) = pair();
    let mut ring = served(&machine, &mut front);
    front.stage(vec![front.pages()]).expect("no fault");
    front.wish(HashWish::default()).expect("no fault");
    let mut kinds = Vec::new();
    for _ in 0..6 {
        let sent = respond(&mut ring, &mut front, (CTRL_STATUS_SUCCESS, 1024)).expect("no fault");
        kinds.extend(sent.map(|request| request.kind));
    }
    assert_eq!(kinds, [CTRL_TYPE_GET_GREF_MAPPING_SIZE, 7, 5, 6, 3, 2]);
    assert_eq!(front.progress(), Progress::Done);
    respond(&mut ring, &mut front, (CTRL_STATUS_SUCCESS, 0)).expect("no fault");
    assert_eq!(front.staged().get(), PAGES);
}
