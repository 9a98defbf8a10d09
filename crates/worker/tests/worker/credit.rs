//! A port whose rate is limited: it keeps to it over all its queues, and its workers sleep
//! meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_engine::steps::{self, Attachment, Command, NewPort};
use ringway_switch::{PortId, PortPolicy};
use ringway_worker::{Credit, Forwarding, Limits, Policy, Workers};

use crate::double::{Peer, Scripted, TestPort, attachment, config, port};

const INTERVAL: Duration = Duration::from_millis(20);
const LEN: usize = 1000;
const FRAMES_PER_INTERVAL: u64 = 10;

/// Attaches a limited port with this number of queues, and a sink. Returns their far sides.
fn attach(
    workers: &mut Workers<TestPort>,
    queues: usize,
    credit: &Arc<Credit>,
) -> (Vec<Peer>, Peer) {
    let (sink_port, sink) = port();
    let (ports, sources): (Vec<_>, Vec<_>) = (0..queues).map(|_| port()).unzip();
    let sink_queue = vec![attachment(sink_port)];
    let queues = ports.into_iter().map(attachment).collect();
    workers.attach(PortId(2), &Forwarding::Patch(PortId(1)), sink_queue).expect("attached");
    attach_limited(workers, queues, credit);
    (sources, sink)
}

fn of_ingress(credit: &Arc<Credit>) -> Limits {
    Limits { ingress: Some(Arc::clone(credit)), ..Limits::default() }
}

fn attach_limited(
    workers: &mut Workers<TestPort>,
    queues: Vec<Attachment<TestPort>>,
    credit: &Arc<Credit>,
) {
    let limited = NewPort {
        id: PortId(1),
        forwarding: &Forwarding::Patch(PortId(2)),
        policy: &Arc::new(PortPolicy::open()),
        limits: &of_ingress(credit),
        steering: None,
    };
    steps::attach(workers, limited, queues).expect("attached");
}

fn send(source: &Peer, flow: u16, frames: u32) {
    let frame = |sequence| Scripted { to: 2, from: 1, flow, sequence, len: LEN };
    source.send((0..frames).map(frame));
}

/// CPU time of the threads whose names begin with `name`.
fn cpu_time(name: &str) -> Duration {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("Linux") {
        let task = task.expect("a task").path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").starts_with(name) {
            let spent = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok());
            total += spent.unwrap_or(0);
        }
    }
    Duration::from_nanos(total)
}

#[test]
fn a_limited_port_keeps_its_rate_over_all_queues_and_waits_without_cpu() {
    for queues in [1, 3] {
        let name = format!("credit{queues}");
        let config = ringway_worker::WorkersConfig { name, ..config(2, Policy::Static) };
        let mut workers = Workers::start(config.clone()).expect("threads can be made");
        let start = Instant::now();
        let bytes = FRAMES_PER_INTERVAL * u64::try_from(LEN).expect("short");
        let credit = Arc::new(Credit::new(bytes, INTERVAL, start));
        let (sources, sink) = attach(&mut workers, queues, &credit);
        let total = 300;
        let each = total / u32::try_from(queues).expect("few");
        for (flow, source) in (0..).zip(&sources) {
            send(source, flow, each);
        }
        sink.wait_until("all frames", |far| far.received == u64::from(total));
        let elapsed = start.elapsed();
        // The first interval's credit is available at once, and the last frames may go into debt.
        let overdraft = u32::try_from(queues).expect("few");
        let intervals = (total - overdraft) / u32::try_from(FRAMES_PER_INTERVAL).expect("few");
        assert!(elapsed >= INTERVAL * (intervals - 1), "{elapsed:?} for {intervals} intervals");
        let busy = cpu_time(&config.name);
        assert!(busy < elapsed / 4, "{busy:?} of {elapsed:?}");
        assert_eq!(sink.far().reordered, 0);
        println!("{queues} queues: {elapsed:?}, of which busy {busy:?}");
    }
}

#[test]
fn a_changed_limit_wakes_a_worker_that_sleeps_for_it() {
    let mut workers = Workers::start(config(1, Policy::Static)).expect("threads can be made");
    let year = Duration::from_secs(365 * 86400);
    let limit = |bytes| Arc::new(Credit::new(bytes, year, Instant::now()));
    let credit = limit(1);
    let (sources, sink) = attach(&mut workers, 1, &credit);
    send(&sources[0], 0, 50);
    sink.wait_until("the one on credit", |far| far.received == 1);
    // The debt remains for a port that is attached again.
    drop(workers.detach(PortId(1)));
    let (again, source) = port();
    attach_limited(&mut workers, vec![attachment(again)], &credit);
    assert_eq!(credit.available(Instant::now()), 0);
    let frame = |sequence| Scripted { to: 2, from: 1, flow: 0, sequence, len: LEN };
    source.send((1..50).map(frame));
    let mut limit_to = |limits: Limits| {
        let limit = |id| Command::Limit { id, limits: limits.clone() };
        assert_eq!(steps::command_port(&mut workers, PortId(1), limit), Ok(true));
    };
    limit_to(of_ingress(&limit(10 * 1000)));
    sink.wait_until("ten more", |far| far.received == 11);
    limit_to(Limits::default());
    sink.wait_until("all", |far| far.received == 50);
    send(&source, 1, 500);
    sink.wait_until("all others", |far| far.received == 550);
}
