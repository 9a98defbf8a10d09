//! Periodic readings of a tool, and the result for the measured seconds.

use super::Load;
use super::adapter::Reading;
use super::course::{Course, steps};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    /// Its start, in seconds from the start of the stream.
    pub(super) start: f64,
    /// Its end, in the same unit.
    pub(super) end: f64,
    /// Bytes sent in between.
    pub(super) bytes: f64,
    /// Segments retransmitted in between, if the tool reports them.
    pub(super) retransmits: Option<f64>,
}

/// Readings must cover at least this fraction of the measured seconds.
const COVERED_MIN: f64 = 0.5;

/// Bit/s over the measured seconds, and the segments retransmitted in them, if the tool reports
/// those. A reading counts if its middle is in the measured seconds.
///
/// # Errors
/// If the readings do not cover the measured seconds.
pub(super) fn counted(
    spans: impl IntoIterator<Item = Span>,
    load: &Load,
) -> Result<Reading, String> {
    let Load { warmup_seconds, seconds, .. } = *load;
    let (mut bytes, mut covered, mut retransmits) = (0.0, 0.0, None);
    let mut longest = 0.0_f64;
    let (count, step) = steps(seconds);
    let mut in_steps = vec![0.0; count];
    for span in spans {
        let middle = (span.start + span.end) / 2.0;
        // The bytes of a reading are spread evenly over the steps that it overlaps.
        let mut begin = warmup_seconds;
        for bytes in &mut in_steps {
            let within = span.end.min(begin + step) - span.start.max(begin);
            if within > 0.0 {
                *bytes += span.bytes * within / (span.end - span.start);
            }
            begin += step;
        }
        longest = longest.max(span.end - span.start);
        if middle >= warmup_seconds && middle < warmup_seconds + seconds {
            bytes += span.bytes;
            covered += span.end - span.start;
            retransmits = span.retransmits.map(|more| more + retransmits.unwrap_or(0.0));
        }
    }
    // Timers are inexact, and late on a busy machine, so a reading may be missing at each end.
    if covered < (seconds - 2.0 * longest).max(seconds * COVERED_MIN) {
        return Err(format!("it reported {covered:.2} s instead of {seconds:.2} s"));
    }
    Ok(Reading {
        bps: Some(bytes * 8.0 / covered),
        values: retransmits.map(|count| ("retransmits", count)).into_iter().collect(),
        course: Some((
            "throughput-bps",
            Course::of_steps(step, in_steps.iter().map(|bytes| bytes * 8.0 / step).collect()),
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    /// A load with this warm-up and these measured seconds.
    fn load(warmup_seconds: f64, seconds: f64) -> Load {
        Load { warmup_seconds, seconds, ..example() }
    }

    fn spans(readings: &[(f64, f64, f64)]) -> Vec<Span> {
        let span = |&(start, end, bytes)| Span { start, end, bytes, retransmits: Some(1.0) };
        readings.iter().map(span).collect()
    }

    #[test]
    fn only_what_is_in_the_window_counts() {
        let spans = spans(&[
            (0.0, 0.1001, 1e9),
            (0.1001, 0.2, 125.0),
            (0.2, 0.3002, 125.0),
            (0.3002, 0.4, 1e9),
        ]);
        let Reading { bps, values, course } = counted(spans, &load(0.1, 0.2)).expect("good");
        assert!((bps.expect("bytes were reported") - 2000.0 / 0.2001).abs() < 1e-6, "{bps:?}");
        assert_eq!(values, [("retransmits", 2.0)]);
        let (metric, course) = course.expect("it has one");
        assert_eq!((metric, course.values.len()), ("throughput-bps", 2));
        // 125 bytes in a tenth of a second, except at the ends of the steps.
        for value in course.values.into_iter().flatten() {
            assert!(value > 9_900.0, "{value}");
        }
    }

    #[test]
    fn readings_may_be_late_but_not_miss_half() {
        let late = spans(&[(0.0, 0.5, 1.0), (0.5, 0.9, 10.0), (0.9, 1.4, 10.0), (1.4, 2.0, 1.0)]);
        assert!(counted(late.clone(), &load(0.5, 1.2)).is_ok());
        assert!(counted(late, &load(0.5, 4.0)).is_err());
    }

    #[test]
    fn a_stream_that_was_cut_is_no_measurement() {
        let spans = spans(&[(0.0, 0.1, 1.0), (0.1, 0.2, 1.0)]);
        assert!(counted(spans, &load(0.0, 1.0)).expect_err("cut").contains("instead of 1.00 s"));
        assert!(counted([], &load(0.0, 0.1)).is_err());
    }
}
