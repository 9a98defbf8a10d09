//! The device side of virtio-net: [`QueuePair`] is one of its pairs of queues, as a [`PortQueue`].
//!
//! It serves an untrusted guest through the guest's memory and two pairs of event descriptors. Only
//! `parts.rs` knows the plan that the front-end's messages result in. Chains are always used in the
//! order in which they were taken. Read `ingress.rs` for the path of a frame that the guest
//! transmits, and `egress.rs` for one that it receives.

mod egress;
mod fault;
mod inflight;
mod ingress;
mod lending;
mod log;
mod parts;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ringway_datapath::{
    Budget, Ends, FrameBatch, FrameForm, FramePool, FrameQueue, PeerProgress, Pending, PortQueue,
    QueueCounters, QueueDown, QueueTraits, Result, Wakers, Woken,
};
use ringway_sys::SharedPages;
use ringway_sys::eventfd::{EventFd, PeerCounters};
use ringway_sys::guest_memory::{GuestMemory, GuestView, LossCheck, RegionInfo, SharedFile};
use ringway_virtio::{
    Access, Buffers, Chain, DeviceHalf, Notify, NotifyWhen, QueueAreas, QueueOptions, QueuePlace,
    Waiting,
};
use ringway_wire::virtio::Features;

pub use fault::PairFault;
pub use inflight::InflightArea;
pub use log::LogPlace;
pub use parts::{PartsError, used_index};

use lending::Lending;
use log::RingLog;

/// One of the two queues, as the front-end's messages describe it.
#[derive(Debug)]
pub struct QueueParts {
    /// The addresses of its areas.
    pub place: QueuePlace,
    /// Where to continue (`SET_VRING_BASE`).
    pub base: u32,
    /// The descriptor with which the guest notifies us.
    pub kick: OwnedFd,
    /// The descriptor with which we notify the guest; none if it polls.
    pub call: Option<OwnedFd>,
    /// Where our writes are logged, while the guest is migrated.
    pub log: Option<LogPlace>,
    /// The record of chains in flight, if there is one.
    pub inflight: Option<InflightPlace>,
}

/// A queue's part of an inflight area (`SET_INFLIGHT_FD`).
#[derive(Debug, Clone)]
pub struct InflightPlace {
    /// Its bytes, in the layout of the queue for `descriptors` descriptors.
    pub pages: SharedPages,
    /// The number of descriptors that there is room for.
    pub descriptors: u16,
    /// The whole area.
    pub area: SharedFile,
}

/// Everything that a pair needs, after negotiation.
#[derive(Debug)]
pub struct PairParts {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// The negotiated features.
    pub features: Features,
    /// The queue on which the guest transmits.
    pub tx: QueueParts,
    /// The queue on which the guest receives.
    pub rx: QueueParts,
    /// The state of the pair that other threads may read and change.
    pub control: Arc<PairControl>,
    /// The counters to update.
    pub counters: Arc<QueueCounters>,
    /// The front-end's event counters that are written to, those of its other pairs included.
    pub calls: PeerCounters,
}

/// What a pair shares with threads that do not own it.
#[derive(Debug, Default)]
pub struct PairControl {
    is_enabled: AtomicBool,
    tx_base: AtomicU32,
    rx_base: AtomicU32,
    is_blank: AtomicBool,
}

impl PairControl {
    /// The control of a pair that is enabled or not.
    pub fn new(is_enabled: bool) -> PairControl {
        PairControl { is_enabled: AtomicBool::new(is_enabled), ..PairControl::default() }
    }

    /// Enables or disables the pair (`SET_VRING_ENABLE`), from the next batch on. Frames that the
    /// guest transmits on a disabled pair are taken and dropped, and it receives none.
    pub fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Whether the pair is enabled.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Whether both rings were zeros at the last kick. If that is so after several kicks, the guest
    /// most probably writes to memory that is not shared with us: QEMU passes the file of the
    /// memory also with `share=off`, where the guest writes to private copies of the pages.
    pub fn is_blank(&self) -> bool {
        self.is_blank.load(Ordering::Relaxed)
    }

