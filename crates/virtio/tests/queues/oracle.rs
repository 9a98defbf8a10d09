//! Split queues against another implementation: rust-vmm's crate `virtio-queue`, as the device for
//! our driver, and as the driver for our device.

use std::fs::File;

use ringway_sys::guest_memory::{GuestMemory, GuestView, Region};
use ringway_virtio::{
    Access, Buffer, Buffers, DeviceHalf, DriverHalf, Format, Notify, QueueAreas, QueueOptions,
    QueuePlace,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use crate::ground::{LEN, USER, place, plain};

const SIZE: u16 = 16;
/// Chains of a run: 16-bit indices wrap around.
const CHAINS: u32 = 70_000;
/// The number of rings that rust-vmm's driver fills.
const RINGS: u64 = 300;
/// Entries of a ring, and the most chains in it: rust-vmm's driver places the used ring at entry 30
/// of its available ring.
const RING_SIZE: u16 = 64;
const RING_CHAINS: usize = 30;
/// Where buffers are.
const BUFFERS: u64 = 1 << 20;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// One memory for both implementations, at guest address 0.
fn memory() -> (std::sync::Arc<GuestMemory>, GuestMemoryMmap) {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, LEN).expect("there is memory");
    let file = File::from(fd.try_clone().expect("a descriptor"));
    let region = Region { guest_address: 0, user_address: USER, len: LEN, file_offset: 0, fd };
    let ours = GuestMemory::map(vec![region]).expect("the region is sound");
    let len = usize::try_from(LEN).expect("an address");
    let theirs = (GuestAddress(0), len, Some(FileOffset::new(file, 0)));
    let theirs = GuestMemoryMmap::from_ranges_with_files([theirs]).expect("the region is sound");
    (ours.into(), theirs)
}

fn options(event_idx: bool) -> QueueOptions {
    QueueOptions { event_idx, ..plain(Format::Split) }
}

#[test]
fn our_driver_and_their_device_mean_the_same_by_every_chain() {
    for event_idx in [false, true] {
        for access in [Access::Readable, Access::Writable] {
            drive(options(event_idx), access);
        }
    }
}

fn drive(options: QueueOptions, access: Access) {
    let (ours, theirs) = memory();
    let place = place(SIZE);
    let areas = QueueAreas::find(&ours, Format::Split, place).expect("the place is sound");
    let mut driver = DriverHalf::new(areas, options, access);
    let mut device = Queue::new(SIZE).expect("a power of two");
    let QueuePlace { descriptors, driver: available, device: used, .. } = place;
    let [table, available, used] =
        [descriptors, available, used].map(|it| u32::try_from(it - USER).expect("low"));
    device.set_desc_table_address(Some(table), Some(0));
    device.set_avail_ring_address(Some(available), Some(0));
    device.set_used_ring_address(Some(used), Some(0));
    device.set_event_idx(options.event_idx);
    device.set_ready(true);
    assert!(device.is_valid(&theirs));

    let mut random = fastrand::Rng::with_seed(7);
    let mut done = 0;
    while done < CHAINS {
        let mut posted = Vec::new();
        for _ in 0..random.u32(1..5) {
            let count = random.usize(1..4);
            if driver.free() < count {
                break;
            }
            let buffer =
                || Buffer { address: BUFFERS + random.u64(..1 << 19), len: random.u32(1..2000) };
            let buffers: Vec<Buffer> = std::iter::repeat_with(buffer).take(count).collect();
            posted.push((driver.push(&buffers), buffers));
        }
        // rust-vmm's device requests no kick before its first poll.
        let is_first = done == 0;
        let notify = driver.publish();
        assert!(is_first || options.event_idx || notify == Notify::Peer, "no flag is set");
        let mut written = Vec::new();
        for (id, buffers) in &posted {
            let chain = device.pop_descriptor_chain(&theirs).expect("it was published");
            assert_eq!(chain.head_index(), *id);
            let seen: Vec<(Buffer, bool)> = chain
                .map(|it| (Buffer { address: it.addr().0, len: it.len() }, it.is_write_only()))
                .collect();
            let expected: Vec<(Buffer, bool)> =
                buffers.iter().map(|it| (*it, access == Access::Writable)).collect();
            assert_eq!(seen, expected);
            let len = if access == Access::Writable { buffers[0].len } else { 0 };
            device.add_used(&theirs, *id, len).expect("it is in the ring");
            written.push((*id, len));
        }
        assert!(device.pop_descriptor_chain(&theirs).is_none());
        driver.poll().expect("the device is honest");
        for expected in written {
            let used = driver.take().expect("the device is honest").expect("it was used");
            assert_eq!((used.id, used.len), expected);
            done += 1;
        }
        assert!(driver.take().expect("the device is honest").is_none());
    }
}

