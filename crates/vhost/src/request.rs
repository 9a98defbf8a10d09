//! The requests of a front-end as values: read from messages with every check that needs no session
//! state, and written into messages.

use std::os::fd::OwnedFd;

use ringway_wire::vhost_user::{
    INFLIGHT_LEN_MIN, Inflight, LogArea, MemoryHeader, MemoryRegion, NEED_REPLY_MASK, Op,
    REGIONS_MAX, SingleRegion, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
    VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD, VHOST_USER_PROTOCOL_F_LOG_SHMFD,
    VHOST_USER_PROTOCOL_F_MQ, VHOST_USER_PROTOCOL_F_NET_MTU, VHOST_USER_PROTOCOL_F_RARP,
    VHOST_USER_PROTOCOL_F_RESET_DEVICE, VHOST_USER_PROTOCOL_F_STATUS, VHOST_VRING_F_LOG,
    VRING_INDEX_MASK, VRING_NOFD_MASK, VringAddr, VringState,
};
use ringway_wire::virtio::Features;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::memory::{Region, RegionKey};
use crate::{Addresses, Fault, Message, Name, RING_SIZE_MAX};

/// The protocol features that a back-end may offer: those whose requests are implemented here.
pub const PROTOCOL_FEATURES: u64 = VHOST_USER_PROTOCOL_F_MQ
    | VHOST_USER_PROTOCOL_F_LOG_SHMFD
    | VHOST_USER_PROTOCOL_F_RARP
    | ringway_wire::vhost_user::VHOST_USER_PROTOCOL_F_REPLY_ACK
    | VHOST_USER_PROTOCOL_F_NET_MTU
    | VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD
    | VHOST_USER_PROTOCOL_F_RESET_DEVICE
    | VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS
    | VHOST_USER_PROTOCOL_F_STATUS;

/// A front-end's request.
#[derive(Debug)]
#[expect(missing_docs, reason = "`ringway_wire::vhost_user::Op` says what each is for")]
pub enum Request {
    GetFeatures,
    SetFeatures(Features),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetLogBase { size: u64, offset: u64, file: OwnedFd },
    SetLogFd(OwnedFd),
    SetVringNum { ring: u16, size: u16 },
    SetVringAddr { ring: u16, addresses: Addresses },
    SetVringBase { ring: u16, base: u32 },
    GetVringBase { ring: u16 },
    SetVringKick { ring: u16, file: Option<OwnedFd> },
    SetVringCall { ring: u16, file: Option<OwnedFd> },
    SetVringErr { ring: u16, file: Option<OwnedFd> },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable { ring: u16, is_enabled: bool },
    SendRarp([u8; 6]),
    NetSetMtu(u64),
    GetInflightFd { rings: u16, size: u16 },
    SetInflightFd(Area),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(Region),
    RemMemReg(RegionKey),
    SetStatus(u64),
    GetStatus,
}

/// A record of the chains in flight, for all rings one after the other.
#[derive(Debug)]
pub struct Area {
    /// The number of rings.
    pub rings: u16,
    /// The most entries of each ring.
    pub size: u16,
    /// Its bytes.
    pub len: u64,
    /// Its byte offset in the file.
    pub offset: u64,
    /// The file.
    pub file: OwnedFd,
}

impl Area {
    fn wire(&self) -> Inflight {
        Inflight {
            mmap_size: self.len,
            mmap_offset: self.offset,
            num_queues: self.rings,
            queue_size: self.size,
            padding: 0,
        }
    }
}

/// The protocol feature that a request belongs to; 0 for those that need none.
pub(crate) fn feature_of(op: Op) -> u64 {
    match op {
        Op::GetQueueNum => VHOST_USER_PROTOCOL_F_MQ,
        Op::SetLogBase => VHOST_USER_PROTOCOL_F_LOG_SHMFD,
        Op::SendRarp => VHOST_USER_PROTOCOL_F_RARP,
        Op::NetSetMtu => VHOST_USER_PROTOCOL_F_NET_MTU,
        Op::GetInflightFd | Op::SetInflightFd => VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
        Op::ResetDevice => VHOST_USER_PROTOCOL_F_RESET_DEVICE,
        Op::GetMaxMemSlots | Op::AddMemReg | Op::RemMemReg => {
            VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS
        }
        Op::SetStatus | Op::GetStatus => VHOST_USER_PROTOCOL_F_STATUS,
        _ => 0,
    }
}