    /// The bases for a successor on the tx queue and the rx queue, as of the last batch
    /// (`GET_VRING_BASE`). Also valid after the pair has failed.
    pub fn bases(&self) -> [u32; 2] {
        [self.tx_base.load(Ordering::Relaxed), self.rx_base.load(Ordering::Relaxed)]
    }
}

/// One pair of queues of a device: owned by one worker.
#[derive(Debug)]
pub struct QueuePair {
    view: GuestView,
    losses: LossCheck,
    lending: Lending,
    tx: Ring,
    rx: Ring,
    form: FrameForm,
    control: Arc<PairControl>,
    counters: Arc<QueueCounters>,
    /// A frame is waiting for the guest to make more room.
    is_rx_short: bool,
    /// The guest has made chains available, in one of the rings.
    has_seen_chains: bool,
    /// Chains of the frame being written, and bytes in each. Empty between frames.
    pending: Vec<(Chain, u32)>,
}

/// One queue with its event descriptors.
#[derive(Debug)]
struct Ring {
    half: DeviceHalf,
    size: u16,
    buffers: Buffers,
    kick: EventFd,
    call: Option<EventFd>,
    log: Option<RingLog>,
    inflight: Option<SharedFile>,
}

impl QueuePair {
    /// Attaches to the queues at their bases, and calls the guest on both, because events may have
    /// been lost while the queues were not served.
    ///
    /// # Errors
    /// [`QueueDown::Peer`] with a [`PairFault`] if a queue cannot be at the addresses of the
    /// front-end, or memory of the front-end was lost.
    pub fn attach(parts: PairParts) -> Result<QueuePair> {
        let PairParts { memory, features, tx, rx, control, counters, calls } = parts;
        let form = FrameForm::of_device(features);
        let options = QueueOptions::of(features);
        let open =
            |parts, access, queue| Ring::open(&memory, options, parts, access, queue, &calls);
        let tx = open(tx, Access::Readable, TX)?;
        let rx = open(rx, Access::Writable, RX)?;
        let view = GuestView::new(Arc::clone(&memory));
        let pair = QueuePair {
            lending: Lending::new(&view),
            view,
            losses: LossCheck::new(),
            pending: Vec::with_capacity(usize::from(rx.size)),
            tx,
            rx,
            form,
            control,
            counters,
            is_rx_short: false,
            has_seen_chains: false,
        };
        // Attaching has written into the queues, the log and the inflight area.
        pair.check_memory().map_err(QueueDown::peer)?;
        pair.show_bases();
        pair.call(&pair.tx)?;
        pair.call(&pair.rx)?;
        Ok(pair)
    }

    /// The bases for a successor on the tx queue and the rx queue.
    pub fn bases(&self) -> [u32; 2] {
        [self.tx.half.base(), self.rx.half.base()]
    }

    fn show_bases(&self) {
        let [tx, rx] = self.bases();
        self.control.tx_base.store(tx, Ordering::Relaxed);
        self.control.rx_base.store(rx, Ordering::Relaxed);
    }

    fn call(&self, ring: &Ring) -> Result {
        let Some(call) = &ring.call else { return Ok(()) };
        self.counters.add_event_sent();
        call.signal().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => QueueDown::peer(PairFault::CallBlocks),
            _ => QueueDown::Host(error),
        })
    }

    /// Whether all that was read and written so far is in the memory of the front-end.
    #[inline]
    fn check_memory(&self) -> Result<(), PairFault> {
        self.losses.run(|| self.check_each_file())
    }

    #[cold]
    #[inline(never)]
    fn check_each_file(&self) -> Result<(), PairFault> {
        let lost = self.view.memory().regions().find(|region| region.is_lost);
        if let Some(RegionInfo { guest_address, len, .. }) = lost {
            return Err(PairFault::MemoryLost { guest_address, len });
        }
        for ring in [&self.tx, &self.rx] {
            if let Some(area) = ring.inflight.as_ref().filter(|area| area.is_lost()) {
                return Err(PairFault::AreaLost { len: area.pages().len() });
            }
            ring.log.as_ref().map_or(Ok(()), RingLog::check)?;
        }
        Ok(())
    }
}

