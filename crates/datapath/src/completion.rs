//! When a sender's frame is complete: once it is copied, or once it has left.
//!
//! A frame whose sender waits carries a [`Receipt`], and so does every frame made from it: copies
//! for a flood, segments of a large one. The last of them to be recycled or dropped, wherever that
//! happens, returns the receipt. So this module need not know the paths that a frame can take.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;
use core::task::Waker;

use crate::Pending;
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// When a backend responds to what its guest transmits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completion {
    /// As soon as it is copied, before it is on the wire (`arm64-latency-report:rx`).
    #[default]
    Copied,
    /// When it has left by all its ports, or was dropped: as in a backend that sends from the
    /// guest's own pages (`arm64-latency-report:tx`).
    Sent,
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::Copied => "copied",
            Completion::Sent => "sent",
        })
    }
}

impl FromStr for Completion {
    type Err = String;

    fn from_str(text: &str) -> Result<Completion, String> {
        match text {
            "copied" => Ok(Completion::Copied),
            "sent" => Ok(Completion::Sent),
            _ => Err(format!("{text:?} is not a completion: expected copied or sent")),
        }
    }
}

/// Held by a frame that a sender waits for, and by every frame made from it.
#[derive(Debug)]
pub struct Receipt(Arc<Place>);

impl Clone for Receipt {
    fn clone(&self) -> Receipt {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Receipt(Arc::clone(&self.0))
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        // Release: this holder's accesses to the frame precede the response. Acquire: the last
        // holder sees the accesses of all holders before it returns the receipt.
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // Orders our decrement before the check for a waiter. The partner is `Receipts::arm`, which
        // stores that it waits before it reads the holders: one side sees the other's store.
        fence(Ordering::SeqCst);
        let awaited = &self.0.is_awaited;
        if awaited.load(Ordering::Relaxed) && awaited.swap(false, Ordering::Relaxed) {
            self.0.waker.wake_by_ref();
        }
    }
}

/// The receipts of one queue, by number. Allocated once, so that frames do not allocate.
#[derive(Debug)]
pub struct Receipts(Box<[Arc<Place>]>);

#[derive(Debug)]
struct Place {
    /// Frames that hold the receipt.
    holders: AtomicU32,
    is_awaited: AtomicBool,
    waker: Waker,
}

impl Receipts {
    /// Receipts 0 to `count` - 1. The thread that returns an [awaited](Receipts::arm) receipt calls
    /// `waker`.
    pub fn new(count: usize, waker: &Waker) -> Receipts {
        let place = |_| {
            let waker = waker.clone();
            Arc::new(Place {
                holders: AtomicU32::new(0),
                is_awaited: AtomicBool::new(false),
                waker,
            })
        };
        Receipts((0..count).map(place).collect())
    }

    /// Hands a receipt out.
    ///
    /// # Panics
    /// If a frame still holds it, which is a bug.
    pub fn issue(&self, number: usize) -> Receipt {
        let place = &self.0[number];
        assert!(!self.is_held(number), "a receipt is issued once at a time");
        place.holders.store(1, Ordering::Relaxed);
        place.is_awaited.store(false, Ordering::Relaxed);
        Receipt(Arc::clone(place))
    }

    /// Whether a frame still holds a receipt.
    #[inline]
    pub fn is_held(&self, number: usize) -> bool {
        // Acquire: pairs with the last holder's release.
        self.0[number].holders.load(Ordering::Acquire) > 0
    }

    /// Asks to be woken when a receipt is returned, and checks once more.
    pub fn arm(&self, number: usize) -> Pending {
        self.0[number].is_awaited.store(true, Ordering::Relaxed);
        // The partner is in the `Drop` of `Receipt`.
        fence(Ordering::SeqCst);
        if self.is_held(number) { Pending::Nothing } else { Pending::Work }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use core::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn receipts() -> (Receipts, Arc<Bell>) {
        let bell = Arc::new(Bell::default());
        (Receipts::new(4, &Waker::from(Arc::clone(&bell))), bell)
    }

    #[test]
    fn a_receipt_is_complete_when_its_last_holder_returns_it() {
        let (receipts, _) = receipts();
        let first = receipts.issue(2);
        let second = first.clone();
        assert_eq!(
            [0, 1, 2, 3].map(|number| receipts.is_held(number)),
            [false, false, true, false]
        );
        drop(first);
        assert!(receipts.is_held(2));
        drop(second);
        assert!(!receipts.is_held(2));
        drop(receipts.issue(2));
    }

    #[test]
    fn only_a_waiting_owner_is_woken_and_only_once() {
        let (receipts, bell) = receipts();
        let rung = || bell.0.load(Ordering::Relaxed);
        drop(receipts.issue(0));
        assert_eq!((rung(), receipts.arm(0)), (0, Pending::Work));
        let held = receipts.issue(0);
        // A wake-up that was requested before the receipt was issued has come.
        let copy = held.clone();
        assert_eq!(receipts.arm(0), Pending::Nothing);
        drop(held);
        assert_eq!(rung(), 0);
        drop(copy);
        assert_eq!(rung(), 1);
        drop(receipts.issue(0));
        assert_eq!(rung(), 1);
    }

    #[test]
    fn no_wake_up_is_lost_between_waiting_and_returning() {
        let rounds = if cfg!(miri) { 50 } else { 2_000 };
        for _ in 0..rounds {
            let (receipts, bell) = receipts();
            let held = receipts.issue(1);
            let giver = std::thread::spawn(move || drop(held));
            let armed = receipts.arm(1);
            giver.join().expect("the giver does not panic");
            assert!(armed == Pending::Work || bell.0.load(Ordering::Relaxed) == 1);
        }
    }

    #[test]
    fn a_mode_is_parsed_as_it_is_printed() {
        for mode in [Completion::Copied, Completion::Sent] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!(
            "staged".parse::<Completion>().is_err_and(|error| error.contains("copied or sent"))
        );
    }
}
