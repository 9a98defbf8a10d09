//! How certain a few numbers are. Each function states its assumptions.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::average::{float, mean, quantile, sorted};

/// The confidence level of intervals.
pub const CONFIDENCE: f64 = 0.95;
/// With fewer values, an interval says more about Student's t than about the values: for two, its
/// half-width is 6.35 times their distance.
const INTERVAL_COUNT_MIN: usize = 3;
/// A trend is reported if its p-value is below this.
const DRIFT_CHANCE_MAX: f64 = 0.01;
/// With fewer numbers, neither shape nor skew can be judged.
const SHAPE_COUNT_MIN: usize = 8;
/// Above this the mean of a few numbers is not distributed as Student's t assumes.
const SKEWNESS_MAX: f64 = 1.0;
const RESAMPLES: usize = 2_000;

/// The range that contains the true value with [`CONFIDENCE`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a value is in it.
    pub fn has(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    fn around(middle: f64, half: f64) -> Interval {
        Interval { low: middle - half, high: middle + half }
    }
}

/// How the interval of a mean was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By Student's t.
    Student,
    /// By resampling, because the values are skewed.
    Bootstrap,
}

/// The statistics of some values of one metric in one cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Summary {
    /// How many there are.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Standard deviation of the sample; `None` for one value.
    pub sd: Option<f64>,
    /// Their median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// A quarter of the values is below it.
    pub quartile_low: f64,
    /// A quarter of the values is above it.
    pub quartile_high: f64,
    /// The greatest.
    pub max: f64,
    /// The interval of the mean; `None` for one or two values. If no value is negative, neither is
    /// the mean, so the interval is cut off at 0.
    pub interval: Option<Interval>,
    /// How the interval was computed.
    pub method: Method,
}

impl Summary {
    /// The summary of at least one value; `None` without any.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let sorted = sorted(values);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let is_skewed = sorted.len() >= SHAPE_COUNT_MIN
            && skewness(&sorted).is_some_and(|skew| skew.abs() > SKEWNESS_MAX);
        let method = if is_skewed { Method::Bootstrap } else { Method::Student };
        let interval = match method {
            Method::Student => student_interval(&sorted),
            Method::Bootstrap => bootstrap_interval(&sorted),
        };
        let least = if min >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        Some(Summary {
            count: sorted.len(),
            mean: mean(&sorted),
            sd: sd(&sorted),
            median: quantile(&sorted, 0.5),
            min,
            quartile_low: quantile(&sorted, 0.25),
            quartile_high: quantile(&sorted, 0.75),
            max,
            interval: interval.map(|Interval { low, high }| Interval { low: low.max(least), high }),
            method,
        })
    }

    /// The longer half of the interval as a fraction of the mean: more repeats make it smaller.
    pub fn precision(&self) -> Option<f64> {
        let Interval { low, high } = self.interval?;
        let half = (high - self.mean).max(self.mean - low);
        Some(half / self.mean.abs()).filter(|part| part.is_finite())
    }
}

/// Standard deviation of a sample (divided by one less than the count).
pub fn sd(values: &[f64]) -> Option<f64> {
    (values.len() > 1).then(|| (squares(values) / float(values.len() - 1)).sqrt())
}

fn squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// The two-sided quantile of Student's t for [`CONFIDENCE`].
fn student(freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom)
        .map_or(f64::INFINITY, |t| t.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)))
}

/// Interval of the mean, for normally distributed or many values; `None` for fewer than three.
pub fn student_interval(values: &[f64]) -> Option<Interval> {
    if values.len() < INTERVAL_COUNT_MIN {
        return None;
    }
    let error = sd(values)? / float(values.len()).sqrt();
    Some(Interval::around(mean(values), student(float(values.len() - 1)) * error))
}

/// Half of the interval of the mean of normally distributed values that fall into groups, each with
/// a mean of its own; `None` if no group has two of them.
pub fn half_within(groups: &[Vec<f64>]) -> Option<f64> {
    let count: usize = groups.iter().map(Vec::len).sum();
    let freedom = count.checked_sub(groups.len()).filter(|freedom| *freedom > 0)?;
    let within: f64 = groups.iter().map(|group| squares(group)).sum();
    let error = (within / float(freedom) / float(count)).sqrt();
    Some(student(float(freedom)) * error)
}

