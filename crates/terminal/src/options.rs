//! What verbs have in common on the command line.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;
use ringway_units::{Duration, Size, whole};
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
    amount(range, |text| Some(text.parse::<Duration>().ok()?.0), ["seconds", "5s or 2min"])
}

/// Parses a size in whole bytes for a flag: a number, or a size with its unit, such as `96B` or
/// `1KiB`. The error names the range.
pub fn bytes<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    amount(range, |text| Some(text.parse::<Size>().ok()?.0), ["bytes", "96B or 1KiB"])
}

/// Parses a whole amount of a unit in a range: a number, or what `with_unit` reads.
fn amount<T>(
    range: RangeInclusive<T>,
    with_unit: fn(&str) -> Option<f64>,
    [unit, examples]: [&'static str; 2],
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number: Option<u64> = text.parse().ok().or_else(|| whole(with_unit(text)?));
        let amount = number.and_then(|number| T::try_from(number).ok());
        amount.filter(|amount| range.contains(amount)).ok_or_else(|| {
            let (first, last) = (range.start(), range.end());
            format!("expected whole {unit} from {first} to {last}, also such as {examples}")
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
    fn bytes_are_a_number_or_have_a_unit() {
        let parse = bytes(14..=65535_u32);
        let read = |text: &str| parse(text).ok();
        assert_eq!((read("96"), read("96B"), read("1KiB")), (Some(96), Some(96), Some(1024)));
        for bad in ["13", "64KiB", "1.5B", "96b", "1k", ""] {
            let error = parse(bad).expect_err(bad);
            assert!(error.contains("bytes from 14 to 65535, also such as 96B"), "{error}");
        }
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
