//! From guest to guest through the learning switch: a round of the engine that takes frames from
//! one ring and puts them into another; and the switch's classification alone.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_datapath::{
    FrameBatch, FramePool, IpNetwork, LockingMode, MacAddr, PoolBudget, PortQueue, PortRules,
    QueueCounters,
};
use ringway_engine::{
    Attached, AttachedParts, Directory, Engine, Forwarding, IfIdle, Inbox, Limits, Roster,
    Stations, Weight,
};
use ringway_steering::FlowKey;
use ringway_switch::fdb::Assigned;
use ringway_switch::{
    Binding, FloodBudget, PortId, PortPolicy, Switch, SwitchConfig, Ticks, Verdict,
};

use super::{Counted, FRAME_LEN, FRAMES, Unit};
use crate::ring::pair::{Host, backend_queues, bare_queues};
use crate::ring::work::{BURST, Header};

/// The addresses of the sender and of the receiver.
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
const SENDER: PortId = PortId(1);
const KINDS: [&str; 3] = ["udp", "tcp", "arp"];
/// Kinds of a vif's rules, by how strictly they check frames.
const RULES: [&str; 3] = ["unlocked", "default", "locked"];
/// The simulated duration of a round.
const ROUND: Duration = Duration::from_micros(20);
/// Rounds without a frame before a run is given up.
const EMPTY_ROUNDS_MAX: usize = 1000;

/// Each kind of frame with each set of rules; the whole path, and classification alone.
pub(super) fn cases() -> impl Iterator<Item = Counted> {
    let way = |verb: &'static str, what: &'static str, function: &'static str| {
        KINDS.into_iter().flat_map(move |kind| {
            RULES.into_iter().flat_map(move |rules| {
                [1, 8, 64].map(|batch: usize| Counted {
                    name: format!("{what}, {kind}, {rules} vif, {FRAME_LEN} B, batch {batch}"),
                    function,
                    words: vec![verb.into(), kind.into(), rules.into(), batch.to_string()],
                    unit: Unit::Frame,
                    turns: FRAMES,
                })
            })
        })
    };
    way("switch", "guest to guest", "*engine_turn*").chain(way(
        "classify",
        "classification",
        "*classify_turn*",
    ))
}

/// The parameters of a run.
struct Plan {
    header: fn() -> Header,
    policy: PortPolicy,
    switch: Switch,
    batch: usize,
    frames: usize,
}

impl Plan {
    fn parse(words: &[&str]) -> Result<Plan> {
        let [kind, rules, batch, frames] = words else {
            bail!("usage: switch|classify udp|tcp|arp unlocked|default|locked BATCH FRAMES");
        };
        let header = match *kind {
            "udp" => Header::udp,
            "tcp" => Header::tcp,
            "arp" => Header::arp,
            _ => bail!("a frame is one of {}", KINDS.join(" ")),
        };
        let mode = match *rules {
            "unlocked" => Some(LockingMode::Unlocked),
            "default" => None,
            "locked" => Some(LockingMode::Locked),
            _ => bail!("rules are one of {}", RULES.join(" ")),
        };
        let allowed = vec![IpNetwork::host(std::net::Ipv4Addr::new(198, 18, 0, 1).into())];
        let rules = PortRules { allowed, ..PortRules::default() };
        let policy = PortPolicy::for_vif(&rules, mode, 1, Some(MACS[0]), Binding::Static);
        let switch = switch_of(MACS.into_iter().zip([SENDER, PortId(2)]))?;
        Ok(Plan { header, policy, switch, batch: batch.parse()?, frames: frames.parse()? })
    }
}

/// A switch without limits, with a port for each of these addresses.
pub(super) fn switch_of(stations: impl Iterator<Item = (MacAddr, PortId)>) -> Result<Switch> {
    let stations: Vec<_> = stations.collect();
    let ports_max = stations.iter().map(|(_, port)| port.0 + 1).max().unwrap_or(0);
    let switch = Switch::new(SwitchConfig::unlimited(4096, ports_max, 1));
    for (mac, port) in stations {
        let assigned = Assigned { own: &[mac], addresses_max: 1, ..Assigned::default() };
        if let Some((mac, reason)) = switch.assign(port, &assigned, Ticks(0)).pop() {
            bail!("assign {mac}: {reason:?}");
        }
    }
    Ok(switch)
}

