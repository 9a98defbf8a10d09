//! The course of a value over a run, and the distribution of its samples.

use ringway_stats::average::{float, median, quantile, sorted};
use serde::{Deserialize, Serialize};

/// Seconds between two readings of a tool: the shortest interval of iperf3.
pub(super) const INTERVAL: f64 = 0.1;
/// Steps of a course at most, so that records stay small however long a run is.
const STEPS_MAX: f64 = 200.0;
/// A quantile for each percent, with both ends.
const QUANTILES: usize = 101;

/// A value over the measured seconds, in the unit of its metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Course {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// A value for each step; `None` for a step without samples.
    pub values: Vec<Option<f64>>,
    /// The percentiles of all samples, from the least value to the largest.
    pub quantiles: Vec<f64>,
}

/// The number of steps in some seconds, and the length of each.
pub(super) fn steps(seconds: f64) -> (usize, f64) {
    let count = (seconds / INTERVAL).round().clamp(1.0, STEPS_MAX);
    let count = (1..=200).find(|steps| float(*steps) >= count).unwrap_or(1);
    (count, seconds / float(count))
}

impl Course {
    /// A course with one value for each step, each of which is a sample.
    pub(super) fn of_steps(step_seconds: f64, values: Vec<f64>) -> Course {
        let quantiles = quantiles(&values);
        Course { step_seconds, values: values.into_iter().map(Some).collect(), quantiles }
    }

    /// A course of samples with their times: the median of each step.
    pub(super) fn of_samples(seconds: f64, samples: &[(f64, f64)]) -> Course {
        let (count, step_seconds) = steps(seconds);
        let mut in_steps = vec![Vec::new(); count];
        for (at, value) in samples {
            let step = (0..count).find(|step| *at < float(*step + 1) * step_seconds);
            if let Some(values) = step.and_then(|step| in_steps.get_mut(step)) {
                values.push(*value);
            }
        }
        let middle = |values: &Vec<f64>| (!values.is_empty()).then(|| median(values));
        let all: Vec<f64> = samples.iter().map(|(_, value)| *value).collect();
        let values = in_steps.iter().map(middle).collect();
        Course { step_seconds, values, quantiles: quantiles(&all) }
    }

    /// Adds the course of another stream: rates add up.
    pub(super) fn sum(&mut self, other: &Course) {
        for (value, more) in self.values.iter_mut().zip(&other.values) {
            *value = value.zip(*more).map(|(value, more)| value + more);
        }
        let values: Vec<f64> = self.values.iter().copied().flatten().collect();
        self.quantiles = quantiles(&values);
    }

    /// Adds the course of another stream, of times: at each step the longer one counts.
    pub(super) fn longest(&mut self, other: &Course) {
        for (value, other) in self.values.iter_mut().zip(&other.values) {
            *value = [*value, *other].into_iter().flatten().reduce(f64::max);
        }
        for (value, other) in self.quantiles.iter_mut().zip(&other.quantiles) {
            *value = value.max(*other);
        }
    }
}

/// The quantiles of samples; empty without samples.
fn quantiles(samples: &[f64]) -> Vec<f64> {
    if samples.is_empty() {
        return Vec::new();
    }
    let sorted = sorted(samples);
    let part = |index| float(index) / float(QUANTILES - 1);
    (0..QUANTILES).map(|index| quantile(&sorted, part(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_short_however_long_the_run() {
        assert_eq!(steps(1.3).0, 13);
        let (count, step) = steps(60.0);
        assert_eq!(count, 200);
        assert!((step - 0.3).abs() < 1e-9);
        assert_eq!(steps(0.01).0, 1);
    }

    #[test]
    fn samples_are_in_their_steps_and_a_step_without_any_has_no_value() {
        let course = Course::of_samples(0.3, &[(0.0, 3.0), (0.05, 5.0), (0.09, 4.0), (0.25, 9.0)]);
        assert_eq!(course.values, [Some(4.0), None, Some(9.0)]);
        assert_eq!((course.quantiles[0], course.quantiles[100]), (3.0, 9.0));
        assert!(course.quantiles.is_sorted());
        assert!(Course::of_samples(0.3, &[]).quantiles.is_empty());
    }

    #[test]
    fn rates_of_streams_add_up_and_of_times_the_longest_counts() {
        let mut rate = Course::of_steps(0.1, vec![1.0, 2.0]);
        rate.sum(&Course::of_steps(0.1, vec![10.0, 20.0]));
        assert_eq!(rate.values, [Some(11.0), Some(22.0)]);
        assert_eq!((rate.quantiles[0], rate.quantiles[100]), (11.0, 22.0));
        let mut time = Course::of_samples(0.2, &[(0.0, 1.0)]);
        time.longest(&Course::of_samples(0.2, &[(0.0, 3.0), (0.1, 2.0)]));
        assert_eq!(time.values, [Some(3.0), Some(2.0)]);
    }
}
