//! Sessions of virtio vifs: their sockets, the memory of their guests and their rings. What is
//! served is decided by the host.

mod memory;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{OffloadCaps, PortQueue as _, QueueCounters};
use ringway_host::{Rings, Session, SessionHost, SessionPlace, VirtioWanted};
use ringway_sys::eventfd::PeerCounters;
use ringway_sys::guest_memory::{DirtyLog, GuestMemory, MappingShare};
use ringway_vhost::backend::{AreaRequest, Bases, Log, Missing, Negotiated, Offer};
use ringway_vhost::{Area, Backend, Base, PairPlan, RegionKey, RingPlan};
use ringway_vhost_shell::{BackendEnd, Device, Mode, Note, Obstacle, SessionSource};
use ringway_virtback::{
    InflightArea, LogPlace, PairControl, PairParts, QueuePair, QueueParts, used_index,
};
use ringway_virtio::{Format, QueueOptions};
use ringway_wire::virtio::VHOST_F_LOG_ALL;
use rustix::event::PollFlags;

use memory::MemoryLimit;

/// The most bytes of a dirty log: a bit for each page of 16 TiB. It bounds the memory that one
/// session can have us map.
const LOG_LEN_MAX: u64 = 512 << 20;

/// A vif that no toolstack makes.
#[derive(Debug, Clone)]
pub struct VhostVif {
    /// What is served.
    pub wanted: VirtioWanted,
    /// Where its guest is.
    pub place: VifPlace,
    /// Bytes of its guest's memory that the front-end may share, if not the default.
    pub max_memory: Option<u64>,
}

/// Where the guest of such a vif is.
#[derive(Debug, Clone)]
pub enum VifPlace {
    /// Behind a vhost-user socket.
    Socket {
        /// Its path.
        path: PathBuf,
        /// Which end creates it.
        mode: Mode,
    },
    /// In a network namespace.
    Namespace {
        /// The file of the namespace.
        path: PathBuf,
        /// The network device there.
        device: String,
    },
}

impl VifPlace {
    /// For people.
    pub(crate) fn shown(&self) -> SessionPlace {
        match self {
            VifPlace::Socket { path, mode } => {
                let mode = match mode {
                    Mode::Client => "client",
                    Mode::Server => "server",
                };
                SessionPlace::Socket { path: path.display().to_string(), mode }
            }
            VifPlace::Namespace { path, device } => {
                let path = path.display().to_string();
                SessionPlace::Namespace { path, device: device.clone() }
            }
        }
    }
}

/// Makes a queue of the engines from one over a pair of rings, with these counters.
type IntoQueue<Q> = dyn Fn(QueuePair, &Arc<QueueCounters>) -> Q;

/// The sessions of one virtio vif, one after another, whose connections come from `P`, and whose
/// queues are of type `Q`.
pub struct VhostSession<Q, P> {
    end: BackendEnd<P>,
    parts: Parts<Q>,
    /// The name of the vif.
    name: String,
    place: VifPlace,
}

/// What the opener reports of a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// A front-end has connected.
    Connected(OwnedFd),
    /// The network device of a namespace was made: its queues.
    Attached(Vec<OwnedFd>),
    /// There is no connection, or no device, for this reason.
    Waits(Obstacle),
    /// The area that the front-end wanted was sent to it, or not, for this reason.
    AreaSent(Result<(), String>),
}

/// What a front-end has passed to us.
struct Parts<Q> {
    into_queue: Box<IntoQueue<Q>>,
    /// Its share of what this process can map.
    share: Arc<MappingShare>,
    memory: Option<Arc<GuestMemory>>,
    memory_limit: MemoryLimit,
    log: Option<Arc<DirtyLog>>,
    /// The area that records what is in flight.
    area: Option<InflightArea>,
    /// What the opener should send to the front-end.
    wanted: Option<AreaRequest>,
    /// Pairs that should be served.
    plans: BTreeMap<u16, PairPlan>,
    /// Pairs that are being served.
    controls: BTreeMap<u16, Arc<PairControl>>,
    /// Its event counters that are written to.
    calls: PeerCounters,
}

impl<Q, P: SessionSource> VhostSession<Q, P> {
    /// Waits for front-ends from this source.
    ///
    /// # Errors
    /// There are too many sessions.
    pub fn new(
        config: &VhostVif,
        source: P,
        into_queue: impl Fn(QueuePair, &Arc<QueueCounters>) -> Q + 'static,
    ) -> io::Result<Self> {
        let parts = Parts {
            into_queue: Box::new(into_queue),
            share: MappingShare::new().map_err(io::Error::other)?,
            memory: None,
            memory_limit: MemoryLimit::new(config.max_memory),
            log: None,
            area: None,
            wanted: None,
            plans: BTreeMap::new(),
            controls: BTreeMap::new(),
            calls: PeerCounters::default(),
        };
        Ok(VhostSession {
            end: BackendEnd::new(source),
            parts,
            name: config.wanted.name.clone(),
            place: config.place.clone(),
        })
    }

