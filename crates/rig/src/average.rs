//! One number for several.

/// A count as a floating-point number; exact up to 2^53.
pub fn float(count: usize) -> f64 {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
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
    fn bytes_of_a_long_run_are_not_cut_off() {
        for (count, expected) in
            [(0, 0.0), (4_294_967_295, 4_294_967_295.0), (12_345_678_901, 12_345_678_901.0)]
        {
            assert!((float(count) - expected).abs() < 0.5, "{count}");
        }
    }
}
