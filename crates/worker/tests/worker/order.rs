//! No flow is ever reordered: not by many workers, not by queues that move between them, not by
//! ports that come and go.

use std::sync::Arc;
use std::time::Instant;

use crate::double::{
    Far, LEN_MIN, PATIENCE, Peer, Scripted, TestPort, attachment, config, mac, port,
};
use fastrand::Rng;
use ringway_datapath::MacAddr;
use ringway_switch::{PortId, Switch, SwitchConfig, Ticks};
use ringway_worker::{Forwarding, Policy, Workers};

/// Frames that each queue of the test sends, in all.
const FRAMES: u32 = 20_000;
const QUEUES: u16 = 3;
/// The flow of a port that comes and goes: it may end early, but is not reordered either.
const VISITING: u16 = 100;

/// Prints the seed of a run that fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

/// A port's queues, seen from outside.
struct Station {
    id: PortId,
    number: u8,
    queues: Vec<Peer>,
    /// By queue: how many frames were sent; each belongs to one of two flows of the queue.
    sent: Vec<u32>,
}

impl Station {
    fn attach(workers: &mut Workers<TestPort>, number: u8, forwarding: &Forwarding) -> Station {
        let (ports, queues): (Vec<_>, Vec<_>) = (0..QUEUES).map(|_| port()).unzip();
        let id = PortId(number.into());
        workers
            .attach(id, forwarding, ports.into_iter().map(attachment).collect())
            .expect("threads can be made");
        Station { id, number, queues, sent: vec![0; usize::from(QUEUES)] }
    }

    /// Sends a burst from a random queue to `to`; false if all queues have sent all they had.
    fn send(&mut self, to: u8, rng: &mut Rng) -> bool {
        let queue = rng.usize(0..self.queues.len());
        let peer = &self.queues[queue];
        let waiting = peer.far().script.len();
        let left = FRAMES - self.sent[queue];
        let burst = rng.u32(1..200).min(left);
        if burst > 0 && waiting < 2000 {
            let flow = u16::from(self.number) * 2 * QUEUES + 2 * u16::try_from(queue).unwrap();
            let first = self.sent[queue];
            peer.far().batch = rng.usize(1..=64);
            let (number, len) = (self.number, LEN_MIN + rng.usize(0..200));
            peer.send((first..first + burst).map(|n| Scripted {
                to,
                from: number,
                flow: flow + u16::try_from(n % 2).unwrap(),
                sequence: n / 2,
                len,
            }));
            self.sent[queue] += burst;
        }
        self.sent.iter().any(|&sent| sent < FRAMES)
    }

    /// Frames of ports other than the visitor.
    fn received(&self) -> u64 {
        let of_flows = |far: &Far| -> u64 {
            far.expected[..usize::from(VISITING)].iter().copied().map(u64::from).sum()
        };
        self.queues.iter().map(|queue| of_flows(&queue.far())).sum()
    }
}

pub(crate) fn switch(seed: u64) -> Arc<Switch> {
    Arc::new(Switch::new(SwitchConfig::unlimited(1024, 64, seed)))
}

/// Teaches the switch where a station is.
pub(crate) fn learn(switch: &Switch, number: u8) {
    switch.fdb().learn(MacAddr(mac(number)), PortId(number.into()), Ticks(0));
}

/// Moves a random queue of the first `ports` ports to a random worker.
fn move_one(workers: &mut Workers<TestPort>, ports: u16, rng: &mut Rng) {
    let worker = rng.usize(0..workers.count());
    let (port, queue) = (PortId(rng.u16(1..=ports)), rng.u16(0..QUEUES));
    assert!(workers.place(port, queue, worker));
    let placements = workers.placements();
    let placed = placements.iter().find(|placed| placed.port == port && placed.queue == queue);
    assert_eq!(placed.expect("the queue is attached").worker, worker);
}

fn check(stations: &[Station]) {
    for station in stations {
        for queue in &station.queues {
            assert_eq!(queue.far().reordered, 0, "frames of a flow came out of order");
            let lost: u64 = queue.far().missing[..usize::from(VISITING)].iter().sum();
            assert_eq!(lost, 0, "frames were lost, though all queues drained");
        }
    }
    for (sent, station) in stations.iter().flat_map(|station| station.sent.iter().zip([station; 3]))
    {
        assert_eq!(*sent, FRAMES, "station {} sends all", station.number);
    }
}

fn wait_for_all(stations: &[Station]) {
    for station in stations {
        for queue in &station.queues {
            queue.wait_until("all frames are taken in", |far| far.script.is_empty());
        }
    }
    let sent = |station: &Station| u64::from(station.sent.iter().sum::<u32>());
    let sent: u64 = stations.iter().map(sent).sum();
    let deadline = Instant::now() + PATIENCE;
    while stations.iter().map(Station::received).sum::<u64>() < sent {
        assert!(Instant::now() < deadline, "frames were lost, though all queues drained");
        std::thread::yield_now();
    }
}

#[test]
fn switched_flows_stay_in_order_while_queues_move() {
    for workers in 2..=4 {
        let seed = Seed(fastrand::u64(..));
        let mut rng = Rng::with_seed(seed.0);
        let mut workers = Workers::start(config(workers, Policy::Static)).expect("threads");
        let switch = switch(seed.0);
        for number in 1..=5 {
            // Known beforehand, so that nothing is flooded, which would be counted twice.
            learn(&switch, number);
        }
        let forwarding = Forwarding::Switch(switch);
        let mut stations: Vec<Station> =
            (1..=4).map(|number| Station::attach(&mut workers, number, &forwarding)).collect();
        let mut visitor: Option<Station> = None;
        let mut visited = 0;
        let mut partner = [2, 1, 4, 3];
        rng.shuffle(&mut partner);
        loop {
            let mut more = false;
            for (station, to) in stations.iter_mut().zip(partner) {
                // A frame to its own port would be dropped, so that one sends to its neighbour.
                let to = if to == station.number { to % 4 + 1 } else { to };
                more |= station.send(to, &mut rng);
            }
            if !more {
                break;
            }
            move_one(&mut workers, 4, &mut rng);
            // A fifth port comes and goes, and sends meanwhile.
            if rng.u8(0..4) == 0 {
                match visitor.take() {
                    None => {
                        let arrived = Station::attach(&mut workers, 5, &forwarding);
                        arrived.queues[0].send_flow(5, 1, VISITING, visited, 500);
                        visited += 500;
                        visitor = Some(arrived);
                    }
                    Some(gone) => {
                        assert_eq!(workers.detach(gone.id).len(), usize::from(QUEUES));
                    }
                }
            }
        }
        wait_for_all(&stations);
        check(&stations);
    }
}

#[test]
fn patched_flows_stay_in_order_while_queues_move() {
    let seed = Seed(fastrand::u64(..));
    let mut rng = Rng::with_seed(seed.0);
    let mut workers = Workers::start(config(3, Policy::Balanced)).expect("threads can be made");
    let mut stations: Vec<Station> = [(1, 2), (2, 1)]
        .into_iter()
        .map(|(number, to)| Station::attach(&mut workers, number, &Forwarding::Patch(PortId(to))))
        .collect();
    let mut more = true;
    while more {
        more = false;
        for station in &mut stations {
            more |= station.send(3 - station.number, &mut rng);
        }
        move_one(&mut workers, 2, &mut rng);
        workers.rebalance();
    }
    wait_for_all(&stations);
    check(&stations);
}
