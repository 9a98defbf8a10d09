//! A ring's backend alone: requests or posted pages in, frames out, and back.

use anyhow::{Context, Result, bail, ensure};
use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, PoolBudget, PortQueue, QueueDown,
};

use ringway_emu::EmuEvent;
use ringway_ring::Waiting;

use super::{Counted, FRAME_LEN, FRAMES, Guest, Unit};
use crate::ring::guest::BareQueue;
use crate::ring::pair::{Host, backend_queues, bare_queues};
use crate::ring::work::{BURST, Header};

/// Each batch size, each number of queues, both ways; with one queue also for a guest that sleeps.
pub(super) fn cases() -> impl Iterator<Item = Counted> {
    let busy = [1, 8].into_iter().flat_map(|queues| [1, 8, 64].map(|batch| (queues, batch)));
    let busy = busy.map(|(queues, batch)| (queues, batch, Guest::Busy));
    let rows = busy.chain([1, 8].map(|batch| (1, batch, Guest::Sleeps)));
    rows.flat_map(|(queues, batch, guest)| {
        ["ingress", "egress"].map(|direction| Counted {
            name: format!(
                "backend {direction}, {FRAME_LEN} B, batch {batch}, {queues} queue(s){}",
                guest.named()
            ),
            function: "*backend_turn*",
            words: vec![
                "ring".into(),
                direction.into(),
                guest.word().into(),
                queues.to_string(),
                batch.to_string(),
            ],
            unit: Unit::Frame,
            turns: FRAMES,
        })
    })
}

/// The counted run: `direction guest queues batch frames`.
pub(super) fn run(words: &[&str]) -> Result<()> {
    let [direction, guest, queues, batch, frames] = words[..] else {
        bail!("usage: ring ingress|egress busy|sleeps QUEUES BATCH FRAMES");
    };
    let sleeps = guest == Guest::Sleeps.word();
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
            if sleeps {
                sleep(front, turn == 0)?;
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
            if sleeps {
                sleep(front, turn == 0)?;
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

/// Lets a guest sleep until the backend's next event. But for the first time it has been woken.
fn sleep(front: &mut BareQueue<EmuEvent>, is_first: bool) -> Result<()> {
    let was_woken = front.is_woken()?;
    ensure!(was_woken || is_first, "no event came for the batch before");
    ensure!(front.sleep() == Waiting::TooFew, "a response came without a turn of the backend");
    Ok(())
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
