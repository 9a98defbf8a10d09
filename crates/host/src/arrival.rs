//! The arrival of a guest: its rings begin where this host has not seen them, because it starts,
//! was restored, or has moved here. The network then learns where it is.
//!
//! No front-end asks for that if its guest announces itself, and a guest that announces itself does
//! so by a protocol of its own choice, or before its port is on the network. So the host announces
//! each arrival, by every protocol that a network may wait for: Open Virtual Network keeps a port
//! closed until it has seen one of those that `activation-strategy` lists.
//!
//! Rings that an earlier process has served are no arrival: the network knows their guest.
//! `announce.rs` is what a vif does with this.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::MacAddr;
use ringway_engine::Announcement;
use ringway_xenstore::RateLimit;

/// When an arrival is announced: each round after a pause of so many milliseconds. Any frame may be
/// lost, so all is announced three times, as often as RFC 4861 (7.2.6) allows, and its second
/// apart.
///
/// Open vSwitch may have a port and, for some milliseconds more, no flows for it, so the Ethernet
/// address is announced soon again.
const ROUNDS: [(u64, Extent); 8] = [
    (0, Extent::All),
    (10, Extent::Address),
    (20, Extent::Address),
    (40, Extent::Address),
    (80, Extent::Address),
    (160, Extent::Address),
    (690, Extent::All),
    (2000, Extent::All),
];
/// Arrivals of a vif that are announced in a burst. A guest that returns again and again must not
/// flood the network, nor stay cut off from it.
const ARRIVALS_BURST: u32 = 4;
/// The time for the first round of one more: the least that RFC 4861 (7.2.6) has between two such
/// messages. An arrival that comes sooner is announced when it has passed.
const ARRIVAL_INTERVAL: Duration = Duration::from_secs(1);
/// The time for all other rounds of one more. An arrival that comes sooner has none of these.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// What a round announces.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// All that is known of the guest.
    All,
    /// Its own Ethernet address, if that is configured.
    Address,
}

/// The last arrival of a vif's guest.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// What is announced.
    pub(crate) announcement: Arc<Announcement>,
    /// The next of [`ROUNDS`].
    round: usize,
    /// When it is due, once the vif is on its network.
    next: Option<Instant>,
    /// How many arrivals may have a first round, and how many the others.
    first: RateLimit,
    repeats: RateLimit,
}

impl Arrival {
    /// No guest has arrived so far.
    pub(crate) fn none(now: Instant) -> Arrival {
        Arrival {
            announcement: Arc::default(),
            round: ROUNDS.len(),
            next: None,
            first: RateLimit::new(ARRIVALS_BURST, ARRIVAL_INTERVAL, now),
            repeats: RateLimit::new(ARRIVALS_BURST, REPEAT_INTERVAL, now),
        }
    }

    /// This is announced from now on.
    pub(crate) fn begin(&mut self, announcement: Announcement) {
        self.announcement = Arc::new(announcement);
        (self.round, self.next) = (0, None);
    }

    /// The guest has left.
    pub(crate) fn end(&mut self) {
        (self.announcement, self.round, self.next) = (Arc::default(), ROUNDS.len(), None);
    }

    /// Whether rounds are left.
    pub(crate) fn is_open(&self) -> bool {
        self.round < ROUNDS.len()
    }

    /// Whether a round was made, and others are left.
    pub(crate) fn has_begun(&self) -> bool {
        (1..ROUNDS.len()).contains(&self.round)
    }

    /// When the next round is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// The vif is not on its network: the next round waits for that.
    pub(crate) fn wait(&mut self) {
        self.next = None;
    }

    /// Makes a round if it is due, and the arrivals before have left one. Returns whether there is
    /// something to send. `own` is what it announces of the guest if that is its Ethernet address
    /// alone.
    pub(crate) fn make_round(&mut self, now: Instant, own: Option<MacAddr>) -> bool {
        let Some((_, extent)) = ROUNDS.get(self.round) else { return false };
        if *self.next.get_or_insert(now) > now {
            return false;
        }
        let allowed = match self.round {
            0 => self.first.take(now),
            1 => self.repeats.take(now),
            _ => Ok(()),
        };
        if let Err(later) = allowed {
            match self.round {
                0 => self.next = Some(later),
                _ => (self.round, self.next) = (ROUNDS.len(), None),
            }
            return false;
        }
        self.round += 1;
        let next = ROUNDS.get(self.round);
        self.next = next.map(|(pause, _)| now + Duration::from_millis(*pause));
        match extent {
            Extent::All => self.announcement.repeat(),
            Extent::Address => own.iter().for_each(|mac| self.announcement.ask(*mac)),
        }
        true
    }
}