impl Request {
    /// Reads a request. Ring numbers must be below `rings`.
    ///
    /// # Errors
    /// What is wrong with the message.
    pub fn read(mut message: Message, rings: usize) -> Result<(Op, Request), Fault> {
        let request = message.name();
        let op = Op::from_number(message.request).ok_or(Fault::Unknown(message.request))?;
        if message.is_reply() {
            return Err(Fault::UnsolicitedReply { found: request, expected: None });
        }
        let body = Body { message: &mut message, rings };
        Ok((op, body.read(op)?))
    }

    /// The request's number.
    pub fn op(&self) -> Op {
        match self {
            Request::GetFeatures => Op::GetFeatures,
            Request::SetFeatures(_) => Op::SetFeatures,
            Request::SetOwner => Op::SetOwner,
            Request::ResetOwner => Op::ResetOwner,
            Request::SetMemTable(_) => Op::SetMemTable,
            Request::SetLogBase { .. } => Op::SetLogBase,
            Request::SetLogFd(_) => Op::SetLogFd,
            Request::SetVringNum { .. } => Op::SetVringNum,
            Request::SetVringAddr { .. } => Op::SetVringAddr,
            Request::SetVringBase { .. } => Op::SetVringBase,
            Request::GetVringBase { .. } => Op::GetVringBase,
            Request::SetVringKick { .. } => Op::SetVringKick,
            Request::SetVringCall { .. } => Op::SetVringCall,
            Request::SetVringErr { .. } => Op::SetVringErr,
            Request::GetProtocolFeatures => Op::GetProtocolFeatures,
            Request::SetProtocolFeatures(_) => Op::SetProtocolFeatures,
            Request::GetQueueNum => Op::GetQueueNum,
            Request::SetVringEnable { .. } => Op::SetVringEnable,
            Request::SendRarp(_) => Op::SendRarp,
            Request::NetSetMtu(_) => Op::NetSetMtu,
            Request::GetInflightFd { .. } => Op::GetInflightFd,
            Request::SetInflightFd(_) => Op::SetInflightFd,
            Request::ResetDevice => Op::ResetDevice,
            Request::GetMaxMemSlots => Op::GetMaxMemSlots,
            Request::AddMemReg(_) => Op::AddMemReg,
            Request::RemMemReg(_) => Op::RemMemReg,
            Request::SetStatus(_) => Op::SetStatus,
            Request::GetStatus => Op::GetStatus,
        }
    }

    /// Writes the request; `ack` may ask for an acknowledgement.
    pub fn write(self, ack: Ack) -> Message {
        let op = self.op();
        let flags = match ack {
            Ack::Wanted => NEED_REPLY_MASK,
            Ack::No => 0,
        };
        let (payload, files) = self.parts();
        let mut message = Message::new(op.into(), flags, &payload[..]);
        message.files = files;
        message
    }

