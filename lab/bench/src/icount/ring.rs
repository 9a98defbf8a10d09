//! A ring's backend alone: requests or posted pages in, frames out, and back.

use anyhow::{Context, Result, bail};
use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, PoolBudget, PortQueue, QueueDown,
};

use super::{Counted, FRAME_LEN, FRAMES, Unit};
use crate::ring::pair::{Host, backend_queues, bare_queues};
use crate::ring::work::{BURST, Header};

/// Each batch size, each number of queues, both ways.
pub(super) fn cases() -> impl Iterator<Item = Counted> {
    let directions = ["ingress", "egress"];
    directions.into_iter().flat_map(|direction| {
        [1, 8].into_iter().flat_map(move |queues: usize| {
            [1, 8, 64].map(|batch: usize| Counted {
                name: format!(
                    "backend {direction}, {FRAME_LEN} B, batch {batch}, {queues} queue(s)"
                ),
                function: "*backend_turn*",
                words: vec!["ring".into(), direction.into(), queues.to_string(), batch.to_string()],
                unit: Unit::Frame,
                turns: FRAMES,
            })
        })
    })
}

/// The counted run: `direction queues batch frames`.
pub(super) fn run(words: &[&str]) -> Result<()> {
    let [direction, queues, batch, frames] = words[..] else {
        bail!("usage: ring ingress|egress QUEUES BATCH FRAMES");
    };
    let (queues, batch, frames): (usize, usize, usize) =
        (queues.parse()?, batch.parse()?, frames.parse()?);
    let host = Host::start()?;
    let domid = host.create_guest(queues)?;
    let guest = host.connect(domid)?;
    let (mut fronts, keys) = bare_queues(&guest, queues)?;
    let mut backs = backend_queues(host.toolstack(), domid, &keys)?;
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let (mut taken, mut waiting) = (FrameBatch::new(), FrameQueue::new());
    let header = Header::udp();
    let mut done = 0;
    for turn in 0..frames {
        let (front, back) = (&mut fronts[turn % queues], &mut backs[turn % queues]);
        if direction == "ingress" {
            for sent in (0..batch).step_by(BURST) {
                front.send_at_most(BURST.min(batch - sent), FRAME_LEN)?;
            }
            backend_turn_ingress(back, &mut pool, &mut taken)?;
            done += taken.len();
            taken.drain(..).for_each(|frame| pool.recycle(frame));
        } else {
            while waiting.len() < batch {
                let mut frame = pool.take(FRAME_LEN).context("the budget is large enough")?;
                let header = header.bytes(FRAME_LEN);
                frame.bytes_mut()[..header.len()].copy_from_slice(header);
                waiting.push_back(frame);
            }
            backend_turn_egress(back, &mut pool, &mut waiting)?;
            done += batch - waiting.len();
            for _ in (0..batch).step_by(BURST) {
                front.receive()?;
            }
        }
        if done >= frames {
            return Ok(());
        }
    }
    bail!("only {done} of {frames} frames arrived")
}

// Two functions, not inlined, so that callgrind finds them by name.

#[inline(never)]
pub(super) fn backend_turn_ingress<P: PortQueue>(
    port: &mut P,
    pool: &mut FramePool,
    into: &mut FrameBatch,
) -> Result<(), QueueDown> {
    port.ingress(Budget::BATCH, pool, into)
}

#[inline(never)]
pub(super) fn backend_turn_egress<P: PortQueue>(
    port: &mut P,
    pool: &mut FramePool,
    from: &mut FrameQueue,
) -> Result<(), QueueDown> {
    port.egress(from, pool)
}
