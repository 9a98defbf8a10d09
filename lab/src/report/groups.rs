//! What bars and boxes have in common: at each place of the axis, one for each series, side by
//! side.

use maud::{Markup, html};
use ringway_stats::float;

use super::chart::{Chart, Point, Series};
use super::frame::{Form, Frame, hint};
use super::style::INK;

/// How bars or boxes are drawn.
pub(super) struct Group {
    /// The fraction of a place that they fill together.
    pub(super) filled: f64,
    /// The maximum width.
    pub(super) width_max: f64,
    /// The text of a point.
    pub(super) says: fn(&Chart, &Point) -> String,
    /// Draws one.
    pub(super) draw: fn(&Mark<'_>) -> Markup,
}

/// A bar or a box to draw.
pub(super) struct Mark<'a> {
    pub(super) chart: &'a Chart,
    pub(super) frame: &'a Frame,
    pub(super) series: &'a Series,
    pub(super) point: &'a Point,
    /// Its centre.
    pub(super) x: f64,
    pub(super) width: f64,
}

impl Group {
    pub(super) fn figure(&self, chart: &Chart, form: Form) -> Markup {
        let frame = Frame::of(chart, form, &[]);
        let width = (frame.place_width() * self.filled / float(chart.crowd())).min(self.width_max);
        let inside = html! {
            @for (index, series) in chart.series.iter().enumerate() {
                @for (place, point) in series.points.iter().enumerate() {
                    @if let Some(point) = point {
                        @let (rank, count) = chart.rank(index, place);
                        @let shift = (float(rank) - (float(count) - 1.0) / 2.0) * width;
                        g {
                            (hint(&format!(
                                "{}, {}: {}, {} runs", series.name, chart.places[place].name,
                                (self.says)(chart, point), point.summary.count
                            )))
                            @let x = frame.x(place) + shift;
                            ((self.draw)(&Mark { chart, frame: &frame, series, point, x, width }))
                        }
                        (frame.draw_predicted(chart, point, frame.x(place) + shift, INK))
                    }
                }
            }
        };
        frame.draw(chart, &inside)
    }
}
