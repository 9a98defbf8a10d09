//! Every chain of up to three responses over a small alphabet of responses, against a model that
//! applies each rule separately.
//!
//! The letters cover each flag that continues a packet, lengths on both sides of each limit, failed
//! slots, bytes that leave their page, and extras of every kind; a slot may be read as data or as
//! an extra, depending on the slot before it. One queue takes in chain after chain, so they begin
//! at every slot of the ring.

use ringway_datapath::{
    Budget, Checksum, DropReason, FrameBatch, FramePool, Gso, Offload, PoolBudget, PortQueue,
    QueueDown,
};
use ringway_netfront::ResponseFault;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_HASH, EXTRA_TYPE_XDP, ExtraInfo, GSO_TYPE_TCPV4,
    NETIF_RSP_ERROR, NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA,
    RxRequest, RxResponse,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::backend::{Bench, fault_of};
use crate::frames::pattern;
use crate::packet::{Chain, Slot};

const MORE: u16 = NETRXF_MORE_DATA;
const EXTRA: u16 = NETRXF_EXTRA_INFO;
const PAGE_SIZE: usize = 4096;
const SLOTS: usize = 256;
const SHORTEST: usize = 14;

fn data(flags: u16, status: i16) -> RxResponse {
    RxResponse { id: 0, offset: 0, flags, status }
}

fn extra(extra: ExtraInfo) -> RxResponse {
    RxResponse::read_from_bytes(extra.as_bytes()).expect("an extra is as long as a slot")
}

fn letters() -> Vec<RxResponse> {
    let gso = |size| ExtraInfo::for_gso(size, GSO_TYPE_TCPV4);
    let hash = ExtraInfo { kind: EXTRA_TYPE_HASH, flags: 0, payload: [4; 6] };
    vec![
        data(0, 60),
        data(0, 0),
        data(0, 13),
        data(0, 14),
        data(0, NETIF_RSP_ERROR),
        data(MORE, 60),
        data(MORE, 0),
        data(MORE, NETIF_RSP_ERROR),
        data(EXTRA, 60),
        data(EXTRA | MORE, 100),
        data(NETRXF_DATA_VALIDATED, 60),
        data(NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED | MORE, 4096),
        RxResponse { offset: 4036, ..data(0, 60) },
        RxResponse { offset: 4037, ..data(0, 60) },
        RxResponse { offset: 4050, ..data(MORE, 100) },
        RxResponse { offset: u16::MAX, ..data(0, NETIF_RSP_ERROR) },
        extra(gso(1448)),
        extra(gso(0)),
        extra(ExtraInfo { flags: EXTRA_FLAG_MORE, ..gso(100) }),
        extra(hash),
        extra(ExtraInfo { flags: EXTRA_FLAG_MORE, ..hash }),
        RxResponse { offset: 40, ..data(EXTRA, 60) },
        extra(ExtraInfo::for_xdp(40)),
    ]
}

impl Slot for RxResponse {
    const MORE: u16 = MORE;
    const EXTRA: u16 = EXTRA;

    fn flags(&self) -> u16 {
        self.flags
    }
}

