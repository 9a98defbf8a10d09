//! Arithmetic on counts from evidence, which may be any number: it never overflows or divides by 0.

pub use ringway_stats::float;

/// The sum of counts. Counts from evidence may be any number, so it saturates.
pub fn sum<'a>(counts: impl IntoIterator<Item = &'a u64>) -> u64 {
    counts.into_iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
}

/// A part as a fraction of a whole; 0 if the whole is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}
