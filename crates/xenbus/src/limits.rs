//! Limits of a vif that a toolstack sets, besides those of the handshake.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use ringway_datapath::words;

use crate::keys::{
    Absent, BadKeys, CARRIER, DISCONNECT, KeyChange, Keys, MTU, RATE, SPEED, STOPPED, TRUSTED,
};
use crate::offload_wish::{OFFLOAD_WISHES, OffloadWish};
use crate::rate::{NotARate, Rate};
use crate::stopped::CUT;

/// The highest speed that Linux shows, in megabits per second.
const SPEED_MAX: u64 = 0x7fff_ffff; // not a limit: the kernel's

/// The heaviest weight.
const WEIGHT_MAX: u32 = 1000;

/// The prefix of our keys, which no stock toolstack has.
const OURS: &str = "ringway-";

// Of each, its key, what may have it, its unit and place, and what it limits.
macro_rules! limits {
    ($($key:expr, $of:ident, $unit:ident $($place:ident).+, $help:literal;)*) => {
        &[$(Limit {
            key: $key,
            of: Scope::$of,
            field: Field::$unit(|it| &mut it.$($place).+),
            help: $help,
        },)*]
    };
}

/// Every limit that can be set while a vif runs. Command line, XenStore and descriptions of a host
/// have them in this order.
pub const LIMITS: &[Limit] = limits! {
    CARRIER, Vif, Link link, "Its link: up or down";
    "ringway-offloads", Vif, Offloads offloads,
        "Checksums and segmentation left to others: auto, all or none";
    RATE, Vif, Rate rate, "What the guest may transmit";
    "ringway-rate-rx", Vif, Rate rate_rx, "What the guest may receive";
    "ringway-weight", Vif, Weight weight, "Its share while other vifs have work: 1 to 1000";
    "ringway-flood-rate", Switch, PerSecond flood.rate, "Frames that it may flood in a second";
    "ringway-flood-mbit", Switch, PerSecond flood.mbit, "Megabits that it may flood in a second";
    "ringway-broadcast-rate", Uplink, PerSecond broadcast.rate,
        "Broadcasts that it may send in a second";
    "ringway-broadcast-mbit", Uplink, PerSecond broadcast.mbit, "Megabits of them";
    "ringway-multicast-rate", Uplink, PerSecond multicast.rate,
        "Multicasts that it may send in a second";
    "ringway-multicast-mbit", Uplink, PerSecond multicast.mbit, "Megabits of them";
    "ringway-unknown-rate", Uplink, PerSecond unknown.rate,
        "Frames that it may send to unknown addresses in a second";
    "ringway-unknown-mbit", Uplink, PerSecond unknown.mbit, "Megabits of them";
};

/// A limit that can be set while a vif runs.
#[derive(Debug)]
pub struct Limit {
    /// Its key in the backend's directory.
    pub key: &'static str,
    /// What may have it.
    pub of: Scope,
    /// Its unit, and its place.
    pub field: Field,
    /// What it limits, for people.
    pub help: &'static str,
}

/// What may have a limit. A vif has all of them, and each other the limits of those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A vif.
    Vif,
    /// The switch, for vifs without such a limit of their own.
    Switch,
    /// The uplink.
    Uplink,
}

/// The unit of a limit, and its place among those of a vif.
#[derive(Debug, Clone, Copy)]
pub enum Field {
    /// Bytes per interval.
    Rate(fn(&mut VifLimits) -> &mut Option<Rate>),
    /// Up or down.
    Link(fn(&mut VifLimits) -> &mut Option<LinkState>),
    /// What is left to others.
    Offloads(fn(&mut VifLimits) -> &mut Option<OffloadWish>),
    /// A share, from 1 to 1000.
    Weight(fn(&mut VifLimits) -> &mut Option<u16>),
    /// Frames or megabits per second; 0 for no limit.
    PerSecond(fn(&mut VifLimits) -> &mut Option<u32>),
}

