//! Numbers with their units, as people write them: `10Gbit/s`, `1500B`, `180us`.
//!
//! A number without a unit is refused: 10 may be gigabits or megabytes.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{text}` is not a {what}: expected a number above 0 with its unit, such as {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// What a unit is worth, by its spelling. Longer spellings stand before those that end them.
type Units = &'static [(&'static str, f64)];

fn parse(
    text: &str,
    what: &'static str,
    example: &'static str,
    units: Units,
) -> Result<f64, UnitError> {
    let fault = || UnitError { text: text.to_owned(), what, example };
    let of_unit = |(unit, factor): &(&str, f64)| Some((text.trim().strip_suffix(unit)?, *factor));
    let (digits, factor) = units.iter().find_map(of_unit).ok_or_else(fault)?;
    let number: f64 = digits.trim().parse().map_err(|_| fault())?;
    let value = number * factor;
    if POSSIBLE.contains(&value) { Ok(value) } else { Err(fault()) }
}

/// In bit/s, bytes or seconds. Anything else is a mistake, and would be shown with hundreds of
/// digits.
const POSSIBLE: RangeInclusive<f64> = 1e-12..=1e18;

/// A quantity in a file: its text. A bare number there says nothing of its unit.
struct Text {
    what: &'static str,
    example: &'static str,
}

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} with its unit as text, such as {}", self.what, self.example)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// Three digits with the largest unit that leaves at least 1 of it.
fn show(f: &mut fmt::Formatter<'_>, value: f64, units: &[(&str, f64)]) -> fmt::Result {
    let fitting = units.iter().filter(|(_, factor)| value >= *factor * 0.9995);
    let largest = fitting.max_by(|a, b| a.1.total_cmp(&b.1));
    let smallest = || units.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((unit, factor)) = largest.or_else(smallest) else { return Ok(()) };
    let number = value / factor;
    let decimals = match number {
        number if number >= 99.95 => 0,
        number if number >= 9.995 => 1,
        _ => 2,
    };
    write!(f, "{number:.decimals$} {unit}")
}

/// A quantity as a whole number, if it is one and not negative: for keys and options that count a
/// unit of their own. Ten digits are exact.
pub fn whole(value: f64) -> Option<u64> {
    let is_whole = value < 1e10 && (value - value.round()).abs() < 1e-6;
    is_whole.then(|| format!("{value:.0}").parse().ok())?
}

