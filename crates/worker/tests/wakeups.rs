//! No wake-up is lost: every interleaving of a worker that goes to sleep with those who send to it,
//! hold it or relieve it. The operations are those of `Inbox` and `Gauge`, in their order and with
//! their orderings; the rest of a worker is left out.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::thread;

/// `Inbox`, with a count for its parcels and one for the eventfd.
#[derive(Default)]
struct Inbox {
    parcels: AtomicUsize,
    has_commands: AtomicBool,
    sleeps: AtomicBool,
    rung: AtomicUsize,
    pressure: AtomicBool,
}

impl Inbox {
    fn nudge(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            self.rung.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn prepare_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may_sleep = self.parcels.load(Ordering::Relaxed) == 0
            && !self.has_commands.load(Ordering::Relaxed)
            && !self.pressure.load(Ordering::Relaxed);
        if !may_sleep {
            self.sleeps.store(false, Ordering::Relaxed);
        }
        may_sleep
    }
}

#[test]
fn a_parcel_or_a_command_wakes_a_worker_that_goes_to_sleep() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let senders = [
            thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || {
                    inbox.parcels.fetch_add(1, Ordering::Release);
                    inbox.nudge();
                }
            }),
            thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || {
                    inbox.has_commands.store(true, Ordering::Release);
                    inbox.nudge();
                }
            }),
        ];
        let sleeps = inbox.prepare_sleep();
        for sender in senders {
            sender.join().unwrap();
        }
        // If it went to sleep, the bell has been rung, or will be read at once.
        assert!(!sleeps || inbox.rung.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn relief_wakes_a_worker_that_goes_to_sleep_with_a_held_source() {
    loom::model(|| {
        // The pressure is of a queue of another worker, and is lowered once.
        let inbox = Arc::new(Inbox::default());
        let queue = Arc::new((AtomicBool::new(true), AtomicBool::new(false)));
        let owner = thread::spawn({
            let (inbox, queue) = (Arc::clone(&inbox), Arc::clone(&queue));
            move || {
                let (pressure, is_awaited) = &*queue;
                pressure.store(false, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if is_awaited.load(Ordering::Relaxed) && is_awaited.swap(false, Ordering::Relaxed) {
                    inbox.nudge();
                }
            }
        });
        let (pressure, is_awaited) = &*queue;
        is_awaited.store(true, Ordering::Relaxed);
        let sleeps = inbox.prepare_sleep() && pressure.load(Ordering::Relaxed);
        owner.join().unwrap();
        assert!(!sleeps || inbox.rung.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn pressure_that_a_sender_raises_late_does_not_stay() {
    loom::model(|| {
        // The sender found the inbox full; the owner empties it meanwhile and goes to sleep.
        let inbox = Arc::new(Inbox::default());
        let sender = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || {
                inbox.pressure.store(true, Ordering::Relaxed);
                inbox.nudge();
            }
        });
        let sleeps = inbox.prepare_sleep();
        sender.join().unwrap();
        assert!(!sleeps || inbox.rung.load(Ordering::Relaxed) > 0);
    });
}