/// The whole path: `kind rules batch frames`.
pub(super) fn run(words: &[&str]) -> Result<()> {
    let Plan { header, policy, switch, batch, frames } = Plan::parse(words)?;
    let host = Host::start()?;
    let now = Instant::now();
    let mut guests = Vec::new();
    let mut ports = Ports::new(switch, now);
    for policy in [policy, PortPolicy::open()] {
        let domid = host.create_guest(1)?;
        let (mut fronts, keys) = bare_queues(&host.connect(domid)?, 1)?;
        let mut backs = backend_queues(host.toolstack(), domid, &keys)?;
        ports.attach(backs.remove(0), policy);
        guests.push(fronts.remove(0));
    }
    let [sender, receiver] = &mut guests[..] else { bail!("there are two guests") };
    sender.set_header(header());
    let (mut done, mut empty) = (0, 0);
    while done < frames {
        for sent in (0..batch).step_by(BURST) {
            sender.send_at_most(BURST.min(batch - sent), FRAME_LEN)?;
        }
        ports.turn();
        let before = done;
        for _ in (0..batch).step_by(BURST) {
            done += receiver.receive()?;
        }
        empty = if done == before { empty + 1 } else { 0 };
        if empty > EMPTY_ROUNDS_MAX {
            bail!("only {done} of {frames} frames arrived");
        }
    }
    Ok(())
}

/// An engine with its ports.
pub(super) struct Ports<Q> {
    engine: Engine<Q>,
    roster: Roster,
    directory: Directory,
    inbox: Arc<Inbox>,
    switch: Arc<Switch>,
    now: Instant,
}

impl<Q: PortQueue> Ports<Q> {
    pub(super) fn new(switch: Switch, now: Instant) -> Ports<Q> {
        let inbox = Arc::new(Inbox::new(Waker::noop().clone()));
        let pool = FramePool::new(PoolBudget::new(64 << 20));
        let mut roster = Roster::default();
        roster.add_engine();
        Ports {
            engine: Engine::new(0, Arc::clone(&inbox), pool, now, FlowKey::new([1, 2])),
            roster,
            directory: Directory::default(),
            inbox,
            switch: Arc::new(switch),
            now,
        }
    }

    /// Attaches the only queue of the next port; the first is number 1.
    pub(super) fn attach(&mut self, queue: Q, policy: PortPolicy) {
        let number = u16::try_from(self.roster.queues().len() + 1).expect("few ports");
        let port_id = PortId(number);
        let address = self.roster.place(port_id, 0, None, 0);
        let parts = AttachedParts {
            id: address.slot,
            port_id,
            queue_index: 0,
            queue_count: 1,
            queue,
            forwarding: Forwarding::Switch(Arc::clone(&self.switch)),
            policy: Arc::new(policy),
            flood: self.switch.flood_budget(Ticks(0)),
            counters: Arc::new(QueueCounters::default()),
            gauge: address.gauge,
            limits: Limits { frame_len_max: Some(1518), ..Limits::default() },
            stations: Stations::One(Weight::ONE),
            arrivals: None,
        };
        self.engine.attach(Attached::new(parts, self.now));
        let version = self.directory.version + 1;
        self.directory = self.roster.directory(version, vec![Arc::clone(&self.inbox)]);
    }

    /// A round that is not counted.
    pub(super) fn turn_uncounted(&mut self) {
        self.now += ROUND;
        self.engine.round(self.now, &self.directory, IfIdle::Poll);
    }

    /// A round that is counted.
    pub(super) fn turn(&mut self) {
        self.now += ROUND;
        engine_turn(&mut self.engine, self.now, &self.directory);
    }
}

/// Classification alone: `kind rules batch frames`.
pub(super) fn run_classify(words: &[&str]) -> Result<()> {
    let Plan { header, policy, switch, batch, frames } = Plan::parse(words)?;
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let header = header();
    let mut entering = FrameBatch::new();
    for _ in 0..batch {
        let mut frame = pool.take(FRAME_LEN).context("the budget is large enough")?;
        let header = header.bytes(FRAME_LEN);
        frame.bytes_mut()[..header.len()].copy_from_slice(header);
        entering.push(frame);
    }
    let flood = switch.flood_budget(Ticks(0));
    for _ in 0..frames.div_ceil(batch) {
        classify_turn(&switch, &policy, &mut entering, &flood);
        let to_other = Verdict::Unicast(PortId(2));
        if let Some(frame) = entering.iter().find(|frame| frame.verdict != to_other) {
            bail!("a frame left by another port: {:?}", frame.verdict);
        }
    }
    Ok(())
}

// Two functions, not inlined, so that callgrind finds them by name.

#[inline(never)]
fn engine_turn<Q: PortQueue>(engine: &mut Engine<Q>, now: Instant, directory: &Directory) {
    engine.round(now, directory, IfIdle::Poll);
}

#[inline(never)]
fn classify_turn(
    switch: &Switch,
    policy: &PortPolicy,
    batch: &mut FrameBatch,
    flood: &FloodBudget,
) {
    switch.classify(SENDER, policy, batch, Ticks(1), flood);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_of_each_case_reach_the_other_guest() {
        for case in cases() {
            let mut words: Vec<&str> = case.words.iter().map(String::as_str).collect();
            words.push("128");
            super::super::run(&words).unwrap_or_else(|error| panic!("{}: {error:#}", case.name));
        }
    }
}
