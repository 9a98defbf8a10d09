//! A device that continues where another one was killed, at any moment, from its inflight record.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;
use ringway_virtio::{
    Access, Buffer, Buffers, DeviceHalf, DriverHalf, Format, InflightFault, QueueAreas, QueueFault,
    QueueMemory,
};
use ringway_wire::vhost_user::inflight_split as at;
use ringway_wire::virtio::{UsedElem, avail, used};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::ground::{Ground, plain};

const SIZE: u16 = 8;

/// The memory of a device that is killed after a number of stores: later ones are dropped.
#[derive(Debug, Clone)]
pub(crate) struct KillableMemory {
    pages: SharedPages,
    left: Rc<Cell<usize>>,
}

impl KillableMemory {
    pub(crate) fn new(pages: &SharedPages, left: &Rc<Cell<usize>>) -> KillableMemory {
        KillableMemory { pages: pages.clone(), left: Rc::clone(left) }
    }

    /// The areas of a queue.
    pub(crate) fn areas(of: &QueueAreas, left: &Rc<Cell<usize>>) -> QueueAreas<KillableMemory> {
        let QueueAreas { size, descriptors, driver, device } = of;
        let [descriptors, driver, device] =
            [descriptors, driver, device].map(|pages| KillableMemory::new(pages, left));
        QueueAreas { size: *size, descriptors, driver, device }
    }

    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl QueueMemory for KillableMemory {
    fn load(&self, offset: usize, order: Ordering) -> u16 {
        self.pages.load_u16(offset, order)
    }

    fn store(&self, offset: usize, value: u16, order: Ordering) {
        if self.lives() {
            self.pages.store_u16(offset, value, order);
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read<T: FromBytes>(&self, offset: usize) -> T {
        self.pages.read(offset)
    }

    fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        if self.lives() {
            self.pages.write(offset, value);
        }
    }
}

/// A queue, and its inflight area.
struct Place {
    ground: Ground,
    areas: QueueAreas,
    area: SharedPages,
    driver: DriverHalf,
}

impl Place {
    fn new() -> Place {
        let ground = Ground::new();
        let areas = ground.areas(Format::Split, SIZE);
        let area = SharedPages::zeroed(at::len(usize::from(SIZE))).expect("there is memory");
        let driver = DriverHalf::new(areas.clone(), plain(Format::Split), Access::Readable);
        Place { ground, areas, area, driver }
    }

    /// Makes `count` chains available, and returns their heads.
    fn offer(&mut self, count: usize) -> Vec<u16> {
        let push = |_| self.driver.push(&[Buffer { address: 0, len: 1 }]);
        let heads = (0..count).map(push).collect();
        let _ = self.driver.publish();
        heads
    }

    /// The chains that the driver gets back.
    fn reaped(&mut self) -> Vec<u16> {
        self.driver.poll().expect("each chain is used once");
        let next = || self.driver.take().expect("each chain is used once").map(|used| used.id);
        std::iter::from_fn(next).collect()
    }

    fn used_idx(&self) -> u16 {
        self.areas.device.load_u16(used::IDX, Ordering::Acquire)
    }

    fn attach_with_inflight(&self) -> Result<DeviceHalf, QueueFault> {
        let (areas, options) = (self.areas.clone(), plain(Format::Split));
        let (base, noted) = (u32::from(self.used_idx()), (self.area.clone(), SIZE));
        DeviceHalf::attach_with_inflight(areas, options, Access::Readable, base, noted)
    }

    /// Resumes with a device that is killed after `stores` stores.
    fn attach_killable(&self, stores: usize) -> DeviceHalf<KillableMemory> {
        let left = Rc::new(Cell::new(stores));
        let areas = KillableMemory::areas(&self.areas, &left);
        let noted = (KillableMemory::new(&self.area, &left), SIZE);
        let base = u32::from(self.used_idx());
        DeviceHalf::attach_with_inflight(areas, plain(Format::Split), Access::Readable, base, noted)
            .expect("what was noted is sound")
    }

    /// Takes and uses all available chains, in batches of `batch`. Returns their heads in order.
    fn serve<M: QueueMemory>(&self, device: &mut DeviceHalf<M>, batch: usize) -> Vec<u16> {
        let mut heads = Vec::new();
        while use_batch(device, &self.ground.view, (batch, 0), |head, _| heads.push(head)) > 0 {}
        heads
    }
}

/// Takes a batch of chains, shows the id and the buffers of each, and uses it with `len` bytes.
/// Returns how many there were.
pub(crate) fn use_batch<M: QueueMemory>(
    device: &mut DeviceHalf<M>,
    view: &GuestView,
    (batch, len): (usize, u32),
    mut show: impl FnMut(u16, &Buffers),
) -> usize {
    let mut buffers = Buffers::new(SIZE);
    device.poll().expect("the driver is honest");
    let mut count = 0;
    while count < batch {
        let taken = device.take(view, &mut buffers);
        let Some(chain) = taken.expect("the driver is honest") else { break };
        show(chain.id, &buffers);
        device.push_used(chain, len);
        count += 1;
    }
    let _ = device.publish();
    count
}

/// The stores of a device of another program, which is killed after a number of them.
pub(crate) struct Stores {
    /// The inflight area.
    pub(crate) area: SharedPages,
    pub(crate) left: usize,
}

impl Stores {
    pub(crate) fn store(&mut self, pages: &SharedPages, offset: usize, bytes: &[u8]) {
        if self.left > 0 {
            self.left -= 1;
            pages.copy_from(offset, bytes);
        }
    }

    pub(crate) fn note(&mut self, offset: usize, bytes: &[u8]) {
        let area = self.area.clone();
        self.store(&area, offset, bytes);
    }
}

/// A record of another version or another size is refused, in either layout.
pub(crate) fn refuses_other_heads(
    version: usize,
    desc_num: usize,
    fault_with: impl Fn(&dyn Fn(&SharedPages)) -> InflightFault,
) {
    let fault = fault_with(&|area| area.store_u16(version, 2, Ordering::Relaxed));
    assert_eq!(fault, InflightFault::Version { found: 2 });
    let fault = fault_with(&|area| area.store_u16(desc_num, 9, Ordering::Relaxed));
    assert_eq!(fault, InflightFault::Size { found: 9, expected: SIZE });
}

/// A device of another program, which records what the specification requires, uses chains in any
/// order, and is killed after a number of stores.
struct Other<'a> {
    place: &'a Place,
    stores: Stores,
    next: u16,
    counter: u64,
}

impl Other<'_> {
    fn begin(&mut self) {
        self.stores.note(at::DESC_NUM, &SIZE.to_ne_bytes());
        self.stores.note(at::USED_IDX, &self.place.used_idx().to_ne_bytes());
        self.stores.note(at::VERSION, &1_u16.to_ne_bytes());
    }

