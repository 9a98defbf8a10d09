//! A device that continues where another one was killed, at any moment, with packed queues, whose
//! descriptors are overwritten as they are used.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_virtio::{
    Access, Buffer, Buffers, DeviceHalf, DriverHalf, Format, InflightFault, QueueAreas, QueueFault,
    QueueMemory,
};
use ringway_wire::vhost_user::inflight_packed as at;
use ringway_wire::virtio::{PackedDesc, VRING_DESC_F_NEXT};
use zerocopy::IntoBytes;

use crate::ground::{Ground, plain};
use crate::inflight::{KillableMemory, Stores, refuses_other_heads, use_batch};

const SIZE: u16 = 8;
/// The first position of a queue: the one that a front-end without any other sends.
const START: u32 = 1 << 15;

/// A queue, and its inflight area.
struct Place {
    ground: Ground,
    areas: QueueAreas,
    area: SharedPages,
    driver: DriverHalf,
    /// All chains that were made available.
    offered: Vec<(u16, Vec<Buffer>)>,
    /// The chains that came back.
    reaped: Vec<u16>,
}

impl Place {
    fn new() -> Place {
        let ground = Ground::new();
        let areas = ground.areas(Format::Packed, SIZE);
        let area = SharedPages::zeroed(at::len(usize::from(SIZE))).expect("there is memory");
        let driver = DriverHalf::new(areas.clone(), plain(Format::Packed), Access::Writable);
        Place { ground, areas, area, driver, offered: Vec::new(), reaped: Vec::new() }
    }

    /// A queue in which a device has used `chains` chains of `len` descriptors, and ended well.
    fn after(chains: usize, len: u32) -> Place {
        let mut place = Place::new();
        for _ in 0..chains {
            place.offer(&[len]);
            let mut device = place.attach_with_inflight().expect("it is sound");
            place.serve(&mut device, 1);
            place.reap();
        }
        place
    }

    /// Makes chains of these lengths available.
    fn offer(&mut self, chains: &[u32]) {
        for count in chains {
            let number = u32::try_from(self.offered.len()).expect("few");
            let buffer =
                |index| Buffer { address: u64::from(64 * number + index), len: 100 + index };
            let buffers: Vec<Buffer> = (0..*count).map(buffer).collect();
            self.offered.push((self.driver.push(&buffers), buffers));
        }
        let _ = self.driver.publish();
    }

    fn reap(&mut self) {
        self.driver.poll().expect("each chain is used once");
        while let Some(used) = self.driver.take().expect("each chain is used once") {
            self.reaped.push(used.id);
        }
    }

    fn offered_ids(&self) -> Vec<u16> {
        self.offered.iter().map(|(id, _)| *id).collect()
    }

    fn attach_with_inflight(&self) -> Result<DeviceHalf, QueueFault> {
        let (areas, options) = (self.areas.clone(), plain(Format::Packed));
        DeviceHalf::attach_with_inflight(
            areas,
            options,
            Access::Writable,
            START,
            (self.area.clone(), SIZE),
        )
    }

    /// Resumes with a device that is killed after `stores` stores.
    fn attach_killable(&self, stores: usize) -> DeviceHalf<KillableMemory> {
        let left = Rc::new(Cell::new(stores));
        let areas = KillableMemory::areas(&self.areas, &left);
        let noted = (KillableMemory::new(&self.area, &left), SIZE);
        DeviceHalf::attach_with_inflight(
            areas,
            plain(Format::Packed),
            Access::Writable,
            START,
            noted,
        )
        .expect("what was noted is sound")
    }

    /// Takes and uses all available chains, in batches. The first one must be the first that has
    /// not come back, and each must be what was offered.
    fn serve<M: QueueMemory>(&self, device: &mut DeviceHalf<M>, batch: usize) {
        let mut number = self.reaped.len();
        loop {
            let count = use_batch(device, &self.ground.view, (batch, 7), |id, buffers| {
                // A killed device may see its own ring as if it had not been killed.
                if let Some((offered, expected)) = self.offered.get(number) {
                    assert_eq!((id, buffers.list()), (*offered, &expected[..]), "chain {number}");
                }
                number += 1;
            });
            if count == 0 || number > self.offered.len() {
                return;
            }
        }
    }
}

#[test]
fn the_area_is_laid_out_as_the_specification_has_it() {
    let mut place = Place::new();
    place.offer(&[2]);
    let mut device = place.attach_with_inflight().expect("it is new");
    place.serve(&mut device, 1);
    let mut bytes = [0; 64];
    place.area.copy_to(0, &mut bytes);
    // Features; version, descriptors, free and old free; used and old used; both wrap counters.
    let head = [[0; 8], [1, 0, 8, 0, 0, 0, 0, 0], [2, 0, 2, 0, 1, 1, 0, 0], [0; 8]].concat();
    // Not in flight any more; next and last are 1, of two; no chain before; id, flags of an
    // available, writable descriptor that continues, length, address.
    let id = place.offered[0].0.to_le_bytes();
    let first = [[0, 0, 1, 0, 1, 0, 2, 0], [0; 8], [id[0], id[1], 0x83, 0, 100, 0, 0, 0], [0; 8]];
    assert_eq!(bytes[..], [head, first.concat()].concat());
    assert_eq!(at::len(256), 8256);
}

