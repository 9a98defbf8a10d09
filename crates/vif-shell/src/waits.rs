//! What a backend's end waits for besides its frontend, and what XenStore has refused it: for
//! people.

use std::time::{Duration, Instant};

use ringway_xenstore::Refusal;

/// What a backend's end waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndWait {
    /// The toolstack's hotplug script. The guest is served meanwhile.
    Script,
    /// What this host lacks to serve the guest, as the [error](crate::BackendEnd::error) says. It
    /// is tried again.
    Resources,
    /// The moment at which its guest's keys may be read again: the guest changes them faster.
    Keys,
}

/// What XenStore has refused an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    /// How many requests.
    pub count: u64,
    /// The last of them.
    pub last: Refusal,
    /// When that was.
    pub at: Instant,
}

/// The waits of an end, each with its beginning.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    pub(crate) script: Option<Instant>,
    pub(crate) resources: Option<Instant>,
    keys: Option<Deferred>,
    pub(crate) refusals: Option<Refusals>,
}

/// Reads of keys that were deferred, one soon after the other.
#[derive(Debug, Clone, Copy)]
struct Deferred {
    first: Instant,
    last: Instant,
}

impl Waits {
    /// A read of the guest's keys is deferred. The guest is as fast as before, unless that has not
    /// happened for the time `pause`.
    pub(crate) fn defer(&mut self, pause: Duration, now: Instant) {
        let first = self.keys(pause, now).unwrap_or(now);
        self.keys = Some(Deferred { first, last: now });
    }

    /// Since when reads are deferred, if they were within the time `pause`.
    pub(crate) fn keys(&self, pause: Duration, now: Instant) -> Option<Instant> {
        let deferred = self.keys?;
        let is_over = now.saturating_duration_since(deferred.last) > pause;
        (!is_over).then_some(deferred.first)
    }

    /// XenStore has refused a request.
    pub(crate) fn refuse(&mut self, refusal: &Refusal, now: Instant) {
        let count = self.refusals.as_ref().map_or(0, |before| before.count);
        let count = count.saturating_add(1);
        self.refusals = Some(Refusals { count, last: refusal.clone(), at: now });
    }
}
