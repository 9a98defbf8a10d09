//! Limits of a vif that a toolstack sets, besides those of the handshake.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::keys::{
    BROADCAST_MBIT, BROADCAST_RATE, BadKeys, FLOOD_MBIT, FLOOD_RATE, KeyChange, Keys, MTU,
    MULTICAST_MBIT, MULTICAST_RATE, RATE, RATE_RX, UNKNOWN_MBIT, UNKNOWN_RATE, WEIGHT,
};
use crate::rate::Rate;

/// The heaviest weight.
const WEIGHT_MAX: u32 = 1000;

/// Limits of one vif. A limit that is not set is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VifLimits {
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

/// The name of a limit that can be set while a vif runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitName {
    /// [`VifLimits::rate`].
    Rate,
    /// [`VifLimits::rate_rx`].
    RateRx,
    /// [`VifLimits::weight`].
    Weight,
    /// Frames of [`VifLimits::flood`].
    FloodRate,
    /// Megabits of [`VifLimits::flood`].
    FloodMbit,
    /// Frames of [`VifLimits::broadcast`].
    BroadcastRate,
    /// Megabits of [`VifLimits::broadcast`].
    BroadcastMbit,
    /// Frames of [`VifLimits::multicast`].
    MulticastRate,
    /// Megabits of [`VifLimits::multicast`].
    MulticastMbit,
    /// Frames of [`VifLimits::unknown`].
    UnknownRate,
    /// Megabits of [`VifLimits::unknown`].
    UnknownMbit,
}

impl LimitName {
    /// All of them.
    pub const ALL: [LimitName; 11] = [
        LimitName::Rate,
        LimitName::RateRx,
        LimitName::Weight,
        LimitName::FloodRate,
        LimitName::FloodMbit,
        LimitName::BroadcastRate,
        LimitName::BroadcastMbit,
        LimitName::MulticastRate,
        LimitName::MulticastMbit,
        LimitName::UnknownRate,
        LimitName::UnknownMbit,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LimitName::Rate => "rate",
            LimitName::RateRx => "rate-rx",
            LimitName::Weight => "weight",
            LimitName::FloodRate => "flood-rate",
            LimitName::FloodMbit => "flood-mbit",
            LimitName::BroadcastRate => "broadcast-rate",
            LimitName::BroadcastMbit => "broadcast-mbit",
            LimitName::MulticastRate => "multicast-rate",
            LimitName::MulticastMbit => "multicast-mbit",
            LimitName::UnknownRate => "unknown-rate",
            LimitName::UnknownMbit => "unknown-mbit",
        }
    }

    /// Its key in the backend's directory.
    pub fn key(self) -> &'static str {
        match self {
            LimitName::Rate => RATE,
            LimitName::RateRx => RATE_RX,
            LimitName::Weight => WEIGHT,
            LimitName::FloodRate => FLOOD_RATE,
            LimitName::FloodMbit => FLOOD_MBIT,
            LimitName::BroadcastRate => BROADCAST_RATE,
            LimitName::BroadcastMbit => BROADCAST_MBIT,
            LimitName::MulticastRate => MULTICAST_RATE,
            LimitName::MulticastMbit => MULTICAST_MBIT,
            LimitName::UnknownRate => UNKNOWN_RATE,
            LimitName::UnknownMbit => UNKNOWN_MBIT,
        }
    }
}

impl VifLimits {
    /// Reads the limits from a backend's directory, and returns the keys that are invalid: these
    /// count as absent, as with Linux' backend.
    pub fn read(keys: &Keys) -> (VifLimits, Vec<BadKeys>) {
        let mut bad = Vec::new();
        let flood = |[rate, mbit]: [&str; 2], bad: &mut Vec<BadKeys>| FloodWish {
            rate: or_note(keys.number(rate), bad),
            mbit: or_note(keys.number(mbit), bad),
        };
        let limits = VifLimits {
            rate: or_note(keys.rate(), &mut bad),
            rate_rx: or_note(keys.rate_rx(), &mut bad),
            weight: or_note(keys.weight(), &mut bad),
            flood: flood([FLOOD_RATE, FLOOD_MBIT], &mut bad),
            broadcast: flood([BROADCAST_RATE, BROADCAST_MBIT], &mut bad),
            multicast: flood([MULTICAST_RATE, MULTICAST_MBIT], &mut bad),
            unknown: flood([UNKNOWN_RATE, UNKNOWN_MBIT], &mut bad),
            // A vif with an invalid one is refused.
            mtu: keys.mtu_configured().unwrap_or_default(),
        };
        (limits, bad)
    }

