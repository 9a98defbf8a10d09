//! The limits of a vif.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_engine::{Credit, Stations, Weight, egress_credit, segment_credit};
use ringway_switch::{FloodBudget, FloodLimit, StormLimits, Ticks};
use ringway_xenbus::{BadKeys, FloodWish, Rate, VifLimits};

use crate::drop_log::DropLog;

/// The limits of a vif, for as long as it exists.
#[derive(Debug)]
pub struct Limited {
    /// The toolstack's limits.
    pub wanted: VifLimits,
    /// The least that counts as its MTU: what its guest uses since before it was lowered.
    pub mtu_min: u16,
    /// Keys that could not be read.
    pub bad: Vec<BadKeys>,
    /// What the guest may transmit.
    pub tx: Option<Arc<Credit>>,
    /// What the guest may receive.
    pub rx: Option<Arc<Credit>>,
    /// The excess segments that the guest may transmit.
    pub segments: Arc<Credit>,
    /// What the guest may flood.
    pub flood: Arc<FloodBudget>,
    /// When it was last logged what limits of floods have dropped.
    pub(crate) flood_log: DropLog,
    /// When it was last logged what the limit of what the guest may receive has dropped.
    pub(crate) rate_log: DropLog,
}

impl Limited {
    /// No limits except those of all vifs: of floods, and of excess segments.
    pub fn new(flood: Arc<FloodBudget>, now: Instant) -> Limited {
        Limited {
            wanted: VifLimits::default(),
            mtu_min: 0,
            bad: Vec::new(),
            tx: None,
            rx: None,
            segments: Arc::new(segment_credit(now)),
            flood,
            flood_log: DropLog::default(),
            rate_log: DropLog::default(),
        }
    }

    /// Applies what is wanted now. `of_all` are the limits of all vifs that have none of their own.
    pub fn set(&mut self, wanted: VifLimits, of_all: (FloodLimit, StormLimits), now: Instant) {
        let before = std::mem::replace(&mut self.wanted, wanted);
        let interval = |rate: Rate| Duration::from_micros(rate.interval_us);
        // An unchanged limit keeps its account.
        if before.rate != wanted.rate {
            let credit = |rate: Rate| Arc::new(Credit::new(rate.bytes, interval(rate), now));
            self.tx = wanted.rate.map(credit);
        }
        if before.rate_rx != wanted.rate_rx {
            let credit = |rate: Rate| Arc::new(egress_credit(rate.bytes, interval(rate), now));
            self.rx = wanted.rate_rx.map(credit);
        }
        let (flood, storm) = of_all;
        if before.flood != wanted.flood {
            self.flood.set_limit(flood_limit(wanted.flood, flood));
        }
        let kinds = |limits: &VifLimits| [limits.broadcast, limits.multicast, limits.unknown];
        if kinds(&before) != kinds(&wanted) {
            self.flood.set_storm(storm_limits(&wanted, storm));
        }
    }

    /// Applies other limits of all vifs, as far as it has none of its own. What it has saved up
    /// stays.
    pub(crate) fn follow(&self, (flood, storm): (FloodLimit, StormLimits)) {
        self.flood.set_limit(flood_limit(self.wanted.flood, flood));
        self.flood.set_storm(storm_limits(&self.wanted, storm));
    }

    /// Its share of the engines, relative to other vifs.
    pub fn weight(&self) -> Weight {
        self.wanted.weight.and_then(Weight::new).unwrap_or(Weight::ONE)
    }

    /// The kind of port that the vif is to the engines that serve it.
    pub fn stations(&self) -> Stations {
        Stations::One(self.weight())
    }
}

/// A budget without a limit: for a port that does not flood, or is trusted to flood.
pub fn unlimited() -> Arc<FloodBudget> {
    Arc::new(FloodBudget::new(FloodLimit::NONE, Ticks::default()))
}

/// The floods of each kind that a vif may cause.
pub(crate) fn storm_limits(wanted: &VifLimits, of_all: StormLimits) -> StormLimits {
    StormLimits {
        broadcast: flood_limit(wanted.broadcast, of_all.broadcast),
        multicast: flood_limit(wanted.multicast, of_all.multicast),
        unknown: flood_limit(wanted.unknown, of_all.unknown),
    }
}

/// The floods that a vif may cause: its own limit if it has one, otherwise the general one.
pub(crate) fn flood_limit(wanted: FloodWish, of_all: FloodLimit) -> FloodLimit {
    let own = FloodLimit::per_second(wanted.rate.unwrap_or(0), wanted.mbit.unwrap_or(0));
    let (frames, bytes) = (
        if wanted.rate.is_some() { own } else { of_all },
        if wanted.mbit.is_some() { own } else { of_all },
    );
    FloodLimit {
        frames_per_tick: frames.frames_per_tick,
        burst_frames: frames.burst_frames,
        bytes_per_tick: bytes.bytes_per_tick,
        burst_bytes: bytes.burst_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vif_follows_the_limits_of_all_as_far_as_it_has_none_of_its_own() {
        let now = Instant::now();
        let limits = |frames, mbit| FloodLimit::per_second(frames, mbit);
        let mut limited = Limited::new(unlimited(), now);
        let flood = FloodWish { rate: Some(7), mbit: None };
        let none = (FloodLimit::NONE, StormLimits::NONE);
        limited.set(VifLimits { flood, ..VifLimits::default() }, none, now);
        let storm = StormLimits { broadcast: limits(3, 0), ..StormLimits::NONE };
        limited.follow((limits(100, 2), storm));
        let expected = FloodBudget::new(limits(7, 2), Ticks::default()).with_storm(storm);
        assert_eq!(format!("{:?}", limited.flood), format!("{expected:?}"));
    }
}
