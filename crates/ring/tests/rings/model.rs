//! Both halves of a ring against a model without limits: 64-bit indices that never wrap, and no
//! page.

use std::fmt::Debug;
use std::sync::atomic::Ordering;

use ringway_ring::{BackRing, Control, FrontRing, Layout, Notify, Rx, Tx, Waiting};
use ringway_sys::SharedPages;
use ringway_wire::ring::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD};

use crate::page::{self, Numbered};

/// Steps of one schedule. The interpreter of Miri is slow.
const STEPS: usize = if cfg!(miri) { 100 } else { 10_000 };
/// Schedules from each starting index.
const SEEDS: u64 = if cfg!(miri) { 1 } else { 4 };
/// Entries that a schedule must have moved.
const MOVED_MIN: u64 = if cfg!(miri) { 1 } else { 1024 };

/// The progress of both sides. Each number counts entries since the ring began, plus the index at
/// which it began; it is never less than the next one.
#[derive(Debug, Clone, Copy)]
struct Model {
    requests_pushed: u64,
    requests_published: u64,
    requests_consumed: u64,
    responses_pushed: u64,
    responses_published: u64,
    responses_consumed: u64,
    /// The index at which the backend wants to be woken.
    request_event: u64,
    /// The index at which the frontend wants to be woken.
    response_event: u64,
}

impl Model {
    fn starting_at(start: u32) -> Model {
        let start = u64::from(start);
        Model {
            requests_pushed: start,
            requests_published: start,
            requests_consumed: start,
            responses_pushed: start,
            responses_published: start,
            responses_consumed: start,
            request_event: start + 1,
            response_event: start + 1,
        }
    }

    fn free<L: Layout>(&self) -> u64 {
        u64::from(L::SLOTS) - (self.requests_pushed - self.responses_consumed)
    }
}

/// The rule of `ring.h`: an event is sent when the producer moves onto or past the event index.
//= netif.h:notify-when-crossed
fn crossed(old: u64, new: u64, event: u64) -> Notify {
    if old < event && event <= new { Notify::Peer } else { Notify::None }
}

fn armed(produced: u64, consumed: u64, count: u64) -> Waiting {
    if produced - consumed < count { Waiting::TooFew } else { Waiting::Enough }
}

/// An index of the model as the page holds it.
fn wrapped(index: u64) -> u32 {
    u32::try_from(index & u64::from(u32::MAX)).expect("32 bits are left")
}

struct Bench<L: Numbered> {
    random: fastrand::Rng,
    model: Model,
    front: FrontRing<L>,
    back: BackRing<L>,
    witness: SharedPages,
    spare: SharedPages,
}

impl<L: Numbered<Response: Debug>> Bench<L> {
    fn new(seed: u64, start: u32) -> Bench<L> {
        let [front, back, witness, spare] = page::handles();
        let front = FrontRing::starting_at(front, start);
        let back = BackRing::attach(back).expect("a new ring is sound");
        let random = fastrand::Rng::with_seed(seed);
        Bench { random, model: Model::starting_at(start), front, back, witness, spare }
    }

    fn step(&mut self) {
        match self.random.u32(0..16) {
            0..=2 => self.push_requests(),
            3..=4 => self.publish_requests(),
            5..=7 => self.take_requests(),
            8..=9 => self.push_responses(),
            10..=11 => self.publish_responses(),
            12..=13 => self.take_responses(),
            14 => self.arm(),
            _ => self.attach_again(),
        }
        self.compare_page();
    }

    fn push_requests(&mut self) {
        assert_eq!(self.front.free(), count(self.model.free::<L>()));
        let first = wrapped(self.model.requests_pushed);
        let count = self.random.u64(0..=self.model.free::<L>());
        assert_eq!(u32::from(self.front.next_slot()), first % L::SLOTS);
        let numbers = (0..wrapped(count)).map(|number| first.wrapping_add(number));
        if self.random.bool() {
            self.front.push_requests(numbers.map(L::request));
        } else {
            numbers.for_each(|number| self.front.push_request(L::request(number)));
        }
        self.model.requests_pushed += count;
    }

    fn publish_requests(&mut self) {
        let (old, new) = (self.model.requests_published, self.model.requests_pushed);
        let expected = crossed(old, new, self.model.request_event);
        assert_eq!(self.front.publish_requests(), expected);
        self.model.requests_published = new;
    }

    fn take_requests(&mut self) {
        let waiting = self.model.requests_published - self.model.requests_consumed;
        let mut window = [L::request(0); 300];
        let room = self.random.usize(0..=window.len());
        let peeked = self.back.peek_requests(&mut window[..room]).expect("the peer is honest");
        assert_eq!(peeked, (room.min(count(waiting)), count(waiting)));
        for (number, request) in (self.model.requests_consumed..).zip(&window[..peeked.0]) {
            assert_eq!(*request, L::request(wrapped(number)));
        }
        let served = self.random.usize(0..=peeked.0);
        self.back.consume(served);
        self.model.requests_consumed += u64::try_from(served).expect("a count is small");
        assert_eq!(self.back.consumer(), wrapped(self.model.requests_consumed));
    }

