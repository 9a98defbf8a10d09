//! What verbs have in common on the command line.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;
use ringway_units::{Duration, whole};
use tracing::level_filters::LevelFilter;

/// The variable of the environment that stands for `--log-level`.
pub const LOG: &str = "RINGWAY_LOG";

/// What all verbs take.
#[derive(Debug, Args)]
pub struct Common {
    /// Log to standard error from this level on: off, error, warn, info, debug or trace
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        default_value = "info",
        value_parser = level,
        env = LOG,
        hide_env_values = true
    )]
    pub log_level: LevelFilter,
}

impl Common {
    /// The level for processes whose normal operation is not worth logging.
    pub fn quiet(&self) -> LevelFilter {
        if self.log_level == LevelFilter::INFO { LevelFilter::WARN } else { self.log_level }
    }
}

/// Parses a level. The flag may be absent, so the error names the variable as well.
fn level(text: &str) -> Result<LevelFilter, String> {
    let known = ["off", "error", "warn", "info", "debug", "trace"].contains(&text);
    let level = text.parse().ok().filter(|_| known);
    level.ok_or(format!("expected off, error, warn, info, debug or trace, also in {LOG}"))
}

/// Parses a time in whole seconds for a flag: a number, or a time with its unit, such as `5s` or
/// `2min`. The error names the range.
pub fn seconds<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let with_unit = || text.parse::<Duration>().ok().and_then(|time| whole(time.0));
        let number: Option<u64> = text.parse().ok().or_else(with_unit);
        let seconds = number.and_then(|number| T::try_from(number).ok());
        seconds.filter(|seconds| range.contains(seconds)).ok_or_else(|| {
            let (first, last) = (range.start(), range.end());
            format!("expected whole seconds from {first} to {last}, also such as 5s or 2min")
        })
    }
}

/// Parses a time for a flag that counts a unit of so many seconds, in parts of it: a number, or a
/// time with a unit of its own.
pub fn time_in(unit_seconds: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let with_unit = || Some(text.parse::<Duration>().ok()?.0 / unit_seconds);
        let time: Option<f64> = text.parse().ok().or_else(with_unit);
        let time = time.filter(|time| *time > 0.0 && time.is_finite());
        time.ok_or_else(|| "expected a number above 0, or a time such as 90s or 5min".to_owned())
    }
}

/// Parses a number in a range for a flag; the error names the range.
pub fn number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_number_or_have_a_unit() {
        let parse = seconds(1..=3600_u64);
        let read = |text: &str| parse(text).ok();
        assert_eq!(
            (read("5"), read("5s"), read("2min"), read("1h")),
            (Some(5), Some(5), Some(120), Some(3600))
        );
        assert_eq!(read("3000ms"), Some(3));
        for bad in ["0", "1500ms", "2h", "5m", "", "-1", "5 s x"] {
            let error = parse(bad).expect_err(bad);
            assert!(error.contains("from 1 to 3600, also such as 5s or 2min"), "{error}");
        }
        assert!(seconds(1..=60_u8)("300s").is_err(), "it is no u8");
    }

    #[test]
    fn a_time_in_parts_of_a_unit_is_a_number_or_has_a_unit_of_its_own() {
        let hours = |text: &str| time_in(3600.0)(text).ok();
        assert_eq!(
            (hours("1.5"), hours("90min"), hours("1800s")),
            (Some(1.5), Some(1.5), Some(0.5))
        );
        assert_eq!((hours("0"), hours("-1"), hours("NaN"), hours("90m")), (None, None, None, None));
    }
}
