//! What the model says of records: its data from cells or from a table in TOML, and a prediction
//! for each cell of a study that was not used.

mod noise;
pub mod round_trip;

use std::collections::BTreeMap;
use std::fmt;

use ringway_model::estimate::Estimate;
use ringway_model::fit::{Data, Fit, LINE, Point};
use ringway_model::line::{Line, Tunnel};
use ringway_model::placement::Split;
use ringway_model::predict::{Placed, Window, ways};
use ringway_stats::Summary;
use ringway_units::{Duration, Rate, Size};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::analysis::{Analysis, CellSummary, split};
use crate::metric::number;
use crate::record::Records;
use crate::setup::Setup;
use crate::value::Cell;
use crate::word::{Encapsulation, Placement, Word, name_of, names};

/// The metric that the model predicts.
pub const METRIC: &str = "throughput-bps";
/// The parameters that a point has; all others must be equal in all points of a fit.
const AXES: [&str; 4] = ["queues", "streams", "targets", "placement"];
/// Queues up to which a study's own cells calibrate its predictions.
const CALIBRATION_QUEUES_MAX: usize = 2;
/// The station for all CPUs of one machine.
const ALL_CPUS: &str = "all CPUs";
/// CPU time that is no work of the path, or that is part of another station's.
const NOT_COUNTED: [&str; 3] = ["steal", "steal of the peer", "guest softirq"];

/// Why there are no data.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// The cells differ in more than the model knows.
    #[error("the records vary `{axis}`: select one value, such as --where {axis}={value}")]
    Varied {
        /// The parameter.
        axis: String,
        /// One of its values.
        value: String,
    },
    /// A selected parameter is not one that the study varies.
    #[error("`{axis}` is no axis of the study: it has {}", .known.join(", "))]
    NoAxis {
        /// The parameter.
        axis: String,
        /// Those that vary.
        known: Vec<String>,
    },
    /// No cell has throughput.
    #[error(
        "no cell of the records has throughput and the selected values: measure one with 1 queue \
         and the most streams"
    )]
    Empty,
    /// A table of figures is wrong.
    #[error("{name}: {error}")]
    Table {
        /// The file.
        name: String,
        /// The fault with its field and line.
        error: Box<toml::de::Error>,
    },
}

/// Published or measured figures.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Table {
    line: Option<Rate>,
    mtu: Option<Size>,
    #[serde(default, deserialize_with = "word")]
    tunnel: Option<Encapsulation>,
    /// One wire carries both sides of a router.
    #[serde(default)]
    both_sides: bool,
    window: Option<Size>,
    chunk: Option<Size>,
    delay: Option<Duration>,
    #[serde(default)]
    cpus: BTreeMap<String, f64>,
    #[serde(default)]
    point: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Row {
    queues: usize,
    flows: usize,
    throughput: Rate,
    /// Half of its 95 % interval.
    interval: Option<Rate>,
    #[serde(default, deserialize_with = "word")]
    placement: Option<Placement>,
    #[serde(default)]
    cpus_used: BTreeMap<String, f64>,
}

fn word<'de, W: Word, D: Deserializer<'de>>(deserializer: D) -> Result<Option<W>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fault = || format!("`{text}`: expected one of {}", names::<W>().join(", "));
    W::find(&text).map(Some).ok_or_else(|| D::Error::custom(fault()))
}