#[test]
fn our_device_and_their_driver_mean_the_same_by_every_chain() {
    // rust-vmm's driver fills a ring once.
    for seed in 0..RINGS {
        for access in [Access::Readable, Access::Writable] {
            serve(fastrand::Rng::with_seed(seed), access);
        }
    }
}

fn serve(mut random: fastrand::Rng, access: Access) {
    let (ours, theirs) = memory();
    let queue = MockSplitQueue::create(&theirs, GuestAddress(0x1000), RING_SIZE);
    let user = |address: GuestAddress| USER + address.0;
    let place = QueuePlace {
        size: RING_SIZE,
        descriptors: user(queue.desc_table_addr()),
        driver: user(queue.avail_addr()),
        device: user(queue.used_addr()),
    };
    let areas = QueueAreas::find(&ours, Format::Split, place).expect("the place is sound");
    let mut device = DeviceHalf::attach(areas, options(false), access, 0).expect("it is new");
    let (view, mut buffers) = (GuestView::new(ours), Buffers::new(RING_SIZE));
    let (mut at, mut done) = (0, 0);
    while at < RING_SIZE && done < RING_CHAINS {
        let chains = random_chains(&mut random, access, at, RING_CHAINS - done);
        let descs: Vec<RawDescriptor> = chains.iter().flatten().copied().map(Into::into).collect();
        queue.add_desc_chains(&descs, at).expect("there is room");
        device.poll().expect("the driver is honest");
        for descs in chains {
            let chain =
                device.take(&view, &mut buffers).expect("it is sound").expect("it is there");
            assert_eq!(chain.id, at);
            let expected = descs.iter().map(|it| Buffer { address: it.addr().0, len: it.len() });
            assert!(buffers.list().iter().copied().eq(expected), "{:?}", buffers.list());
            let (id, len) = (u32::from(chain.id), random.u32(..100));
            device.push_used(chain, len);
            assert_eq!(device.publish(), Notify::Peer, "they ask for it");
            let element = queue.used().ring().ref_at(done).expect("it is in the ring").load();
            assert_eq!((element.id(), element.len()), (id, len));
            done += 1;
            assert_eq!(usize::from(queue.used().idx().load()), done);
            at += u16::try_from(descs.len()).expect("a chain is short");
        }
        assert!(device.take(&view, &mut buffers).expect("it is sound").is_none());
    }
}

/// Chains for the descriptors from `at` on: some of them, or all.
fn random_chains(
    random: &mut fastrand::Rng,
    access: Access,
    mut at: u16,
    count_max: usize,
) -> Vec<Vec<Descriptor>> {
    let write = if access == Access::Writable { WRITE } else { 0 };
    let mut chains = Vec::new();
    while at < RING_SIZE && chains.len() < count_max && (chains.is_empty() || random.bool()) {
        let count = random.u16(1..=(RING_SIZE - at).min(4));
        let desc = |index| {
            let has_next = index + 1 < at + count;
            let (flags, next) = if has_next { (write | NEXT, index + 1) } else { (write, 0) };
            let address = BUFFERS + random.u64(..1 << 19);
            Descriptor::new(address, random.u32(1..2000), flags, next)
        };
        chains.push((at..at + count).map(desc).collect());
        at += count;
    }
    chains
}
