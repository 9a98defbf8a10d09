//! An honest guest: the queues of netfront or virtfront, and applications that send and receive.
//!
//! It is as simple an endpoint as possible. Once it has armed a queue and found no work, it does
//! not poll the ring before an event arrives: so it detects a backend that has failed to wake it.

use std::any::Any;
use std::sync::Arc;

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, MIDDLE_LEN, MacAddr, OffloadCaps, PagePool,
    Pending, PoolBudget, PortQueue, QueueCounters, QueueDown, Wakers, Woken, queue_of_variants,
};
use ringway_engine::Announcement;
use ringway_hypervisor::{EventChannel, Hypervisor, QueueEvents};
use ringway_loopback::{LoopbackDomain, LoopbackEvent, LoopbackGrants};
use ringway_netfront::{HashWish, Progress, Slabs, VifQueue};
use ringway_sys::SharedPages;
use ringway_virtfront::QueuePair;
use ringway_wire::{DomId, EvtchnPort};
use ringway_xenbus::QueueConfig;
use ringway_xenbus::frontend::{Allocated, Allocation};

use crate::groups::Chosen;
use crate::scenario::{Scenario, guest_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most frames per queue that applications leave with the guest's network stack.
pub(crate) const BACKLOG_MAX: usize = 128;
/// Buffers of a guest: its own memory, which is always sufficient.
const POOL_BYTES: usize = 16 << 20;

/// A guest and its one vif.
pub(crate) struct Guest {
    pub(crate) domid: DomId,
    pub(crate) mac: MacAddr,
    pub(crate) domain: LoopbackDomain,
    pub(crate) pool: FramePool,
    /// Exists from the backend's offer to the end of all grants.
    pub(crate) nics: Vec<Nic>,
    /// The pages that hold the ends of long transmitted frames.
    slabs: Option<(Slabs, Box<dyn PagePool>)>,
    /// Received frames of an earlier connection, which refer to its pages.
    pub(crate) orphans: FrameQueue,
    /// Whether pages stay granted because frames referred to them when their connection ended.
    pub(crate) has_lost_pages: bool,
    /// Whether frames flow.
    pub(crate) is_up: bool,
    /// The offloads that the backend accepts.
    pub(crate) caps: OffloadCaps,
    pub(crate) pace: Pace,
    /// How it wishes to receive, if it says so by a control ring.
    pub(crate) wish: Option<HashWish>,
    /// Whether its backend has to know the wish: its connection has a control ring, and what was
    /// said over it is noted.
    pub(crate) is_wish_known: bool,
    pub(crate) chosen: Chosen,
    /// How often a guest of Xen has arrived: it has made rings, or its vif was made again.
    pub(crate) arrivals: u64,
    /// How often its arrival was announced, the frames of earlier ones, and the last one.
    announced: (u64, u64, Option<Arc<Announcement>>),
    /// The reason why a queue had to stop.
    pub(crate) fault: Option<String>,
    /// Since the last balance, frames may have been lost with a connection.
    pub(crate) is_disturbed: bool,
    /// Its link has been down since the last rest: no frame of it is on the way any more.
    pub(crate) is_cut_off: bool,
    /// A hostile guest has sent with its address, so frames to it may go there.
    pub(crate) is_impersonated: bool,
}

/// The half of a queue of a guest of Xen.
pub(crate) type XenQueue = VifQueue<LoopbackGrants, LoopbackEvent>;

/// A guest's half of a queue, of either kind.
pub(crate) enum NicQueue<V> {
    Xen(Box<V>),
    Virtio(Box<QueuePair>),
}

queue_of_variants!(NicQueue<V> { Xen, Virtio });

/// One queue of the guest's vif.
pub(crate) struct Nic {
    pub(crate) queue: NicQueue<XenQueue>,
    pub(crate) events: Vec<EvtchnPort>,
    /// Frames that wait for room in the ring.
    pub(crate) backlog: FrameQueue,
    /// Received frames that a device has yet to take: long ones refer to the pages they came in.
    pub(crate) received: FrameQueue,
    pub(crate) is_awake: bool,
    pub(crate) counters: Arc<QueueCounters>,
}

/// How a guest receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Fast,
    /// A few frames at a time.
    Slow,
    /// Not at all for now.
    Stalled,
}

impl Guest {
    pub(crate) fn new(domid: DomId, mac: MacAddr, domain: LoopbackDomain) -> Guest {
        Guest {
            domid,
            mac,
            domain,
            pool: FramePool::new(PoolBudget::new(POOL_BYTES)),
            nics: Vec::new(),
            slabs: None,
            orphans: FrameQueue::new(),
            has_lost_pages: false,
            is_up: false,
            caps: OffloadCaps::NONE,
            pace: Pace::Fast,
            wish: None,
            is_wish_known: false,
            is_cut_off: false,
            chosen: Chosen::default(),
            arrivals: 0,
            announced: (0, 0, None),
            fault: None,
            is_disturbed: false,
            is_impersonated: false,
        }
    }

