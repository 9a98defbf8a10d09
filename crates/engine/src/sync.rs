//! The atomics and the bounded queue that engines share between threads.
//!
//! Everything that crosses threads in this crate takes them from here, so that `interleavings.rs`
//! runs the real [`Inbox`](crate::Inbox) and [`Gauge`](crate::Gauge) in every interleaving.

#[cfg(not(feature = "loom"))]
pub(crate) use crossbeam_queue::ArrayQueue;
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(feature = "loom")]
pub(crate) use modelled::ArrayQueue;

#[cfg(feature = "loom")]
mod modelled {
    use std::collections::VecDeque;

    use loom::sync::Mutex;

    /// Stands in for `crossbeam_queue::ArrayQueue`, which loom cannot model: bounded, first in
    /// first out, and no weaker in its order.
    #[derive(Debug)]
    pub(crate) struct ArrayQueue<T> {
        items: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> ArrayQueue<T> {
            ArrayQueue { items: Mutex::new(VecDeque::new()), capacity }
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut items = self.lock();
            if items.len() >= self.capacity {
                return Err(item);
            }
            items.push_back(item);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.lock().pop_front()
        }

        pub(crate) fn len(&self) -> usize {
            self.lock().len()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }

        fn lock(&self) -> loom::sync::MutexGuard<'_, VecDeque<T>> {
            self.items.lock().expect("no model panics with the lock")
        }
    }
}
