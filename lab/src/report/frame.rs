//! The frame that all figures share: title, legend, axes, notes and scale.

use maud::{Markup, html};
use ringway_stats::float;

use super::chart::{Chart, Point};
use super::style::{AXIS, FONT, GRID, INK, MUTED, Style, WARN, px};

/// The shape of a figure: for desktop and print, or for a phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Wide,
    Narrow,
}

/// The layout, in pixels of the figure.
pub(super) struct Frame {
    form: Form,
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    title: Vec<String>,
    legend: Vec<LegendLine>,
    x_names: Vec<Vec<String>>,
    notes: Vec<String>,
    step: f64,
    y_max: f64,
}

/// Entries of the legend with their horizontal positions.
type LegendLine = Vec<(f64, String, Option<Style>)>;

const LINE_HEIGHT: f64 = 17.0;
const NOTE_HEIGHT: f64 = 15.0;

impl Form {
    fn size(self) -> (f64, f64) {
        match self {
            Form::Wide => (720.0, 280.0),
            Form::Narrow => (350.0, 230.0),
        }
    }

    /// The mark of a point.
    pub(super) fn mark(self) -> f64 {
        match self {
            Form::Wide => 4.5,
            Form::Narrow => 4.0,
        }
    }
}

impl Frame {
    /// Room for a chart. `extra` entries of the legend have no series.
    pub(super) fn of(chart: &Chart, form: Form, extra: &[&str]) -> Frame {
        let (width, plot_height) = form.size();
        let (step, y_max) = scale(chart.top());
        let left = 20.0 + 7.2 * float(tick_text(y_max, step).len().max(2));
        let right = width - 14.0;
        let title = wrapped(&chart.title, width - 16.0, 9.6);
        let legend = legend(chart, extra, width - 16.0);
        let top = 14.0 + 21.0 * float(title.len()) + 20.0 * float(legend.len()) + 32.0;
        let bottom = top + plot_height;
        let place = (right - left) / float(chart.places.len().max(1));
        let x_names: Vec<Vec<String>> =
            chart.places.iter().map(|place_| wrapped(&place_.name, place - 4.0, 6.6)).collect();
        let x_lines = x_names.iter().map(Vec::len).max().unwrap_or(1);
        let notes: Vec<String> = chart
            .notes
            .iter()
            .flat_map(|note| wrapped(&format!("⚠ {note}"), width - 20.0, 6.1))
            .collect();
        let height = bottom
            + 14.0
            + LINE_HEIGHT * float(x_lines + 1)
            + NOTE_HEIGHT * float(notes.len())
            + if notes.is_empty() { 0.0 } else { 8.0 };
        Frame {
            form,
            width,
            height,
            left,
            right,
            top,
            bottom,
            title,
            legend,
            x_names,
            notes,
            step,
            y_max,
        }
    }

    /// Width of one place in pixels.
    pub(super) fn place_width(&self) -> f64 {
        (self.right - self.left) / float(self.x_names.len().max(1))
    }

    /// The middle of a place.
    pub(super) fn x(&self, place: usize) -> f64 {
        self.left + self.place_width() * (float(place) + 0.5)
    }

    /// The vertical position of a value in the unit of the axis.
    pub(super) fn y(&self, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * value / self.y_max
    }

    /// The vertical position of a fraction of the axis.
    pub(super) fn y_part(&self, part: f64) -> f64 {
        self.y(part * self.y_max)
    }

    /// The shape of the figure.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// The whole figure, around its content.
    pub(super) fn draw(&self, chart: &Chart, inside: &Markup) -> Markup {
        html! {
            svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label=(chart.alt())
                viewBox={ "0 0 " (px(self.width)) " " (px(self.height)) } width=(px(self.width))
                height=(px(self.height)) font-family=(FONT) font-size="13" fill=(INK) {
                rect width="100%" height="100%" fill="#fff" {}
                @for (index, line) in self.title.iter().enumerate() {
                    text x="8" y=(px(20.0 + 21.0 * float(index))) font-size="16" font-weight="600" {
                        (line)
                    }
                }
                (self.draw_legend())
                text x="8" y=(px(self.top - 17.0)) font-size="12" fill=(MUTED) {
                    (y_title(chart, self.form))
                }
                (self.draw_axes(chart))
                (inside)
                (self.draw_published(chart))
                (self.draw_notes())
            }
        }
    }

