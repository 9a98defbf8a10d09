//! On Xen, a copy takes one operation for each of our pages that it touches, and each such page is
//! pinned: frames are placed in their buffers so that there are no more operations than pages of
//! the guest.

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, Offload, OffloadCaps, PoolBudget, PortQueue,
};
use ringway_hypervisor::{Access, GrantTable};
use ringway_loopback::{LoopbackEvent, LoopbackMemory};
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_ring::{FrontRing, Rx, Tx};
use ringway_wire::netif::{NETTXF_MORE_DATA, RxRequest, TxRequest};
use ringway_wire::{GrantRef, PAGE_SIZE};

use crate::frames::{self, pattern};
use crate::machine::{GUEST, HOST, Machine};

/// A guest with its queue.
struct Bench {
    machine: Machine,
    tx: FrontRing<Tx>,
    rx: FrontRing<Rx>,
    back: VifQueue<LoopbackMemory, LoopbackEvent>,
    pool: FramePool,
}

impl Bench {
    fn new() -> Bench {
        let machine = Machine::new();
        let rings = machine.grants().share(HOST, 2, Access::ReadWrite).expect("it is new");
        let page = |page| rings.pages.slice(page * PAGE_SIZE..(page + 1) * PAGE_SIZE);
        let (tx, rx) = (FrontRing::new(page(0)), FrontRing::new(page(1)));
        let mapped = machine.map_rings([rings.grefs[0], rings.grefs[1]]);
        let (memory, events) = (machine.memory(), machine.channels().1);
        let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
        let back = VifQueue::attach(QueueParts::new(GUEST, memory, mapped, events, features));
        let back = back.expect("new rings are sound");
        let pool = FramePool::new(PoolBudget::new(64 << 20));
        Bench { machine, tx, rx, back, pool }
    }

    fn page(&self, offset: usize, bytes: &[u8], access: Access) -> GrantRef {
        let granted = self.machine.grants().share(HOST, 1, access).expect("a test needs few pages");
        granted.pages.copy_from(offset, bytes);
        granted.grefs[0]
    }

    fn operations(&self) -> usize {
        self.machine.loopback.copy_operations(HOST)
    }

    /// Sends a packet in slots of these lengths, and counts the operations that copy it.
    fn operations_of(&mut self, lens: &[usize]) -> usize {
        let total: usize = lens.iter().sum();
        let bytes = pattern(1, total);
        let mut at = 0;
        for (index, len) in lens.iter().enumerate() {
            // The end of a page, where Linux puts the first bytes of a fragment that begins in it.
            let offset = PAGE_SIZE - len;
            let size = if index == 0 { total } else { *len };
            self.tx.push_request(TxRequest {
                gref: self.page(offset, &bytes[at..at + len], Access::ReadOnly).0,
                offset: u16::try_from(offset).expect("it is in a page"),
                flags: if index + 1 < lens.len() { NETTXF_MORE_DATA } else { 0 },
                id: 0,
                size: u16::try_from(size).expect("a packet is at most 64 KiB"),
            });
            at += len;
        }
        let _ = self.tx.publish_requests();
        let before = self.operations();
        let mut frames = FrameBatch::new();
        self.back.ingress(Budget::BATCH, &mut self.pool, &mut frames).expect("no fault");
        assert_eq!(frames[0].bytes(), bytes);
        frames.drain(..).for_each(|frame| self.pool.recycle(frame));
        self.operations() - before
    }
}

#[test]
fn a_long_packet_from_a_guest_is_one_operation_per_slot() {
    let mut bench = Bench::new();
    let pages = |first: &[usize], pages: usize, last: usize| {
        let mut lens = first.to_vec();
        lens.resize(lens.len() + pages, PAGE_SIZE);
        lens.push(last);
        lens
    };
    for lens in [
        // Headers, and a segment behind them in pages of its own.
        pages(&[66], 15, 3720),
        // The segment begins within a page.
        pages(&[66, 1000], 15, 2720),
        // Our own frontend: the frame begins with a page.
        pages(&[], 15, 3786),
    ] {
        assert_eq!(bench.operations_of(&lens), lens.len(), "{lens:?}");
        // In the same buffer.
        assert_eq!(bench.operations_of(&lens), lens.len(), "{lens:?}");
    }
}

#[test]
fn a_long_frame_of_ours_is_one_operation_per_page() {
    let mut bench = Bench::new();
    // Leaves a buffer whose last frame began elsewhere.
    bench.operations_of(&[66, PAGE_SIZE, PAGE_SIZE]);
    for id in 0..17 {
        let gref = bench.page(0, &[], Access::ReadWrite).0;
        bench.rx.push_request(RxRequest { id, pad: 0, gref });
    }
    let _ = bench.rx.publish_requests();
    let before = bench.operations();
    let frame = frames::frame(&mut bench.pool, &pattern(2, 65_226), Offload::default());
    let mut leaving = FrameQueue::from([frame]);
    bench.back.egress(&mut leaving, &mut bench.pool).expect("no fault");
    assert!(leaving.is_empty());
    assert_eq!(bench.operations() - before, 16);
}
