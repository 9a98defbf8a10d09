//! Which queue moves to another worker, and when.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringway_datapath::{PortQueue, Wakers};
use ringway_engine::{Hopped, Placed, steps};
use ringway_switch::PortId;

use super::Workers;
use crate::placement::{self, Busy, Move, Placement, Policy, Talk};

/// Percentage of its time that a worker must be busy before a queue is taken from it.
const SATURATED_PERCENT: u32 = 80;
/// How long a queue stays in place after a move that balanced load, unless its worker is saturated:
/// a move costs little, but no pattern of traffic may cause one at every comparison.
const REST: Duration = Duration::from_secs(10);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(640); // not a limit: a pause of our own

/// The rest of a queue that moves now: twice the former one if that has ended only recently. A ring
/// of ports, each of which sends to the next and gets nothing back, would otherwise move for ever.
fn rest(placed: &Placed) -> Duration {
    match placed.balanced_at {
        Some(then) if then.elapsed() < 2 * placed.rest => REST_MAX.min(2 * placed.rest),
        _ => REST,
    }
}

impl<Q: PortQueue + Wakers + Send + 'static> Workers<Q> {
    /// Moves all queues of two ports that are patched to each other to one worker if one of the
    /// ports has a single queue: otherwise the frames of every other queue would change workers. If
    /// that worker becomes saturated, [`rebalance`](Workers::rebalance) separates them again.
    pub(super) fn colocate(&mut self, port: PortId) {
        if self.config.policy != Policy::Balanced {
            return;
        }
        let Some(first) = self.roster.queue(port, 0) else { return };
        let Some(other) = first.patched_to.and_then(|to| self.roster.partner(port, 0, to)) else {
            return;
        };
        let (lone, many) = match (self.roster.count(port), self.roster.count(other.port)) {
            (1, 2..) => (first, other.port),
            (2.., 1) => (other, port),
            _ => return,
        };
        let worker = lone.address.engine;
        for queue in (0..).take(self.roster.count(many)) {
            self.place(many, queue, worker);
        }
    }

    /// Balances the load since the last call, by at most one move. A no-op unless the policy is
    /// [`Policy::Balanced`].
    ///
    /// A saturated worker hands a queue over. Otherwise the only move that helps is one after which
    /// frames no longer change workers.
    pub fn rebalance(&mut self) -> Option<Placement> {
        let placements = self.placements();
        let talks = self.talks();
        self.roster.queues_mut().for_each(Placed::begin_comparison);
        let busy = self.take_busy();
        if self.config.policy != Policy::Balanced {
            return None;
        }
        let step = match busy.is_any_above(SATURATED_PERCENT) {
            true => placement::rebalance(&self.units(&placements), self.threads.len())?,
            false => placement::gather(&talks, &placements, &busy)?,
        };
        self.take_step(step);
        placements
            .into_iter()
            .find(|placed| placed.port == step.port && placed.queue == step.queue)
            .map(|placed| Placement { worker: step.to, ..placed })
    }

    /// Has flows of balanced ports leave queues that cannot keep up.
    pub fn balance_flows(&mut self) {
        let Ok(()) = steps::balance_flows(self);
    }

    /// Moves a queue, together with the one that it is patched to.
    fn take_step(&mut self, step: Move) {
        let mut to_move = vec![step.port];
        let partner = self.roster.partner_of(step.port, step.queue);
        to_move.extend(partner.map(|partner| partner.port));
        let now = Instant::now();
        for placed in self.roster.queues_mut() {
            if placed.queue == step.queue && to_move.contains(&placed.port) {
                placed.rest = rest(placed);
                placed.balanced_at = Some(now);
            }
        }
        for port in to_move {
            let Ok(_) = steps::move_queue(self, port, step.queue, step.to);
        }
    }

    /// How busy each worker has been since the last call.
    fn take_busy(&mut self) -> Busy {
        let elapsed = std::mem::replace(&mut self.balanced_at, Instant::now()).elapsed();
        let since_before = |thread: &mut super::Thread<Q>| {
            let busy = thread.public.busy_ns.load(Ordering::Relaxed);
            let before = std::mem::replace(&mut thread.busy_before, busy);
            Duration::from_nanos(busy.wrapping_sub(before))
        };
        Busy { elapsed, of: self.threads.iter_mut().map(since_before).collect() }
    }

    /// The only queues of ports that send to the only queues of other ports, on other workers.
    fn talks(&self) -> Vec<Talk> {
        let may_move = |placed: &&Placed| {
            placed.patched_to.is_none()
                && placed.balanced_at.is_none_or(|then| then.elapsed() >= placed.rest)
        };
        let talk = |placed: &Placed| {
            let work = placed.work();
            let Hopped { engine: towards, frames: hops } = work.hopped?;
            let (port, worker) = (placed.port, placed.address.engine);
            Some(Talk { port, worker, load: work.load, sent: work.taken, hops, towards })
        };
        self.roster.queues().iter().filter(may_move).filter_map(talk).collect()
    }

    /// The units of a move: two queues of the same number, of ports that are patched to each other,
    /// count as the first of them.
    fn units(&self, placements: &[Placement]) -> Vec<Placement> {
        let mut units: Vec<Placement> = Vec::new();
        for placement in placements {
            let partner = self.roster.partner_of(placement.port, placement.queue);
            let partner = partner.filter(|partner| partner.address.engine == placement.worker);
            let is_partner = |unit: &&mut Placement| {
                partner.is_some_and(|p| (p.port, p.queue) == (unit.port, unit.queue))
            };
            match units.iter_mut().find(is_partner) {
                Some(unit) => unit.load += placement.load,
                None => units.push(*placement),
            }
        }
        units
    }
}