/// Limits of one vif. A limit that is not set is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VifLimits {
    /// Whether frames pass at all (`carrier`); they do if it is absent.
    pub link: Option<LinkState>,
    /// The work that the guest and its network may leave to each other (`ringway-offloads`);
    /// [`OffloadWish::Auto`] if it is absent.
    pub offloads: Option<OffloadWish>,
    /// What the guest may transmit (`rate`).
    pub rate: Option<Rate>,
    /// What the guest may receive (`ringway-rate-rx`).
    pub rate_rx: Option<Rate>,
    /// Its share of the backend while other vifs have work (`ringway-weight`): from 1 to 1000.
    pub weight: Option<u16>,
    /// What it may flood (`ringway-flood-rate`, `ringway-flood-mbit`).
    pub flood: FloodWish,
    /// Broadcasts among those (`ringway-broadcast-rate`, `ringway-broadcast-mbit`).
    pub broadcast: FloodWish,
    /// Multicasts (`ringway-multicast-rate`, `ringway-multicast-mbit`).
    pub multicast: FloodWish,
    /// Frames to unknown addresses (`ringway-unknown-rate`, `ringway-unknown-mbit`).
    pub unknown: FloodWish,
    /// Its MTU in bytes (`mtu`).
    pub mtu: Option<u16>,
}

/// How much a vif may flood per second; 0 for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FloodWish {
    /// Frames.
    pub rate: Option<u32>,
    /// Megabits.
    pub mbit: Option<u32>,
}

/// Whether a vif is connected to its network, as by a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Frames pass.
    Up,
    /// No frame passes in either direction.
    Down,
}

words! {
    LinkState { Up = "up", Down = "down" }
    else |text| format!("`{text}` is no state of a link: expected `up` or `down`")
}

/// The value of a limit.
#[derive(Debug, Clone, Copy)]
enum Value {
    Rate(Rate),
    Link(LinkState),
    Offloads(OffloadWish),
    Number(u32),
}

impl Limit {
    /// The limit with this name.
    pub fn named(name: &str) -> Option<&'static Limit> {
        LIMITS.iter().find(|limit| limit.name() == name)
    }

    /// Its name on the command line and in a description: its key without our prefix. Users set a
    /// link, of which the carrier is the sign.
    pub fn name(&self) -> &'static str {
        match self.field {
            Field::Link(_) => "link",
            _ => self.key.strip_prefix(OURS).unwrap_or(self.key),
        }
    }

    /// Whether a vif, the switch or the uplink may have it.
    pub fn is_of(&self, scope: Scope) -> bool {
        scope <= self.of
    }

    /// Whether its number counts megabits, and not frames.
    pub fn is_of_megabits(&self) -> bool {
        self.key.ends_with("-mbit")
    }

    /// The value of its key for what a user writes: a rate as in `xl`; a number as it is, or for
    /// megabits a rate as well; or `none`. The result may be invalid.
    ///
    /// # Errors
    /// The text is not a rate.
    pub fn key_value(&self, text: &str) -> Result<String, NotARate> {
        match self.field {
            Field::Rate(_) if text == "none" => Ok("0,0".to_owned()),
            Field::Rate(_) => Ok(Value::Rate(text.parse()?).in_key()),
            Field::Link(_) => {
                Ok(text.parse().map_or_else(|_| text.to_owned(), |link| Value::Link(link).in_key()))
            }
            Field::PerSecond(_) if text == "none" => Ok("0".to_owned()),
            Field::PerSecond(_) if self.is_of_megabits() => {
                Ok(megabits(text).map_or_else(|| text.to_owned(), |number| number.to_string()))
            }
            Field::Offloads(_) | Field::Weight(_) | Field::PerSecond(_) => Ok(text.to_owned()),
        }
    }

    fn read(&self, keys: &Keys, limits: &mut VifLimits) -> Result<(), BadKeys> {
        match self.field {
            Field::Rate(of) => *of(limits) = keys.rate_of(self.key)?,
            Field::Link(of) => *of(limits) = keys.link(self.key)?,
            Field::Offloads(of) => *of(limits) = keys.offloads(self.key)?,
            Field::Weight(of) => *of(limits) = keys.weight(self.key)?,
            Field::PerSecond(of) => {
                *of(limits) = keys.number(self.key).map_err(|bad| self.of_megabits(bad))?;
            }
        }
        Ok(())
    }

    /// A complaint that says what the number counts, as users may write a rate.
    fn of_megabits(&self, bad: BadKeys) -> BadKeys {
        match bad {
            BadKeys::Unreadable { path, found, .. } if self.is_of_megabits() => {
                BadKeys::Unreadable { path, found, expected: "whole megabits, such as 10" }
            }
            other => other,
        }
    }

    fn value(&self, mut limits: VifLimits) -> Option<Value> {
        match self.field {
            Field::Rate(of) => of(&mut limits).map(Value::Rate),
            Field::Link(of) => of(&mut limits).map(Value::Link),
            Field::Offloads(of) => of(&mut limits).map(Value::Offloads),
            Field::Weight(of) => of(&mut limits).map(|weight| Value::Number(weight.into())),
            Field::PerSecond(of) => of(&mut limits).map(Value::Number),
        }
    }
}

