//! Where queues are placed, and the cost of idle workers.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use ringway_switch::PortId;
use ringway_worker::{Forwarding, Policy, Workers, WorkersConfig};

use crate::double::{PATIENCE, Peer, TestPort, attachment, config, port};
use crate::order::{learn, switch};

fn attach(workers: &mut Workers<TestPort>, id: u16, to: u16, queues: usize) -> Vec<Peer> {
    attach_forwarding(workers, id, &Forwarding::Patch(PortId(to)), queues)
}

fn attach_forwarding(
    workers: &mut Workers<TestPort>,
    id: u16,
    forwarding: &Forwarding,
    queues: usize,
) -> Vec<Peer> {
    let (ports, peers): (Vec<_>, Vec<_>) = (0..queues).map(|_| port()).unzip();
    let queues = ports.into_iter().map(attachment).collect();
    workers.attach(PortId(id), forwarding, queues).expect("attached");
    peers
}

fn workers_of(workers: &Workers<TestPort>, id: u16) -> Vec<usize> {
    let placements = workers.placements();
    placements.iter().filter(|placed| placed.port == PortId(id)).map(|p| p.worker).collect()
}

/// Steps after which a test gives up on something that depends on the load of the machine.
const STEPS_MAX: u32 = 500;
/// Bursts after which two ports share a worker. One is enough, unless a round ends just when its
/// load is read.
const TRIES_MAX: u32 = 20;

#[test]
fn per_queue_gives_each_queue_a_thread_and_reuses_it() {
    let mut workers = Workers::start(config(1, Policy::PerQueue)).expect("threads can be made");
    assert_eq!(workers.count(), 0);
    attach(&mut workers, 1, 2, 4);
    attach(&mut workers, 2, 1, 2);
    let used: HashSet<usize> = workers.placements().iter().map(|placed| placed.worker).collect();
    assert_eq!((used.len(), workers.count()), (6, 6));
    assert_eq!(workers.detach(PortId(1)).len(), 4);
    let peers = attach(&mut workers, 3, 2, 4);
    assert_eq!(workers.count(), 6, "threads of queues that are gone serve again");
    attach(&mut workers, 4, 3, 1);
    assert_eq!(workers.count(), 7);
    peers[0].send_flow(3, 2, 0, 0, 10);
    peers[0].wait_until("they do serve", |far| far.script.is_empty());
}

#[test]
fn static_placement_follows_queue_numbers_and_never_moves() {
    let mut workers = Workers::start(config(3, Policy::Static)).expect("threads can be made");
    attach(&mut workers, 1, 2, 4);
    attach(&mut workers, 5, 1, 2);
    assert_eq!(workers_of(&workers, 1), [1, 2, 0, 1]);
    assert_eq!(workers_of(&workers, 5), [2, 0]);
    assert_eq!(workers.rebalance(), None);
}

#[test]
fn balanced_placement_spreads_queues_and_separates_busy_ones() {
    let mut workers = Workers::start(config(2, Policy::Balanced)).expect("threads can be made");
    let sources: Vec<Peer> = (1..=4).map(|id| attach(&mut workers, id, 10, 1).remove(0)).collect();
    let sink = attach(&mut workers, 10, 1, 1).remove(0);
    let on = |workers: &Workers<TestPort>, worker| {
        workers.placements().iter().filter(|placed| placed.worker == worker).count()
    };
    assert_eq!((on(&workers, 0), on(&workers, 1)), (3, 2));
    // All busy queues on one worker.
    for id in [1, 2, 3, 4, 10] {
        assert!(workers.place(PortId(id), 0, 0));
    }
    workers.rebalance();
    let mut step = 0;
    let mut work_and_rebalance = |workers: &mut Workers<TestPort>| {
        for (flow, source) in (0..).zip(&sources) {
            source.send_flow(1, 2, flow, step * 5000, 5000);
        }
        step += 1;
        sink.wait_until("this step's frames", |far| far.received == u64::from(step) * 20_000);
        workers.rebalance()
    };
    // Others share the CPUs, so the steps in which a worker is saturated vary. Two moves balance
    // the load; after these no move is needed.
    let first = (0..STEPS_MAX).find_map(|_| work_and_rebalance(&mut workers));
    assert!(first.is_some_and(|moved| moved.worker == 1), "nothing moved");
    let moves: Vec<_> = (0..30).filter_map(|_| work_and_rebalance(&mut workers)).collect();
    assert!(moves.len() <= 2, "it does not come to rest: {moves:?}");
    assert!(on(&workers, 0) > 0 && on(&workers, 1) > 0);
    assert_eq!(sink.far().reordered, 0);
}

