//! The published form: means against an axis, with bars of a standard deviation, joined by lines.

use maud::{Markup, html};
use ringway_stats::float;

use super::chart::{Chart, Series};
use super::frame::{Form, Frame, deviation_bar, hint};
use super::style::px;

/// Pixels between the marks of two series at one place, so that no bar hides another.
const APART: f64 = 7.0;

pub(super) fn draw(chart: &Chart, form: Form) -> Markup {
    let frame = Frame::of(chart, form, &[]);
    let middle = (float(chart.series.len()) - 1.0) / 2.0;
    let inside = html! {
        @for (index, series) in chart.series.iter().enumerate() {
            (draw_series(chart, &frame, series, (float(index) - middle) * APART))
        }
    };
    frame.draw(chart, &inside)
}

fn draw_series(chart: &Chart, frame: &Frame, series: &Series, shift: f64) -> Markup {
    let scale = chart.metric.scale;
    let at: Vec<_> = series
        .points
        .iter()
        .enumerate()
        .filter_map(|(place, point)| Some((place, frame.x(place) + shift, point.as_ref()?)))
        .collect();
    let steps: Vec<String> = at
        .iter()
        .map(|(_, x, point)| format!("{} {}", px(*x), px(frame.y(point.summary.mean / scale))))
        .collect();
    let colour = series.style.colour;
    html! {
        path d={ "M" (steps.join("L")) } fill="none" stroke=(colour) stroke-width="2"
            stroke-linejoin="round" stroke-dasharray=[series.style.dashes()] {}
        @for (place, x, point) in at {
            @let (mean, sd) = (point.summary.mean / scale, point.summary.sd.unwrap_or(0.0) / scale);
            @let shown = match point.summary.sd {
                Some(sd) => format!(
                    "{} ± {}, {} runs", chart.metric.number(point.summary.mean),
                    chart.metric.show(sd), point.summary.count
                ),
                None => chart.metric.show(point.summary.mean),
            };
            g {
                (hint(&format!("{}, {}: {shown}", series.name, chart.places[place].name)))
                @if sd > 0.0 {
                    (deviation_bar(x, frame.y(mean + sd), frame.y((mean - sd).max(0.0)), colour))
                }
                (series.style.draw_mark(x, frame.y(mean), frame.form().mark()))
            }
            (frame.draw_predicted(chart, point, x, colour))
        }
    }
}
