//! Nobody sleeps while there is work: the handshake between publishing and arming.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use ringway_datapath::Pending;
use ringway_ring::{BackRing, FrontRing, Notify, Tx};

use crate::page::{self, Numbered};

const ENTRIES: u32 = 60_000;

/// One end of an event channel: pending or not, however often it is sent.
struct Waker(SyncSender<()>);

impl Waker {
    fn tell(&self, notify: Notify) {
        if notify == Notify::Peer {
            match self.0.try_send(()) {
                Ok(()) | Err(TrySendError::Full(())) => {}
                // The other end has taken its last entry and left.
                Err(TrySendError::Disconnected(())) => {}
            }
        }
    }
}

/// Waits for an event. The limit is for a lost one, which would otherwise hang the test.
fn wait(events: &Receiver<()>) {
    events.recv_timeout(Duration::from_secs(30)).expect("an event was lost");
}

fn frontend(mut ring: FrontRing<Tx>, waker: &Waker, events: &Receiver<()>) {
    let (mut pushed, mut answered) = (0, 0);
    let mut window = [Tx::response(0); 64];
    while answered < ENTRIES {
        while pushed < ENTRIES && ring.free() > 0 {
            ring.push_request(Tx::request(pushed));
            pushed += 1;
            if pushed % 3 == 0 {
                break;
            }
        }
        waker.tell(ring.publish_requests());
        let count = ring.peek_responses(&mut window).expect("the backend is honest");
        for response in &window[..count] {
            assert_eq!(*response, Tx::response(answered));
            answered += 1;
        }
        ring.consume(count);
        let is_idle = count == 0 && (ring.free() == 0 || pushed == ENTRIES);
        if is_idle && ring.arm(1) == Pending::Nothing {
            wait(events);
        }
    }
}

fn backend(mut ring: BackRing<Tx>, waker: &Waker, events: &Receiver<()>) {
    let mut served = 0;
    let mut window = [Tx::request(0); 64];
    while served < ENTRIES {
        let (count, _) = ring.peek_requests(&mut window).expect("the frontend is honest");
        for request in &window[..count] {
            assert_eq!(*request, Tx::request(served));
            ring.consume(1);
            ring.push_response(Tx::response(served));
            served += 1;
        }
        waker.tell(ring.publish_responses());
        if count == 0 && ring.arm(1) == Pending::Nothing {
            wait(events);
        }
    }
}

#[test]
fn two_threads_that_sleep_whenever_they_may_finish_their_work() {
    let [front, back] = page::mappings();
    let front = FrontRing::<Tx>::starting_at(front, u32::MAX - 30_000);
    let back = BackRing::<Tx>::attach(back).expect("a new ring is sound");
    let (to_back, back_events) = sync_channel(1);
    let (to_front, front_events) = sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(move || backend(back, &Waker(to_front), &back_events));
        frontend(front, &Waker(to_back), &front_events);
    });
}

/// `Page::publish` and `Page::arm` in miniature, in every order that the memory model allows.
mod every_interleaving {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering, fence};
    use loom::thread;

    #[derive(Default)]
    struct Indices {
        producer: AtomicU32,
        event: AtomicU32,
        /// The event channel: pending or not.
        pending: AtomicU32,
    }

    impl Indices {
        fn publish(&self, old: u32, new: u32) {
            self.producer.store(new, Ordering::Release);
            fence(Ordering::SeqCst);
            let event = self.event.load(Ordering::Relaxed);
            if new.wrapping_sub(event) < new.wrapping_sub(old) {
                self.pending.store(1, Ordering::Release);
            }
        }

        fn arm(&self, consumed: u32) -> bool {
            self.event.store(consumed.wrapping_add(1), Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.producer.load(Ordering::Relaxed) != consumed
        }
    }

    /// The consumer has seen everything up to `START`, with an event index that is long past.
    const START: u32 = u32::MAX;

    #[test]
    fn whoever_arms_either_sees_the_entry_or_is_told_of_it() {
        loom::model(|| {
            let indices = Arc::new(Indices::default());
            indices.producer.store(START, Ordering::Relaxed);
            indices.event.store(START, Ordering::Relaxed);
            let producer = {
                let indices = Arc::clone(&indices);
                thread::spawn(move || indices.publish(START, START.wrapping_add(1)))
            };
            let has_seen = indices.arm(START);
            producer.join().expect("publishing does not panic");
            let is_told = indices.pending.load(Ordering::Acquire) == 1;
            assert!(has_seen || is_told, "a wake-up was lost");
        });
    }
}
