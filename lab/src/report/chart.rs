//! The content of a figure before it is drawn, shared by the drawing, its table and its text.

use std::collections::BTreeMap;

use ringway_model::estimate::Estimate;
use ringway_stats::Summary;

use crate::analysis::{Analysis, CellSummary, Warning, forecast, split, values};
use crate::metric::{self, Metric};
use crate::placement;
use crate::record::{Records, Run};
use crate::study::{Figure, FigureKind, Published, Study, Subject};
use crate::value::{Cell, Value};

use super::style::Style;

/// A note names at most this many cells one by one.
const NAMED_MAX: usize = 8;

/// The content of a figure.
pub(super) struct Chart {
    pub(super) id: String,
    pub(super) kind: FigureKind,
    pub(super) title: String,
    pub(super) metric: &'static Metric,
    /// The title of the horizontal axis.
    pub(super) x_title: String,
    /// The places from left to right.
    pub(super) places: Vec<Place>,
    pub(super) series: Vec<Series>,
    /// The corresponding published values.
    pub(super) published: Vec<Mark>,
    /// Reservations, drawn on the figure itself.
    pub(super) notes: Vec<String>,
}

/// A published value on a figure.
pub(super) struct Mark {
    /// Its place on the horizontal axis; `None` for the best of all places, which spans the axis.
    pub(super) place: Option<usize>,
    /// The colour of its series.
    pub(super) colour: &'static str,
    /// In the metric's own unit.
    pub(super) value: f64,
    /// Its description.
    pub(super) about: String,
}

/// A place on the horizontal axis.
pub(super) struct Place {
    pub(super) name: String,
    /// Its probability, if places are splits.
    pub(super) probability: Option<f64>,
}

/// One line, or the bars of one colour.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) style: Style,
    /// Whether the legend must name it, because its place does not.
    pub(super) is_in_legend: bool,
    /// One for each place.
    pub(super) points: Vec<Option<Point>>,
}

/// What was measured at one place.
pub(super) struct Point {
    pub(super) summary: Summary,
    pub(super) values: Vec<f64>,
    /// What the model says of it, unless it was calibrated on it.
    pub(super) predicted: Option<Estimate>,
}

impl Chart {
    /// The chart of a figure; `None` if none of its data were measured.
    pub(super) fn of(records: &Records, analysis: &Analysis, figure: &Figure) -> Option<Chart> {
        let metric = metric::find(&figure.metric)?;
        let mut chart = Chart {
            id: figure.id.clone(),
            kind: figure.kind,
            title: figure.title.clone(),
            metric,
            x_title: axis_title(&figure.x),
            places: Vec::new(),
            series: Vec::new(),
            published: Vec::new(),
            notes: Vec::new(),
        };
        match figure.kind {
            FigureKind::Placement => chart.fill_splits(records, figure),
            _ => chart.fill(records, analysis, figure),
        }
        chart.series.retain(|series| series.points.iter().any(Option::is_some));
        if figure.kind != FigureKind::Placement {
            chart.published = chart.published(&records.study, figure);
        }
        chart.notes.extend(notes(analysis, &records.study, figure));
        (!chart.series.is_empty()).then_some(chart)
    }

