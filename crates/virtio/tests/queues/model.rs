//! Both halves against plain lists: the device takes what the driver makes available, in order; the
//! driver takes back what the device uses; and a side that sleeps always gets its event. With all
//! combinations of features, and random steps.

use std::collections::VecDeque;

use ringway_sys::guest_memory::GuestView;
use ringway_virtio::{
    Access, Buffer, Buffers, Chain, DeviceHalf, DriverHalf, Format, Notify, NotifyWhen, QueueAreas,
    QueueOptions, Used, Waiting,
};
use ringway_wire::virtio::{Desc, PackedDesc, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use zerocopy::IntoBytes;

use crate::ground::{Ground, SEAM};

/// A possible next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The driver makes a chain of this many buffers.
    Push(usize),
    /// The driver makes a chain of a table of this many buffers.
    PushTable(usize),
    PublishAvailable,
    /// The device takes a chain, if there is one.
    Take,
    /// The device returns all chains that it has taken since it last used one.
    Rewind,
    /// The device uses the oldest chain.
    Use,
    /// The device uses some of the chains in `prefetched`, as far as each has one buffer.
    UseSingles,
    PublishUsed,
    /// The driver takes back all chains that are used.
    Reap,
    ArmDevice,
    ArmDriver,
    /// Another device attaches at the base of this one.
    AttachAgain,
}

impl Step {
    pub(crate) const FEW: [Step; 11] = [
        Step::Push(1),
        Step::Push(2),
        Step::PublishAvailable,
        Step::Take,
        Step::Rewind,
        Step::Use,
        Step::UseSingles,
        Step::PublishUsed,
        Step::Reap,
        Step::ArmDevice,
        Step::ArmDriver,
    ];
}

/// A chain as the driver made it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Posted {
    id: u16,
    buffers: Vec<Buffer>,
}

