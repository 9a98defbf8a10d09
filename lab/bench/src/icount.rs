//! Instructions that the backend spends per frame, which are independent of other load on the
//! machine.
//!
//! Callgrind counts only what happens below one function. The result is the difference of two runs,
//! one twice as long as the other, which excludes the first turns, because these allocate buffers.

mod long;
mod ring;
mod rounds;
mod switch;
mod virtio;

use std::time::Duration;

use anyhow::{Context, Result, bail};

use ringway_lab::cost::EVENT;

use crate::child::{is_installed, program, start};
use crate::options::Options;
use crate::report::{Better, Case, Report};

/// The C library copies more than a part of the cache in another way, with several times as many
/// instructions, and asks the CPU for its size; of valgrind's CPU a frame of 64 KiB would be such a
/// part. See "Hardware Capability Tunables" in its manual.
const COPY_AS_IN_CACHE: &str =
    "glibc.cpu.x86_non_temporal_threshold=0x1000000:glibc.cpu.x86_rep_movsb_threshold=0x1000000";
/// The verb that callgrind watches.
pub(crate) const COUNTED_VERB: &str = "icount-run";
/// Frames of the shorter run: a multiple of each batch.
const FRAMES: usize = 12_800;
/// Callgrind is some fifty times slower than the machine.
const PATIENCE: Duration = Duration::from_secs(120);
const FRAME_LEN: usize = 64;

/// One case to count.
struct Counted {
    name: String,
    /// The function to count below, as callgrind's pattern.
    function: &'static str,
    /// The arguments of [`run`], before the number of frames or rounds.
    words: Vec<String>,
    unit: Unit,
    /// Frames, or rounds, of the shorter run.
    turns: usize,
}

/// What instructions are divided by.
#[derive(Clone, Copy)]
enum Unit {
    Frame,
    Round,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Frame => "instr/frame",
            Unit::Round => "instr/round",
        }
    }
}

/// What the guest does while the backend works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    /// It polls its rings and requests no event.
    Busy,
    /// It requests an event, which the backend sends once a batch.
    Sleeps,
}

impl Guest {
    /// The argument of [`run`].
    fn word(self) -> &'static str {
        match self {
            Guest::Busy => "busy",
            Guest::Sleeps => "sleeps",
        }
    }

    /// The end of a case's name.
    fn named(self) -> String {
        match self {
            Guest::Busy => String::new(),
            Guest::Sleeps => format!(", {EVENT}"),
        }
    }
}

/// Counts everything once.
pub(crate) fn round(options: &Options, report: &mut Report) {
    if !is_installed("valgrind") {
        report.skip("icount", "ringway", "apt-get install valgrind");
        return;
    }
    let of_backends = ring::cases().chain(long::cases()).chain(virtio::cases());
    for counted in of_backends.chain(switch::cases()).chain(rounds::cases()) {
        let (name, unit) = (counted.name.clone(), counted.unit.name());
        let case = Case::new("icount", name, unit, Better::Less);
        if options.wants(&case.name) {
            report.measure(&case, "ringway", || {
                let turns = counted.turns;
                let (long, short) = (count(&counted, 2 * turns)?, count(&counted, turns)?);
                Ok((long - short) / f64::from(u32::try_from(turns)?))
            });
        }
    }
}

fn count(counted: &Counted, turns: usize) -> Result<f64> {
    let mut command = program("valgrind")?;
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={}", counted.function)).arg(std::env::current_exe()?);
    command.env("GLIBC_TUNABLES", COPY_AS_IN_CACHE);
    command.args([COUNTED_VERB, "0"]).args(&counted.words).arg(turns.to_string());
    let output = start("valgrind", command)?.output(PATIENCE)?;
    let collected = output.lines().find_map(|line| line.split_once("Collected :"));
    let (_, collected) = collected.context("callgrind did not report what it collected")?;
    let instructions: f64 = collected.trim().parse()?;
    if instructions == 0.0 {
        bail!("callgrind found no {}; is this a release build with symbols?", counted.function);
    }
    Ok(instructions)
}

/// Runs the counted code.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    match words {
        ["ring", words @ ..] => ring::run(words),
        ["long", words @ ..] => long::run(words),
        ["virtio", words @ ..] => virtio::run(words),
        ["switch", words @ ..] => switch::run(words),
        ["classify", words @ ..] => switch::run_classify(words),
        ["rounds", words @ ..] => rounds::run(words),
        _ => bail!("usage: {COUNTED_VERB} 0 ring|long|virtio|switch|classify|rounds WORD..."),
    }
}
