//! Each port's share of an engine: deficit round robin over ports, by the cost of frames.
//!
//! In a round, the heaviest port with work may take in [`QUANTUM`], over all its queues together,
//! and every other port a part of that in proportion to its weight. So a round stays short whatever
//! the weights are. A port pays back any excess in later rounds and cannot save up what it does not
//! use. So more queues, longer frames or frames that are expensive to cut do not get a port more. A
//! port alone on its engine has longer rounds.

use ringway_datapath::{BATCH, Budget, Frame, Gso};
use ringway_switch::PortId;

/// What one port may take in each round, in the units of [`cost`]: about a batch of short frames,
/// or four of 64 KiB, so that a round stays in a core's cache.
pub(crate) const QUANTUM: i64 = 256 << 10;
/// What handling a frame costs besides copying it, in bytes copied.
const FRAME_COST: usize = 4096;
/// What handling a frame costs that is read from a device or written to one, besides copying it, in
/// bytes copied: a system call and the kernel's work in it, about 3 us.
const CALL_COST: usize = 16 << 10;
/// What cutting off one segment costs, by us or by a later station, in bytes copied.
const SEGMENT_COST: usize = 256;
/// What a port alone on its engine may take in per round: a batch of the longest frames, over all
/// its queues together. Another port that gets work meanwhile waits no longer than that, and a
/// network device that gets all of these frames has room for them.
const ALONE: i64 = 4 << 20;

/// How a port's frames are handled, as far as it affects their cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// They pass through memory.
    Memory,
    /// They go directly from a queue to a device, or from a device to a queue.
    Device,
}

impl Handling {
    fn frame_cost(self) -> usize {
        match self {
            Handling::Memory => FRAME_COST,
            Handling::Device => CALL_COST,
        }
    }
}

/// The cost of a frame, in bytes copied.
pub(crate) fn cost(frame: &Frame, handling: Handling) -> usize {
    let segments = match frame.offload.gso {
        None => 0,
        Some(Gso { size, .. }) => frame.len() / usize::from(size.max(1)),
    };
    frame.work() + handling.frame_cost() + segments * SEGMENT_COST
}

/// What frames cost that are gone.
pub(crate) fn cost_of(frames: usize, bytes: usize) -> u64 {
    u64::try_from(bytes + frames * FRAME_COST).unwrap_or(u64::MAX)
}

/// A port's weight relative to others: a port of weight 2 may take in twice as much as one of
/// weight 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight(u16);

impl Weight {
    /// The default weight of a vif.
    pub const ONE: Weight = Weight(1);
    /// The heaviest.
    pub const MAX: u16 = 1000;

    /// A weight from 1 to [`Weight::MAX`].
    pub fn new(weight: u16) -> Option<Weight> {
        (1..=Weight::MAX).contains(&weight).then_some(Weight(weight))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

/// How many stations are behind a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stations {
    /// A guest, or the device of one: what it sends waits for full queues.
    One(Weight),
    /// The device of a guest on a bridge of the host. Frames from it are for that guest, and may be
    /// from all other guests, which were charged for them when they sent them.
    Bridge(Weight),
    /// Many, as behind an uplink. Such a port never waits: one slow guest would delay frames for
    /// others.
    Many,
}

impl Stations {
    /// What a port may take in per round if the heaviest busy port has this weight. From a bridge,
    /// it may be as much as all `senders` may send: with less, the bridge would drop frames,
    /// including those of honest guests.
    fn quantum(self, heaviest: u16, senders: usize) -> i64 {
        let of = |weight: Weight| QUANTUM * i64::from(weight.0) / i64::from(heaviest.max(weight.0));
        match self {
            Stations::One(weight) => of(weight),
            Stations::Bridge(weight) => {
                let senders = i64::try_from(senders).unwrap_or(MANY);
                of(weight) * senders.clamp(1, MANY)
            }
            Stations::Many => QUANTUM * MANY,
        }
    }

    fn weight(self) -> Option<Weight> {
        match self {
            Stations::One(weight) | Stations::Bridge(weight) => Some(weight),
            Stations::Many => None,
        }
    }

