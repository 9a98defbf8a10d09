//! A network device of the backend's host and the stations behind it: an uplink, or the far end of
//! one guest's vif.
//!
//! To a port it looks like a TAP device: a queue of bounded length each way, an edge-triggered
//! descriptor, no requests and no responses. Memory of the host's kernel is not memory of the
//! backend, so frames are copied in and out, as a system call would.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, FrameQueue, MacAddr, OffloadCaps, Pending,
    PoolBudget, PortQueue, Probe, QueueCounters, QueueDown, QueueTraits, SMALL_LEN, Woken,
};

use crate::canary::Canary;
use crate::guest::Pace;
use crate::ledger::{Ledger, Owner};

/// Frames that the kernel holds in each queue of a device, each way.
pub(crate) const KERNEL_FRAMES_MAX: usize = 48;
/// Memory of the kernel, which is always sufficient.
const KERNEL_BYTES: usize = 32 << 20;
/// A port reads into a buffer that holds any frame.
const READ_LEN: usize = 1 << 16;
/// Bytes after which a port ends a batch.
const BATCH_BYTES: usize = 256 << 10;

/// A device, as seen from outside of the backend.
pub(crate) struct Device {
    kernel: Rc<RefCell<Kernel>>,
    pub(crate) kind: Kind,
    /// The offloads that the stations behind it may leave in their frames.
    pub(crate) caps: OffloadCaps,
    pub(crate) pace: Pace,
    /// Since the last balance, frames may have been lost with a port.
    is_disturbed: Rc<Cell<bool>>,
    /// Whether it will refuse its queues once.
    will_refuse: Rc<Cell<bool>>,
}

/// A device, as the backend's process opens it.
#[derive(Clone)]
pub(crate) struct Tap {
    kernel: Rc<RefCell<Kernel>>,
    is_disturbed: Rc<Cell<bool>>,
    will_refuse: Rc<Cell<bool>>,
    owner: (Owner, Ledger),
    canary: Option<Canary>,
}

/// The use of a device.
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

/// The part of a device in the host's kernel.
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
    /// A frame for the port has arrived, or there is room again: reported once.
    has_event: bool,
    /// A frame of the port had no room.
    was_full: bool,
}

impl Device {
    /// A device without queues.
    pub(crate) fn new(kind: Kind, caps: OffloadCaps) -> Device {
        let pool = FramePool::new(PoolBudget::new(KERNEL_BYTES));
        let kernel = Rc::new(RefCell::new(Kernel { queues: Vec::new(), pool }));
        let (is_disturbed, will_refuse) = Default::default();
        Device { kernel, kind, caps, pace: Pace::Fast, is_disturbed, will_refuse }
    }

    pub(crate) fn is_disturbed(&self) -> bool {
        self.is_disturbed.get()
    }

    pub(crate) fn set_disturbed(&self, is_disturbed: bool) {
        self.is_disturbed.set(is_disturbed);
    }

    /// Whether it will refuse its queues once.
    pub(crate) fn will_refuse(&self) -> bool {
        self.will_refuse.get()
    }

    /// Lets it refuse its queues once.
    pub(crate) fn refuse_next(&self) {
        self.will_refuse.set(true);
    }

    /// Opens it for a process. `number` is its own.
    pub(crate) fn open(&self, number: usize, ledger: &Ledger, canary: Option<Canary>) -> Tap {
        Tap {
            kernel: Rc::clone(&self.kernel),
            is_disturbed: Rc::clone(&self.is_disturbed),
            will_refuse: Rc::clone(&self.will_refuse),
            owner: (Owner::Device(number), ledger.clone()),
            canary,
        }
    }

    pub(crate) fn queues(&self) -> usize {
        self.kernel.borrow().queues.len()
    }

    /// Lets a station send on one queue, if the kernel has room for a frame.
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

    /// Takes up to `frames` frames that the port has sent on one queue.
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

    /// Whether a frame of the port had no room since the last call.
    pub(crate) fn take_fullness(&self) -> bool {
        let queues = &mut self.kernel.borrow_mut().queues;
        queues.iter_mut().any(|queue| std::mem::take(&mut queue.was_full))
    }

    /// Frames that wait for the port in all queues.
    pub(crate) fn waiting(&self) -> usize {
        self.kernel.borrow().queues.iter().map(|queue| queue.inwards.len()).sum()
    }
}

impl Tap {
    /// Gives the device so many queues: frames in others are lost.
    pub(crate) fn enable(&self, queues: usize) -> io::Result<()> {
        if self.will_refuse.take() {
            return Err(io::Error::other("the network device refuses its queues"));
        }
        if self.kernel.borrow().queues.len() != queues {
            self.reopen(queues);
        }
        Ok(())
    }

    /// The device is made again, with so many queues: frames in it are lost.
    pub(crate) fn reopen(&self, queues: usize) {
        let kernel = &mut self.kernel.borrow_mut();
        kernel.queues.clear();
        kernel.queues.resize_with(queues, KernelQueue::default);
        self.is_disturbed.set(true);
    }

    /// Its queues, with these counters.
    pub(crate) fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<DeviceQueue> {
        let queue = |(number, counters): (usize, &Arc<QueueCounters>)| DeviceQueue {
            kernel: Rc::clone(&self.kernel),
            number,
            counters: Arc::clone(counters),
            owner: self.owner.clone(),
            canary: self.canary,
            may_have_more: false,
        };
        counters.iter().enumerate().map(queue).collect()
    }
}

/// One queue of a device.
pub(crate) struct DeviceQueue {
    kernel: Rc<RefCell<Kernel>>,
    number: usize,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) owner: (Owner, Ledger),
    pub(crate) canary: Option<Canary>,
    /// The last ingress stopped before it found the queue empty, so no event will come.
    may_have_more: bool,
}

/// Reports to a thread that a queue has work.
#[derive(Clone)]
pub(crate) struct DeviceEvent {
    kernel: Rc<RefCell<Kernel>>,
    number: usize,
}

impl DeviceEvent {
    pub(crate) fn is_there(&self) -> bool {
        self.kernel.borrow().queues.get(self.number).is_some_and(|queue| queue.has_event)
    }

    /// Clears the event after its report.
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
    ) -> Result<(), QueueDown> {
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
            // The reader does not know the length of the next frame.
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

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), QueueDown> {
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

    fn arm(&mut self) -> Result<Pending, QueueDown> {
        Ok(if self.may_have_more { Pending::Work } else { Pending::Nothing })
    }

    fn woken(&mut self, _: Woken) -> Result<(), QueueDown> {
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits {
            caps: OffloadCaps::ALL,
            probe: Probe::SystemCall,
            retry: Some(std::time::Duration::from_millis(50)),
            takes_bodies: false,
            takes_loans: false,
        }
    }
}

fn copied(frame: &Frame, mut buffer: Frame) -> Frame {
    buffer.set_len(frame.len());
    buffer.bytes_mut().copy_from_slice(frame.bytes());
    buffer.offload = frame.offload;
    buffer
}
