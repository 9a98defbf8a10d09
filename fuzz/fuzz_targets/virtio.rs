//! The device's end of a pair of virtio-net queues, for a guest that writes anything into its
//! queues, indirect tables and buffers. A chain is no longer than its queue and has no more bytes
//! than a frame, no frame holds bytes that the guest did not send, and no buffer is lost.

#![no_main]

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{Budget, FrameBatch, FrameQueue, PortQueue, QueueDown};
use ringway_fuzz::Input;
use ringway_fuzz::machine::{STALE, StalePool, check_fresh};
use ringway_sys::SharedPages;
use ringway_sys::eventfd::{EventFd, PeerCounters};
use ringway_sys::guest_memory::{GuestMemory, GuestView, Region};
use ringway_virtback::{PairControl, PairFault, PairParts, QueuePair, QueueParts};
use ringway_virtfront::{FrontMemory, MemoryShape};
use ringway_virtio::{
    Access, Buffers, DeviceHalf, Format, QueueAreas, QueueOptions, QueuePlace, READABLE_BYTES_MAX,
};
use ringway_wire::virtio::{
    Features, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC,
};

/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// Bytes of each of two adjacent regions.
const LEN: u64 = 64 << 10;
/// The distance between the six areas of the queues: a page each.
const PAGE: u64 = 4096;

/// Segmentation of TCP and of UDP are chosen together.
const CHOICES: [&[u32]; 8] = [
    &[VIRTIO_F_RING_PACKED],
    &[VIRTIO_RING_F_EVENT_IDX],
    &[VIRTIO_RING_F_INDIRECT_DESC],
    &[VIRTIO_NET_F_MRG_RXBUF],
    &[VIRTIO_NET_F_CSUM],
    &[VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_USO],
    &[VIRTIO_NET_F_GUEST_CSUM],
    &[VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6],
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let memory = MEMORY.get_or_init(guest_memory);
    let view = GuestView::new(Arc::clone(memory));
    view.copy_from(0, &[0; 2 * LEN as usize]).expect("all of it");
    let set = input.u8();
    let bits = CHOICES.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
    let bits: Vec<u32> =
        bits.flat_map(|(_, bits)| *bits).copied().chain([VIRTIO_F_VERSION_1]).collect();
    let features = Features::of(&bits);
    let size = 1 << input.below(6);
    match input.flag() {
        true => serve_chains(&mut input, memory, &view, features, size),
        false => serve_frames(&mut input, memory, &view, features, size),
    }
});

static MEMORY: OnceLock<Arc<GuestMemory>> = OnceLock::new();

/// Two regions, in reverse order in their file.
fn guest_memory() -> Arc<GuestMemory> {
    let shape = MemoryShape { pairs: 1, format: Format::Split, size: 64, frame_len_max: 1514 };
    let file = FrontMemory::new(shape).expect("a file").region().expect("a descriptor");
    let region = |at: u64, fd: OwnedFd| Region {
        guest_address: at,
        user_address: at,
        len: LEN,
        file_offset: LEN - at,
        fd,
    };
    let second = file.fd.try_clone().expect("a descriptor");
    Arc::new(GuestMemory::map(vec![region(0, file.fd), region(LEN, second)]).expect("sound"))
}

fn place(size: u16, queue: u64) -> QueuePlace {
    let [descriptors, driver, device] = [0, 1, 2].map(|area| (3 * queue + area) * PAGE);
    QueuePlace { size, descriptors, driver, device }
}

/// Writes anything anywhere, often into the queues.
fn scribble(view: &GuestView, input: &mut Input<'_>) {
    let page = u64::try_from(input.below(9)).expect("a page") * PAGE;
    let offset = match input.u8() % 4 {
        0 => input.below(8),
        1 => 16 * input.below(64),
        2 => input.below(4096),
        _ => usize::from(input.u16()),
    };
    let len = usize::from(input.u8() % 64);
    let bytes: Vec<u8> =
        input.bytes(len).iter().map(|byte| if *byte == STALE { 0 } else { *byte }).collect();
    let at = page + u64::try_from(offset).expect("an offset");
    view.copy_from(at.min(2 * LEN - 64), &bytes).expect("within");
}