    /// Stations with another weight, if they have a weight.
    pub(crate) fn with_weight(self, weight: Weight) -> Stations {
        match self {
            Stations::One(_) => Stations::One(weight),
            Stations::Bridge(_) => Stations::Bridge(weight),
            Stations::Many => Stations::Many,
        }
    }
}

/// Quanta of a port with many stations behind it, such as an uplink, and the most that a port on a
/// bridge gets for its senders.
const MANY: i64 = 16;

/// The shares of all ports with queues in an engine.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    shares: Vec<Share>,
    round: u64,
    /// Ports that had work, in this round and in the one before.
    busy: usize,
    busy_before: usize,
    /// The busy ports by which a guest sends.
    senders: usize,
    senders_before: usize,
    /// The greatest weight of those that took in frames.
    heaviest: u16,
    heaviest_before: u16,
}

#[derive(Debug)]
struct Share {
    port_id: PortId,
    stations: Stations,
    handling: Handling,
    /// Queues of the port in this engine.
    queues: usize,
    /// What it may still take in in this round; below 0 if it has taken more than its share.
    left: i64,
    /// The last rounds in which it had a turn (`turn_in`) and counted as busy (`busy_in`).
    turn_in: u64,
    busy_in: u64,
}

impl Shares {
    /// Adds a queue of a port, and returns the index of the port's share.
    pub(crate) fn join(
        &mut self,
        port_id: PortId,
        stations: Stations,
        handling: Handling,
    ) -> usize {
        let is_its = |share: &Share| share.queues > 0 && share.port_id == port_id;
        let index = match self.shares.iter().position(is_its) {
            Some(index) => index,
            None => self.add(port_id, stations, handling),
        };
        self.shares[index].queues += 1;
        index
    }

    fn add(&mut self, port_id: PortId, stations: Stations, handling: Handling) -> usize {
        let (queues, left, turn_in, busy_in) = (0, 0, 0, 0);
        let share = Share { port_id, stations, handling, queues, left, turn_in, busy_in };
        match self.shares.iter().position(|share| share.queues == 0) {
            Some(free) => {
                self.shares[free] = share;
                free
            }
            None => {
                self.shares.push(share);
                self.shares.len() - 1
            }
        }
    }

    /// Gives a port another weight.
    pub(crate) fn set_weight(&mut self, index: usize, weight: Weight) {
        let share = &mut self.shares[index];
        share.stations = share.stations.with_weight(weight);
    }

    /// Removes a queue of the port.
    pub(crate) fn leave(&mut self, index: usize) {
        self.shares[index].queues -= 1;
    }

    /// Every port gets its quantum again, at its first turn.
    pub(crate) fn begin_round(&mut self) {
        self.round += 1;
        self.busy_before = std::mem::take(&mut self.busy);
        self.senders_before = std::mem::take(&mut self.senders);
        self.heaviest_before = std::mem::take(&mut self.heaviest);
    }

    /// What a queue of the port may take in at its turn; `None` if the port has used its share of
    /// this round.
    pub(crate) fn turn(&mut self, index: usize) -> Option<Budget> {
        let share = &mut self.shares[index];
        if share.turn_in != self.round {
            share.turn_in = self.round;
            share.left = match self.busy_before {
                0 | 1 => ALONE,
                _ => {
                    let quantum = share.stations.quantum(self.heaviest_before, self.senders_before);
                    (share.left + quantum).min(quantum)
                }
            };
        }
        match usize::try_from(share.left) {
            Ok(bytes @ 1..) => {
                let frames = bytes.div_ceil(share.handling.frame_cost()).min(BATCH);
                Some(Budget { frames, bytes })
            }
            _ => {
                // It probably has more.
                self.count_taking(index);
                None
            }
        }
    }

