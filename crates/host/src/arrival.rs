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

use ringway_engine::Announcement;
use ringway_xenstore::RateLimit;

/// How often an arrival is announced. Open vSwitch may have the port and no flows for it yet, and
/// any frame may be lost. RFC 4861 (7.2.6) allows three times.
const ROUNDS: u32 = 3;
/// The pause after the first time, which doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// Arrivals of a vif that are announced in a burst, and the interval after that: a guest that
/// returns again and again must not flood the network.
const ARRIVALS_BURST: u32 = 4;
const ARRIVAL_INTERVAL: Duration = Duration::from_secs(10);

/// The last arrival of a vif's guest.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// What is announced.
    pub(crate) announcement: Arc<Announcement>,
    rounds_left: u32,
    /// When the next round is due, once the vif is on its network.
    next: Option<Instant>,
    pause: Duration,
    rate_limit: RateLimit,
}

impl Arrival {
    /// No guest has arrived so far.
    pub(crate) fn none(now: Instant) -> Arrival {
        Arrival {
            announcement: Arc::default(),
            rounds_left: 0,
            next: None,
            pause: PAUSE,
            rate_limit: RateLimit::new(ARRIVALS_BURST, ARRIVAL_INTERVAL, now),
        }
    }

    /// A guest has arrived. Whether it may be announced, considering those before.
    pub(crate) fn take_turn(&mut self, now: Instant) -> bool {
        self.rate_limit.take(now).is_ok()
    }

    /// This is announced from now on.
    pub(crate) fn begin(&mut self, announcement: Announcement) {
        self.announcement = Arc::new(announcement);
        (self.rounds_left, self.next, self.pause) = (ROUNDS, None, PAUSE);
    }

    /// The guest has left.
    pub(crate) fn end(&mut self) {
        (self.announcement, self.rounds_left, self.next) = (Arc::default(), 0, None);
    }

    /// Whether rounds are left.
    pub(crate) fn is_open(&self) -> bool {
        self.rounds_left > 0
    }

    /// Whether a round was made, and others are left.
    pub(crate) fn has_begun(&self) -> bool {
        (1..ROUNDS).contains(&self.rounds_left)
    }

    /// When the next round is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// The vif is not on its network: the next round waits for that.
    pub(crate) fn wait(&mut self) {
        self.next = None;
    }

    /// Makes a round if it is due. Returns whether there is something to send.
    pub(crate) fn make_round(&mut self, now: Instant) -> bool {
        if !self.is_open() || *self.next.get_or_insert(now) > now {
            return false;
        }
        self.rounds_left -= 1;
        self.next = self.is_open().then(|| now + self.pause);
        self.pause *= 2;
        self.announcement.repeat();
        true
    }
}
