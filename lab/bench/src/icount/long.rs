//! Frames of 64 KiB of TCP, of which each takes 16 pages and an extra: the backend of a ring alone,
//! and those of two guests with the copy from page to page between them.

use anyhow::{Context, Result, bail};
use ringway_datapath::{
    Budget, Checksum, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, Offload, PoolBudget,
    PortQueue, QueueDown,
};
use ringway_emu::{EmuEvent, EmuMemory};
use ringway_hypervisor::Hypervisor;
use ringway_netback::VifQueue;

use super::ring::{backend_turn_egress, backend_turn_ingress};
use super::{Counted, Unit};
use crate::ring::pair::{Host, NetfrontQueue, backend_queues, netfront_queues};
use crate::ring::work::Header;

/// Bytes of a segment's payload: Ethernet's 1500 less its headers, with the timestamps of TCP.
const SEGMENT_LEN: u16 = 1448;
/// The longest frame that Linux makes of such segments: 45 of them.
pub(super) const LONG_LEN: usize = 54 + 45 * 1448;
/// How names of cases call that length.
pub(super) const LONG: &str = "64 KiB of TCP";
/// Batches of such frames: a ring has room for 15.
pub(super) const BATCHES: [usize; 2] = [1, 8];
/// Frames of the shorter run: a multiple of each batch.
pub(super) const LONG_FRAMES: usize = 800;

/// Each way, each batch size.
pub(super) fn cases() -> impl Iterator<Item = Counted> {
    ["ingress", "egress", "guest to guest"].into_iter().flat_map(|way| {
        BATCHES.map(|batch: usize| Counted {
            name: format!("backend {way}, {LONG}, batch {batch}"),
            function: "*backend_turn*",
            words: ["long", way, &batch.to_string()].map(str::to_owned).into(),
            unit: Unit::Frame,
            turns: LONG_FRAMES,
        })
    })
}

/// A frame of this length, whose bytes after the headers do not matter.
pub(super) fn frame(pool: &mut FramePool) -> Result<Frame> {
    let mut frame = pool.take(LONG_LEN).context("the budget is large enough")?;
    let header = Header::tcp();
    let header = header.bytes(LONG_LEN);
    frame.bytes_mut()[..header.len()].copy_from_slice(header);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: SEGMENT_LEN });
    frame.offload = Offload { checksum: Checksum::Blank, gso };
    Ok(frame)
}

/// Both ends of a guest's queue.
struct Ends {
    front: NetfrontQueue,
    back: VifQueue<EmuMemory, EmuEvent>,
}

impl Ends {
    fn new(host: &Host) -> Result<Ends> {
        let domid = host.create_guest(1)?;
        let (mut fronts, keys) = netfront_queues(&host.connect(domid)?, 1)?;
        let mut backs = backend_queues(host.toolstack(), domid, &keys)?;
        Ok(Ends { front: fronts.remove(0), back: backs.remove(0) })
    }
}

/// The counted run: `way batch frames`.
pub(super) fn run(words: &[&str]) -> Result<()> {
    let [way, batch, frames] = words[..] else {
        bail!("usage: long ingress|egress|\"guest to guest\" BATCH FRAMES");
    };
    let (batch, frames): (usize, usize) = (batch.parse()?, frames.parse()?);
    let host = Host::start()?;
    let (mut sender, mut receiver) = (Ends::new(&host)?, Ends::new(&host)?);
    if way == "guest to guest" {
        sender.back.lend_pages(host.toolstack().memory()?);
    }
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let (mut taken, mut waiting) = (FrameBatch::new(), FrameQueue::new());
    for _ in 0..frames.div_ceil(batch) {
        for _ in 0..batch {
            waiting.push_back(frame(&mut pool)?);
        }
        if way != "egress" {
            sender.front.egress(&mut waiting, &mut pool)?;
            // Each call takes at least one frame.
            for _ in 0..batch {
                backend_turn_ingress(&mut sender.back, &mut pool, &mut taken)?;
            }
            waiting.extend(taken.drain(..));
        }
        if way != "ingress" {
            backend_turn_egress(&mut receiver.back, &mut pool, &mut waiting)?;
            backend_turn_end(&mut sender.back, &mut pool)?;
            for _ in 0..batch {
                receiver.front.ingress(Budget::BATCH, &mut pool, &mut taken)?;
            }
            waiting.extend(taken.drain(..));
        }
        if waiting.len() != batch || waiting.iter().any(|frame| frame.len() != LONG_LEN) {
            bail!("{} of {batch} frames arrived", waiting.len());
        }
        waiting.drain(..).for_each(|frame| pool.recycle(frame));
    }
    Ok(())
}

/// What the engine does at the end of its round.
#[inline(never)]
fn backend_turn_end<P: PortQueue>(port: &mut P, pool: &mut FramePool) -> Result<(), QueueDown> {
    port.settle(pool)?;
    pool.end_loans();
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_frames_of_each_case_arrive_whole() {
        for case in super::cases() {
            let mut words: Vec<&str> = case.words.iter().map(String::as_str).collect();
            words.push("16");
            super::super::run(&words).unwrap_or_else(|error| panic!("{}: {error:#}", case.name));
        }
    }
}
