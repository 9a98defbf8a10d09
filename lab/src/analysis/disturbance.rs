//! What else the machine did during the runs: CPU time that the hypervisor below stole, CPU time of
//! other processes, and the frequency of its CPUs.

use std::collections::BTreeMap;

use ringway_stats::mean;
use serde::Serialize;

use crate::record::{Disturbance, Records, Run};

/// A run with more than this share of the machine stolen by the hypervisor counts as disturbed.
pub const STEAL_SHARE_MAX: f64 = 0.02;
/// A run counts as disturbed if other processes used more than this share of the machine.
pub const FOREIGN_SHARE_MAX: f64 = 0.10;

/// What disturbed the runs of a study.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Disturbances {
    /// The share of all CPUs that the hypervisor below stole, from 0 to 1.
    pub steal_share: Option<Spread>,
    /// The share that processes outside the measurement used.
    pub foreign_share: Option<Spread>,
    /// The mean frequency of the CPUs, in MHz.
    pub cpu_mhz: Option<Spread>,
    /// Runs with a steal share above [`STEAL_SHARE_MAX`] or a foreign share above
    /// [`FOREIGN_SHARE_MAX`].
    pub disturbed_runs: usize,
    /// Other notes, each with its number of runs.
    pub notes: BTreeMap<String, usize>,
}

/// A figure over all runs that have it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Its least value.
    pub least: f64,
    /// Its mean.
    pub mean: f64,
    /// Its greatest value.
    pub most: f64,
}

impl Disturbances {
    /// The disturbances of all runs.
    pub fn of(records: &Records) -> Disturbances {
        let runs = &records.runs;
        let mut notes = BTreeMap::new();
        for note in runs.iter().flat_map(|run| &run.notes) {
            *notes.entry(note.clone()).or_default() += 1;
        }
        Disturbances {
            steal_share: spread(runs, |one| one.steal_share),
            foreign_share: spread(runs, |one| one.foreign_share),
            cpu_mhz: spread(runs, |one| one.cpu_mhz),
            disturbed_runs: runs.iter().filter(|run| is_disturbed_run(run)).count(),
            notes,
        }
    }
}

/// Whether one of the machines of a run was disturbed.
fn is_disturbed_run(run: &Run) -> bool {
    let peer = run.ends.as_ref().map(|ends| &ends.far.disturbance);
    std::iter::once(&run.disturbance).chain(peer).any(is_disturbed)
}

/// Whether others used too much of the machine for a sound measurement.
fn is_disturbed(one: &Disturbance) -> bool {
    one.steal_share.is_some_and(|share| share > STEAL_SHARE_MAX)
        || one.foreign_share.is_some_and(|share| share > FOREIGN_SHARE_MAX)
}

fn spread(runs: &[Run], of: fn(&Disturbance) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = runs.iter().filter_map(|run| of(&run.disturbance)).collect();
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some(Spread { least, mean: mean(&values), most })
}
