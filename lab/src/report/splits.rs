//! Every run by how its streams were split over queues, over the probabilities of the splits.

use maud::{Markup, html};
use ringway_stats::{float, mean};

use super::boxes::spread;
use super::chart::{Chart, Series};
use super::frame::{Form, Frame, hint};
use super::style::{AXIS, GRID, INK, MUTED, px};

/// The part of a place that belongs to one series of several.
const FILLED: f64 = 0.8;

pub(super) fn draw(chart: &Chart, form: Form) -> Markup {
    let frame = Frame::of(chart, form, &["probability by chance (full height is 100 %)"]);
    let width = frame.place_width() * FILLED / float(chart.series.len());
    let inside = html! {
        (draw_probabilities(chart, &frame))
        @for (index, series) in chart.series.iter().enumerate() {
            @let shift = (float(index) - (float(chart.series.len()) - 1.0) / 2.0) * width;
            (draw_runs(chart, &frame, series, shift, width))
        }
        (draw_means(chart, &frame))
    };
    frame.draw(chart, &inside)
}

fn draw_probabilities(chart: &Chart, frame: &Frame) -> Markup {
    let half = frame.place_width() * 0.46;
    html! {
        @for (place, split) in chart.places.iter().enumerate() {
            @if let Some(probability) = split.probability {
                @let (x, top) = (frame.x(place), frame.y_part(probability));
                rect x=(px(x - half)) y=(px(top)) width=(px(2.0 * half))
                    height=(px(frame.y_part(0.0) - top)) fill=(GRID) stroke=(AXIS)
                    stroke-opacity="0.6" {}
                text x=(px(x)) y=(px(frame.y_part(0.0) - 6.0)) text-anchor="middle" font-size="12"
                    fill=(MUTED) { (percent(probability)) }
            }
        }
    }
}

fn draw_runs(chart: &Chart, frame: &Frame, series: &Series, shift: f64, width: f64) -> Markup {
    let half = (width / 2.0 - 2.0).max(2.0);
    html! {
        @for (place, point) in series.points.iter().enumerate() {
            @if let Some(point) = point {
                g {
                    (hint(&format!(
                        "{}, {}: mean {}, {} runs", series.name, chart.places[place].name,
                        chart.metric.show(point.summary.mean), point.summary.count
                    )))
                    @for (index, value) in point.values.iter().enumerate() {
                        @let x = frame.x(place) + shift + spread(index) * half;
                        (series.style.draw_mark(x, frame.y(value / chart.metric.scale), 3.2))
                    }
                }
            }
        }
    }
}

/// A line at the mean of all runs with a split, for any placement.
fn draw_means(chart: &Chart, frame: &Frame) -> Markup {
    let half = frame.place_width() * 0.42;
    html! {
        @for place in 0..chart.places.len() {
            @let points = chart.series.iter().filter_map(|series| series.points[place].as_ref());
            @let values: Vec<f64> = points.flat_map(|point| point.values.clone()).collect();
            @if !values.is_empty() {
                @let (x, y) = (frame.x(place), frame.y(mean(&values) / chart.metric.scale));
                path d={ "M" (px(x - half)) " " (px(y)) "H" (px(x + half)) } stroke=(INK)
                    stroke-width="2" {}
            }
        }
    }
}

/// As in `56.3 %`; halves are rounded up even if they are inexact in binary.
pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", (part * 1_000.0 + 1e-6).round() / 10.0)
}
