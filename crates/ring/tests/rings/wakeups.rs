//! No side sleeps while there is work for it: the handshake between publishing and arming.
//!
//! The loops of a frontend and a backend, which sleep whenever they may, run in two ways: on two
//! threads with real memory, and in the loom model checker in every order that the memory model
//! allows. Both use the real halves of the ring.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use ringway_ring::{BackRing, FrontRing, Notify, RingMemory, Tx, Waiting};

use crate::page::{self, Numbered};

/// One side's ends of the event channels.
trait Events {
    /// Sends an event to the other side.
    fn send(&self);
    /// Sleeps until there is an event, and clears it.
    fn wait(&self);
}

/// Sends `entries` requests and takes their responses.
fn frontend<L: Numbered, M: RingMemory>(
    mut ring: FrontRing<L, M>,
    entries: u32,
    events: &impl Events,
) {
    let (mut pushed, mut completed) = (0, 0);
    let mut window = [L::response(0); 64];
    while completed < entries {
        while pushed < entries && ring.free() > 0 {
            ring.push_request(L::request(pushed));
            pushed += 1;
            if pushed % 3 == 0 {
                break;
            }
        }
        if ring.publish_requests() == Notify::Peer {
            events.send();
        }
        let count = ring.peek_responses(&mut window).expect("the backend is honest");
        for response in &window[..count] {
            assert!(*response == L::response(completed), "response {completed}");
            completed += 1;
        }
        ring.consume(count);
        let is_idle = count == 0 && (ring.free() == 0 || pushed == entries);
        if is_idle && ring.arm(1) == Waiting::TooFew {
            events.wait();
        }
    }
}

/// Serves `entries` requests.
fn backend<L: Numbered, M: RingMemory>(
    mut ring: BackRing<L, M>,
    entries: u32,
    events: &impl Events,
) {
    let mut served = 0;
    let mut window = [L::request(0); 64];
    while served < entries {
        let (count, _) = ring.peek_requests(&mut window).expect("the frontend is honest");
        for request in &window[..count] {
            assert_eq!(*request, L::request(served));
            ring.consume(1);
            ring.push_response(L::response(served));
            served += 1;
        }
        if ring.publish_responses() == Notify::Peer {
            events.send();
        }
        if count == 0 && ring.arm(1) == Waiting::TooFew {
            events.wait();
        }
    }
}

mod real_memory {
    use super::*;

    /// The interpreter of Miri is slow.
    const ENTRIES: u32 = if cfg!(miri) { 60 } else { 60_000 };

    /// Pending or not, however often an event is sent.
    struct Channel {
        to_peer: SyncSender<()>,
        from_peer: Receiver<()>,
    }

    impl Events for Channel {
        fn send(&self) {
            match self.to_peer.try_send(()) {
                Ok(()) | Err(TrySendError::Full(())) => {}
                // The other side has taken its last entry and left.
                Err(TrySendError::Disconnected(())) => {}
            }
        }

        /// The limit is for a lost event, which would otherwise hang the test.
        fn wait(&self) {
            const PATIENCE: Duration = Duration::from_secs(60);
            self.from_peer.recv_timeout(PATIENCE).expect("an event was lost");
        }
    }

    #[test]
    fn two_threads_that_sleep_when_idle_finish_their_work() {
        let [front, back] = page::handles();
        let front = FrontRing::<Tx>::starting_at(front, u32::MAX - ENTRIES / 2);
        let back = BackRing::<Tx>::attach(back).expect("a new ring is sound");
        let (to_back, back_events) = sync_channel(1);
        let (to_front, front_events) = sync_channel(1);
        thread::scope(|scope| {
            let events = Channel { to_peer: to_front, from_peer: back_events };
            scope.spawn(move || backend(back, ENTRIES, &events));
            let events = Channel { to_peer: to_back, from_peer: front_events };
            frontend(front, ENTRIES, &events);
        });
    }
}

/// The model checker repeats each test in every order of the two sides' accesses, including stale
/// values of relaxed loads, and fails if both sides sleep for good.
mod every_interleaving {
    use std::sync::atomic::Ordering;

    use loom::sync::atomic::{AtomicU32, fence};
    use loom::sync::{Arc, Notify as Sleep};
    use loom::thread;
    use ringway_ring::Layout;
    use ringway_wire::ring::PAGE_END;
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    use super::*;

    /// A ring of two slots of one word.
    #[derive(Debug)]
    struct Tiny;

    const SLOTS: usize = 2;
    const WORDS: usize = (ringway_wire::ring::SLOTS / 4) + SLOTS;

    impl Layout for Tiny {
        type Request = u32;
        type Response = u32;
        const SLOT_LEN: usize = 4;
        const SLOTS: u32 = 2;
        const NAME: &'static str = "tiny";
    }

    impl Numbered for Tiny {
        fn request(number: u32) -> u32 {
            1000 + number
        }

        fn response(number: u32) -> u32 {
            2000 + number
        }
    }