/// Interval of the mean from the percentiles of the means of resampled values. The seed is fixed:
/// the same values give the same interval.
pub fn bootstrap_interval(values: &[f64]) -> Option<Interval> {
    if values.len() < INTERVAL_COUNT_MIN {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(1);
    let resampled = |_| {
        let draws = (0..values.len()).map(|_| values[random.usize(..values.len())]);
        draws.sum::<f64>() / float(values.len())
    };
    let means = sorted(&(0..RESAMPLES).map(resampled).collect::<Vec<f64>>());
    let doubt = (1.0 - CONFIDENCE) / 2.0;
    Some(Interval { low: quantile(&means, doubt), high: quantile(&means, 1.0 - doubt) })
}

/// Jain's index of fairness: 1 if all get the same, `1/n` if one gets everything.
pub fn jain(values: &[f64]) -> Option<f64> {
    let squares: f64 = values.iter().map(|value| value * value).sum();
    let sum: f64 = values.iter().sum();
    (squares > 0.0).then(|| sum * sum / (float(values.len()) * squares))
}

/// Skewness of a sample, corrected for its size (Fisher and Pearson).
fn skewness(values: &[f64]) -> Option<f64> {
    let n = float(values.len());
    let deviation = (squares(values) / n).sqrt();
    let third: f64 = values.iter().map(|value| (value - mean(values)).powi(3)).sum::<f64>() / n;
    (values.len() > 2 && deviation > 0.0)
        .then(|| third / deviation.powi(3) * (n * (n - 1.0)).sqrt() / (n - 2.0))
}

/// Two groups instead of one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Modes {
    /// The mean of the lower group.
    pub low: f64,
    /// The mean of the upper group.
    pub high: f64,
}

/// Whether values fall into two groups. The values are split where the groups are tightest, with at
/// least two values in each; there are two groups if the means are further apart than by chance.
/// One normal sample in a hundred is mistaken for two groups, and groups eight deviations apart are
/// rarely missed.
pub fn modes(values: &[f64]) -> Option<Modes> {
    let sorted = sorted(values);
    if sorted.len() < SHAPE_COUNT_MIN {
        return None;
    }
    let cuts = (2..sorted.len() - 1).map(|at| {
        let (below, above) = sorted.split_at(at);
        (squares(below) + squares(above), Modes { low: mean(below), high: mean(above) })
    });
    let (within, modes) = cuts.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let deviation = (within / float(sorted.len() - 2)).sqrt();
    let distance = (modes.high - modes.low) / deviation;
    (distance > distance_by_chance(sorted.len())).then_some(modes)
}

/// The distance, in deviations, that the tightest two groups of a normal sample do not exceed in 99
/// of 100 cases: a curve fitted to simulated samples of 8 to 40 values, which the tests repeat.
fn distance_by_chance(count: usize) -> f64 {
    3.0 + 33.0 / float(count)
}

/// A trend over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Drift {
    /// Kendall's tau against time: 1 if every value is above the one before.
    pub tau: f64,
    /// The probability of such a trend or a stronger one by chance.
    pub chance: f64,
}

/// Whether values in chronological order drift (Mann-Kendall test, two-sided).
pub fn drift(values: &[f64]) -> Option<Drift> {
    mann_kendall(values).filter(|drift| drift.chance < DRIFT_CHANCE_MAX)
}

/// The Mann-Kendall test: exact for up to `EXACT_MAX` values without ties, else by the normal
/// approximation with corrections for ties and continuity.
pub fn mann_kendall(values: &[f64]) -> Option<Drift> {
    if values.len() < 4 {
        return None;
    }
    let pairs = || (1..values.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    let rising = pairs().filter(|&(i, j)| values[j] > values[i]).count();
    let falling = pairs().filter(|&(i, j)| values[j] < values[i]).count();
    let all = pairs().count();
    let score = float(rising) - float(falling);
    let has_ties = rising + falling < all;
    let chance = if has_ties || values.len() > EXACT_MAX {
        normal_chance(values, score)?
    } else {
        exact_chance(values.len(), rising.min(falling))
    };
    Some(Drift { tau: score / float(all), chance })
}

const EXACT_MAX: usize = 40;

/// Two-sided probability that a random order of `n` values has at most this many inversions, or at
/// most as many pairs in order.
fn exact_chance(n: usize, inversions: usize) -> f64 {
    // The share of orders by their number of inversions; each step adds a value.
    let mut shares = vec![1.0];
    for size in 2..=n {
        let mut next = vec![0.0; shares.len() + size - 1];
        for (at, share) in shares.iter().enumerate() {
            next[at..at + size].iter_mut().for_each(|slot| *slot += share / float(size));
        }
        shares = next;
    }
    (2.0 * shares.iter().take(inversions + 1).sum::<f64>()).min(1.0)
}

fn normal_chance(values: &[f64], score: f64) -> Option<f64> {
    let weight = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let sorted = sorted(values);
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|group| weight(float(group.len()))).sum();
    let variance = (weight(float(values.len())) - ties) / 18.0;
    if variance <= 0.0 {
        return Some(1.0);
    }
    let z = (score.abs() - 1.0).max(0.0) / variance.sqrt();
    Some(2.0 * (1.0 - Normal::new(0.0, 1.0).ok()?.cdf(z)))
}

