//! What is known of the guest of a virtio vif.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::QueueCounters;
use ringway_engine::PortSteering;
use ringway_xenstore::RateLimit;

use crate::negotiated::Floor;
use crate::shared::HostConfig;

/// How often pairs may be attached in a burst, and the interval after that: attaching involves all
/// engines, and a front-end causes it with each change. At its start, a front-end may cause it for
/// each pair.
const ATTACHES_BURST: u32 = 256;
const ATTACH_INTERVAL: Duration = Duration::from_millis(50);
/// Kicks of a pair from which on its driver has made chains available. QEMU itself kicks each of
/// the two queues when the device starts.
const KICKS_MIN: u64 = 3;

/// What is known of the guest, and of its front-end.
pub(super) struct Guest {
    /// The least to offer.
    pub(super) floor: Floor,
    /// Pairs that should be served, and whether each is enabled.
    pub(super) pairs: BTreeMap<u16, bool>,
    /// How often they may be attached to engines.
    pub(super) rate_limit: RateLimit,
    /// When they will be attached, if that was deferred.
    pub(super) due: Option<Instant>,
    counters: BTreeMap<u16, Arc<QueueCounters>>,
    /// How frames for so many queues are balanced, if they are.
    balanced: (usize, Option<Arc<PortSteering>>),
    /// Whether its front-end is another process than the last one, and nothing was served yet.
    pub(super) is_new: bool,
    /// An address that the front-end wants announced to the network.
    pub(super) announced: Option<[u8; 6]>,
    /// By pair: kicks before the guest last stopped it.
    kicks_before: BTreeMap<u16, u64>,
    has_logged_unshared: bool,
}

impl Guest {
    pub(super) fn new(floor: Floor, now: Instant) -> Guest {
        Guest {
            floor,
            pairs: BTreeMap::new(),
            rate_limit: RateLimit::new(ATTACHES_BURST, ATTACH_INTERVAL, now),
            due: None,
            counters: BTreeMap::new(),
            balanced: (0, None),
            is_new: false,
            announced: None,
            kicks_before: BTreeMap::new(),
            has_logged_unshared: false,
        }
    }

    /// Another guest may come.
    pub(super) fn forget(&mut self) {
        self.pairs.clear();
        self.counters.clear();
        self.kicks_before.clear();
        self.balanced = (0, None);
        (self.due, self.announced) = (None, None);
        (self.is_new, self.has_logged_unshared) = (false, false);
    }

    /// The counters of a pair, for as long as the front-end is connected.
    pub(super) fn counters(&mut self, pair: u16) -> Arc<QueueCounters> {
        Arc::clone(self.counters.entry(pair).or_default())
    }

    /// How frames for so many queues are balanced, if they are. While the guest has as many, its
    /// flows stay where they are if it is attached again.
    pub(super) fn balanced(
        &mut self,
        queues: usize,
        config: &HostConfig,
    ) -> Option<Arc<PortSteering>> {
        if self.balanced.0 != queues {
            self.balanced = (queues, config.balanced(queues).map(Arc::new));
        }
        self.balanced.1.clone()
    }

    /// The guest has stopped a pair: kicks from now on are for other rings.
    pub(super) fn note_stop(&mut self, pair: u16) {
        self.kicks_before.insert(pair, self.kicks(pair));
    }

    fn kicks(&self, pair: u16) -> u64 {
        self.counters.get(&pair).map_or(0, |counters| counters.totals().events_received)
    }

    /// The likely reason if the guest kicks, and the rings of these pairs stay zeros: it writes to
    /// memory that is not shared with us.
    pub(super) fn unshared(&self, blank_pairs: &[u16]) -> Option<String> {
        let kicks = blank_pairs.iter().map(|pair| {
            let before = self.kicks_before.get(pair).copied().unwrap_or_default();
            // The counters of a new connection begin at zero.
            self.kicks(*pair).saturating_sub(before)
        });
        let kicks = kicks.max().filter(|kicks| *kicks >= KICKS_MIN)?;
        Some(format!(
            "the guest has kicked {kicks} times, but its rings are all zeros, so its memory is \
             probably not shared (QEMU: -object memory-backend-memfd,...,share=on; libvirt: \
             <memoryBacking><access mode='shared'/></memoryBacking>)"
        ))
    }

    /// Logs that once for each time that it happens.
    pub(super) fn log_unshared(&mut self, vif: &str, blank_pairs: &[u16]) {
        let reason = self.unshared(blank_pairs);
        if let (Some(reason), false) = (&reason, self.has_logged_unshared) {
            tracing::warn!(vif, "{reason}");
        }
        self.has_logged_unshared = reason.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::tests::Kept;

    #[test]
    fn a_guest_that_kicks_rings_of_zeros_has_not_shared_its_memory() {
        let floor = Floor::read("vm1", &mut Kept::default());
        let mut guest = Guest::new(floor, Instant::now());
        let kick = |guest: &mut Guest, pair, count| {
            let counters = guest.counters(pair);
            (0..count).for_each(|_| counters.add_event_received());
        };
        kick(&mut guest, 0, KICKS_MIN - 1);
        assert_eq!(guest.unshared(&[0]), None, "those of QEMU itself");
        kick(&mut guest, 0, 1);
        assert_eq!((guest.unshared(&[1]), guest.unshared(&[])), (None, None));
        let reason = guest.unshared(&[1, 0]).expect("it kicks");
        assert!(reason.starts_with("the guest has kicked 3 times, but its rings are"), "{reason}");
        guest.note_stop(0);
        assert_eq!(guest.unshared(&[0]), None, "these are other rings");
        kick(&mut guest, 0, KICKS_MIN);
        assert!(guest.unshared(&[0]).is_some());
        guest.forget();
        assert_eq!(guest.unshared(&[0]), None, "another guest");
    }
}
