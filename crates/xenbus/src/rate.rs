//! Rate limits for transmitting and receiving.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt::{self, Display};
use core::str::FromStr;

/// A rate limit: bytes per interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bytes of frames; at least 1.
    pub bytes: u64,
    /// Length of an interval, in microseconds; at least 1.
    pub interval_us: u64,
}

impl Rate {
    /// Parses `bytes,microseconds`. `Some(None)` means no limit: one of the two is 0. `None` means
    /// that the text is invalid.
    ///
    /// Linux also treats 0 microseconds as no limit. With 0 bytes it passes nothing; no toolstack
    /// writes that.
    pub(crate) fn parse(text: &str) -> Option<Option<Rate>> {
        let (bytes, interval_us) = text.split_once(',')?;
        let (bytes, interval_us) = (number(bytes)?, number(interval_us)?);
        let is_limit = bytes > 0 && interval_us > 0;
        Some(is_limit.then_some(Rate { bytes, interval_us }))
    }
}

/// Parses a rate, and the interval if it is not 50 ms: `10Mb/s`, `1MB/s@20ms`.
impl FromStr for Rate {
    type Err = NotARate;

    fn from_str(text: &str) -> Result<Rate, NotARate> {
        let bad = || NotARate(text.to_owned());
        let (rate, interval) = match text.split_once('@') {
            Some((rate, interval)) => (rate, parse_interval(interval).ok_or_else(bad)?),
            None => (text, INTERVAL_US),
        };
        let per_second = bits_per_second(rate).ok_or_else(bad)? / 8;
        let bytes = u128::from(per_second) * u128::from(interval) / 1_000_000;
        let bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(bad)?;
        Ok(Rate { bytes, interval_us: interval })
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from(self.bytes) * 8 * 1_000_000 / u128::from(self.interval_us.max(1));
        let (unit, name) = match bits {
            1_000_000_000.. => (1_000_000_000, "Gb/s"),
            1_000_000.. => (1_000_000, "Mb/s"),
            1_000.. => (1_000, "kb/s"),
            _ => (1, "b/s"),
        };
        match (bits / unit, bits % unit * 10 / unit) {
            (whole, 0) => write!(f, "{whole}{name}"),
            (whole, tenths) => write!(f, "{whole}.{tenths}{name}"),
        }
    }
}

/// An invalid rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a rate: expected a number with its unit, such as `100Mb/s` or `1MB/s@20ms`, or \
     `none`"
)]
pub struct NotARate(String);

/// The default interval, as in `xl`.
const INTERVAL_US: u64 = 50_000;

/// The bits in a second that a text means, for all that reads rates. It is a number, perhaps with
/// decimals, and a unit: as in `xl`, `k`, `M`, `G` or nothing, then bits (`b`, also `bit`) or bytes
/// (`B`), then `/s`; or just `k`, `M` or `G`, for bits; or as in `tc`, `100Mbit` and `100mbit`, but
/// not its `100Mbps`, which means bytes there and bits elsewhere.
pub fn bits_per_second(text: &str) -> Option<u64> {
    let text = text.trim();
    let of_tc = text.strip_suffix("bit");
    let (amount, bits) = if let Some(amount) = of_tc.or_else(|| text.strip_suffix("bit/s")) {
        (amount, 1)
    } else if let Some(unit) = text.strip_suffix("/s") {
        match unit.strip_suffix('B') {
            Some(amount) => (amount, 8),
            None => (unit.strip_suffix('b')?, 1),
        }
    } else {
        (text, 1)
    };
    let thousands = match amount.bytes().last()? {
        b'k' | b'K' => 1_000,
        b'M' => 1_000_000,
        b'm' if of_tc.is_some() => 1_000_000,
        b'G' => 1_000_000_000,
        b'g' if of_tc.is_some() => 1_000_000_000,
        _ => 1,
    };
    let has_unit = amount.len() < text.len() || thousands > 1;
    let digits = if thousands > 1 { &amount[..amount.len() - 1] } else { amount };
    let digits = Some(digits.trim_end()).filter(|_| has_unit)?;
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
    let scale = 10_u128.pow(u32::try_from(decimals.len()).ok().filter(|count| *count <= 18)?);
    let unit: u128 = thousands * bits;
    let whole = u128::from(number(whole)?) * unit;
    u64::try_from(whole + u128::from(number(decimals)?) * unit / scale).ok()
}

