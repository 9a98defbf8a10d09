//! A seeded model of what a machine might measure, for tests only. Its figures mean nothing.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::BTreeMap;
use std::path::Path;

use ringway_lab::journal::Journal;
use ringway_lab::plan::{Plan, Task};
use ringway_lab::record::{Course, Cpu, Disturbance, Host, QueueUse, Run, Stream, ToolRun};
use ringway_lab::setup::Setup;
use ringway_lab::study::{Study, Subject};
use ringway_lab::word::{Offloads, Sender, Tool};

/// What one queue of the model carries, in bit/s.
pub(crate) const QUEUE_BPS: f64 = 2.4e9;

/// The machine of the model.
pub(crate) fn host(cpus: u32) -> Host {
    Host {
        cpu_model: "A model of a CPU that no one has built".to_owned(),
        cpus,
        memory_kib: 8 << 20,
        kernel: "6.1.0-model".to_owned(),
        os: "A test".to_owned(),
        hypervisor: "none".to_owned(),
        ringway_version: "0.1.0".to_owned(),
        git_commit: "0000000".to_owned(),
        tools: BTreeMap::from([("iperf3".to_owned(), "3.17 (not run)".to_owned())]),
        clock_source: "tsc".to_owned(),
        mitigations: vec!["none".to_owned()],
        date: "2024-01-01T00:00:00Z".to_owned(),
    }
}

/// Makes all runs of a plan, and stores them in a directory.
pub(crate) fn fill(dir: &Path, study: &Study, host: &Host, seed: u64, speed: f64) {
    let mut journal = Journal::open(dir, study, host).expect("the directory is good");
    let plan = Plan::new(study, 5.0, seed);
    while let Some(task) = plan.next(&journal.records.runs) {
        let run = run(study, &task, seed, journal.records.runs.len(), speed);
        journal.append(run).expect("it has room");
    }
}

/// One run of the model.
pub(crate) fn run(study: &Study, task: &Task, seed: u64, index: usize, speed: f64) -> Run {
    let setup = Setup::of(study, &task.cell).expect("it means something");
    let mut random = fastrand::Rng::with_seed(seed ^ u64::try_from(index).expect("small"));
    let mut noise = || (1.0 + 0.05 * (random.f64() + random.f64() - 1.0)) * speed;
    let queues = if task.subject == Subject::Ringway { setup.queues } else { 1 };
    let streams = streams(&setup, task, queues, seed, &mut noise);
    let queues_used = queues_used(&streams, queues, study.load.seconds);
    let values = values(&setup, task, queues, &streams, &mut noise);
    let about =
        ["throughput-bps", "rtt-median-us"].into_iter().find(|name| values.contains_key(*name));
    let mut course = |name: &str| {
        let mut noisy: Vec<f64> = (0..13).map(|_| values[name] * noise()).collect();
        let of_steps = noisy.iter().copied().map(Some).collect();
        noisy.sort_by(f64::total_cmp);
        let quantiles = (0..=100).map(|percent| noisy[percent * 12 / 100]).collect();
        Course { step_seconds: study.load.seconds / 13.0, values: of_steps, quantiles }
    };
    let courses = about.map(|name| (name.to_owned(), course(name))).into_iter().collect();
    let (hours, minutes, seconds) = (index / 3600, index / 60 % 60, index % 60);
    Run {
        study: study.id.clone(),
        cell: task.cell.clone(),
        repeat: task.repeat,
        seed,
        flow_key: None,
        started: format!("2024-01-01T{hours:02}:{minutes:02}:{seconds:02}Z"),
        seconds: study.load.seconds,
        warmup_seconds: study.load.warmup_seconds,
        subject: task.subject,
        tools: vec![ToolRun {
            name: "iperf3".to_owned(),
            version: "3.17 (not run)".to_owned(),
            command: "iperf3 --client 10.0.0.2 --window 256k --length 256k --parallel 1".to_owned(),
            exit_status: 0,
        }],
        values,
        courses,
        queues: queues_used,
        streams,
        cpu: Cpu {
            guest_system: Some(0.6 * study.load.seconds * noise()),
            netback: Some(0.8 * study.load.seconds * noise()),
            far_tools: Some(0.1 * study.load.seconds),
            steal: Some(0.0),
            ..Cpu::default()
        },
        disturbance: Disturbance {
            steal_share: Some(0.001),
            foreign_share: Some(if index == 0 { 0.25 } else { 0.01 }),
            cpu_mhz: Some(2400.0),
        },
        ends: None,
        notes: Vec::new(),
        differences: Vec::new(),
    }
}

