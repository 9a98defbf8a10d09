//! The driver of a virtio guest: its memory, and what its front-end passes of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringway_datapath::{PortQueue as _, QueueCounters};
use ringway_vhost::frontend::Negotiated;
use ringway_vhost::{Addresses, Area, Region, RegionKey, Request};
use ringway_virtfront::{FrontMemory, MemoryShape, QueueOffer, QueuePair};
use ringway_virtio::{Format, QueueOptions};
use ringway_wire::vhost_user::{
    VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
};
use ringway_wire::virtio::Features;

use crate::choices::Choices;
use crate::guest::{Guest, Nic, NicQueue};

/// Entries of a queue.
const QUEUE_SIZE: u16 = 256;
/// The longest frame that may arrive if each frame takes one chain.
const FRAME_LEN_MAX: usize = 65_550;
/// Where a packed ring begins: at its first entry, in its first round, for both sides.
const PACKED_START: u32 = 0x8000_8000;
/// What a world has enough of.
const ENOUGH: &str = "a world needs few descriptors and little memory";

/// A driver that is ready, with its memory.
pub(crate) struct Driver {
    features: Features,
    memory: FrontMemory,
    /// The rx and the tx ring of each pair, alternating.
    rings: Vec<QueueOffer>,
    /// The pairs that the guest uses: the first ones.
    pub(crate) used: u16,
    /// Pairs that it does not use.
    _spare: Vec<QueuePair>,
    pub(crate) is_paused: bool,
    pub(crate) is_enabled: bool,
    /// By ring: where a packed one continues, as far as backends have said. The position of a split
    /// ring is in its memory.
    bases: Vec<u32>,
    /// Rings that a backend has and has not stopped.
    passed: BTreeSet<u16>,
    /// Where backends record what is in flight, once one has made it.
    pub(crate) area: Option<Area>,
}

impl Driver {
    /// Makes memory and rings for all pairs of the device; the guest uses some of them.
    pub(crate) fn start(negotiated: Negotiated, pairs: u16, guest: &mut Guest) -> Driver {
        let features = negotiated.features;
        let memory = FrontMemory::new(MemoryShape {
            pairs: usize::from(negotiated.pairs),
            format: QueueOptions::of(features).format,
            size: QUEUE_SIZE,
            frame_len_max: FRAME_LEN_MAX,
        });
        let memory = memory.expect(ENOUGH);
        let used = pairs.clamp(1, negotiated.pairs);
        let (mut rings, mut spare) = (Vec::new(), Vec::new());
        for number in 0..negotiated.pairs {
            let counters: Arc<QueueCounters> = Arc::default();
            let pair =
                QueuePair::new(&memory, usize::from(number), features, Arc::clone(&counters));
            let pair = pair.expect(ENOUGH);
            let [tx, rx] = pair.offers().expect(ENOUGH);
            rings.extend([rx, tx]);
            guest.caps = pair.describe().caps;
            match number < used {
                true => {
                    let queue = NicQueue::Virtio(Box::new(pair));
                    guest.nics.push(Nic::new(queue, Vec::new(), counters));
                }
                false => spare.push(pair),
            }
        }
        Driver {
            features,
            memory,
            bases: vec![PACKED_START; rings.len()],
            passed: BTreeSet::new(),
            rings,
            used,
            _spare: spare,
            is_paused: false,
            is_enabled: true,
            area: None,
        }
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.memory.shape().format == Format::Packed
    }

    /// Whether another backend could continue the rings now.
    pub(crate) fn outlives_backend(&self) -> bool {
        !self.is_packed() || self.area.is_some() || self.passed.is_empty()
    }

    /// Where a ring continues.
    fn base(&self, ring: u16) -> u32 {
        let place = usize::from(ring);
        match self.is_packed() {
            true => self.bases[place],
            false => self.memory.used_index(self.rings[place].place).into(),
        }
    }

    /// A backend has stopped a ring here.
    ///
    /// # Errors
    /// Where it should have been: a split ring continues behind all that was used, because chains
    /// are used in order. In a packed ring both sides are at one place.
    pub(crate) fn stopped(&mut self, ring: u16, base: u32) -> Result<(), u32> {
        let due = match self.is_packed() {
            true => base << 16 | base & 0xffff,
            false => self.base(ring),
        };
        self.bases[usize::from(ring)] = base;
        self.passed.remove(&ring);
        if base == due { Ok(()) } else { Err(due) }
    }

