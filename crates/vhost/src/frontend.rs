//! The front-end's session: what a guest, or a program in its place, requests of a back-end.
//!
//! Requests are queued and sent in order. Some have a reply, and replies come in the order of their
//! requests, so the session never blocks on one: each reply becomes an [`Event`].

use std::collections::VecDeque;

use ringway_wire::vhost_user::{
    Inflight, Op, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, VHOST_USER_PROTOCOL_F_MQ,
    VHOST_USER_PROTOCOL_F_REPLY_ACK, VringState,
};
use ringway_wire::virtio::{
    Features, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER,
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_F_RING_PACKED,
    VIRTIO_F_VERSION_1,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::memory::{Region, RegionKey};
use crate::request::{Ack, Area, Request, feature_of};
use crate::{Fault, Message, Name};

pub use crate::offered::Negotiated;

/// What a front-end wants to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preferences {
    /// Features of virtio.
    pub features: Features,
    /// Features of the protocol.
    pub protocol: u64,
    /// Pairs of rings.
    pub pairs: u16,
}

/// The result of a reply.
#[derive(Debug)]
pub enum Event {
    /// Negotiation is complete. Memory and rings may be passed now.
    Negotiated(Negotiated),
    /// A ring is stopped.
    Stopped {
        /// The ring.
        ring: u16,
        /// Its next available index.
        base: u32,
    },
    /// A request was done.
    Done(Op),
    /// The status of the device.
    Status(u64),
    /// An inflight area, to be passed with the rings, and again to the next back-end.
    Area(Area),
}

/// A session.
#[derive(Debug)]
pub struct Frontend {
    preferences: Preferences,
    negotiated: Negotiated,
    /// Requests whose replies are outstanding, the oldest first.
    awaited: VecDeque<(Op, Option<u16>)>,
    outbox: VecDeque<Message>,
    events: VecDeque<Event>,
}

impl Frontend {
    /// Begins a session, with messages to send at once.
    pub fn new(preferences: Preferences) -> Frontend {
        let negotiated = Negotiated { pairs: 1, ..Negotiated::NONE };
        let mut frontend = Frontend {
            preferences,
            negotiated,
            awaited: VecDeque::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        };
        frontend.ask(Request::GetFeatures);
        frontend
    }

    /// The next message to send.
    pub fn next_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether a reply is awaited.
    pub fn is_waiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Passes memory: all of it as it is from now on, or the additional regions if the back-end
    /// takes them one by one.
    pub fn share(&mut self, regions: Vec<Region>) {
        if self.negotiated.protocol & VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS == 0 {
            return self.ask(Request::SetMemTable(regions));
        }
        for region in regions {
            self.ask(Request::AddMemReg(region));
        }
    }

    /// Removes a region.
    pub fn unshare(&mut self, region: RegionKey) {
        self.ask(Request::RemMemReg(region));
    }

    /// Reports that the driver is ready, after everything else was passed. A back-end with which
    /// the status was negotiated may wait for it, as DPDK's does.
    pub fn finish(&mut self) {
        self.ask(Request::SetStatus(DRIVER_IS_READY));
    }

    /// Queues a request. Requests of protocol features that were not negotiated are left out.
    pub fn ask(&mut self, request: Request) {
        let op = request.op();
        let feature = feature_of(op);
        if feature != 0 && self.negotiated.protocol & feature == 0 {
            return;
        }
        let ring = match request {
            Request::GetVringBase { ring } => Some(ring),
            _ => None,
        };
        let has_reply = has_reply(op);
        let has_acks = self.negotiated.protocol & VHOST_USER_PROTOCOL_F_REPLY_ACK != 0;
        let ack = if has_acks && !has_reply { Ack::Wanted } else { Ack::No };
        if has_reply || ack == Ack::Wanted {
            self.awaited.push_back((op, ring));
        }
        self.outbox.push_back(request.write(ack));
    }

