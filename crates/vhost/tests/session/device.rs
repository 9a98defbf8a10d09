//! A back-end without a data path: carries out a session's actions, and checks that they are
//! allowed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use ringway_vhost::backend::{Action, Bases, Negotiated, Offer};
use ringway_vhost::request::{Ack, Request};
use ringway_vhost::{
    Addresses, Backend, Base, Fault, Message, Region, RegionKey, backend::FEATURES,
    backend::OPT_IN, backend::PROTOCOL_FEATURES,
};
use ringway_wire::virtio::Features;

/// The features offered by default.
pub(crate) const USUAL: Features = FEATURES.without(OPT_IN);

pub(crate) const STEP: u32 = 7;

/// Size, addresses and base of a ring.
type Served = (u16, Addresses, u32);

pub(crate) struct Device {
    pub(crate) session: Backend,
    pub(crate) memory: Vec<RegionKey>,
    /// The pairs being served: features, and for each ring its size, addresses and base.
    pub(crate) served: BTreeMap<u16, (Features, [Served; 2])>,
    /// The disabled pairs, whose transmitted frames are dropped, with what `served` has of them.
    pub(crate) drained: BTreeMap<u16, (Features, [Served; 2])>,
    pub(crate) sent: Vec<Message>,
    pub(crate) starts: usize,
    pub(crate) has_log: bool,
    pub(crate) has_area: bool,
    pub(crate) announced: Vec<[u8; 6]>,
    pub(crate) mtu: Option<u16>,
}

impl Device {
    pub(crate) fn new(pairs: u16) -> Device {
        Device::with(Offer {
            features: USUAL,
            floor: Negotiated::NONE,
            protocol: PROTOCOL_FEATURES,
            pairs,
            mtu_max: 9000,
        })
    }

    pub(crate) fn with(offer: Offer) -> Device {
        Device {
            session: Backend::new(offer),
            memory: Vec::new(),
            served: BTreeMap::new(),
            drained: BTreeMap::new(),
            sent: Vec::new(),
            starts: 0,
            has_log: false,
            has_area: false,
            announced: Vec::new(),
            mtu: None,
        }
    }

    pub(crate) fn ask(&mut self, request: Request) -> Result<(), Fault> {
        self.take(request.write(Ack::No))
    }

    pub(crate) fn take(&mut self, message: Message) -> Result<(), Fault> {
        self.session.take(message)?;
        while let Some(action) = self.session.next_action() {
            self.act(action);
        }
        Ok(())
    }

    /// The number in the last reply.
    pub(crate) fn number(&self) -> u64 {
        let payload = &self.sent.last().expect("there is a reply").payload;
        u64::from_ne_bytes(payload[..8].try_into().expect("it is a number"))
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(message) => self.sent.push(message),
            Action::StopPair(pair) => {
                let (step, (_, [rx, tx])) = match self.drained.remove(&pair) {
                    Some(drained) => (0, drained),
                    None => (STEP, self.served.remove(&pair).expect("it is served")),
                };
                let bases = Bases { rx: rx.2.wrapping_add(step), tx: tx.2.wrapping_add(step) };
                self.session.stopped(pair, bases);
            }
            Action::StartPair(plan) => {
                self.starts += usize::from(plan.is_enabled);
                assert!(!self.memory.is_empty(), "rings are in memory");
                let ring = |ring: &ringway_vhost::RingPlan| {
                    let base = match ring.base {
                        Base::At(base) => base,
                        Base::Used => 0,
                    };
                    (ring.size, ring.addresses, base)
                };
                let rings = [ring(&plan.rx), ring(&plan.tx)];
                assert!(!self.drained.contains_key(&plan.pair), "it was stopped before");
                assert!(!self.served.contains_key(&plan.pair), "it was stopped before");
                let pairs = if plan.is_enabled { &mut self.served } else { &mut self.drained };
                pairs.insert(plan.pair, (plan.features, rings));
            }
            Action::SetMemory(regions) => {
                assert!(self.served.is_empty() && self.drained.is_empty(), "the memory is in use");
                self.memory = regions.iter().map(|region| region.key).collect();
            }
            Action::AddRegion(region) => {
                assert!(self.served.is_empty() && self.drained.is_empty(), "the memory is in use");
                assert!(!self.memory.contains(&region.key));
                self.memory.push(region.key);
            }
            Action::RemoveRegion(key) => {
                assert!(self.served.is_empty() && self.drained.is_empty(), "the memory is in use");
                let before = self.memory.len();
                self.memory.retain(|known| *known != key);
                assert_eq!(self.memory.len() + 1, before);
            }
            Action::SetLog(_) => {
                assert!(self.served.is_empty() && self.drained.is_empty(), "the log is in use");
                self.has_log = true;
            }
            Action::Announce(mac) => self.announced.push(mac),
            Action::SetMtu(mtu) => self.mtu = Some(mtu),
            Action::MakeArea(wanted) => {
                assert!(wanted.len <= 256 << 20);
                self.sent.push(wanted.reply(file()));
            }
            Action::SetArea(_) => {
                assert!(self.served.is_empty() && self.drained.is_empty(), "the area is in use");
                self.has_area = true;
            }
            Action::DropArea => self.has_area = false,
        }
    }
}

