//! A frontend and a backend on the emulated hypervisor, each in a thread that sleeps whenever it
//! may: frames go to the backend and come back, byte for byte and in order.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending, PoolBudget, PortQueue,
    QueueCounters, Wakers, Woken,
};
use ringway_emu::{EmuEvent, EmuHypervisor, EmuMemory, NewDomain, Role};
use ringway_hypervisor::{Access, Direction, EventChannel, ForeignMemory, Hypervisor, QueueEvents};
use ringway_netback::{FrontendFeatures, QueueParts};
use ringway_wire::DomId;
use ringway_xenbus::{EventPorts, QueueConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::host::Host;

type Front = ringway_netfront::VifQueue<ringway_emu::EmuGrants, EmuEvent>;
type Back = ringway_netback::VifQueue<EmuMemory, EmuEvent>;

const FRAMES: usize = 4000;
const BACKEND: DomId = DomId(0);
/// Only a lost event causes such a long wait.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

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
    port.wakers(&mut |fd, _| fds.push(fd.try_clone_to_owned().expect("descriptors are left")));
    fds
}

fn sleep_unless_work(port: &mut impl PortQueue, wakers: &[OwnedFd]) {
    if port.arm().expect("both ends are honest") == Pending::Nothing {
        let mut fds: Vec<_> = wakers.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let count = poll(&mut fds, Some(&PATIENCE)).expect("poll works");
        assert!(count > 0, "an event was lost");
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
