//! A frontend and a backend on the emulated hypervisor, each in a thread that sleeps whenever it
//! may: frames go to the backend and come back, byte for byte and in order.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending, PoolBudget, PortQueue,
    QueueCounters, Wakers, Woken,
};
use ringway_emu::{EmuEvent, EmuHypervisor, EmuMemory, NewDomain, Role};
use ringway_hypervisor::{
    Access, Direction, EventChannel, ForeignMemory, GrantCopy, GrantStatus, Hypervisor, PageCopy,
    QueueEvents,
};
use ringway_netback::{FrontendFeatures, QueueParts};
use ringway_netfront::Slabs;
use ringway_sys::SharedPages;
use ringway_sys::poll::{readable, wait};
use ringway_wire::netif::{TX_SLOT_LEN, TxRequest};
use ringway_wire::ring::{REQ_PROD, SLOTS};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};
use ringway_xenbus::{EventPorts, QueueConfig};

use crate::host::Host;

type Front = ringway_netfront::VifQueue<ringway_emu::EmuGrants, EmuEvent>;
type Back = ringway_netback::VifQueue<EmuMemory, EmuEvent>;

const FRAMES: usize = 4000;
const BACKEND: DomId = DomId(0);
/// Only a lost event causes such a long wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn frontend(guest: &EmuHypervisor) -> Front {
    let event = || guest.alloc_unbound(BACKEND).expect("ports are left");
    let events = QueueEvents::Split { tx: event(), rx: event() };
    let grants = guest.grants().expect("a guest has grants");
    let mut front = Front::new(grants, BACKEND, events, Arc::new(QueueCounters::default()))
        .expect("the guest has memory");
    front.set_caps(OffloadCaps::ALL);
    front
}

fn backend(host: &EmuHypervisor, guest: DomId, queue: QueueConfig) -> Back {
    let EventPorts::Split { tx, rx } = queue.events else { panic!("two channels were made") };
    let bind = |port| host.bind_interdomain(guest, port).expect("the port is meant for us");
    let mut memory = host.memory().expect("domain 0 reaches other domains' memory");
    let [tx_ring, rx_ring] = [queue.tx_ring_ref, queue.rx_ring_ref]
        .map(|gref| memory.map(guest, gref, Access::ReadWrite).expect("the rings are granted"));
    let parts = QueueParts {
        peer: guest,
        memory,
        tx_ring,
        rx_ring,
        events: QueueEvents::Split { tx: bind(tx), rx: bind(rx) },
        features: FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true },
        multicast: None,
        headroom: Arc::default(),
        counters: Arc::new(QueueCounters::default()),
    };
    Back::attach(parts).expect("new rings are sound")
}

/// A guest with enough memory for the buffers of a queue.
fn roomy_guest(host: &Host) -> EmuHypervisor {
    let new = NewDomain { domid: None, memory_bytes: 600 * 4096, role: Role::Guest };
    host.connect(host.toolstack().create_domain(new).expect("there is room"))
}

/// The descriptors of a port, to sleep on.
fn wakers(port: &impl Wakers) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    port.wakers(&mut |fd| fds.push(fd.try_clone_to_owned().expect("descriptors are left")));
    fds
}

fn sleep_unless_work(port: &mut impl PortQueue, wakers: &[OwnedFd]) {
    if port.arm().expect("both ends are honest") == Pending::Nothing {
        let sources: Vec<_> = wakers.iter().map(|fd| readable((), fd)).collect();
        let ready = wait(&sources, Some(PATIENCE)).expect("poll works");
        assert!(!ready.is_empty(), "an event was lost");
    }
    port.woken(Woken::Unknown).expect("events can be cleared");
}

/// Sends every frame back, until all have passed.
fn echo(mut back: Back) {
    let fds = wakers(&back);
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let (mut frames, mut waiting) = (FrameBatch::new(), FrameQueue::new());
    let mut taken = 0;
    while taken < FRAMES || !waiting.is_empty() {
        let before = (taken, waiting.len());
        if waiting.len() < 64 {
            back.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the guest is honest");
        }
        taken += frames.len();
        waiting.extend(frames.drain(..));
        back.egress(&mut waiting, &mut pool).expect("the guest is honest");
        if (taken, waiting.len()) == before {
            sleep_unless_work(&mut back, &fds);
        }
    }
}

fn len_of(frame: usize) -> usize {
    match frame % 16 {
        0 => 14 + (frame * 7919) % 65_000,
        1..=3 => 14 + (frame * 31) % 9000,
        _ => 14 + (frame * 13) % 1500,
    }
}

fn byte_of(frame: usize, at: usize) -> u8 {
    u8::try_from((frame * 37 + at * 3 + at / 255) % 256).expect("a byte")
}

#[test]
fn frames_travel_to_the_backend_and_back() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let guest = roomy_guest(&host);
    let mut front = frontend(&guest);
    let back = backend(&toolstack, guest.domid(), front.config());
    thread::scope(|scope| {
        scope.spawn(|| echo(back));
        let fds = wakers(&front);
        let mut pool = FramePool::new(PoolBudget::new(16 << 20));
        let (mut frames, mut waiting) = (FrameBatch::new(), FrameQueue::new());
        let (mut sent, mut arrived) = (0, 0);
        while arrived < FRAMES {
            while sent < FRAMES && waiting.len() < 32 {
                let mut frame = pool.take(len_of(sent)).expect("the pool has room");
                let bytes = frame.bytes_mut().iter_mut().enumerate();
                bytes.for_each(|(at, byte)| *byte = byte_of(sent, at));
                waiting.push_back(frame);
                sent += 1;
            }
            let queued = waiting.len();
            front.egress(&mut waiting, &mut pool).expect("the backend is honest");
            front.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the backend is honest");
            if frames.is_empty() && waiting.len() == queued {
                sleep_unless_work(&mut front, &fds);
            }
            for frame in frames.drain(..) {
                assert_eq!(frame.len(), len_of(arrived));
                let bytes = frame.bytes().iter().enumerate();
                assert!(bytes.clone().all(|(at, byte)| *byte == byte_of(arrived, at)));
                arrived += 1;
                pool.recycle(frame);
            }
        }
    });
    front.close().expect("the backend is gone and holds nothing");
}

