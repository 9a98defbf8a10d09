//! A network device of the backend's host and the stations behind it: an uplink, or the far end of
//! one guest's vif.
//!
//! To a port it is what a TAP device is: a queue of bounded length each way, a descriptor that is
//! edge-triggered, no request and no response. What the host's kernel holds is not memory of the
//! backend, so frames are copied in and out, as a system call would.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, FrameQueue, MacAddr, OffloadCaps, Pending,
    PoolBudget, PortDown, PortQueue, Probe, QueueCounters, QueueTraits, SMALL_LEN, Woken,
};

use crate::guest::Pace;

/// Frames that the kernel keeps in each queue of a device, each way.
pub(crate) const KERNEL_FRAMES_MAX: usize = 48;
/// Memory of the kernel, of which there is enough.
const KERNEL_BYTES: usize = 32 << 20;
/// A port reads into a buffer that holds any frame.
const READ_LEN: usize = 1 << 16;
/// Bytes after which a port ends a batch.
const BATCH_BYTES: usize = 256 << 10;

/// A device, as the world outside of the backend sees it.
pub(crate) struct Device {
    kernel: Rc<RefCell<Kernel>>,
    pub(crate) kind: Kind,
    /// What the stations behind it may leave undone in their frames.
    pub(crate) caps: OffloadCaps,
    pub(crate) pace: Pace,
    /// Since everything was last accounted for, frames may have gone with a port.
    pub(crate) is_disturbed: bool,
}

/// What a device is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is a port of the switch, with several stations behind it.
    Uplink,
    /// It is patched to the vif of this guest, with one station behind it.
    Vif {
        /// The guest.
        guest: usize,
    },
}

/// A station behind a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Station {
    pub(crate) mac: MacAddr,
    /// Index of the device.
    pub(crate) device: usize,
}

/// What the host's kernel holds of a device.
struct Kernel {
    queues: Vec<KernelQueue>,
    pool: FramePool,
}

#[derive(Default)]
struct KernelQueue {
    /// From stations to the port.
    inwards: FrameQueue,
    /// From the port to stations.
    outwards: FrameQueue,
    /// A frame came to the port, or there is room again: reported once.
    has_event: bool,
    /// A frame of the port did not fit.
    was_full: bool,
}

impl Device {
    pub(crate) fn new(kind: Kind, queues: usize, caps: OffloadCaps) -> Device {
        let queues = (0..queues).map(|_| KernelQueue::default()).collect();
        let pool = FramePool::new(PoolBudget::new(KERNEL_BYTES));
        let kernel = Rc::new(RefCell::new(Kernel { queues, pool }));
        Device { kernel, kind, caps, pace: Pace::Fast, is_disturbed: false }
    }

    /// The device is made again, or serves another number of queues: what it held is gone.
    pub(crate) fn reset(&mut self, queues: usize) {
        let mut kernel = self.kernel.borrow_mut();
        kernel.queues.clear();
        kernel.queues.resize_with(queues, KernelQueue::default);
        self.is_disturbed = true;
    }

    pub(crate) fn queues(&self) -> usize {
        self.kernel.borrow().queues.len()
    }

    /// A port's view of one queue.
    pub(crate) fn queue(&self, number: usize, counters: Arc<QueueCounters>) -> DeviceQueue {
        let kernel = Rc::clone(&self.kernel);
        DeviceQueue { kernel, number, counters, may_have_more: false }
    }

    /// Lets a station send by one queue, if the kernel has room for a frame.
    pub(crate) fn send(
        &self,
        queue: usize,
        make: impl FnOnce(&mut FramePool) -> Option<Frame>,
    ) -> bool {
        let kernel = &mut *self.kernel.borrow_mut();
        let queue = &mut kernel.queues[queue];
        if queue.inwards.len() >= KERNEL_FRAMES_MAX {
            return false;
        }
        let Some(frame) = make(&mut kernel.pool) else { return false };
        queue.inwards.push_back(frame);
        queue.has_event = true;
        true
    }

    /// What the port has sent by one queue, up to so many frames.
    pub(crate) fn receive(&self, queue: usize, frames: usize, into: &mut FrameBatch) {
        let queue = &mut self.kernel.borrow_mut().queues[queue];
        let was_full = queue.outwards.len() >= KERNEL_FRAMES_MAX;
        let count = frames.min(queue.outwards.len()).min(into.remaining_capacity());
        into.extend(queue.outwards.drain(..count));
        queue.has_event |= was_full && count > 0;
    }

