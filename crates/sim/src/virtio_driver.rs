//! The driver of a virtio guest: its memory, and what its front-end passes of it.

use std::sync::Arc;

use ringway_datapath::{PortQueue as _, QueueCounters};
use ringway_vhost::frontend::Negotiated;
use ringway_vhost::{Addresses, Region, RegionKey, Request};
use ringway_virtfront::{FrontMemory, MemoryShape, QueueOffer, QueuePair};
use ringway_virtio::QueueOptions;
use ringway_wire::vhost_user::VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
use ringway_wire::virtio::Features;

use crate::choices::Choices;
use crate::guest::{Guest, Nic, NicQueue};

/// Entries of a queue.
const QUEUE_SIZE: u16 = 256;
/// The longest frame that may arrive if each frame takes one chain.
const FRAME_LEN_MAX: usize = 65_550;
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
        let (is_paused, is_enabled) = (false, true);
        Driver { features, memory, rings, used, _spare: spare, is_paused, is_enabled }
    }

    /// Where a split ring is used up to.
    pub(crate) fn used_index(&self, ring: u16) -> u16 {
        self.memory.used_index(self.rings[usize::from(ring)].place)
    }

    /// Requests for the memory, and for the features and the rings if these run: a ring is kicked
    /// last, and all else is in any order.
    pub(crate) fn requests(
        &self,
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
        let base = u32::from(self.used_index(ring));
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