    /// A place for each value of the axis, a series for each value of the other one and for each
    /// baseline.
    fn fill(&mut self, records: &Records, analysis: &Analysis, figure: &Figure) {
        let study = &records.study;
        let xs = axis_values(study, &figure.x);
        self.places = xs.iter().map(|x| Place { name: x.to_string(), probability: None }).collect();
        let point = |subject: Subject, cell: &Cell| {
            let runs: Vec<&Run> = records.of_cell(subject, cell).collect();
            let point = Point::of(values(&runs, &figure.metric))?;
            let forecast = analysis.cell(subject, cell).and_then(|cell| cell.predicted);
            let forecast =
                forecast.filter(|one| one.metric == figure.metric && !one.is_calibration);
            Some(Point { predicted: forecast.map(|one| one.estimate), ..point })
        };
        let along = |subject, cell: &Cell| {
            let at = |x: &Value| study.projected(&cell.with(&figure.x, x.clone()), subject);
            xs.iter().map(|x| point(subject, &at(x))).collect()
        };
        match &figure.lines {
            None => self.series.push(Series {
                name: study.primary().title().to_owned(),
                style: Style::only(),
                is_in_legend: true,
                points: along(study.primary(), &figure.filter),
            }),
            Some(axis) => {
                for (index, value) in axis_values(study, axis).iter().enumerate() {
                    self.series.push(Series {
                        name: series_name(axis, value),
                        style: Style::of_value(axis, value, index),
                        is_in_legend: true,
                        points: along(study.primary(), &figure.filter.with(axis, value.clone())),
                    });
                }
            }
        }
        for (index, &subject) in study.baselines.iter().enumerate() {
            let style = Style::of_baseline(index);
            let title = subject.title();
            if figure.kind != FigureKind::Lines && !study.baseline_axes.contains(&figure.x) {
                // It does not depend on the axis, so it gets a place of its own.
                let cell = study.projected(&figure.filter, subject);
                self.push_apart(title, style, point(subject, &cell));
                continue;
            }
            let (name, cell) = baseline(study, figure, title);
            let points = along(subject, &cell);
            self.series.push(Series { name, style, is_in_legend: true, points });
        }
    }

    /// The published values for this figure, for series that are drawn.
    fn published(&self, study: &Study, figure: &Figure) -> Vec<Mark> {
        let xs = axis_values(study, &figure.x);
        let of = |one: &Published| {
            let is_best_of = |axis: &String| one.best_of.as_ref() == Some(axis);
            let is_shown = |(axis, value): (&String, &Value)| {
                one.cell.get(axis) == Some(value) || is_best_of(axis)
            };
            if one.metric != figure.metric
                || one.not_used.is_some()
                || !figure.filter.0.iter().all(is_shown)
            {
                return None;
            }
            let place = match one.cell.get(&figure.x) {
                Some(value) => Some(xs.iter().position(|x| x == value)?),
                None if is_best_of(&figure.x) => None,
                None => return None,
            };
            let series = match &figure.lines {
                None => self.series.first(),
                Some(axis) => {
                    let name = series_name(axis, one.cell.get(axis)?);
                    self.series.iter().find(|series| series.name == name)
                }
            }?;
            let middle = one.low.zip(one.high).map(|(low, high)| f64::midpoint(low, high));
            let value = one.value.or(middle).or(one.low).or(one.high)?;
            let least = if one.value.is_none() && middle.is_none() { "a bound, " } else { "" };
            let about = format!("published ({least}{}): {}", series.name, self.metric.show(value));
            Some(Mark { place, colour: series.style.colour, value, about })
        };
        study.comparable().iter().filter_map(of).collect()
    }

    /// Adds a place that has a single point.
    fn push_apart(&mut self, name: &str, style: Style, point: Option<Point>) {
        let Some(point) = point else { return };
        self.series.iter_mut().for_each(|series| series.points.push(None));
        let mut points: Vec<Option<Point>> = self.places.iter().map(|_| None).collect();
        points.push(Some(point));
        self.places.push(Place { name: name.to_owned(), probability: None });
        self.series.push(Series { name: name.to_owned(), style, is_in_legend: false, points });
    }

    /// A place for each split, and a series for each value of the axis.
    fn fill_splits(&mut self, records: &Records, figure: &Figure) {
        let setup = records.study.setup(&figure.filter);
        let count = |name| usize::try_from(setup.number(name).unwrap_or(1)).unwrap_or(usize::MAX);
        let splits = placement::splits(count("streams"), count("queues"));
        self.x_title = "streams per queue".to_owned();
        self.places = splits
            .iter()
            .map(|split| Place {
                name: placement::name(&split.parts),
                probability: Some(split.probability),
            })
            .collect();
        let mut unknown = 0;
        for (index, value) in axis_values(&records.study, &figure.x).iter().enumerate() {
            let cell = figure.filter.with(&figure.x, value.clone());
            let mut by_split: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for run in records.of_cell(records.study.primary(), &cell) {
                match (split(run), run.values.get(&figure.metric)) {
                    (Some(parts), Some(value)) => {
                        by_split.entry(placement::name(&parts)).or_default().push(*value);
                    }
                    _ => unknown += 1,
                }
            }
            let at = |place: &Place| by_split.remove(&place.name).and_then(Point::of);
            let points = self.places.iter().map(at).collect();
            let name = value.to_string();
            let style = Style::of_value(&figure.x, value, index);
            self.series.push(Series { name, style, is_in_legend: true, points });
        }
        if unknown > 0 {
            self.notes
                .push(format!("left out: {unknown} runs whose streams' queues are not known"));
        }
    }

