//! What verbs have in common on the command line.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;
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
