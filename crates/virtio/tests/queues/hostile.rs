//! Peers that break the protocol: each violation ends the queue with a fault that has its numbers.

use std::sync::atomic::Ordering;

use ringway_sys::guest_memory::{GuestMemory, OutsideMemory, Region};
use ringway_virtio::{
    Access, Buffer, Buffers, Chain, DeviceHalf, DriverHalf, Format, PlaceError, QueueAreas,
    QueueFault, QueueOptions, QueuePlace, READABLE_BYTES_MAX, UsedFault,
};
use ringway_wire::virtio::{
    Desc, PackedDesc, UsedElem, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
    VRING_PACKED_DESC_F_AVAIL, avail, used,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use crate::ground::{Ground, LEN, SEAM, USER, place, plain};

const NEXT: u16 = VRING_DESC_F_NEXT;
const WRITE: u16 = VRING_DESC_F_WRITE;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT;
const SIZE: u16 = 8;

/// A device on a queue of eight entries, and its driver's memory.
struct Victim {
    ground: Ground,
    areas: QueueAreas,
    device: DeviceHalf,
}

impl Victim {
    fn new(format: Format, access: Access) -> Victim {
        let ground = Ground::new();
        let areas = ground.areas(format, SIZE);
        let options = QueueOptions { indirect: true, ..plain(format) };
        let base = if format == Format::Packed { 1 << 15 } else { 0 };
        let device = DeviceHalf::attach(areas.clone(), options, access, base).expect("a base");
        Victim { ground, areas, device }
    }

    /// Writes descriptors into the ring, from the first on.
    fn descs(self, descs: &[(u64, u32, u16, u16)]) -> Victim {
        for (number, &(addr, len, flags, next)) in descs.iter().enumerate() {
            self.areas.descriptors.write(16 * number, Desc { addr, len, flags, next });
        }
        self
    }

    /// Writes descriptors into guest memory.
    fn table(self, at: u64, descs: &[(u64, u32, u16, u16)]) -> Victim {
        for (number, &(addr, len, flags, next)) in (0..).zip(descs) {
            let desc = Desc { addr, len, flags, next };
            self.ground.view.copy_from(at + 16 * number, desc.as_bytes()).expect("in memory");
        }
        self
    }

    /// Makes one chain available.
    fn head(self, head: u16) -> Victim {
        self.areas.driver.store_u16(avail::RING, head, Ordering::Relaxed);
        self.idx(1)
    }

    fn idx(self, idx: u16) -> Victim {
        self.areas.driver.store_u16(avail::IDX, idx, Ordering::Relaxed);
        self
    }

    fn take(&mut self) -> Result<Option<(Chain, Vec<Buffer>)>, QueueFault> {
        let mut buffers = Buffers::new(SIZE);
        self.device.poll()?;
        let chain = self.device.take(&self.ground.view, &mut buffers)?;
        Ok(chain.map(|chain| (chain, buffers.list().to_vec())))
    }

    fn fault(mut self) -> QueueFault {
        self.take().expect_err("a fault")
    }
}

fn split() -> Victim {
    Victim::new(Format::Split, Access::Readable)
}

#[test]
fn an_index_further_ahead_than_the_queue_is_long_is_a_fault() {
    for idx in [SIZE + 1, 30_000, u16::MAX] {
        let fault = QueueFault::RanAhead { produced: idx, ahead: idx, size: SIZE };
        assert_eq!(split().idx(idx).fault(), fault);
    }
    assert!(split().idx(SIZE).take().is_ok());
}

#[test]
fn an_index_that_goes_back_behind_what_was_taken_is_a_fault() {
    let mut victim = split().idx(2);
    victim.take().unwrap().unwrap();
    victim.take().unwrap().unwrap();
    assert_eq!(victim.idx(1).fault(), QueueFault::RanAhead { produced: 1, ahead: 1, size: SIZE });
}

#[test]
fn an_index_that_goes_back_takes_what_was_read_ahead_with_it() {
    let mut victim = split().descs(&[(0, 1, 0, 0)]).idx(2);
    victim.take().unwrap().unwrap();
    let mut victim = victim.idx(1);
    assert_eq!(victim.take(), Ok(None));
    assert!(victim.device.singles().next().is_none());
    assert!(victim.idx(2).take().unwrap().is_some());
}

#[test]
fn a_descriptor_that_is_changed_after_it_was_read_stays_what_it_was() {
    let mut victim = split().descs(&[(0, 100, 0, 0), (4096, 100, 0, 0)]).idx(2);
    victim.areas.driver.store_u16(avail::RING + 2, 1, Ordering::Relaxed);
    victim.take().unwrap().unwrap();
    let mut victim = victim.descs(&[(0, 0, WRITE, 0), (1 << 40, 7, NEXT, 1)]);
    victim.areas.driver.store_u16(avail::RING + 2, 5, Ordering::Relaxed);
    let (chain, buffers) = victim.take().unwrap().unwrap();
    assert_eq!((chain.id, buffers), (1, vec![Buffer { address: 4096, len: 100 }]));
}

#[test]
fn chains_before_one_that_is_a_fault_are_taken() {
    let mut victim = split().descs(&[(0, 100, 0, 0)]).idx(3);
    victim.areas.driver.store_u16(avail::RING + 4, SIZE, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(victim.take().unwrap().unwrap().0.id, 0);
    }
    assert_eq!(victim.fault(), QueueFault::HeadOutOfRange { head: SIZE, size: SIZE });
}

#[test]
fn what_is_shown_as_one_buffer_is_only_what_may_be_copied() {
    let long = u32::try_from(READABLE_BYTES_MAX).unwrap() + 1;
    let shown = |desc, access| {
        let mut victim = Victim::new(Format::Split, access).descs(&[(0, 1, 0, 0), desc]).idx(2);
        victim.areas.driver.store_u16(avail::RING + 2, 1, Ordering::Relaxed);
        victim
            .areas
            .descriptors
            .write(0, Desc { addr: 0, len: 1, flags: access_flag(access), next: 0 });
        let (chain, _) = victim.take().unwrap().unwrap();
        // Another chain comes first.
        assert!(victim.device.singles().next().is_none());
        victim.device.push_used(chain, 0);
        victim.device.singles().next()
    };
    let (read, write) = (Access::Readable, Access::Writable);
    assert_eq!(shown((64, 100, 0, 9), read), Some(Buffer { address: 64, len: 100 }));
    assert_eq!(shown((64, long, WRITE, 9), write), Some(Buffer { address: 64, len: long }));
    for (desc, access) in [
        ((64, 100, WRITE, 0), read),
        ((64, 100, 0, 0), write),
        ((64, 100, NEXT, 0), read),
        ((64, 96, INDIRECT, 0), read),
        ((64, long, 0, 0), read),
        ((u64::MAX - 50, 100, 0, 0), read),
    ] {
        assert_eq!(shown(desc, access), None, "{desc:?} {access}");
    }
}

fn access_flag(access: Access) -> u16 {
    if access == Access::Writable { WRITE } else { 0 }
}

#[test]
fn a_chain_that_leaves_its_table_is_a_fault() {
    for head in [SIZE, u16::MAX] {
        assert_eq!(split().head(head).fault(), QueueFault::HeadOutOfRange { head, size: SIZE });
    }
    for next in [SIZE, u16::MAX] {
        let victim = split().descs(&[(0, 1, NEXT, next)]).head(0);
        assert_eq!(victim.fault(), QueueFault::NextOutOfRange { next, size: SIZE });
    }
    let victim = split()
        .table(4096 * 200, &[(0, 1, NEXT, 2)])
        .descs(&[(4096 * 200, 32, INDIRECT, 0)])
        .head(0);
    assert_eq!(victim.fault(), QueueFault::NextOutOfRange { next: 2, size: 2 });
}

#[test]
fn loops_end_where_a_chain_may_be_no_longer() {
    let too_long = QueueFault::ChainTooLong { limit: SIZE };
    assert_eq!(split().descs(&[(0, 1, NEXT, 0)]).head(0).fault(), too_long);
    let victim = split().descs(&[(0, 1, NEXT, 1), (0, 1, NEXT, 0)]).head(1);
    assert_eq!(victim.fault(), too_long);
    let at = 4096 * 200;
    let victim = split().table(at, &[(0, 1, NEXT, 0)]).descs(&[(at, 16, INDIRECT, 0)]).head(0);
    assert_eq!(victim.fault(), too_long);
    // The longest allowed chain, direct and indirect.
    let flags = |next| if next < SIZE { NEXT } else { 0 };
    let descs: Vec<_> = (1..=SIZE).map(|next| (0, 1, flags(next), next)).collect();
    let (_, buffers) = split().descs(&descs).head(0).take().unwrap().unwrap();
    assert_eq!(buffers.len(), usize::from(SIZE));
    let table = (at, 16 * u32::from(SIZE), INDIRECT, 0);
    let (_, buffers) = split().table(at, &descs).descs(&[table]).head(0).take().unwrap().unwrap();
    assert_eq!(buffers.len(), usize::from(SIZE));
    // A packed ring in which every descriptor continues.
    let victim = Victim::new(Format::Packed, Access::Readable);
    let flags = NEXT | VRING_PACKED_DESC_F_AVAIL;
    (0..SIZE).for_each(|index| packed(&victim, index, (0, 1, flags, 0)));
    assert_eq!(victim.fault(), too_long);
}

#[test]
fn tables_that_may_not_be_there_are_faults() {
    let at = 4096 * 200;
    let bad = |flags| QueueFault::BadIndirect { index: 0, flags };
    let nested = split().table(at, &[(at, 16, INDIRECT, 0)]).descs(&[(at, 16, INDIRECT, 0)]);
    assert_eq!(nested.head(0).fault(), bad(INDIRECT));
    let victim = split().descs(&[(at, 16, INDIRECT | NEXT, 1)]).head(0);
    assert_eq!(victim.fault(), bad(INDIRECT | NEXT));
    for len in [0, 1, 15, 17, 16 * (u32::from(SIZE) + 1), 16 * 60_000, u32::MAX] {
        for format in [Format::Split, Format::Packed] {
            let victim = Victim::new(format, Access::Readable);
            let fault = QueueFault::IndirectLen { len, size: SIZE };
            assert_eq!(victim.one(at, len, INDIRECT).fault(), fault);
        }
    }
    let mut unoffered = split().one(at, 16, INDIRECT);
    unoffered.device =
        DeviceHalf::attach(unoffered.areas.clone(), plain(Format::Split), Access::Readable, 0)
            .unwrap();
    assert_eq!(unoffered.fault(), bad(INDIRECT));
}

impl Victim {
    /// Makes a chain of one descriptor available, in either layout.
    fn one(self, addr: u64, len: u32, flags: u16) -> Victim {
        match self.device {
            DeviceHalf::Split(_) => self.descs(&[(addr, len, flags, 0)]).head(0),
            DeviceHalf::Packed(_) => {
                packed(&self, 0, (addr, len, flags | VRING_PACKED_DESC_F_AVAIL, 0));
                self
            }
        }
    }
}

fn packed(victim: &Victim, index: u16, (addr, len, flags, id): (u64, u32, u16, u16)) {
    let desc = PackedDesc { addr, len, id, flags };
    victim.areas.descriptors.write(16 * usize::from(index), desc);
}

#[test]
fn a_table_that_is_not_in_memory_is_a_fault() {
    for format in [Format::Split, Format::Packed] {
        let victim = |at| Victim::new(format, Access::Readable).one(at, 32, INDIRECT);
        let outside = OutsideMemory { address: LEN, len: 16 };
        assert_eq!(victim(LEN).fault(), QueueFault::Outside(outside));
        let wraps = QueueFault::AddressWraps { address: u64::MAX - 3, len: 32 };
        assert_eq!(victim(u64::MAX - 3).fault(), wraps);
    }
}

#[test]
fn buffers_that_are_too_long_or_wrap_are_faults() {
    for format in [Format::Split, Format::Packed] {
        let victim = |address, len| Victim::new(format, Access::Readable).one(address, len, 0);
        let limit = ringway_virtio::READABLE_BYTES_MAX;
        let longest = u32::try_from(limit).unwrap();
        assert!(victim(0, longest).take().is_ok());
        for len in [longest + 1, u32::MAX] {
            let bytes = u64::from(len);
            assert_eq!(victim(0, len).fault(), QueueFault::TooManyBytes { bytes, limit });
        }
        let wraps = QueueFault::AddressWraps { address: u64::MAX - 9, len: 11 };
        assert_eq!(victim(u64::MAX - 9, 11).fault(), wraps);
        // Rx chains may be long: Linux posts 17 pages and more.
        let writable = Victim::new(format, Access::Writable).one(0, 80_000, WRITE);
        assert!({ writable }.take().is_ok());
    }
    let victim = split().descs(&[(0, 40_000, NEXT, 1), (0, 40_000, 0, 0)]).head(0);
    assert!(matches!(victim.fault(), QueueFault::TooManyBytes { bytes: 80_000, .. }));
}

#[test]
fn buffers_for_the_other_direction_are_faults() {
    for format in [Format::Split, Format::Packed] {
        for (access, flags) in [(Access::Readable, WRITE), (Access::Writable, 0)] {
            let fault = Victim::new(format, access).one(0, 64, flags).fault();
            let QueueFault::WrongDirection { index: 0, expected, .. } = fault else {
                panic!("{fault}")
            };
            assert_eq!(expected, access);
        }
    }
}

#[test]
fn a_packed_table_of_dpdk_calls_what_is_read_writable() {
    let table_at = |access| {
        let at = 4096 * 200;
        // In a packed table the third number is the id, and the fourth has the flags.
        let victim =
            Victim::new(Format::Packed, access).table(at, &[(0, 12, 0, WRITE), (64, 60, 1, 0)]);
        packed(&victim, 0, (at, 32, INDIRECT | VRING_PACKED_DESC_F_AVAIL, 0));
        victim
    };
    let (_, buffers) = table_at(Access::Readable).take().unwrap().unwrap();
    let lens: Vec<u32> = buffers.iter().map(|buffer| buffer.len).collect();
    assert_eq!(lens, [12, 60]);
    let fault = table_at(Access::Writable).fault();
    assert!(matches!(fault, QueueFault::WrongDirection { index: 1, .. }), "{fault}");
}

#[test]
fn a_packed_chain_with_a_number_that_cannot_be_is_a_fault() {
    let victim = Victim::new(Format::Packed, Access::Readable);
    packed(&victim, 0, (0, 1, VRING_PACKED_DESC_F_AVAIL, SIZE));
    assert_eq!(victim.fault(), QueueFault::IdOutOfRange { id: SIZE, size: SIZE });
}

#[test]
fn a_packed_driver_that_reuses_an_outstanding_chain_is_a_fault() {
    let mut victim = Victim::new(Format::Packed, Access::Readable);
    for index in 0..SIZE {
        packed(&victim, index, (0, 1, VRING_PACKED_DESC_F_AVAIL, index));
        victim.take().unwrap().unwrap();
    }
    packed(&victim, 0, (0, 1, 1 << 15, 0));
    assert!(matches!(victim.fault(), QueueFault::RanAhead { ahead: 9, size: SIZE, .. }));
}

#[test]
fn a_buffer_over_two_regions_that_touch_is_good() {
    for format in [Format::Split, Format::Packed] {
        let mut victim = Victim::new(format, Access::Readable).one(SEAM - 10, 20, 0);
        let bytes: Vec<u8> = (0..20).collect();
        victim.ground.view.copy_from(SEAM - 10, &bytes).unwrap();
        let (_, buffers) = victim.take().unwrap().unwrap();
        assert_eq!(buffers, [Buffer { address: SEAM - 10, len: 20 }]);
        let mut copied = [0; 20];
        victim.ground.view.copy_to(buffers[0].address, &mut copied).unwrap();
        assert_eq!(copied[..], bytes);
    }
}

#[test]
fn a_queue_that_is_not_in_memory_is_refused() {
    let ground = Ground::new();
    let find = |format, place| QueueAreas::find(&ground.memory, format, place).map(|_| ());
    for size in [0, 3, 6, 40_000] {
        let refused = find(Format::Split, QueuePlace { size, ..place(8) });
        assert_eq!(refused, Err(PlaceError::BadSize { size }));
    }
    for size in [0, 32_769] {
        let refused = find(Format::Packed, QueuePlace { size, ..place(8) });
        assert_eq!(refused, Err(PlaceError::BadSize { size }));
    }
    for place in [
        QueuePlace { descriptors: USER + 8, ..place(8) },
        QueuePlace { driver: USER + 1, ..place(8) },
        QueuePlace { device: USER + 2, ..place(8) },
    ] {
        assert!(matches!(find(Format::Split, place), Err(PlaceError::Misaligned { .. })));
    }
    for place in [
        QueuePlace { descriptors: 0, ..place(8) },
        QueuePlace { driver: USER + LEN, ..place(8) },
        QueuePlace { device: u64::MAX - 3, ..place(8) },
        // Across two regions.
        QueuePlace { descriptors: USER + SEAM - 64, ..place(8) },
    ] {
        assert!(matches!(find(Format::Split, place), Err(PlaceError::Outside { .. })));
    }
}

/// The front-end chooses both its address and the file offset.
#[test]
fn an_aligned_address_of_unaligned_memory_is_refused() {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 1 << 20).unwrap();
    let (guest_address, user_address, file_offset) = (0, 1 << 32, 3);
    let region = Region { guest_address, user_address, len: 1 << 19, file_offset, fd };
    let memory = GuestMemory::map(vec![region]).unwrap();
    for format in [Format::Split, Format::Packed] {
        let refused = QueueAreas::find(&memory, format, place(8)).map(|_| ());
        assert!(matches!(refused, Err(PlaceError::Misaligned { area: "descriptor", .. })));
    }
}