    /// The words of a page up to the last slot, with the page's last word in the padding. Those of
    /// slots are accessed without ordering, so only the indices can keep a side from reading a
    /// stale one.
    #[derive(Clone)]
    struct Words(Arc<[AtomicU32; WORDS]>);

    impl Words {
        fn new() -> Words {
            Words(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))))
        }

        fn word(&self, offset: usize) -> &AtomicU32 {
            assert_eq!(offset % 4, 0);
            match offset {
                PAGE_END => &self.0[ringway_wire::ring::SLOTS / 4 - 1],
                _ => &self.0[offset / 4],
            }
        }
    }

    impl RingMemory for Words {
        fn load(&self, offset: usize, order: Ordering) -> u32 {
            self.word(offset).load(order)
        }

        fn store(&self, offset: usize, value: u32, order: Ordering) {
            self.word(offset).store(value, order);
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }

        fn read<T: FromBytes>(&self, offset: usize) -> T {
            let mut bytes = [0; 4];
            self.copy_to(offset, &mut bytes);
            T::read_from_bytes(&bytes).expect("entries are one word")
        }

        fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
            let bytes = value.as_bytes().try_into().expect("entries are one word");
            self.store(offset, u32::from_ne_bytes(bytes), Ordering::Relaxed);
        }

        fn copy_to(&self, offset: usize, to: &mut [u8]) {
            for (word, bytes) in to.chunks_exact_mut(4).enumerate() {
                let value = self.load(offset + 4 * word, Ordering::Relaxed);
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
        }

        fn clear(&self) {
            for word in self.0.iter() {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    fn halves(start: u32) -> (FrontRing<Tiny, Words>, BackRing<Tiny, Words>) {
        let page = Words::new();
        let front = FrontRing::starting_at(page.clone(), start);
        (front, BackRing::attach(page).expect("a new ring is sound"))
    }

    /// Serves one request, so that both event indices are behind their producers and no event is
    /// due unless a side requests it again.
    fn serve_one(front: &mut FrontRing<Tiny, Words>, back: &mut BackRing<Tiny, Words>) {
        front.push_request(Tiny::request(0));
        assert_eq!(front.publish_requests(), Notify::Peer);
        back.consume(1);
        back.push_response(Tiny::response(0));
        assert_eq!(back.publish_responses(), Notify::Peer);
        front.consume(1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot follow")]
    fn a_backend_that_arms_sees_the_request_or_gets_an_event() {
        loom::model(|| {
            let (mut front, mut back) = halves(u32::MAX - 1);
            serve_one(&mut front, &mut back);
            let producer = thread::spawn(move || {
                front.push_request(Tiny::request(1));
                front.publish_requests()
            });
            let pending = back.arm(1);
            let notify = producer.join().expect("publishing does not panic");
            assert!(pending == Waiting::Enough || notify == Notify::Peer, "a wake-up was lost");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot follow")]
    fn a_frontend_that_arms_sees_the_response_or_gets_an_event() {
        loom::model(|| {
            let (mut front, mut back) = halves(u32::MAX - 1);
            serve_one(&mut front, &mut back);
            front.push_request(Tiny::request(1));
            let _ = front.publish_requests();
            let producer = thread::spawn(move || {
                back.consume(1);
                back.push_response(Tiny::response(1));
                back.publish_responses()
            });
            let pending = front.arm(1);
            let notify = producer.join().expect("publishing does not panic");
            assert!(pending == Waiting::Enough || notify == Notify::Peer, "a wake-up was lost");
        });
    }

    /// Loom's `Notify` is pending or not, like an event channel.
    struct Channel {
        to_peer: Arc<Sleep>,
        from_peer: Arc<Sleep>,
    }

    impl Events for Channel {
        fn send(&self) {
            self.to_peer.notify();
        }

        fn wait(&self) {
            self.from_peer.wait();
        }
    }

    /// Involuntary thread switches in one execution, unless loom's LOOM_MAX_PREEMPTIONS says
    /// otherwise: with three, as `make nightly` sets it, the test takes fifteen times as long.
    const PREEMPTIONS_MAX: usize = 2;

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot follow")]
    fn two_sides_that_sleep_when_idle_finish_their_work_and_read_no_stale_slot() {
        const ENTRIES: u32 = 3;
        let mut model = loom::model::Builder::new();
        model.preemption_bound.get_or_insert(PREEMPTIONS_MAX);
        model.check(|| {
            let (front, back) = halves(u32::MAX);
            let (front_sleep, back_sleep) = (Arc::new(Sleep::new()), Arc::new(Sleep::new()));
            let events =
                Channel { to_peer: Arc::clone(&front_sleep), from_peer: Arc::clone(&back_sleep) };
            let server = thread::spawn(move || backend(back, ENTRIES, &events));
            frontend(front, ENTRIES, &Channel { to_peer: back_sleep, from_peer: front_sleep });
            server.join().expect("the backend finishes");
        });
    }
}