    fn take(&mut self) -> u16 {
        let entry = avail::RING + 2 * usize::from(self.next % SIZE);
        let head = self.place.areas.driver.load_u16(entry, Ordering::Acquire);
        self.next = self.next.wrapping_add(1);
        self.stores.note(desc_at(head) + at::COUNTER, &self.counter.to_ne_bytes());
        self.counter += 1;
        self.stores.note(desc_at(head) + at::INFLIGHT, &[1]);
        head
    }

    fn use_batch(&mut self, heads: &[u16]) {
        let device = self.place.areas.device.clone();
        let mut idx = device.load_u16(used::IDX, Ordering::Acquire);
        for head in heads {
            let last = self.place.area.load_u16(at::LAST_BATCH_HEAD, Ordering::Acquire);
            self.stores.note(desc_at(*head) + at::NEXT, &last.to_ne_bytes());
            self.stores.note(at::LAST_BATCH_HEAD, &head.to_ne_bytes());
            let elem = UsedElem { id: u32::from(*head), len: 0 };
            self.stores.store(&device, used::RING + 8 * usize::from(idx % SIZE), elem.as_bytes());
            idx = idx.wrapping_add(1);
        }
        self.stores.store(&device, used::IDX, &idx.to_ne_bytes());
        for head in heads {
            self.stores.note(desc_at(*head) + at::INFLIGHT, &[0]);
        }
        self.stores.note(at::USED_IDX, &idx.to_ne_bytes());
    }
}

fn desc_at(index: u16) -> usize {
    at::DESC + at::DESC_LEN * usize::from(index)
}

#[test]
fn the_area_is_laid_out_as_the_specification_has_it() {
    let mut place = Place::new();
    place.offer(1);
    let mut device = place.attach_with_inflight().expect("it is new");
    place.serve(&mut device, 1);
    let mut bytes = [0; 32];
    place.area.copy_to(0, &mut bytes);
    // Features, version, descriptors, the last chain, the used index; then a descriptor.
    let head = [[0; 8], [1, 0, 8, 0, 0, 0, 1, 0]].concat();
    assert_eq!(bytes[..], [head, vec![0; 16]].concat());
    assert_eq!(at::len(256), 4160);
}

