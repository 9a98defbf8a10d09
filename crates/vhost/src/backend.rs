//! The back-end's session: which requests a front-end makes, and which actions follow.
//!
//! A pair of rings is served as soon as the session has everything that it needs, whether the pair
//! is enabled or not. Each request updates the session's state; then the pairs being served are
//! compared with those that should be. So the order of requests does not matter, and it does vary:
//! QEMU 7.2 with `mq=on` has a vhost device for each pair on one socket, enables rings before it
//! sets the features, adds each region once for each pair, and enables rings once more before it
//! closes.
//!
//! The caller's loop, for each message:
//!
//! 1. [`Backend::take`] the message.
//! 2. Do each [`Action`] of [`Backend::next_action`] in turn, and pass its result back.
//!
//! What is offered to a running guest never shrinks: see [`Offer::floor`].

mod apply;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use ringway_wire::vhost_user::{
    Inflight, Op, REPLY_MASK, VHOST_USER_PROTOCOL_F_REPLY_ACK, VringState,
};
use ringway_wire::virtio::{
    Features, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
};
use zerocopy::IntoBytes;

use crate::memory::{Region, RegionKey, RemovedMemory, Table};
use crate::request::{self, Area, Request};
use crate::ring::{PairPlan, Resumes, Ring, UnsetRing};
use crate::{Fault, Message, Name};

pub use crate::offered::{
    FEATURES, Negotiated, OPT_IN, Offer, REQUIRED, RefusedMtu, with_dependencies_met,
};
pub use crate::request::PROTOCOL_FEATURES;

/// The most queue pairs of a back-end: some requests number rings with eight bits.
pub const PAIRS_MAX: u16 = 128;

/// An action for the caller.
#[derive(Debug)]
pub enum Action {
    /// Send this.
    Send(Message),
    /// Stop a pair, and pass its indices to [`Backend::stopped`]. From then on nothing of its rings
    /// is used.
    StopPair(u16),
    /// Serve a pair. If that fails, the connection must be closed.
    StartPair(Box<PairPlan>),
    /// Unmap all memory and map these regions. No pair is being served. If that fails, the
    /// connection must be closed.
    SetMemory(Vec<Region>),
    /// Map one more region. If that fails, the connection must be closed.
    AddRegion(Region),
    /// Unmap a region. If that fails, the connection must be closed.
    RemoveRegion(RegionKey),
    /// Log writes in this area from now on, for pairs with that feature. No pair is being served.
    SetLog(Log),
    /// Announce to the network that a guest with this address is here now.
    Announce([u8; 6]),
    /// The front-end shows its guest this MTU.
    SetMtu(u16),
    /// Reply to the front-end with a zeroed area, made by [`AreaRequest::reply`].
    MakeArea(AreaRequest),
    /// Continue from the chains recorded in this area, and record chains in flight there. No pair
    /// is being served.
    SetArea(Area),
    /// The area is no longer valid: the device was reset.
    DropArea,
}

/// An inflight area that a front-end requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AreaRequest {
    /// The number of rings.
    pub rings: u16,
    /// The most entries of each ring.
    pub size: u16,
    /// Its bytes.
    pub len: u64,
}

impl AreaRequest {
    /// The reply, with a file of [`AreaRequest::len`] bytes.
    pub fn reply(self, file: OwnedFd) -> Message {
        let AreaRequest { rings: num_queues, size: queue_size, len: mmap_size } = self;
        let area = Inflight { mmap_size, num_queues, queue_size, ..Inflight::default() };
        let mut message = reply(Op::GetInflightFd, &area);
        message.files.push(file);
        message
    }
}

/// The dirty log: a bit for each page of 4096 bytes.
#[derive(Debug)]
pub struct Log {
    /// The file that holds it.
    pub file: OwnedFd,
    /// Its bytes.
    pub size: u64,
    /// Its byte offset in the file.
    pub offset: u64,
}

/// The positions of a pair's rings when it was stopped, in the format of `GET_VRING_BASE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bases {
    /// The ring on which the guest receives.
    pub rx: u32,
    /// The ring on which the guest transmits.
    pub tx: u32,
}

/// What a session lacks before it serves a pair, in the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The guest's driver: no features were negotiated.
    Driver,
    /// A driver that supports version 1 of virtio.
    Version1,
    /// Memory of the guest.
    Memory,
    /// Sizes, addresses and notifications of rings.
    Rings,
    /// Enabled rings.
    Enabled,
    /// Nothing: at least one pair is being served.
    Nothing,
}

