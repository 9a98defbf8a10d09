//! A network device of the backend's host and the stations behind it: an uplink, or a link on the
//! bridge that one guest's vif is on.
//!
//! To a port, a TAP device is a queue of bounded length each way, an edge-triggered descriptor, no
//! requests and no responses. Memory of the host's kernel is not memory of the backend, so frames
//! are copied in and out, as a system call would.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use ringway_datapath::{
    Budget, Checksum, DropReason, Ends, Frame, FrameBatch, FramePool, FrameQueue, MacAddr,
    OffloadCaps, PeerProgress, Pending, PoolBudget, PortQueue, Probe, QueueCounters, QueueTraits,
    Result, SMALL_LEN, Wakers, Woken, segment,
};

use crate::canary::Canary;
use crate::guest::Pace;
use crate::kernel::{SimKernel, Wire};
use crate::ledger::{Ledger, Owner};

/// Frames that the kernel holds in each queue of a device, each way.
pub(crate) const KERNEL_FRAMES_MAX: usize = 48;
/// Memory of the kernel, which is always sufficient.
const KERNEL_BYTES: usize = 32 << 20;
/// Frames that one call sends to nowhere.
const FRAMES_LOST_MAX: usize = 256;
/// A port reads into a buffer that holds any frame.
const READ_LEN: usize = 1 << 16;
/// Bytes after which a port ends a batch.
const BATCH_BYTES: usize = 256 << 10;

/// A device, as seen from outside of the backend.
pub(crate) struct Device {
    place: Place,
    pub(crate) kind: Kind,
    /// The offloads that the stations behind it may leave in their frames.
    pub(crate) caps: OffloadCaps,
    pub(crate) pace: Pace,
    condition: Condition,
}

/// What happens to a device, however often it is made again. Clones are handles of one.
#[derive(Clone, Default)]
pub(crate) struct Condition {
    /// Since the last balance, frames may have been lost with a port.
    is_disturbed: Rc<Cell<bool>>,
    /// Whether it will refuse its queues once.
    will_refuse: Rc<Cell<bool>>,
    /// Whether frames that are marked valid leave by it with their checksums. The kernel makes
    /// these blank otherwise.
    is_plain: Rc<Cell<bool>>,
    /// Frames that have left by it with work undone.
    unfinished: Rc<Cell<u64>>,
}

impl Condition {
    /// Counts a frame that leaves, if work is left to do in it.
    fn count(&self, frame: &Frame) {
        let is_made_blank = !self.is_plain.get() && frame.offload.checksum == Checksum::Validated;
        let is_unfinished = is_made_blank || !segment::is_ready(frame);
        self.unfinished.set(self.unfinished.get() + u64::from(is_unfinished));
    }
}

/// Where stations are.
enum Place {
    /// Behind this TAP device.
    Tap(Rc<RefCell<Kernel>>),
    /// Behind the link of this name.
    Link(SimKernel<Tap>, String),
}

/// A TAP device, as the backend's process opens it.
#[derive(Clone)]
pub(crate) struct Tap {
    kernel: Rc<RefCell<Kernel>>,
    condition: Condition,
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

/// The part of a TAP device in the host's kernel.
struct Kernel {
    queues: Vec<KernelQueue>,
    pool: FramePool,
    /// Whether frames of the port go anywhere.
    is_connected: bool,
    /// Whether the device was deleted.
    is_cut: bool,
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

impl Kernel {
    fn new(is_connected: bool) -> Rc<RefCell<Kernel>> {
        let pool = FramePool::new(PoolBudget::new(KERNEL_BYTES));
        Rc::new(RefCell::new(Kernel { queues: Vec::new(), pool, is_connected, is_cut: false }))
    }

    /// Whether calls for its queues succeed.
    fn check(&self) -> Result {
        match self.is_cut {
            true => Err(io::Error::other("the device was deleted").into()),
            false => Ok(()),
        }
    }
}

impl Device {
    /// An uplink, without queues.
    pub(crate) fn uplink() -> Device {
        let place = Place::Tap(Kernel::new(true));
        Device::new(place, Kind::Uplink, OffloadCaps::ALL, Condition::default())
    }