    /// Its payload and its files.
    fn parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        let state = |ring: u16, num: u32| bytes(&VringState { index: u32::from(ring), num });
        match self {
            Request::GetFeatures
            | Request::SetOwner
            | Request::ResetOwner
            | Request::GetProtocolFeatures
            | Request::GetQueueNum
            | Request::ResetDevice
            | Request::GetMaxMemSlots
            | Request::GetStatus => (Vec::new(), Vec::new()),
            Request::SetFeatures(features) => bytes(&features.0),
            Request::SetProtocolFeatures(it) | Request::NetSetMtu(it) | Request::SetStatus(it) => {
                bytes(&it)
            }
            Request::SetMemTable(regions) => {
                let count = u32::try_from(regions.len()).unwrap_or(u32::MAX);
                let mut payload = MemoryHeader { count, padding: 0 }.as_bytes().to_vec();
                for region in &regions {
                    payload.extend_from_slice(region.key.wire().as_bytes());
                }
                (payload, regions.into_iter().map(|region| region.file).collect())
            }
            Request::SetLogBase { size, offset, file } => {
                (LogArea { size, offset }.as_bytes().to_vec(), vec![file])
            }
            Request::SetLogFd(file) => (Vec::new(), vec![file]),
            Request::SetVringNum { ring, size } => state(ring, u32::from(size)),
            Request::SetVringBase { ring, base } => state(ring, base),
            Request::GetVringBase { ring } => state(ring, 0),
            Request::SetVringEnable { ring, is_enabled } => state(ring, u32::from(is_enabled)),
            Request::SetVringAddr { ring, addresses } => {
                let Addresses { descriptor, used, available, log } = addresses;
                let flags = if log.is_some() { VHOST_VRING_F_LOG } else { 0 };
                let (index, log) = (u32::from(ring), log.unwrap_or(0));
                bytes(&VringAddr { index, flags, descriptor, used, available, log })
            }
            Request::SetVringKick { ring, file }
            | Request::SetVringCall { ring, file }
            | Request::SetVringErr { ring, file } => {
                let flag = if file.is_none() { VRING_NOFD_MASK } else { 0 };
                ((u64::from(ring) | flag).as_bytes().to_vec(), file.into_iter().collect())
            }
            Request::SendRarp([a, b, c, d, e, f]) => bytes(&[a, b, c, d, e, f, 0, 0]),
            Request::GetInflightFd { rings: num_queues, size: queue_size } => {
                bytes(&Inflight { num_queues, queue_size, ..Inflight::default() })
            }
            Request::SetInflightFd(area) => (area.wire().as_bytes().to_vec(), vec![area.file]),
            Request::AddMemReg(Region { key, file }) => {
                (SingleRegion { padding: 0, region: key.wire() }.as_bytes().to_vec(), vec![file])
            }
            Request::RemMemReg(key) => bytes(&SingleRegion { padding: 0, region: key.wire() }),
        }
    }
}

/// A payload without files.
fn bytes(payload: &(impl IntoBytes + Immutable)) -> (Vec<u8>, Vec<OwnedFd>) {
    (payload.as_bytes().to_vec(), Vec::new())
}

/// Whether the sender wants a reply to a request that has none of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// It does.
    Wanted,
    /// It does not.
    No,
}

/// A message being parsed.
struct Body<'a> {
    message: &'a mut Message,
    rings: usize,
}

