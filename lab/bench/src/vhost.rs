//! Frames per second through a vhost-user device, with one core per side and DPDK's virtio-user as
//! the client: ringway's device compared with DPDK's.
//!
//! The client is the same program with the same options. Both devices poll, copy each frame once
//! into memory of their own, and write the headers of what they send.

mod cost;
mod device;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_vhost_shell::{BackendEnd, Endpoint, Mode};
use serde::{Deserialize, Serialize};

use crate::child::{is_installed, ourselves};
use crate::options::{Options, Spans};
use crate::report::Report;
use crate::ring::RingCase;
use crate::ring::testpmd::{self, Client, Sending};
use crate::ring::work::{PortEnd, Tally, Work, measure, measure_timed};
use device::Device;

/// The verb of the device's process.
pub(crate) const END_VERB: &str = "vhost-end";
const SECTION: &str = "vhost";
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two checks of the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time without a message after which the queues count as final.
const SETTLE: Duration = Duration::from_millis(300);
/// What the device's process prints when it listens, and reads when its client is ready.
const LISTENS: &str = "listens";
const GO: &str = "go";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Plan {
    socket: PathBuf,
    queues: usize,
    frame_len: usize,
    work: Work,
    cpu: usize,
    spans: Spans,
    /// Whether the time of each round is measured, which costs time itself.
    is_timed: bool,
}

/// One round: every case, both devices.
pub(crate) fn round(options: &Options, report: &mut Report) -> Result<()> {
    of_both(SECTION, options, report)
}

/// One round of the device's time.
pub(crate) fn cost_round(options: &Options, report: &mut Report) -> Result<()> {
    of_both(cost::SECTION, options, report)
}

fn of_both(section: &'static str, options: &Options, report: &mut Report) -> Result<()> {
    let cpus = ringway_sys::process::allowed_cpus()?;
    let [host_cpu, guest_cpu, ..] = cpus[..] else {
        report.skip(section, "all", "two CPUs are needed, one for each side");
        return Ok(());
    };
    if !is_installed(testpmd::PROGRAM) {
        report.skip(section, "all", &format!("apt-get install {}", testpmd::PACKAGES));
        return Ok(());
    }
    let cpus = [host_cpu, guest_cpu];
    if section == cost::SECTION {
        cost::round(options, cpus, report);
        return Ok(());
    }
    for ring_case in RingCase::all() {
        let case = ring_case.case(SECTION);
        if !options.wants(&case.name) {
            continue;
        }
        report.measure(&case, "ringway", || run(ring_case, cpus, options));
        report
            .measure(&case, "testpmd", || testpmd::run(ring_case, Sending::Headers, cpus, options));
    }
    Ok(())
}

/// Runs one case once, and returns million frames a second at its receiver.
fn run(case: RingCase, cpus: [usize; 2], options: &Options) -> Result<f64> {
    Ok(run_with(case, cpus, options, false)?.mpps)
}

/// What a run has shown.
struct Outcome {
    mpps: f64,
    /// The device's own count, if it receives.
    tally: Option<Tally>,
}

fn run_with(
    case: RingCase,
    [host_cpu, guest_cpu]: [usize; 2],
    options: &Options,
    is_timed: bool,
) -> Result<Outcome> {
    let spans = options.spans;
    let dir = crate::scratch::dir()?;
    let (guest_work, work) = case.direction.works();
    let plan = Plan {
        socket: dir.path().join("vhost.sock"),
        queues: case.queues,
        frame_len: case.frame_len,
        work,
        cpu: host_cpu,
        spans: match work {
            // It sends until it is killed.
            Work::Send => Spans { warm_up: Duration::ZERO, window: Duration::from_secs(600) },
            _ => spans,
        },
        is_timed,
    };
    let mut command = ourselves(END_VERB)?;
    command.arg(serde_json::to_string(&plan)?);
    let mut device = crate::child::start("device", command)?;
    device.wait_for(PATIENCE, |line| (line == LISTENS).then_some(()))?;
    let mut client = Client::start(&plan.socket, guest_cpu, options.pages, case.queues)?;
    device.say(GO)?;
    // Until the device runs, frames in both directions wait or are lost.
    client.works(guest_work, case.frame_len)?;
    if work == Work::Send {
        return Ok(Outcome { mpps: client.rate(spans)?, tally: None });
    }
    let patience = PATIENCE + spans.warm_up + spans.window;
    let tally: Tally = device.wait_for(patience, |line| serde_json::from_str(line).ok())?;
    Ok(Outcome { mpps: tally.mpps(), tally: Some(tally) })
}

/// The process of the device.
pub(crate) fn end(plan: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("the plan of a device")?;
    ringway_sys::process::pin_current_thread(plan.cpu)?;
    ringway_sys::guest_memory::prepare();
    let mut device = Device::new(u16::try_from(plan.queues)?);
    let mut end = BackendEnd::new(Endpoint::new(&plan.socket, Mode::Server, Instant::now())?);
    say(LISTENS)?;
    let (sender, is_ready) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        sender.send(())
    });
    let deadline = Instant::now() + PATIENCE;
    let mut is_client_ready = false;
    let mut quiet_since = Instant::now();
    // The client does not wait until its messages are handled, and may restart queues.
    while !is_client_ready || device.pair_count() < plan.queues || quiet_since.elapsed() < SETTLE {
        is_client_ready |= is_ready.try_recv().is_ok();
        if end.turn(&mut device, Instant::now())? || device.take_changed() {
            quiet_since = Instant::now();
        }
        ensure!(
            Instant::now() < deadline,
            "the client is not ready: {} of {} queues are served, {:?}",
            device.pair_count(),
            plan.queues,
            end.error()
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    let pairs = device.pairs()?;
    let mut ports = PortEnd::new(pairs);
    if plan.work == Work::Bounce {
        ports.prime(plan.frame_len);
    }
    let round = || ports.round(plan.work, plan.frame_len);
    let tally = match plan.is_timed {
        true => measure_timed(plan.spans, round)?,
        false => measure(plan.spans, round)?,
    };
    say(&serde_json::to_string(&tally)?)?;
    // The client may still need the rings; the parent kills this process.
    std::thread::sleep(PATIENCE);
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
