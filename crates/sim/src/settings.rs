//! What is set of vifs, and how a status has to show it.

use std::collections::BTreeMap;

use ringway_calls::{RateStatus, VifStatus};
use ringway_xenbus::{Keys, MIRROR_KEY, Rate, Vif, VifLimits};

/// What the toolstack and calls have set, by the vif and the key in XenStore.
#[derive(Debug, Default)]
pub(crate) struct Settings(BTreeMap<Vif, BTreeMap<&'static str, String>>);

impl Settings {
    /// A vif was made, with this alone.
    pub(crate) fn made(&mut self, vif: Vif, key: &'static str, value: &str) {
        self.0.remove(&vif);
        self.set(vif, key, value);
    }

    pub(crate) fn set(&mut self, vif: Vif, key: &'static str, value: &str) {
        self.0.entry(vif).or_default().insert(key, value.to_owned());
    }

    /// The limits that are set. A value that is invalid sets none.
    pub(crate) fn limits(&self, vif: Vif) -> VifLimits {
        let set = self.0.get(&vif).into_iter().flatten();
        VifLimits::read(&Keys::new("", set.map(|(key, value)| ((*key).to_owned(), value.clone()))))
            .0
    }

    /// Whether the limits and the mirror of a vif are shown as they are set.
    pub(crate) fn are_shown(&self, vif: Vif, shown: &VifStatus) -> bool {
        let limits = self.limits(vif);
        let rate = |rate: Rate| RateStatus { bytes: rate.bytes, interval_us: rate.interval_us };
        let mirror = self.0.get(&vif).and_then(|set| set.get(MIRROR_KEY));
        shown.limits.weight == limits.weight.unwrap_or(1)
            && shown.limits.rate == limits.rate.map(rate)
            && shown.limits.rate_rx == limits.rate_rx.map(rate)
            && shown.mirror.join(" ") == mirror.map_or("", String::as_str)
    }
}