pub(crate) struct Bench<'a> {
    guest: &'a GuestView,
    areas: QueueAreas,
    options: QueueOptions,
    access: Access,
    device: DeviceHalf,
    driver: DriverHalf,
    buffers: Buffers,
    random: fastrand::Rng,
    /// Five lists: made and not published; published and not taken; taken and not used; used and
    /// not published; used, published and not collected.
    pushed: VecDeque<Posted>,
    available: VecDeque<Posted>,
    taken: VecDeque<(Chain, Posted)>,
    used: VecDeque<Used>,
    finished: VecDeque<Used>,
    is_device_asleep: bool,
    is_driver_asleep: bool,
    free: usize,
    slots: std::collections::HashMap<u16, usize>,
    tables: u64,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(
        ground: &'a Ground,
        options: QueueOptions,
        access: Access,
        size: u16,
        seed: u64,
    ) -> Bench<'a> {
        let areas = ground.areas(options.format, size);
        let zeros = vec![0; 4096];
        for area in [&areas.descriptors, &areas.driver, &areas.device] {
            area.copy_from(0, &zeros[..area.len().min(4096)]);
        }
        let driver = DriverHalf::new(areas.clone(), options, access);
        let base = if options.format == Format::Packed { 1 << 15 } else { 0 };
        let device = DeviceHalf::attach(areas.clone(), options, access, base).expect("a base");
        Bench {
            guest: &ground.view,
            areas,
            options,
            access,
            device,
            driver,
            buffers: Buffers::new(size),
            random: fastrand::Rng::with_seed(seed),
            pushed: VecDeque::new(),
            available: VecDeque::new(),
            taken: VecDeque::new(),
            used: VecDeque::new(),
            finished: VecDeque::new(),
            is_device_asleep: false,
            is_driver_asleep: false,
            free: usize::from(size),
            slots: std::collections::HashMap::new(),
            tables: 0,
        }
    }

    /// Makes a step, and returns whether it changed anything.
    pub(crate) fn step(&mut self, step: Step) -> bool {
        let before = self.state();
        match step {
            Step::Push(count) => self.push(count),
            Step::PushTable(count) => self.push_table(count),
            Step::PublishAvailable => self.publish_available(),
            Step::Take => self.take(),
            Step::Rewind => self.rewind(),
            Step::Use => self.use_oldest(),
            Step::UseSingles => self.use_singles(),
            Step::PublishUsed => self.publish_used(),
            Step::Reap => self.reap(),
            Step::ArmDevice => self.arm_device(),
            Step::ArmDriver => self.arm_driver(),
            Step::AttachAgain => self.attach_again(),
        }
        assert_eq!(self.driver.free(), self.free);
        self.state() != before
    }

    fn state(&self) -> ([usize; 5], [bool; 2]) {
        let chains = [
            self.pushed.len(),
            self.available.len(),
            self.taken.len(),
            self.used.len(),
            self.finished.len(),
        ];
        (chains, [self.is_device_asleep, self.is_driver_asleep])
    }

    fn push(&mut self, count: usize) {
        if count > self.free {
            return;
        }
        let buffers: Vec<Buffer> = (0..count).map(|_| self.some_buffer()).collect();
        let id = self.driver.push(&buffers);
        self.free -= count;
        self.slots.insert(id, count);
        self.pushed.push_back(Posted { id, buffers });
    }

    fn push_table(&mut self, count: usize) {
        let count = count.min(usize::from(self.areas.size));
        if self.free == 0 || !self.options.indirect {
            return;
        }
        let buffers: Vec<Buffer> = (0..count).map(|_| self.some_buffer()).collect();
        // Across the seam, and unaligned.
        let address = SEAM - 24 + (self.tables % 64) * 1024;
        self.tables += 1;
        for (number, buffer) in (0_u16..).zip(&buffers) {
            let is_last = usize::from(number) + 1 == count;
            let more = if is_last { 0 } else { VRING_DESC_F_NEXT };
            let flags = if self.access == Access::Writable { VRING_DESC_F_WRITE } else { 0 };
            let Buffer { address: addr, len } = *buffer;
            let at = address + 16 * u64::from(number);
            let split = Desc { addr, len, flags: flags | more, next: number + 1 };
            let packed = PackedDesc { addr, len, id: 0, flags };
            match self.options.format {
                Format::Split => self.guest.copy_from(at, split.as_bytes()),
                Format::Packed => self.guest.copy_from(at, packed.as_bytes()),
            }
            .expect("the table is in memory");
        }
        let room = buffers.iter().map(|buffer| u64::from(buffer.len)).sum();
        let len = u32::try_from(16 * count).expect("a table is small");
        let id = self.driver.push_table(Buffer { address, len }, room);
        self.free -= 1;
        self.slots.insert(id, 1);
        self.pushed.push_back(Posted { id, buffers });
    }

    fn some_buffer(&mut self) -> Buffer {
        Buffer { address: self.random.u64(..1 << 40), len: self.random.u32(0..2000) }
    }

    fn publish_available(&mut self) {
        let notify = self.driver.publish();
        if self.pushed.is_empty() {
            assert_eq!(notify, Notify::None);
        } else if self.is_device_asleep {
            assert_eq!(notify, Notify::Peer, "the device sleeps on");
        }
        if notify == Notify::Peer {
            self.is_device_asleep = false;
        }
        self.available.append(&mut self.pushed);
    }

    fn take(&mut self) {
        self.device.poll().expect("the driver is honest");
        // A side that polls is awake, and requests an event again before it sleeps.
        self.is_device_asleep = false;
        let chain = self.device.take(self.guest, &mut self.buffers).expect("an honest driver");
        assert_eq!(chain.is_some(), !self.available.is_empty());
        let Some(chain) = chain else { return };
        let posted = self.available.pop_front().expect("a chain is available");
        assert_eq!(self.buffers.list(), posted.buffers);
        let bytes: u64 = posted.buffers.iter().map(|buffer| u64::from(buffer.len)).sum();
        assert_eq!(self.buffers.bytes(), bytes);
        assert_eq!(chain.id, posted.id);
        self.taken.push_back((chain, posted));
    }

    /// Takes up to a few chains, and returns them.
    fn rewind(&mut self) {
        self.device.poll().expect("the driver is honest");
        // A side that polls is awake, and requests an event again before it sleeps.
        self.is_device_asleep = false;
        let position = self.device.position();
        for _ in 0..self.random.usize(0..4) {
            self.device.take(self.guest, &mut self.buffers).expect("an honest driver");
        }
        self.device.rewind(position);
    }

    fn use_oldest(&mut self) {
        let Some((chain, posted)) = self.taken.pop_front() else { return };
        let room = posted.buffers.iter().map(|buffer| buffer.len).sum::<u32>();
        let len = if self.access == Access::Writable { self.random.u32(0..=room) } else { 0 };
        self.device.push_used(chain, len);
        self.used.push_back(Used { id: posted.id, len });
    }

    fn use_singles(&mut self) {
        let most = self.random.usize(1..4);
        let singles: Vec<Buffer> = self.device.singles().take(most).collect();
        assert!(singles.is_empty() || self.taken.is_empty(), "a chain is shown before its turn");
        let mut written = Vec::new();
        for buffer in &singles {
            let posted = self.available.pop_front().expect("what is shown is available");
            assert_eq!(vec![*buffer], posted.buffers);
            let room = if self.access == Access::Writable { buffer.len } else { 0 };
            let len = self.random.u32(0..=room);
            written.push(len);
            self.used.push_back(Used { id: posted.id, len });
        }
        self.device.use_singles(written.into_iter());
    }

    fn publish_used(&mut self) {
        let notify = self.device.publish();
        if self.used.is_empty() {
            assert_eq!(notify, Notify::None);
        } else if self.is_driver_asleep {
            assert_eq!(notify, Notify::Peer, "the driver sleeps on");
        }
        if notify == Notify::Peer {
            self.is_driver_asleep = false;
        }
        self.finished.append(&mut self.used);
    }

    fn reap(&mut self) {
        self.driver.poll().expect("the device is honest");
        self.is_driver_asleep = false;
        while let Some(used) = self.driver.take().expect("the device is honest") {
            assert_eq!(Some(used), self.finished.pop_front());
            self.free += self.slots.remove(&used.id).expect("a chain is used once");
        }
        assert!(self.finished.is_empty(), "{:?} were not collected", self.finished);
    }

    fn arm_device(&mut self) {
        let waiting = self.device.arm(NotifyWhen::Any);
        let expected = self.available.is_empty();
        assert_eq!(waiting == Waiting::Idle, expected);
        self.is_device_asleep = waiting == Waiting::Idle;
    }

    fn arm_driver(&mut self) {
        let waiting = self.driver.arm();
        assert_eq!(waiting == Waiting::Idle, self.finished.is_empty());
        self.is_driver_asleep = waiting == Waiting::Idle;
    }

    /// Chains that were taken and not used are taken again.
    fn attach_again(&mut self) {
        if !self.used.is_empty() {
            return;
        }
        let base = self.device.base();
        let areas = self.areas.clone();
        self.device =
            DeviceHalf::attach(areas, self.options, self.access, base).expect("its own base");
        while let Some((_, posted)) = self.taken.pop_back() {
            self.available.push_front(posted);
        }
        // Attaching wakes both sides.
        (self.is_device_asleep, self.is_driver_asleep) = (false, false);
    }
}