impl Chain<'_, RxResponse> {
    /// The slots that hold data, each with its place in the packet.
    fn data(&self) -> impl Iterator<Item = (usize, &RxResponse)> {
        let behind_extras = (1 + self.extras.len()..).zip(self.further);
        std::iter::once((0, &self.first)).chain(behind_extras)
    }

    /// Applies each rule separately.
    fn faults(&self) -> Vec<ResponseFault> {
        let mut faults = Vec::new();
        let mut check = |is_broken: bool, fault| faults.extend(is_broken.then_some(fault));
        for (_, &RxResponse { offset, status, .. }) in self.data() {
            let is_outside = usize::from(offset) + len_of(status) > PAGE_SIZE;
            check(is_outside, ResponseFault::LeavesPage { offset, status });
        }
        for extra in &self.extras {
            let is_gso = extra.kind == EXTRA_TYPE_GSO;
            let (size, kind) = extra.gso();
            let is_sound = size > 0 && (1..=2).contains(&kind);
            check(is_gso && !is_sound, ResponseFault::BadGso { kind, size });
        }
        faults
    }

    /// The frame that arrives, unless the packet is dropped: the end of it is missing, one of its
    /// slots has failed, or it is shorter than a header.
    fn frame(&self, first_slot: usize, pages: &[Vec<u8>]) -> Option<Arrived> {
        if self.is_cut_off || self.data().any(|(_, slot)| slot.status < 0) {
            return None;
        }
        //= netif.h:xdp-extra
        let headroom = self.extras.iter().rfind(|extra| extra.kind == EXTRA_TYPE_XDP);
        let is_counted = self.first.offset == 0;
        let unused = headroom.filter(|_| is_counted).map_or(0, |it| usize::from(it.headroom()));
        if self.data().any(|(_, slot)| len_of(slot.status) < unused) {
            return None;
        }
        let mut bytes = Vec::new();
        for (place, slot) in self.data() {
            //= netif.h:rx-same-slot
            let page = &pages[(first_slot + place) % SLOTS];
            //= netif.h:rx-offset
            let start = usize::from(slot.offset);
            bytes.extend(&page[start + unused..start + len_of(slot.status)]);
        }
        //= netif.h:extras-skipped
        let gso = self.extras.iter().rfind(|extra| extra.kind == EXTRA_TYPE_GSO);
        let gso = gso.map(|extra| Gso::from_extra(extra).expect("the rules were checked"));
        let checksum = match self.first.flags {
            _ if gso.is_some() => Checksum::Blank,
            flags if flags & NETRXF_CSUM_BLANK != 0 => Checksum::Blank,
            flags if flags & NETRXF_DATA_VALIDATED != 0 => Checksum::Validated,
            _ => Checksum::Unverified,
        };
        (bytes.len() >= SHORTEST).then_some((bytes, Offload { checksum, gso }))
    }
}

fn len_of(status: i16) -> usize {
    usize::try_from(status).unwrap_or(0)
}

/// The bytes of a frame, and its offload.
type Arrived = (Vec<u8>, Offload);

/// The expected result for some slots.
#[derive(Debug, Default)]
struct Expected {
    frames: Vec<Arrived>,
    dropped: u64,
    /// The faults of the packet after the last frame; any of them may be reported.
    faults: Vec<ResponseFault>,
}

impl Expected {
    fn of(slots: &[RxResponse], first_slot: usize, pages: &[Vec<u8>]) -> Expected {
        let mut expected = Expected::default();
        let mut done = 0;
        while done < slots.len() {
            let chain = Chain::of(&slots[done..]);
            expected.faults = chain.faults();
            if !expected.faults.is_empty() {
                break;
            }
            match chain.frame(first_slot + done, pages) {
                Some(frame) => expected.frames.push(frame),
                None => expected.dropped += 1,
            }
            done += chain.slots();
        }
        expected
    }
}

/// How the queue is polled.
#[derive(Debug, Clone, Copy)]
enum Polling {
    /// One call takes all.
    AtOnce,
    /// Each call may take one frame.
    OneByOne,
    /// The first call finds no buffer.
    LateBuffer,
}

/// A queue that is reused until a backend is at fault.
struct Examiner {
    bench: Bench,
    pages: Vec<Vec<u8>>,
    /// A pool without buffers.
    empty: FramePool,
    /// The slot of the next response.
    next_slot: usize,
    /// The number of slots whose pages are filled.
    filled: usize,
    dropped: u64,
}

impl Examiner {
    /// `pages` is the content of the pages of each slot.
    fn new(pages: Vec<Vec<u8>>) -> Examiner {
        let empty = FramePool::new(PoolBudget::new(0));
        Examiner { bench: Bench::new(), pages, empty, next_slot: 0, filled: 0, dropped: 0 }
    }

