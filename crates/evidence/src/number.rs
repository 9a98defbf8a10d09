//! Arithmetic on counts of evidence, which may be any number: it never overflows or divides by 0.

/// A count as a number to calculate with: exact below 2^53.
pub fn float(count: u64) -> f64 {
    let (high, low) = (count >> 32, count & 0xffff_ffff);
    let half = |part: u64| f64::from(u32::try_from(part).unwrap_or(u32::MAX));
    half(high) * 4_294_967_296.0 + half(low)
}

/// All of some counts. Those of evidence may be anything, so it stops at the greatest number.
pub fn sum<'a>(counts: impl IntoIterator<Item = &'a u64>) -> u64 {
    counts.into_iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
}

/// The part of a whole; 0 of nothing.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}
