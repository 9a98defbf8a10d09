//! What is set of vifs, and how a status has to show it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringway_calls::{FloodStatus, RateStatus, VifStatus};
use ringway_datapath::QueueCounters;
use ringway_host::vif_name;
use ringway_switch::FloodBudget;
use ringway_xenbus::limits::LinkState;
use ringway_xenbus::{
    FloodWish, Keys, MAX_QUEUES_KEY, MIRROR_KEY, OffloadWish, Rate, Vif, VifLimits,
};

use crate::toolstack::OFFLOADS;

/// What the toolstack and calls have set of vifs.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// By the name of the vif and the key in XenStore.
    set: BTreeMap<String, BTreeMap<&'static str, String>>,
    /// Vifs whose guests may have more queues than they are offered, until they reconnect.
    keep_queues: BTreeSet<Vif>,
    /// Vifs of which a note is older than what was set.
    unknown: BTreeSet<String>,
    /// Vifs whose offloads are off since a rest.
    without_offloads: BTreeSet<String>,
    /// By the name of a vif: what it had at the last rest.
    budgets: BTreeMap<String, Budgeted>,
    /// Frames that vifs without a limit of their own may flood in a second; 0 for no limit.
    pub(crate) flood_rate: u32,
}

/// The budget of floods of a vif, and what its first queue is known by: each connection has others.
pub(crate) type Budgeted = (Arc<FloodBudget>, Arc<QueueCounters>);

impl Settings {
    /// A vif was made, with this alone.
    pub(crate) fn made(&mut self, vif: Vif, key: &'static str, value: &str) {
        let name = vif_name(vif);
        self.set.remove(&name);
        self.without_offloads.remove(&name);
        self.forget_budget(&name);
        self.reconnected(vif);
        self.set(&name, key, value);
    }

    pub(crate) fn set(&mut self, name: &str, key: &'static str, value: &str) {
        if key == OFFLOADS {
            self.without_offloads.remove(name);
        }
        self.set.entry(name.to_owned()).or_default().insert(key, value.to_owned());
    }

    /// Whether the offloads of a vif are off since the last rest. This is another rest.
    pub(crate) fn were_offloads_off(&mut self, name: &str) -> bool {
        let are_off = self.limits(name).offloads == Some(OffloadWish::None);
        match are_off && !self.unknown.contains(name) {
            true => !self.without_offloads.insert(name.to_owned()),
            false => {
                self.without_offloads.remove(name);
                false
            }
        }
    }

    pub(crate) fn unset(&mut self, name: &str, key: &str) {
        self.set.get_mut(name).into_iter().for_each(|set| drop(set.remove(key)));
    }

    /// A vif has ended: a later one with its name has none of its settings.
    pub(crate) fn removed(&mut self, name: &str) {
        self.set.remove(name);
        self.without_offloads.remove(name);
        self.unknown.remove(name);
        self.forget_budget(name);
    }

    /// Notes the budget and a queue of a vif that is connected. Returns those before.
    pub(crate) fn note_budget(&mut self, name: String, now: Budgeted) -> Option<Budgeted> {
        self.budgets.insert(name, now)
    }

    /// To its backend, the vif of this name is another one.
    pub(crate) fn forget_budget(&mut self, name: &str) {
        self.budgets.remove(name);
    }

    /// Another process serves all vifs.
    pub(crate) fn forget_budgets(&mut self) {
        self.budgets.clear();
    }

    /// There was no room to note what was set of a vif, and its process has ended.
    pub(crate) fn forget(&mut self, name: &str) {
        self.unknown.insert(name.to_owned());
    }

    /// The guests of these vifs may keep the queues of an older offer until they reconnect.
    pub(crate) fn may_keep_queues(&mut self, vifs: impl Iterator<Item = Vif>) {
        self.keep_queues.extend(vifs);
    }

    /// Another number of queues is offered, which the guest has to take at once, or when it
    /// reconnects.
    pub(crate) fn offered(&mut self, vif: Vif, queues_max: u16, is_at_once: bool) {
        self.set(&vif_name(vif), MAX_QUEUES_KEY, &queues_max.to_string());
        self.keep_queues.insert(vif);
        if is_at_once {
            self.reconnected(vif);
        }
    }

    /// The guest takes what is offered.
    pub(crate) fn reconnected(&mut self, vif: Vif) {
        self.keep_queues.remove(&vif);
    }

    /// The limits that are set. A value that is invalid sets none.
    pub(crate) fn limits(&self, name: &str) -> VifLimits {
        let set = self.set.get(name).into_iter().flatten();
        VifLimits::read(&Keys::new("", set.map(|(key, value)| ((*key).to_owned(), value.clone()))))
            .0
    }

    /// Whether a vif is shown as it is set: limits, mirror, and the queues that it may have, which
    /// are those of all vifs, if these are known, unless it has its own.
    pub(crate) fn are_shown(&self, vif: Vif, shown: &VifStatus, of_all: Option<u16>) -> bool {
        let value = self.set.get(&vif_name(vif)).and_then(|set| set.get(MAX_QUEUES_KEY));
        let queues_max = value.and_then(|text| text.parse::<u16>().ok()).or(of_all);
        let are_allowed = shown.queues.len() <= usize::from(shown.max_queues);
        self.are_limits_shown(shown)
            && queues_max.is_none_or(|queues_max| shown.max_queues == queues_max)
            && (are_allowed || self.keep_queues.contains(&vif))
    }

    /// Whether the limits and the mirror of a vif are shown as they are set.
    pub(crate) fn are_limits_shown(&self, shown: &VifStatus) -> bool {
        let (limits, status) = (self.limits(&shown.name), &shown.limits);
        let rate = |rate: Rate| RateStatus { bytes: rate.bytes, interval_us: rate.interval_us };
        let mirror = self.set.get(&shown.name).and_then(|set| set.get(MIRROR_KEY));
        let flood = FloodStatus {
            frames_per_second: status.flood_frames_per_second,
            bytes_per_second: status.flood_bytes_per_second,
        };
        let is_shown = status.link_down == (limits.link == Some(LinkState::Down))
            && status.offloads == limits.offloads.unwrap_or_default().to_string()
            && status.weight == limits.weight.unwrap_or(1)
            && status.rate == limits.rate.map(rate)
            && status.rate_rx == limits.rate_rx.map(rate)
            && flood == flood_shown(limits.flood, self.flood_rate)
            && status.broadcast == flood_shown(limits.broadcast, 0)
            && status.multicast == flood_shown(limits.multicast, 0)
            && status.unknown == flood_shown(limits.unknown, 0)
            && shown.mirror.join(" ") == mirror.map_or("", String::as_str);
        is_shown || self.unknown.contains(&shown.name)
    }
}

/// How a limit of floods is shown, where vifs without their own may flood so many frames.
fn flood_shown(wish: FloodWish, rate_of_all: u32) -> FloodStatus {
    let limit = |set: Option<u32>| set.filter(|limit| *limit > 0);
    let bytes = |mbit: u32| u64::from(mbit) * 125_000;
    FloodStatus {
        frames_per_second: limit(wish.rate.or(Some(rate_of_all))),
        bytes_per_second: limit(wish.mbit).map(bytes),
    }
}
