//! Checks on memory and frames after each action of an engine: every buffer of the budget is
//! accounted for, no backlog exceeds its limit, and all frames of a flow that have entered the
//! engines have left them, are in them, or were dropped and counted.

use ringway_datapath::Frame;
use ringway_engine::SlotId;
use ringway_engine::gauge::{Backlog, LIMIT};
use ringway_switch::PortId;

use crate::flaw::{Checked, Rule, ensure};
use crate::plane::DataPlane;
use crate::worker::{Waiting, Worker};
use crate::workers::Workers;

/// A backlog that is not full yet takes one more frame, which may become up to this many segments.
const SEGMENTS_MAX: Backlog = Backlog { frames: 200, bytes: 96 << 10 };

/// Sums over all engines.
#[derive(Default)]
struct Sums {
    bytes: usize,
    /// The backlog that is being added up, and the longest so far.
    place: Option<SlotId>,
    backlog: Backlog,
    longest: Backlog,
    /// Frames that refer to pages of a guest.
    lent: usize,
}

impl Sums {
    fn add(&mut self, place: Option<SlotId>, frame: &Frame) {
        self.bytes += frame.memory();
        self.lent += usize::from(frame.is_lent());
        if self.place != place {
            (self.place, self.backlog) = (place, Backlog::default());
        }
        if place.is_some() {
            self.backlog.frames += 1;
            self.backlog.bytes += frame.len();
            self.longest.frames = self.longest.frames.max(self.backlog.frames);
            self.longest.bytes = self.longest.bytes.max(self.backlog.bytes);
        }
    }
}

impl DataPlane {
    /// Counts all engines and checks the results.
    pub(crate) fn take_census(&mut self) -> Checked {
        self.is_census_due = false;
        let Some(workers) = &self.workers else { return Ok(()) };
        let mut sums = Sums::default();
        self.ledger.forget_held();
        for (number, worker) in workers.workers.iter().enumerate() {
            sums.bytes += worker.bytes_kept();
            worker.visit_frames(&mut |waiting, frame| {
                let owner_of = |slot, port: Option<PortId>| match port {
                    Some(port) => workers.owner(port),
                    None => workers.owner_at(number, slot),
                };
                let (from, to, place) = match waiting {
                    Waiting::Kept { from } => (workers.owner(from), None, None),
                    Waiting::Parked { to } => (None, workers.owner(to), None),
                    Waiting::Backlog { slot, to } => (None, owner_of(slot, to), Some(slot)),
                    Waiting::Parcel { slot, to } => (None, owner_of(slot, to), None),
                };
                sums.add(place, frame);
                self.ledger.hold(from, to, frame);
            });
        }
        let (left, all) = (workers.budget.bytes_left(), workers.budget_bytes);
        ensure(left + sums.bytes == all, Rule::Budget, || {
            format!("of {all} bytes {left} are left and {} are in use", sums.bytes)
        })?;
        ensure(sums.lent == 0, Rule::LentPages, || {
            format!("{} frames refer to pages of guests after a round", sums.lent)
        })?;
        let Backlog { frames, bytes } = sums.longest;
        let is_bounded = frames <= LIMIT.frames + SEGMENTS_MAX.frames
            && bytes <= LIMIT.bytes + SEGMENTS_MAX.bytes;
        ensure(is_bounded, Rule::Backlog, || {
            format!("a backlog of {frames} frames, one of {bytes} bytes")
        })?;
        self.check_flows(workers)
    }

    /// Everything that has entered the engines is still there, has left them, or was dropped.
    fn check_flows(&self, workers: &Workers) -> Checked {
        let mut lost = 0;
        for flow in self.flows.iter().filter(|flow| self.is_steady(flow)) {
            let number = flow.number;
            let Some(entry) = self.ledger.entry(number) else { continue };
            let gone = entry.entered.checked_sub(entry.left + entry.held);
            ensure(gone.is_some(), Rule::Conservation, || {
                format!("flow {number} has become more in the engines: {entry:?}")
            })?;
            lost += gone.unwrap_or(0).div_ceil(flow.units_per_frame_max());
        }
        let to_count: u64 = workers.workers.iter().map(Worker::drops_to_count).sum();
        let dropped = workers.dropped().saturating_sub(self.dropped_before) + to_count;
        ensure(lost <= dropped, Rule::Conservation, || {
            format!("{lost} frames are in no engine and have not left; {dropped} drops are counted")
        })
    }
}