impl Body<'_> {
    fn read(mut self, op: Op) -> Result<Request, Fault> {
        Ok(match op {
            Op::GetFeatures => self.nothing(Request::GetFeatures)?,
            Op::SetOwner => self.nothing(Request::SetOwner)?,
            Op::ResetOwner => self.nothing(Request::ResetOwner)?,
            Op::GetProtocolFeatures => self.nothing(Request::GetProtocolFeatures)?,
            Op::GetQueueNum => self.nothing(Request::GetQueueNum)?,
            Op::ResetDevice => self.nothing(Request::ResetDevice)?,
            Op::GetMaxMemSlots => self.nothing(Request::GetMaxMemSlots)?,
            Op::GetStatus => self.nothing(Request::GetStatus)?,
            Op::SetFeatures => Request::SetFeatures(Features(self.number()?)),
            Op::SetProtocolFeatures => Request::SetProtocolFeatures(self.number()?),
            Op::SetMemTable => Request::SetMemTable(self.table()?),
            Op::SetLogBase => {
                let LogArea { size, offset } = self.plain()?;
                Request::SetLogBase { size, offset, file: self.file()? }
            }
            Op::SetLogFd => {
                self.is_empty()?;
                Request::SetLogFd(self.file()?)
            }
            Op::SetVringNum => self.ring_size()?,
            Op::SetVringBase => {
                let (ring, base) = self.ring_number()?;
                Request::SetVringBase { ring, base }
            }
            Op::GetVringBase => Request::GetVringBase { ring: self.ring_number()?.0 },
            Op::SetVringEnable => self.ring_enabled()?,
            Op::SetVringAddr => self.addresses()?,
            Op::SetVringKick => {
                self.ring_file(|ring, file| Request::SetVringKick { ring, file })?
            }
            Op::SetVringCall => {
                self.ring_file(|ring, file| Request::SetVringCall { ring, file })?
            }
            Op::SetVringErr => self.ring_file(|ring, file| Request::SetVringErr { ring, file })?,
            Op::SendRarp => {
                let [a, b, c, d, e, f, ..] = self.number()?.to_ne_bytes();
                Request::SendRarp([a, b, c, d, e, f])
            }
            Op::NetSetMtu => Request::NetSetMtu(self.number()?),
            Op::SetStatus => Request::SetStatus(self.number()?),
            Op::GetInflightFd => {
                let Inflight { num_queues: rings, queue_size: size, .. } = self.inflight()?;
                self.files(0)?;
                Request::GetInflightFd { rings, size }
            }
            Op::SetInflightFd => Request::SetInflightFd(self.area()?),
            Op::AddMemReg => {
                let single: SingleRegion = self.plain()?;
                let key = RegionKey::read(&single.region)?;
                Request::AddMemReg(Region { key, file: self.file()? })
            }
            Op::RemMemReg => Request::RemMemReg(self.removed()?),
            Op::PostcopyAdvise | Op::PostcopyListen | Op::PostcopyEnd => {
                return Err(Fault::Postcopy { request: self.name() });
            }
            _ => return Err(Fault::NotNegotiated { request: self.name() }),
        })
    }

    fn name(&self) -> Name {
        self.message.name()
    }

    fn plain<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<T, Fault> {
        T::read_from_bytes(&self.message.payload).map_err(|_| self.wrong_size(size_of::<T>()))
    }

    fn wrong_size(&self, expected: usize) -> Fault {
        Fault::Size { request: self.name(), found: self.message.payload.len(), expected }
    }

    fn out_of_range(&self, found: u64, expected: &'static str) -> Fault {
        Fault::Value { request: self.name(), found, expected }
    }

    fn is_empty(&self) -> Result<(), Fault> {
        if self.message.payload.is_empty() { Ok(()) } else { Err(self.wrong_size(0)) }
    }

    fn files(&self, expected: usize) -> Result<(), Fault> {
        let found = self.message.files.len();
        if found == expected {
            return Ok(());
        }
        Err(Fault::Files { request: self.name(), found, expected })
    }

    fn nothing(&self, request: Request) -> Result<Request, Fault> {
        self.is_empty()?;
        self.files(0)?;
        Ok(request)
    }

    fn number(&self) -> Result<u64, Fault> {
        self.files(0)?;
        self.plain()
    }

    fn file(&mut self) -> Result<OwnedFd, Fault> {
        self.files(1)?;
        let wrong = Fault::Files { request: self.name(), found: 0, expected: 1 };
        self.message.files.pop().ok_or(wrong)
    }

    fn ring(&self, ring: u64) -> Result<u16, Fault> {
        let known = u16::try_from(ring).ok().filter(|ring| usize::from(*ring) < self.rings);
        known.ok_or(Fault::Ring { request: self.name(), ring, rings: self.rings })
    }

    fn state(&self) -> Result<VringState, Fault> {
        self.plain()
    }

    fn ring_number(&self) -> Result<(u16, u32), Fault> {
        let VringState { index, num } = self.state()?;
        self.files(0)?;
        Ok((self.ring(u64::from(index))?, num))
    }

    fn ring_size(&self) -> Result<Request, Fault> {
        let (ring, size) = self.ring_number()?;
        let is_good = size.is_power_of_two() && size <= RING_SIZE_MAX;
        let known = u16::try_from(size).ok().filter(|_| is_good);
        Ok(Request::SetVringNum { ring, size: known.ok_or(Fault::RingSize { ring, size })? })
    }

    fn ring_enabled(&self) -> Result<Request, Fault> {
        let (ring, is_enabled) = self.ring_number()?;
        if is_enabled > 1 {
            return Err(self.out_of_range(u64::from(is_enabled), "0 or 1"));
        }
        Ok(Request::SetVringEnable { ring, is_enabled: is_enabled == 1 })
    }

    fn ring_file(
        &mut self,
        request: impl FnOnce(u16, Option<OwnedFd>) -> Request,
    ) -> Result<Request, Fault> {
        let number: u64 = self.plain()?;
        if number & !(VRING_INDEX_MASK | VRING_NOFD_MASK) != 0 {
            return Err(self.out_of_range(number, "a ring below 256 and a flag"));
        }
        let ring = self.ring(number & VRING_INDEX_MASK)?;
        if number & VRING_NOFD_MASK != 0 {
            self.files(0)?;
            return Ok(request(ring, None));
        }
        Ok(request(ring, Some(self.file()?)))
    }

    fn addresses(&self) -> Result<Request, Fault> {
        let VringAddr { index, flags, descriptor, used, available, log } = self.plain()?;
        self.files(0)?;
        let ring = self.ring(u64::from(index))?;
        if flags & !VHOST_VRING_F_LOG != 0 {
            return Err(self.out_of_range(u64::from(flags), "no flag but that of logs"));
        }
        // The alignment that the specification requires of the three parts of a ring.
        for (part, address, alignment) in [
            ("descriptor table", descriptor, 16),
            ("available ring", available, 2),
            ("used ring", used, 4),
        ] {
            if address % alignment != 0 {
                return Err(Fault::Misaligned { ring, part, address, alignment });
            }
        }
        let log = (flags & VHOST_VRING_F_LOG != 0).then_some(log);
        let addresses = Addresses { descriptor, used, available, log };
        Ok(Request::SetVringAddr { ring, addresses })
    }

    fn inflight(&self) -> Result<Inflight, Fault> {
        let mut bytes = [0; size_of::<Inflight>()];
        let payload = &self.message.payload;
        if ![INFLIGHT_LEN_MIN, bytes.len()].contains(&payload.len()) {
            return Err(self.wrong_size(bytes.len()));
        }
        bytes[..payload.len()].copy_from_slice(payload);
        let Ok(it) = Inflight::read_from_bytes(&bytes) else {
            return Err(self.wrong_size(bytes.len()));
        };
        let Inflight { num_queues, queue_size, .. } = it;
        if usize::from(num_queues) > self.rings {
            return Err(self.out_of_range(u64::from(num_queues), "no more rings than there are"));
        }
        if u32::from(queue_size) > RING_SIZE_MAX {
            return Err(self.out_of_range(u64::from(queue_size), "at most 32768 entries"));
        }
        Ok(it)
    }

    fn area(&mut self) -> Result<Area, Fault> {
        let it = self.inflight()?;
        if it.mmap_offset.checked_add(it.mmap_size).is_none() {
            let expected = "an offset below the end of all addresses";
            return Err(self.out_of_range(it.mmap_offset, expected));
        }
        Ok(Area {
            rings: it.num_queues,
            size: it.queue_size,
            len: it.mmap_size,
            offset: it.mmap_offset,
            file: self.file()?,
        })
    }

    fn removed(&self) -> Result<RegionKey, Fault> {
        let single: SingleRegion = self.plain()?;
        // Some front-ends send the file once more.
        if self.message.files.len() > 1 {
            self.files(0)?;
        }
        RegionKey::read(&single.region)
    }

    fn table(&mut self) -> Result<Vec<Region>, Fault> {
        let payload = &self.message.payload;
        let Ok((header, rest)) = MemoryHeader::read_from_prefix(payload) else {
            return Err(self.wrong_size(size_of::<MemoryHeader>()));
        };
        let count = usize::try_from(header.count).unwrap_or(usize::MAX);
        if count > REGIONS_MAX {
            return Err(Fault::TooManyRegions { found: count, max: REGIONS_MAX });
        }
        if rest.len() != count * size_of::<MemoryRegion>() {
            let expected = size_of::<MemoryHeader>() + count * size_of::<MemoryRegion>();
            return Err(self.wrong_size(expected));
        }
        self.files(count)?;
        let regions: Vec<MemoryRegion> = rest
            .chunks_exact(size_of::<MemoryRegion>())
            .filter_map(|bytes| MemoryRegion::read_from_bytes(bytes).ok())
            .collect();
        let mut table = Vec::new();
        for (region, file) in regions.iter().zip(self.message.files.drain(..)) {
            table.push(Region { key: RegionKey::read(region)?, file });
        }
        Ok(table)
    }
}