    fn draw_legend(&self) -> Markup {
        let first = 14.0 + 21.0 * float(self.title.len()) + 9.0;
        html! {
            @for (index, line) in self.legend.iter().enumerate() {
                @let y = first + 20.0 * float(index);
                @for (x, name, style) in line {
                    @if let Some(style) = style {
                        line x1=(px(*x)) x2=(px(x + 24.0)) y1=(px(y)) y2=(px(y))
                            stroke=(style.colour) stroke-width="2"
                            stroke-dasharray=[style.dashes()] {}
                        (style.draw_mark(x + 12.0, y, 4.0))
                    } @else {
                        rect x=(px(x + 6.0)) y=(px(y - 6.0)) width="12" height="12" fill=(GRID)
                            stroke=(AXIS) {}
                    }
                    text x=(px(x + 30.0)) y=(px(y + 4.5)) { (name) }
                }
            }
        }
    }

    fn draw_axes(&self, chart: &Chart) -> Markup {
        let count = (self.y_max / self.step).round();
        let ticks = (0..=20).map(f64::from).take_while(|tick| *tick <= count + 0.5);
        let below = self.bottom + 18.0;
        let lines = self.x_names.iter().map(Vec::len).max().unwrap_or(1);
        html! {
            @for tick in ticks {
                @let y = self.y(tick * self.step);
                line x1=(px(self.left)) x2=(px(self.right)) y1=(px(y)) y2=(px(y))
                    stroke=(if tick == 0.0 { AXIS } else { GRID }) {}
                text x=(px(self.left - 7.0)) y=(px(y + 4.0)) text-anchor="end" font-size="12"
                    fill=(MUTED) { (tick_text(tick * self.step, self.step)) }
            }
            @for (place, names) in self.x_names.iter().enumerate() {
                @for (line, name) in names.iter().enumerate() {
                    text x=(px(self.x(place))) y=(px(below + 14.0 * float(line)))
                        text-anchor="middle" font-size="12" { (name) }
                }
            }
            text x=(px(f64::midpoint(self.left, self.right)))
                y=(px(below + 4.0 + 15.0 * float(lines))) text-anchor="middle" font-size="12"
                fill=(MUTED) { (chart.x_title) }
        }
    }

    /// A diamond where a value was published, or dashes where it was the best of all places.
    fn draw_published(&self, chart: &Chart) -> Markup {
        html! {
            @for mark in &chart.published {
                @let y = self.y(mark.value / chart.metric.scale);
                g {
                    (hint(&mark.about))
                    @match mark.place {
                        Some(place) => {
                            @let x = self.x(place);
                            path d={ "M" (px(x)) " " (px(y - 6.0)) "L" (px(x + 6.0)) " " (px(y)) "L"
                                (px(x)) " " (px(y + 6.0)) "L" (px(x - 6.0)) " " (px(y)) "Z" }
                                fill="#fff" stroke=(mark.colour) stroke-width="2" {}
                        }
                        None => {
                            line x1=(px(self.left)) x2=(px(self.right)) y1=(px(y)) y2=(px(y))
                                stroke=(mark.colour) stroke-width="1.5"
                                stroke-dasharray="2 5" {}
                        }
                    }
                }
            }
        }
    }

    /// What the model says of a point, beside its mark at `x`: a dash at the mean, and dots from
    /// the lower to the upper end, as far as the axis reaches.
    pub(super) fn draw_predicted(
        &self,
        chart: &Chart,
        point: &Point,
        x: f64,
        colour: &str,
    ) -> Markup {
        let y = |value: f64| px(self.y((value / chart.metric.scale).min(self.y_max)));
        let (x, left, right) = (px(x + 7.0), px(x + 2.0), px(x + 12.0));
        html! {
            @if let (Some(one), Some(text)) = (point.predicted, chart.prediction(point)) {
                g {
                    (hint(&text))
                    path d={ "M" (x) " " (y(one.low)) "V" (y(one.high)) } fill="none"
                        stroke=(colour) stroke-width="1.5" stroke-dasharray="1.5 2.5" {}
                    @if let Some(mean) = one.value {
                        path d={ "M" (left) " " (y(mean)) "H" (right) } fill="none"
                            stroke=(colour) stroke-width="2.5" {}
                    }
                }
            }
        }
    }

    fn draw_notes(&self) -> Markup {
        let first = self.height - 6.0 - NOTE_HEIGHT * (float(self.notes.len()) - 1.0);
        html! {
            @for (index, line) in self.notes.iter().enumerate() {
                text x="8" y=(px(first + NOTE_HEIGHT * float(index))) font-size="11.5" fill=(WARN) {
                    (line)
                }
            }
        }
    }
}