macro_rules! quantity {
    (
        $(#[$about:meta])*
        $name:ident, $what:literal, $example:literal, $units:ident, $shown:ident
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
        #[serde(into = "f64")]
        pub struct $name(pub f64);

        impl FromStr for $name {
            type Err = UnitError;

            fn from_str(text: &str) -> Result<$name, UnitError> {
                parse(text, $what, $example, $units).map($name)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = Text { what: $what, example: $example };
                deserializer.deserialize_str(text)?.parse().map_err(D::Error::custom)
            }
        }

        impl From<$name> for f64 {
            fn from(quantity: $name) -> f64 {
                quantity.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show(f, self.0, $shown)
            }
        }
    };
}

quantity! {
    /// A rate in bit/s. What `xl` and `tc` write, `10Gb/s` and `10Gbit`, and the short form `10G`
    /// are read as well.
    Rate, "rate", "10Gbit/s", RATES, RATES_SHOWN
}
quantity! {
    /// A size in bytes.
    Size, "size", "1500B or 256KiB", SIZES, SIZES_SHOWN
}
quantity! {
    /// A duration in seconds.
    Duration, "duration", "180us", DURATIONS, DURATIONS_SHOWN
}

/// All that `ringway_xenbus::bits_per_second` reads, for those who have no toolstack.
const RATES: Units = &[
    ("kbit/s", 1e3),
    ("Kbit/s", 1e3),
    ("Mbit/s", 1e6),
    ("Gbit/s", 1e9),
    ("bit/s", 1.0),
    ("kbit", 1e3),
    ("Kbit", 1e3),
    ("mbit", 1e6),
    ("Mbit", 1e6),
    ("gbit", 1e9),
    ("Gbit", 1e9),
    ("bit", 1.0),
    ("kb/s", 1e3),
    ("Kb/s", 1e3),
    ("Mb/s", 1e6),
    ("Gb/s", 1e9),
    ("b/s", 1.0),
    ("kB/s", 8e3),
    ("KB/s", 8e3),
    ("MB/s", 8e6),
    ("GB/s", 8e9),
    ("B/s", 8.0),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
];
const RATES_SHOWN: Units = &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9)];
const SIZES: Units = &[
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];
const SIZES_SHOWN: Units = &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)];
const DURATIONS: Units = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3600.0),
];
const DURATIONS_SHOWN: Units = &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error as ValueError, F64Deserializer};

    use super::*;

    #[test]
    fn quantities_are_read_with_their_units_and_shown_with_three_digits() {
        let rate = |text: &str| text.parse::<Rate>().map(|rate| rate.0);
        assert_eq!(rate("10Gbit/s"), Ok(10e9));
        assert_eq!(rate("9.4 Gbit/s"), Ok(9.4e9));
        assert_eq!((rate("9.4G"), rate("9.4Gb/s")), (Ok(9.4e9), Ok(9.4e9)));
        assert_eq!((rate("500bit/s"), rate("100MB/s")), (Ok(500.0), Ok(8e8)));
        assert_eq!((rate("100Mbit"), rate("64 kbit"), rate("8bit")), (Ok(1e8), Ok(64e3), Ok(8.0)));
        assert_eq!("1500B".parse(), Ok(Size(1500.0)));
        assert_eq!("256KiB".parse(), Ok(Size(262_144.0)));
        let delay: Duration = "180us".parse().expect("a duration");
        assert!((delay.0 - 180e-6).abs() < 1e-12);
        assert_eq!(Rate(9.414_7e9).to_string(), "9.41 Gbit/s");
        assert_eq!(Rate(107.73e6).to_string(), "108 Mbit/s");
        assert_eq!(Rate(64e3).to_string(), "64.0 kbit/s");
        assert_eq!(Rate(500.0).to_string(), "500 bit/s");
        assert_eq!(
            (Size(1500.0).to_string(), delay.to_string()),
            ("1.46 KiB".into(), "180 us".into())
        );
    }

    #[test]
    fn quantities_that_are_whole_are_numbers() {
        let seconds = |text: &str| text.parse::<Duration>().map(|it| whole(it.0)).ok().flatten();
        assert_eq!(
            (seconds("5s"), seconds("2min"), seconds("1.5h")),
            (Some(5), Some(120), Some(5400))
        );
        assert_eq!((seconds("3000ms"), seconds("5ms")), (Some(3), None));
        let microseconds = "200us".parse::<Duration>().expect("a duration").0 * 1e6;
        assert_eq!(whole(microseconds), Some(200));
        assert_eq!((whole(-1.0), whole(f64::NAN), whole(1e11)), (None, None, None));
    }

    #[test]
    fn a_missing_or_impossible_value_says_what_is_expected() {
        for bad in [
            "10",
            "",
            "Gbit/s",
            "-1Gbit/s",
            "0bit/s",
            "NaNG",
            "infGbit/s",
            "10s",
            "100Mbps",
            "1e290G",
            "1e-290G",
        ] {
            let error = bad.parse::<Rate>().expect_err(bad).to_string();
            assert!(error.contains(&format!("`{bad}` is not a rate")), "{error}");
            assert!(error.contains("such as 10Gbit/s"), "{error}");
        }
        assert!("1500".parse::<Size>().is_err() && "180".parse::<Duration>().is_err());
    }

    #[test]
    fn a_bare_number_in_a_file_is_told_of_its_unit() {
        let bare: F64Deserializer<ValueError> = 6.25.into_deserializer();
        let error = Rate::deserialize(bare).expect_err("no unit").to_string();
        assert!(
            error.contains("expected a rate with its unit as text, such as 10Gbit/s"),
            "{error}"
        );
    }
}
