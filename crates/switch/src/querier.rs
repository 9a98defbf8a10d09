//! Whether a querier asks stations for the groups that they listen to.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use ringway_datapath::MacAddr;

use crate::Ticks;

/// A protocol by which stations report the groups that they listen to: each has its own querier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// IGMP.
    V4,
    /// MLD.
    V6,
}

impl Family {
    /// The protocol that reports a group's members.
    pub(crate) fn of(group: MacAddr) -> Family {
        if group.0[0] == 0x33 { Family::V6 } else { Family::V4 }
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        match self {
            Family::V4 => 0,
            Family::V6 => 1,
        }
    }
}

/// Whether a VLAN has a querier, for each protocol. Without a querier, stations report only once,
/// so their reports cannot be relied on.
#[derive(Debug, Default)]
pub(crate) struct Queriers([Querier; 2]);

/// A querier of one protocol.
#[derive(Debug, Default)]
pub(crate) struct Querier {
    /// When it ceases to count as present, unless it is heard again.
    present: Deadline,
    /// When all stations have reported after the first query.
    reported: Deadline,
    has_reports: AtomicBool,
}

impl Queriers {
    pub(crate) fn of(&self, family: Family) -> &Querier {
        &self.0[family.index()]
    }

    /// Whether all members of groups have reported.
    #[inline]
    pub(crate) fn has_reports(&self, family: Family) -> bool {
        self.of(family).has_reports.load(Relaxed)
    }

    pub(crate) fn expire(&self, now: Ticks) {
        for Querier { present, reported, has_reports } in &self.0 {
            if present.is_due(now) {
                has_reports.store(false, Relaxed);
                reported.clear();
                present.clear();
            } else if reported.is_due(now) {
                has_reports.store(true, Relaxed);
            }
        }
    }
}

impl Querier {
    /// Handles a query: the querier counts as present for `present`, and stations have the response
    /// time to report. Of several queries before the first deadline, the first sets it, because
    /// stations report after each.
    pub(crate) fn on_query(&self, now: Ticks, present: u32, response: u32) {
        self.present.set(now, present);
        self.reported.set_if_clear(now, response);
    }
}

/// What the time of a deadline still depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The present time: the next thread that checks knows it.
    Time,
    /// A query.
    Query,
}

impl Awaited {
    fn bits(self) -> u64 {
        match self {
            Awaited::Time => 1,
            Awaited::Query => 2,
        }
    }
}

/// A moment after which something ends, if it is set.
#[derive(Debug, Default)]
pub(crate) struct Deadline(AtomicU64);

impl Deadline {
    pub(crate) fn set(&self, now: Ticks, ticks: u32) {
        self.0.store(deadline(now, ticks), SeqCst);
    }

    pub(crate) fn set_if_clear(&self, now: Ticks, ticks: u32) {
        let _ = self.0.compare_exchange(0, deadline(now, ticks), SeqCst, SeqCst);
    }

    /// Sets it once this event has happened.
    pub(crate) fn set_when(&self, awaited: Awaited) {
        self.0.store(awaited.bits(), SeqCst);
    }

    pub(crate) fn awaits(&self, awaited: Awaited) -> bool {
        self.0.load(SeqCst) == awaited.bits()
    }

    /// This event has happened.
    pub(crate) fn resolve(&self, awaited: Awaited, now: Ticks, ticks: u32) {
        let _ = self.0.compare_exchange(awaited.bits(), deadline(now, ticks), SeqCst, SeqCst);
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, SeqCst);
    }

    pub(crate) fn is_ahead(&self, now: Ticks) -> bool {
        self.0.load(SeqCst) != 0 && !self.is_due(now)
    }

    pub(crate) fn is_due(&self, now: Ticks) -> bool {
        match self.0.load(SeqCst) {
            set if set & IS_SET == 0 => false,
            set => {
                let [.., a, b, c, d] = set.to_be_bytes();
                now.since(Ticks(u32::from_be_bytes([a, b, c, d]))) > 0
            }
        }
    }
}

fn deadline(now: Ticks, ticks: u32) -> u64 {
    IS_SET | u64::from(now.0.wrapping_add(ticks))
}

const IS_SET: u64 = 1 << 32;
