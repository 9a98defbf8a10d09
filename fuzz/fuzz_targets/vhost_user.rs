//! Bytes and requests of a front-end to a back-end's session. The resulting actions can be carried
//! out: a pair is started once and stopped once, with rings in existing memory, and memory changes
//! only while nothing runs.

#![no_main]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use libfuzzer_sys::fuzz_target;
use ringway_fuzz::Input;
use ringway_vhost::backend::{Action, Bases, FEATURES, Negotiated, Offer, PROTOCOL_FEATURES};
use ringway_vhost::request::{Ack, Request};
use ringway_vhost::{
    Addresses, Area, Backend, Fault, Inbox, Message, PairPlan, Region, RegionKey, RingPlan,
};
use ringway_wire::vhost_user::{HEADER_LEN, Header, Op, PAYLOAD_MAX, VERSION};
use ringway_wire::virtio::{Features, VIRTIO_F_VERSION_1};
use zerocopy::IntoBytes;

/// The most messages of one input.
const MESSAGES_MAX: usize = 128;
/// The most actions of one message: each pair stops and starts, memory changes, a reply.
const ACTIONS_MAX: usize = 2 * 4 + 4;
const PAIRS: u16 = 4;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut device = Device::new(&mut input);
    for _ in 0..MESSAGES_MAX {
        if input.is_empty() {
            break;
        }
        let bytes_and_files = match input.u8() % 4 {
            0 => any_message(&mut input),
            _ => {
                let message = request(&mut input).write(ack(&mut input));
                (message.bytes(), message.files)
            }
        };
        if device.read(bytes_and_files, &mut input).is_err() {
            break;
        }
    }
});

struct Device {
    session: Backend,
    inbox: Inbox,
    memory: Vec<RegionKey>,
    served: BTreeMap<u16, PairPlan>,
    /// The first MTU that was set.
    mtu: Option<u16>,
}

impl Device {
    fn new(input: &mut Input<'_>) -> Device {
        let offer = Offer {
            features: if input.flag() { FEATURES } else { Features(u64::from(input.u32())) },
            floor: if input.flag() { kept(input) } else { Negotiated::NONE },
            protocol: if input.flag() { PROTOCOL_FEATURES } else { u64::from(input.u32()) },
            pairs: 1 + input.u16() % PAIRS,
            mtu_max: 9000,
        };
        Device {
            session: Backend::new(offer),
            inbox: Inbox::default(),
            memory: Vec::new(),
            served: BTreeMap::new(),
            mtu: None,
        }
    }