pub(crate) fn all_options() -> impl Iterator<Item = QueueOptions> {
    (0..16).map(|bits| QueueOptions {
        format: if bits & 1 == 0 { Format::Split } else { Format::Packed },
        event_idx: bits & 2 != 0,
        indirect: bits & 4 != 0,
        in_order: bits & 8 != 0,
    })
}

#[test]
fn random_steps_agree_with_plain_lists_with_every_set_of_features() {
    const STEPS: usize = 4_000;
    let ground = Ground::new();
    let mut random = fastrand::Rng::with_seed(0x5eed_0101);
    for (seed, options) in (1..).zip(all_options()) {
        for size in [1, 2, 3, 8, 61, 256] {
            if options.format == Format::Split && !u16::is_power_of_two(size) {
                continue;
            }
            let access = if random.bool() { Access::Readable } else { Access::Writable };
            println!("seed {seed}, {options:?}, {size} entries, {access:?}");
            let mut bench = Bench::new(&ground, options, access, size, seed);
            for _ in 0..STEPS {
                bench.step(match random.u32(0..21) {
                    0..=3 => Step::Push(random.usize(1..=3)),
                    4 => Step::PushTable(random.usize(1..=12)),
                    5..=6 => Step::PublishAvailable,
                    7..=9 => Step::Take,
                    10 => Step::Rewind,
                    11..=12 => Step::Use,
                    13 | 19 => Step::UseSingles,
                    14 => Step::PublishUsed,
                    15 => Step::Reap,
                    16 => Step::ArmDevice,
                    17 => Step::ArmDriver,
                    18 if random.u32(0..8) == 0 => Step::AttachAgain,
                    _ => Step::PublishUsed,
                });
            }
        }
    }
}
