//! How much a port may flood, in total and of each kind (storm control).

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use ringway_datapath::{DropReason, MacAddr};

use crate::Ticks;

/// What one port may send to all others: broadcast, multicast and unknown destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloodLimit {
    /// Frames that each tick adds.
    pub frames_per_tick: u32,
    /// Frames that can be saved up; [`u32::MAX`] for no limit of frames.
    pub burst_frames: u32,
    /// Bytes of frames that each tick adds.
    pub bytes_per_tick: u64,
    /// Bytes that can be saved up; [`u64::MAX`] for no limit of bytes.
    pub burst_bytes: u64,
}

impl FloodLimit {
    /// No limit.
    pub const NONE: FloodLimit = FloodLimit {
        frames_per_tick: u32::MAX,
        burst_frames: u32::MAX,
        bytes_per_tick: u64::MAX,
        burst_bytes: u64::MAX,
    };

    /// So many frames and bytes per tick, all of which may come at once; `None` for no limit.
    pub fn per_tick(frames: Option<u32>, bytes: Option<u64>) -> FloodLimit {
        let (frames, bytes) = (frames.unwrap_or(u32::MAX), bytes.unwrap_or(u64::MAX));
        FloodLimit {
            frames_per_tick: frames,
            burst_frames: frames,
            bytes_per_tick: bytes,
            burst_bytes: bytes,
        }
    }

    /// So many frames and megabits per second, if a tick is a second; 0 for no limit.
    pub fn per_second(frames: u32, mbit: u32) -> FloodLimit {
        let is_set = |value: &u32| *value > 0;
        let bytes = Some(mbit).filter(is_set).map(|mbit| u64::from(mbit) * BYTES_PER_MBIT);
        FloodLimit::per_tick(Some(frames).filter(is_set), bytes)
    }
}

const BYTES_PER_MBIT: u64 = 1_000_000 / 8;

/// The kind of a flooded frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodKind {
    /// To all stations.
    Broadcast,
    /// To a group.
    Multicast,
    /// To a station whose port the switch does not know.
    Unknown,
}

impl FloodKind {
    /// The kind, by a flooded frame's destination.
    pub fn of(dst: MacAddr) -> FloodKind {
        match dst {
            MacAddr::BROADCAST => FloodKind::Broadcast,
            _ if dst.is_multicast() => FloodKind::Multicast,
            _ => FloodKind::Unknown,
        }
    }

    /// The drop reason when the budget of the kind is used up.
    fn reason(self) -> DropReason {
        match self {
            FloodKind::Broadcast => DropReason::BroadcastLimit,
            FloodKind::Multicast => DropReason::MulticastLimit,
            FloodKind::Unknown => DropReason::UnknownLimit,
        }
    }
}

/// What one port may flood of each kind, in addition to its total limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StormLimits {
    /// Broadcasts.
    pub broadcast: FloodLimit,
    /// Multicasts.
    pub multicast: FloodLimit,
    /// Frames to unknown addresses.
    pub unknown: FloodLimit,
}

impl StormLimits {
    /// No limits.
    pub const NONE: StormLimits = StormLimits {
        broadcast: FloodLimit::NONE,
        multicast: FloodLimit::NONE,
        unknown: FloodLimit::NONE,
    };
}

/// Token buckets of frames and of bytes, for all floods and for each kind, shared by all queues of
/// a port, whichever workers own them. There is no lock; each flooded frame costs an atomic
/// operation on each limited bucket. Queues that check at the same moment may each take one frame
/// too many, which is paid back.
///
/// It belongs to a vif, not to a connection, so that a new connection does not bring a new budget.
#[derive(Debug)]
pub struct FloodBudget {
    all: Buckets,
    broadcast: Buckets,
    multicast: Buckets,
    unknown: Buckets,
    refilled_at: AtomicU32,
}

impl FloodBudget {
    /// Full buckets, without limits per kind.
    pub fn new(limit: FloodLimit, now: Ticks) -> FloodBudget {
        FloodBudget {
            all: Buckets::full(limit),
            broadcast: Buckets::full(FloodLimit::NONE),
            multicast: Buckets::full(FloodLimit::NONE),
            unknown: Buckets::full(FloodLimit::NONE),
            refilled_at: AtomicU32::new(now.0),
        }
    }

    /// Adds limits per kind.
    #[must_use]
    pub fn with_storm(self, limits: StormLimits) -> FloodBudget {
        self.set_storm(limits);
        self
    }

    /// Sets another total limit, effective at once. Saved tokens stay, as far as the new limit
    /// allows.
    pub fn set_limit(&self, limit: FloodLimit) {
        self.all.set(limit);
    }

