//! One number for several, or three.

/// A count as a floating-point number; exact up to 2^53.
pub fn float(count: impl TryInto<u64>) -> f64 {
    let count = count.try_into().unwrap_or(u64::MAX);
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).map_or(0.0, f64::from);
    half(count >> 32) * 4_294_967_296.0 + half(count)
}

/// The arithmetic mean; 0 if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1))
}

/// The median; NaN if there are no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The median of some values, and their range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The least value.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// The spread of at least one value; `None` without any.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let sorted = sorted(values);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Spread { min, median: quantile(&sorted, 0.5), max })
    }
}

/// The values from the smallest to the largest.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The value below which a fraction `part` of sorted values lies, interpolated as in R's default;
/// NaN if there are no values.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * float(sorted.len().saturating_sub(1));
    let at = |offset: usize| {
        let found = (0..sorted.len()).take_while(|index| float(*index) <= place).last();
        found.and_then(|index| sorted.get(index + offset)).copied()
    };
    let Some(low) = at(0) else { return f64::NAN };
    low + (at(1).unwrap_or(low) - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        let spread = |values: &[f64]| Spread::of(values).map(|it| (it.min, it.median, it.max));
        assert_eq!(spread(&[3.0, 1.0, 9.0]), Some((1.0, 3.0, 9.0)));
        assert_eq!(spread(&[4.0, 1.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[5.0]), Some((5.0, 5.0, 5.0)));
        assert_eq!(spread(&[]), None);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn bytes_of_a_long_run_are_not_cut_off() {
        for (count, expected) in
            [(0_u64, 0.0), (4_294_967_295, 4_294_967_295.0), (12_345_678_901, 12_345_678_901.0)]
        {
            assert!((float(count) - expected).abs() < 0.5, "{count}");
        }
    }
}
