//! When pages may be used again: once no frame refers to them.
//!
//! An [`End`](crate::End) in our own pages carries a [`Receipt`]. Dropping it, wherever that
//! happens, returns the receipt. So this module need not know the paths that a frame can take.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::task::Waker;

use crate::Pending;
use crate::sync::{AtomicBool, Ordering, fence};

/// Held by an end while a frame refers to its pages.
#[derive(Debug)]
pub struct Receipt(Arc<Place>);

impl Drop for Receipt {
    fn drop(&mut self) {
        // Release: the holder's accesses to the pages precede their next use.
        self.0.is_held.store(false, Ordering::Release);
        // Orders our store before the check for a waiter. The partner is `Receipts::arm`, which
        // stores that it waits before it checks for a holder: one side sees the other's store.
        fence(Ordering::SeqCst);
        let awaited = &self.0.is_awaited;
        if awaited.load(Ordering::Relaxed) && awaited.swap(false, Ordering::Relaxed) {
            self.0.waker.wake_by_ref();
        }
    }
}

/// The receipts of one queue, by number. Allocated once, so that ends do not allocate.
#[derive(Debug)]
pub struct Receipts(Box<[Arc<Place>]>);

#[derive(Debug)]
struct Place {
    is_held: AtomicBool,
    is_awaited: AtomicBool,
    waker: Waker,
}

impl Receipts {
    /// Receipts 0 to `count` - 1. The thread that returns an [awaited](Receipts::arm) receipt calls
    /// `waker`.
    pub fn new(count: usize, waker: &Waker) -> Receipts {
        let place = |_| {
            Arc::new(Place {
                is_held: AtomicBool::new(false),
                is_awaited: AtomicBool::new(false),
                waker: waker.clone(),
            })
        };
        Receipts((0..count).map(place).collect())
    }

    /// Hands a receipt out.
    ///
    /// # Panics
    /// If an end still holds it, which is a bug.
    pub fn issue(&self, number: usize) -> Receipt {
        let place = &self.0[number];
        assert!(!self.is_held(number), "a receipt is issued once at a time");
        place.is_held.store(true, Ordering::Relaxed);
        place.is_awaited.store(false, Ordering::Relaxed);
        Receipt(Arc::clone(place))
    }

    /// Whether an end still holds a receipt.
    #[inline]
    pub fn is_held(&self, number: usize) -> bool {
        // Acquire: pairs with the holder's release.
        self.0[number].is_held.load(Ordering::Acquire)
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
    fn a_receipt_is_held_until_it_is_dropped() {
        let (receipts, _) = receipts();
        let held = receipts.issue(2);
        let are_held = [0, 1, 2, 3].map(|number| receipts.is_held(number));
        assert_eq!(are_held, [false, false, true, false]);
        drop(held);
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
        assert_eq!((rung(), receipts.arm(0)), (0, Pending::Nothing));
        drop(held);
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
}