    /// A link on the bridge of a guest's vif. `condition` is shared with TAP devices of the vif.
    pub(crate) fn of_vif(
        guest: usize,
        caps: OffloadCaps,
        (kernel, link): (&SimKernel<Tap>, String),
        condition: Condition,
    ) -> Device {
        Device::new(Place::Link(kernel.clone(), link), Kind::Vif { guest }, caps, condition)
    }

    fn new(place: Place, kind: Kind, caps: OffloadCaps, condition: Condition) -> Device {
        Device { place, kind, caps, pace: Pace::Fast, condition }
    }

    /// The TAP device by which frames reach the backend, if one does so at present.
    fn kernel(&self) -> Option<Rc<RefCell<Kernel>>> {
        match &self.place {
            Place::Tap(kernel) => Some(Rc::clone(kernel)),
            Place::Link(kernel, link) => kernel.opposite(link).map(|tap| tap.kernel),
        }
    }

    /// Whether stations reach the backend.
    pub(crate) fn is_connected(&self) -> bool {
        self.kernel().is_some()
    }

    pub(crate) fn is_disturbed(&self) -> bool {
        self.condition.is_disturbed.get()
    }

    pub(crate) fn set_disturbed(&self, is_disturbed: bool) {
        self.condition.is_disturbed.set(is_disturbed);
    }

    /// How many frames have left by it with work undone since the last call.
    pub(crate) fn take_unfinished(&self) -> u64 {
        self.condition.unfinished.take()
    }

    /// Whether it will refuse its queues once.
    pub(crate) fn will_refuse(&self) -> bool {
        self.condition.will_refuse.get()
    }

    /// Lets it refuse its queues once.
    pub(crate) fn refuse_next(&self) {
        self.condition.will_refuse.set(true);
    }

    /// Opens an uplink for a process. `number` is its own.
    pub(crate) fn open(
        &self,
        number: usize,
        ledger: &Ledger,
        canary: Option<Canary>,
    ) -> Option<Tap> {
        let Place::Tap(kernel) = &self.place else { return None };
        let (kernel, condition) = (Rc::clone(kernel), self.condition.clone());
        Some(Tap { kernel, condition, owner: (Owner::Device(number), ledger.clone()), canary })
    }

    pub(crate) fn queues(&self) -> usize {
        self.kernel().map_or(0, |kernel| kernel.borrow().queues.len())
    }

    /// Lets a station send on one queue, if the kernel has room for a frame.
    pub(crate) fn send(
        &self,
        queue: usize,
        make: impl FnOnce(&mut FramePool) -> Option<Frame>,
    ) -> bool {
        let Some(kernel) = self.kernel() else { return false };
        let kernel = &mut *kernel.borrow_mut();
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
        let Some(kernel) = self.kernel() else { return };
        let queue = &mut kernel.borrow_mut().queues[queue];
        let was_full = queue.outwards.len() >= KERNEL_FRAMES_MAX;
        let count = frames.min(queue.outwards.len()).min(into.remaining_capacity());
        into.extend(queue.outwards.drain(..count));
        queue.has_event |= was_full && count > 0;
    }

    pub(crate) fn recycle(&self, frame: Frame) {
        if let Some(kernel) = self.kernel() {
            kernel.borrow_mut().pool.recycle(frame);
        }
    }

    /// Whether a frame of the port had no room since the last call.
    pub(crate) fn take_fullness(&self) -> bool {
        self.kernel().is_some_and(|kernel| {
            let queues = &mut kernel.borrow_mut().queues;
            queues.iter_mut().any(|queue| std::mem::take(&mut queue.was_full))
        })
    }

    /// Frames that wait for the port in all queues.
    pub(crate) fn waiting(&self) -> usize {
        let waiting = |kernel: &Kernel| kernel.queues.iter().map(|queue| queue.inwards.len()).sum();
        self.kernel().map_or(0, |kernel| waiting(&kernel.borrow()))
    }
}

impl Wire for Tap {
    type Queue = DeviceQueue;