/// Data from a table in TOML; `name` is for messages.
///
/// # Errors
/// It is not TOML, or not such a table; the message names the field.
pub fn of_table(name: &str, text: &str) -> Result<Data, ForecastError> {
    let fault = |error| ForecastError::Table { name: name.to_owned(), error: Box::new(error) };
    let table: Table = toml::from_str(text).map_err(fault)?;
    let wrong = |text: String| fault(toml::de::Error::custom(text));
    check(&table).map_err(wrong)?;
    let of = |size: Option<Size>, default: f64| size.map_or(default, |Size(bytes)| bytes);
    let usual = Window::default();
    let window = Window {
        bytes: of(table.window, usual.bytes),
        chunk: of(table.chunk, usual.chunk),
        delay: table.delay.map_or(usual.delay, |Duration(seconds)| seconds),
    };
    let tunnel = tunnel(table.tunnel.unwrap_or(Encapsulation::None));
    let acks = if table.both_sides { ACKS } else { 0.0 };
    let mtu = of(table.mtu, f64::from(crate::setup::MTU_DEFAULT));
    let line = table.line.map(|Rate(bps)| Line { bps, mtu, tunnel, acks });
    let line_bps = line.map(payload).transpose();
    let line_bps = line_bps.map_err(|why| wrong(format!("`mtu`: {why}")))?;
    let point = |row: Row| {
        let placement = row.placement.unwrap_or(Placement::Random);
        let evenly = if placement == Placement::Ideal { " ideal" } else { "" };
        Point {
            name: format!("q{}.s{}{evenly}", row.queues, row.flows),
            queues: row.queues,
            flows: row.flows,
            splits: ways(row.queues, row.flows, placed(placement)),
            bps: row.throughput.0,
            half_width_bps: row.interval.map_or(0.0, |Rate(bps)| bps),
            cpus_used: row.cpus_used,
            cpus_error: BTreeMap::new(),
        }
    };
    let points = table.point.into_iter().map(point).collect();
    let (is_window_known, is_delay_known) = (table.window.is_some(), table.delay.is_some());
    let cpus = table.cpus;
    Ok(Data { points, line_bps, line, window, is_window_known, is_delay_known, cpus })
}

/// What a table may have at most.
const QUEUES_MAX: usize = 256;
const FLOWS_MAX: usize = 10_000;
const CPUS_MAX: f64 = 65_536.0;
const MTU_MAX: f64 = 65_535.0;

/// What contradicts itself in a table, by its field.
fn check(table: &Table) -> Result<(), String> {
    let of_wire = [
        ("mtu", table.mtu.is_some()),
        ("tunnel", table.tunnel.is_some()),
        ("both-sides", table.both_sides),
    ];
    if let Some((field, _)) = of_wire.iter().find(|(_, is_set)| *is_set && table.line.is_none()) {
        return Err(format!("`{field}` says something of a `line`, which is missing"));
    }
    let window = table.window.map_or(Window::default().bytes, |Size(bytes)| bytes);
    if let Some(chunk) = table.chunk.filter(|Size(bytes)| *bytes > window) {
        return Err(format!("`chunk = {chunk}`: expected no more than `window`"));
    }
    check_cpus("cpus", &table.cpus)?;
    let by = |it: &Row| placed(it.placement.unwrap_or(Placement::Random));
    let place = |it: &Row| (it.queues, it.flows, by(it));
    let is_used = |name: &String| table.point.iter().any(|row| row.cpus_used.contains_key(name));
    if let Some(name) = table.cpus.keys().find(|name| !is_used(name)) {
        return Err(format!("`cpus.{name}`: no point has `cpus-used.{name}`"));
    }
    for (at, row) in table.point.iter().enumerate() {
        let Row { queues, flows, cpus_used, .. } = row;
        let limits = [("queues", queues, QUEUES_MAX), ("flows", flows, FLOWS_MAX)];
        if let Some((field, value, most)) = limits.iter().find(|it| !(1..=it.2).contains(it.1)) {
            return Err(format!("`{field} = {value}`: expected a number from 1 to {most}"));
        }
        if table.point[..at].iter().any(|it| place(it) == place(row)) {
            return Err(format!("two points have `queues = {queues}` and `flows = {flows}`"));
        }
        if let Some(interval) = row.interval.filter(|half| half.0 >= row.throughput.0) {
            return Err(format!("`interval = {interval}`: expected less than `throughput`"));
        }
        check_cpus("cpus-used", cpus_used)?;
        let has_fewer =
            |(name, used): &(&String, &f64)| table.cpus.get(*name).is_some_and(|cpus| cpus < *used);
        if let Some((name, used)) = cpus_used.iter().find(has_fewer) {
            return Err(format!("`cpus-used.{name} = {used}`: `cpus.{name}` has fewer"));
        }
    }
    Ok(())
}

fn check_cpus(field: &str, cpus: &BTreeMap<String, f64>) -> Result<(), String> {
    if cpus.contains_key(LINE) {
        return Err(format!("`{field}.{LINE}`: that is the name of the wire"));
    }
    // They are printed as they are.
    let is_odd = |name: &&String| name.trim().is_empty() || name.contains(char::is_control);
    if let Some(name) = cpus.keys().find(is_odd) {
        let name = name.escape_debug();
        return Err(format!("`{field}.\"{name}\"`: expected a name of a station"));
    }
    match cpus.iter().find(|(_, number)| !(**number > 0.0 && **number <= CPUS_MAX)) {
        Some((name, number)) => {
            Err(format!("`{field}.{name} = {number}`: expected a number of CPUs above 0"))
        }
        None => Ok(()),
    }
}