    /// Sets other limits per kind, likewise.
    pub fn set_storm(&self, limits: StormLimits) {
        self.broadcast.set(limits.broadcast);
        self.multicast.set(limits.multicast);
        self.unknown.set(limits.unknown);
    }

    /// Adds the tokens for the time since the last call: once per batch.
    #[inline]
    pub(crate) fn refill(&self, now: Ticks) {
        let before = self.refilled_at.load(Ordering::Relaxed);
        let ticks = now.since(Ticks(before));
        if ticks > 0 {
            self.refill_for(ticks, before, now);
        }
    }

    #[cold]
    fn refill_for(&self, ticks: u32, before: u32, now: Ticks) {
        let at = &self.refilled_at;
        // Only one of several workers adds them.
        if at.compare_exchange(before, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let buckets = [&self.all, &self.broadcast, &self.multicast, &self.unknown];
            buckets.iter().for_each(|it| it.add(ticks));
        }
    }

    /// Takes the tokens for a frame of `len` bytes, from the total and from its kind.
    ///
    /// # Errors
    /// The drop reason, if either is used up; then nothing is taken.
    #[inline]
    pub(crate) fn take(&self, len: usize, kind: FloodKind) -> Result<(), DropReason> {
        let of_kind = match kind {
            FloodKind::Broadcast => &self.broadcast,
            FloodKind::Multicast => &self.multicast,
            FloodKind::Unknown => &self.unknown,
        };
        if !of_kind.has_left() {
            return Err(kind.reason());
        }
        if !self.all.has_left() {
            return Err(DropReason::FloodLimit);
        }
        of_kind.take(len);
        self.all.take(len);
        Ok(())
    }
}

/// What is left of a limit.
#[derive(Debug, Default)]
struct Buckets {
    frames: Bucket,
    bytes: Bucket,
}

impl Buckets {
    fn full(limit: FloodLimit) -> Buckets {
        let buckets = Buckets::default();
        buckets.frames.left.store(i64::MAX, Ordering::Relaxed);
        buckets.bytes.left.store(i64::MAX, Ordering::Relaxed);
        buckets.set(limit);
        buckets
    }

    fn set(&self, limit: FloodLimit) {
        let burst_frames = match limit.burst_frames {
            u32::MAX => u64::MAX,
            frames => frames.into(),
        };
        self.frames.set(limit.frames_per_tick.into(), burst_frames);
        self.bytes.set(limit.bytes_per_tick, limit.burst_bytes);
    }

    fn add(&self, ticks: u32) {
        self.frames.add(ticks);
        self.bytes.add(ticks);
    }

    fn has_left(&self) -> bool {
        self.frames.has_left() && self.bytes.has_left()
    }

    fn take(&self, len: usize) {
        self.frames.take(1);
        self.bytes.take(i64::try_from(len).unwrap_or(i64::MAX));
    }
}

#[derive(Debug, Default)]
struct Bucket {
    per_tick: AtomicU64,
    /// What can be saved up; [`u64::MAX`] for no limit.
    burst: AtomicU64,
    /// Below 0 if more was taken than there was.
    left: AtomicI64,
}

impl Bucket {
    fn set(&self, per_tick: u64, burst: u64) {
        self.per_tick.store(per_tick, Ordering::Relaxed);
        self.burst.store(burst, Ordering::Relaxed);
        self.left.fetch_min(amount(burst), Ordering::Relaxed);
    }

    fn has_left(&self) -> bool {
        !self.is_limited() || self.left.load(Ordering::Relaxed) > 0
    }

    fn take(&self, taken: i64) {
        if self.is_limited() {
            self.left.fetch_sub(taken, Ordering::Relaxed);
        }
    }

    fn add(&self, ticks: u32) {
        let added = amount(self.per_tick.load(Ordering::Relaxed).saturating_mul(ticks.into()));
        let burst = amount(self.burst.load(Ordering::Relaxed));
        let refilled = |left: i64| Some(left.saturating_add(added).min(burst));
        // Never fails; it retries only while another queue takes tokens at the same moment.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refilled);
    }

    fn is_limited(&self) -> bool {
        self.burst.load(Ordering::Relaxed) != u64::MAX
    }
}