    pub(crate) fn recycle(&self, frame: Frame) {
        self.kernel.borrow_mut().pool.recycle(frame);
    }

    /// Whether a frame of the port did not fit since the last call.
    pub(crate) fn take_fullness(&self) -> bool {
        let queues = &mut self.kernel.borrow_mut().queues;
        queues.iter_mut().any(|queue| std::mem::take(&mut queue.was_full))
    }

    /// Frames that wait for the port in all queues.
    pub(crate) fn waiting(&self) -> usize {
        self.kernel.borrow().queues.iter().map(|queue| queue.inwards.len()).sum()
    }
}

/// One queue of a device, as a port.
pub(crate) struct DeviceQueue {
    kernel: Rc<RefCell<Kernel>>,
    number: usize,
    counters: Arc<QueueCounters>,
    /// The last ingress stopped before it found the queue empty, so that no event will come.
    may_have_more: bool,
}

/// What tells a thread that a queue has something to do.
#[derive(Clone)]
pub(crate) struct DeviceEvent {
    kernel: Rc<RefCell<Kernel>>,
    number: usize,
}

impl DeviceEvent {
    pub(crate) fn is_there(&self) -> bool {
        self.kernel.borrow().queues.get(self.number).is_some_and(|queue| queue.has_event)
    }

    /// It was reported.
    pub(crate) fn clear(&self) {
        if let Some(queue) = self.kernel.borrow_mut().queues.get_mut(self.number) {
            queue.has_event = false;
        }
    }
}

impl DeviceQueue {
    pub(crate) fn event(&self) -> DeviceEvent {
        DeviceEvent { kernel: Rc::clone(&self.kernel), number: self.number }
    }
}

impl PortQueue for DeviceQueue {
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown> {
        if budget.is_nothing() {
            return Ok(());
        }
        let kernel = &mut *self.kernel.borrow_mut();
        let Some(queue) = kernel.queues.get_mut(self.number) else { return Ok(()) };
        let bytes_max = budget.bytes.min(BATCH_BYTES);
        let mut bytes = 0;
        self.may_have_more = true;
        for _ in 0..into.remaining_capacity().min(budget.frames) {
            if bytes >= bytes_max {
                break;
            }
            // The reader does not know how long the frame will be.
            let Some(mut buffer) = pool.take(READ_LEN) else {
                self.may_have_more = false;
                break;
            };
            let Some(frame) = queue.inwards.pop_front() else {
                pool.recycle(buffer);
                self.may_have_more = false;
                break;
            };
            if frame.len() <= SMALL_LEN {
                let small = pool.take(frame.len());
                pool.recycle(buffer);
                let Some(small) = small else {
                    self.counters.dropped.count(DropReason::NoBuffer, 1);
                    kernel.pool.recycle(frame);
                    continue;
                };
                buffer = small;
            }
            bytes += frame.len();
            into.push(copied(&frame, buffer));
            kernel.pool.recycle(frame);
        }
        Ok(())
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        let kernel = &mut *self.kernel.borrow_mut();
        let Some(queue) = kernel.queues.get_mut(self.number) else { return Ok(()) };
        while let Some(frame) = from.front() {
            if queue.outwards.len() >= KERNEL_FRAMES_MAX {
                queue.was_full = true;
                break;
            }
            let Some(buffer) = kernel.pool.take(frame.len()) else { break };
            queue.outwards.push_back(copied(frame, buffer));
            from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<Pending, PortDown> {
        Ok(if self.may_have_more { Pending::Work } else { Pending::Nothing })
    }

    fn woken(&mut self, _: Woken) -> Result<(), PortDown> {
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits {
            caps: OffloadCaps::ALL,
            probe: Probe::SystemCall,
            retry: Some(std::time::Duration::from_millis(50)),
            takes_bodies: false,
        }
    }
}

fn copied(frame: &Frame, mut buffer: Frame) -> Frame {
    buffer.set_len(frame.len());
    buffer.bytes_mut().copy_from_slice(frame.bytes());
    buffer.offload = frame.offload;
    buffer
}