#[test]
fn queues_of_a_patched_pair_share_a_worker_and_move_together() {
    let mut workers = Workers::start(config(2, Policy::Balanced)).expect("threads can be made");
    // As a vif and its TAP device: queue 0 to queue 0, queue 1 to queue 1.
    let pairs: Vec<(Vec<Peer>, Vec<Peer>)> = [(1, 2), (3, 4), (5, 6)]
        .into_iter()
        .map(|(tap, vif)| (attach(&mut workers, tap, vif, 1), attach(&mut workers, vif, tap, 1)))
        .collect();
    let together = |workers: &Workers<TestPort>| {
        [(1, 2), (3, 4), (5, 6)]
            .into_iter()
            .all(|(tap, vif)| workers_of(workers, tap) == workers_of(workers, vif))
    };
    assert!(together(&workers));
    for port in 1..=6 {
        assert!(workers.place(PortId(port), 0, 0));
    }
    workers.rebalance();
    // Whether a worker is saturated in a step depends on what else runs on the machine.
    for step in 0..STEPS_MAX {
        for (tap, vif) in &pairs {
            tap[0].send_flow(1, 2, 0, step * 5000, 5000);
            vif[0]
                .wait_until("this step's frames", |far| far.received == u64::from(step + 1) * 5000);
        }
        workers.rebalance();
        assert!(together(&workers), "a pair was parted");
        if step >= 4 && (1..=6).any(|port| workers_of(&workers, port) == [1]) {
            break;
        }
    }
    assert!((1..=6).any(|port| workers_of(&workers, port) == [1]), "nothing moved");
    assert!(pairs.iter().all(|(_, vif)| vif[0].far().reordered == 0));
}

#[test]
fn a_device_with_one_queue_shares_its_worker_with_all_queues_of_its_vif() {
    let mut workers = Workers::start(config(2, Policy::Balanced)).expect("threads can be made");
    // As two vifs of a guest and their TAP devices, in the order in which each may come.
    let vif = attach(&mut workers, 1, 2, 4);
    let tap = attach(&mut workers, 2, 1, 1);
    attach(&mut workers, 4, 3, 1);
    attach(&mut workers, 3, 4, 4);
    let mut of_pairs = [(1, 2), (3, 4)].map(|(vif, tap)| {
        let mut both = workers_of(&workers, vif);
        both.extend(workers_of(&workers, tap));
        both.dedup();
        both
    });
    of_pairs.sort();
    assert_eq!(of_pairs, [[0], [1]], "each pair has a worker of its own");
    for flow in 0..8 {
        tap[0].send_flow(1, 2, flow, 0, 10);
    }
    let all = || vif.iter().map(|queue| queue.far().received).sum::<u64>();
    tap[0].wait_until("all flows", |_| all() == 80);
}

#[test]
fn ports_with_one_queue_that_talk_to_each_other_come_to_share_a_worker() {
    let mut workers = Workers::start(config(2, Policy::Balanced)).expect("threads can be made");
    let switch = switch(1);
    (1..=2).for_each(|number| learn(&switch, number));
    let forwarding = Forwarding::Switch(switch);
    let one = attach_forwarding(&mut workers, 1, &forwarding, 1).remove(0);
    let two = attach_forwarding(&mut workers, 2, &forwarding, 1).remove(0);
    assert_eq!((workers_of(&workers, 1), workers_of(&workers, 2)), (vec![0], vec![1]));
    let busy = |workers: &Workers<TestPort>| workers.busy().sum::<Duration>();
    workers.rebalance();
    let (mut sent, mut compared) = (0, (Instant::now(), busy(&workers)));
    for _ in 0..TRIES_MAX {
        one.send_flow(1, 2, 0, sent, 3000);
        two.send_flow(2, 1, 1, sent / 10, 300);
        sent += 3000;
        two.wait_until("a burst", |far| far.received == u64::from(sent));
        one.wait_until("responses", |far| far.received == u64::from(sent / 10));
        assert!(workers.all_respond(PATIENCE), "all rounds with frames are counted");
        // A queue moves to a worker that has time. One without a CPU counts as busy while its
        // frames wait, so the pause is as long as that took.
        // waits: the load of a time without frames is measured.
        while compared.0.elapsed() < 2 * (busy(&workers) - compared.1) {
            // waits: for as long as a burst has taken.
            std::thread::sleep(Duration::from_millis(1));
        }
        workers.rebalance();
        compared = (Instant::now(), busy(&workers));
        if workers_of(&workers, 1) == workers_of(&workers, 2) {
            break;
        }
    }
    assert_eq!(workers_of(&workers, 1), workers_of(&workers, 2));
    one.send_flow(1, 2, 0, sent, 3000);
    two.wait_until("frames by the new way", |far| far.received == u64::from(sent) + 3000);
    one.wait_until("responses", |far| far.received == u64::from(sent / 10));
    assert_eq!((two.far().reordered, one.far().reordered), (0, 0));
}

