//! Arithmetic on counts from evidence, which may be any number: it never overflows or divides by 0.

/// A count as a floating-point number: exact below 2^53.
pub fn float(count: u64) -> f64 {
    let (high, low) = (count >> 32, count & 0xffff_ffff);
    let half = |part: u64| f64::from(u32::try_from(part).unwrap_or(u32::MAX));
    half(high) * 4_294_967_296.0 + half(low)
}

/// The sum of counts. Counts from evidence may be any number, so it saturates.
pub fn sum<'a>(counts: impl IntoIterator<Item = &'a u64>) -> u64 {
    counts.into_iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
}

/// A part as a fraction of a whole; 0 if the whole is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}
