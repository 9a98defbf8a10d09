//! A hypervisor in the fuzzer's process, with one guest and one host, and a pool whose buffers hold
//! bytes that neither of them has written.

use std::sync::Arc;

use ringway_datapath::{
    Checksum, Frame, FramePool, FrameQueue, Gso, GsoKind, MIDDLE_LEN, Offload, PoolBudget,
    SMALL_LEN,
};
use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, ForeignPage, Hypervisor, QueueEvents,
};
use ringway_loopback::{
    Limits, Loopback, LoopbackDomain, LoopbackEvent, LoopbackGrants, LoopbackMemory,
};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::Input;

/// The guest.
pub const GUEST: DomId = DomId(7);
/// The domain with the backend.
pub const HOST: DomId = DomId(0);
/// The most frames that wait to leave.
const WAITING_MAX: usize = 16;
/// The contents of buffers to which nothing was copied. No page of a guest holds it.
pub const STALE: u8 = 0x55;
/// Memory for frames.
const BUDGET: usize = 4 << 20;
/// Buffers of each size that are filled with stale bytes before an input.
const STALE_BUFFERS: usize = 4;

/// The machine, and both domains.
pub struct Machine {
    /// Controls its faults and counts.
    pub loopback: Loopback,
    guest: LoopbackDomain,
    host: LoopbackDomain,
}

impl Machine {
    /// A machine with both domains, which hold nothing yet.
    #[allow(clippy::new_without_default, reason = "a machine is made, not assumed")]
    pub fn new() -> Machine {
        let loopback = Loopback::new();
        let create = |domid| loopback.create_domain(domid, Limits::default()).expect("it is new");
        let (guest, host) = (create(GUEST), create(HOST));
        Machine { loopback, guest, host }
    }

    /// The guest's own pages.
    pub fn grants(&self) -> LoopbackGrants {
        self.guest.grants().expect("it never fails")
    }

    /// The host's access to them.
    pub fn memory(&self) -> LoopbackMemory {
        self.host.memory().expect("it never fails")
    }

    /// Maps a page of the guest, as its backend does.
    pub fn map(&self, gref: GrantRef) -> ForeignPage {
        self.memory().map(GUEST, gref, Access::ReadWrite).expect("the page is granted")
    }

    /// Two channels, one a direction: the guest's ends and the host's.
    pub fn channels(&self) -> (QueueEvents<LoopbackEvent>, QueueEvents<LoopbackEvent>) {
        let offer = || self.guest.alloc_unbound(HOST).expect("a port is left");
        let (tx, rx) = (offer(), offer());
        let [back_tx, back_rx] = [&tx, &rx].map(|offered| {
            self.host.bind_interdomain(GUEST, offered.port()).expect("the port is for the host")
        });
        (QueueEvents::Split { tx, rx }, QueueEvents::Split { tx: back_tx, rx: back_rx })
    }
}

/// A pool of stale buffers, all of which must be returned at the end.
pub struct StalePool {
    /// The pool itself.
    pub pool: FramePool,
    budget: Arc<PoolBudget>,
}

impl StalePool {
    /// A pool in which the buffers that are taken first are stale.
    #[allow(clippy::new_without_default, reason = "it allocates")]
    pub fn new() -> StalePool {
        let budget = PoolBudget::new(BUDGET);
        let mut stale = StalePool { pool: FramePool::new(Arc::clone(&budget)), budget };
        for len in [SMALL_LEN, MIDDLE_LEN, MIDDLE_LEN + 1] {
            let frames: Vec<Frame> =
                (0..STALE_BUFFERS).filter_map(|_| stale.pool.take(len)).collect();
            frames.into_iter().for_each(|frame| stale.recycle(frame));
        }
        stale
    }

    /// Adds one more frame to those that wait, if there are few: of any length and with any
    /// offload, and without stale bytes.
    pub fn fill(&mut self, waiting: &mut FrameQueue, input: &mut Input<'_>) {
        if waiting.len() >= WAITING_MAX {
            return;
        }
        let len = if input.u8() < 32 { input.below(65_522) } else { input.below(2000) } + 14;
        let Some(mut frame) = self.pool.take(len) else { return };
        frame.bytes_mut().fill(0xee);
        let kind = input.choose(&[GsoKind::TcpV4, GsoKind::TcpV6]);
        let gso = input.flag().then(|| Gso { kind, size: input.u16() | 1 });
        let checksum = input.choose(&[Checksum::Unverified, Checksum::Blank, Checksum::Validated]);
        frame.offload = Offload { checksum, gso };
        waiting.push_back(frame);
    }

    /// Takes a frame back, and makes it stale.
    pub fn recycle(&mut self, mut frame: Frame) {
        frame.take_end();
        frame.set_len(frame.capacity());
        frame.bytes_mut().fill(STALE);
        self.pool.recycle(frame);
    }

    /// Ends the pool.
    ///
    /// # Panics
    /// If a buffer was lost.
    pub fn check_and_drop(self) {
        drop(self.pool);
        assert_eq!(self.budget.bytes_left(), BUDGET, "a buffer was lost");
    }
}

/// The pages that a frame's end is in, counted from the start of its run of pages.
pub fn end_pages(frame: &Frame) -> impl Iterator<Item = usize> + '_ {
    let pieces = frame.end().into_iter().flat_map(|end| end.pieces());
    pieces.flat_map(|piece| piece.at / PAGE_SIZE..(piece.at + piece.len).div_ceil(PAGE_SIZE))
}

/// Checks that a frame holds only bytes that were copied to it.
///
/// # Panics
/// If it contains a stale byte.
pub fn check_fresh(frame: &Frame) {
    assert!(!frame.bytes().contains(&STALE), "a frame of {} bytes holds old ones", frame.len());
}

/// Writes up to 63 bytes anywhere into a ring page, often over its indices.
pub fn scribble(page: &SharedPages, input: &mut Input<'_>) {
    let offset = if input.flag() { input.below(16) } else { input.below(PAGE_SIZE) };
    let len = usize::from(input.u8() % 64).min(PAGE_SIZE - offset);
    page.copy_from(offset, input.bytes(len));
}