/// A session.
#[derive(Debug)]
pub struct Backend {
    offer: Offer,
    features: Option<Features>,
    protocol: Option<u64>,
    /// The first MTU that the front-end has set, or 0.
    mtu: u16,
    refused_mtu: Option<RefusedMtu>,
    status: u64,
    memory: Table,
    rings: Vec<Ring>,
    /// For each pair being served, the revisions of its rings and its features.
    served: Vec<Option<Served>>,
    resumes: Resumes,
    pending: VecDeque<Pending>,
    last: Option<Op>,
}

type Served = (Features, u64, u64, bool);

/// Pending work for the last message.
#[derive(Debug)]
enum Pending {
    Act(Action),
    Start(u16),
    ReplyBase(u16),
    ReplyNumber(Op, u64),
}

impl Backend {
    /// A new session.
    pub fn new(offer: Offer) -> Backend {
        let pairs = offer.pairs.max(offer.floor.pairs).clamp(1, PAIRS_MAX);
        let offer = Offer { pairs, ..offer };
        Backend {
            offer,
            features: None,
            protocol: None,
            mtu: 0,
            refused_mtu: None,
            status: 0,
            memory: Table::default(),
            rings: vec![Ring::default(); 2 * usize::from(pairs)],
            served: vec![None; usize::from(pairs)],
            resumes: Resumes::AtBase,
            pending: VecDeque::new(),
            last: None,
        }
    }

    /// The negotiated virtio features, if any.
    pub fn features(&self) -> Option<Features> {
        self.features
    }

    /// The negotiated protocol features.
    pub fn protocol(&self) -> u64 {
        self.protocol.unwrap_or(0)
    }

    /// What to offer to the same front-end again, once the guest's driver is ready.
    pub fn negotiated(&self) -> Option<Negotiated> {
        let (protocol, pairs) = (self.protocol(), self.offer.pairs);
        let mtu = self.mtu.max(self.offer.floor.mtu);
        self.features.map(|features| Negotiated { features, protocol, pairs, mtu })
    }

    /// What was offered.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The last request taken.
    pub fn last(&self) -> Option<Op> {
        self.last
    }

    /// The regions that were shared.
    pub fn regions(&self) -> &[RegionKey] {
        self.memory.regions()
    }

    /// The MTU that was refused, if the front-end wanted to show its guest a longer or shorter one
    /// than is possible.
    pub fn refused_mtu(&self) -> Option<RefusedMtu> {
        self.refused_mtu
    }

    /// What the front-end removed while rings ran, if that is why there is no memory.
    pub fn removed_memory(&self) -> Option<RemovedMemory> {
        self.memory.removed_memory()
    }

    /// Pairs with both rings enabled.
    pub fn enabled(&self) -> usize {
        self.pairs().filter(|pair| self.is_enabled(*pair)).count()
    }

    /// Whether the front-end has set up anything of a pair after the first.
    pub fn has_more_pairs(&self) -> bool {
        self.rings.iter().skip(2).any(|ring| ring.revision > 0)
    }

    /// What is missing of the first pair of which the front-end has passed something, but not all.
    pub fn unset_ring(&self) -> Option<UnsetRing> {
        self.pairs().find_map(|pair| Ring::unset(pair, self.rings_of(pair)))
    }

    /// What is missing before any pair is served.
    pub fn missing(&self) -> Missing {
        let is_whole = |pair| {
            let [rx, tx] = self.rings_of(pair);
            rx.plan(self.resumes()).is_some() && tx.plan(self.resumes()).is_some()
        };
        match self.features {
            _ if self.served.iter().flatten().any(|(.., is_enabled)| *is_enabled) => {
                Missing::Nothing
            }
            None => Missing::Driver,
            Some(features) if !features.has(VIRTIO_F_VERSION_1) => Missing::Version1,
            Some(_) if self.memory.is_empty() => Missing::Memory,
            Some(_) if !self.pairs().any(is_whole) => Missing::Rings,
            Some(_) => Missing::Enabled,
        }
    }

    /// Takes a message. The resulting actions are then pending, and must be done before the next
    /// message is taken.
    ///
    /// # Errors
    /// The front-end's protocol violation; the connection must be closed.
    pub fn take(&mut self, message: Message) -> Result<(), Fault> {
        let wants_reply = message.needs_reply();
        let (op, request) = Request::read(message, self.rings.len())?;
        self.last = Some(op);
        let feature = request::feature_of(op);
        if feature != 0 && self.protocol() & feature == 0 {
            return Err(Fault::NotNegotiated { request: op.into() });
        }
        let reply = self.apply(op, request)?;
        self.reconcile();
        let has_acks = self.protocol() & VHOST_USER_PROTOCOL_F_REPLY_ACK != 0;
        let ack = (wants_reply && has_acks).then_some(Pending::ReplyNumber(op, 0));
        // Pairs start after the reply: the front-end does not wait for that.
        let starts: Vec<Pending> = extract_starts(&mut self.pending);
        self.pending.extend(reply.or(ack));
        self.pending.extend(starts);
        Ok(())
    }

