//! No wake-up is lost: runs every interleaving of a thread that goes to sleep and threads that send
//! to it, hold it or relieve it, on the real [`Inbox`] and [`Gauge`].
//!
//! Runs with `cargo test -p ringway-engine --features loom --lib`.

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use ringway_datapath::{Frame, FramePool, PoolBudget};

use crate::gauge::Admission;
use crate::{Gauge, Inbox, Parcel, SlotId};

/// Counts how often it is rung. It orders what its two sides do, as an eventfd does.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Bell {
    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

fn inbox() -> (Arc<Inbox>, Arc<Bell>) {
    let bell = Arc::new(Bell::default());
    (Arc::new(Inbox::new(Waker::from(Arc::clone(&bell)))), bell)
}

fn frame() -> Frame {
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    pool.take(60).expect("there is memory")
}

/// Goes to sleep like an engine with one source, which is held.
fn fall_asleep(inbox: &Inbox, gauge: &Gauge) -> bool {
    inbox.prepare_sleep() && gauge.wait_for_relief()
}

#[test]
fn a_parcel_or_a_command_wakes_a_thread_that_is_falling_asleep() {
    loom::model(|| {
        let (inbox, bell) = inbox();
        let frame = frame();
        let senders = [
            thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || {
                    let to = SlotId { index: 0, generation: 1 };
                    assert!(inbox.push(Parcel { to, frame, admission: Admission::Waits }).is_ok());
                    inbox.nudge();
                }
            }),
            thread::spawn({
                let inbox = Arc::clone(&inbox);
                move || inbox.announce_command()
            }),
        ];
        let sleeps = inbox.prepare_sleep();
        for sender in senders {
            sender.join().unwrap();
        }
        assert!(!sleeps || bell.count() > 0);
    });
}

#[test]
fn relief_wakes_a_thread_that_is_falling_asleep_with_a_held_source() {
    loom::model(|| {
        // A queue of another engine raises the pressure once more.
        let (inbox, bell) = inbox();
        let gauge = Arc::new(Gauge::default());
        gauge.raise();
        let owner = thread::spawn({
            let (inbox, gauge) = (Arc::clone(&inbox), Arc::clone(&gauge));
            move || {
                if gauge.lower() {
                    inbox.nudge();
                }
                gauge.raise();
                if gauge.lower() {
                    inbox.nudge();
                }
            }
        });
        let sleeps = fall_asleep(&inbox, &gauge);
        owner.join().unwrap();
        assert!(!sleeps || bell.count() > 0);
    });
}

#[test]
fn moving_a_full_queue_leaves_no_held_thread_asleep() {
    loom::model(|| {
        let (inbox, bell) = inbox();
        let gauge = Arc::new(Gauge::default());
        gauge.raise();
        gauge.raise_at_destination();
        let owner = thread::spawn({
            let (inbox, gauge) = (Arc::clone(&inbox), Arc::clone(&gauge));
            move || {
                if gauge.lower_at_destination() {
                    inbox.nudge();
                }
                if gauge.lower() {
                    inbox.nudge();
                }
            }
        });
        let mut sleeps = fall_asleep(&inbox, &gauge);
        let early = bell.count();
        if sleeps && early > 0 {
            // Woken by the first of the two, it goes to sleep again.
            sleeps = fall_asleep(&inbox, &gauge);
        }
        owner.join().unwrap();
        assert!(!sleeps || bell.count() > early);
    });
}

#[test]
fn pressure_raised_late_by_a_sender_is_lowered() {
    loom::model(|| {
        // The sender found the inbox full; the owner empties it meanwhile and goes to sleep.
        let (inbox, bell) = inbox();
        let sender = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || {
                inbox.gauge().raise();
                inbox.nudge();
            }
        });
        let sleeps = inbox.prepare_sleep();
        sender.join().unwrap();
        assert!(!sleeps || bell.count() > 0);
    });
}