/// The payload of a wire in bit/s.
///
/// # Errors
/// Its frames are larger than any, or too small for a segment.
pub fn payload(line: Line) -> Result<f64, String> {
    if line.mtu > MTU_MAX {
        return Err(format!("no frame has more than {MTU_MAX} bytes"));
    }
    Some(line.payload_bps())
        .filter(|bps| *bps > 0.0)
        .ok_or_else(|| "no segment fits into such a frame".to_owned())
}

/// Acknowledgements for each segment: one for every other.
const ACKS: f64 = 0.5;

/// What a word says that surrounds frames.
///
/// # Errors
/// There is no such word.
pub fn tunnel_named(text: &str) -> Result<Tunnel, String> {
    let words = names::<Encapsulation>().join(", ");
    Encapsulation::find(text).map(tunnel).ok_or_else(|| format!("expected one of {words}"))
}

fn tunnel(word: Encapsulation) -> Tunnel {
    match word {
        Encapsulation::None => Tunnel::None,
        Encapsulation::Vxlan => Tunnel::Vxlan,
        Encapsulation::Gre => Tunnel::Gre,
    }
}

fn placed(word: Placement) -> Placed {
    match word {
        Placement::Random | Placement::Stratified => Placed::Random,
        // Nearly: streams in one part of the hash move together.
        Placement::Balanced | Placement::Ideal => Placed::Evenly,
    }
}

/// Data from the cells of records that have all values of `filter`.
///
/// # Errors
/// There are no such cells, or they differ in more than the model knows.
pub fn of_records(records: &Records, filter: &Cell) -> Result<Data, ForecastError> {
    if let Some(axis) = filter.0.keys().find(|name| records.study.axis(name).is_none()) {
        let known = records.study.axis.iter().map(|axis| axis.name.clone()).collect();
        return Err(ForecastError::NoAxis { axis: axis.clone(), known });
    }
    let analysis = Analysis::of(records);
    let cells = analysis.of_primary().filter(|cell| cell.cell.matches(filter));
    let cells: Vec<&CellSummary> = cells.filter(|it| it.values.contains_key(METRIC)).collect();
    let first = cells.first().ok_or(ForecastError::Empty)?;
    let other = |cell: &&CellSummary| rest(&cell.cell) != rest(&first.cell);
    if let Some(other) = cells.iter().copied().find(other) {
        let differs = |(name, _): &(&String, &_)| other.cell.get(name) != first.cell.get(name);
        let rest = rest(&first.cell);
        let (axis, value) = rest.0.iter().find(differs).ok_or(ForecastError::Empty)?;
        return Err(ForecastError::Varied { axis: axis.clone(), value: value.to_string() });
    }
    data(records, &cells).ok_or(ForecastError::Empty)
}

/// The states of the offloads in the measured cells that have all values of `filter`, as studies
/// spell them.
pub fn offloads(records: &Records, filter: &Cell) -> Vec<&'static str> {
    let primary = records.study.primary();
    let mut found = Vec::new();
    for cell in records.study.cells(primary).iter().filter(|cell| cell.matches(filter)) {
        if records.of_cell(primary, cell).next().is_none() {
            continue;
        }
        let setup = Setup::of(&records.study, cell);
        let name = setup.map(|setup| name_of(setup.offloads)).ok();
        found.extend(name.filter(|name| !found.contains(name)));
    }
    found
}

/// What must be equal in all points of a fit.
fn rest(cell: &Cell) -> Cell {
    cell.retained(|name| !AXES.contains(&name))
}