    /// Makes the choices of the guest with this number.
    pub(crate) fn choose(&mut self, scenario: &Scenario, number: usize) {
        self.wish = scenario.wishes[number].clone();
        self.chosen.groups = scenario.groups[number].clone();
    }

    /// Notes that it is announced, perhaps as before. Returns how often that has begun.
    pub(crate) fn note_announcement(&mut self, announcement: &Arc<Announcement>) -> u64 {
        let frames = self.announcing_frames();
        // Before it has come, that is one of a guest that has died, and whose vif it has.
        let own = u64::from(self.arrivals > 0);
        let (count, earlier, last) = &mut self.announced;
        if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, announcement)) {
            (*count, *earlier, *last) = (*count + own, frames, Some(Arc::clone(announcement)));
        }
        *count
    }

    /// The frames that have announced it so far.
    pub(crate) fn announcing_frames(&self) -> u64 {
        let (_, earlier, last) = &self.announced;
        earlier + last.as_ref().map_or(0, |last| last.sent())
    }

    /// Makes queues for a backend.
    pub(crate) fn allocate(
        &mut self,
        backend: DomId,
        wanted: Allocation,
    ) -> std::io::Result<Allocated> {
        self.arrivals += 1;
        self.caps = wanted.backend.caps();
        for _ in 0..wanted.queues {
            match self.make_nic(backend, wanted.split_event_channels) {
                Ok(nic) => self.nics.push(nic),
                Err(error) if self.nics.is_empty() => return Err(error),
                // Fewer queues also work.
                Err(_) => break,
            }
        }
        if self.is_in_pages() {
            // Without them, everything is copied.
            let slabs = Slabs::new(&mut self.domain.grants()?, backend).ok();
            let nics = &mut self.nics;
            self.slabs = slabs.map(|slabs| {
                nics.iter_mut().filter_map(Nic::xen).for_each(|queue| queue.send_from(&slabs));
                let page_pool = slabs.page_pool();
                (slabs, page_pool)
            });
        }
        let queues = self.nics.iter_mut().filter_map(Nic::xen).map(|queue| queue.config());
        let queues: Vec<QueueConfig> = queues.collect();
        let wants_control = self.wish.is_some() && wanted.control_ring;
        let control = self.nics.first_mut().filter(|_| wants_control).map(|nic| {
            let channel = self.domain.alloc_unbound(backend)?;
            let config = nic.xen().map(|queue| queue.add_control(backend, channel)).transpose()?;
            nic.events.extend(config.as_ref().map(|config| config.event));
            std::io::Result::Ok(config)
        });
        // Without pages for it, the backend hashes as it likes.
        let control = control.and_then(Result::ok).flatten();
        self.is_wish_known = control.is_some();
        let multicast_control = self.chosen.groups.is_some() && wanted.multicast_control;
        self.chosen.is_requested = multicast_control;
        self.chosen.are_known = multicast_control;
        Ok(Allocated { queues, control, multicast_control })
    }

    /// Whether it has its backend keep its pages mapped: some of those with a control ring do.
    pub(crate) fn may_stage(&self) -> bool {
        self.wish.as_ref().is_some_and(|wish| wish.types % 4 == 1)
    }

    /// Puts the end of a long frame into pages, as a device does.
    pub(crate) fn stow(&mut self, frame: &mut Frame) {
        let end = frame.len().saturating_sub(MIDDLE_LEN);
        let Some((_, page_pool)) = self.slabs.as_mut().filter(|_| end > 0) else { return };
        let Some(mut stowed) = page_pool.take() else { return };
        stowed.truncate(end);
        let pages = stowed.kept_pages().map(|pages| pages.memory());
        let Some(pages) = pages.and_then(<dyn Any>::downcast_ref::<SharedPages>) else { return };
        let mut rest = &frame.bytes()[MIDDLE_LEN..];
        for piece in stowed.pieces() {
            let (own, others) = rest.split_at(piece.len);
            pages.copy_from(piece.at, own);
            rest = others;
        }
        frame.set_len(MIDDLE_LEN);
        frame.set_end(stowed);
    }

    /// Whether it leaves the ends of long frames in pages, as a guest with a device does: every
    /// other guest.
    pub(crate) fn is_in_pages(&self) -> bool {
        (usize::from(self.domid.0) + guest_of(self.domid)) % 2 == 0
    }

    fn make_nic(&self, backend: DomId, is_split: bool) -> std::io::Result<Nic> {
        let channel = || self.domain.alloc_unbound(backend);
        let events = match is_split {
            true => QueueEvents::Split { tx: channel()?, rx: channel()? },
            false => QueueEvents::Single(channel()?),
        };
        let ports = match &events {
            QueueEvents::Split { tx, rx } => vec![tx.port(), rx.port()],
            QueueEvents::Single(both) => vec![both.port()],
        };
        let counters: Arc<QueueCounters> = Arc::default();
        let grants = self.domain.grants()?;
        let mut queue = VifQueue::new(grants, backend, events, Arc::clone(&counters))?;
        queue.set_caps(self.caps);
        if self.is_in_pages() {
            queue.receive_in_place()?;
        }
        Ok(Nic::new(NicQueue::Xen(Box::new(queue)), ports, counters))
    }

    /// Whether received frames refer to pages of this connection.
    pub(crate) fn has_ends(&self) -> bool {
        let mut received = self.nics.iter().flat_map(|nic| &nic.received);
        received.any(|frame| !frame.is_complete())
    }

    /// Keeps the received frames beyond the end of their connection.
    pub(crate) fn keep_received(&mut self) {
        let received = self.nics.iter_mut().map(|nic| &mut nic.received);
        received.for_each(|received| self.orphans.append(received));
        self.has_lost_pages = true;
    }

    /// Ends all grants and channels. Returns true if no page was in use.
    pub(crate) fn release(&mut self) -> bool {
        let mut are_free = true;
        for mut nic in self.nics.drain(..) {
            nic.received.drain(..).for_each(|frame| self.pool.recycle(frame));
            nic.backlog.drain(..).for_each(|frame| self.pool.recycle(frame));
            are_free &= nic.queue.close();
        }
        if let (Some((slabs, _)), Ok(mut grants)) = (self.slabs.take(), self.domain.grants()) {
            are_free &= slabs.close(&mut grants).is_ok();
        }
        are_free
    }
}

