//! Every state of a small ring, one step at a time.
//!
//! A state is the distance of each of the ring's six indices from the lowest one; no two are
//! further apart than the ring has slots. For rings of 2, 4 and 8 slots the test creates each such
//! state, with indices on both sides of the wrap and of half the range. In each state every
//! operation of the halves must do what plain counting says, for each index that a peer may write
//! within two rings of the private one and of its opposite. Since each operation leads to a state
//! that is itself examined, this holds for every schedule.

use std::ops::Range;
use std::sync::atomic::Ordering;

use ringway_ring::{BackRing, FrontRing, Layout, Notify, RingFault, Waiting};
use ringway_sys::SharedPages;
use ringway_wire::ring::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};

use crate::page::{self, Numbered};

/// A ring of a few slots of one word.
#[derive(Debug)]
struct Small<const COUNT: u32>;

impl<const COUNT: u32> Layout for Small<COUNT> {
    type Request = u32;
    type Response = u32;
    const SLOT_LEN: usize = 4;
    const SLOTS: u32 = COUNT;
    const NAME: &'static str = "small";
}

impl<const COUNT: u32> Numbered for Small<COUNT> {
    fn request(number: u32) -> u32 {
        number ^ 0xAAAA_0000
    }

    fn response(number: u32) -> u32 {
        number ^ 0x5555_0000
    }
}

/// Entries since `start`; each number is at most the previous one.
#[derive(Debug, Clone, Copy)]
struct State {
    start: u32,
    requests_pushed: u32,
    requests_published: u32,
    requests_consumed: u32,
    responses_pushed: u32,
    responses_published: u32,
}

/// Both halves in some state, and their page, into which a hostile peer writes.
struct Ring<const COUNT: u32> {
    state: State,
    front: FrontRing<Small<COUNT>>,
    back: BackRing<Small<COUNT>>,
    page: SharedPages,
}

impl State {
    fn all(start: u32, slots: u32) -> impl Iterator<Item = State> {
        (0..=slots).flat_map(move |requests_pushed| {
            (0..=requests_pushed).flat_map(move |requests_published| {
                (0..=requests_published).flat_map(move |requests_consumed| {
                    (0..=requests_consumed).flat_map(move |responses_pushed| {
                        (0..=responses_pushed).map(move |responses_published| State {
                            start,
                            requests_pushed,
                            requests_published,
                            requests_consumed,
                            responses_pushed,
                            responses_published,
                        })
                    })
                })
            })
        })
    }

    /// The index of the entry at this distance from the start.
    fn index(&self, distance: u32) -> u32 {
        self.start.wrapping_add(distance)
    }

    fn requests_waiting(&self) -> Range<u32> {
        self.requests_consumed..self.requests_published
    }
}

impl<const COUNT: u32> Ring<COUNT> {
    /// Brings new halves on this page into a state.
    fn at(state: State, page: &SharedPages) -> Ring<COUNT> {
        let mut front = FrontRing::starting_at(page.clone(), state.start);
        let mut back = BackRing::attach(page.clone()).expect("a new ring is sound");
        for distance in 0..state.requests_pushed {
            if distance == state.requests_published {
                let _ = front.publish_requests();
            }
            front.push_request(Small::<COUNT>::request(state.index(distance)));
        }
        if state.requests_published == state.requests_pushed {
            let _ = front.publish_requests();
        }
        back.consume(size(state.requests_consumed));
        for distance in 0..state.responses_pushed {
            if distance == state.responses_published {
                let _ = back.publish_responses();
            }
            back.push_response(Small::<COUNT>::response(state.index(distance)));
        }
        if state.responses_published == state.responses_pushed {
            let _ = back.publish_responses();
        }
        Ring { state, front, back, page: page.clone() }
    }

    fn slot(&self, distance: u32) -> u32 {
        self.page.read(SLOTS + 4 * size(self.state.index(distance) % COUNT))
    }