#[test]
fn a_frontend_outlives_its_backend_and_connects_to_the_next() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let guest = roomy_guest(&host);
    let mut front = frontend(&guest);
    let config = front.config();
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let first = backend(&toolstack, guest.domid(), config);
    let mut waiting: FrameQueue = (0..10)
        .map(|number| {
            let mut frame = pool.take(60).expect("the pool has room");
            frame.bytes_mut().fill(number);
            frame
        })
        .collect();
    front.egress(&mut waiting, &mut pool).expect("no backend is at fault");
    drop(first);
    host.settle();

    let mut next = backend(&toolstack, guest.domid(), config);
    let mut frames = FrameBatch::new();
    next.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the guest is honest");
    let numbers: Vec<u8> = frames.iter().map(|frame| frame.bytes()[0]).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<u8>>());
    assert!(front.close().is_err(), "the next one holds the rings");
}

#[test]
fn a_kick_reaches_its_direction() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let guest = roomy_guest(&host);
    let [tx, rx] = [(); 2].map(|()| guest.alloc_unbound(BACKEND).expect("ports are left"));
    let bind = |event: &EmuEvent| {
        toolstack.bind_interdomain(guest.domid(), event.port()).expect("the port is meant for us")
    };
    let back = QueueEvents::Split { tx: bind(&tx), rx: bind(&rx) };
    back.notify(Direction::Rx).expect("the guest is there");
    assert!(!tx.ack().expect("it can be read") && rx.ack().expect("it can be read"));
    back.notify(Direction::Tx).expect("the guest is there");
    assert!(tx.ack().expect("it can be read") && !rx.ack().expect("it can be read"));
}

/// A backend copies into the pages from which a guest sends, and maps them to write.
#[test]
fn a_backend_cannot_write_to_pages_that_a_guest_sends_from() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let new = NewDomain { domid: None, memory_bytes: 1000 * 4096, role: Role::Guest };
    let guest = host.connect(host.toolstack().create_domain(new).expect("there is room"));
    let domid = guest.domid();
    let mut grants = guest.grants().expect("a guest has grants");
    let mut front = frontend(&guest);
    let slabs = Slabs::new(&mut grants, BACKEND).expect("the guest has memory");
    front.send_from(&slabs);

    // A head of a page, and a slab full of bytes.
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut end = slabs.page_pool().take().expect("all of them are free");
    let len = end.len().min(60_000);
    end.truncate(len);
    let slab = end
        .kept_pages()
        .expect("they are our own")
        .memory()
        .downcast_ref::<SharedPages>()
        .expect("slabs are shared");
    let slab = slab.clone();
    let bytes: Vec<u8> = (0..len).map(|at| byte_of(0, at)).collect();
    slab.copy_from(end.pieces()[0].at, &bytes);
    let at = end.pieces()[0].at;
    let mut frame = pool.take(65_000).expect("the pool has room");
    frame.set_len(PAGE_SIZE);
    frame.bytes_mut().fill(7);
    frame.set_end(end);
    front.egress(&mut FrameQueue::from([frame]), &mut pool).expect("the backend does nothing");

    let mut memory = toolstack.memory().expect("domain 0 reaches other domains' memory");
    let config = front.config();
    let map = |memory: &mut EmuMemory, gref, access| memory.map(domid, gref, access);
    let ring = map(&mut memory, config.tx_ring_ref, Access::ReadWrite).expect("it is granted");
    let count = ring.pages().load(REQ_PROD, Ordering::Acquire);
    let requests = (0..usize::try_from(count).expect("few"))
        .map(|slot| ring.pages().read::<TxRequest>(SLOTS + slot * TX_SLOT_LEN));
    let grefs: Vec<GrantRef> = requests.map(|request| GrantRef(request.gref)).collect();
    assert_eq!(grefs.len(), 1 + len.div_ceil(PAGE_SIZE), "a page for the head, and the slab's");

    let status = GrantStatus::GeneralError;
    for gref in grefs {
        let copy = GrantCopy { gref, offset: 0, len: 64, local: 0, local_offset: 0, status };
        let mut ops = [copy];
        memory.copy_to_peer(domid, &mut ops, &[[0xff; 64]]).expect("the call is sound");
        assert_eq!(ops[0].status, GrantStatus::PermissionDenied, "{gref}");
        let across = PageCopy {
            from: domid,
            from_gref: config.rx_ring_ref,
            from_offset: 0,
            to_gref: gref,
            to_offset: 0,
            len: 64,
            status,
        };
        let mut across = [across];
        memory.copy_between_peers(domid, &mut across).expect("the call is sound");
        assert_eq!(across[0].status, GrantStatus::PermissionDenied, "{gref}");
        assert!(map(&mut memory, gref, Access::ReadWrite).is_err(), "{gref}");
        // Reading is what they are granted for.
        let (mut ops, mut read) = ([copy], [[0; 64]]);
        memory.copy_from_peer(domid, &mut ops, &mut read).expect("the call is sound");
        assert_eq!(ops[0].status, GrantStatus::Okay);
        assert_ne!(read[0], [0xff; 64]);
    }
    let mut left = vec![0; len];
    slab.copy_to(at, &mut left);
    assert!(left == bytes, "the guest's bytes are as it wrote them");
}
