//! The back-end's session: what a front-end asks for, and what has to be done about it.
//!
//! A pair of rings is to be served while it has all that serving takes, enabled or not. Each
//! request changes what a session knows; then the pairs that are served are compared with those
//! that are to be. So the order in which things come does not matter, and it does differ: QEMU 7.2
//! with `mq=on` has a vhost device for each pair on one socket, enables rings before it says which
//! features are used, adds each region once for each pair, and enables rings once more before it
//! closes.
//!
//! The loop of a caller, for each message:
//!
//! 1. [`Backend::take`] the message.
//! 2. Do each [`Action`] of [`Backend::next_action`] in turn, and give back what it says.
//!
//! The features offered do not shrink under a guest: see [`Offer::floor`].

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_wire::vhost_user::{
    Inflight, MEM_SLOTS_MAX, Op, REGIONS_MAX, REPLY_MASK, VHOST_USER_PROTOCOL_F_REPLY_ACK,
    VringState, inflight_packed, inflight_split,
};
use ringway_wire::virtio::{
    Features, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
};
use zerocopy::IntoBytes;

use crate::memory::{Added, Region, RegionKey, Table, TakenBack};
use crate::request::{self, Area, Request};
use crate::ring::{PairPlan, Resumes, Ring};
use crate::{Fault, Message, Name};

pub use crate::offered::{FEATURES, OPT_IN, REQUIRED, without_orphans};
pub use crate::request::PROTOCOL_FEATURES;

/// Queues of a back-end at most: a ring has a number of eight bits in some requests.
pub const PAIRS_MAX: u16 = 128;
/// The MTUs that a device may have (virtio, 5.1.4).
const MTU_MIN: u16 = 68;

/// What a back-end offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Features of virtio; those that are not in [`FEATURES`] are left out.
    pub features: Features,
    /// What the guest has from an earlier session. It is offered whatever [`Offer::features`] says,
    /// because a guest cannot lose a feature while it runs.
    pub floor: Features,
    /// Features of the protocol; those that are not in [`PROTOCOL_FEATURES`] are left out.
    pub protocol: u64,
    /// Pairs of rings: from 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// The largest MTU that a front-end may set.
    pub mtu_max: u16,
}

impl Offer {
    /// What is offered of virtio.
    pub fn features(&self) -> Features {
        without_orphans(self.features).or(self.floor).or(REQUIRED).and(FEATURES)
    }

    /// What is offered of the protocol.
    pub fn protocol(&self) -> u64 {
        self.protocol & PROTOCOL_FEATURES
    }
}

/// Something to do.
#[derive(Debug)]
pub enum Action {
    /// Send this.
    Send(Message),
    /// Stop a pair, and give its indices to [`Backend::stopped`]: nothing of its rings is used from
    /// then on.
    StopPair(u16),
    /// Serve a pair. Where that fails the connection is to be closed.
    StartPair(Box<PairPlan>),
    /// Let go of all memory and map this. No pair is being served. Where that fails the connection
    /// is to be closed.
    SetMemory(Vec<Region>),
    /// Map one more region, likewise.
    AddRegion(Region),
    /// Let go of a region, likewise.
    RemoveRegion(RegionKey),
    /// Note writes in this area from now on, where the features of a pair say so. No pair is being
    /// served.
    SetLog(Log),
    /// Have the network know that a guest with this address is here now.
    Announce([u8; 6]),
    /// The front-end shows its guest this MTU.
    SetMtu(u16),
    /// Have the front-end get an area of zeros in reply, as [`Wanted::reply`] has it.
    MakeArea(Wanted),
    /// Go on by what is noted in this area, and note there what is under way. No pair is being
    /// served.
    SetArea(Area),
    /// That area is of no more use: the device was reset.
    ForgetArea,
}

/// An area that a front-end asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Rings that it is for.
    pub rings: u16,
    /// Entries of each ring at most.
    pub size: u16,
    /// Its bytes.
    pub len: u64,
}

impl Wanted {
    /// The reply, with a file of so many bytes.
    pub fn reply(self, file: OwnedFd) -> Message {
        let Wanted { rings: num_queues, size: queue_size, len: mmap_size } = self;
        let area = Inflight { mmap_size, num_queues, queue_size, ..Inflight::default() };
        let mut message = reply(Op::GetInflightFd, &area);
        message.files.push(file);
        message
    }
}

/// Where writes are noted: a bit for each page of 4096 bytes.
#[derive(Debug)]
pub struct Log {
    /// The file it is in.
    pub file: OwnedFd,
    /// Its bytes.
    pub size: u64,
    /// Where in its file it begins.
    pub offset: u64,
}

/// Where a pair's rings stood when it was stopped, as `GET_VRING_BASE` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bases {
    /// What the guest receives by.
    pub rx: u32,
    /// What the guest transmits by.
    pub tx: u32,
}