/// What all queues of a subject carry, in bit/s.
fn capacity(setup: &Setup, subject: Subject) -> f64 {
    match subject {
        Subject::Ringway => QUEUE_BPS * slowed(setup),
        Subject::VethBridge => 11e9,
        Subject::TapRelay => 4.1e9,
        Subject::Machine => 9.4e9,
    }
}

/// Each queue divides its capacity among its streams, and no stream is faster than 1.9 Gbit/s.
fn streams(
    setup: &Setup,
    task: &Task,
    queues: u16,
    seed: u64,
    noise: &mut impl FnMut() -> f64,
) -> Vec<Stream> {
    let count = setup.streams * usize::from(setup.targets) * usize::from(setup.guests);
    let placed = setup.placement.queues(count, queues, task.repeat, seed);
    let capacity = capacity(setup, task.subject);
    let on = |queue| placed.iter().filter(|other| **other == queue).count();
    let streams = (0_u32..).zip(&placed).map(|(index, queue)| {
        let share = capacity / f64::from(u32::try_from(on(*queue)).expect("small"));
        Stream {
            index,
            guest: 0,
            source_port: 30_000 + u16::try_from(index).expect("small"),
            queue: (task.subject == Subject::Ringway).then_some(queue.0),
            bps: Some(share.min(1.9e9) * noise()),
        }
    });
    streams.collect()
}

fn queues_used(streams: &[Stream], queues: u16, seconds: f64) -> Vec<QueueUse> {
    let carried = |queue: u16| {
        let on = streams.iter().filter(|stream| stream.queue == Some(queue));
        let bps: f64 = on.filter_map(|stream| stream.bps).sum();
        let bytes = bps * seconds / 8.0;
        let steps = (0_u32..).find(|steps| f64::from(*steps) * 1e7 >= bytes);
        u64::from(steps.expect("a queue is not that fast")) * 10_000_000
    };
    let used = |index| QueueUse {
        vif: "vif1.0".to_owned(),
        index,
        tx_packets: 1000,
        tx_bytes: carried(index),
        rx_packets: 10,
        rx_bytes: 660,
    };
    (0..queues).map(used).collect()
}

/// What is measured of these streams, and of messages beside them.
fn values(
    setup: &Setup,
    task: &Task,
    queues: u16,
    streams: &[Stream],
    noise: &mut impl FnMut() -> f64,
) -> BTreeMap<String, f64> {
    let rates: Vec<f64> = streams.iter().filter_map(|stream| stream.bps).collect();
    let (load_bps, waiting) = loaded(setup, capacity(setup, task.subject), queues);
    let rtt = (42.0 + 2e6 * waiting) / slowed(setup) * noise();
    let mut values = match setup.tool {
        Tool::Sockperf => {
            vec![("rtt-median-us", rtt), ("rtt-p99-us", 2.4 * rtt), ("rtt-max-us", 30.0 * rtt)]
        }
        Tool::DdsperfPing => vec![("rtt-median-us", 2.0 * rtt), ("rtt-max-us", 40.0 * rtt)],
        _ => vec![
            ("throughput-bps", rates.iter().sum()),
            ("fairness", ringway_stats::jain(&rates).expect("something flows")),
            ("guest-min-bps", rates.iter().copied().fold(f64::MAX, f64::min)),
            ("cpu-seconds-per-gbit", 0.31 * noise()),
        ],
    };
    if setup.load > 0 {
        values.push(("load-bps", load_bps * noise()));
    }
    if task.subject == Subject::Ringway && setup.sender != Sender::Host {
        let us = 4.0 * noise();
        values.extend([("completion-median-us", us), ("completion-p99-us", 3.0 * us)]);
    }
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Bytes that a stream of the load keeps in flight.
const IN_FLIGHT: f64 = 400_000.0;

/// What the streams of the load carry, in bit/s, and how long a message waits behind them in each
/// direction, in seconds: both are means over all queues.
fn loaded(setup: &Setup, capacity: f64, queues: u16) -> (f64, f64) {
    let flows = 2 * setup.load;
    let busy = ringway_model::placement::busy_mean(flows, usize::from(queues));
    let in_flight = ringway_stats::float(flows) * IN_FLIGHT * 8.0;
    (capacity * busy, in_flight / capacity / f64::from(queues))
}

/// The fraction of the model's capacity that a setting leaves.
fn slowed(setup: &Setup) -> f64 {
    let factors = [
        if setup.unanswered == Some(2) { 0.12 } else { 1.0 },
        match setup.offloads {
            Offloads::All => 1.0,
            Offloads::None => 0.2,
            _ => 0.7,
        },
        if setup.line_bps == Some(1_000_000_000) { 0.39 } else { 1.0 },
    ];
    factors.iter().product()
}