    /// What to wait for before the next turn.
    pub fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.end.waker()
    }

    /// Has the end act for a host.
    fn act<D: SessionHost<Q>, R>(
        &mut self,
        host: &mut D,
        act: impl FnOnce(&mut BackendEnd<P>, &mut Serving<'_, Q, D>) -> R,
    ) -> R {
        let VhostSession { end, parts, name, .. } = self;
        act(end, &mut Serving { name, parts, host })
    }
}

impl<Q, P: SessionSource> Session<Q> for VhostSession<Q, P> {
    type Event = SessionEvent;

    fn turn(&mut self, host: &mut impl SessionHost<Q>, now: Instant) -> io::Result<bool> {
        let more = self.act(host, |end, serving| end.turn(serving, now))?;
        let Some(wanted) = self.parts.wanted.take() else { return Ok(more) };
        if let Err(error) = self.end.source().send_area_order(wanted) {
            let failed = SessionEvent::AreaSent(Err(format!("the inflight area: {error}")));
            self.on(failed, host, now);
        }
        Ok(more)
    }

    fn on(&mut self, event: SessionEvent, host: &mut impl SessionHost<Q>, now: Instant) {
        match event {
            SessionEvent::Connected(connection) => self.end.source().connected(connection),
            // It has no device.
            SessionEvent::Attached(_) => {}
            SessionEvent::Waits(obstacle) => self.end.source().waits(obstacle),
            SessionEvent::AreaSent(outcome) => {
                self.act(host, |end, serving| end.on_area_sent(serving, outcome, now));
            }
        }
    }

    fn close(&mut self, reason: &str, host: &mut impl SessionHost<Q>, now: Instant) {
        self.act(host, |end, serving| end.close(serving, reason, now));
    }

    fn end(&mut self, host: &mut impl SessionHost<Q>, now: Instant) {
        self.act(host, |end, serving| end.remove(serving, now));
    }

    fn due(&self) -> Option<Instant> {
        self.end.due()
    }

    fn is_serving(&self) -> bool {
        self.said().is_some_and(|said| said.missing() == Missing::Nothing)
    }

    fn said(&self) -> Option<&Backend> {
        self.end.session()
    }

    fn error(&self) -> Option<String> {
        self.end.error()
    }

    fn lacks_guest(&self) -> bool {
        self.end.lacks_guest()
    }

    fn blank_pairs(&self) -> Vec<u16> {
        let blank = self.parts.controls.iter().filter(|(_, control)| control.is_blank());
        blank.map(|(pair, _)| *pair).collect()
    }

    fn place(&self) -> SessionPlace {
        self.place.shown()
    }

    fn may_lose_memory(&self) -> bool {
        let memory = self.parts.memory.as_ref();
        memory.is_some_and(|memory| memory.regions().any(|region| region.may_shrink))
    }
}

/// What a front-end has passed, and the host that decides about it.
struct Serving<'a, Q, D> {
    name: &'a str,
    parts: &'a mut Parts<Q>,
    host: &'a mut D,
}