/// What a session waits for before it serves a pair, in the order in which it is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaits {
    /// The driver of the guest: nothing was agreed on.
    Driver,
    /// A driver that knows version 1 of virtio.
    Version1,
    /// Memory of the guest.
    Memory,
    /// Sizes, addresses and notifications of rings.
    Rings,
    /// That rings are enabled.
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
    status: u64,
    memory: Table,
    rings: Vec<Ring>,
    /// For each pair the revisions of its rings and the features that it is being served with.
    served: Vec<Option<Served>>,
    resumes: Resumes,
    todo: VecDeque<Todo>,
    last: Option<Op>,
}

type Served = (Features, u64, u64, bool);

/// What is still to be done about the message taken last.
#[derive(Debug)]
enum Todo {
    Act(Action),
    Start(u16),
    ReplyBase(u16),
    ReplyNumber(Op, u64),
}

impl Backend {
    /// A session at its begin.
    pub fn new(offer: Offer) -> Backend {
        let pairs = offer.pairs.clamp(1, PAIRS_MAX);
        let offer = Offer { pairs, ..offer };
        Backend {
            offer,
            features: None,
            protocol: None,
            status: 0,
            memory: Table::default(),
            rings: vec![Ring::default(); 2 * usize::from(pairs)],
            served: vec![None; usize::from(pairs)],
            resumes: Resumes::AtBase,
            todo: VecDeque::new(),
            last: None,
        }
    }

    /// What was agreed on, if it was.
    pub fn features(&self) -> Option<Features> {
        self.features
    }

    /// What was agreed on of the protocol.
    pub fn protocol(&self) -> u64 {
        self.protocol.unwrap_or(0)
    }

    /// What was offered.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The request taken last.
    pub fn last(&self) -> Option<Op> {
        self.last
    }

    /// The regions that were shared.
    pub fn regions(&self) -> &[RegionKey] {
        self.memory.regions()
    }

    /// What the front-end took back while rings ran, if that is why there is no memory.
    pub fn taken_back(&self) -> Option<TakenBack> {
        self.memory.taken_back()
    }

    /// Pairs whose rings are both enabled.
    pub fn enabled(&self) -> usize {
        self.pairs().filter(|pair| self.is_enabled(*pair)).count()
    }

    /// What is missing before anything is served.
    pub fn awaits(&self) -> Awaits {
        let is_whole = |pair| {
            let [rx, tx] = self.rings_of(pair);
            rx.plan(self.resumes()).is_some() && tx.plan(self.resumes()).is_some()
        };
        match self.features {
            _ if self.served.iter().flatten().any(|(.., is_enabled)| *is_enabled) => {
                Awaits::Nothing
            }
            None => Awaits::Driver,
            Some(features) if !features.has(VIRTIO_F_VERSION_1) => Awaits::Version1,
            Some(_) if self.memory.is_empty() => Awaits::Memory,
            Some(_) if !self.pairs().any(is_whole) => Awaits::Rings,
            Some(_) => Awaits::Enabled,
        }
    }

    /// Takes a message. All that it makes necessary is there to be done then, and is to be done
    /// before the next is taken.
    ///
    /// # Errors
    /// What the front-end did against the protocol; the connection is to be closed.
    pub fn take(&mut self, message: Message) -> Result<(), Fault> {
        let wants_reply = message.needs_reply();
        let (op, request) = Request::read(message, self.rings.len())?;
        self.last = Some(op);
        let feature = request::feature_of(op);
        if feature != 0 && self.protocol() & feature == 0 {
            return Err(Fault::NotAgreed { request: op.into() });
        }
        let reply = self.apply(op, request)?;
        self.settle();
        let has_acks = self.protocol() & VHOST_USER_PROTOCOL_F_REPLY_ACK != 0;
        let ack = (wants_reply && has_acks).then_some(Todo::ReplyNumber(op, 0));
        // What is started comes after the reply: the front-end does not wait for it.
        let starts: Vec<Todo> = extract_starts(&mut self.todo);
        self.todo.extend(reply.or(ack));
        self.todo.extend(starts);
        Ok(())
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        loop {
            return Some(match self.todo.pop_front()? {
                Todo::Act(action) => action,
                Todo::Start(pair) => match self.plan(pair) {
                    Some(plan) => Action::StartPair(Box::new(plan)),
                    None => continue,
                },
                Todo::ReplyNumber(op, number) => Action::Send(reply(op, &number)),
                Todo::ReplyBase(ring) => {
                    let num = self.rings[usize::from(ring)].base.unwrap_or(0);
                    let state = VringState { index: u32::from(ring), num };
                    Action::Send(reply(Op::GetVringBase, &state))
                }
            });
        }
    }