fn amount(of: u64) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(budget: &FloodBudget, now: Ticks, len: usize) -> usize {
        budget.refill(now);
        (0..1000).filter(|_| budget.take(len, FloodKind::Unknown).is_ok()).count()
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let limit = FloodLimit { frames_per_tick: 3, burst_frames: 5, ..FloodLimit::NONE };
        let budget = FloodBudget::new(limit, Ticks(u32::MAX));
        assert_eq!(drain(&budget, Ticks(u32::MAX), 60), 5);
        assert_eq!(drain(&budget, Ticks(u32::MAX), 60), 0);
        // The clock wraps around here, and then goes backward once.
        assert_eq!(drain(&budget, Ticks(0), 60), 3);
        assert_eq!(drain(&budget, Ticks(u32::MAX), 60), 0);
        assert_eq!(drain(&budget, Ticks(1), 60), 3);
        assert_eq!(drain(&budget, Ticks(2_000_000_000), 60), 5);
    }

    #[test]
    fn bytes_are_limited_as_well_and_a_long_frame_leaves_a_debt() {
        let budget = FloodBudget::new(FloodLimit::per_tick(Some(100), Some(10_000)), Ticks(0));
        assert_eq!(drain(&budget, Ticks(0), 1500), 7);
        // 500 too many were taken.
        assert_eq!(drain(&budget, Ticks(1), 9_400), 2);
        // The rate pays back 60,000 bytes in 6 ticks.
        assert_eq!(drain(&budget, Ticks(2), 60_000), 1);
        let later: Vec<usize> = (3..10).map(|tick| drain(&budget, Ticks(tick), 60_000)).collect();
        assert_eq!(later, [0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(drain(&budget, Ticks(100), 60), 100);
    }

    #[test]
    fn no_limit_is_no_limit() {
        let budget = FloodBudget::new(FloodLimit::NONE, Ticks(0));
        assert_eq!(drain(&budget, Ticks(0), 65_000), 1000);
        assert_eq!(drain(&budget, Ticks(5), 65_000), 1000);
    }

    #[test]
    fn a_changed_limit_applies_at_once_without_extra_credit() {
        let budget = FloodBudget::new(FloodLimit::NONE, Ticks(0));
        budget.set_limit(FloodLimit::per_tick(Some(4), None));
        assert_eq!(drain(&budget, Ticks(0), 60), 4);
        budget.set_limit(FloodLimit::per_tick(Some(400), None));
        assert_eq!(drain(&budget, Ticks(0), 60), 0);
        assert_eq!(drain(&budget, Ticks(1), 60), 400);
        budget.set_limit(FloodLimit::NONE);
        assert_eq!(drain(&budget, Ticks(1), 60), 1000);
    }

    #[test]
    fn each_kind_has_a_limit_of_its_own_and_all_together_the_total() {
        use FloodKind::{Broadcast, Multicast, Unknown};
        let limit = |frames| FloodLimit::per_tick(Some(frames), None);
        let storm = StormLimits {
            broadcast: limit(2),
            multicast: FloodLimit::per_tick(None, Some(3_000)),
            unknown: FloodLimit::NONE,
        };
        let budget = FloodBudget::new(limit(6), Ticks(0)).with_storm(storm);
        let count = |kind, len| (0..10).filter(|_| budget.take(len, kind).is_ok()).count();
        assert_eq!(count(Broadcast, 60), 2);
        assert_eq!(budget.take(60, Broadcast), Err(DropReason::BroadcastLimit));
        // A storm of one kind leaves the others their budgets.
        assert_eq!(count(Multicast, 1500), 2);
        assert_eq!(budget.take(60, Multicast), Err(DropReason::MulticastLimit));
        // Frames refused for their kind take nothing from the total.
        assert_eq!(count(Unknown, 60), 2);
        assert_eq!(budget.take(60, Unknown), Err(DropReason::FloodLimit));
        budget.refill(Ticks(1));
        assert_eq!((count(Broadcast, 60), count(Multicast, 1500), count(Unknown, 60)), (2, 2, 2));
        // New limits apply at once and give no extra tokens.
        budget.set_storm(StormLimits { unknown: limit(1), ..StormLimits::NONE });
        budget.set_limit(FloodLimit::NONE);
        assert_eq!((count(Broadcast, 60), count(Unknown, 60)), (10, 1));
        assert_eq!(budget.take(60, Unknown), Err(DropReason::UnknownLimit));
    }

    #[test]
    fn a_frame_is_of_the_kind_of_its_destination() {
        let kind = |first| FloodKind::of(MacAddr([first; 6]));
        assert_eq!(kind(0xff), FloodKind::Broadcast);
        assert_eq!(kind(0x33), FloodKind::Multicast);
        assert_eq!(kind(0x02), FloodKind::Unknown);
    }

    #[test]
    fn queues_on_several_workers_share_one_budget() {
        let budget = FloodBudget::new(FloodLimit::per_tick(Some(1000), None), Ticks(0));
        let taken: usize = std::thread::scope(|scope| {
            let take = || {
                (1..=50)
                    .map(|tick| {
                        budget.refill(Ticks(tick));
                        (0..500).filter(|_| budget.take(60, FloodKind::Unknown).is_ok()).count()
                    })
                    .sum::<usize>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it counts")).sum()
        });
        // Each queue may take one too many at a time.
        assert!((1000..=51 * 1000 + 4).contains(&taken), "{taken}");
    }
}
