//! What some streams carry over more and more queues: predicted, and measured where it was.

use ringway_model::estimate::Estimate;

use super::chart::{Chart, Place, Point, Series};
use super::frame::Form;
use super::lines;
use super::style::Style;
use crate::analysis::forecast;
use crate::metric;
use crate::study::FigureKind;

/// One number of queues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// How many.
    pub queues: usize,
    /// What was measured, in bit/s.
    pub measured: Option<f64>,
    /// What the model says, in bit/s.
    pub predicted: Estimate,
}

/// The figure as SVG; `None` without a step. A step whose prediction has no value is a note: a
/// mark would claim one.
pub fn draw(title: &str, steps: &[Step]) -> Option<String> {
    let metric = metric::find(forecast::METRIC)?;
    let series = |name: &str, style, of: &dyn Fn(&Step) -> Option<Point>| Series {
        name: name.to_owned(),
        style,
        is_in_legend: true,
        points: steps.iter().map(of).collect(),
    };
    let measured = |step: &Step| Point::of(vec![step.measured?]);
    let predicted = |step: &Step| {
        let point = Point::of(vec![step.predicted.value?])?;
        Some(Point { predicted: Some(step.predicted), ..point })
    };
    let range = |step: &Step| {
        let shown = forecast::show(&step.predicted, metric.scale);
        format!("not identified with {} queues: {shown} {}", step.queues, metric.unit)
    };
    let place = |step: &Step| Place { name: step.queues.to_string(), probability: None };
    let chart = Chart {
        id: String::new(),
        kind: FigureKind::Lines,
        title: title.to_owned(),
        metric,
        x_title: "queues".to_owned(),
        places: steps.iter().map(place).collect(),
        series: vec![
            series("measured", Style::only(), &measured),
            series("predicted", Style::of_baseline(0), &predicted),
        ],
        published: Vec::new(),
        notes: steps.iter().filter(|it| it.predicted.value.is_none()).map(range).collect(),
    };
    (!steps.is_empty()).then(|| lines::draw(&chart, Form::Wide).into_string())
}