    /// These limits as keys, for a toolstack to write into the backend's directory.
    pub fn changes(&self) -> Vec<KeyChange> {
        let rate = |rate: Rate| format!("{},{}", rate.bytes, rate.interval_us);
        let number = |number: Option<u32>| number.map(|it| it.to_string());
        let values = [
            (RATE, self.rate.map(rate)),
            (RATE_RX, self.rate_rx.map(rate)),
            (WEIGHT, self.weight.map(|weight| weight.to_string())),
            (FLOOD_RATE, number(self.flood.rate)),
            (FLOOD_MBIT, number(self.flood.mbit)),
            (BROADCAST_RATE, number(self.broadcast.rate)),
            (BROADCAST_MBIT, number(self.broadcast.mbit)),
            (MULTICAST_RATE, number(self.multicast.rate)),
            (MULTICAST_MBIT, number(self.multicast.mbit)),
            (UNKNOWN_RATE, number(self.unknown.rate)),
            (UNKNOWN_MBIT, number(self.unknown.mbit)),
            (MTU, self.mtu.map(|mtu| mtu.to_string())),
        ];
        let set = |(key, value): (&str, Option<String>)| Some(KeyChange::set(key, value?));
        values.into_iter().filter_map(set).collect()
    }
}

/// As users write them: `rate 50Mb/s, weight 4`; `no limits` without any.
impl fmt::Display for VifLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: Option<Rate>| rate.map(|it| it.to_string());
        let number = |number: Option<u32>| number.map(|it| it.to_string());
        let values = LimitName::ALL.map(|name| match name {
            LimitName::Rate => rate(self.rate),
            LimitName::RateRx => rate(self.rate_rx),
            LimitName::Weight => number(self.weight.map(u32::from)),
            LimitName::FloodRate => number(self.flood.rate),
            LimitName::FloodMbit => number(self.flood.mbit),
            LimitName::BroadcastRate => number(self.broadcast.rate),
            LimitName::BroadcastMbit => number(self.broadcast.mbit),
            LimitName::MulticastRate => number(self.multicast.rate),
            LimitName::MulticastMbit => number(self.multicast.mbit),
            LimitName::UnknownRate => number(self.unknown.rate),
            LimitName::UnknownMbit => number(self.unknown.mbit),
        });
        let set = LimitName::ALL.into_iter().map(LimitName::name).zip(values);
        let mtu = self.mtu.map(|mtu| mtu.to_string());
        let mut set = set.chain([("mtu", mtu)]).filter_map(|(name, value)| Some((name, value?)));
        let Some((name, value)) = set.next() else { return f.write_str("no limits") };
        write!(f, "{name} {value}")?;
        set.try_for_each(|(name, value)| write!(f, ", {name} {value}"))
    }
}

fn or_note<T>(read: Result<Option<T>, BadKeys>, bad: &mut Vec<BadKeys>) -> Option<T> {
    read.unwrap_or_else(|error| {
        bad.push(error);
        None
    })
}

impl Keys {
    fn rate_rx(&self) -> Result<Option<Rate>, BadKeys> {
        self.rate_of(RATE_RX)
    }

    fn weight(&self) -> Result<Option<u16>, BadKeys> {
        let Some(weight) = self.number(WEIGHT)? else { return Ok(None) };
        match u16::try_from(weight) {
            Ok(weight) if (1..=WEIGHT_MAX).contains(&weight.into()) => Ok(Some(weight)),
            _ => {
                let found = weight.to_string();
                Err(self.unreadable(WEIGHT, &found, "a weight from 1 to 1000"))
            }
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
        let all = VifLimits {
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
    fn limits_are_shown_as_users_write_them() {
        let limits = VifLimits {
            rate: Some(Rate { bytes: 312_500, interval_us: 50_000 }),
            weight: Some(4),
            unknown: FloodWish { rate: Some(0), mbit: None },
            ..VifLimits::default()
        };
        assert_eq!(limits.to_string(), "rate 50Mb/s, weight 4, unknown-rate 0");
        assert_eq!(VifLimits::default().to_string(), "no limits");
    }

    #[test]
    fn an_unreadable_limit_is_absent_and_does_not_hide_the_others() {
        let (limits, bad) = read(&[
            ("rate", "fast"),
            ("ringway-rate-rx", "1000,50000"),
            ("ringway-weight", "0"),
            ("ringway-flood-rate", "-1"),
            ("ringway-flood-mbit", "10"),
            ("ringway-unknown-rate", "ten"),
            ("mtu", "67"),
        ]);
        let rate_rx = Some(Rate { bytes: 1000, interval_us: 50_000 });
        let flood = FloodWish { rate: None, mbit: Some(10) };
        assert_eq!(limits, VifLimits { rate_rx, flood, ..VifLimits::default() });
        let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
        assert_eq!(bad.len(), 4, "{bad:?}");
        assert!(bad[1].contains("/b/ringway-weight is \"0\", expected a weight from 1 to 1000"));
        assert_eq!(read(&[("ringway-weight", "1001")]).0.weight, None);
    }
}
