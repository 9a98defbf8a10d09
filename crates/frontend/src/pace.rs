//! How often the changes of a vif's backend are followed.
//!
//! A backend can change its state and its keys as often as it likes, and following a change costs
//! requests to XenStore, and perhaps a new connection. So a change is only noted when it is seen,
//! and those of each vif are followed at a bounded rate, however often others change. Changes that
//! come meanwhile are followed as one: what a backend has written is read when it is followed, so
//! only what it wrote last matters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringway_xenstore::RateLimit;

/// How often a vif's changes are followed at once: those of several handshakes, so that an honest
/// backend is followed without delay.
const BURST: u32 = 20;
/// The time for one more.
const INTERVAL: Duration = Duration::from_millis(100);

/// What may have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The backend's state.
    pub(crate) has_state_changed: bool,
    /// What the device shows of its link.
    pub(crate) has_link_changed: bool,
}

/// The changes of a guest's vifs, by handle.
#[derive(Debug, Default)]
pub(crate) struct Paces(BTreeMap<u32, Pace>);

#[derive(Debug)]
struct Pace {
    rate_limit: RateLimit,
    /// What has not been followed, and when it will be.
    pending: Option<(Instant, Changes)>,
}

impl Paces {
    /// Notes a change of a vif.
    pub(crate) fn note(&mut self, handle: u32, now: Instant, record: impl FnOnce(&mut Changes)) {
        let pace = self.0.entry(handle).or_insert_with(|| Pace {
            rate_limit: RateLimit::new(BURST, INTERVAL, now),
            pending: None,
        });
        let (_, changes) = pace.pending.get_or_insert((now, Changes::default()));
        record(changes);
    }

    /// The vifs that are to be followed now, each once, with all that may have changed.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<(u32, Changes)> {
        let paces = self.0.iter_mut();
        paces.filter_map(|(handle, pace)| Some((*handle, pace.take(now)?))).collect()
    }

    /// When to [take](Paces::take) changes, if there are any.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.values().filter_map(|pace| pace.pending).map(|(due, _)| due).min()
    }

    /// Forgets a vif that is gone. Another one may get its handle.
    pub(crate) fn forget(&mut self, handle: u32) {
        self.0.remove(&handle);
    }
}

impl Pace {
    fn take(&mut self, now: Instant) -> Option<Changes> {
        let (_, changes) = self.pending.filter(|(due, _)| *due <= now)?;
        let later = self.rate_limit.take(now).err();
        self.pending = later.map(|later| (later, changes));
        later.is_none().then_some(changes)
    }
}

#[cfg(test)]
mod tests;