/// Any descriptor.
pub(crate) fn file() -> OwnedFd {
    File::open("/dev/null").expect("/dev/null is there").into()
}

pub(crate) fn region(index: u64) -> Region {
    Region { key: region_key(index), file: file() }
}

pub(crate) fn region_key(index: u64) -> RegionKey {
    RegionKey {
        guest_address: index << 20,
        size: 1 << 20,
        user_address: 0x7f00_0000_0000 + (index << 20),
        file_offset: index << 20,
    }
}

pub(crate) fn addresses(ring: u16) -> Addresses {
    let descriptor = 0x7f00_0000_0000 + 0x1_0000 * u64::from(ring);
    Addresses { descriptor, available: descriptor + 0x4000, used: descriptor + 0x8000, log: None }
}

/// The requests that QEMU sends once for each pair before its guest runs, in its order.
pub(crate) fn greeting(pair: u16) -> Vec<Request> {
    let mut greeting = vec![
        Request::GetFeatures,
        Request::GetProtocolFeatures,
        Request::SetProtocolFeatures(PROTOCOL_FEATURES),
    ];
    if pair == 0 {
        greeting.extend([Request::GetQueueNum, Request::GetMaxMemSlots, Request::SetOwner]);
    }
    greeting.push(Request::GetFeatures);
    greeting.extend(rings(pair).map(|ring| Request::SetVringCall { ring, file: Some(file()) }));
    greeting
}

/// The requests that QEMU 7.2 with `mq=on` sends when its guest's driver is ready, or after a
/// reconnection: each pair is a device of its own.
pub(crate) fn driver_ok(pair: u16, base: u32) -> Vec<Request> {
    let mut asked = vec![
        Request::SetFeatures(USUAL),
        Request::AddMemReg(region(0)),
        Request::AddMemReg(region(1)),
    ];
    for ring in rings(pair) {
        asked.extend([
            Request::SetVringNum { ring, size: 256 },
            Request::SetVringBase { ring, base },
            Request::SetVringAddr { ring, addresses: addresses(ring) },
            Request::SetVringKick { ring, file: Some(file()) },
            Request::SetVringCall { ring, file: Some(file()) },
        ]);
    }
    asked
}

pub(crate) fn enable(pair: u16, is_enabled: bool) -> [Request; 2] {
    rings(pair).map(|ring| Request::SetVringEnable { ring, is_enabled })
}

pub(crate) fn rings(pair: u16) -> [u16; 2] {
    [2 * pair, 2 * pair + 1]
}
