//! A backend that is killed between any two of its stores.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use ringway_ring::{BackRing, FrontRing, RingMemory, Rx, Tx};
use ringway_sys::SharedPages;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::page::{self, Numbered};

/// Steps of one schedule. The interpreter of Miri is slow.
const STEPS: usize = if cfg!(miri) { 50 } else { 3_000 };

/// The backend's handle of a page. After each store it shows the page to the next backend, as if
/// this one had been killed there.
#[derive(Debug)]
struct Watched<'a, L> {
    page: SharedPages,
    /// How far it has consumed.
    consumed: &'a Cell<u32>,
    layout: PhantomData<L>,
}

impl<L: Numbered> RingMemory for Watched<'_, L> {
    fn load(&self, offset: usize, order: Ordering) -> u32 {
        self.page.load(offset, order)
    }

    fn store(&self, offset: usize, value: u32, order: Ordering) {
        self.page.store(offset, value, order);
        check_requests::<L>(&self.page, self.consumed.get());
    }

    fn fence(&self) {
        RingMemory::fence(&self.page);
    }

    fn read<T: FromBytes>(&self, offset: usize) -> T {
        self.page.read(offset)
    }

    fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        self.page.write(offset, value);
        check_requests::<L>(&self.page, self.consumed.get());
    }

    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.page.copy_to(offset, to);
    }

    fn clear(&self) {
        RingMemory::clear(&self.page);
    }
}

/// Whatever the next backend would serve is a request, and not a response that was written over it.
/// Beyond what this backend has consumed, it serves everything.
fn check_requests<L: Numbered>(page: &SharedPages, consumed: u32) {
    let next = BackRing::<L>::attach(page.clone()).expect("the page is sound");
    let mut window = [L::request(0); 256];
    let (count, _) = next.peek_requests(&mut window).expect("the page is sound");
    let first = next.consumer();
    let unpublished = usize::try_from(consumed.wrapping_sub(first)).expect("a ring is small");
    assert!(next.interrupted() <= unpublished, "{} of {unpublished}", next.interrupted());
    let served = (0..).zip(&window[..count]).skip(next.interrupted());
    for (distance, request) in served {
        assert_eq!(*request, L::request(first.wrapping_add(distance)), "{distance} of {count}");
    }
}

/// Both sides act at random. The backend announces some batches and leaves the
/// others to each push, and pushes responses one by one or together.
fn run<L: Numbered>(start: u32, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let [of_front, of_back] = page::handles();
    let mut front = FrontRing::<L>::starting_at(of_front, start);
    let consumed = Cell::new(start);
    let watched = Watched::<L> { page: of_back, consumed: &consumed, layout: PhantomData };
    let mut back = BackRing::<L, _>::attach(watched).expect("it is a new ring");
    let (mut pushed, mut written) = (start, 0_u64);
    let mut window = [L::response(0); 256];
    for _ in 0..STEPS {
        match random.u8(..7) {
            0 => {
                for _ in 0..random.usize(..=front.free()) {
                    front.push_request(L::request(pushed));
                    pushed = pushed.wrapping_add(1);
                }
                let _ = front.publish_requests();
            }
            1 => {
                let taken = front.peek_responses(&mut window).expect("the backend is honest");
                front.consume(random.usize(..=taken));
            }
            2 => {
                let pending = back.pending().expect("the frontend is honest");
                back.consume(random.usize(..=usize::try_from(pending).expect("a ring is small")));
                consumed.set(back.consumer());
            }
            3 => back.begin_responses(),
            4 => {
                let due = back.consumer().wrapping_sub(back.producer());
                for _ in 0..random.u32(..=due) {
                    back.push_response(L::response(back.producer()));
                    written += 1;
                }
            }
            5 => {
                let due = back.consumer().wrapping_sub(back.producer());
                let first = back.producer();
                let count = random.u32(..=due);
                back.push_responses((0..count).map(|n| L::response(first.wrapping_add(n))));
                written += u64::from(count);
            }
            _ => drop(back.publish_responses()),
        }
    }
    assert!(written > if cfg!(miri) { 0 } else { 1000 }, "only {written} responses");
}

#[test]
fn a_backend_that_is_killed_between_two_stores_leaves_no_response_in_place_of_a_request() {
    for (seed, start) in (0..).zip([0, 0xFF80, u32::MAX - 100]) {
        run::<Tx>(start, seed);
        run::<Rx>(start, seed);
    }
}