    /// Charges frames that a port took in and that are forwarded.
    pub(crate) fn charge_frames<'a>(
        &mut self,
        index: usize,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) {
        let handling = self.shares[index].handling;
        self.charge(index, frames.into_iter().map(|frame| cost(frame, handling)).sum());
    }

    /// Refunds the charge for frames that are not forwarded in this round.
    pub(crate) fn refund_frames<'a>(
        &mut self,
        index: usize,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) {
        let share = &mut self.shares[index];
        let cost: usize = frames.into_iter().map(|frame| cost(frame, share.handling)).sum();
        share.left = share.left.saturating_add(i64::try_from(cost).unwrap_or(i64::MAX));
    }

    /// Charges what a port took in, in units of [`cost`].
    pub(crate) fn charge(&mut self, index: usize, cost: usize) {
        let share = &mut self.shares[index];
        share.left = share.left.saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX));
        self.count_taking(index);
    }

    /// Counts a port that takes in frames in this round, or would with a greater share. Only these
    /// are compared by weight: the heavier ones that wait for a full queue would leave the others
    /// a frame in many rounds.
    fn count_taking(&mut self, index: usize) {
        self.count_busy(index);
        if let Some(weight) = self.shares[index].stations.weight() {
            self.heaviest = self.heaviest.max(weight.0);
        }
    }

    /// Counts a port with work in this round, even if it only has frames that wait for a full
    /// queue.
    pub(crate) fn count_busy(&mut self, index: usize) {
        let share = &mut self.shares[index];
        if share.busy_in != self.round {
            share.busy_in = self.round;
            self.busy += 1;
            if let Stations::One(_) = share.stations {
                self.senders += 1;
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// The total cost that each port takes in over many rounds: `ports` gives its stations, its
    /// number of queues, which never run empty, and the cost of a frame.
    fn simulate(ports: &[(Stations, usize, usize)]) -> Vec<usize> {
        let mut shares = Shares::default();
        let mut queues = Vec::new();
        for (port, (stations, count, cost)) in ports.iter().enumerate() {
            let id = PortId(u16::try_from(port).expect("few ports"));
            queues.extend(
                (0..*count).map(|_| (port, shares.join(id, *stations, Handling::Memory), *cost)),
            );
        }
        let mut taken = vec![0; ports.len()];
        for _ in 0..1000 {
            shares.begin_round();
            for (port, share, cost) in &queues {
                let Some(budget) = shares.turn(*share) else { continue };
                let frames = budget.frames.min(budget.bytes.div_ceil(*cost)).min(15);
                shares.charge(*share, frames * cost);
                taken[*port] += frames * cost;
            }
        }
        taken
    }

    const ONE: Stations = Stations::One(Weight::ONE);

    #[test]
    fn a_port_gets_no_more_by_having_more_queues_or_longer_frames() {
        let long = 65536 + FRAME_COST;
        for (queues, cost) in [(1, long), (8, long), (8, 4160), (2, 500_000)] {
            let taken = simulate(&[(ONE, 1, 60 + FRAME_COST), (ONE, queues, cost)]);
            // The honest port's batches have 15 short frames each, so it takes in all that it has.
            assert!(taken[0] >= 990 * 15 * 4156, "{queues} queues, {cost}: {taken:?}");
            // The first rounds do not know yet that there are two.
            let most = 1001 * 256 * 1024 + 2 * 8 * 15 * cost;
            assert!(taken[1] <= most, "{queues} queues, {cost}: {taken:?}");
        }
    }

    #[test]
    fn a_heavy_port_whose_frames_wait_for_a_full_queue_slows_no_other() {
        let mut shares = Shares::default();
        let heavy = Stations::One(Weight(Weight::MAX));
        let [heavy, light] = [(1, heavy), (2, ONE)]
            .map(|(id, stations)| shares.join(PortId(id), stations, Handling::Memory));
        let cost = 1500 + FRAME_COST;
        for round in 0..1000 {
            shares.begin_round();
            shares.count_busy(heavy);
            let budget = shares.turn(light).expect("it is the only port that takes in frames");
            assert!(budget.frames >= 15, "round {round}: {budget:?}");
            shares.charge(light, 15 * cost);
        }
    }

    #[test]
    fn frames_from_a_bridge_get_the_share_of_all_guests_on_it() {
        let bridge = Stations::Bridge(Weight::ONE);
        // Two ports send to the guest behind the bridge, one of them short frames.
        let ports = [(ONE, 1, 70_000), (ONE, 8, 60 + FRAME_COST), (bridge, 4, 70_000)];
        let taken = simulate(&ports);
        assert!(taken[2] + 1_000_000 > taken[0] + taken[1], "{taken:?}");
        // A guest to which only outside hosts send gets no more than another guest.
        let taken = simulate(&[(ONE, 1, 70_000), (bridge, 4, 70_000)]);
        assert!(taken[1] < taken[0] / 20 * 21, "{taken:?}");
    }

    #[test]
    fn ports_share_an_engine_by_weight() {
        let double = Stations::One(Weight::new(2).expect("a weight"));
        let taken = simulate(&[(ONE, 4, 70_000), (double, 4, 70_000), (ONE, 8, 70_000)]);
        let share = |port: usize| taken[port] * 100 / taken.iter().sum::<usize>();
        assert!((24..=26).contains(&share(0)), "{taken:?}");
        assert!((49..=51).contains(&share(1)), "{taken:?}");
        assert!((24..=26).contains(&share(2)), "{taken:?}");
    }

    #[test]
    fn a_heavy_port_gets_its_share_even_beyond_one_batch() {
        let heavy = Stations::One(Weight::new(1000).expect("a weight"));
        for (count, cost) in [(1, 70_000), (1, 60 + FRAME_COST), (8, 70_000)] {
            let taken = simulate(&[(heavy, 1, cost), (ONE, count, cost)]);
            // Except in the first rounds, which do not know the senders yet.
            assert!(taken[1] <= taken[0] / 500 + 2 * 8 * 15 * cost, "{cost}: {taken:?}");
            assert!(taken[1] > 0);
        }
    }

    #[test]
    fn a_port_alone_on_an_engine_has_long_rounds() {
        let taken = simulate(&[(ONE, 8, 70_000)]);
        // A round has its maximum length.
        assert!(taken[0] > 990 * (BATCH << 16), "{taken:?}");
    }

    #[test]
    fn a_share_ends_with_the_ports_last_queue() {
        let mut shares = Shares::default();
        let first = shares.join(PortId(1), ONE, Handling::Memory);
        assert_eq!(shares.join(PortId(1), ONE, Handling::Memory), first);
        let second = shares.join(PortId(2), ONE, Handling::Memory);
        assert_ne!(second, first);
        shares.leave(first);
        assert_eq!(shares.join(PortId(1), ONE, Handling::Memory), first);
        shares.leave(first);
        shares.leave(first);
        // Another port has its place now.
        assert_eq!(shares.join(PortId(3), ONE, Handling::Memory), first);
        assert_ne!(shares.join(PortId(1), ONE, Handling::Memory), first);
    }

    #[test]
    fn a_frame_that_takes_a_system_call_costs_more() {
        let mut shares = Shares::default();
        let [memory, device] = [(1, Handling::Memory), (2, Handling::Device)]
            .map(|(port, handling)| shares.join(PortId(port), ONE, handling));
        for _ in 0..2 {
            shares.begin_round();
            [memory, device].into_iter().for_each(|index| shares.count_busy(index));
        }
        let frames = |budget: Option<Budget>| budget.expect("it has its share").frames;
        assert_eq!(frames(shares.turn(memory)), 64);
        assert_eq!(frames(shares.turn(device)), 16);
    }

    #[test]
    fn cutting_a_frame_costs_per_segment() {
        let mut pool = ringway_datapath::FramePool::new(ringway_datapath::PoolBudget::new(1 << 20));
        let mut frame = pool.take(65_000).expect("there is memory");
        let whole = cost(&frame, Handling::Memory);
        let kind = ringway_datapath::GsoKind::TcpV4;
        frame.offload.gso = Some(Gso { kind, size: 1448 });
        assert!(cost(&frame, Handling::Memory) < whole * 5 / 4);
        frame.offload.gso = Some(Gso { kind, size: 48 });
        // A kernel that cuts it makes 1,354 frames, in the time that it takes to copy this much.
        assert!(cost(&frame, Handling::Memory) > whole * 250);
    }
}