/// A rate of whole megabits in a second.
fn megabits(text: &str) -> Option<u128> {
    const MEGABIT: u128 = 1_000_000;
    let Rate { bytes, interval_us } = text.parse().ok()?;
    let bits = u128::from(bytes) * 8 * 1_000_000 / u128::from(interval_us);
    (bits % MEGABIT == 0).then_some(bits / MEGABIT)
}

impl Value {
    fn in_key(self) -> String {
        match self {
            Value::Rate(rate) => format!("{},{}", rate.bytes, rate.interval_us),
            Value::Link(link) => u8::from(link == LinkState::Up).to_string(),
            Value::Offloads(wish) => wish.to_string(),
            Value::Number(number) => number.to_string(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Rate(rate) => rate.fmt(f),
            Value::Link(link) => link.fmt(f),
            Value::Offloads(wish) => wish.fmt(f),
            // A weight is never 0.
            Value::Number(0) => f.write_str("none"),
            Value::Number(number) => number.fmt(f),
        }
    }
}

impl VifLimits {
    /// Reads the limits from a backend's directory, and returns the keys that are invalid: these
    /// count as absent, as with Linux' backend.
    pub fn read(keys: &Keys) -> (VifLimits, Vec<BadKeys>) {
        // A vif with an invalid MTU is refused.
        let mtu = keys.mtu_configured().unwrap_or_default();
        let mut limits = VifLimits { mtu, ..VifLimits::default() };
        let bad = LIMITS.iter().filter_map(|limit| limit.read(keys, &mut limits).err()).collect();
        (limits, bad)
    }

    /// These limits as keys, for a toolstack to write into the backend's directory.
    pub fn changes(&self) -> Vec<KeyChange> {
        self.keys().map(|(key, value)| KeyChange::set(key, value)).collect()
    }

    /// The keys of the limits that are set, with their values.
    pub fn keys(self) -> impl Iterator<Item = (&'static str, String)> {
        let limits = self.values().map(|(limit, value)| (limit.key, value.in_key()));
        limits.chain(self.mtu.map(|mtu| (MTU, mtu.to_string())))
    }

    /// The limits that are set.
    fn values(self) -> impl Iterator<Item = (&'static Limit, Value)> {
        LIMITS.iter().filter_map(move |limit| Some((limit, limit.value(self)?)))
    }
}

/// As users write them: `rate 50Mb/s, weight 4`; `no limits` without any.
impl fmt::Display for VifLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.values().map(|(limit, value)| (limit.name(), value));
        let mtu = self.mtu.map(|mtu| ("mtu", Value::Number(mtu.into())));
        let mut set = limits.chain(mtu);
        let Some((name, value)) = set.next() else { return f.write_str("no limits") };
        write!(f, "{name} {value}")?;
        set.try_for_each(|(name, value)| write!(f, ", {name} {value}"))
    }
}

impl Keys {
    /// Whether a backend, in whose directory these are, says that the link is up.
    pub fn has_carrier(&self) -> bool {
        //= netif.h:carrier
        !matches!(self.text(CARRIER), Some("0" | CUT))
    }

    /// Whether a toolstack such as XenServer's, which has written these into a frontend's
    /// directory, has unplugged the vif.
    pub fn is_unplugged(&self) -> bool {
        //= netif.h:frontend-link
        self.text(DISCONNECT) == Some("1")
    }

    /// Whether the toolstack, which has written these into a frontend's directory, trusts the
    /// backend with the guest's memory. Absent means yes, as in Linux; what cannot be read, no.
    pub fn trusts_backend(&self) -> bool {
        //= netif.h:trusted
        self.flag(TRUSTED, Absent::True).unwrap_or(false)
    }