    /// Takes a reply.
    ///
    /// # Errors
    /// The back-end broke the protocol, refused a request, or lacks a feature; the connection must
    /// be closed.
    pub fn take(&mut self, mut message: Message) -> Result<(), Fault> {
        let found = message.name();
        let expected = self.awaited.front().map(|(op, _)| Name::from(*op));
        let awaited = self.awaited.pop_front();
        let is_it = message.is_reply() && expected == Some(found);
        let Some((op, ring)) = awaited.filter(|_| is_it) else {
            return Err(Fault::UnsolicitedReply { found, expected });
        };
        let expected = usize::from(op == Op::GetInflightFd);
        if message.files.len() != expected {
            let found_files = message.files.len();
            return Err(Fault::Files { request: found, found: found_files, expected });
        }
        match op {
            Op::GetVringBase => {
                let state: VringState = read(&message)?;
                let is_packed = self.negotiated.features.has(VIRTIO_F_RING_PACKED);
                let is_index = is_packed || u16::try_from(state.num).is_ok();
                if !is_index || ring.map(u32::from) != Some(state.index) {
                    let expected = "the ring asked for and an index of 16 bits";
                    let number = u64::from(state.num);
                    return Err(Fault::Value { request: found, found: number, expected });
                }
                let (ring, base) = (ring.unwrap_or(0), state.num);
                self.events.push_back(Event::Stopped { ring, base });
            }
            Op::GetInflightFd => {
                let Inflight {
                    mmap_size: len, mmap_offset: offset, num_queues, queue_size, ..
                } = read(&message)?;
                let (rings, size) = (num_queues, queue_size);
                let area = message.files.pop().map(|file| Area { rings, size, len, offset, file });
                self.events.extend(area.map(Event::Area));
            }
            _ => self.take_number(op, read(&message)?)?,
        }
        Ok(())
    }

    fn take_number(&mut self, op: Op, number: u64) -> Result<(), Fault> {
        match op {
            Op::GetFeatures => {
                let offered = Features(number);
                if !offered.has(VIRTIO_F_VERSION_1) {
                    return Err(Fault::MissingFeature("version 1 of virtio"));
                }
                self.negotiated.features = self.preferences.features.and(offered);
                self.ask(Request::SetOwner);
                if offered.has(VHOST_USER_F_PROTOCOL_FEATURES) {
                    let negotiated = self.negotiated.features;
                    let protocol = Features::of(&[VHOST_USER_F_PROTOCOL_FEATURES]);
                    self.negotiated.features = negotiated.or(protocol);
                    self.ask(Request::GetProtocolFeatures);
                } else {
                    self.agree();
                }
            }
            Op::GetProtocolFeatures => {
                let protocol = number & self.preferences.protocol;
                // Not in force before the back-end has read it, so sent without asking for an
                // acknowledgement.
                self.ask(Request::SetProtocolFeatures(protocol));
                self.negotiated.protocol = protocol;
                if protocol & VHOST_USER_PROTOCOL_F_MQ != 0 {
                    self.ask(Request::GetQueueNum);
                } else {
                    self.agree();
                }
            }
            Op::GetQueueNum => {
                let pairs = u16::try_from(number).unwrap_or(u16::MAX);
                if pairs == 0 {
                    return Err(Fault::MissingFeature("queues"));
                }
                self.negotiated.pairs = pairs.min(self.preferences.pairs.max(1));
                self.agree();
            }
            Op::GetMaxMemSlots => self.events.push_back(Event::Done(op)),
            Op::GetStatus => self.events.push_back(Event::Status(number)),
            _ if number != 0 => {
                return Err(Fault::Refused { request: op.into(), code: number });
            }
            _ => self.events.push_back(Event::Done(op)),
        }
        Ok(())
    }

    fn agree(&mut self) {
        self.ask(Request::SetFeatures(self.negotiated.features));
        self.events.push_back(Event::Negotiated(self.negotiated));
    }
}

/// The status of a device whose driver has completed all steps.
const DRIVER_IS_READY: u64 = VIRTIO_CONFIG_S_ACKNOWLEDGE
    | VIRTIO_CONFIG_S_DRIVER
    | VIRTIO_CONFIG_S_FEATURES_OK
    | VIRTIO_CONFIG_S_DRIVER_OK;

/// Whether a request has a reply of its own.
fn has_reply(op: Op) -> bool {
    matches!(
        op,
        Op::GetFeatures
            | Op::GetProtocolFeatures
            | Op::GetQueueNum
            | Op::GetVringBase
            | Op::SetLogBase
            | Op::GetInflightFd
            | Op::GetMaxMemSlots
            | Op::GetStatus
    )
}

fn read<T: FromBytes + KnownLayout + Immutable>(message: &Message) -> Result<T, Fault> {
    T::read_from_bytes(&message.payload).map_err(|_| Fault::Size {
        request: message.name(),
        found: message.payload.len(),
        expected: size_of::<T>(),
    })
}