    /// The position of a series among those at a place, from 0, and their number.
    pub(super) fn rank(&self, series: usize, place: usize) -> (usize, usize) {
        let is_there = |series: &&Series| series.points[place].is_some();
        let before = self.series[..series].iter().filter(is_there).count();
        (before, self.series.iter().filter(is_there).count())
    }

    /// The most series at any place.
    pub(super) fn crowd(&self) -> usize {
        let places = 0..self.places.len();
        places.map(|place| self.rank(0, place).1).max().unwrap_or(1).max(1)
    }

    /// The largest value that is drawn.
    pub(super) fn top(&self) -> f64 {
        let of_point = |point: &Point| match self.kind {
            FigureKind::Boxes | FigureKind::Placement => point.summary.max,
            FigureKind::Lines | FigureKind::Bars => {
                point.summary.mean + point.summary.sd.unwrap_or(0.0)
            }
        };
        let predicted = |point: &Point| point.predicted?.value;
        let all = self.points().map(of_point).chain(self.points().filter_map(predicted));
        let published = self.published.iter().map(|mark| mark.value);
        all.chain(published).fold(0.0, f64::max) / self.metric.scale
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| series.points.iter().flatten())
    }

    /// Whether the model says anything of what is drawn.
    pub(super) fn has_predictions(&self) -> bool {
        self.points().any(|point| point.predicted.is_some())
    }

    /// What the model says of a point, in words: `predicted 8.20 (7.90 to 8.60) Gbit/s`.
    pub(super) fn prediction(&self, point: &Point) -> Option<String> {
        let shown = forecast::show(&point.predicted?, self.metric.scale);
        Some(format!("predicted {shown} {}", self.metric.unit).trim_end().to_owned())
    }

    /// The figure in words, for readers who cannot see it.
    pub(super) fn alt(&self) -> String {
        let series = self.series.iter().map(|series| {
            let points = self.places.iter().zip(&series.points).filter_map(|(place, point)| {
                let point = point.as_ref()?;
                let predicted =
                    self.prediction(point).map_or_else(String::new, |it| format!(" ({it})"));
                let mean = self.metric.show(point.summary.mean);
                Some(format!("{mean}{predicted} at {}", place.name))
            });
            format!("{}: {}", series.name, points.collect::<Vec<_>>().join(", "))
        });
        let published = self.published.iter().map(|mark| mark.about.clone());
        let series = series.chain(published).collect::<Vec<_>>().join("; ");
        format!("{}. {} by {}. {series}.", self.title, self.metric.axis_title(), self.x_title)
    }
}

impl Point {
    /// `None` without values.
    pub(super) fn of(values: Vec<f64>) -> Option<Point> {
        Some(Point { summary: Summary::of(&values)?, values, predicted: None })
    }
}

/// The name of a baseline's line, and its cell. A line for each value of the other axis would
/// double the figure, so the first value represents the baseline.
fn baseline(study: &Study, figure: &Figure, title: &str) -> (String, Cell) {
    let axis = figure.lines.as_ref().filter(|axis| study.baseline_axes.contains(axis));
    let value = axis.and_then(|axis| Some((axis, axis_values(study, axis).into_iter().next()?)));
    match value {
        Some((axis, value)) => {
            (format!("{title}, {}", series_name(axis, &value)), figure.filter.with(axis, value))
        }
        None => (title.to_owned(), figure.filter.clone()),
    }
}