    /// Frames in it are lost, unless it has so many queues already.
    fn enable(&self, queues: u16) {
        if self.kernel.borrow().queues.len() != usize::from(queues) {
            self.reopen(queues.into());
        }
    }

    fn connect(&self, is_connected: bool) {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.is_connected == is_connected {
            return;
        }
        kernel.is_connected = is_connected;
        self.condition.is_disturbed.set(true);
        for queue in &mut kernel.queues {
            queue.outwards.clear();
            queue.has_event = true;
        }
    }

    fn cut(&self) {
        self.connect(false);
        self.kernel.borrow_mut().is_cut = true;
        self.condition.is_disturbed.set(true);
    }

    fn set_plain(&self, is_plain: bool) {
        self.condition.is_plain.set(is_plain);
    }

    fn take_refusal(&self) -> Option<io::Error> {
        let is_refused = self.condition.will_refuse.take();
        is_refused.then(|| io::Error::other("the network device refuses its queues"))
    }

    fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<DeviceQueue> {
        let queue = |(number, counters): (usize, &Arc<QueueCounters>)| DeviceQueue {
            kernel: Rc::clone(&self.kernel),
            number,
            counters: Arc::clone(counters),
            owner: self.owner.clone(),
            canary: self.canary,
            condition: self.condition.clone(),
            may_have_more: false,
        };
        counters.iter().enumerate().map(queue).collect()
    }
}

impl Tap {
    /// A TAP device of a vif. `device` is the number of the far end.
    pub(crate) fn of_vif(
        device: usize,
        condition: &Condition,
        ledger: &Ledger,
        canary: Option<Canary>,
    ) -> Tap {
        let (kernel, owner) = (Kernel::new(false), (Owner::Device(device), ledger.clone()));
        Tap { kernel, condition: condition.clone(), owner, canary }
    }

    /// The device is made again, with so many queues: frames in it are lost.
    pub(crate) fn reopen(&self, queues: usize) {
        let kernel = &mut self.kernel.borrow_mut();
        kernel.queues.clear();
        kernel.queues.resize_with(queues, KernelQueue::default);
        self.condition.is_disturbed.set(true);
    }
}

/// One queue of a device.
pub(crate) struct DeviceQueue {
    kernel: Rc<RefCell<Kernel>>,
    number: usize,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) owner: (Owner, Ledger),
    pub(crate) canary: Option<Canary>,
    condition: Condition,
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
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        let kernel = &mut *self.kernel.borrow_mut();
        kernel.check()?;
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

    fn settle(&mut self, _: &mut FramePool) -> Result {
        Ok(())
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        let kernel = &mut *self.kernel.borrow_mut();
        kernel.check()?;
        let Some(queue) = kernel.queues.get_mut(self.number) else { return Ok(()) };
        if !kernel.is_connected {
            from.drain(..from.len().min(FRAMES_LOST_MAX)).for_each(|frame| pool.recycle(frame));
            queue.has_event |= !from.is_empty();
            return Ok(());
        }
        while let Some(frame) = from.front() {
            if queue.outwards.len() >= KERNEL_FRAMES_MAX {
                queue.was_full = true;
                break;
            }
            let Some(buffer) = kernel.pool.take(frame.len()) else { break };
            self.condition.count(frame);
            queue.outwards.push_back(copied(frame, buffer));
            from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<Pending> {
        Ok(if self.may_have_more { Pending::Work } else { Pending::Nothing })
    }

    fn woken(&mut self, _: Woken) -> Result {
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits {
            caps: OffloadCaps::ALL,
            probe: Probe::SystemCall,
            retry: Some(std::time::Duration::from_millis(50)),
            takes: Ends::NONE,
        }
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

/// The world asks it for its event, without a descriptor.
impl Wakers for DeviceQueue {
    fn wakers(&self, _: &mut dyn FnMut(BorrowedFd<'_>)) {}
}

fn copied(frame: &Frame, mut buffer: Frame) -> Frame {
    buffer.set_len(frame.len());
    buffer.bytes_mut().copy_from_slice(frame.bytes());
    buffer.offload = frame.offload;
    buffer
}
