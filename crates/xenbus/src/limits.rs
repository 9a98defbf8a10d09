//! What limits a vif beside its handshake, as the toolstack wants it.

use crate::keys::{BadKeys, FLOOD_MBIT, FLOOD_RATE, KeyChange, Keys, MTU, RATE, RATE_RX, WEIGHT};
use crate::rate::Rate;

/// The heaviest weight.
const WEIGHT_MAX: u32 = 1000;

/// Limits of one vif. Each is absent where it is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VifLimits {
    /// What the guest may transmit (`rate`).
    pub rate: Option<Rate>,
    /// What the guest may receive (`ringway-rate-rx`).
    pub rate_rx: Option<Rate>,
    /// Its share of the backend beside other vifs (`ringway-weight`): from 1 to 1000.
    pub weight: Option<u16>,
    /// Frames that it may flood in a second (`ringway-flood-rate`); 0 for no limit.
    pub flood_rate: Option<u32>,
    /// Megabits that it may flood in a second (`ringway-flood-mbit`); 0 for no limit.
    pub flood_mbit: Option<u32>,
    /// Its MTU in bytes (`mtu`).
    pub mtu: Option<u16>,
}

/// One of the limits that can be set while a vif runs, by the name that people use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitName {
    /// [`VifLimits::rate`].
    Rate,
    /// [`VifLimits::rate_rx`].
    RateRx,
    /// [`VifLimits::weight`].
    Weight,
    /// [`VifLimits::flood_rate`].
    FloodRate,
    /// [`VifLimits::flood_mbit`].
    FloodMbit,
}

impl LimitName {
    /// All of them.
    pub const ALL: [LimitName; 5] = [
        LimitName::Rate,
        LimitName::RateRx,
        LimitName::Weight,
        LimitName::FloodRate,
        LimitName::FloodMbit,
    ];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            LimitName::Rate => "rate",
            LimitName::RateRx => "rate-rx",
            LimitName::Weight => "weight",
            LimitName::FloodRate => "flood-rate",
            LimitName::FloodMbit => "flood-mbit",
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
        }
    }
}

impl VifLimits {
    /// What the keys of a backend's directory say, and what of them cannot be read: that is as if
    /// it were absent, as for Linux' backend.
    pub fn read(keys: &Keys) -> (VifLimits, Vec<BadKeys>) {
        let mut bad = Vec::new();
        let limits = VifLimits {
            rate: or_note(keys.rate(), &mut bad),
            rate_rx: or_note(keys.rate_rx(), &mut bad),
            weight: or_note(keys.weight(), &mut bad),
            flood_rate: or_note(keys.number(FLOOD_RATE), &mut bad),
            flood_mbit: or_note(keys.number(FLOOD_MBIT), &mut bad),
            // A vif with one that cannot be read is refused for it.
            mtu: keys.mtu_wanted().unwrap_or_default(),
        };
        (limits, bad)
    }

    /// The keys that say so, for a toolstack to write into the backend's directory.
    pub fn changes(&self) -> Vec<KeyChange> {
        let rate = |rate: Rate| format!("{},{}", rate.bytes, rate.interval_us);
        let values = [
            (RATE, self.rate.map(rate)),
            (RATE_RX, self.rate_rx.map(rate)),
            (WEIGHT, self.weight.map(|weight| weight.to_string())),
            (FLOOD_RATE, self.flood_rate.map(|frames| frames.to_string())),
            (FLOOD_MBIT, self.flood_mbit.map(|mbit| mbit.to_string())),
            (MTU, self.mtu.map(|mtu| mtu.to_string())),
        ];
        let set = |(key, value): (&str, Option<String>)| Some(KeyChange::set(key, value?));
        values.into_iter().filter_map(set).collect()
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
    fn what_a_toolstack_writes_is_what_a_backend_reads() {
        let rate = Some(Rate { bytes: 6250, interval_us: 50_000 });
        let all = VifLimits {
            rate,
            rate_rx: Some(Rate { bytes: 1, interval_us: 7 }),
            weight: Some(1000),
            flood_rate: Some(0),
            flood_mbit: Some(25),
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
    fn a_limit_that_cannot_be_read_is_none_and_does_not_hide_the_others() {
        let (limits, bad) = read(&[
            ("rate", "fast"),
            ("ringway-rate-rx", "1000,50000"),
            ("ringway-weight", "0"),
            ("ringway-flood-rate", "-1"),
            ("ringway-flood-mbit", "10"),
            ("mtu", "67"),
        ]);
        let rate_rx = Some(Rate { bytes: 1000, interval_us: 50_000 });
        assert_eq!(limits, VifLimits { rate_rx, flood_mbit: Some(10), ..VifLimits::default() });
        let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
        assert_eq!(bad.len(), 3, "{bad:?}");
        assert!(bad[1].contains("/b/ringway-weight is \"0\", expected a weight from 1 to 1000"));
        assert_eq!(read(&[("ringway-weight", "1001")]).0.weight, None);
    }
}
