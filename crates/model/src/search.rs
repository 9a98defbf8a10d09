//! Searches for where a function of one number has a value. Each value of a fit costs a sum over
//! all splits of all points, so they ask for few.

use ringway_stats::float;

/// Steps of a search for a root at most, and to which part of its interval. Smooth functions need
/// a dozen.
const STEPS: usize = 60;
const EXACT: f64 = 1e-11;
/// Parts of an interval in which a function may rise and fall.
const PARTS: usize = 16;
/// Steps of a search for a minimum: to 10^-5 of its interval.
const GOLDEN_STEPS: usize = 24;

/// Where a rising function crosses 0 in an interval; the nearer end if it does not: by false
/// position, which halves the weight of an end that stays (the Illinois method).
pub(crate) fn root(low: f64, high: f64, rising: impl Fn(f64) -> f64) -> f64 {
    let exact = (high - low) * EXACT;
    let (mut low, mut high) = ((low, rising(low)), (high, rising(high)));
    if low.1 >= 0.0 {
        return low.0;
    }
    if high.1 < 0.0 {
        return high.0;
    }
    let mut was_below = None;
    for _ in 0..STEPS {
        let span = high.0 - low.0;
        if span <= exact {
            break;
        }
        let chord = high.0 - high.1 * span / (high.1 - low.1);
        let is_inside = low.0 < chord && chord < high.0;
        let at = if is_inside { chord } else { f64::midpoint(low.0, high.0) };
        let value = rising(at);
        let is_below = value < 0.0;
        let is_again = was_below.replace(is_below) == Some(is_below);
        if is_below {
            low = (at, value);
            high.1 *= if is_again { 0.5 } else { 1.0 };
        } else {
            high = (at, value);
            low.1 *= if is_again { 0.5 } else { 1.0 };
        }
    }
    f64::midpoint(low.0, high.0)
}

/// Where a function is below 0 for the last time in an interval, as far as equal parts of it show:
/// it may rise and fall. The lower end if it never is.
pub(crate) fn last_below(low: f64, high: f64, function: impl Fn(f64) -> f64) -> f64 {
    let at = |part: usize| low + (high - low) * float(part) / float(PARTS);
    match (0..=PARTS).rev().find(|part| function(at(*part)) < 0.0) {
        None => low,
        Some(PARTS) => high,
        Some(part) => root(at(part), at(part + 1), function),
    }
}

/// Where a function with one minimum in an interval has it, by golden section.
pub(crate) fn least(mut low: f64, mut high: f64, function: impl Fn(f64) -> f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let with = |at: f64| (at, function(at));
    let mut left = with(high - (high - low) * GOLDEN);
    let mut right = with(low + (high - low) * GOLDEN);
    for _ in 0..GOLDEN_STEPS {
        if left.1 <= right.1 {
            (high, right) = (right.0, left);
            left = with(high - (high - low) * GOLDEN);
        } else {
            (low, left) = (left.0, right);
            right = with(low + (high - low) * GOLDEN);
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_root_and_a_minimum_are_found_also_at_the_ends() {
        assert!((root(0.0, 4.0, |x| x * x - 2.0) - 2.0_f64.sqrt()).abs() < 1e-9);
        assert!(root(0.0, 1.0, |_| 1.0) < 1e-9 && root(0.0, 1.0, |_| -1.0) > 1.0 - 1e-9);
        // Below 0 up to 0.1, and from 0.3 to 0.7.
        let waves = |x: f64| (x - 0.1) * (x - 0.3) * (x - 0.7);
        assert!((last_below(0.0, 1.0, waves) - 0.7).abs() < 1e-9);
        assert!(last_below(0.0, 1.0, |_| 1.0) < 1e-9 && last_below(0.0, 1.0, |_| -1.0) > 0.999);
        assert!((least(0.0, 1.0, |x| (x - 0.3).powi(2)) - 0.3).abs() < 1e-4);
        assert!(least(0.0, 1.0, |x| x) < 1e-4);
    }

    #[test]
    fn a_smooth_function_is_asked_a_dozen_times() {
        let asked = Cell::new(0);
        let counted = |value: f64| {
            asked.set(asked.get() + 1);
            value
        };
        // As contention is found: the efficiency of 4 queues is 0.7.
        let found = root(0.0, 4.0, |serial| counted(0.7 - 1.0 / (1.0 + 3.0 * serial)));
        assert!((found - 1.0 / 7.0).abs() < 1e-9 && asked.get() < 16, "{found} {asked:?}");
        asked.set(0);
        let found = least(0.0, 1.0, |x| counted((x - 0.3).powi(2)));
        assert!((found - 0.3).abs() < 1e-4 && asked.get() < 28, "{found} {asked:?}");
        // And a step no more often than there are halves.
        asked.set(0);
        let found = root(0.0, 1.0, |x| counted(if x < 0.37 { -1.0 } else { 1.0 }));
        assert!((found - 0.37).abs() < 1e-9 && asked.get() < 64, "{found} {asked:?}");
    }
}