#[test]
fn a_device_that_uses_what_it_does_not_have_is_a_fault() {
    let driver = || {
        let ground = Ground::new();
        let areas = ground.areas(Format::Split, SIZE);
        let options = plain(Format::Split);
        let mut driver = DriverHalf::new(areas.clone(), options, Access::Writable);
        let id = driver.push(&[Buffer { address: 0, len: 100 }]);
        let _ = driver.publish();
        (areas, driver, u32::from(id))
    };
    let used = |areas: &QueueAreas, id, len| {
        areas.device.write(used::RING, UsedElem { id, len });
        areas.device.store_u16(used::IDX, 1, Ordering::Relaxed);
    };
    let (areas, mut half, _) = driver();
    areas.device.store_u16(used::IDX, 2, Ordering::Relaxed);
    let ahead = UsedFault::RanAhead { produced: 2, ahead: 2, outstanding: 1 };
    assert_eq!(half.poll(), Err(ahead));
    for id in [1, 8, u32::MAX] {
        let (areas, mut half, _) = driver();
        used(&areas, id, 0);
        half.poll().unwrap();
        assert_eq!(half.take(), Err(UsedFault::Unknown { id }));
    }
    let (areas, mut half, id) = driver();
    used(&areas, id, 101);
    half.poll().unwrap();
    assert_eq!(half.take(), Err(UsedFault::TooManyBytes { id: 0, len: 101, room: 100 }));
}