    /// The page shows what was published, and the peer's entries are read unchanged, in order, as
    /// many as exist and fit.
    fn check_reading(&self) {
        let state = self.state;
        let indices = [REQ_PROD, RSP_PROD].map(|index| self.page.load(index, Ordering::Relaxed));
        let published = [state.requests_published, state.responses_published];
        assert_eq!(indices, published.map(|distance| state.index(distance)));
        assert_eq!(self.front.free(), size(COUNT - state.requests_pushed));
        assert_eq!(self.back.consumer(), state.index(state.requests_consumed));
        assert_eq!(self.back.producer(), state.index(state.responses_pushed));
        for room in 0..=size(COUNT) + 1 {
            let mut window = vec![0; room];
            let waiting = state.requests_waiting();
            let count = room.min(waiting.len());
            let seen = self.back.peek_requests(&mut window);
            assert_eq!(seen, Ok((count, waiting.len())));
            let expected = waiting.map(|distance| Small::<COUNT>::request(state.index(distance)));
            assert!(window[..count].iter().copied().eq(expected.take(count)));

            let mut window = vec![0; room];
            let waiting = 0..state.responses_published;
            let count = room.min(waiting.len());
            assert_eq!(self.front.peek_responses(&mut window), Ok(count));
            let expected = waiting.map(|distance| Small::<COUNT>::response(state.index(distance)));
            assert!(window[..count].iter().copied().eq(expected.take(count)));
        }
    }

    /// A producer index is accepted up to what the ring can hold, and is a fault beyond that.
    /// Nothing after it is read.
    fn check_producers(&self) {
        let state = self.state;
        let outstanding = state.requests_consumed - state.responses_pushed;
        for produced in near_and_far(state.index(state.requests_consumed), COUNT) {
            self.page.store(REQ_PROD, produced, Ordering::Relaxed);
            let ahead = produced.wrapping_sub(state.index(state.requests_consumed));
            let expected = within::<COUNT>(produced, ahead, COUNT - outstanding);
            assert_eq!(self.back.pending(), expected);
            let mut window = [u32::MAX; 9];
            let seen = self.back.peek_requests(&mut window);
            assert_eq!(seen, expected.map(|ahead| (size(ahead), size(ahead))));
            let read = expected.map_or(0, size);
            for (distance, entry) in (state.requests_consumed..).zip(&window[..read]) {
                assert_eq!(*entry, self.slot(distance));
            }
            assert!(window[read..].iter().all(|entry| *entry == u32::MAX));
        }
        for produced in near_and_far(state.start, COUNT) {
            self.page.store(RSP_PROD, produced, Ordering::Relaxed);
            let ahead = produced.wrapping_sub(state.start);
            let expected = within::<COUNT>(produced, ahead, state.requests_published);
            let mut window = [u32::MAX; 9];
            assert_eq!(self.front.peek_responses(&mut window), expected.map(size));
            let read = expected.map_or(0, size);
            for (distance, entry) in (0..).zip(&window[..read]) {
                assert_eq!(*entry, self.slot(distance));
            }
            assert!(window[read..].iter().all(|entry| *entry == u32::MAX));
        }
    }

    /// Arming reports enough entries exactly if there are, and stores where the event is wanted.
    fn check_arming(mut self) {
        let state = self.state;
        let consumed = state.index(state.requests_consumed);
        for produced in near_and_far(consumed, COUNT) {
            self.page.store(REQ_PROD, produced, Ordering::Relaxed);
            for count in 1..=COUNT {
                let is_enough = produced.wrapping_sub(consumed) >= count;
                assert_eq!(self.back.arm(count) == Waiting::Enough, is_enough);
                let event = self.page.load(REQ_EVENT, Ordering::Relaxed);
                assert_eq!(event, consumed.wrapping_add(count));
            }
        }
        for produced in near_and_far(state.start, COUNT) {
            self.page.store(RSP_PROD, produced, Ordering::Relaxed);
            for count in 1..=COUNT {
                let is_enough = produced.wrapping_sub(state.start) >= count;
                assert_eq!(self.front.arm(count) == Waiting::Enough, is_enough);
                let event = self.page.load(RSP_EVENT, Ordering::Relaxed);
                assert_eq!(event, state.index(count));
            }
        }
    }

