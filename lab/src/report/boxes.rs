//! Quartiles, medians and every run, which means hide.

use maud::{Markup, html};
use ringway_stats::float;

use super::chart::Chart;
use super::frame::Form;
use super::groups::{Group, Mark};
use super::style::px;

const BOXES: Group = Group {
    filled: 0.7,
    width_max: 70.0,
    says: |chart, point| format!("median {}", chart.metric.show(point.summary.median)),
    draw: draw_box,
};

pub(super) fn draw(chart: &Chart, form: Form) -> Markup {
    BOXES.figure(chart, form)
}

fn draw_box(mark: &Mark<'_>) -> Markup {
    let Mark { chart, frame, series, point, x, width } = *mark;
    let y = |value: f64| frame.y(value / chart.metric.scale);
    let summary = &point.summary;
    let half = (width / 2.0 - 3.0).max(3.0);
    let (left, right) = (px(x - half), px(x + half));
    let (top, bottom) = (y(summary.quartile_high), y(summary.quartile_low));
    let colour = series.style.colour;
    html! {
        path d={ "M" (px(x)) " " (px(y(summary.max))) "V" (px(top)) "M" (px(x)) " " (px(bottom)) "V"
            (px(y(summary.min))) } stroke=(colour) stroke-width="1.5" {}
        rect x=(left) y=(px(top)) width=(px(2.0 * half)) height=(px((bottom - top).max(1.0)))
            fill=(colour) fill-opacity="0.16" stroke=(colour) stroke-width="1.5" {}
        path d={ "M" (left) " " (px(y(summary.median))) "H" (right) } stroke=(colour)
            stroke-width="3" {}
        @for (index, value) in point.values.iter().enumerate() {
            circle cx=(px(x + spread(index) * half)) cy=(px(y(*value))) r="2.4" fill=(colour)
                fill-opacity="0.75" {}
        }
    }
}

/// A horizontal offset from -0.6 to 0.6, well apart for neighbours and the same in every drawing.
pub(super) fn spread(index: usize) -> f64 {
    ((float(index) * 0.618_033_988_75).fract() - 0.5) * 1.2
}