/// Our device is killed at some moment, twice, and chains used in between come back.
#[test]
fn a_device_that_is_killed_at_any_moment_loses_no_chain_and_uses_none_twice() {
    let all = &[1, 2, 1, 3, 1][..];
    // Longer chains leave descriptors in the ring that seem to be available.
    for (lead, len, offer) in (0..usize::from(SIZE) + 2)
        .flat_map(|lead| [(lead, 1, all), (lead, 3, &[1, 2]), (lead, 3, &[2]), (lead, 3, all)])
    {
        for batch in [1, 3, 8] {
            for (stores, is_fast) in
                (0..48 * offer.len()).flat_map(|stores| [(stores, false), (stores, true)])
            {
                let mut place = Place::after(lead, len);
                place.offer(offer);
                let mut before = place.reaped.len();
                // The driver may be slow to make more available.
                for refills in [is_fast, true] {
                    let mut device = place.attach_killable(stores);
                    place.serve(&mut device, batch);
                    place.reap();
                    // As many as there is room for again.
                    let back: usize = place.offered[before..place.reaped.len()]
                        .iter()
                        .map(|(_, buffers)| buffers.len())
                        .sum();
                    let back = u32::try_from(back).expect("few");
                    if refills && back > 0 {
                        before = place.reaped.len();
                        place.offer(&[back]);
                    }
                }
                let mut device = place.attach_with_inflight().expect("what was noted is sound");
                place.serve(&mut device, batch);
                place.reap();
                let context =
                    format!("{lead} of {len}, {offer:?}, {stores} stores, {batch} at a time");
                assert_eq!(place.reaped, place.offered_ids(), "{context}");
            }
        }
    }
}

/// A device of another program, which records what the specification requires, uses chains in any
/// order, and is killed after a number of stores.
struct Other<'a> {
    place: &'a Place,
    stores: Stores,
    next: (u16, bool),
    used: (u16, bool),
    counter: u64,
}

/// A chain that it has taken: its first entry in the area, its id and its descriptors.
type Taken = (u16, u16, u16);

impl Other<'_> {
    fn noted(&self, offset: usize) -> u16 {
        self.place.area.load_u16(offset, Ordering::Acquire)
    }

    fn take(&mut self) -> Taken {
        let head = self.noted(at::OLD_FREE_HEAD);
        let mut free = head;
        let (mut count, mut id) = (0_u16, 0);
        self.stores.note(entry_at(head) + at::NUM, &0_u16.to_ne_bytes());
        self.stores.note(entry_at(head) + at::COUNTER, &self.counter.to_ne_bytes());
        self.stores.note(entry_at(head) + at::INFLIGHT, &[1]);
        self.counter += 1;
        loop {
            let desc: PackedDesc = self.place.areas.descriptors.read(16 * usize::from(self.next.0));
            self.next = behind(self.next, 1);
            let is_last = desc.flags & VRING_DESC_F_NEXT == 0;
            if is_last {
                id = desc.id;
                self.stores.note(entry_at(head) + at::LAST, &free.to_ne_bytes());
            }
            count += 1;
            self.stores.note(entry_at(head) + at::NUM, &count.to_ne_bytes());
            self.stores.note(entry_at(free) + at::ADDR, &desc.addr.to_ne_bytes());
            self.stores.note(entry_at(free) + at::LEN, &desc.len.to_ne_bytes());
            self.stores.note(entry_at(free) + at::FLAGS, &desc.flags.to_ne_bytes());
            self.stores.note(entry_at(free) + at::ID, &desc.id.to_ne_bytes());
            free = self.noted(entry_at(free) + at::NEXT);
            self.stores.note(at::FREE_HEAD, &free.to_ne_bytes());
            if is_last {
                self.stores.note(at::OLD_FREE_HEAD, &free.to_ne_bytes());
                return (head, id, count);
            }
        }
    }

    fn use_one(&mut self, (head, id, count): Taken) {
        let ring = self.place.areas.descriptors.clone();
        let (last, free) = (self.noted(entry_at(head) + at::LAST), self.noted(at::FREE_HEAD));
        self.stores.note(entry_at(last) + at::NEXT, &free.to_ne_bytes());
        self.stores.note(at::FREE_HEAD, &head.to_ne_bytes());
        let (old, new) = (self.used, behind(self.used, count));
        self.stores.note(at::USED_IDX, &new.0.to_ne_bytes());
        self.stores.note(at::USED_WRAP, &[u8::from(new.1)]);
        let flags = if old.1 { 0x8080 } else { 0 } | 2;
        let used = PackedDesc { addr: 0xdead, len: 7, id, flags };
        let offset = 16 * usize::from(old.0);
        self.stores.store(&ring, offset, &used.as_bytes()[..14]);
        self.stores.store(&ring, offset + 14, &used.as_bytes()[14..]);
        self.stores.note(entry_at(head) + at::INFLIGHT, &[0]);
        self.stores.note(at::OLD_FREE_HEAD, &head.to_ne_bytes());
        self.stores.note(at::OLD_USED_IDX, &new.0.to_ne_bytes());
        self.stores.note(at::OLD_USED_WRAP, &[u8::from(new.1)]);
        self.used = new;
    }
}

