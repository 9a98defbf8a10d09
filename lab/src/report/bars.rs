//! Means as bars, for axes that are words.

use maud::{Markup, html};

use super::chart::Chart;
use super::frame::{Form, deviation_bar};
use super::groups::{Group, Mark};
use super::style::{INK, Line, px};

/// A narrower bar has no room for its number.
const LABEL_WIDTH_MIN: f64 = 26.0;
const BARS: Group = Group {
    filled: 0.74,
    width_max: 64.0,
    says: |chart, point| chart.metric.show(point.summary.mean),
    draw: draw_bar,
};

pub(super) fn draw(chart: &Chart, form: Form) -> Markup {
    BARS.figure(chart, form)
}

fn draw_bar(mark: &Mark<'_>) -> Markup {
    let Mark { chart, frame, series, point, x, width } = *mark;
    let scale = chart.metric.scale;
    let (mean, sd) = (point.summary.mean / scale, point.summary.sd.unwrap_or(0.0) / scale);
    let (top, bottom) = (frame.y(mean), frame.y(0.0));
    let is_baseline = series.style.line != Line::Solid;
    html! {
        rect x=(px(x - width / 2.0 + 1.0)) y=(px(top)) width=(px(width - 2.0))
            height=(px(bottom - top)) rx="2"
            fill=(if is_baseline { "#fff" } else { series.style.colour })
            stroke=(series.style.colour) stroke-width="1.5"
            stroke-dasharray=[series.style.dashes()] {}
        @if sd > 0.0 {
            @let (high, low) = (frame.y(mean + sd), frame.y((mean - sd).max(0.0)));
            (deviation_bar(x, high, low, INK))
        }
        @if width >= LABEL_WIDTH_MIN {
            text x=(px(x)) y=(px(frame.y(mean + sd) - 5.0)) text-anchor="middle"
                font-size="11" { (chart.metric.number(point.summary.mean)) }
        }
    }
}
