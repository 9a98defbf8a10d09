//! A queue of a vif as a device of smoltcp.
//!
//! Frames move in batches between the rings and two queues here, in [`VifDevice::exchange`];
//! smoltcp takes and gives them one by one. A frame is copied once each way, between this process's
//! memory and pages that are granted to the backend. Nothing is allocated once the pool is warm.

use std::cell::RefCell;

use ringway_datapath::{
    BATCH, Budget, Frame, FrameBatch, FramePool, FrameQueue, Pending, PoolBudget, PortQueue,
    QueueDown, Woken,
};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// The longest frame, its Ethernet header included: an MTU of 1500.
const FRAME_LEN_MAX: usize = 1514;
/// Memory of all frames: three times a batch of the longest that a backend may send, and a batch of
/// ours.
const POOL_BYTES: usize = 16 << 20;

/// A network device with one queue, or with none while the vif is not connected.
pub(crate) struct VifDevice<Q> {
    queue: Option<Q>,
    /// Both tokens of a frame that arrives may use it.
    pool: RefCell<FramePool>,
    arrived: FrameQueue,
    leaving: FrameQueue,
}

impl<Q: PortQueue> VifDevice<Q> {
    pub(crate) fn new() -> VifDevice<Q> {
        let pool = RefCell::new(FramePool::new(PoolBudget::new(POOL_BYTES)));
        VifDevice { queue: None, pool, arrived: FrameQueue::new(), leaving: FrameQueue::new() }
    }

    /// Frames flow through this queue from now on.
    pub(crate) fn attach(&mut self, queue: Q) {
        self.queue = Some(queue);
    }

    /// Frames flow no more; those that wait to leave stay.
    pub(crate) fn detach(&mut self) -> Option<Q> {
        self.queue.take()
    }

    /// Sends what waits to leave, and takes in what has arrived.
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

    /// Asks for an event when there is something to exchange. What has arrived already is work,
    /// unless it has to wait until frames have left.
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

    /// Whether smoltcp is to wait until frames have left.
    fn is_full(&self) -> bool {
        self.leaving.len() >= BATCH
    }

    /// Takes the event.
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

    /// Checksums are smoltcp's: the guest offers its backend no offload.
    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_LEN_MAX;
        capabilities.max_burst_size = Some(BATCH);
        capabilities
    }
}

/// A frame that has arrived.
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

/// Room for a frame that is to leave.
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
