//! The process that gives vifs their ports of Open vSwitch: the real steps, with a simulated
//! database. It ends with the backend, and may be killed between any two steps by itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Instant;

use ringway_host::{Event, PortOrder, Shared};
use ringway_ovs::{Ids, OpenVswitch, Table};

use crate::canary::Canary;
use crate::choices::Choices;
use crate::marks::{Mark, Marks};
use crate::ovs::Database;
use crate::process::OWNER;

/// More runs of `ovs-vsctl` than any order takes.
const RUNS_MAX: usize = 5;

/// An Open vSwitch, and the process that asks it.
#[derive(Default)]
pub(crate) struct Plugger {
    pub(crate) database: RefCell<Database>,
    stage: Stage,
    /// Whether it has reported which vifs have had ports before.
    is_reported: bool,
    /// The runs of `ovs-vsctl` after which it is killed, if it is to be.
    dies_after: Option<usize>,
    /// The version of the database with which an order failed last.
    failed_at: Option<u64>,
    /// The vifs that have had ports since the backend's process began.
    joined: BTreeSet<String>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Begins,
    Waits,
    Has(Box<PortOrder>),
}

impl Plugger {
    /// Takes an order, or carries out the one that it has. Returns what it reports, if it has done
    /// anything.
    pub(crate) fn turn<S>(
        &mut self,
        (shared, now): (&mut Shared, Instant),
        canary: Option<Canary>,
        marks: &mut Marks,
    ) -> Option<Vec<Event<S>>> {
        match std::mem::replace(&mut self.stage, Stage::Waits) {
            Stage::Begins => {
                let is_said = canary != Some(Canary::UnsaidBegin);
                let begun = is_said.then_some(Event::PluggerBegun);
                Some(begun.into_iter().chain(self.found()).collect())
            }
            Stage::Waits => {
                if let Some(bridge) = shared.datapaths.next_question() {
                    let left = Cell::new(RUNS_MAX);
                    let version = || Some("3.5.0".to_owned());
                    let found = self.switch(&left).datapath(&bridge, version);
                    return Some(vec![Event::DatapathFound(found)]);
                }
                let order = shared.ovs.next_order(now)?;
                if order.wanted.is_some() {
                    self.joined.insert(order.vif.path());
                }
                self.stage = Stage::Has(Box::new(order));
                Some(Vec::new())
            }
            Stage::Has(order) => {
                if let Some(runs) = self.dies_after.take() {
                    marks.hit(Mark::PluggerKilled);
                    self.die_with(&order, runs);
                    return Some(Vec::new());
                }
                let outcome = self.carry_out(&order, RUNS_MAX, canary);
                match (&outcome, &order.wanted) {
                    (Err(_), _) => {
                        marks.hit(Mark::PortRefused);
                        self.failed_at = Some(self.database.borrow().version());
                    }
                    (Ok(_), Some(_)) => marks.hit(Mark::PortAdded),
                    (Ok(_), None) => marks.hit(Mark::PortRemoved),
                }
                let found = if outcome.is_ok() { self.found() } else { None };
                Some(found.into_iter().chain([Event::PortDone(outcome)]).collect())
            }
        }
    }

    /// Has it killed while it carries out its next order.
    pub(crate) fn kill_soon(&mut self, choices: &mut Choices) {
        self.dies_after = Some(choices.below(RUNS_MAX));
    }

    /// The backend's process was killed, and it ends with that, perhaps during an order.
    pub(crate) fn begin_again(&mut self, choices: &mut Choices) {
        self.joined.clear();
        if let Stage::Has(order) = std::mem::take(&mut self.stage) {
            self.die_with(&order, choices.below(RUNS_MAX));
        }
        self.is_reported = false;
    }

    /// Whether an order that failed may be carried out by now.
    pub(crate) fn may_retry(&self) -> bool {
        self.failed_at != Some(self.database.borrow().version())
    }

    /// Whether a vif has had a port since the backend's process began.
    pub(crate) fn has_joined(&self, vif: &str) -> bool {
        self.joined.contains(vif)
    }

    fn die_with(&mut self, order: &PortOrder, runs: usize) {
        // Its outcome is not reported.
        let _ = self.carry_out(order, runs, None);
        (self.stage, self.is_reported) = (Stage::Begins, false);
    }

    fn found<S>(&mut self) -> Option<Event<S>> {
        if self.is_reported {
            return None;
        }
        let vifs = self.switch(&Cell::new(RUNS_MAX)).vifs().ok()?;
        self.is_reported = true;
        Some(Event::PortsFound(vifs))
    }

    /// Carries out an order with at most so many runs of `ovs-vsctl`.
    fn carry_out(
        &self,
        order: &PortOrder,
        runs: usize,
        canary: Option<Canary>,
    ) -> Result<Ids, String> {
        let left = Cell::new(runs);
        let switch = self.switch(&left);
        let vif = order.vif.path();
        match &order.wanted {
            Some(wanted) => switch.join(&vif, wanted, &Table::EMPTY),
            None if canary == Some(Canary::KeptPort) => Ok(Ids::default()),
            None => switch.leave(&vif).map(|()| Ids::default()),
        }
    }

    fn switch<'a>(
        &'a self,
        left: &'a Cell<usize>,
    ) -> OpenVswitch<impl Fn(&[String]) -> Result<String, String> + use<'a>> {
        let run = move |words: &[String]| match left.get().checked_sub(1) {
            Some(less) => {
                left.set(less);
                self.database.borrow_mut().run(words)
            }
            None => Err("it is dead".to_owned()),
        };
        OpenVswitch { owner: OWNER.to_owned(), run }
    }
}
