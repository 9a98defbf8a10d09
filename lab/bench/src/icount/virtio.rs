//! The device's half of a pair of virtio-net queues alone: chains in, frames out, and back.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, Pending, PoolBudget, PortQueue, QueueDown,
    Woken,
};
use ringway_sys::eventfd::PeerCounters;
use ringway_sys::guest_memory::GuestMemory;
use ringway_virtback::{PairControl, PairParts, QueuePair, QueueParts};
use ringway_virtfront::{FrontMemory, MemoryShape};
use ringway_virtio::{Format, QueueOptions};
use ringway_wire::virtio::{
    Features, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_RING_F_EVENT_IDX,
};

use super::long::{self, BATCHES, LONG, LONG_FRAMES, LONG_LEN};
use super::ring::{backend_turn_egress, backend_turn_ingress};
use super::{Counted, FRAMES, Guest, Unit};

/// Entries of a queue: QEMU's default.
const QUEUE_SIZE: u16 = 256;

/// Each layout, both ways, short and long frames, each batch size. A guest that sleeps does so for
/// frames to come: drivers free what they have sent when they send again.
pub(super) fn cases() -> impl Iterator<Item = Counted> {
    let rows = ["split", "packed"].into_iter().flat_map(|layout| {
        ["ingress", "egress"].into_iter().flat_map(move |direction| {
            [64, 1500].into_iter().map(move |len| (layout, direction, len))
        })
    });
    let of_one = rows.flat_map(|(layout, direction, len): (&str, &str, usize)| {
        [1, 8, 64].map(|batch: usize| Counted {
            name: format!("virtio {layout} {direction}, {len} B, batch {batch}"),
            function: "*backend_turn*",
            words: words(layout, direction, Guest::Busy, [len, batch, 1]),
            unit: Unit::Frame,
            turns: FRAMES,
        })
    });
    let of_sleeping = ["split", "packed"].into_iter().flat_map(|layout| {
        [1, 8].map(|batch| Counted {
            name: format!("virtio {layout} egress, 64 B, batch {batch}{}", Guest::Sleeps.named()),
            function: "*backend_turn*",
            words: words(layout, "egress", Guest::Sleeps, [64, batch, 1]),
            unit: Unit::Frame,
            turns: FRAMES,
        })
    });
    let of_many = ["ingress", "egress"].into_iter().flat_map(|direction| {
        QUEUES.map(|queues| Counted {
            name: format!("virtio split {direction}, 64 B, batch 8, {queues} queue(s) in turn"),
            function: "*backend_turn*",
            words: words("split", direction, Guest::Busy, [64, 8, queues]),
            unit: Unit::Frame,
            turns: FRAMES,
        })
    });
    let of_long = ["ingress", "egress"].into_iter().flat_map(|direction| {
        BATCHES.map(|batch| Counted {
            name: format!("virtio split {direction}, {LONG}, batch {batch}"),
            function: "*backend_turn*",
            words: words("split", direction, Guest::Busy, [LONG_LEN, batch, 1]),
            unit: Unit::Frame,
            turns: LONG_FRAMES,
        })
    });
    of_one.chain(of_sleeping).chain(of_many).chain(of_long)
}

/// Numbers of queues of a device; queues are served in turn.
const QUEUES: [usize; 4] = [1, 4, 16, 64];

/// The numbers are the length of frames, the batch and the queues.
fn words(layout: &str, direction: &str, guest: Guest, numbers: [usize; 3]) -> Vec<String> {
    let words = ["virtio", layout, direction, guest.word()].map(str::to_owned);
    words.into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

/// The counted run: `layout direction guest length batch queues frames`.
pub(super) fn run(words: &[&str]) -> Result<()> {
    let [layout, direction, guest, len, batch, queues, frames] = words[..] else {
        bail!("usage: virtio split|packed ingress|egress busy|sleeps LENGTH BATCH QUEUES FRAMES");
    };
    let sleeps = guest == Guest::Sleeps.word();
    let (len, batch, frames): (usize, usize, usize) =
        (len.parse()?, batch.parse()?, frames.parse()?);
    let queues: usize = queues.parse()?;
    let mut bits = vec![VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_RING_F_EVENT_IDX];
    if len == LONG_LEN {
        let tso = [VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_TSO4];
        bits.extend(tso.into_iter().chain([VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4]));
    }
    if layout == "packed" {
        bits.push(VIRTIO_F_RING_PACKED);
    }
    let mut pairs = pairs(Features::of(&bits), queues)?;
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let (mut taken, mut waiting) = (FrameBatch::new(), FrameQueue::new());
    let mut done = 0;
    for turn in 0..frames {
        let (front, back) = &mut pairs[turn % queues];
        if sleeps {
            front.woken(Woken::Unknown)?;
            ensure!(front.arm()? == Pending::Nothing, "frames came without a turn of the backend");
        }
        while waiting.len() < batch {
            waiting.push_back(if len == LONG_LEN {
                long::frame(&mut pool)?
            } else {
                frame(&mut pool, len)?
            });
        }
        if direction == "ingress" {
            front.egress(&mut waiting, &mut pool)?;
            backend_turn_ingress(back, &mut pool, &mut taken)?;
            backend_turn_end(back, &mut pool, &mut taken)?;
        } else {
            backend_turn_egress(back, &mut pool, &mut waiting)?;
            front.ingress(Budget::BATCH, &mut pool, &mut taken)?;
        }
        done += taken.len();
        taken.drain(..).for_each(|frame| pool.recycle(frame));
        if done >= frames {
            return Ok(());
        }
    }
    bail!("only {done} of {frames} frames arrived")
}

/// A frame of this length.
fn frame(pool: &mut FramePool, len: usize) -> Result<Frame> {
    let mut frame = pool.take(len).context("the budget is large enough")?;
    frame.bytes_mut().fill(1);
    Ok(frame)
}

/// What the engine does at the end of its round if the ends of frames are on loan.
#[inline(never)]
fn backend_turn_end(
    back: &mut QueuePair,
    pool: &mut FramePool,
    taken: &mut FrameBatch,
) -> Result<(), QueueDown> {
    if taken.iter().any(Frame::is_lent) {
        for frame in taken.iter_mut() {
            pool.complete(frame).expect("its memory is there");
        }
        back.settle(pool)?;
        pool.end_loans();
    }
    Ok(())
}

/// Both ends of a device with a number of queue pairs.
fn pairs(
    features: Features,
    count: usize,
) -> Result<Vec<(ringway_virtfront::QueuePair, QueuePair)>> {
    let format = QueueOptions::of(features).format;
    let shape = MemoryShape { pairs: count, format, size: QUEUE_SIZE, frame_len_max: 1514 };
    let shared = FrontMemory::new(shape)?;
    let memory = Arc::new(GuestMemory::map(vec![shared.region()?])?);
    let base = if format == Format::Packed { 1 << 15 } else { 0 };
    let pair = |number| {
        let front = ringway_virtfront::QueuePair::new(&shared, number, features, Arc::default())?;
        let [tx, rx] = front.offers()?.map(|offer| QueueParts {
            place: offer.place,
            base,
            kick: offer.kick,
            call: Some(offer.call),
            log: None,
            inflight: None,
        });
        let (memory, control) = (Arc::clone(&memory), Arc::new(PairControl::new(true)));
        let counters = Arc::default();
        let parts = PairParts {
            memory,
            features,
            tx,
            rx,
            control,
            counters,
            calls: PeerCounters::default(),
        };
        Ok((front, QueuePair::attach(parts)?))
    };
    (0..count).map(pair).collect()
}
