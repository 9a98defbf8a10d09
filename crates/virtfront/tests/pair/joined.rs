//! A driver and a device on the same memory.

use std::sync::Arc;

use ringway_datapath::QueueCounters;
use ringway_sys::eventfd::PeerCounters;
use ringway_sys::guest_memory::GuestMemory;
use ringway_virtback::{PairControl, PairParts, QueueParts};
use ringway_virtfront::{FrontMemory, MemoryShape, QueueOffer};
use ringway_virtio::QueueOptions;
use ringway_wire::virtio::Features;

pub(crate) type Front = ringway_virtfront::QueuePair;
pub(crate) type Back = ringway_virtback::QueuePair;

pub(crate) struct Joined {
    pub(crate) front: Front,
    pub(crate) back: Back,
    #[allow(dead_code, reason = "each suite uses what it needs")]
    pub(crate) front_counters: Arc<QueueCounters>,
    #[allow(dead_code, reason = "each suite uses what it needs")]
    pub(crate) back_counters: Arc<QueueCounters>,
    #[allow(dead_code, reason = "each suite uses what it needs")]
    pub(crate) control: Arc<PairControl>,
    pub(crate) memory: Arc<GuestMemory>,
    features: Features,
}

impl Joined {
    pub(crate) fn new(features: Features, size: u16, frame_len_max: usize) -> Joined {
        let format = QueueOptions::of(features).format;
        let shape = MemoryShape { pairs: 1, format, size, frame_len_max };
        let shared = FrontMemory::new(shape).expect("there is memory");
        let region = shared.region().expect("a descriptor");
        let memory = Arc::new(GuestMemory::map(vec![region]).expect("the region is sound"));
        let front_counters = Arc::<QueueCounters>::default();
        let front = Front::new(&shared, 0, features, Arc::clone(&front_counters));
        let front = front.expect("there are descriptors");
        let back_counters = Arc::<QueueCounters>::default();
        let control = Arc::new(PairControl::new(true));
        let bases = match format {
            ringway_virtio::Format::Split => [0, 0],
            ringway_virtio::Format::Packed => [1 << 15, 1 << 15],
        };
        let parts = parts(&front, &memory, features, bases, &control, &back_counters);
        let back = Back::attach(parts).expect("the driver is honest");
        Joined { front, back, front_counters, back_counters, control, memory, features }
    }

    /// Another device attaches at the bases of this one, as after `kill -9`.
    #[allow(dead_code, reason = "each suite uses what it needs")]
    pub(crate) fn attach_again(&mut self) {
        let bases = self.control.bases();
        let (counters, control) = (&self.back_counters, &self.control);
        let parts = parts(&self.front, &self.memory, self.features, bases, control, counters);
        self.back = Back::attach(parts).expect("the driver is honest");
    }
}

fn parts(
    front: &Front,
    memory: &Arc<GuestMemory>,
    features: Features,
    bases: [u32; 2],
    control: &Arc<PairControl>,
    counters: &Arc<QueueCounters>,
) -> PairParts {
    let offers = front.offers().expect("there are descriptors");
    let mut queues = offers.into_iter().zip(bases).map(|(offer, base)| {
        let QueueOffer { place, kick, call } = offer;
        QueueParts { place, base, kick, call: Some(call), log: None, inflight: None }
    });
    let (tx, rx) = (queues.next().expect("two"), queues.next().expect("two"));
    let (memory, control) = (Arc::clone(memory), Arc::clone(control));
    let (counters, calls) = (Arc::clone(counters), PeerCounters::default());
    PairParts { memory, features, tx, rx, control, counters, calls }
}
