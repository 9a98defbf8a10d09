//! A queue of a vif as a device of smoltcp.
//!
//! Frames move in batches between the rings and two queues here, in [`VifDevice::exchange`];
//! smoltcp takes and returns them one by one. Each frame is copied once, between this process's
//! memory and pages that are granted to the backend. Once the pool is warm, nothing is allocated.

use std::cell::RefCell;

use ringway_datapath::{
    BATCH, Budget, Frame, FrameBatch, FramePool, FrameQueue, Pending, PoolBudget, PortQueue,
    QueueDown, Woken,
};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// The longest frame, its Ethernet header included: an MTU of 1500.
const FRAME_LEN_MAX: usize = 1514;
/// Memory of all frames: three batches of the longest that a backend may send, and one batch of our
/// own.
const POOL_BYTES: usize = 16 << 20;

/// A network device with one queue, or with none while the vif is not connected.
pub(crate) struct VifDevice<Q> {
    queue: Option<Q>,
    /// Shared by both tokens of an incoming frame.
    pool: RefCell<FramePool>,
    arrived: FrameQueue,
    leaving: FrameQueue,
}

impl<Q: PortQueue> VifDevice<Q> {
    pub(crate) fn new() -> VifDevice<Q> {
        let pool = RefCell::new(FramePool::new(PoolBudget::new(POOL_BYTES)));
        VifDevice { queue: None, pool, arrived: FrameQueue::new(), leaving: FrameQueue::new() }
    }

    /// From now on, frames pass through this queue.
    pub(crate) fn attach(&mut self, queue: Q) {
        self.queue = Some(queue);
    }

    /// From now on, frames wait.
    pub(crate) fn detach(&mut self) -> Option<Q> {
        self.queue.take()
    }

    /// Sends waiting frames, and takes in those that have arrived.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    pub(crate) fn exchange(&mut self) -> Result<(), QueueDown> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        queue.egress(&mut self.leaving, self.pool.get_mut())?;
        if self.arrived.is_empty() {
            let mut batch = FrameBatch::new();
            queue.ingress(Budget::BATCH, self.pool.get_mut(), &mut batch)?;
            self.arrived.extend(batch);
        }
        Ok(())
    }

    /// Requests an event for the next exchange. Frames that have already arrived count as work,
    /// unless they must wait until others have left.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    pub(crate) fn arm(&mut self) -> Result<Pending, QueueDown> {
        let may_go_on = !self.arrived.is_empty() && !self.is_full();
        match &mut self.queue {
            _ if may_go_on => Ok(Pending::Work),
            Some(queue) => queue.arm(),
            None => Ok(Pending::Nothing),
        }
    }

    /// Whether smoltcp must wait until frames have left.
    fn is_full(&self) -> bool {
        self.leaving.len() >= BATCH
    }

    /// Clears the event.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    pub(crate) fn woken(&mut self) -> Result<(), QueueDown> {
        self.queue.as_mut().map_or(Ok(()), |queue| queue.woken(Woken::Unknown))
    }
}

impl<Q: PortQueue> phy::Device for VifDevice<Q> {
    type RxToken<'a>
        = Arrived<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Leaving<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, Leaving<'_>)> {
        if self.is_full() {
            return None;
        }
        let frame = self.arrived.pop_front()?;
        let VifDevice { pool, leaving, .. } = self;
        Some((Arrived { frame, pool }, Leaving { pool, leaving }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        if self.is_full() {
            return None;
        }
        let VifDevice { pool, leaving, .. } = self;
        Some(Leaving { pool, leaving })
    }

    /// smoltcp computes all checksums: the guest leaves no work to its backend.
    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_LEN_MAX;
        capabilities.max_burst_size = Some(BATCH);
        capabilities
    }
}

/// An incoming frame.
pub(crate) struct Arrived<'a> {
    frame: Frame,
    pool: &'a RefCell<FramePool>,
}

impl phy::RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        let result = read(self.frame.bytes());
        self.pool.borrow_mut().recycle(self.frame);
        result
    }
}

/// Room for an outgoing frame.
pub(crate) struct Leaving<'a> {
    pool: &'a RefCell<FramePool>,
    leaving: &'a mut FrameQueue,
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let frame = self.pool.borrow_mut().take(len);
        let mut frame = frame.expect("the pool is larger than a batch each way");
        let result = write(frame.bytes_mut());
        self.leaving.push_back(frame);
        result
    }
}