    /// Reads a message in pieces of any size.
    fn read(
        &mut self,
        (bytes, files): (Vec<u8>, Vec<OwnedFd>),
        input: &mut Input<'_>,
    ) -> Result<(), Fault> {
        let (mut rest, mut files) = (&bytes[..], Some(files));
        while !rest.is_empty() {
            let wanted = self.inbox.wanted();
            assert!((1..=HEADER_LEN + PAYLOAD_MAX).contains(&wanted), "{wanted} bytes are wanted");
            let piece = 1 + usize::from(input.u8());
            let (now, later) = rest.split_at(piece.min(wanted).min(rest.len()));
            rest = later;
            if let Some(message) = self.inbox.take(now, files.take().unwrap_or_default())? {
                self.take(message)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<(), Fault> {
        self.session.take(message)?;
        let mut count = 0;
        while let Some(action) = self.session.next_action() {
            count += 1;
            assert!(count <= ACTIONS_MAX, "{count} actions");
            self.act(action);
        }
        let _ = (self.session.missing(), self.session.enabled());
        assert_eq!(self.memory.len(), self.session.regions().len());
        Ok(())
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(message) => assert!(message.payload.len() <= PAYLOAD_MAX),
            Action::StopPair(pair) => {
                assert!(self.served.remove(&pair).is_some(), "stopped, and was not served");
                self.session.stopped(pair, Bases { rx: 1, tx: 2 });
            }
            Action::StartPair(plan) => {
                assert!(plan.features.has(VIRTIO_F_VERSION_1));
                assert_eq!(plan.features.without(self.session.offer().features()), Features::NONE);
                assert!(!self.memory.is_empty());
                for RingPlan { size, addresses, .. } in [&plan.rx, &plan.tx] {
                    assert!(size.is_power_of_two() && *size <= 32768);
                    assert_eq!(addresses.descriptor % 16, 0);
                }
                let before = self.served.insert(plan.pair, *plan);
                assert!(before.is_none(), "started twice");
            }
            Action::SetMemory(regions) => {
                self.memory = regions.iter().map(|region| region.key).collect();
                self.is_quiet();
            }
            Action::AddRegion(region) => {
                self.memory.push(region.key);
                self.is_quiet();
            }
            Action::RemoveRegion(key) => {
                let before = self.memory.len();
                self.memory.retain(|known| *known != key);
                assert_eq!(self.memory.len() + 1, before);
                self.is_quiet();
            }
            Action::SetLog(log) => {
                assert!(log.offset.checked_add(log.size).is_some());
                self.is_quiet();
            }
            Action::Announce(_) => {}
            Action::SetMtu(mtu) => {
                let mtu_max = self.session.offer().mtu_max();
                assert!((68..=mtu_max).contains(&mtu));
                let kept = (*self.mtu.get_or_insert(mtu)).max(self.session.offer().floor.mtu);
                let negotiated = self.session.negotiated();
                assert!(negotiated.is_none_or(|it| it.mtu == kept), "the first is kept");
            }
            Action::MakeArea(wanted) => {
                assert!(wanted.len <= 512 << 20);
                drop(wanted.reply(file()));
            }
            Action::SetArea(area) => {
                assert!(area.offset.checked_add(area.len).is_some());
                self.is_quiet();
            }
            Action::DropArea => {}
        }
    }

    /// Checks that memory and log are not in use, and that no two regions overlap.
    fn is_quiet(&self) {
        assert!(self.served.is_empty(), "memory changes under a pair");
        for (index, one) in self.memory.iter().enumerate() {
            for other in &self.memory[index + 1..] {
                let apart = one.guest_address + one.size <= other.guest_address
                    || other.guest_address + other.size <= one.guest_address;
                assert!(apart, "{one:?} and {other:?}");
            }
        }
    }
}

/// What a former process has kept, in a file that may be damaged.
fn kept(input: &mut Input<'_>) -> Negotiated {
    Negotiated {
        features: Features(u64::from(input.u32()) << 8),
        protocol: u64::from(input.u32()),
        pairs: input.u16() % (PAIRS + 1),
        mtu: input.u16(),
    }
}

/// A header with any contents, followed by any bytes.
fn any_message(input: &mut Input<'_>) -> (Vec<u8>, Vec<OwnedFd>) {
    let payload = input.u8();
    let payload = input.bytes(usize::from(payload)).to_vec();
    let size = if input.flag() { u32::try_from(payload.len()).unwrap_or(0) } else { input.u32() };
    let flags = if input.flag() { VERSION } else { input.u32() };
    let header = Header { request: u32::from(input.u8()) % 48, flags, size };
    let files = (0..input.u8() % 10).map(|_| file()).collect();
    ([header.as_bytes(), &payload].concat(), files)
}

fn ack(input: &mut Input<'_>) -> Ack {
    if input.flag() { Ack::Wanted } else { Ack::No }
}

/// A request that is mostly well-formed, or the fuzzer would rarely reach a running ring.
fn request(input: &mut Input<'_>) -> Request {
    let ring = u16::from(input.u8()) % (2 * PAIRS + 1);
    let file_of = |input: &mut Input<'_>| (input.u8() % 8 != 0).then(file);
    match input.choose(&Op::ALL[..40]) {
        Op::GetFeatures => Request::GetFeatures,
        Op::SetFeatures if input.flag() => Request::SetFeatures(FEATURES),
        Op::SetFeatures => Request::SetFeatures(Features(u64::from(input.u32()) << 8)),
        Op::SetMemTable => {
            let count = u64::from(input.u8() % 4);
            Request::SetMemTable((0..count).map(region).collect())
        }
        Op::AddMemReg => Request::AddMemReg(region(u64::from(input.u8() % 16))),
        Op::RemMemReg => Request::RemMemReg(region(u64::from(input.u8() % 16)).key),
        Op::SetVringNum => Request::SetVringNum { ring, size: 1 << (input.u8() % 16) },
        Op::SetVringAddr => {
            let start = u64::from(input.u16()) << 4;
            let log = input.flag().then_some(start);
            let addresses = Addresses { descriptor: start, available: start, used: start, log };
            Request::SetVringAddr { ring, addresses }
        }
        Op::SetVringBase => Request::SetVringBase { ring, base: input.u16().into() },
        Op::GetVringBase => Request::GetVringBase { ring },
        Op::SetVringKick => Request::SetVringKick { ring, file: file_of(input) },
        Op::SetVringCall => Request::SetVringCall { ring, file: file_of(input) },
        Op::SetVringErr => Request::SetVringErr { ring, file: file_of(input) },
        Op::SetVringEnable => Request::SetVringEnable { ring, is_enabled: input.flag() },
        Op::SetLogBase => {
            let (size, offset) = (u64::from(input.u32()), u64::from(input.u32()));
            Request::SetLogBase { size, offset, file: file() }
        }
        Op::SetLogFd => Request::SetLogFd(file()),
        Op::GetProtocolFeatures => Request::GetProtocolFeatures,
        Op::SetProtocolFeatures if input.flag() => Request::SetProtocolFeatures(PROTOCOL_FEATURES),
        Op::SetProtocolFeatures => Request::SetProtocolFeatures(u64::from(input.u32())),
        Op::GetQueueNum => Request::GetQueueNum,
        Op::SendRarp => Request::SendRarp(input.array()),
        Op::NetSetMtu => Request::NetSetMtu(u64::from(input.u32())),
        Op::GetInflightFd => Request::GetInflightFd { rings: ring, size: input.u16() },
        Op::SetInflightFd => {
            let (size, len) = (input.u16(), u64::from(input.u32()));
            let offset = u64::from(input.u32()) << 32;
            Request::SetInflightFd(Area { rings: ring, size, len, offset, file: file() })
        }
        Op::ResetDevice => Request::ResetDevice,
        Op::ResetOwner => Request::ResetOwner,
        Op::GetMaxMemSlots => Request::GetMaxMemSlots,
        Op::SetStatus => Request::SetStatus(u64::from(input.u8())),
        Op::GetStatus => Request::GetStatus,
        _ => Request::SetOwner,
    }
}

fn region(index: u64) -> Region {
    // Some overlap.
    let start = index * 0x1800;
    let key = RegionKey { guest_address: start, size: 0x2000, user_address: start, file_offset: 0 };
    Region { key, file: file() }
}

fn file() -> OwnedFd {
    thread_local! {
        static FILE: File = File::open("/dev/null").expect("/dev/null is there");
    }
    FILE.with(|file| file.try_clone().expect("a descriptor is left").into())
}