    /// What [`Action::StopPair`] found.
    pub fn stopped(&mut self, pair: u16, bases: Bases) {
        let [rx, tx] = ring_places(pair);
        for (place, base) in [(rx, bases.rx), (tx, bases.tx)] {
            if let Some(ring) = self.rings.get_mut(place) {
                ring.base = Some(base);
            }
        }
    }

    /// Changes what is known, and says what the request itself is replied.
    fn apply(&mut self, op: Op, request: Request) -> Result<Option<Todo>, Fault> {
        let number = |number: u64| Ok(Some(Todo::ReplyNumber(op, number)));
        match request {
            Request::GetFeatures => return number(self.offer.features().0),
            Request::GetProtocolFeatures => return number(self.offer.protocol()),
            Request::GetQueueNum => return number(u64::from(self.offer.pairs)),
            Request::GetMaxMemSlots => return number(MEM_SLOTS_MAX),
            Request::GetStatus => return number(self.status),
            Request::SetFeatures(features) => {
                let found = features.without(self.offer.features());
                if found != Features::NONE {
                    return Err(Fault::Features { request: op.into(), found });
                }
                self.features = Some(features);
            }
            Request::SetProtocolFeatures(protocol) => {
                let found = protocol & !self.offer.protocol();
                if found != 0 {
                    return Err(Fault::Protocol { found });
                }
                self.protocol = Some(protocol);
            }
            // The one is the first message of a session, the other is deprecated.
            Request::SetOwner | Request::ResetOwner => {}
            // The log is read when it is wanted, and a ring's error is a fault of the session.
            Request::SetLogFd(_) | Request::SetVringErr { .. } => {}
            Request::SetMemTable(regions) => self.set_memory(regions)?,
            Request::AddMemReg(region) => {
                let max = usize::try_from(MEM_SLOTS_MAX).unwrap_or(usize::MAX);
                if self.memory.add(region.key, max)? == Added::New {
                    self.stop_all();
                    self.act(Action::AddRegion(region));
                }
            }
            Request::RemMemReg(key) => {
                let served = self.served_count();
                if let Some(known) = self.memory.remove(&key, served) {
                    self.stop_all();
                    self.act(Action::RemoveRegion(known));
                }
            }
            Request::SetLogBase { size, offset, file } => {
                if offset.checked_add(size).is_none() {
                    let expected = "an offset below the end of all addresses";
                    return Err(Fault::Value { request: op.into(), found: offset, expected });
                }
                self.stop_all();
                self.act(Action::SetLog(Log { file, size, offset }));
                return number(0);
            }
            Request::SetVringNum { ring, size } => {
                self.stopped_ring(op, ring)?.size = Some(size);
            }
            Request::SetVringBase { ring, base } => {
                let is_packed = self.offer.features().has(VIRTIO_F_RING_PACKED);
                if !is_packed && u16::try_from(base).is_err() {
                    let (request, found) = (op.into(), u64::from(base));
                    let expected = "an index of 16 bits";
                    return Err(Fault::Value { request, found, expected });
                }
                self.stopped_ring(op, ring)?.base = Some(base);
            }
            Request::SetVringAddr { ring, addresses } => {
                let ring = self.ring(ring);
                if ring.addresses.replace(addresses) != Some(addresses) {
                    ring.revision += 1;
                }
            }
            Request::SetVringKick { ring, file } => {
                let Some(file) = file else {
                    let expected = "a descriptor: rings are not polled all the time";
                    let (request, found) = (op.into(), u64::from(ring));
                    return Err(Fault::Value { request, found, expected });
                };
                let ring = self.ring(ring);
                ring.kick = Some(Arc::new(file));
                ring.revision += 1;
            }
            Request::SetVringCall { ring, file } => {
                let ring = self.ring(ring);
                ring.call = file.map(Arc::new);
                ring.revision += 1;
            }
            Request::GetVringBase { ring } => {
                let known = self.ring(ring);
                known.kick = None;
                known.revision += 1;
                self.settle();
                return Ok(Some(Todo::ReplyBase(ring)));
            }
            Request::SetVringEnable { ring, is_enabled } => {
                self.ring(ring).is_enabled = Some(is_enabled);
            }
            Request::SendRarp(mac) => self.act(Action::Announce(mac)),
            Request::NetSetMtu(mtu) => {
                let mtu_max = self.offer.mtu_max;
                match u16::try_from(mtu) {
                    Ok(mtu) if (MTU_MIN..=mtu_max).contains(&mtu) => {
                        self.act(Action::SetMtu(mtu));
                    }
                    // The front-end asks for a reply.
                    _ => return number(1),
                }
            }
            Request::GetInflightFd { rings, size } => {
                let len = self.area_len(rings, size);
                return Ok(Some(Todo::Act(Action::MakeArea(Wanted { rings, size, len }))));
            }
            Request::SetInflightFd(area) => {
                let expected = "room for all its rings";
                if area.len < self.area_len(area.rings, area.size) {
                    let (request, found) = (op.into(), area.len);
                    return Err(Fault::Value { request, found, expected });
                }
                self.stop_all();
                self.resumes = Resumes::AtUsed;
                self.act(Action::SetArea(area));
            }
            Request::ResetDevice => {
                self.reset();
                for ring in &mut self.rings {
                    ring.is_enabled = None;
                }
            }
            Request::SetStatus(status) => {
                if status > u64::from(u8::MAX) {
                    let expected = "a status of 8 bits";
                    return Err(Fault::Value { request: op.into(), found: status, expected });
                }
                self.status = status;
                // QEMU enables rings before and after, and does not say so again.
                if status == 0 {
                    self.reset();
                }
            }
        }
        Ok(None)
    }

    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), Fault> {
        let mut table = Table::default();
        for region in &regions {
            let one = region.key.guest_address;
            if table.add(region.key, REGIONS_MAX)? == Added::Known {
                return Err(Fault::Overlap { one, other: one });
            }
        }
        self.memory.become_other(table, self.served_count());
        self.stop_all();
        self.act(Action::SetMemory(regions));
        Ok(())
    }

    /// Pairs that are served and enabled.
    fn served_count(&self) -> usize {
        self.served.iter().flatten().filter(|(.., is_enabled)| *is_enabled).count()
    }

    fn reset(&mut self) {
        self.rings.iter_mut().for_each(Ring::reset);
        self.features = None;
        if std::mem::replace(&mut self.resumes, Resumes::AtBase) == Resumes::AtUsed {
            self.act(Action::ForgetArea);
        }
    }

    /// Bytes of an area, as QEMU and DPDK have them as well.
    fn area_len(&self, rings: u16, size: u16) -> u64 {
        let is_packed = self.features.is_some_and(|it| it.has(VIRTIO_F_RING_PACKED));
        let len = if is_packed { inflight_packed::len } else { inflight_split::len };
        let ring = u64::try_from(len(usize::from(size))).unwrap_or(u64::MAX);
        u64::from(rings).saturating_mul(ring)
    }

    fn act(&mut self, action: Action) {
        self.todo.push_back(Todo::Act(action));
    }

    fn ring(&mut self, ring: u16) -> &mut Ring {
        &mut self.rings[usize::from(ring)]
    }

    /// A ring that does not run, to change what only such a ring takes.
    fn stopped_ring(&mut self, op: Op, ring: u16) -> Result<&mut Ring, Fault> {
        if self.served[usize::from(ring / 2)].is_some() {
            return Err(Fault::Runs { request: op.into(), ring });
        }
        Ok(self.ring(ring))
    }

    fn pairs(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.offer.pairs
    }

    fn rings_of(&self, pair: u16) -> [&Ring; 2] {
        ring_places(pair).map(|place| &self.rings[place])
    }

    fn is_enabled(&self, pair: u16) -> bool {
        // Where no protocol features were agreed on, rings are enabled from the start.
        let features = self.features.unwrap_or(Features::NONE);
        let is_agreed = features.has(VHOST_USER_F_PROTOCOL_FEATURES) || self.protocol.is_some();
        let rings = self.rings_of(pair);
        rings.into_iter().all(|ring| ring.is_enabled.unwrap_or(!is_agreed))
    }

    /// What says where rings go on. A packed ring has no index in memory.
    fn resumes(&self) -> Resumes {
        let is_packed = self.features.is_some_and(|it| it.has(VIRTIO_F_RING_PACKED));
        if is_packed { Resumes::AtBase } else { self.resumes }
    }

    /// How a pair is to be served, if it is.
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
            self.act(Action::StopPair(pair));
        }
    }

    /// Has what is served be what is to be.
    fn settle(&mut self) {
        for pair in self.pairs() {
            let wanted = self.wanted(pair);
            if self.served[usize::from(pair)] == wanted {
                continue;
            }
            self.stop(pair);
            if wanted.is_some() {
                self.served[usize::from(pair)] = wanted;
                self.todo.push_back(Todo::Start(pair));
            }
        }
    }
}

fn extract_starts(todo: &mut VecDeque<Todo>) -> Vec<Todo> {
    let is_start = |it: &Todo| matches!(it, Todo::Start(_));
    let (starts, others): (Vec<Todo>, Vec<Todo>) = todo.drain(..).partition(is_start);
    *todo = others.into();
    starts
}

/// The rings of a pair: what the guest receives by, and what it transmits by.
fn ring_places(pair: u16) -> [usize; 2] {
    [2 * usize::from(pair), 2 * usize::from(pair) + 1]
}

fn reply(op: Op, payload: &(impl IntoBytes + zerocopy::Immutable)) -> Message {
    Message::new(Name::from(op), REPLY_MASK, payload)
}
