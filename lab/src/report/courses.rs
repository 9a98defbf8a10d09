//! Runs of a cell from second to second, and the distribution of their samples: a thin line for
//! each run, so that an outlier is visible.

use maud::{Markup, html};
use ringway_stats::float;

use super::frame::{hint, scale, tick_text};
use super::style::{AXIS, FONT, GRID, INK, MUTED, px};
use crate::metric::{self, Metric};
use crate::record::{Course, Run};

/// Pixels.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 36.0;
/// Colours of runs, used in turn.
const COLOURS: [&str; 6] = ["#1f6fb2", "#3aa76d", "#5e2a84", "#b0578d", "#0b7a75", "#7a5c3e"];

/// Points from left to right, with gaps between lines.
type Lines = Vec<Vec<(f64, f64)>>;

/// Both pictures of each metric that has a course; `None` if no run has one.
pub(super) fn draw(runs: &[&Run]) -> Option<Markup> {
    let names = metric::METRICS
        .iter()
        .filter(|metric| runs.iter().any(|run| run.courses.get(metric.name).is_some_and(is_drawn)));
    let pictures: Vec<Markup> = names.map(|metric| both(metric, runs)).collect();
    (!pictures.is_empty()).then(|| html! { @for picture in pictures { (picture) } })
}

/// Whether a course has anything to draw.
fn is_drawn(course: &Course) -> bool {
    course.values.iter().flatten().all(|value| value.is_finite())
        && course.step_seconds > 0.0
        && course.quantiles.iter().all(|value| value.is_finite())
        && !course.quantiles.is_empty()
}

fn both(metric: &Metric, runs: &[&Run]) -> Markup {
    let courses: Vec<(&Run, &Course)> = runs
        .iter()
        .filter_map(|run| Some((*run, run.courses.get(metric.name)?)))
        .filter(|(_, course)| is_drawn(course))
        .collect();
    let in_time = |course: &Course| -> Lines {
        let points = course.values.iter().enumerate().map(|(index, value)| {
            value.map(|value| ((float(index) + 0.5) * course.step_seconds, value / metric.scale))
        });
        // A step without a sample is a gap.
        let points: Vec<Option<(f64, f64)>> = points.collect();
        points.split(Option::is_none).map(|part| part.iter().copied().flatten().collect()).collect()
    };
    let in_parts = |course: &Course| -> Lines {
        let last = float(course.quantiles.len().saturating_sub(1)).max(1.0);
        let point =
            |(index, value): (usize, &f64)| (value / metric.scale, 100.0 * float(index) / last);
        vec![course.quantiles.iter().enumerate().map(point).collect()]
    };
    let title = metric.axis_title();
    let name = metric.title;
    html! {
        div.course {
            (picture(&format!("{title} over seconds"), "seconds", &courses, &in_time))
            (picture(&format!("Percent of samples up to a {name}"), &title, &courses, &in_parts))
        }
    }
}

/// Lines of all runs over a common scale from zero.
fn picture(
    title: &str,
    x_title: &str,
    courses: &[(&Run, &Course)],
    lines: &dyn Fn(&Course) -> Lines,
) -> Markup {
    let drawn: Vec<(&Run, Lines)> =
        courses.iter().map(|(run, course)| (*run, lines(course))).collect();
    let points = || drawn.iter().flat_map(|(_, lines)| lines.iter().flatten());
    let (x_step, x_max) = scale(points().map(|(x, _)| *x).fold(0.0, f64::max));
    let (y_step, y_max) = scale(points().map(|(_, y)| *y).fold(0.0, f64::max));
    let x = |value: f64| LEFT + (RIGHT - LEFT) * value / x_max;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / y_max;
    let ticks = |step: f64, max: f64| {
        (0..=20)
            .map(f64::from)
            .map(move |tick| tick * step)
            .take_while(move |at| *at <= max * 1.001)
    };
    let path = |line: &[(f64, f64)]| {
        let steps: Vec<String> =
            line.iter().map(|(at, value)| format!("{} {}", px(x(*at)), px(y(*value)))).collect();
        // A line of one point shows only its round cap.
        if steps.len() == 1 { format!("M{}h0", steps[0]) } else { format!("M{}", steps.join("L")) }
    };
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img"
            aria-label={ (title) ", " (drawn.len()) " runs" }
            viewBox={ "0 0 " (px(WIDTH)) " " (px(HEIGHT)) } width=(px(WIDTH)) height=(px(HEIGHT))
            font-family=(FONT) font-size="11" fill=(INK) {
            rect width="100%" height="100%" fill="#fff" {}
            text x="4" y="14" font-size="12" fill=(MUTED) { (title) }
            @for tick in ticks(y_step, y_max) {
                line x1=(px(LEFT)) x2=(px(RIGHT)) y1=(px(y(tick))) y2=(px(y(tick)))
                    stroke=(if tick == 0.0 { AXIS } else { GRID }) {}
                text x=(px(LEFT - 5.0)) y=(px(y(tick) + 4.0)) text-anchor="end" fill=(MUTED) {
                    (tick_text(tick, y_step))
                }
            }
            @for tick in ticks(x_step, x_max) {
                text x=(px(x(tick))) y=(px(BOTTOM + 14.0)) text-anchor="middle" fill=(MUTED) {
                    (tick_text(tick, x_step))
                }
            }
            text x=(px(f64::midpoint(LEFT, RIGHT))) y=(px(BOTTOM + 29.0)) text-anchor="middle"
                fill=(MUTED) { (x_title) }
            @for (index, (run, lines)) in drawn.iter().enumerate() {
                g fill="none" stroke=(COLOURS[index % COLOURS.len()]) stroke-width="1.2"
                    stroke-linejoin="round" stroke-linecap="round" opacity="0.8" {
                    (hint(&format!("run {}, begun {}", run.repeat + 1, run.started)))
                    @for line in lines.iter().filter(|line| !line.is_empty()) {
                        path d=(path(line)) {}
                    }
                }
            }
        }
    }
}