    //= netif.h:one-response-per-request
    fn push_responses(&mut self) {
        let owed = self.model.requests_consumed - self.model.responses_pushed;
        let (first, count) = (self.model.responses_pushed, self.random.u64(0..=owed));
        let numbers = (0..wrapped(count)).map(|number| wrapped(first).wrapping_add(number));
        if self.random.bool() {
            self.back.push_responses(numbers.map(L::response));
        } else {
            numbers.for_each(|number| self.back.push_response(L::response(number)));
        }
        self.model.responses_pushed += count;
    }

    fn publish_responses(&mut self) {
        let (old, new) = (self.model.responses_published, self.model.responses_pushed);
        let expected = crossed(old, new, self.model.response_event);
        assert_eq!(self.back.publish_responses(), expected);
        self.model.responses_published = new;
    }

    fn take_responses(&mut self) {
        let waiting = self.model.responses_published - self.model.responses_consumed;
        let mut window = [L::response(0); 300];
        let room = self.random.usize(0..=window.len());
        let peeked = self.front.peek_responses(&mut window[..room]).expect("the peer is honest");
        assert_eq!(peeked, room.min(count(waiting)));
        for (number, response) in (self.model.responses_consumed..).zip(&window[..peeked]) {
            assert_eq!(*response, L::response(wrapped(number)));
        }
        let slot = wrapped(self.model.responses_consumed) % L::SLOTS;
        assert_eq!(u32::from(self.front.response_slot()), slot);
        let taken = self.random.usize(0..=peeked);
        self.front.consume(taken);
        self.model.responses_consumed += u64::try_from(taken).expect("a count is small");
    }

    fn arm(&mut self) {
        let wanted = self.random.u64(1..=u64::from(L::SLOTS));
        let model = &mut self.model;
        if self.random.bool() {
            model.request_event = model.requests_consumed + wanted;
            let expected = armed(model.requests_published, model.requests_consumed, wanted);
            assert_eq!(self.back.arm(wrapped(wanted)), expected);
        } else {
            model.response_event = model.responses_consumed + wanted;
            let expected = armed(model.responses_published, model.responses_consumed, wanted);
            assert_eq!(self.front.arm(wrapped(wanted)), expected);
        }
    }

    /// A restarted backend finds the requests without a response. It responds to those that the
    /// killed one had overwritten with responses, and serves the others again.
    fn attach_again(&mut self) {
        self.back = BackRing::attach(self.spare.clone()).expect("the ring is sound");
        let overwritten = self.model.responses_pushed - self.model.responses_published;
        assert_eq!(self.back.interrupted(), count(overwritten));
        self.back.consume(count(overwritten));
        for number in self.model.responses_published..self.model.responses_pushed {
            self.back.push_response(L::response(wrapped(number)));
        }
        self.model.requests_consumed = self.model.responses_pushed;
        self.publish_responses();
    }

    fn compare_page(&self) {
        let index = |offset| self.witness.load(offset, Ordering::Relaxed);
        assert_eq!(index(REQ_PROD), wrapped(self.model.requests_published));
        assert_eq!(index(REQ_EVENT), wrapped(self.model.request_event));
        assert_eq!(index(RSP_PROD), wrapped(self.model.responses_published));
        assert_eq!(index(RSP_EVENT), wrapped(self.model.response_event));
    }
}

fn count(number: u64) -> usize {
    usize::try_from(number).expect("a count is small")
}

fn follow_the_model<L: Numbered<Response: Debug>>() {
    for start in [0, 1, u32::MAX, u32::MAX - 300, (1 << 31) - 100] {
        for seed in 0..SEEDS {
            println!("ring {}, start {start}, seed {seed}", L::NAME);
            let mut bench = Bench::<L>::new(seed, start);
            for _ in 0..STEPS {
                bench.step();
            }
            let moved = bench.model.responses_consumed - u64::from(start);
            assert!(moved >= MOVED_MIN, "the schedule moved {moved} entries only");
        }
    }
}

#[test]
fn a_tx_ring_matches_the_model_even_when_indices_wrap() {
    follow_the_model::<Tx>();
}

#[test]
fn an_rx_ring_matches_the_model_even_when_indices_wrap() {
    follow_the_model::<Rx>();
}

#[test]
fn a_control_ring_matches_the_model_even_when_indices_wrap() {
    follow_the_model::<Control>();
}

#[test]
fn a_new_ring_requests_an_event_for_its_first_entry() {
    let [front, witness] = page::handles();
    let _front = FrontRing::<Tx>::new(front);
    let indices = [REQ_PROD, REQ_EVENT, RSP_PROD, RSP_EVENT];
    let indices = indices.map(|offset| witness.load(offset, Ordering::Relaxed));
    assert_eq!(indices, [0, 1, 0, 1]);
}

#[test]
fn a_response_is_written_over_its_request() {
    let [front, back, witness] = page::handles();
    let mut front = FrontRing::<Rx>::starting_at(front, u32::MAX);
    let mut back = BackRing::<Rx>::attach(back).expect("a new ring is sound");
    for number in 0..3 {
        front.push_request(Rx::request(number));
    }
    let _ = front.publish_requests();
    back.consume(3);
    for number in 0..3 {
        back.push_response(Rx::response(number));
    }
    //= netif.h:rx-same-slot
    for (number, slot) in [(0, 255), (1, 0), (2, 1)] {
        let response = witness.read::<ringway_wire::netif::RxResponse>(64 + 8 * slot);
        assert_eq!(response, Rx::response(number));
    }
}