    /// The next pending action.
    pub fn next_action(&mut self) -> Option<Action> {
        loop {
            return Some(match self.pending.pop_front()? {
                Pending::Act(action) => action,
                Pending::Start(pair) => match self.plan(pair) {
                    Some(plan) => Action::StartPair(Box::new(plan)),
                    None => continue,
                },
                Pending::ReplyNumber(op, number) => Action::Send(reply(op, &number)),
                Pending::ReplyBase(ring) => {
                    let num = self.rings[usize::from(ring)].base.unwrap_or(0);
                    let state = VringState { index: u32::from(ring), num };
                    Action::Send(reply(Op::GetVringBase, &state))
                }
            });
        }
    }

    /// Takes the result of [`Action::StopPair`].
    pub fn stopped(&mut self, pair: u16, bases: Bases) {
        let [rx, tx] = ring_places(pair);
        for (place, base) in [(rx, bases.rx), (tx, bases.tx)] {
            if let Some(ring) = self.rings.get_mut(place) {
                ring.base = Some(base);
            }
        }
    }

    /// Pairs that are served and enabled.
    fn served_count(&self) -> usize {
        self.served.iter().flatten().filter(|(.., is_enabled)| *is_enabled).count()
    }

    fn push_action(&mut self, action: Action) {
        self.pending.push_back(Pending::Act(action));
    }

    fn ring(&mut self, ring: u16) -> &mut Ring {
        &mut self.rings[usize::from(ring)]
    }

    fn pairs(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.offer.pairs
    }

    fn rings_of(&self, pair: u16) -> [&Ring; 2] {
        ring_places(pair).map(|place| &self.rings[place])
    }

    fn is_enabled(&self, pair: u16) -> bool {
        // Without protocol features, rings are enabled from the start.
        let features = self.features.unwrap_or(Features::NONE);
        let is_agreed = features.has(VHOST_USER_F_PROTOCOL_FEATURES) || self.protocol.is_some();
        let rings = self.rings_of(pair);
        rings.into_iter().all(|ring| ring.is_enabled.unwrap_or(!is_agreed))
    }

    /// Where rings continue from. A packed ring has no index in memory.
    fn resumes(&self) -> Resumes {
        let is_packed = self.features.is_some_and(|it| it.has(VIRTIO_F_RING_PACKED));
        if is_packed { Resumes::AtBase } else { self.resumes }
    }

    /// The plan for serving a pair, if it should be served.
    fn plan(&self, pair: u16) -> Option<PairPlan> {
        let features = self.features.filter(|features| features.has(VIRTIO_F_VERSION_1))?;
        if self.memory.is_empty() {
            return None;
        }
        let is_enabled = self.is_enabled(pair);
        let [rx, tx] = self.rings_of(pair);
        let (rx, tx) = (rx.plan(self.resumes())?, tx.plan(self.resumes())?);
        Some(PairPlan { pair, features, rx, tx, is_enabled })
    }

    fn wanted(&self, pair: u16) -> Option<Served> {
        let plan = self.plan(pair)?;
        let [rx, tx] = self.rings_of(pair);
        Some((plan.features, rx.revision, tx.revision, plan.is_enabled))
    }

    fn stop_all(&mut self) {
        for pair in self.pairs() {
            self.stop(pair);
        }
    }

    fn stop(&mut self, pair: u16) {
        if self.served[usize::from(pair)].take().is_some() {
            self.push_action(Action::StopPair(pair));
        }
    }

    /// Stops and starts pairs until those served match those wanted.
    fn reconcile(&mut self) {
        for pair in self.pairs() {
            let wanted = self.wanted(pair);
            if self.served[usize::from(pair)] == wanted {
                continue;
            }
            self.stop(pair);
            if wanted.is_some() {
                self.served[usize::from(pair)] = wanted;
                self.pending.push_back(Pending::Start(pair));
            }
        }
    }
}

fn extract_starts(pending: &mut VecDeque<Pending>) -> Vec<Pending> {
    let is_start = |it: &Pending| matches!(it, Pending::Start(_));
    let (starts, others): (Vec<Pending>, Vec<Pending>) = pending.drain(..).partition(is_start);
    *pending = others.into();
    starts
}

/// The rings of a pair: the guest's rx ring and its tx ring.
fn ring_places(pair: u16) -> [usize; 2] {
    [2 * usize::from(pair), 2 * usize::from(pair) + 1]
}

fn reply(op: Op, payload: &(impl IntoBytes + zerocopy::Immutable)) -> Message {
    Message::new(Name::from(op), REPLY_MASK, payload)
}
