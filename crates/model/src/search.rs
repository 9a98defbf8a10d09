//! Searches for where a function of one number has a value.

/// Steps of a search for a root: to 10^-12 of its interval.
const STEPS: usize = 40;
/// Steps of a search for a minimum: to 10^-5 of its interval.
const GOLDEN_STEPS: usize = 24;

/// Where a rising function crosses 0 in an interval; the nearer end if it does not.
pub(crate) fn root(mut low: f64, mut high: f64, rising: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if rising(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Where a function with one minimum in an interval has it, by golden section.
pub(crate) fn least(mut low: f64, mut high: f64, function: impl Fn(f64) -> f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    for _ in 0..GOLDEN_STEPS {
        let span = (high - low) * GOLDEN;
        if function(high - span) <= function(low + span) {
            high = low + span;
        } else {
            low = high - span;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_and_a_minimum_are_found_also_at_the_ends() {
        assert!((root(0.0, 4.0, |x| x * x - 2.0) - 2.0_f64.sqrt()).abs() < 1e-9);
        assert!(root(0.0, 1.0, |_| 1.0) < 1e-9 && root(0.0, 1.0, |_| -1.0) > 1.0 - 1e-9);
        assert!((least(0.0, 1.0, |x| (x - 0.3).powi(2)) - 0.3).abs() < 1e-4);
        assert!(least(0.0, 1.0, |x| x) < 1e-4);
    }
}
