//! One number for several.

/// A count as a number to calculate with.
pub fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The arithmetic mean; 0 if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1))
}

/// The value in the middle; not a number if there are no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The values from the smallest to the largest.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The value below which a part of sorted values lies, interpolated as R does by default; not a
/// number if there are no values.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * float(sorted.len().saturating_sub(1));
    let at = |offset: usize| {
        let found = (0..sorted.len()).take_while(|index| float(*index) <= place).last();
        found.and_then(|index| sorted.get(index + offset)).copied()
    };
    let Some(low) = at(0) else { return f64::NAN };
    low + (at(1).unwrap_or(low) - low) * place.fract()
}
