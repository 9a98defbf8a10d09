//! Means as bars, for axes that are words.

use maud::{Markup, html};

use super::chart::{Chart, Point, Series};
use super::frame::{Form, Frame, deviation_bar, hint};
use super::style::{INK, Line, px};
use crate::stats::float;

/// The part of a place that its bars take.
const FILLED: f64 = 0.74;
/// No bar is wider.
const WIDTH_MAX: f64 = 64.0;
/// A bar that is narrower has no room for its number.
const LABEL_WIDTH_MIN: f64 = 26.0;

pub(super) fn draw(chart: &Chart, form: Form) -> Markup {
    let frame = Frame::of(chart, form, &[]);
    let width = (frame.place_width() * FILLED / float(chart.crowd())).min(WIDTH_MAX);
    let inside = html! {
        @for (index, series) in chart.series.iter().enumerate() {
            @for (place, point) in series.points.iter().enumerate() {
                @if let Some(point) = point {
                    @let (rank, count) = chart.rank(index, place);
                    @let shift = (float(rank) - float(count) / 2.0) * width;
                    g {
                        (hint(&format!(
                            "{}, {}: {}, {} runs", series.name, chart.places[place].name,
                            chart.metric.show(point.summary.mean), point.summary.count
                        )))
                        (draw_bar(chart, &frame, series, point, frame.x(place) + shift, width))
                    }
                }
            }
        }
    };
    frame.draw(chart, &inside)
}

fn draw_bar(
    chart: &Chart,
    frame: &Frame,
    series: &Series,
    point: &Point,
    left: f64,
    width: f64,
) -> Markup {
    let scale = chart.metric.scale;
    let (mean, sd) = (point.summary.mean / scale, point.summary.sd.unwrap_or(0.0) / scale);
    let (top, bottom) = (frame.y(mean), frame.y(0.0));
    let is_baseline = series.style.line != Line::Solid;
    html! {
        rect x=(px(left + 1.0)) y=(px(top)) width=(px(width - 2.0)) height=(px(bottom - top)) rx="2"
            fill=(if is_baseline { "#fff" } else { series.style.colour })
            stroke=(series.style.colour) stroke-width="1.5"
            stroke-dasharray=[series.style.dashes()] {}
        @if sd > 0.0 {
            @let (high, low) = (frame.y(mean + sd), frame.y((mean - sd).max(0.0)));
            (deviation_bar(left + width / 2.0, high, low, INK))
        }
        @if width >= LABEL_WIDTH_MIN {
            text x=(px(left + width / 2.0)) y=(px(frame.y(mean + sd) - 5.0)) text-anchor="middle"
                font-size="11" { (chart.metric.number(point.summary.mean)) }
        }
    }
}
