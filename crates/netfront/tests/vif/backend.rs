//! A backend that sends whatever responses a test wants, and a queue that is served by it.

use std::error::Error;
use std::sync::Arc;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, FrameQueue, Offload, OffloadCaps, PoolBudget,
    PortQueue, QueueCounters, QueueDown,
};
use ringway_hypervisor::{Access, ForeignPage, QueueEvents};
use ringway_loopback::{LoopbackEvent, LoopbackGrants};
use ringway_netfront::VifQueue;
use ringway_ring::{BackRing, Notify, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::GrantRef;
use ringway_wire::netif::{RxRequest, RxResponse, TxRequest};
use zerocopy::{Immutable, IntoBytes};

use crate::frames;
use crate::machine::{HOST, Machine};

/// Both sides of one queue.
pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) front: VifQueue<LoopbackGrants, LoopbackEvent>,
    pub(crate) tx: BackRing<Tx>,
    pub(crate) rx: BackRing<Rx>,
    /// The ring pages, for backends that write where they should not.
    pub(crate) tx_page: SharedPages,
    pub(crate) rx_page: SharedPages,
    pub(crate) events: QueueEvents<LoopbackEvent>,
    pub(crate) pool: FramePool,
    pub(crate) counters: Arc<QueueCounters>,
    /// The guest's posted pages, in slot order.
    pub(crate) posted: Vec<RxRequest>,
    mappings: [ForeignPage; 2],
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let machine = Machine::new();
        let (front_events, events) = machine.channels();
        let counters = Arc::new(QueueCounters::default());
        let front = VifQueue::new(machine.grants(), HOST, front_events, Arc::clone(&counters));
        let mut front = front.expect("a new guest has memory");
        front.set_caps(OffloadCaps::ALL);
        let refs = front.config();
        let mappings = machine.map_rings([refs.tx_ring_ref, refs.rx_ring_ref]);
        let [tx_page, rx_page] = [0, 1].map(|ring| mappings[ring].pages().clone());
        let tx = BackRing::attach(tx_page.clone()).expect("a new ring is sound");
        let mut rx = BackRing::<Rx>::attach(rx_page.clone()).expect("a new ring is sound");
        let mut posted = vec![RxRequest::default(); 256];
        assert_eq!(rx.peek_requests(&mut posted), Ok((256, 256)), "every page is posted");
        rx.consume(256);
        let pool = FramePool::new(PoolBudget::new(64 << 20));
        Bench { machine, front, tx, rx, tx_page, rx_page, events, pool, counters, posted, mappings }
    }

    /// What the guest has asked to transmit since the last call, consumed.
    pub(crate) fn take_tx(&mut self) -> Vec<TxRequest> {
        let mut requests = [TxRequest::default(); 256];
        let (count, _) = self.tx.peek_requests(&mut requests).expect("our frontend is honest");
        self.tx.consume(count);
        requests[..count].to_vec()
    }

    /// Responds to the next rx slot with anything.
    pub(crate) fn respond(&mut self, response: impl IntoBytes + Immutable) -> Notify {
        self.rx.push_response(response);
        self.rx.publish_responses()
    }

    /// Writes into the page of an rx slot.
    pub(crate) fn fill(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        let gref = GrantRef(self.posted[slot % 256].gref);
        let page = self.machine.map(gref, Access::ReadWrite);
        page.pages().copy_from(offset, bytes);
    }

    /// Bytes of a granted page.
    pub(crate) fn read(&mut self, request: &TxRequest, len: usize) -> Vec<u8> {
        let gref = GrantRef(request.gref);
        let page = self.machine.map(gref, Access::ReadOnly);
        let mut bytes = vec![0; len];
        page.pages().copy_to(usize::from(request.offset), &mut bytes);
        bytes
    }

    /// One ingress call.
    pub(crate) fn ingress(&mut self) -> Result<FrameBatch, QueueDown> {
        let mut frames = FrameBatch::new();
        self.front.ingress(Budget::BATCH, &mut self.pool, &mut frames)?;
        Ok(frames)
    }

    /// One ingress call that ends in a fault of the backend.
    #[track_caller]
    pub(crate) fn ingress_fault<F: Error + Copy + 'static>(&mut self) -> F {
        fault_of(&self.ingress().expect_err("the backend is at fault"))
    }

    /// One egress call, of nothing, that ends in a fault of the backend.
    #[track_caller]
    pub(crate) fn egress_fault<F: Error + Copy + 'static>(&mut self) -> F {
        fault_of(&self.egress(Vec::new()).expect_err("the backend is at fault"))
    }

    /// One egress call; returns the frames that wait.
    pub(crate) fn egress(&mut self, frames: Vec<Frame>) -> Result<FrameQueue, QueueDown> {
        let mut queue = FrameQueue::from(frames);
        self.front.egress(&mut queue, &mut self.pool)?;
        Ok(queue)
    }

    /// A frame with these bytes.
    pub(crate) fn frame(&mut self, bytes: &[u8], offload: Offload) -> Frame {
        frames::frame(&mut self.pool, bytes, offload)
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        frames::dropped(&self.counters, reason)
    }

    /// The queue, and what the backend holds of it.
    pub(crate) fn into_parts(
        self,
    ) -> (Machine, VifQueue<LoopbackGrants, LoopbackEvent>, [ForeignPage; 2]) {
        (self.machine, self.front, self.mappings)
    }
}

/// The backend's fault.
#[track_caller]
pub(crate) fn fault_of<F: Error + Copy + 'static>(down: &QueueDown) -> F {
    match down {
        QueueDown::Peer(fault) => *fault.downcast_ref().expect("a fault of another kind"),
        QueueDown::Host(error) => panic!("the backend did nothing wrong: {error}"),
    }
}

/// A response of a plain slot.
pub(crate) fn response(slot: u16, flags: u16, status: i16) -> RxResponse {
    RxResponse { id: slot, offset: 0, flags, status }
}
