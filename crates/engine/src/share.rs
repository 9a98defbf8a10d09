//! Each port's share of an engine: deficit round robin over ports, by what frames cost.
//!
//! In a round each port that has turns may take in [`QUANTUM`] over all its queues together, if it
//! is the heaviest of those that have work, or its part of that by weight. So a round stays short
//! whatever the weights are. What a frame costs beyond that is paid back in later rounds; what a
//! port does not use is not saved up. So a port gets no more by having more queues, longer frames
//! or frames that are laborious to cut. A port that has the engine to itself has longer rounds.

use ringway_datapath::{BATCH, Budget, Frame, Gso};
use ringway_switch::PortId;

/// What one port may take in each round, in the units of [`cost`]: about a batch of short frames,
/// or four of 64 KiB, so that a round stays in a core's cache.
pub(crate) const QUANTUM: i64 = 256 << 10;
/// What handling a frame costs besides copying it, in bytes copied.
const FRAME_COST: usize = 4096;
/// The same where it is read from a device or written to one, with a call for each and what the
/// kernel does in it: some 3 us.
const CALL_COST: usize = 16 << 10;
/// What cutting off one segment costs, by us or by a later station, in bytes copied.
const SEGMENT_COST: usize = 256;
/// What a port may take in in a round while it has the engine to itself: a batch of the longest
/// frames there are, over all its queues together. A port that has work meanwhile waits for no more
/// than that, and a network device that gets all of it has room.
const ALONE: i64 = 4 << 20;

/// What becomes of a port's frames, as far as it makes them costly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// They pass through memory.
    Memory,
    /// They go from a queue straight to a device, or from there to a queue.
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

/// What a frame costs, in bytes copied.
pub(crate) fn cost(frame: &Frame, handling: Handling) -> usize {
    let segments = match frame.offload.gso {
        None => 0,
        Some(Gso { size, .. }) => frame.len() / usize::from(size.max(1)),
    };
    frame.work() + handling.frame_cost() + segments * SEGMENT_COST
}

/// The same for frames that are gone.
pub(crate) fn cost_of(frames: usize, bytes: usize) -> u64 {
    u64::try_from(bytes + frames * FRAME_COST).unwrap_or(u64::MAX)
}

/// What a port is worth beside others: a port of weight 2 may take in twice as much as one of 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight(u16);

impl Weight {
    /// A vif's, unless its description says otherwise.
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
    /// A guest, or the device of one: what it sends waits for queues that are full.
    One(Weight),
    /// The device of a guest on a bridge of the host's. What comes from there is for that guest,
    /// and may be from all other guests, who were charged for it when they sent it.
    Bridge(Weight),
    /// Many, as behind an uplink. It never waits: one slow guest would hold up what is for others.
    Many,
}

impl Stations {
    /// What a port may take in in a round, beside others of which the heaviest has this weight.
    /// Frames from a bridge may be as many as all `senders` may send: with less room they would be
    /// lost there, those of honest guests too.
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

    /// The same of another weight, if it has one.
    pub(crate) fn with_weight(self, weight: Weight) -> Stations {
        match self {
            Stations::One(_) => Stations::One(weight),
            Stations::Bridge(_) => Stations::Bridge(weight),
            Stations::Many => Stations::Many,
        }
    }
}

/// Quanta of a port that stands for many stations, such as an uplink; the most of one that does
/// where many send.
const MANY: i64 = 16;

/// The shares of all ports with queues in an engine.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    shares: Vec<Share>,
    round: u64,
    /// Ports that had work, in this round and in the one before.
    busy: usize,
    busy_before: usize,
    /// Those among them by which a guest sends.
    senders: usize,
    senders_before: usize,
    /// The heaviest of them.
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
    /// What it may take in in this round; below 0 it has taken more than its share.
    left: i64,
    /// The last rounds in which it had a turn, and counted as busy.
    turn_in: u64,
    busy_in: u64,
}

