//! Colours and marks: red for one queue, as published; blue, green and purple for more.
//!
//! Nothing depends on colour alone: each line has a mark of its own shape, and each colour its own
//! lightness, for grey print and for colour-blind readers.

use maud::{Markup, html};

use crate::value::Value;

pub(super) const INK: &str = "#1f2933";
pub(super) const MUTED: &str = "#5b6673";
pub(super) const GRID: &str = "#e4e7eb";
pub(super) const AXIS: &str = "#9aa5b1";
pub(super) const WARN: &str = "#9a5b00";
pub(super) const FONT: &str =
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";

const RED: &str = "#cc2936";
const OTHERS: [&str; 7] =
    ["#1f6fb2", "#3aa76d", "#5e2a84", "#e39a23", "#0b7a75", "#b0578d", "#7a5c3e"];
const GREYS: [&str; 2] = ["#4b5563", "#8b95a1"];

/// The style of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) colour: &'static str,
    pub(super) mark: Mark,
    pub(super) line: Line,
}

/// The shape at each point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
    Ring,
    Cross,
}

/// The line between points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Solid,
    Dashed,
    Dotted,
}

const MARKS: [Mark; 4] = [Mark::Circle, Mark::Square, Mark::Triangle, Mark::Diamond];

impl Style {
    /// The style of the series for a value of an axis, the `index`th one.
    pub(super) fn of_value(axis: &str, value: &Value, index: usize) -> Style {
        let is_published = axis == "queues";
        let colour = match (is_published, value) {
            (true, Value::Number(1)) => RED,
            (true, _) => OTHERS[index.saturating_sub(1) % OTHERS.len()],
            (false, _) => OTHERS[index % OTHERS.len()],
        };
        Style { colour, mark: MARKS[index % MARKS.len()], line: Line::Solid }
    }

    /// The style of ringway if it is the only series.
    pub(super) fn only() -> Style {
        Style { colour: OTHERS[0], mark: Mark::Circle, line: Line::Solid }
    }

    /// The style of a baseline.
    pub(super) fn of_baseline(index: usize) -> Style {
        let even = index % 2 == 0;
        Style {
            colour: GREYS[index % GREYS.len()],
            mark: if even { Mark::Ring } else { Mark::Cross },
            line: if even { Line::Dashed } else { Line::Dotted },
        }
    }

    /// The dash pattern of its line for SVG.
    pub(super) fn dashes(self) -> Option<&'static str> {
        match self.line {
            Line::Solid => None,
            Line::Dashed => Some("7 4"),
            Line::Dotted => Some("2 4"),
        }
    }

    /// Its mark around a point.
    pub(super) fn draw_mark(self, x: f64, y: f64, size: f64) -> Markup {
        let colour = self.colour;
        let (left, right, top, bottom) = (x - size, x + size, y - size, y + size);
        match self.mark {
            Mark::Circle => html! { circle cx=(px(x)) cy=(px(y)) r=(px(size)) fill=(colour) {} },
            Mark::Ring => html! {
                circle cx=(px(x)) cy=(px(y)) r=(px(size)) fill="#fff" stroke=(colour)
                    stroke-width="1.8" {}
            },
            Mark::Square => html! {
                rect x=(px(left)) y=(px(top)) width=(px(2.0 * size)) height=(px(2.0 * size))
                    fill=(colour) {}
            },
            Mark::Triangle => html! {
                path d={ "M" (px(x)) " " (px(top - 1.0)) "L" (px(right + 1.0)) " " (px(bottom)) "L"
                    (px(left - 1.0)) " " (px(bottom)) "Z" } fill=(colour) {}
            },
            Mark::Diamond => html! {
                path d={ "M" (px(x)) " " (px(top - 1.5)) "L" (px(right + 1.5)) " " (px(y)) "L"
                    (px(x)) " " (px(bottom + 1.5)) "L" (px(left - 1.5)) " " (px(y)) "Z" }
                    fill=(colour) {}
            },
            Mark::Cross => html! {
                path d={ "M" (px(left)) " " (px(top)) "L" (px(right)) " " (px(bottom)) "M"
                    (px(left)) " " (px(bottom)) "L" (px(right)) " " (px(top)) }
                    fill="none" stroke=(colour) stroke-width="2" {}
            },
        }
    }
}

/// A length rounded to a tenth of a pixel; finer differences are invisible.
pub(super) fn px(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}