/// Another device takes five chains, uses the third, the fifth and then the first, and is killed at
/// some moment.
#[test]
fn chains_left_by_another_device_are_taken_in_their_original_order() {
    let mut ends = std::collections::BTreeSet::new();
    for stores in 0..60 {
        let mut place = Place::new();
        // Heads that are not in order.
        let first = place.offer(3);
        let mut device = place.attach_with_inflight().expect("it is new");
        assert_eq!(place.serve(&mut device, 2), first);
        drop(device);
        assert_eq!(place.reaped(), first);
        let heads = place.offer(6);
        let few = Stores { area: place.area.clone(), left: stores };
        let mut other = Other { place: &place, stores: few, next: 3, counter: 40 };
        other.begin();
        let taken: Vec<u16> = (0..5).map(|_| other.take()).collect();
        other.use_batch(&[taken[2], taken[4]]);
        other.use_batch(&[taken[0]]);
        let done = place.reaped();
        let left: Vec<u16> = heads.iter().copied().filter(|head| !done.contains(head)).collect();
        let mut device = place.attach_with_inflight().expect("what was noted is sound");
        let served = place.serve(&mut device, 4);
        assert_eq!(served, left, "killed after {stores}, it had used {done:?}");
        assert_eq!(place.reaped(), left, "each once");
        ends.insert(done.len());
    }
    assert_eq!(Vec::from_iter(ends), [0, 2, 3]);
}

/// Our device is killed at some moment, repeatedly, with chains that another one had left.
#[test]
fn a_device_that_is_killed_at_any_moment_loses_no_chain_and_uses_none_twice() {
    for stores in 0..80 {
        for batch in [1, 3, 8] {
            let mut place = Place::new();
            let heads = place.offer(7);
            let endless = Stores { area: place.area.clone(), left: usize::MAX };
            let mut other = Other { place: &place, stores: endless, next: 0, counter: 0 };
            other.begin();
            let taken: Vec<u16> = (0..4).map(|_| other.take()).collect();
            other.use_batch(&[taken[1]]);
            let mut reaped = place.reaped();
            let mut device = place.attach_killable(stores);
            place.serve(&mut device, batch);
            reaped.extend(place.reaped());
            let mut device = place.attach_killable(stores);
            place.serve(&mut device, batch);
            reaped.extend(place.reaped());
            let mut device = place.attach_with_inflight().expect("what was noted is sound");
            place.serve(&mut device, batch);
            reaped.extend(place.reaped());
            let order = [1, 0, 2, 3, 4, 5, 6].map(|place| heads[place]);
            assert_eq!(reaped, order, "killed after {stores} stores, {batch} at a time");
        }
    }
}

#[test]
fn an_invalid_inflight_area_closes_the_queue() {
    let with = |change: &dyn Fn(&SharedPages)| {
        let mut place = Place::new();
        place.offer(2);
        place.area.store_u16(at::VERSION, 1, Ordering::Relaxed);
        place.area.store_u16(at::DESC_NUM, SIZE, Ordering::Relaxed);
        change(&place.area);
        match place.attach_with_inflight() {
            Err(QueueFault::Inflight(fault)) => fault,
            other => panic!("{other:?}"),
        }
    };
    refuses_other_heads(at::VERSION, at::DESC_NUM, with);
    let fault = with(&|area| {
        area.store_u16(at::USED_IDX, u16::MAX, Ordering::Relaxed);
        area.store_u16(at::LAST_BATCH_HEAD, 1000, Ordering::Relaxed);
    });
    assert_eq!(fault, InflightFault::Descriptor { index: 1000, size: SIZE });
    let fault = with(&|area| {
        for index in 0..3 {
            area.write(desc_at(index) + at::INFLIGHT, 1_u8);
        }
    });
    assert_eq!(fault, InflightFault::TooMany { found: 3, available: 2 });
}

#[test]
fn random_areas_never_panic_or_hang() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..2000 {
        let mut place = Place::new();
        place.offer(4);
        let len = at::len(usize::from(SIZE));
        let bytes: Vec<u8> = (0..len).map(|_| random.u8(..) & random.u8(..4)).collect();
        place.area.copy_from(0, &bytes);
        if random.bool() {
            place.area.store_u16(at::VERSION, 1, Ordering::Relaxed);
            place.area.store_u16(at::DESC_NUM, SIZE, Ordering::Relaxed);
        }
        let Ok(mut device) = place.attach_with_inflight() else { continue };
        let served = place.serve(&mut device, 3);
        assert_eq!(served.len(), 4);
    }
}