impl Shares {
    /// A queue of a port was attached: the index of the port's share.
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
    pub(crate) fn weigh(&mut self, index: usize, weight: Weight) {
        let share = &mut self.shares[index];
        share.stations = share.stations.with_weight(weight);
    }

    /// A queue of the port left.
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

    /// What a queue of the port may take in at its turn; `None` if the port has had its share of
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
                // It may well have more.
                self.count_busy(index);
                None
            }
        }
    }

    /// Charges frames that a port took in, and that go on.
    pub(crate) fn charge_frames<'a>(
        &mut self,
        index: usize,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) {
        let handling = self.shares[index].handling;
        self.charge(index, frames.into_iter().map(|frame| cost(frame, handling)).sum());
    }

    /// Takes the charge for frames back that do not go on in this round.
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
        self.count_busy(index);
    }

    /// The port has work in this round, if only frames that wait for a queue which is full.
    pub(crate) fn count_busy(&mut self, index: usize) {
        let share = &mut self.shares[index];
        if share.busy_in != self.round {
            share.busy_in = self.round;
            self.busy += 1;
            if let Stations::One(_) = share.stations {
                self.senders += 1;
            }
            if let Some(weight) = share.stations.weight() {
                self.heaviest = self.heaviest.max(weight.0);
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Costs that ports take in within many rounds, if each has so many queues whose frames cost
    /// so much and never end.
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
            // The honest port's batches are of 15 short frames, so it takes all that it has.
            assert!(taken[0] >= 990 * 15 * 4156, "{queues} queues, {cost}: {taken:?}");
            // The first rounds do not know yet that there are two.
            let most = 1001 * 256 * 1024 + 2 * 8 * 15 * cost;
            assert!(taken[1] <= most, "{queues} queues, {cost}: {taken:?}");
        }
    }

    #[test]
    fn what_comes_from_a_bridge_has_room_for_what_all_guests_sent_there() {
        let bridge = Stations::Bridge(Weight::ONE);
        // Two ports send to the guest behind it, one of them short frames.
        let ports = [(ONE, 1, 70_000), (ONE, 8, 60 + FRAME_COST), (bridge, 4, 70_000)];
        let taken = simulate(&ports);
        assert!(taken[2] + 1_000_000 > taken[0] + taken[1], "{taken:?}");
        // One that only hosts outside send to gets no more than a guest.
        let taken = simulate(&[(ONE, 1, 70_000), (bridge, 4, 70_000)]);
        assert!(taken[1] < taken[0] / 20 * 21, "{taken:?}");
    }

    #[test]
    fn ports_share_by_their_weights() {
        let double = Stations::One(Weight::new(2).expect("a weight"));
        let taken = simulate(&[(ONE, 4, 70_000), (double, 4, 70_000), (ONE, 8, 70_000)]);
        let share = |port: usize| taken[port] * 100 / taken.iter().sum::<usize>();
        assert!((24..=26).contains(&share(0)), "{taken:?}");
        assert!((49..=51).contains(&share(1)), "{taken:?}");
        assert!((24..=26).contains(&share(2)), "{taken:?}");
    }

    #[test]
    fn a_heavy_port_gets_its_share_also_where_a_batch_is_less_than_that() {
        let heavy = Stations::One(Weight::new(1000).expect("a weight"));
        for (count, cost) in [(1, 70_000), (1, 60 + FRAME_COST), (8, 70_000)] {
            let taken = simulate(&[(heavy, 1, cost), (ONE, count, cost)]);
            // Except in the first rounds, which do not know yet.
            assert!(taken[1] <= taken[0] / 500 + 2 * 8 * 15 * cost, "{cost}: {taken:?}");
            assert!(taken[1] > 0);
        }
    }

    #[test]
    fn a_port_that_has_the_engine_to_itself_has_long_rounds() {
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
    fn a_frame_that_takes_a_call_counts_as_more() {
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
    fn cutting_a_frame_costs_by_its_segments() {
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