impl Ring {
    fn open(
        memory: &GuestMemory,
        options: QueueOptions,
        parts: QueueParts,
        access: Access,
        queue: &'static str,
        calls: &PeerCounters,
    ) -> Result<Ring> {
        let QueueParts { place, base, kick, call, log, inflight } = parts;
        let areas = QueueAreas::find(memory, options.format, place)
            .map_err(|error| QueueDown::peer(PairFault::Place { queue, error }))?;
        let mut area = None;
        let half = match inflight {
            None => DeviceHalf::attach(areas, options, access, base),
            Some(place) => {
                area = Some(place.area);
                let noted = (place.pages, place.descriptors);
                DeviceHalf::attach_with_inflight(areas, options, access, base, noted)
            }
        };
        let half = half.map_err(|fault| QueueDown::peer(PairFault::Queue { queue, fault }))?;
        let log = log.map(|log| RingLog::new(memory, options.format, place, log)).transpose();
        let log = log.map_err(|outside| {
            QueueDown::peer(PairFault::Queue { queue, fault: outside.into() })
        })?;
        // Attaching has written our event request into the ring.
        log.iter().for_each(RingLog::mark_ring);
        let of = |event: &str, error: io::Error| {
            io::Error::new(error.kind(), format!("the {event} of the {queue} queue: {error}"))
        };
        Ok(Ring {
            half,
            size: place.size,
            buffers: Buffers::new(place.size),
            kick: EventFd::from_peer(kick).map_err(|error| of("kick", error))?,
            call: call
                .map(|call| EventFd::to_peer(call, calls))
                .transpose()
                .map_err(|error| of("call", error))?,
            log,
            inflight: area,
        })
    }

    /// Makes used chains visible, and logs the write.
    fn publish(&mut self) -> Notify {
        match &self.log {
            None => self.half.publish(),
            Some(log) => {
                log.mark_ring();
                let notify = self.half.publish();
                // Log again after the index is written.
                log.mark_ring();
                notify
            }
        }
    }

    fn arm(&mut self, when: NotifyWhen) -> Waiting {
        let waiting = self.half.arm(when);
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
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        self.take_frames(budget, pool, into)
    }

    fn settle(&mut self, pool: &mut FramePool) -> Result {
        // Other chains are used when they are taken.
        if self.lending.has_lent() { self.finish(pool) } else { Ok(()) }
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.give_frames(from, pool)
    }

    fn arm(&mut self) -> Result<Pending> {
        let tx = self.tx.arm(NotifyWhen::Any);
        let rx = match self.is_rx_short {
            true => self.rx.arm(NotifyWhen::More),
            false => Waiting::Idle,
        };
        // What was published since the last check, and these requests, may have met a loss.
        self.check_memory().map_err(QueueDown::peer)?;
        let is_idle = [tx, rx] == [Waiting::Idle; 2];
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result {
        for (index, ring) in [&self.tx, &self.rx].into_iter().enumerate() {
            let is_meant = by == Woken::Unknown || by == Woken::By(index);
            if is_meant && ring.kick.clear()? {
                self.counters.add_event_received();
                if !self.has_seen_chains {
                    let is_blank = self.tx.half.is_blank() && self.rx.half.is_blank();
                    self.control.is_blank.store(is_blank, Ordering::Relaxed);
                    self.has_seen_chains = !is_blank;
                }
            }
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits { takes: Ends::MAPPED, ..QueueTraits::in_memory(self.form.caps) }
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        let (used, available) = self.rx.half.progress()?;
        Some(PeerProgress::new(used, available, self.rx.size))
    }
}

impl Wakers for QueuePair {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        for ring in [&self.tx, &self.rx] {
            visit(ring.kick.as_fd());
        }
    }
}