#[test]
fn patched_ports_with_equal_queue_counts_keep_the_queue() {
    let mut workers = Workers::start(config(2, Policy::Balanced)).expect("threads can be made");
    let from = attach(&mut workers, 1, 2, 2);
    let to = attach(&mut workers, 2, 1, 2);
    for flow in 0..8 {
        from[1].send_flow(1, 2, flow, 0, 10);
    }
    to[1].wait_until("all flows", |far| far.received == 80);
    assert_eq!(to[0].far().received, 0);
}

#[test]
fn workers_are_pinned_to_cpus_round_robin() {
    let cpus = ringway_sys::process::allowed_cpus().expect("listed");
    let name = "pinned".to_owned();
    let config = WorkersConfig { cpus: cpus.clone(), name, ..config(3, Policy::Static) };
    let mut workers: Workers<TestPort> = Workers::start(config).expect("threads can be made");
    // A move waits until its workers have begun their rounds, before which they are pinned.
    attach(&mut workers, 1, 2, 1);
    for worker in [0, 1, 2, 0] {
        assert!(workers.place(PortId(1), 0, worker));
    }
    for worker in 0..3 {
        let status = fs::read_to_string(format!("{}/status", thread(&format!("pinned{worker}"))));
        let status = status.expect("the thread lives");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed.map(str::trim), Some(&*cpus[worker % cpus.len()].to_string()));
    }
}

#[test]
fn a_thousand_idle_queues_cost_no_cpu() {
    // Each takes a descriptor.
    ringway_sys::process::raise_open_files_limit().expect("raised");
    let name = "idle".to_owned();
    let config = WorkersConfig { name, ..config(1, Policy::Static) };
    let mut workers = Workers::start(config).expect("threads can be made");
    let peers: Vec<Peer> = (1..=100).flat_map(|id| attach(&mut workers, id, 101, 10)).collect();
    let (sink, far) = port();
    let nowhere = Forwarding::Patch(PortId(200));
    workers.attach(PortId(101), &nowhere, vec![attachment(sink)]).expect("attached");
    peers[999].send_flow(1, 2, 0, 0, 1);
    far.wait_until("all queues are attached", |far| far.received == 1);

    // The thread is asleep if its CPU time does not advance while ours does.
    let idle = thread("idle0");
    let before = polls(&peers);
    let mut last = cpu_time(&idle);
    let begun = cpu_time("/proc/thread-self");
    let mut spent = Duration::ZERO;
    let mut still_since = begun;
    while cpu_time("/proc/thread-self") - still_since < Duration::from_millis(50) {
        let now = cpu_time(&idle);
        if now > last {
            spent += now - last;
            last = now;
            still_since = cpu_time("/proc/thread-self");
        }
        // waits: of this CPU time, a busy machine gives the worker less.
        assert!(spent < Duration::from_secs(2), "the worker does not come to rest");
    }
    assert!(polls(&peers) - before < 50_000, "queues are polled all the time");
    // And one of the thousand still wakes it.
    peers[500].send_flow(1, 2, 1, 0, 1);
    far.wait_until("a frame of an idle queue", |far| far.received == 2);
}

fn polls(peers: &[Peer]) -> u64 {
    peers.iter().map(|peer| peer.far().polls).sum()
}

/// The /proc directory of one of our threads.
fn thread(name: &str) -> String {
    let tasks = fs::read_dir("/proc/self/task").expect("proc is mounted");
    let mut paths = tasks.map(|task| task.expect("read").path().display().to_string());
    let is_it = |path: &String| {
        fs::read_to_string(format!("{path}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    paths.find(is_it).expect("the thread lives")
}

fn cpu_time(thread: &str) -> Duration {
    let stat = fs::read_to_string(format!("{thread}/schedstat")).expect("the thread lives");
    let nanos = stat.split_ascii_whitespace().next().expect("the first number is time on a CPU");
    Duration::from_nanos(nanos.parse().expect("a number"))
}