fn parse_interval(text: &str) -> Option<u64> {
    let (digits, unit) = if let Some(digits) = text.strip_suffix("ms") {
        (digits, 1_000)
    } else if let Some(digits) = text.strip_suffix("us") {
        (digits, 1)
    } else {
        (text.strip_suffix('s')?, 1_000_000)
    };
    number(digits)?.checked_mul(unit).filter(|interval| *interval > 0)
}

/// Digits only: Rust also accepts signs, which no toolstack writes.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_consists_of_exactly_two_numbers() {
        let rate = Rate { bytes: 6250, interval_us: 50_000 };
        assert_eq!(Rate::parse("6250,50000"), Some(Some(rate)));
        let most = Rate { bytes: u64::MAX, interval_us: u64::MAX };
        assert_eq!(Rate::parse(&format!("{0},{0}", u64::MAX)), Some(Some(most)));
        for unlimited in ["0,0", "0,50000", "6250,0"] {
            assert_eq!(Rate::parse(unlimited), Some(None), "{unlimited}");
        }
        for bad in [
            "",
            ",",
            "6250",
            "6250,",
            ",50000",
            "-1,50000",
            "6250,-1",
            "+1,1",
            "6250, 50000",
            "6250,50000,",
            "6250,50000\n",
            "0x10,1",
            "18446744073709551616,1",
            "1Mb/s",
        ] {
            assert_eq!(Rate::parse(bad), None, "{bad:?}");
        }
    }
    #[test]
    fn rates_are_written_as_in_xl() {
        let read = |text: &str| text.parse::<Rate>().map(|rate| (rate.bytes, rate.interval_us));
        assert_eq!(read("10Mb/s"), Ok((62_500, 50_000)));
        assert_eq!((read("10Mbit/s"), read("10Mit/s").ok()), (Ok((62_500, 50_000)), None));
        assert_eq!(read("250kB/s"), Ok((12_500, 50_000)));
        assert_eq!(read("1MB/s@20ms"), Ok((20_000, 20_000)));
        assert_eq!(read("10Mbit@20ms"), Ok((25_000, 20_000)));
        assert_eq!(read("1GB/s@1s"), Ok((1_000_000_000, 1_000_000)));
        assert_eq!(read("800b/s@500us").ok(), None, "not one byte in an interval");
        for bad in ["", "10", "10Mb", "Mb/s", "-1b/s", "1Tb/s", "1Mb/s@", "1Mb/s@0ms", "1Mb/s@5"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let error = read("100Mbps").expect_err("it may be bits or bytes").to_string();
        assert!(error.ends_with("such as `100Mb/s` or `1MB/s@20ms`, or `none`"), "{error}");
    }

    #[test]
    fn all_spellings_mean_bits_in_a_second() {
        for (text, bits) in [
            ("10Gb/s", 10_000_000_000),
            ("9.4 Gbit/s", 9_400_000_000),
            ("9.41G", 9_410_000_000),
            ("100MB/s", 800_000_000),
            ("2.5kB/s", 20_000),
            ("0.125 kbit/s", 125),
            ("500bit/s", 500),
            ("7B/s", 56),
            ("64K", 64_000),
            ("100Mbit", 100_000_000),
            ("1.5 mbit", 1_500_000),
            ("64Kbit", 64_000),
            ("2gbit", 2_000_000_000),
            ("500bit", 500),
        ] {
            assert_eq!(bits_per_second(text), Some(bits), "{text}");
        }
        let long = "0.0000000000000000001G";
        for bad in ["10", "1.5", "G", ".5G", "5.G", "1.2.3G", "+1G", "1e3M", "NaNG", "10s", long] {
            assert_eq!(bits_per_second(bad), None, "{bad}");
        }
        for bad in ["bit", "Mbit", "100Mibit", "100Mbps", "100bps", "100m", "100mb/s", "1Mbitbit"] {
            assert_eq!(bits_per_second(bad), None, "{bad}");
        }
        assert_eq!(bits_per_second("18446744073709551615GB/s"), None);
    }

    #[test]
    fn a_rate_is_shown_in_bits() {
        for (text, shown) in [
            ("10Mb/s", "10Mb/s"),
            ("250kB/s", "2Mb/s"),
            ("1500kb/s", "1.5Mb/s"),
            ("80kb/s", "80kb/s"),
            ("1GB/s@1s", "8Gb/s"),
            ("160b/s", "160b/s"),
        ] {
            for text in [text, shown] {
                let rate = text.parse::<Rate>().map(|rate| rate.to_string());
                assert_eq!(rate, Ok(shown.to_owned()), "what is shown is read");
            }
        }
    }
}