fn behind((index, wrap): (u16, bool), slots: u16) -> (u16, bool) {
    let next = index + slots;
    if next >= SIZE { (next - SIZE, !wrap) } else { (next, wrap) }
}

fn entry_at(index: u16) -> usize {
    at::DESC + at::DESC_LEN * usize::from(index)
}

/// Another device takes four chains, uses the third and then the first, and is killed at some
/// moment: our device continues with the others.
#[test]
fn chains_left_by_another_device_are_taken_in_their_original_order() {
    let mut ends = std::collections::BTreeSet::new();
    for lead in [0_u16, 3, 6, 9] {
        for stores in 0..110 {
            let mut place = Place::after(lead.into(), 1);
            let first = place.offered.len();
            // Our device initializes the area first.
            drop(place.attach_with_inflight().expect("it is sound"));
            place.offer(&[2, 1, 2, 1, 2]);
            let start = behind((lead % SIZE, lead < SIZE), 0);
            let (next, used) = (start, start);
            let few = Stores { area: place.area.clone(), left: stores };
            let mut other = Other { place: &place, stores: few, next, used, counter: 40 };
            let taken: Vec<Taken> = (0..4).map(|_| other.take()).collect();
            if other.stores.left > 0 {
                other.use_one(taken[2]);
            }
            if other.stores.left > 0 {
                other.use_one(taken[0]);
            }
            place.reap();
            let done = place.reaped.split_off(first);
            ends.insert(done.len());
            // The remaining chains, in their order, must be served.
            let left: Vec<_> = place.offered[first..]
                .iter()
                .filter(|(id, _)| !done.contains(id))
                .cloned()
                .collect();
            place.offered.truncate(first);
            place.offered.extend(left);
            let mut device = place.attach_with_inflight().expect("what was noted is sound");
            place.serve(&mut device, 4);
            place.reap();
            let context = format!("killed after {stores}, it had used {done:?}");
            assert_eq!(place.reaped, place.offered_ids(), "{context}");
        }
    }
    assert_eq!(Vec::from_iter(ends), [0, 1, 2]);
}

#[test]
fn an_invalid_inflight_area_closes_the_queue() {
    let with = |change: &dyn Fn(&SharedPages)| {
        let mut place = Place::new();
        place.offer(&[1]);
        drop(place.attach_with_inflight().expect("it is new"));
        change(&place.area);
        match place.attach_with_inflight() {
            Err(QueueFault::Inflight(fault)) => fault,
            other => panic!("{other:?}"),
        }
    };
    refuses_other_heads(at::VERSION, at::DESC_NUM, with);
    for field in [at::USED_IDX, at::OLD_USED_IDX] {
        let fault = with(&|area| area.store_u16(field, SIZE, Ordering::Relaxed));
        assert_eq!(fault, InflightFault::Descriptor { index: SIZE, size: SIZE });
    }
    // Marked as in flight, and not in the free list.
    let marked = |area: &SharedPages, num: u16, next: u16| {
        area.store_u16(at::OLD_FREE_HEAD, 4, Ordering::Relaxed);
        area.write(entry_at(0) + at::INFLIGHT, 1_u8);
        area.store_u16(entry_at(0) + at::NUM, num, Ordering::Relaxed);
        area.store_u16(entry_at(0) + at::NEXT, next, Ordering::Relaxed);
    };
    let fault = with(&|area| marked(area, 9, 1));
    assert_eq!(fault, InflightFault::TooLong { found: 9, size: SIZE });
    let fault = with(&|area| marked(area, 2, 1000));
    assert_eq!(fault, InflightFault::Descriptor { index: 1000, size: SIZE });
}

#[test]
fn random_areas_never_panic_or_hang() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut borne = 0;
    for _ in 0..4000 {
        let mut place = Place::new();
        place.offer(&[1, 2]);
        let len = at::len(usize::from(SIZE));
        let bytes: Vec<u8> = (0..len).map(|_| random.u8(..) & random.u8(..4)).collect();
        place.area.copy_from(0, &bytes);
        place.area.store_u16(at::VERSION, 1, Ordering::Relaxed);
        place.area.store_u16(at::DESC_NUM, SIZE, Ordering::Relaxed);
        let Ok(mut device) = place.attach_with_inflight() else { continue };
        borne += 1;
        // Whatever the ring contains now, it is used as long as possible, while the area changes.
        let mut buffers = Buffers::new(SIZE);
        for _ in 0..20 {
            let Ok(Some(chain)) = device.take(&place.ground.view, &mut buffers) else { break };
            device.push_used(chain, 1);
            let at = random.usize(..len);
            place.area.copy_from(at, &[random.u8(..)]);
            if random.bool() {
                let _ = device.publish();
            }
        }
    }
    assert!(borne > 0);
}