impl<Q, D: SessionHost<Q>> Device for Serving<'_, Q, D> {
    fn offer(&mut self, front_end: Option<u32>) -> Offer {
        self.host.offer(front_end)
    }

    fn set_memory(&mut self, regions: Vec<ringway_vhost::Region>) -> Result<(), String> {
        self.parts.set_memory(regions)
    }

    fn add_region(&mut self, added: ringway_vhost::Region) -> Result<(), String> {
        self.parts.add_region(added)
    }

    fn remove_region(&mut self, removed: RegionKey) -> Result<(), String> {
        self.parts.remove_region(&removed)
    }

    fn set_log(&mut self, log: Log) -> Result<(), String> {
        if log.size > LOG_LEN_MAX {
            return Err(format!("a log of {} bytes, expected at most {LOG_LEN_MAX}", log.size));
        }
        self.parts.log = None;
        let log = DirtyLog::map(&self.parts.share, log.file, log.offset, log.size);
        self.parts.log = Some(Arc::new(log.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn start(&mut self, plan: PairPlan) -> Result<(), String> {
        self.host.start(plan.pair, plan.is_enabled, self.parts);
        self.parts.plans.insert(plan.pair, plan);
        Ok(())
    }

    fn stop(&mut self, pair: u16) -> Bases {
        self.host.stop(pair, self.parts);
        let plan = self.parts.plans.remove(&pair);
        let memory = &self.parts.memory;
        let base = |ring: &RingPlan| match ring.base {
            Base::At(base) => base,
            Base::Used => {
                let index = memory.as_ref().and_then(|memory| used_index(ring, memory).ok());
                index.map_or(0, u32::from)
            }
        };
        plan.map_or(Bases { rx: 0, tx: 0 }, |plan| Bases { rx: base(&plan.rx), tx: base(&plan.tx) })
    }

    fn apply_changes(&mut self) -> Result<(), String> {
        self.host.apply_changes(self.parts)
    }

    fn announce(&mut self, mac: [u8; 6]) {
        self.host.announce(mac);
    }

    fn set_mtu(&mut self, mtu: u16) {
        tracing::debug!(vif = self.name, mtu, "the front-end reports this MTU to its guest");
    }

    fn make_area(&mut self, wanted: AreaRequest) -> Result<(), String> {
        // A confined process can neither create nor send a file: the opener does both.
        self.parts.wanted = Some(wanted);
        Ok(())
    }

    fn set_area(&mut self, area: Area) -> Result<(), String> {
        self.parts.area = None;
        self.parts.area = InflightArea::map(&self.parts.share, area)?;
        Ok(())
    }

    fn drop_area(&mut self) {
        self.parts.area = None;
    }

    fn negotiated(&mut self, negotiated: Negotiated) {
        self.host.negotiated(negotiated);
    }

    fn reset(&mut self) {
        self.host.reset(self.parts);
        self.parts.forget();
    }

    fn note(&mut self, note: Note<'_>) {
        match note {
            Note::Connected => self.host.log("the front-end has connected"),
            Note::Disconnected => self.host.log("the front-end has disconnected"),
            Note::Removed => self.host.log("the vif was removed"),
            Note::Closed(why) | Note::Stopped(why) | Note::Left(why) => self.host.log_end(why),
        }
    }
}

impl<Q> Rings<Q> for Parts<Q> {
    fn queue(&mut self, pair: u16, counters: &Arc<QueueCounters>) -> io::Result<(Q, OffloadCaps)> {
        let plan = self.plans.get(&pair).cloned();
        let plan = plan.ok_or_else(|| io::Error::other("there is no such pair"))?;
        let queue = self.pair(&plan, counters)?;
        let caps = queue.describe().caps;
        Ok(((self.into_queue)(queue, counters), caps))
    }

    fn taken_back(&mut self) {
        for (pair, control) in std::mem::take(&mut self.controls) {
            let Some(plan) = self.plans.get_mut(&pair) else { continue };
            let [tx, rx] = control.bases();
            plan.tx.base = Base::At(tx);
            plan.rx.base = Base::At(rx);
        }
    }
}

impl<Q> Parts<Q> {
    /// Another front-end may come.
    fn forget(&mut self) {
        self.calls = PeerCounters::default();
        self.memory_limit.forget_first();
        (self.memory, self.log, self.area, self.wanted) = (None, None, None, None);
        self.plans.clear();
        self.controls.clear();
    }

    fn pair(&mut self, plan: &PairPlan, counters: &Arc<QueueCounters>) -> io::Result<QueuePair> {
        let memory = self.memory.clone();
        let memory = memory.ok_or_else(|| io::Error::other("there is no memory"))?;
        let control = Arc::new(PairControl::new(plan.is_enabled));
        self.controls.insert(plan.pair, Arc::clone(&control));
        let log = self.log.clone().filter(|_| plan.features.has(VHOST_F_LOG_ALL));
        let format = QueueOptions::of(plan.features).format;
        let parts = PairParts {
            features: plan.features,
            tx: self.ring(&plan.tx, 2 * plan.pair + 1, &memory, (format, log.clone()))?,
            rx: self.ring(&plan.rx, 2 * plan.pair, &memory, (format, log))?,
            memory,
            control,
            counters: Arc::clone(counters),
            calls: self.calls.clone(),
        };
        let queues = QueuePair::attach(parts).map_err(io::Error::other)?;
        self.area.iter_mut().for_each(|area| area.is_served(plan.pair));
        Ok(queues)
    }

    fn ring(
        &self,
        plan: &RingPlan,
        ring: u16,
        memory: &GuestMemory,
        (format, log): (Format, Option<Arc<DirtyLog>>),
    ) -> io::Result<QueueParts> {
        let parts = QueueParts::of_plan(plan, memory, format);
        let parts = parts.map_err(|error| io::Error::other(format!("ring {ring}: {error}")))?;
        let area = self.area.as_ref();
        Ok(QueueParts {
            log: log.map(|log| LogPlace { log, ring_address: plan.addresses.log }),
            inflight: area.and_then(|it| it.open(format, ring, plan.size, parts.base)),
            ..parts
        })
    }
}