    /// The speed that the device of a frontend, in whose directory these are, is to show, in
    /// megabits per second. The text is a number of gigabits, or has one of the letters `G`, `M`
    /// and `K` behind it, as in Windows' driver.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is something else, or no whole megabit.
    pub fn speed(&self) -> Result<Option<u32>, BadKeys> {
        let parse = |text: &str| {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let number: u64 = digits.parse().ok()?;
            let kbit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
                "" | "G" => 1_000_000,
                "M" => 1000,
                "K" => 1,
                _ => return None,
            };
            let mbit = number.checked_mul(kbit)? / 1000;
            (1..=SPEED_MAX).contains(&mbit).then(|| u32::try_from(mbit).ok())?
        };
        let expected = "a number with G, M or K behind it";
        let read = |text| parse(text).ok_or_else(|| self.unreadable(SPEED, text, expected));
        self.text(SPEED).map(read).transpose()
    }

    fn link(&self, key: &str) -> Result<Option<LinkState>, BadKeys> {
        //= netif.h:carrier
        //= netif.h:carrier-stopped
        let before = || self.text(STOPPED).filter(|was| *was == "1");
        match self.text(key).and_then(|text| if text == CUT { before() } else { Some(text) }) {
            None => Ok(None),
            Some("1") => Ok(Some(LinkState::Up)),
            Some("0") => Ok(Some(LinkState::Down)),
            Some(text) => Err(self.unreadable(key, text, "1 (up) or 0 (down)")),
        }
    }

    fn offloads(&self, key: &str) -> Result<Option<OffloadWish>, BadKeys> {
        let read =
            |text: &str| text.parse().map_err(|_| self.unreadable(key, text, OFFLOAD_WISHES));
        self.text(key).map(read).transpose()
    }

    fn weight(&self, key: &str) -> Result<Option<u16>, BadKeys> {
        let Some(weight) = self.number(key)? else { return Ok(None) };
        match u16::try_from(weight) {
            Ok(weight) if (1..=WEIGHT_MAX).contains(&weight.into()) => Ok(Some(weight)),
            _ => Err(self.unreadable(key, &weight.to_string(), "a weight from 1 to 1000")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> (VifLimits, Vec<BadKeys>) {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        VifLimits::read(&Keys::new("/b", values.iter().map(own)))
    }

    #[test]
    fn limits_that_a_toolstack_writes_are_read_by_the_backend() {
        let rate = Some(Rate { bytes: 6250, interval_us: 50_000 });
        //= netif.h:carrier
        let all = VifLimits {
            link: Some(LinkState::Down),
            offloads: Some(OffloadWish::None),
            rate,
            rate_rx: Some(Rate { bytes: 1, interval_us: 7 }),
            weight: Some(1000),
            flood: FloodWish { rate: Some(0), mbit: Some(25) },
            broadcast: FloodWish { rate: Some(1), mbit: Some(2) },
            multicast: FloodWish { rate: Some(3), mbit: None },
            unknown: FloodWish { rate: None, mbit: Some(4) },
            mtu: Some(9000),
        };
        for limits in [all, VifLimits::default(), VifLimits { rate, ..VifLimits::default() }] {
            let values = limits.changes().into_iter().map(|change| match change {
                KeyChange::Set(key, value) => (key, value),
                KeyChange::Remove(key) => panic!("{key} was never there"),
            });
            assert_eq!(VifLimits::read(&Keys::new("/b", values)), (limits, Vec::new()));
        }
    }

    #[test]
    fn each_limit_has_a_name_and_a_place_of_its_own() {
        for limit in LIMITS {
            let (written, value, shown) = match limit.field {
                Field::Rate(_) => ("8Mb/s@1s", "1000000,1000000", "8Mb/s"),
                Field::Link(_) => ("down", "0", "down"),
                Field::Offloads(_) => ("all", "all", "all"),
                Field::Weight(_) | Field::PerSecond(_) => ("7", "7", "7"),
            };
            assert_eq!(limit.key_value(written).as_deref(), Ok(value));
            let limits = read(&[(limit.key, value)]).0;
            assert_eq!(limits.keys().collect::<Vec<_>>(), [(limit.key, value.to_owned())]);
            assert_eq!(limits.to_string(), format!("{} {shown}", limit.name()));
            assert_eq!(Limit::named(limit.name()).map(|found| found.key), Some(limit.key));
        }
    }

    #[test]
    fn a_rate_or_a_number_in_a_second_can_be_none() {
        for limit in LIMITS {
            let value = match limit.field {
                Field::Rate(_) => "0,0",
                Field::PerSecond(_) => "0",
                // Left as it is, to be refused or to mean what it says.
                Field::Link(_) | Field::Offloads(_) | Field::Weight(_) => "none",
            };
            assert_eq!(limit.key_value("none").as_deref(), Ok(value), "{}", limit.name());
        }
    }

    #[test]
    fn a_vif_has_every_limit_and_the_uplink_those_of_what_it_floods() {
        let names = |scope| {
            let of_it = LIMITS.iter().filter(|limit| limit.is_of(scope));
            of_it.map(Limit::name).collect::<Vec<_>>()
        };
        assert_eq!(names(Scope::Vif).len(), LIMITS.len());
        let kinds = [
            "broadcast-rate",
            "broadcast-mbit",
            "multicast-rate",
            "multicast-mbit",
            "unknown-rate",
            "unknown-mbit",
        ];
        assert_eq!(names(Scope::Uplink), kinds);
        assert_eq!(names(Scope::Switch), [&["flood-rate", "flood-mbit"][..], &kinds[..]].concat());
    }

    #[test]
    fn megabits_are_a_number_or_a_rate() {
        let limit = |name: &str| Limit::named(name).expect("it exists");
        let written =
            |text: &str| limit("flood-mbit").key_value(text).expect("no rate is asked for");
        assert_eq!([written("10Mb/s"), written("2Gb/s"), written("7")], ["10", "2000", "7"]);
        assert_eq!([written("10M"), written("2.5Gbit/s"), written("1MB/s")], ["10", "2500", "8"]);
        // Left as they are, to be refused.
        assert_eq!([written("100kb/s"), written("fast")], ["100kb/s", "fast"]);
        assert_eq!(limit("flood-rate").key_value("10Mb/s").as_deref(), Ok("10Mb/s"));
    }

    #[test]
    fn limits_are_shown_as_users_write_them() {
        let limits = VifLimits {
            rate: Some(Rate { bytes: 312_500, interval_us: 50_000 }),
            weight: Some(4),
            unknown: FloodWish { rate: Some(0), mbit: None },
            ..VifLimits::default()
        };
        assert_eq!(limits.to_string(), "rate 50Mb/s, weight 4, unknown-rate none");
        assert_eq!(VifLimits::default().to_string(), "no limits");
    }

    #[test]
    fn an_unreadable_limit_is_absent_and_does_not_hide_the_others() {
        let (limits, bad) = read(&[
            ("carrier", "down"),
            ("ringway-offloads", "some"),
            ("rate", "fast"),
            ("ringway-rate-rx", "1000,50000"),
            ("ringway-weight", "0"),
            ("ringway-flood-rate", "-1"),
            ("ringway-flood-mbit", "10"),
            ("ringway-broadcast-mbit", "100kb/s"),
            ("ringway-unknown-rate", "ten"),
            ("mtu", "67"),
        ]);
        let rate_rx = Some(Rate { bytes: 1000, interval_us: 50_000 });
        let flood = FloodWish { rate: None, mbit: Some(10) };
        assert_eq!(limits, VifLimits { rate_rx, flood, ..VifLimits::default() });
        let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
        assert_eq!(bad.len(), 7, "{bad:?}");
        assert!(bad[0].contains("/b/carrier is \"down\", expected 1 (up) or 0 (down)"), "{bad:?}");
        assert!(bad[1].contains("-offloads is \"some\", expected auto, all or none"), "{bad:?}");
        assert!(bad[3].contains("/b/ringway-weight is \"0\", expected a weight from 1 to 1000"));
        assert!(bad[5].contains("is \"100kb/s\", expected whole megabits"), "{bad:?}");
        assert!(bad[6].contains("-unknown-rate is \"ten\", expected a number"), "{bad:?}");
        assert_eq!(read(&[("ringway-weight", "1001")]).0.weight, None);
    }

    #[test]
    fn a_speed_is_in_gigabits_unless_a_letter_says_otherwise() {
        let speed = |value: &str| {
            let keys = Keys::new("/f", [("speed".to_owned(), value.to_owned())]);
            keys.speed().map_err(|bad| bad.to_string())
        };
        for (value, mbit) in
            [("10", 10_000), ("1G", 1000), ("25g", 25_000), ("2500M", 2500), ("1500K", 1)]
        {
            assert_eq!(speed(value), Ok(Some(mbit)), "{value}");
        }
        for bad in ["", "0", "999K", "G", "1T", "-1", "1 G", "1GG", "3000000G", "99999999999999G"] {
            assert!(speed(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Keys::new("/f", []).speed(), Ok(None));
    }

    #[test]
    fn a_backend_is_trusted_unless_the_toolstack_says_something_else() {
        let trusts = |value: &str| {
            Keys::new("/f", [("trusted".to_owned(), value.to_owned())]).trusts_backend()
        };
        //= netif.h:trusted
        assert!(Keys::new("/f", []).trusts_backend() && trusts("1"));
        assert!(!trusts("0") && !trusts("no"));
    }
}