/// Welch's test of two samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Welch {
    /// The statistic.
    pub t: f64,
    /// Its degrees of freedom.
    pub freedom: f64,
    /// The probability of such a difference or a larger one if the means are equal.
    pub chance: f64,
    /// The interval of the difference, `b` minus `a`.
    pub difference: Interval,
}

/// Whether the mean of `b` differs from that of `a`; `None` without a spread.
pub fn welch(a: &[f64], b: &[f64]) -> Option<Welch> {
    let (error_a, error_b) = (squared_error(a)?, squared_error(b)?);
    let freedom = welch_freedom([(error_a, a.len()), (error_b, b.len())])?;
    let error = (error_a + error_b).sqrt();
    let difference = mean(b) - mean(a);
    let t = difference / error;
    let tail = 1.0 - StudentsT::new(0.0, 1.0, freedom).ok()?.cdf(t.abs());
    let difference = Interval::around(difference, student(freedom) * error);
    Some(Welch { t, freedom, chance: 2.0 * tail, difference })
}

fn squared_error(values: &[f64]) -> Option<f64> {
    Some(sd(values)?.powi(2) / float(values.len()))
}

/// The Welch-Satterthwaite degrees of freedom of a sum of squared errors.
fn welch_freedom(parts: [(f64, usize); 2]) -> Option<f64> {
    let sum: f64 = parts.iter().map(|(error, _)| error).sum();
    let below: f64 = parts.iter().map(|(error, n)| error.powi(2) / float(n - 1)).sum();
    Some(sum.powi(2) / below).filter(|freedom| freedom.is_finite())
}

/// A ratio of two means.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// One mean divided by the other.
    pub value: f64,
    /// `None` if one of them has fewer than three values; no wider than the ratio if neither has a
    /// spread.
    pub interval: Option<Interval>,
}

/// The mean of `of` divided by the mean of `to`, both of positive values, with the interval of its
/// logarithm by the delta method.
pub fn ratio(of: &[f64], to: &[f64]) -> Option<Ratio> {
    let (top, bottom) = (mean(of), mean(to));
    if of.is_empty() || to.is_empty() || top <= 0.0 || bottom <= 0.0 {
        return None;
    }
    let interval = || {
        if of.len().min(to.len()) < INTERVAL_COUNT_MIN {
            return None;
        }
        let (error_of, error_to) =
            (squared_error(of)? / top.powi(2), squared_error(to)? / bottom.powi(2));
        let error = (error_of + error_to).sqrt();
        let freedom = welch_freedom([(error_of, of.len()), (error_to, to.len())]);
        let half = if error > 0.0 { student(freedom?) * error } else { 0.0 };
        let middle = (top / bottom).ln();
        Some(Interval { low: (middle - half).exp(), high: (middle + half).exp() })
    };
    Some(Ratio { value: top / bottom, interval: interval() })
}

/// The p-values of several tests, adjusted so that the probability of any false alarm among them is
/// that of a single test (Holm's method).
pub fn holm(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|&a, &b| chances[a].total_cmp(&chances[b]));
    let mut raised = vec![1.0; chances.len()];
    let mut least: f64 = 0.0;
    for (rank, &at) in order.iter().enumerate() {
        least = least.max(chances[at] * float(chances.len() - rank)).min(1.0);
        raised[at] = least;
    }
    raised
}

#[cfg(test)]
mod tests;
