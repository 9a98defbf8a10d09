//! No page waits for a frame that is gone: runs every interleaving of a queue that goes to
//! sleep and a thread that returns its receipt, on the real [`Receipts`].
//!
//! Runs with `cargo test -p ringway-datapath --features loom --lib`.

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::{Pending, Receipts};

/// Counts how often it is rung. It orders what its two sides do, as an eventfd does.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

fn receipts() -> (Receipts, Arc<Bell>) {
    let bell = Arc::new(Bell::default());
    (Receipts::new(1, &Waker::from(Arc::clone(&bell))), bell)
}

#[test]
fn a_sleeping_queue_is_woken_by_the_holder() {
    loom::model(|| {
        let (receipts, bell) = receipts();
        let held = receipts.issue(0);
        let holder = thread::spawn(move || drop(held));
        let armed = receipts.arm(0);
        holder.join().unwrap();
        assert!(armed == Pending::Work || bell.0.load(Ordering::Acquire) == 1);
    });
}