    /// Responds with some slots, polls, and compares. True if the backend was at fault.
    fn examine(&mut self, slots: &[RxResponse], polling: Polling) -> bool {
        while self.filled < (self.next_slot + slots.len()).min(SLOTS) {
            self.bench.fill(self.filled, 0, &self.pages[self.filled]);
            self.filled += 1;
        }
        let expected = Expected::of(slots, self.next_slot, &self.pages);
        slots.iter().for_each(|slot| self.bench.rx.push_response(*slot));
        let _ = self.bench.rx.publish_responses();
        let (frames, outcome) = self.poll(slots.len(), polling);
        assert_eq!(frames, expected.frames, "{slots:?}");
        self.dropped += expected.dropped;
        match outcome {
            Err(down) => {
                let fault: ResponseFault = fault_of(&down);
                assert!(expected.faults.contains(&fault), "{fault:?} {slots:?}");
            }
            Ok(()) => {
                assert!(expected.faults.is_empty(), "{slots:?}");
                assert_eq!(self.bench.dropped(DropReason::Malformed), self.dropped, "{slots:?}");
                self.take_posted(slots.len());
            }
        }
        self.next_slot = (self.next_slot + slots.len()) % SLOTS;
        !expected.faults.is_empty()
    }

    fn poll(&mut self, slots: usize, polling: Polling) -> (Vec<Arrived>, Result<(), QueueDown>) {
        let (budget, calls) = match polling {
            Polling::AtOnce => (Budget::BATCH, 1),
            Polling::OneByOne => (Budget { frames: 1, ..Budget::BATCH }, slots),
            Polling::LateBuffer => (Budget::BATCH, 2),
        };
        let mut taken = Vec::new();
        for call in 0..calls {
            let mut batch = FrameBatch::new();
            let Bench { front, pool, .. } = &mut self.bench;
            let has_buffers = call > 0 || !matches!(polling, Polling::LateBuffer);
            let from = if has_buffers { &mut *pool } else { &mut self.empty };
            let outcome = front.ingress(budget, from, &mut batch);
            assert!(batch.len() <= budget.frames);
            taken.extend(batch.iter().map(|frame| (frame.bytes().to_vec(), frame.offload)));
            batch.drain(..).for_each(|frame| pool.recycle(frame));
            if outcome.is_err() {
                return (taken, outcome);
            }
        }
        (taken, Ok(()))
    }

    /// Each slot has its page again, and no other.
    fn take_posted(&mut self, slots: usize) {
        let mut requests = [RxRequest::default(); SLOTS];
        let taken = self.bench.rx.peek_requests(&mut requests);
        assert_eq!(taken, Ok((slots, slots)));
        let posted = (self.next_slot..).map(|slot| self.bench.posted[slot % SLOTS].gref);
        assert!(requests[..slots].iter().map(|request| request.gref).eq(posted.take(slots)));
        self.bench.rx.consume(slots);
    }
}

/// Every word of `len` letters.
fn words(len: u32) -> impl Iterator<Item = Vec<RxResponse>> {
    let letters = letters();
    (0..letters.len().pow(len)).map(move |number| {
        let places = (0..len).map(|place| number / letters.len().pow(place) % letters.len());
        places.map(|letter| letters[letter]).collect()
    })
}

/// Responds with each word, in as many ways as it can be cut into `parts`.
fn examine(polling: Polling, parts: usize) {
    let pages = (0..SLOTS).map(|slot| pattern(slot, PAGE_SIZE)).collect();
    let mut examiner = Examiner::new(pages);
    for word in (1..=3).flat_map(words) {
        for cut in 0..if parts > 1 { word.len() } else { 1 } {
            let (before, after) = word.split_at(cut);
            let is_over = cut > 0 && examiner.examine(before, polling);
            if is_over || examiner.examine(after, polling) {
                examiner = Examiner::new(examiner.pages);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many chains for Miri")]
fn every_chain_of_up_to_three_responses_in_two_parts_follows_the_rules() {
    examine(Polling::AtOnce, 2);
}

#[test]
#[cfg_attr(miri, ignore = "too many chains for Miri")]
fn every_chain_of_up_to_three_responses_has_the_same_result_one_frame_at_a_time() {
    examine(Polling::OneByOne, 1);
}

#[test]
#[cfg_attr(miri, ignore = "too many chains for Miri")]
fn every_chain_of_up_to_three_responses_has_the_same_result_if_a_buffer_is_late() {
    examine(Polling::LateBuffer, 1);
}