    /// Consuming advances by exactly that many entries: the next read begins after them.
    fn check_consuming(mut self) {
        let state = self.state;
        let mut window = [0; 8];
        for distance in state.requests_waiting() {
            assert_eq!(self.back.consumer(), state.index(distance));
            self.back.peek_requests(&mut window).expect("the peer is honest");
            assert_eq!(window[0], Small::<COUNT>::request(state.index(distance)));
            self.back.consume(1);
        }
        assert_eq!(self.back.pending(), Ok(0));
        for distance in 0..state.responses_published {
            self.front.peek_responses(&mut window).expect("the peer is honest");
            assert_eq!(window[0], Small::<COUNT>::response(state.index(distance)));
            self.front.consume(1);
        }
        assert_eq!(self.front.peek_responses(&mut window), Ok(0));
    }

    /// A push writes its own slot and no other, and no shared index. Each consumed request gets one
    /// response, in its own slot, and there is no room for another.
    fn check_pushing(mut self) {
        let state = self.state;
        let mut expected: Vec<u32> = (0..COUNT).map(|distance| self.slot(distance)).collect();
        let indices = |page: &SharedPages| -> [u32; 4] { page.read(0) };
        let before = indices(&self.page);
        for distance in state.responses_pushed..state.requests_consumed {
            expected[size(distance)] = Small::<COUNT>::response(state.index(distance));
            self.back.push_response(expected[size(distance)]);
            assert!((0..COUNT).map(|distance| self.slot(distance)).eq(expected.iter().copied()));
        }
        assert_eq!(self.back.producer(), self.back.consumer());
        for distance in state.requests_pushed..COUNT {
            expected[size(distance)] = Small::<COUNT>::request(state.index(distance));
            self.front.push_request(expected[size(distance)]);
            assert!((0..COUNT).map(|distance| self.slot(distance)).eq(expected.iter().copied()));
        }
        assert_eq!(self.front.free(), 0);
        assert_eq!(indices(&self.page), before);
    }

    /// A backend that attaches serves the requests without a response, from the page's indices, and
    /// learns which of them responses have overwritten that were not published.
    fn check_attaching(&self) {
        let state = self.state;
        let mut next =
            BackRing::<Small<COUNT>>::attach(self.page.clone()).expect("the page is sound");
        let waiting = state.responses_published..state.requests_published;
        assert_eq!(next.pending(), Ok(waiting.end - waiting.start));
        let overwritten = size(state.responses_pushed - state.responses_published);
        assert_eq!(next.interrupted(), overwritten);
        let mut window = [0; 8];
        let (count, _) = next.peek_requests(&mut window).expect("the page is sound");
        let expected = waiting.map(|distance| Small::<COUNT>::request(state.index(distance)));
        assert!(window[overwritten..count].iter().copied().eq(expected.skip(overwritten)));
        self.check_second_interruption(&mut next, overwritten);
    }

    /// A backend that has announced its responses may be killed after any of them: all their slots
    /// count as overwritten.
    fn check_beginning(mut self) {
        let state = self.state;
        self.back.begin_responses();
        let next = BackRing::<Small<COUNT>>::attach(self.page.clone()).expect("the page is sound");
        let announced = state.requests_consumed - state.responses_published;
        assert_eq!(next.interrupted(), size(announced));
    }

    /// A backend that is killed while it writes these responses again leaves the same note.
    fn check_second_interruption(&self, next: &mut BackRing<Small<COUNT>>, overwritten: usize) {
        next.consume(overwritten);
        for (distance, written) in (self.state.responses_published..).zip(0..overwritten) {
            assert_eq!(next.interrupted(), overwritten - written);
            next.push_response(Small::<COUNT>::response(self.state.index(distance)));
            let third = BackRing::<Small<COUNT>>::attach(self.page.clone());
            assert_eq!(third.expect("the page is sound").interrupted(), overwritten);
        }
        assert_eq!(next.interrupted(), 0);
        let _ = next.publish_responses();
        let last = BackRing::<Small<COUNT>>::attach(self.page.clone());
        assert_eq!(last.expect("the page is sound").interrupted(), 0);
    }
}

