//! The device side of virtio-net: [`QueuePair`] is one of its pairs of queues, as a [`PortQueue`].
//!
//! It serves a guest that it does not trust, through the guest's memory and two pairs of event
//! descriptors, and knows nothing of the messages by which it got them. Chains are used in the
//! order in which they were taken, always. Read `ingress.rs` for the way of a frame that the guest
//! transmits, `egress.rs` for one that it receives.

mod announce;
mod egress;
mod fault;
mod ingress;
mod log;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ringway_datapath::{
    Budget, FrameBatch, FrameForm, FramePool, FrameQueue, Interest, Pending, PortDown, PortQueue,
    Probe, QueueCounters, QueueTraits, Wakers, Woken,
};
use ringway_sys::SharedPages;
use ringway_sys::bell::Bell;
use ringway_sys::guest_memory::{GuestMemory, GuestView};
use ringway_virtio::{
    Access, Buffers, Chain, DeviceHalf, Notify, QueueAreas, QueueOptions, QueuePlace, Waiting, Want,
};
use ringway_wire::virtio::Features;

pub use fault::PairFault;
pub use log::LogPlace;

use announce::Announcement;
use log::RingLog;

/// One of the two queues, as the front-end's messages describe it.
#[derive(Debug)]
pub struct QueueParts {
    /// Where it is.
    pub place: QueuePlace,
    /// Where to go on (`SET_VRING_BASE`).
    pub base: u32,
    /// By which the guest wakes us.
    pub kick: OwnedFd,
    /// By which we wake the guest; none if it polls.
    pub call: Option<OwnedFd>,
    /// Where what we write is logged, while the guest is migrated.
    pub log: Option<LogPlace>,
    /// Where it is noted what is under way, if it is.
    pub inflight: Option<InflightPlace>,
}

/// The part of a queue in an area that notes what is under way (`SET_INFLIGHT_FD`).
#[derive(Debug, Clone)]
pub struct InflightPlace {
    /// Its bytes: as many as the layout of the queue has for so many descriptors.
    pub pages: SharedPages,
    /// Descriptors that there is room for.
    pub descriptors: u16,
}

/// Everything a pair is made of, once both sides have agreed.
#[derive(Debug)]
pub struct PairParts {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// What was agreed on.
    pub features: Features,
    /// By which the guest transmits.
    pub tx: QueueParts,
    /// By which the guest receives.
    pub rx: QueueParts,
    /// What others see of the pair, and may change.
    pub control: Arc<PairControl>,
    /// Where to count.
    pub counters: Arc<QueueCounters>,
}

/// What threads share that do not own the pair.
#[derive(Debug, Default)]
pub struct PairControl {
    is_enabled: AtomicBool,
    announcement: Announcement,
    tx_base: AtomicU32,
    rx_base: AtomicU32,
}

impl PairControl {
    /// Of a pair that is enabled or not.
    pub fn new(is_enabled: bool) -> PairControl {
        PairControl { is_enabled: AtomicBool::new(is_enabled), ..PairControl::default() }
    }

    /// Enables or disables the pair (`SET_VRING_ENABLE`), from the next batch on. What the guest
    /// transmits by a disabled pair is taken and dropped, and nothing is given to it.
    pub fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Whether the pair is enabled.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Has the pair send a frame in the name of a guest with this address, with its next batch:
    /// who asks kicks its tx queue, too.
    pub fn announce(&self, mac: [u8; 6]) {
        self.announcement.ask(mac);
    }

    /// Where the tx queue's and the rx queue's successor would go on, as of the last batch
    /// (`GET_VRING_BASE`). Also of a pair that has failed.
    pub fn bases(&self) -> [u32; 2] {
        [self.tx_base.load(Ordering::Relaxed), self.rx_base.load(Ordering::Relaxed)]
    }
}

/// One pair of queues of a device: owned by one worker.
#[derive(Debug)]
pub struct QueuePair {
    view: GuestView,
    tx: Ring,
    rx: Ring,
    form: FrameForm,
    control: Arc<PairControl>,
    counters: Arc<QueueCounters>,
    /// A frame waits until the guest has made more room.
    is_rx_short: bool,
    /// Chains of the frame that is being written, and bytes in each. Holds nothing between frames.
    pending: Vec<(Chain, u32)>,
}

/// One queue with its descriptors.
#[derive(Debug)]
struct Ring {
    half: DeviceHalf,
    size: u16,
    buffers: Buffers,
    kick: Bell,
    call: Option<Bell>,
    log: Option<RingLog>,
}