/// The data of some cells that differ only in what the model knows; `None` without any.
fn data(records: &Records, cells: &[&CellSummary]) -> Option<Data> {
    let setup = Setup::of(&records.study, &cells.first()?.cell).ok()?;
    let mut points: Vec<Point> = cells.iter().filter_map(|cell| point(records, cell)).collect();
    // A sum without one of its parts would be too small.
    let stations = points.iter().map(|it| it.cpus_used.len()).max().unwrap_or(0);
    for point in points.iter_mut().filter(|it| it.cpus_used.len() < stations) {
        point.cpus_used.remove(ALL_CPUS);
    }
    let is_shared = records.study.topology.kind.has_router();
    let acks = if is_shared && setup.encapsulation != Encapsulation::None { ACKS } else { 0.0 };
    let (mtu, tunnel) = (f64::from(setup.mtu), tunnel(setup.encapsulation));
    let line = |bps| Line { bps: ringway_stats::float(bps), mtu, tunnel, acks };
    let line = setup.line_bps.map(line);
    let usual = Window::default();
    let window = Window {
        bytes: setup.window.map_or(usual.bytes, ringway_stats::float),
        delay: usual.delay + 2.0 * setup.delay.as_secs_f64(),
        ..usual
    };
    let host = records.peer.is_none().then(|| (ALL_CPUS.to_owned(), f64::from(records.host.cpus)));
    let cpus = host.into_iter().collect();
    let line_bps = line.map(|line| line.payload_bps());
    let (is_window_known, is_delay_known) = (setup.window.is_some(), !setup.delay.is_zero());
    let data = Data { points, line_bps, line, window, is_window_known, is_delay_known, cpus };
    (!data.points.is_empty()).then_some(data)
}

fn point(records: &Records, cell: &CellSummary) -> Option<Point> {
    let setup = Setup::of(&records.study, &cell.cell).ok()?;
    // Guests have queues of their own, and streams over a bond lines, which the model has not.
    if setup.guests > 1 || setup.lines > 1 {
        return None;
    }
    let summary = cell.values.get(METRIC)?;
    let counted = cell.cpus_used.iter().filter(|(name, _)| !NOT_COUNTED.contains(&name.as_str()));
    // The CPUs of two machines do not add up to one station.
    let all = all_cpus(records, cell).filter(|_| records.peer.is_none());
    let all = all.map(|all| (ALL_CPUS.to_owned(), all));
    let cpus: BTreeMap<String, Summary> =
        counted.map(|(name, cpus)| (name.clone(), *cpus)).chain(all).collect();
    let error = |(name, cpus): (&String, &Summary)| Some((name.clone(), cpus.precision()?));
    let (queues, flows) = (usize::from(setup.queues), setup.streams * usize::from(setup.targets));
    let odds = || ways(queues, flows, placed(setup.placement));
    Some(Point {
        name: cell.label.clone(),
        queues,
        flows,
        splits: observed(records, cell).unwrap_or_else(odds),
        bps: summary.mean,
        half_width_bps: noise::half_width_bps(records, cell),
        cpus_error: cpus.iter().filter_map(error).collect(),
        cpus_used: cpus.into_iter().map(|(name, cpus)| (name, cpus.mean)).collect(),
    })
}

/// All CPUs in use, over the runs of a cell.
fn all_cpus(records: &Records, cell: &CellSummary) -> Option<Summary> {
    let runs = records.of_cell(cell.subject, &cell.cell).filter(|run| run.seconds > 0.0);
    let used = runs.map(|run| {
        let stations = run.stations().into_iter().filter(|(name, _)| !NOT_COUNTED.contains(name));
        stations.filter_map(|(_, seconds)| seconds).sum::<f64>() / run.seconds
    });
    Summary::of(&used.collect::<Vec<_>>())
}

/// How the streams of each run fell on queues; `None` if that is not known of every run.
fn observed(records: &Records, cell: &CellSummary) -> Option<Vec<Split>> {
    let runs: Vec<_> = records.of_cell(cell.subject, &cell.cell).collect();
    let probability = 1.0 / ringway_stats::float(runs.len());
    let split = |run| Some(Split { parts: split(run)?, probability });
    runs.into_iter().map(split).collect()
}

/// What the model says of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Forecast {
    /// Of which metric.
    pub metric: &'static str,
    /// In the metric's unit.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Whether the model was calibrated on this cell.
    pub is_calibration: bool,
    /// By how much the prediction is too high, relative to the measured mean; nothing for a range.
    pub error: Option<f64>,
}

/// How well the model predicts the cells on which it was not calibrated.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Errors {
    /// The predicted cells; those with a range do not count.
    pub cells: usize,
    /// The median of the errors without their signs, relative.
    pub median: f64,
    /// The error that is farthest from 0, with its sign.
    pub worst: f64,
    /// The short name of the cell that has it.
    pub worst_cell: String,
}