/// With any contents of areas and tables, a device stops or continues, and never panics or hangs.
#[test]
fn random_memory_never_panics_or_hangs() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0102);
    for _ in 0..20_000 {
        let format = if random.bool() { Format::Split } else { Format::Packed };
        let access = if random.bool() { Access::Readable } else { Access::Writable };
        let ground = &*GROUND.with(std::rc::Rc::clone);
        let areas = ground.areas(format, SIZE);
        for area in [&areas.descriptors, &areas.driver, &areas.device] {
            (0..area.len()).for_each(|at| area.write(at, small(&mut random)));
        }
        for _ in 0..8 {
            let desc = random_desc(&mut random);
            areas.descriptors.write(16 * random.usize(..8), desc);
            let at = TABLE + 16 * random.u64(..9);
            ground.view.copy_from(at, random_desc(&mut random).as_bytes()).unwrap();
        }
        let options = QueueOptions { indirect: true, event_idx: true, ..plain(format) };
        let Ok(mut device) = DeviceHalf::attach(areas, options, access, random.u32(..4)) else {
            continue;
        };
        let mut buffers = Buffers::new(SIZE);
        for _ in 0..20 {
            if device.poll().is_err() {
                break;
            }
            match device.take(&ground.view, &mut buffers) {
                Ok(Some(chain)) => device.push_used(chain, 0),
                Ok(None) | Err(_) => break,
            }
            let _ = device.publish();
        }
    }
}

const TABLE: u64 = SEAM - 40;

thread_local! {
    static GROUND: std::rc::Rc<Ground> = std::rc::Rc::new(Ground::new());
}

fn small(random: &mut fastrand::Rng) -> u8 {
    if random.bool() { random.u8(..9) } else { 0 }
}

fn random_desc(random: &mut fastrand::Rng) -> Desc {
    let round = random.u16(..2) << 7 | random.u16(..2) << 15;
    Desc {
        addr: if random.bool() { TABLE } else { random.u64(..) },
        len: if random.bool() { 16 * random.u32(..10) } else { random.u32(..) },
        flags: random.u16(..8) | round,
        next: random.u16(..9),
    }
}