/// Takes and uses chains of the queues themselves.
fn serve_chains(
    input: &mut Input<'_>,
    memory: &GuestMemory,
    view: &GuestView,
    features: Features,
    size: u16,
) {
    let options = QueueOptions::of(features);
    let access = input.choose(&[Access::Readable, Access::Writable]);
    let areas: QueueAreas<SharedPages> =
        QueueAreas::find(memory, options.format, place(size, 0)).expect("within");
    let Ok(mut device) = DeviceHalf::attach(areas, options, access, input.u32()) else { return };
    let mut buffers = Buffers::new(size);
    let mut taken = std::collections::VecDeque::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            return;
        }
        match input.u8() % 6 {
            0 | 1 => scribble(view, input),
            2 | 3 => {
                if device.poll().is_err() {
                    return;
                }
                match device.take(view, &mut buffers) {
                    Ok(Some(chain)) => taken.push_back(chain),
                    // The buffers still hold an earlier chain.
                    Ok(None) => continue,
                    Err(_) => return,
                }
                assert!(buffers.list().len() <= usize::from(size));
                assert!(access == Access::Writable || buffers.bytes() <= READABLE_BYTES_MAX);
                assert!(taken.len() <= usize::from(size), "more chains than the queue has");
                for buffer in buffers.list() {
                    buffer.address.checked_add(u64::from(buffer.len)).expect("no buffer wraps");
                }
            }
            4 => {
                let position = device.position();
                if device.take(view, &mut buffers).is_err() {
                    return;
                }
                device.rewind(position);
            }
            _ => {
                let count = input.below(4);
                for chain in taken.drain(..count.min(taken.len())) {
                    device.push_used(chain, input.u32());
                }
                let _ = device.publish();
                let _ = device.arm(ringway_virtio::NotifyWhen::Any);
            }
        }
    }
}

/// Moves frames through the pair.
fn serve_frames(
    input: &mut Input<'_>,
    memory: &Arc<GuestMemory>,
    view: &GuestView,
    features: Features,
    size: u16,
) {
    let bell = EventFd::new().expect("a descriptor");
    let queue = |number| QueueParts {
        place: place(size, number),
        base: if features.has(VIRTIO_F_RING_PACKED) { 1 << 15 } else { 0 },
        kick: bell.share().expect("a descriptor"),
        call: None,
        log: None,
        inflight: None,
    };
    let parts = PairParts {
        memory: Arc::clone(memory),
        features,
        tx: queue(0),
        rx: queue(1),
        control: Arc::new(PairControl::new(true)),
        counters: Arc::default(),
        calls: PeerCounters::default(),
    };
    let mut pair = QueuePair::attach(parts).expect("the places are sound");
    let mut pool = StalePool::new();
    let mut waiting = FrameQueue::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let stepped = match input.u8() % 6 {
            0 | 1 => {
                scribble(view, input);
                Ok(())
            }
            2 | 3 => take_frames(&mut pair, input, &mut pool, features),
            4 => {
                pool.fill(&mut waiting, input);
                pair.egress(&mut waiting, &mut pool.pool)
            }
            _ => pair.arm().map(|_| ()),
        };
        match stepped {
            Ok(()) => {}
            Err(QueueDown::Peer(fault)) => {
                assert!(fault.is::<PairFault>());
                break;
            }
            Err(QueueDown::Host(error)) => panic!("the host did nothing wrong: {error}"),
        }
    }
    waiting.drain(..).for_each(|frame| pool.recycle(frame));
    pool.check_and_drop();
}

/// Takes frames in, sends them back to the guest if the input says so, and checks the others.
fn take_frames(
    pair: &mut QueuePair,
    input: &mut Input<'_>,
    pool: &mut StalePool,
    features: Features,
) -> Result<(), QueueDown> {
    let mut batch = FrameBatch::new();
    let mut stepped = pair.ingress(Budget::BATCH, &mut pool.pool, &mut batch);
    if stepped.is_ok() && input.flag() {
        // The guest sends to itself.
        let mut leaving: FrameQueue = batch.drain(..).collect();
        stepped = pair.egress(&mut leaving, &mut pool.pool);
        leaving.drain(..).for_each(|frame| pool.recycle(frame));
    }
    for mut frame in batch.drain(..) {
        pool.pool.complete(&mut frame).expect("the guest's memory is there");
        // A checksum that is completed here may have any value.
        if !features.has(VIRTIO_NET_F_CSUM) {
            check_fresh(&frame);
        }
        pool.recycle(frame);
    }
    stepped = stepped.and_then(|()| pair.settle(&mut pool.pool));
    pool.pool.end_loans();
    stepped
}