impl Errors {
    /// Of all cells that were predicted; `None` without any.
    pub fn of(cells: &[CellSummary]) -> Option<Errors> {
        let error = |cell: &CellSummary| {
            let one = cell.predicted.filter(|one| !one.is_calibration)?;
            Some((one.error?, cell.label.clone()))
        };
        let all: Vec<(f64, String)> = cells.iter().filter_map(error).collect();
        let sizes: Vec<f64> = all.iter().map(|(error, _)| error.abs()).collect();
        let median = Summary::of(&sizes)?.median;
        let cells = all.len();
        let worst = all.into_iter().max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
        worst.map(|(worst, worst_cell)| Errors { cells, median, worst, worst_cell })
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = if self.cells == 1 { "cell" } else { "cells" };
        write!(
            f,
            "Over {} {cells} on which the model was not calibrated, the error is {:.1} % in the \
             median and {} at worst, at {}.",
            self.cells,
            self.median * 100.0,
            signed_percent(self.worst),
            self.worst_cell
        )
    }
}

/// A share of something with its sign, such as `+2.5 %`.
pub fn signed_percent(share: f64) -> String {
    // Rounding leaves no -0.
    format!("{:+.1} %", (share * 1000.0).round() / 10.0 + 0.0)
}

/// An estimate in the unit of its scale: `6.25 (6.20 to 6.30)`, or `1.80 to 8.80`.
pub fn show(estimate: &Estimate, scale: f64) -> String {
    let (low, high) = (estimate.low / scale, estimate.high / scale);
    let [shown_low, shown_high] = [low, high].map(number);
    let ends = match high.is_infinite() {
        true => format!("more than {shown_low}"),
        false => format!("{shown_low} to {shown_high}"),
    };
    match estimate.value.map(|value| number(value / scale)) {
        Some(value) if shown_low != shown_high => format!("{value} ({ends})"),
        Some(value) => value,
        None => ends,
    }
}

/// What the model says of each cell, in their order: of its throughput, or else of its round trip.
pub fn of_cells(records: &Records, cells: &[CellSummary]) -> Vec<Option<Forecast>> {
    let round_trips = round_trip::of_cells(records, cells);
    let all = throughput_of_cells(records, cells).into_iter().zip(round_trips);
    all.map(|(throughput, round_trip)| throughput.or(round_trip)).collect()
}

/// The throughput of each cell, if the cells with one and two queues and equal values of all else
/// calibrate the model.
fn throughput_of_cells(records: &Records, cells: &[CellSummary]) -> Vec<Option<Forecast>> {
    let mut fits: Vec<(Cell, Option<Fit>)> = Vec::new();
    for cell in cells.iter().filter(has_throughput) {
        let rest = rest(&cell.cell);
        if !fits.iter().any(|(of, _)| *of == rest) {
            let fit = calibrated(records, cells, &rest).ok();
            fits.push((rest, fit));
        }
    }
    let forecast = |cell: &CellSummary| {
        let point = Some(cell).filter(has_throughput).and_then(|cell| point(records, cell))?;
        let (_, fit) = fits.iter().find(|(of, _)| *of == rest(&cell.cell))?;
        let fit = fit.as_ref()?;
        let estimate = fit.predict_over(&point.splits).throughput;
        let error = estimate.value.map(|value| value / point.bps - 1.0);
        let is_calibration = point.queues <= CALIBRATION_QUEUES_MAX;
        Some(Forecast { metric: METRIC, estimate, is_calibration, error })
    };
    cells.iter().map(forecast).collect()
}

/// Why nothing is predicted, where cells have throughput; `None` if something is.
pub fn why_nothing(records: &Records, cells: &[CellSummary]) -> Option<String> {
    let is_any = cells.iter().any(|cell| cell.predicted.is_some());
    let first = cells.iter().find(has_throughput).filter(|_| !is_any)?;
    calibrated(records, cells, &rest(&first.cell)).err()
}

fn has_throughput(cell: &&CellSummary) -> bool {
    !cell.subject.is_baseline() && cell.values.contains_key(METRIC)
}