fn axis_values(study: &Study, name: &str) -> Vec<Value> {
    study.axis(name).map(|axis| axis.values.clone()).unwrap_or_default()
}

fn axis_title(name: &str) -> String {
    match name {
        "streams" => "TCP streams",
        "mtu" => "MTU of every hop in bytes",
        "tcp" => "settings of TCP",
        "load" => "streams of load in each direction",
        "delay" => "delay in each direction in milliseconds",
        other => other,
    }
    .to_owned()
}

fn series_name(axis: &str, value: &Value) -> String {
    match value {
        Value::Number(1) => format!("1 {}", axis.strip_suffix('s').unwrap_or(axis)),
        Value::Number(number) if axis == "mtu" => format!("MTU {number}"),
        Value::Number(number) => format!("{number} {axis}"),
        Value::Text(text) => text.clone(),
    }
}

/// Warnings about the cells of a figure, one line for each kind.
fn notes(analysis: &Analysis, study: &Study, figure: &Figure) -> Vec<String> {
    let drawn: Vec<_> = analysis
        .cells
        .iter()
        .filter(|cell| cell.cell.matches(&study.projected(&figure.filter, cell.subject)))
        .filter(|cell| cell.values.contains_key(&figure.metric))
        .collect();
    let which = |is: &dyn Fn(&Warning) -> bool| which(&drawn, is);
    let emulated = which(&|one| matches!(one, Warning::Emulated));
    let contradicted = which(&|one| matches!(one, Warning::Contradicted { .. }));
    let few_runs = which(&|one| matches!(one, Warning::FewRuns { .. }));
    let bimodal = which(&|one| matches!(one, Warning::Bimodal { .. }));
    let drifting = which(&|one| matches!(one, Warning::Drifting { .. }));
    let around = "streams went around the router, so this does not measure it";
    let lines = [
        study.is_around_router().then(|| around.to_owned()),
        few_cpus(analysis, &drawn),
        emulated.map(|which| format!("emulated router, so this is not real speed: {which}")),
        contradicted.map(|which| format!("without runs that their counters contradict: {which}")),
        few_runs.map(|which| format!("too few runs (below 5): {which}")),
        bimodal.map(|which| format!("bimodal, so the mean is neither: {which}")),
        drifting.map(|which| format!("drifting from run to run: {which}")),
    ];
    lines.into_iter().flatten().collect()
}

/// The cells with such a warning, by name if they are few.
fn which(drawn: &[&CellSummary], is: &dyn Fn(&Warning) -> bool) -> Option<String> {
    let found: Vec<String> = drawn
        .iter()
        .filter(|cell| cell.warnings.iter().any(is))
        .map(|cell| match cell.subject {
            one if !one.is_baseline() => cell.label.clone(),
            subject => format!("{} {}", subject.title(), cell.label),
        })
        .collect();
    let all = drawn.len();
    match found.len() {
        0 => None,
        count if count == all => Some("all cells".to_owned()),
        count if count > NAMED_MAX => Some(format!("{count} of {all} cells")),
        _ => Some(found.join(", ")),
    }
}

fn few_cpus(analysis: &Analysis, drawn: &[&CellSummary]) -> Option<String> {
    let wanted = |warning: &Warning| match warning {
        Warning::FewCpus { wanted, .. } => Some(*wanted),
        _ => None,
    };
    let all: Vec<u64> = drawn.iter().flat_map(|cell| &cell.warnings).filter_map(wanted).collect();
    let (least, most) = (all.iter().min()?, all.iter().max()?);
    let range = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let is_short = |warning: &Warning| wanted(warning).is_some();
    let cells = drawn.iter().filter(|cell| !cell.subject.is_baseline()).count();
    let short = drawn.iter().filter(|cell| cell.warnings.iter().any(is_short)).count();
    let which = match short == cells {
        true => "ringway's cells".to_owned(),
        false => which(drawn, &is_short).unwrap_or_default(),
    };
    Some(format!("too few CPUs: {} here, {which} would keep {range} busy", analysis.host.cpus))
}