/// An event is due exactly when the producer moves onto or past the event index.
//= netif.h:notify-when-crossed
fn check_publishing<const COUNT: u32>(state: State, page: &SharedPages) {
    for event in near_and_far(state.index(state.requests_published), COUNT) {
        let mut ring = Ring::<COUNT>::at(state, page);
        page.store(REQ_EVENT, event, Ordering::Relaxed);
        let moved = state.requests_published + 1..=state.requests_pushed;
        let is_crossed = moved.map(|distance| state.index(distance)).any(|passed| passed == event);
        assert_eq!(ring.front.publish_requests() == Notify::Peer, is_crossed);
        let published = page.load(REQ_PROD, Ordering::Relaxed);
        assert_eq!(published, state.index(state.requests_pushed));
        assert_eq!(ring.front.publish_requests(), Notify::None, "there is nothing new");
    }
    for event in near_and_far(state.index(state.responses_published), COUNT) {
        let mut ring = Ring::<COUNT>::at(state, page);
        page.store(RSP_EVENT, event, Ordering::Relaxed);
        let moved = state.responses_published + 1..=state.responses_pushed;
        let is_crossed = moved.map(|distance| state.index(distance)).any(|passed| passed == event);
        assert_eq!(ring.back.publish_responses() == Notify::Peer, is_crossed);
        let published = page.load(RSP_PROD, Ordering::Relaxed);
        assert_eq!(published, state.index(state.responses_pushed));
        assert_eq!(ring.back.publish_responses(), Notify::None, "there is nothing new");
    }
}

//= netif.h:producer-bound
fn within<const COUNT: u32>(produced: u32, ahead: u32, limit: u32) -> Result<u32, RingFault> {
    match ahead <= limit {
        true => Ok(ahead),
        false => Err(RingFault { ring: "small", produced, ahead, slots: COUNT }),
    }
}

/// Every index within two rings of this one, and of the opposite one.
fn near_and_far(index: u32, slots: u32) -> impl Iterator<Item = u32> {
    let centres = [index, index.wrapping_add(1 << 31)];
    centres.into_iter().flat_map(move |centre| {
        (0..=4 * slots).map(move |step| centre.wrapping_sub(2 * slots).wrapping_add(step))
    })
}

fn size(count: u32) -> usize {
    usize::try_from(count).expect("32 bits fit")
}

/// Every index within one ring of the wrap, and of half the range. In Miri, which is slow, only
/// one.
fn starts(slots: u32) -> impl Iterator<Item = u32> {
    let all = [0, 1 << 31].into_iter().flat_map(move |centre: u32| {
        (0..=2 * slots).map(move |step| centre.wrapping_sub(slots).wrapping_add(step))
    });
    all.take(if cfg!(miri) { 1 } else { usize::MAX })
}

fn examine<const COUNT: u32>() {
    let [page] = page::handles();
    let mut states = 0;
    for state in starts(COUNT).flat_map(|start| State::all(start, COUNT)) {
        let ring = || Ring::<COUNT>::at(state, &page);
        ring().check_reading();
        ring().check_attaching();
        ring().check_beginning();
        ring().check_producers();
        ring().check_arming();
        ring().check_consuming();
        ring().check_pushing();
        check_publishing::<COUNT>(state, &page);
        states += 1;
    }
    println!("{COUNT} slots: {states} states");
}

#[test]
fn every_operation_in_every_state_of_a_ring_of_two_slots_is_right() {
    examine::<2>();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours in Miri; the ring of two slots does not")]
fn every_operation_in_every_state_of_a_ring_of_four_slots_is_right() {
    examine::<4>();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours in Miri; the ring of two slots does not")]
fn every_operation_in_every_state_of_a_ring_of_eight_slots_is_right() {
    examine::<8>();
}
