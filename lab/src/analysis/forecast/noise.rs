//! By how much the runs of a cell differ, without what the model explains.

use std::collections::BTreeMap;

use ringway_stats::half_within;

use super::METRIC;
use crate::analysis::{CellSummary, split};
use crate::record::Records;

/// Half of the interval of a cell's throughput in bit/s. Where all queues are known, it is that of
/// runs with equally many busy ones: the model knows that number of each run.
pub(super) fn half_width_bps(records: &Records, cell: &CellSummary) -> f64 {
    let interval = cell.values.get(METRIC).and_then(|summary| summary.interval);
    let whole = interval.map_or(0.0, |it| (it.high - it.low) / 2.0);
    let mut groups: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for run in records.of_cell(cell.subject, &cell.cell) {
        let busy = split(run).map(|parts| parts.len());
        let (Some(busy), Some(bps)) = (busy, run.values.get(METRIC)) else { return whole };
        groups.entry(busy).or_default().push(*bps);
    }
    let groups: Vec<Vec<f64>> = groups.into_values().collect();
    half_within(&groups).map_or(whole, |half| half.min(whole))
}
