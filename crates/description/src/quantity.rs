//! Amounts of the unit that a key's name ends with: whole numbers, or texts with a unit of their
//! own, as in all of ringway (`200us`, `128MiB`, `10Mb/s`).

use std::fmt;
use std::marker::PhantomData;

use ringway_units::{Duration, Rate, Size, whole};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// What stands for no limit, as for `ringway vif set`.
pub(crate) const NONE: &str = "none";

/// The unit that a key counts.
pub(crate) trait Unit {
    /// An amount with its unit, for error messages.
    const EXAMPLE: &'static str;

    /// How many of this unit a text means.
    fn parse(text: &str) -> Option<f64>;
}

/// Keys that end with `-us`.
#[derive(Clone, Copy)]
pub(crate) struct Microseconds;
/// Keys that end with `-seconds`.
#[derive(Clone, Copy)]
pub(crate) struct Seconds;
/// Keys that end with `-mib`.
#[derive(Clone, Copy)]
pub(crate) struct Mebibytes;
/// Keys that end with `-mbit`: in a second.
#[derive(Clone, Copy)]
pub(crate) struct Megabits;

impl Unit for Microseconds {
    const EXAMPLE: &'static str = "200us";

    fn parse(text: &str) -> Option<f64> {
        Some(text.parse::<Duration>().ok()?.0 * 1e6)
    }
}

impl Unit for Seconds {
    const EXAMPLE: &'static str = "5min";

    fn parse(text: &str) -> Option<f64> {
        Some(text.parse::<Duration>().ok()?.0)
    }
}

impl Unit for Mebibytes {
    const EXAMPLE: &'static str = "128MiB";

    fn parse(text: &str) -> Option<f64> {
        Some(text.parse::<Size>().ok()?.0 / 1_048_576.0)
    }
}

impl Unit for Megabits {
    const EXAMPLE: &'static str = "10Mb/s";

    fn parse(text: &str) -> Option<f64> {
        match text {
            NONE => Some(0.0),
            _ => Some(text.parse::<Rate>().ok()?.0 / 1e6),
        }
    }
}

/// A whole amount of a unit, with limits that its type names.
#[derive(Clone, Copy)]
pub(crate) struct Quantity<U, const MIN: u64, const MAX: u64>(u64, PhantomData<U>);

impl<U, const MIN: u64, const MAX: u64> Quantity<U, MIN, MAX> {
    /// As a smaller type, which must contain the limits.
    pub(crate) fn get<T: TryFrom<u64>>(self) -> Option<T> {
        T::try_from(self.0).ok()
    }
}

impl<'de, U: Unit, const MIN: u64, const MAX: u64> Deserialize<'de> for Quantity<U, MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor(PhantomData))
    }
}

/// A visitor, so that the parser knows the place of an amount that is refused.
struct QuantityVisitor<U, const MIN: u64, const MAX: u64>(PhantomData<U>);

impl<U: Unit, const MIN: u64, const MAX: u64> Visitor<'_> for QuantityVisitor<U, MIN, MAX> {
    type Value = Quantity<U, MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number, or an amount such as {:?}", U::EXAMPLE)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) if (MIN..=MAX).contains(&number) => Ok(Quantity(number, PhantomData)),
            _ => Err(E::custom(format!(
                "{number} is out of range: expected a whole number from {MIN} to {MAX}"
            ))),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let number = U::parse(text).and_then(whole);
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        number.map(|number| Quantity(number, PhantomData)).ok_or_else(|| {
            E::custom(format!(
                "{text:?} is not in range, or has no unit of this kind: expected a whole number \
                 from {MIN} to {MAX}, or as much with its unit, such as {:?}",
                U::EXAMPLE
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use ringway_units::{Rate, whole};

    use crate::{Host, Usage, parse};

    #[test]
    fn rates_are_read_as_in_what_a_toolstack_sets() {
        let plain = ["9Gb/s", "2.5Gbit/s", "9.4 Gbit/s", "10M", "1k", "100MB/s", "2kB/s", "7B/s"];
        // As `xl` has them.
        let large = ["64K", "500Kb/s", "500KB/s", "500Kbit/s"];
        // As `tc` prints and reads them.
        let of_tc = ["100Mbit", "100mbit", "64Kbit", "64kbit", "1.5Gbit", "2gbit", "500bit"];
        for text in plain.into_iter().chain(large).chain(of_tc) {
            let rate = text.parse::<Rate>().expect(text).0;
            assert_eq!(whole(rate), ringway_xenbus::bits_per_second(text), "{text}");
        }
        for bad in ["10", "10s", "G", "-1M", "1.2.3G", "NaNG", "100Mbps", "100m", "bit", "Mbit"] {
            let keys = ringway_xenbus::bits_per_second(bad);
            assert!(keys.is_none() && bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_has_the_units_of_all_sizes_and_is_handed_over_exactly() {
        for (text, bytes) in [
            ("64GiB", 64 << 30),
            ("2TiB", 2 << 40),
            ("1.5GiB", 3 << 29),
            ("4GB", 4_000_000_000),
            ("1000001 B", 1_000_001),
        ] {
            let vhost = "[[vhost]]\nname = 'vm1'\nsocket = '/vm1'\n";
            let content = format!("{vhost}max-memory = '{text}'\n");
            let host = parse("host.toml", &content, Usage::default()).expect(text);
            let json = serde_json::to_string(&host).expect("JSON");
            let host: Host = serde_json::from_str(&json).expect(&json);
            assert_eq!(host.vhosts[0].max_memory.map(|it| it.bytes), Some(bytes), "{text}");
        }
    }

    #[test]
    fn amounts_are_numbers_or_have_their_units() {
        let read = |text: &str| parse("host.toml", text, Usage::default());
        let numbers = "[host]\npoll-us = 200\nframe-memory-mib = 1024\n[switch]\n\
                       ageing-seconds = 300\nflood-mbit = 20\n[[guest]]\nname = 'a'\n\
                       memory-mib = 512\n";
        let units = "[host]\npoll-us = '200us'\nframe-memory-mib = '1GiB'\n[switch]\n\
                     ageing-seconds = '5min'\nflood-mbit = '20Mb/s'\n[[guest]]\nname = 'a'\n\
                     memory-mib = '512MiB'\n";
        let json = |text: &str| serde_json::to_string(&read(text).expect(text)).expect("JSON");
        assert_eq!(json(units), json(numbers));
        for (bad, expected) in [
            ("[host]\npoll-us = '1.5us'\n", "such as \"200us\""),
            ("[host]\npoll-us = '2s'\n", "from 0 to 1000000"),
            ("[host]\nframe-memory-mib = '1000kB'\n", "such as \"128MiB\""),
            ("[host]\nframe-memory-mib = true\n", "expected a whole number, or an amount such as"),
            ("[switch]\nflood-mbit = '100kb/s'\n", "such as \"10Mb/s\""),
        ] {
            let found = read(bad).expect_err(bad).to_string();
            assert!(found.contains(expected), "{found}");
        }
    }
}
