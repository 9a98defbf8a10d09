//! Which other engine most frames of a queue go to.

use crate::sync::{AtomicU64, Ordering};

/// Most frames by which an engine leads: after as many others, another one takes over.
const LEAD_MAX: u64 = 1 << 10; // not a limit: our own threads
/// Bits of [`Hops::vote`] that hold the lead.
const LEAD_BITS: u32 = 16;

/// A majority vote over the engines that frames go to (Boyer and Moore, "MJRTY", 1991), with a
/// bound, so that it follows changes. The owning engine of the queue writes it, any thread reads
/// it.
///
/// An engine leads for long only if it gets more frames than all others together. Only frames that
/// it got while it led are counted: if several engines get an equal part each, none has many.
#[derive(Debug, Default)]
pub(crate) struct Hops {
    /// The engine that leads, and by how many frames.
    vote: AtomicU64,
    /// Frames that this engine got since it has led.
    frames: AtomicU64,
}

/// Frames that went to another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hopped {
    /// The engine.
    pub engine: usize,
    /// How many.
    pub frames: u64,
}

impl Hops {
    /// The engine that leads, with the frames that it got since then.
    pub(crate) fn leader(&self) -> Option<Hopped> {
        // An engine that takes over is stored after its count, so this is not the count of the one
        // before it. If an engine takes over between these two loads, its count is still low.
        let (leader, lead) = parts(self.vote.load(Ordering::Acquire));
        let engine = usize::try_from(leader).ok().filter(|_| lead > 0)?;
        Some(Hopped { engine, frames: self.frames.load(Ordering::Relaxed) })
    }

    /// Counts a frame that goes to `engine`. Only the owning engine calls this.
    pub(crate) fn count(&self, engine: usize) {
        let (leader, lead) = parts(self.vote.load(Ordering::Relaxed));
        let engine = u64::try_from(engine).unwrap_or(u64::MAX >> LEAD_BITS);
        let (leader, lead) = match lead {
            0 => {
                self.frames.store(1, Ordering::Relaxed);
                (engine, 1)
            }
            lead if leader == engine => {
                let frames = self.frames.load(Ordering::Relaxed);
                self.frames.store(frames + 1, Ordering::Relaxed);
                (leader, LEAD_MAX.min(lead + 1))
            }
            lead => (leader, lead - 1),
        };
        self.vote.store(leader << LEAD_BITS | lead, Ordering::Release);
    }
}

/// The leader and its lead.
fn parts(vote: u64) -> (u64, u64) {
    (vote >> LEAD_BITS, vote & ((1 << LEAD_BITS) - 1))
}

impl Hopped {
    /// The frames since `before` was read, or fewer if another engine led meanwhile.
    pub(crate) fn since(self, before: Option<Hopped>) -> Hopped {
        let before = before.filter(|before| before.engine == self.engine);
        // A count below the former one began again.
        let since = before.and_then(|before| self.frames.checked_sub(before.frames));
        Hopped { frames: since.unwrap_or(self.frames), ..self }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn hopped(engine: usize, frames: u64) -> Hopped {
        Hopped { engine, frames }
    }

    #[test]
    fn the_engine_of_most_recent_hops_leads() {
        let hops = Hops::default();
        assert_eq!(hops.leader(), None);
        for _ in 0..100_000 {
            hops.count(3);
        }
        assert_eq!(hops.leader(), Some(hopped(3, 100_000)));
        // Two of three frames go elsewhere from now on.
        for frame in 0..6 * LEAD_MAX {
            hops.count(if frame % 3 == 0 { 3 } else { 1 });
        }
        let led = hops.leader().expect("one leads");
        assert!(led.engine == 1 && led.frames <= 2 * LEAD_MAX, "not those of engine 3: {led:?}");
    }

    #[test]
    fn engines_with_equal_parts_have_few_frames_each() {
        let hops = Hops::default();
        for frame in 0..100_001 {
            hops.count(frame % 3);
        }
        let led = hops.leader().expect("an odd number of frames");
        assert!(led.frames < 100, "{led:?}");
    }

    #[test]
    fn frames_since_a_reading_are_those_of_one_leader() {
        assert_eq!(hopped(1, 70).since(None), hopped(1, 70));
        assert_eq!(hopped(1, 70).since(Some(hopped(1, 50))), hopped(1, 20));
        assert_eq!(hopped(1, 70).since(Some(hopped(2, 50))), hopped(1, 70));
        assert_eq!(hopped(1, 20).since(Some(hopped(1, 50))), hopped(1, 20), "it led again");
    }
}