impl NicQueue<XenQueue> {
    /// Ends its grants and channels. Returns true if no page was in use.
    fn close(self) -> bool {
        match self {
            NicQueue::Xen(queue) => queue.close().is_ok(),
            NicQueue::Virtio(_) => true,
        }
    }
}

impl Nic {
    /// A queue that is awake.
    pub(crate) fn new(
        queue: NicQueue<XenQueue>,
        events: Vec<EvtchnPort>,
        counters: Arc<QueueCounters>,
    ) -> Nic {
        let (backlog, received) = (FrameQueue::new(), FrameQueue::new());
        Nic { queue, events, backlog, received, is_awake: true, counters }
    }

    /// The queue of a guest of Xen.
    pub(crate) fn xen(&mut self) -> Option<&mut XenQueue> {
        match &mut self.queue {
            NicQueue::Xen(queue) => Some(queue),
            NicQueue::Virtio(_) => None,
        }
    }

    /// What has become of the guest's wish, if it could say it.
    pub(crate) fn progress(&self) -> Option<Progress> {
        match &self.queue {
            NicQueue::Xen(queue) => Some(queue.progress()),
            NicQueue::Virtio(_) => None,
        }
    }

    /// Whether the guest would act on this queue by itself.
    pub(crate) fn may_run(&self, pending: &[EvtchnPort]) -> bool {
        self.has_event(pending) || self.is_awake
    }

    /// Whether the backend has sent an event, or a frame has returned pages that the queue waits
    /// for.
    fn has_event(&self, pending: &[EvtchnPort]) -> bool {
        let mut is_rung = false;
        self.queue.wakers(&mut |fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            is_rung |= poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0);
        });
        is_rung || self.events.iter().any(|port| pending.contains(port))
    }

    /// Takes an event, if there is one.
    pub(crate) fn wake(&mut self, pending: &[EvtchnPort]) -> Result<(), QueueDown> {
        if self.has_event(pending) {
            self.is_awake = true;
            self.queue.woken(Woken::Unknown)?;
        }
        Ok(())
    }

    /// Sends from the backlog. Returns how many frames went into the ring.
    pub(crate) fn send(&mut self, pool: &mut FramePool) -> Result<usize, QueueDown> {
        let before = self.backlog.len();
        self.queue.egress(&mut self.backlog, pool)?;
        // A frame without room needs an event, which the next sleep requests.
        self.is_awake |= !self.backlog.is_empty();
        Ok(before - self.backlog.len())
    }

    /// How many requests or buffers the backend has not returned.
    pub(crate) fn unanswered(&mut self) -> Result<u64, QueueDown> {
        match &mut self.queue {
            NicQueue::Xen(_) => Ok(self.counters.totals().tx_unanswered),
            NicQueue::Virtio(pair) => Ok(u64::try_from(pair.take_back()?).unwrap_or(u64::MAX)),
        }
    }

    /// Receives up to a number of frames.
    pub(crate) fn receive(
        &mut self,
        frames: usize,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), QueueDown> {
        self.queue.ingress(Budget { frames, ..Budget::BATCH }, pool, into)
    }

    /// Receives all frames, for no one.
    pub(crate) fn discard(&mut self, pool: &mut FramePool) -> Result<(), QueueDown> {
        loop {
            let mut batch = FrameBatch::new();
            self.receive(ringway_datapath::BATCH, pool, &mut batch)?;
            if batch.is_empty() {
                return Ok(());
            }
            batch.into_iter().for_each(|frame| pool.recycle(frame));
        }
    }

    /// Goes to sleep, unless there is work.
    pub(crate) fn doze(&mut self) -> Result<(), QueueDown> {
        self.is_awake = self.queue.arm()? == Pending::Work;
        Ok(())
    }
}
