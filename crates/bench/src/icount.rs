//! Instructions that the backend spends on a frame, which no other load on the machine changes.
//!
//! Callgrind counts only what happens below one function, the backend's turn. Two runs, one twice
//! as long as the other: their difference leaves out the first turns, which make buffers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, PoolBudget, PortDown, PortQueue,
};

use crate::child::{is_installed, program, start};
use crate::options::Options;
use crate::report::{Better, Case, Report};
use crate::ring::pair::{Host, backend_queues, bare_queues};
use crate::ring::work::{BURST, Header};

/// The verb that callgrind watches.
pub(crate) const COUNTED_VERB: &str = "icount-run";
/// Frames of the shorter run.
const FRAMES: usize = 10_000;
/// Callgrind is some fifty times slower than the machine.
const PATIENCE: Duration = Duration::from_secs(120);
const FRAME_LEN: usize = 64;

/// One round: each batch size, each number of queues, both ways.
pub(crate) fn round(options: &Options, report: &mut Report) {
    if !is_installed("valgrind") {
        report.skip("icount", "ringway", "apt-get install valgrind");
        return;
    }
    for direction in ["ingress", "egress"] {
        for queues in [1, 8] {
            for batch in [1, 8, 64] {
                let name =
                    format!("backend {direction}, {FRAME_LEN} B, batch {batch}, {queues} queue(s)");
                let unit = "instr/frame";
                let case = Case { section: "icount", name, unit, better: Better::Less };
                if options.wants(&case.name) {
                    report.measure(&case, "ringway", || {
                        let long = count(direction, queues, batch, 2 * FRAMES)?;
                        let short = count(direction, queues, batch, FRAMES)?;
                        Ok((long - short) / f64::from(u32::try_from(FRAMES)?))
                    });
                }
            }
        }
    }
}

fn count(direction: &str, queues: usize, batch: usize, frames: usize) -> Result<f64> {
    let mut command = program("valgrind")?;
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg("--toggle-collect=*backend_turn*").arg(std::env::current_exe()?);
    command.args([COUNTED_VERB, "0", direction]);
    command.args([queues, batch, frames].map(|number| number.to_string()));
    let output = start("valgrind", command)?.output(PATIENCE)?;
    let collected = output.lines().find_map(|line| line.split_once("Collected :"));
    let (_, collected) = collected.context("callgrind did not tell what it collected")?;
    let instructions: f64 = collected.trim().parse()?;
    if instructions == 0.0 {
        bail!("callgrind found no backend turn; is this a release build with symbols?");
    }
    Ok(instructions)
}

/// What is counted: `direction queues batch frames`.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let [direction, queues, batch, frames] = words[..] else {
        bail!("usage: {COUNTED_VERB} 0 ingress|egress QUEUES BATCH FRAMES");
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
    let header = Header::new();
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
    bail!("only {done} of {frames} frames got through")
}

// Two functions, not inlined, so that callgrind finds them by name.

#[inline(never)]
fn backend_turn_ingress<P: PortQueue>(
    port: &mut P,
    pool: &mut FramePool,
    into: &mut FrameBatch,
) -> Result<(), PortDown> {
    port.ingress(Budget::BATCH, pool, into)
}

#[inline(never)]
fn backend_turn_egress<P: PortQueue>(
    port: &mut P,
    pool: &mut FramePool,
    from: &mut FrameQueue,
) -> Result<(), PortDown> {
    port.egress(from, pool)
}
