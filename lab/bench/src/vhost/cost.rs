//! Who sets the pace when a guest transmits: the time that the device spends on a frame, and the
//! share of its time in which it finds none.
//!
//! A device that finds nothing for a part of its time waits for its client, so a faster device
//! would not raise the rate. Rounds are timed here, which lowers rates, so these are not shown.

use anyhow::{Context, Result};

use super::run_with;
use crate::options::Options;
use crate::report::{Better, Case, Report};
use crate::ring::testpmd::{self, Cost};
use crate::ring::{Direction, RingCase};

pub(super) const SECTION: &str = "vhost-cost";

/// One round: every case in which the guest transmits, both devices.
pub(super) fn round(options: &Options, cpus: [usize; 2], report: &mut Report) {
    for case in RingCase::all().filter(|case| case.direction == Direction::GuestToHost) {
        let cases = cases(case);
        if !options.wants(&cases[0].name) {
            continue;
        }
        let values = |cost: Cost| vec![cost.frame_ns, cost.idle * 100.0];
        report.measure_all(&cases, "ringway", || ours(case, cpus, options).map(values));
        report.measure_all(&cases, "testpmd", || testpmd::cost(case, cpus, options).map(values));
    }
}

fn cases(case: RingCase) -> [Case; 2] {
    let name = case.case(SECTION).name;
    let line = |what: &str, unit, better| {
        let name = format!("{what}, {name}");
        Case::new(SECTION, name, unit, better)
    };
    [
        line("time of the device for a frame", "ns", Better::Less),
        line("time in which the device finds nothing", "%", Better::More),
    ]
}

fn ours(case: RingCase, cpus: [usize; 2], options: &Options) -> Result<Cost> {
    let tally = run_with(case, cpus, options, true)?.tally.context("the device receives")?;
    Ok(Cost::new(tally.frames, tally.busy_seconds, tally.seconds))
}