    /// Requests for an area, if one is to be made.
    pub(crate) fn asks_for_area(&self, protocol: u64) -> Option<[Request; 2]> {
        let is_wanted = protocol & VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD != 0;
        let rings = u16::try_from(self.rings.len()).expect("there are few rings");
        // The length depends on the features.
        let features = Request::SetFeatures(self.features);
        let area = Request::GetInflightFd { rings, size: QUEUE_SIZE };
        (is_wanted && self.area.is_none()).then_some([features, area])
    }

    /// Requests to continue with what is recorded in the area, if there is one.
    pub(crate) fn passes_area(&self) -> Vec<Request> {
        let passed = self.area.as_ref().map(|area| {
            let file = area.file.try_clone().expect(ENOUGH);
            [Request::SetFeatures(self.features), Request::SetInflightFd(Area { file, ..*area })]
        });
        passed.into_iter().flatten().collect()
    }

    /// Requests for the memory, and for the features and the rings if these run: a ring is kicked
    /// last, and all else is in any order.
    pub(crate) fn requests(
        &mut self,
        protocol: u64,
        choices: &mut Choices,
    ) -> (Option<Request>, Vec<Request>) {
        let region = self.region();
        let memory = match protocol & VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS {
            0 => Request::SetMemTable(vec![region]),
            _ => Request::AddMemReg(region),
        };
        if self.is_paused {
            return (Some(memory), Vec::new());
        }
        self.passed = (0..).take(self.rings.len()).collect();
        let mut parts = vec![vec![Request::SetFeatures(self.features)]];
        parts.extend(self.enables().into_iter().map(|enable| vec![enable]));
        parts.extend((0..).zip(&self.rings).map(|(ring, offer)| self.ring(ring, offer)));
        parts.iter_mut().for_each(|part| part.reverse());
        let mut requests = Vec::new();
        while !parts.is_empty() {
            let chosen = choices.below(parts.len());
            match parts[chosen].pop() {
                Some(request) => requests.push(request),
                None => drop(parts.swap_remove(chosen)),
            }
        }
        (Some(memory), requests)
    }

    fn ring(&self, ring: u16, offer: &QueueOffer) -> Vec<Request> {
        let QueueOffer { place, kick, call } = offer;
        let addresses = Addresses {
            descriptor: place.descriptors,
            used: place.device,
            available: place.driver,
            log: None,
        };
        let base = self.base(ring);
        vec![
            Request::SetVringNum { ring, size: place.size },
            Request::SetVringBase { ring, base },
            Request::SetVringAddr { ring, addresses },
            Request::SetVringCall { ring, file: Some(call.try_clone().expect(ENOUGH)) },
            Request::SetVringKick { ring, file: Some(kick.try_clone().expect(ENOUGH)) },
        ]
    }

    /// Requests to enable the rings that the guest uses, and no others.
    pub(crate) fn enables(&self) -> Vec<Request> {
        let rings = u16::try_from(self.rings.len()).expect("there are few rings");
        let is_enabled = |ring| self.is_enabled && ring / 2 < self.used;
        let enable = |ring| Request::SetVringEnable { ring, is_enabled: is_enabled(ring) };
        (0..rings).map(enable).collect()
    }

    /// Requests to stop the rings, if they were passed.
    pub(crate) fn stops(&self, were_passed: bool) -> Vec<Request> {
        let rings = u16::try_from(self.rings.len()).expect("there are few rings");
        (0..rings).filter(|_| were_passed).map(|ring| Request::GetVringBase { ring }).collect()
    }

    /// Requests when the driver ends.
    pub(crate) fn ends(&self, protocol: u64) -> Vec<Request> {
        let has_slots = protocol & VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS != 0;
        let unplugged = has_slots.then(|| Request::RemMemReg(self.region().key));
        unplugged.into_iter().chain([Request::SetStatus(0)]).collect()
    }

    fn region(&self) -> Region {
        let it = self.memory.region().expect(ENOUGH);
        let key = RegionKey {
            guest_address: it.guest_address,
            size: it.len,
            user_address: it.user_address,
            file_offset: it.file_offset,
        };
        Region { key, file: it.fd }
    }
}