/// The bar of a standard deviation, with its ends.
pub(super) fn deviation_bar(x: f64, top: f64, bottom: f64, colour: &str) -> Markup {
    let (left, right) = (px(x - 4.0), px(x + 4.0));
    html! {
        path d={ "M" (px(x)) " " (px(top)) "V" (px(bottom)) "M" (left) " " (px(top)) "H" (right) "M"
            (left) " " (px(bottom)) "H" (right) } stroke=(colour) stroke-width="1.5" fill="none" {}
    }
}

/// The tooltip of a mark.
pub(super) fn hint(text: &str) -> Markup {
    html! { title { (text) } }
}

/// The distance of ticks and the end of an axis that has room for `top`.
pub(super) fn scale(top: f64) -> (f64, f64) {
    let top = if top > 0.0 && top.is_finite() { top * 1.04 } else { 1.0 };
    let rough = top / 5.0;
    let power = 10.0_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(rough);
    (step, (top / step).ceil() * step)
}

/// A tick's label, with as many decimals as the distance between ticks.
pub(super) fn tick_text(value: f64, step: f64) -> String {
    let decimals = (0..6_i32).find(|decimals| {
        let scaled = step * 10.0_f64.powi(*decimals);
        (scaled - scaled.round()).abs() < 1e-6
    });
    let decimals = usize::try_from(decimals.unwrap_or(6)).unwrap_or(6);
    format!("{value:.decimals$}")
}

fn y_title(chart: &Chart, form: Form) -> String {
    use crate::study::FigureKind;
    let what = match chart.kind {
        FigureKind::Lines | FigureKind::Bars => "mean ± standard deviation",
        FigureKind::Boxes => "quartiles, median, every run",
        FigureKind::Placement => "every run, mean",
    };
    let published = match chart.published.is_empty() {
        true => "",
        false => "; \u{25c7} or dots: published",
    };
    // A phone has no room for it; its caption says it.
    let predicted = match form == Form::Wide && chart.has_predictions() {
        true => "; dash and dots: predicted",
        false => "",
    };
    format!("{}: {what}{published}{predicted}", chart.metric.axis_title())
}

fn legend(chart: &Chart, extra: &[&str], width: f64) -> Vec<LegendLine> {
    let named = chart.series.iter().filter(|series| series.is_in_legend);
    let series = named.map(|series| (series.name.clone(), Some(series.style)));
    let extra = extra.iter().map(|name| ((*name).to_owned(), None));
    let entries: Vec<(String, Option<Style>)> = series.chain(extra).collect();
    if entries.len() < 2 {
        return Vec::new();
    }
    let mut lines: Vec<LegendLine> = vec![Vec::new()];
    let mut x = 8.0;
    for (name, style) in entries {
        let needed = 48.0 + 7.0 * float(name.chars().count());
        if x + needed > width && x > 8.0 {
            lines.push(Vec::new());
            x = 8.0;
        }
        if let Some(line) = lines.last_mut() {
            line.push((x, name, style));
        }
        x += needed;
    }
    lines
}

/// Text wrapped to this width, with letters of about this width. A wider word is broken at a hyphen
/// or a plus sign if it has one.
fn wrapped(text: &str, width: f64, letter: f64) -> Vec<String> {
    let fits = |text: &str| float(text.chars().count()) * letter <= width;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let pieces: Vec<&str> =
            if fits(word) { vec![word] } else { word.split_inclusive(['-', '+']).collect() };
        for (index, piece) in pieces.into_iter().enumerate() {
            let line = lines.last_mut().expect("it never is empty");
            let space = if line.is_empty() || index > 0 { "" } else { " " };
            if line.is_empty() || fits(&format!("{line}{space}{piece}")) {
                line.push_str(space);
                line.push_str(piece);
            } else {
                lines.push(piece.to_owned());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_leave_room() {
        assert_eq!(scale(9.4), (2.0, 10.0));
        assert_eq!(scale(0.107), (0.025, 0.125));
        assert_eq!(scale(0.0), (0.2, 1.0));
        for top in [0.003, 0.9, 1.0, 4.7, 99.0, 61_234.0] {
            let (step, end) = scale(top);
            assert!(end >= top && end / step <= 10.5, "{top}: {step} {end}");
        }
        assert_eq!(tick_text(0.05, 0.025), "0.050");
        assert_eq!(tick_text(10.0, 2.0), "10");
    }

    #[test]
    fn long_names_are_broken_where_they_may_be() {
        assert_eq!(wrapped("guest-asynchronous", 80.0, 6.6), ["guest-", "asynchronous"]);
        assert_eq!(wrapped("one two three", 50.0, 6.0), ["one two", "three"]);
    }
}
