//! Statistics of a few numbers. Nothing here knows what the numbers measure.
//!
//! [`average`] makes one number of several, and links nothing. With the feature `confidence`, the
//! rest says how certain it is. Simple statistics are our own code; the distributions come from
//! `statrs`.

pub mod average;
#[cfg(feature = "confidence")]
mod confidence;

pub use average::{float, mean, median};
#[cfg(feature = "confidence")]
pub use confidence::{
    CONFIDENCE, Drift, Interval, Method, Modes, Ratio, Summary, Welch, bootstrap_interval, drift,
    half_within, holm, jain, mann_kendall, modes, ratio, sd, student_interval, welch,
};