impl QueuePair {
    /// Takes over the queues at their bases, and calls the guest on both, because events may have
    /// been lost while no one served them.
    ///
    /// # Errors
    /// [`PortDown::Peer`] with a [`PairFault`] if a queue cannot be where the front-end says.
    pub fn attach(parts: PairParts) -> Result<QueuePair, PortDown> {
        let PairParts { memory, features, tx, rx, control, counters } = parts;
        let form = FrameForm::of_device(features);
        let options = QueueOptions::of(features);
        let open = |parts, access, queue| Ring::open(&memory, options, parts, access, queue);
        let tx = open(tx, Access::Readable, TX)?;
        let rx = open(rx, Access::Writable, RX)?;
        let pair = QueuePair {
            view: GuestView::new(Arc::clone(&memory)),
            pending: Vec::with_capacity(usize::from(rx.size)),
            tx,
            rx,
            form,
            control,
            counters,
            is_rx_short: false,
        };
        pair.show_bases();
        pair.call(&pair.tx)?;
        pair.call(&pair.rx)?;
        Ok(pair)
    }

    /// Where the tx queue's and the rx queue's successor would go on.
    pub fn bases(&self) -> [u32; 2] {
        [self.tx.half.base(), self.rx.half.base()]
    }

    fn show_bases(&self) {
        let [tx, rx] = self.bases();
        self.control.tx_base.store(tx, Ordering::Relaxed);
        self.control.rx_base.store(rx, Ordering::Relaxed);
    }

    fn call(&self, ring: &Ring) -> Result<(), PortDown> {
        let Some(bell) = &ring.call else { return Ok(()) };
        self.counters.add_event_sent();
        bell.ring().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => PortDown::peer(PairFault::CallBlocks),
            _ => PortDown::Host(error),
        })
    }

    /// Whether the front-end took memory away that it had announced.
    #[inline]
    fn check_memory(&self) -> Result<(), PairFault> {
        if self.view.is_lost() { Err(PairFault::MemoryLost) } else { Ok(()) }
    }
}

impl Ring {
    fn open(
        memory: &GuestMemory,
        options: QueueOptions,
        parts: QueueParts,
        access: Access,
        queue: &'static str,
    ) -> Result<Ring, PortDown> {
        let QueueParts { place, base, kick, call, log, inflight } = parts;
        let areas = QueueAreas::find(memory, options.format, place)
            .map_err(|error| PortDown::peer(PairFault::Place { queue, error }))?;
        let half = match inflight {
            None => DeviceHalf::attach(areas, options, access, base),
            Some(InflightPlace { pages, descriptors }) => {
                DeviceHalf::resume(areas, options, access, base, (pages, descriptors))
            }
        };
        let half = half.map_err(|fault| PortDown::peer(PairFault::Queue { queue, fault }))?;
        let log = log.map(|log| RingLog::new(memory, options.format, place, log)).transpose();
        let log = log
            .map_err(|outside| PortDown::peer(PairFault::Queue { queue, fault: outside.into() }))?;
        // Taking it over has written our wish for events.
        log.iter().for_each(RingLog::mark_ring);
        Ok(Ring {
            half,
            size: place.size,
            buffers: Buffers::new(place.size),
            kick: Bell::from_peer(kick)?,
            call: call.map(Bell::to_peer).transpose()?,
            log,
        })
    }

    /// Makes what was used visible, and logs it.
    fn publish(&mut self) -> Notify {
        match &self.log {
            None => self.half.publish(),
            Some(log) => {
                log.mark_ring();
                let notify = self.half.publish();
                // Once more, now that the index is written.
                log.mark_ring();
                notify
            }
        }
    }

    fn arm(&mut self, want: Want) -> Waiting {
        let waiting = self.half.arm(want);
        if let Some(log) = &self.log {
            log.mark_ring();
        }
        waiting
    }
}

/// For messages.
const TX: &str = "tx";
const RX: &str = "rx";

impl PortQueue for QueuePair {
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown> {
        match budget.is_nothing() {
            // Chains are used as they are taken: nothing is due.
            true => Ok(()),
            false => self.take_frames(budget, pool, into),
        }
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        self.give_frames(from, pool)
    }

    fn arm(&mut self) -> Result<Pending, PortDown> {
        let tx = self.tx.arm(Want::Any);
        let rx = match self.is_rx_short {
            true => self.rx.arm(Want::More),
            false => Waiting::Nothing,
        };
        let is_idle = [tx, rx] == [Waiting::Nothing; 2];
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result<(), PortDown> {
        for (index, ring) in [&self.tx, &self.rx].into_iter().enumerate() {
            let is_meant = by == Woken::Unknown || by == Woken::By(index);
            if is_meant && ring.kick.clear()? {
                self.counters.add_event_received();
            }
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits { caps: self.form.caps, probe: Probe::Memory, retry: None, takes_bodies: false }
    }
}

impl Wakers for QueuePair {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        for ring in [&self.tx, &self.rx] {
            visit(ring.kick.as_fd(), Interest::Readable);
        }
    }
}
