//! Round trips under load, from the stations that the throughput of the load identifies.
//!
//! A message waits twice, once in each direction, behind what the streams of the load keep in
//! flight on its queue. How much that is, no throughput shows, so it is taken from the cell with
//! the least load on one queue, unless the study sets the window.

use ringway_model::estimate::Estimate;
use ringway_model::fit::{Data, Fit, Point};
use ringway_model::line::Line;
use ringway_model::placement::Split;
use ringway_model::predict::{Window, ways};

use super::{CALIBRATION_QUEUES_MAX, Forecast, placed, rest, tunnel};
use crate::analysis::CellSummary;
use crate::record::Records;
use crate::setup::Setup;
use crate::value::Cell;

/// The metric that is predicted.
pub const METRIC: &str = "rtt-median-us";
/// Throughput of the load, both directions together.
const LOAD: &str = "load-bps";

/// The round trip of each cell, if one without load and others with one or two queues calibrate
/// the model.
pub(super) fn of_cells(records: &Records, cells: &[CellSummary]) -> Vec<Option<Forecast>> {
    let measured: Vec<Option<Measured>> =
        cells.iter().map(|cell| Measured::of(records, cell)).collect();
    let mut machines: Vec<(&Cell, Option<Machine>)> = Vec::new();
    for one in measured.iter().flatten() {
        if !machines.iter().any(|(of, _)| **of == one.rest) {
            let own = measured.iter().flatten().filter(|it| it.rest == one.rest);
            machines.push((&one.rest, Machine::of(&own.collect::<Vec<_>>())));
        }
    }
    let forecast = |one: &Measured| {
        let (_, machine) = machines.iter().find(|(of, _)| **of == one.rest)?;
        Some(machine.as_ref()?.forecast(one))
    };
    measured.iter().map(|one| forecast(one.as_ref()?)).collect()
}

/// A measured cell.
struct Measured {
    label: String,
    /// What it shares with the cells that calibrate the model for it.
    rest: Cell,
    setup: Setup,
    /// Streams of the load in both directions. A worker serves both directions of its queues.
    flows: usize,
    /// What these carry, in bit/s.
    bps: f64,
    /// In seconds.
    round_trip: f64,
}

impl Measured {
    fn of(records: &Records, cell: &CellSummary) -> Option<Measured> {
        let setup = Setup::of(&records.study, &cell.cell).ok()?;
        let is_primary = !cell.subject.is_baseline() && setup.guests == 1 && setup.lines == 1;
        // Without this axis there is no cell with the load and one without.
        records.study.axis("load").filter(|_| is_primary)?;
        Some(Measured {
            label: cell.label.clone(),
            rest: rest(&cell.cell).retained(|name| name != "load"),
            flows: 2 * setup.load,
            bps: cell.values.get(LOAD).map_or(0.0, |it| it.mean),
            round_trip: cell.values.get(METRIC)?.mean / 1e6,
            setup,
        })
    }

    fn queues(&self) -> usize {
        usize::from(self.setup.queues)
    }

    fn splits(&self) -> Vec<Split> {
        ways(self.queues(), self.flows, placed(self.setup.placement))
    }

    fn point(&self) -> Point {
        Point {
            name: self.label.clone(),
            queues: self.queues(),
            flows: self.flows,
            splits: self.splits(),
            bps: self.bps,
            half_width_bps: 0.0,
            cpus_used: [].into(),
            cpus_error: [].into(),
        }
    }
}

/// What the cells say of a machine.
struct Machine {
    fit: Fit,
    /// The round trip without load in seconds.
    idle: f64,
    /// The cells on which it was calibrated, by name.
    calibration: Vec<String>,
}

impl Machine {
    fn of(cells: &[&Measured]) -> Option<Machine> {
        let fewest = |it: &&&Measured| (it.queues(), it.flows);
        let idle = cells.iter().filter(|it| it.flows == 0).min_by_key(fewest)?;
        let loaded = || cells.iter().filter(|it| it.flows > 0 && it.bps > 0.0);
        let first = loaded().min_by_key(fewest)?;
        let mut calibration = vec![idle.label.clone()];
        let usual = Window::default();
        let bytes = match first.setup.window {
            Some(bytes) => ringway_stats::float(bytes),
            None => {
                calibration.push(first.label.clone());
                let waiting = (first.round_trip - idle.round_trip).max(0.0) / 2.0;
                let bits = first.bps * (waiting + usual.delay);
                bits / 8.0 / ringway_stats::float(first.flows)
            }
        };
        let window = Window { bytes, chunk: usual.chunk.min(bytes), ..usual };
        let few = loaded().filter(|it| it.queues() <= CALIBRATION_QUEUES_MAX);
        // Two loads on one queue would show the delay of a flow by the little that one of them is
        // less, which is noise: it is known, because the window was found with it.
        let most = loaded().filter(|it| it.queues() == 1).map(|it| it.flows).max();
        let few = few.filter(|it| it.queues() > 1 || Some(it.flows) == most);
        let points = few.map(|it| it.point()).collect();
        let line_bps = first.setup.line_bps.map(|bps| {
            let mtu = f64::from(first.setup.mtu);
            let line = Line::plain(ringway_stats::float(bps), mtu);
            // Each direction has one of its own.
            2.0 * Line { tunnel: tunnel(first.setup.encapsulation), ..line }.payload_bps()
        });
        let data = Data { points, line_bps, window, is_delay_known: true, ..Data::default() };
        let fit = Fit::of(&data).ok()?;
        Some(Machine { fit, idle: idle.round_trip, calibration })
    }

    fn forecast(&self, cell: &Measured) -> Forecast {
        let splits = cell.splits();
        let waiting = self.fit.possible().map(|it| it.waiting(cell.queues(), &splits));
        let estimate = Estimate::over(waiting.map(|it| (self.idle + 2.0 * it) * 1e6));
        Forecast {
            metric: METRIC,
            estimate,
            is_calibration: self.calibration.contains(&cell.label),
            error: estimate.value.map(|value| value / 1e6 / cell.round_trip - 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::shipped;

    #[test]
    fn noise_of_the_load_moves_no_round_trip() {
        let study = shipped("latency-under-load").expect("it is shipped");
        let cell = |queues: u64, load: u64, bps: f64, round_trip: f64| {
            let cell = Cell::default().with("queues", queues).with("load", load);
            let setup = Setup::of(&study, &cell).expect("it means something");
            let (label, flows) = (format!("q{queues}.l{load}"), 2 * setup.load);
            Measured { label, rest: Cell::default(), setup, flows, bps, round_trip }
        };
        // Each flow keeps 400 kB on a queue of 3 Gbit/s. By chance, two carry 2 % less than eight.
        let all = [
            cell(1, 0, 0.0, 42e-6),
            cell(1, 1, 2.94e9, 4_309e-6),
            cell(1, 4, 3.0e9, 17_109e-6),
            cell(2, 4, 5.98e9, 8_575e-6),
        ];
        let machine = Machine::of(&all.iter().collect::<Vec<_>>()).expect("they calibrate it");
        for one in &all[1..] {
            let forecast = machine.forecast(one);
            let error = forecast.error.expect("two queues identify it");
            assert!(error.abs() < 0.05, "{}: {forecast:?}", one.label);
        }
    }
}