/// What the cells with few queues calibrate that have these values of all that the model does not
/// know.
///
/// # Errors
/// Why they do not, in words.
fn calibrated(records: &Records, cells: &[CellSummary], values: &Cell) -> Result<Fit, String> {
    let is_own = |cell: &&CellSummary| has_throughput(cell) && rest(&cell.cell) == *values;
    let own: Vec<&CellSummary> = cells.iter().filter(is_own).collect();
    let mut data = data(records, &own).ok_or("the model has one guest, and one line")?;
    data.points.retain(|point| point.queues <= CALIBRATION_QUEUES_MAX);
    Fit::of(&data).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "line = '10Gbit/s'\ntunnel = 'vxlan'\nboth-sides = true\n\
        [[point]]\nqueues = 1\nflows = 6\nthroughput = '3.23Gbit/s'\n\
        [[point]]\nqueues = 2\nflows = 6\nthroughput = '6Gbit/s'\n";

    #[test]
    fn a_table_of_figures_becomes_data() {
        let data = of_table("node.toml", TABLE).expect("a table");
        assert_eq!((data.points.len(), data.points[1].bps), (2, 6e9));
        assert!((data.line_bps.expect("a line") / 8.83e9 - 1.0).abs() < 1e-3);
        assert_eq!(data.window, Window::default());
    }

    #[test]
    fn a_wrong_table_names_the_field() {
        let fault = |text: &str| of_table("node.toml", text).expect_err("wrong").to_string();
        let bare = fault(&TABLE.replace("6Gbit/s", "6"));
        assert!(bare.contains("throughput = '6'") && bare.contains("such as 10Gbit/s"), "{bare}");
        let missing = fault(&TABLE.replace("queues = 2\n", ""));
        assert!(missing.contains("node.toml") && missing.contains("`queues`"), "{missing}");
        let unknown = fault(&format!("mtus = '9000B'\n{TABLE}"));
        assert!(unknown.contains("mtus"), "{unknown}");
        let none = fault(&TABLE.replace("queues = 2", "queues = 0"));
        assert!(none.contains("`queues = 0`: expected a number from 1 to 256"), "{none}");
        let many = fault(&TABLE.replace("flows = 6", "flows = 1000000000"));
        assert!(many.contains("`flows = 1000000000`"), "{many}");
        let cpus = |text: &str| fault(&format!("{TABLE}{text}[cpus]\nguest = 4.0\n"));
        assert!(cpus("").contains("`cpus.guest`: no point has `cpus-used.guest`"));
        assert!(cpus("cpus-used.guest = 5.0\n").contains("`cpus-used.guest = 5`"));
        assert!(cpus("cpus-used.guest = -1.0\n").contains("`cpus-used.guest = -1`"));
        assert!(cpus("cpus-used = { guest = 1.0, line = 1.0 }\n").contains("`cpus-used.line`"));
        for name in ["", "a\\u001b[31m"] {
            let odd = cpus(&format!("cpus-used = {{ guest = 1.0, \"{name}\" = 1.0 }}\n"));
            assert!(odd.contains("`cpus-used.\"") && odd.contains("name of a station"), "{odd}");
            assert!(!odd.contains('\u{1b}'), "{odd}");
        }
        let chunk = fault(&format!("window = '64KiB'\nchunk = '1MiB'\n{TABLE}"));
        assert!(chunk.contains("`chunk = 1.00 MiB`"), "{chunk}");
        let bare = fault(&TABLE.replace("'6Gbit/s'", "6.0"));
        assert!(bare.contains("throughput = 6.0") && bare.contains("such as 10Gbit/s"), "{bare}");
        let wide =
            fault(&TABLE.replace("throughput = '6", "interval = '7Gbit/s'\nthroughput = '6"));
        assert!(wide.contains("`interval = 7.00 Gbit/s`"), "{wide}");
        let twice = fault(&TABLE.replace("queues = 2", "queues = 1"));
        assert!(twice.contains("two points have `queues = 1` and `flows = 6`"), "{twice}");
        let strata = TABLE.replace("queues = 2", "queues = 1\nplacement = 'stratified'");
        assert!(fault(&strata).contains("two points have `queues = 1`"), "strata are by chance");
        let no_line = fault(&TABLE.replace("line = '10Gbit/s'\n", ""));
        assert!(no_line.contains("`tunnel`") && no_line.contains("`line`"), "{no_line}");
        for mtu in ["102B", "65536B"] {
            let mtu = fault(&format!("mtu = '{mtu}'\n{TABLE}"));
            assert!(mtu.contains("`mtu`: no "), "{mtu}");
        }
    }
}
