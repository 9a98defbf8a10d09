//! Every chain of up to four slots over a small alphabet of slots, against a model that applies
//! each rule separately.
//!
//! The letters cover each flag that continues a packet, sizes on both sides of each limit, pages
//! that cannot be copied, and extras of every kind; a slot may be read as data or as an extra,
//! depending on the slot before it. Rings begin just before their indices wrap.

use ringway_datapath::{
    Budget, Checksum, Frame, FrameBatch, Gso, Offload, OffloadCaps, PortQueue, QueueDown,
};
use ringway_hypervisor::Access;
use ringway_netback::TxFault;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_HASH, EXTRA_TYPE_MAX, EXTRA_TYPE_MCAST_ADD,
    ExtraInfo, GSO_TYPE_TCPV4, NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY, NETTXF_EXTRA_INFO,
    NETTXF_MORE_DATA, TxRequest,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::frames::pattern;
use crate::guest::{Bench, fault_of};
use crate::packet::{Chain, Slot};

const MORE: u16 = NETTXF_MORE_DATA;
const EXTRA: u16 = NETTXF_EXTRA_INFO;
/// The first page that a bench grants after its two rings.
const GOOD_GREF: u32 = 10;
const BAD_GREF: u32 = 0x00FF_FF0B;
/// The first slots are in the ring's last places, and the others in its first.
const START: u32 = u32::MAX - 1;
const PAGE_SIZE: usize = 4096;
const SHORTEST: u16 = 14;

fn data(flags: u16, size: u16) -> TxRequest {
    TxRequest { gref: GOOD_GREF, offset: 0, flags, id: 0, size }
}

fn extra(extra: ExtraInfo) -> TxRequest {
    let mut slot = TxRequest::new_zeroed();
    slot.as_mut_bytes()[..size_of::<ExtraInfo>()].copy_from_slice(extra.as_bytes());
    slot
}

fn letters() -> Vec<TxRequest> {
    let gso = |size| ExtraInfo::for_gso(size, GSO_TYPE_TCPV4);
    let hash = ExtraInfo { kind: EXTRA_TYPE_HASH, flags: 0, payload: [4; 6] };
    vec![
        data(0, 60),
        data(0, 0),
        data(0, 1),
        data(0, 13),
        data(MORE, 60),
        data(MORE, 100),
        data(MORE, 0),
        data(EXTRA, 60),
        data(EXTRA | MORE, 100),
        TxRequest { offset: 4050, ..data(0, 60) },
        TxRequest { offset: 4050, ..data(MORE, 100) },
        TxRequest { gref: BAD_GREF, ..data(0, 60) },
        TxRequest { gref: BAD_GREF, ..data(MORE, 60) },
        extra(gso(1448)),
        extra(gso(0)),
        extra(ExtraInfo { flags: EXTRA_FLAG_MORE, ..gso(100) }),
        extra(hash),
        extra(ExtraInfo { flags: EXTRA_FLAG_MORE, ..hash }),
        extra(ExtraInfo::for_multicast(EXTRA_TYPE_MCAST_ADD, [3; 6])),
    ]
}

/// The expected result for some slots.
#[derive(Debug, Default)]
struct Expected {
    statuses: Vec<i16>,
    frames: Vec<(Vec<u8>, Offload)>,
    /// The faults of the packet after the last response; any of them may be reported.
    faults: Vec<TxFault>,
}

impl Slot for TxRequest {
    const MORE: u16 = MORE;
    const EXTRA: u16 = EXTRA;

    fn flags(&self) -> u16 {
        self.flags
    }
}

impl Chain<'_, TxRequest> {
    /// Bytes of the further slots up to each of them.
    fn sums(&self) -> impl Iterator<Item = u16> {
        self.further.iter().scan(0, |sum, slot| {
            *sum += slot.size;
            Some(*sum)
        })
    }

    /// Applies each rule separately.
    fn faults(&self, consumer: u32) -> Vec<TxFault> {
        let mut faults = Vec::new();
        let mut check = |is_broken: bool, fault| faults.extend(is_broken.then_some(fault));
        //= netif.h:packet-published-whole
        let last = u32::try_from(self.slots() - 1).expect("a packet has few slots");
        let slot = consumer.wrapping_add(last);
        check(self.is_cut_off, TxFault::PacketCutOff { slot });
        for extra in &self.extras {
            let is_known = (1..EXTRA_TYPE_MAX).contains(&extra.kind);
            check(!is_known, TxFault::BadExtra { kind: extra.kind });
            let (size, kind) = extra.gso();
            let is_sound = size > 0 && (1..=2).contains(&kind);
            let is_gso = extra.kind == EXTRA_TYPE_GSO;
            check(is_gso && !is_sound, TxFault::BadGso { kind, size });
        }
        //= netif.h:slot-in-page
        for (slot, sum) in self.further.iter().zip(self.sums()) {
            let end = usize::from(slot.offset) + usize::from(slot.size);
            let TxRequest { offset, size, .. } = *slot;
            let is_counted = sum <= self.first.size;
            check(is_counted && end > PAGE_SIZE, TxFault::CrossesPage { offset, size });
        }
        if let (Some(size), false, false) = (self.first_len(), self.is_cut_off, self.is_order()) {
            let offset = self.first.offset;
            let end = usize::from(offset) + usize::from(size);
            check(end > PAGE_SIZE, TxFault::CrossesPage { offset, size });
        }
        faults
    }

    /// Whether it orders multicast frames, and has no packet.
    fn is_order(&self) -> bool {
        self.extras.iter().any(|extra| extra.kind == EXTRA_TYPE_MCAST_ADD)
    }

    /// Bytes of the first slot, if the packet is long enough and its slots hold no more than that.
    //= netif.h:first-size-is-total
    fn first_len(&self) -> Option<u16> {
        let further: u16 = self.further.iter().map(|slot| slot.size).sum();
        let is_long_enough = self.first.size >= SHORTEST;
        self.first.size.checked_sub(further).filter(|_| is_long_enough)
    }

    /// The frame that leaves, unless the packet is refused.
    fn frame(&self, page: &[u8]) -> Option<(Vec<u8>, Offload)> {
        let first = TxRequest { size: self.first_len()?, ..self.first };
        let mut bytes = Vec::new();
        for slot in [first].iter().chain(self.further) {
            if slot.size > 0 && slot.gref != GOOD_GREF {
                return None;
            }
            let start = usize::from(slot.offset);
            bytes.extend(&page[start..start + usize::from(slot.size)]);
        }
        let gso = self.extras.iter().rev().find(|extra| extra.kind == EXTRA_TYPE_GSO);
        let gso = gso.map(|extra| Gso::from_extra(extra).expect("the rules were checked"));
        let is_blank = gso.is_some();
        let checksum = if is_blank { Checksum::Blank } else { Checksum::Unverified };
        Some((bytes, Offload { checksum, gso }))
    }
}

impl Expected {
    fn of(slots: &[TxRequest], consumer: u32, page: &[u8]) -> Expected {
        let mut expected = Expected::default();
        let mut rest = slots;
        while !rest.is_empty() {
            let done = u32::try_from(expected.statuses.len()).expect("a chain is short");
            let chain = Chain::of(rest);
            expected.faults = chain.faults(consumer.wrapping_add(done));
            if !expected.faults.is_empty() {
                break;
            }
            //= netif.h:multicast-order
            let frame = if chain.is_order() { None } else { chain.frame(page) };
            let status =
                if frame.is_some() || chain.is_order() { NETIF_RSP_OKAY } else { NETIF_RSP_ERROR };
            expected.frames.extend(frame);
            //= netif.h:one-response-per-request
            expected.statuses.push(status);
            expected.statuses.extend(chain.extras.iter().map(|_| NETIF_RSP_NULL));
            expected.statuses.extend(chain.further.iter().map(|_| status));
            rest = &rest[chain.slots()..];
        }
        expected
    }
}

/// How the queue is polled.
#[derive(Debug, Clone, Copy)]
enum Polling {
    /// One call takes all packets up to an order or behind it.
    AtOnce,
    /// Each call may take one frame.
    OneByOne,
}

/// A queue that is reused until a guest is at fault.
struct Examiner {
    bench: Bench,
    page: Vec<u8>,
    /// Slots that the bench has served.
    served: u32,
}

impl Examiner {
    fn new() -> Examiner {
        let mut bench = Bench::starting_at(START, OffloadCaps::ALL);
        let page = pattern(9, PAGE_SIZE);
        assert_eq!(bench.page(0, &page, Access::ReadOnly).0, GOOD_GREF);
        Examiner { bench, page, served: 0 }
    }

    /// Publishes some slots, polls, and compares. True if the guest was at fault.
    fn examine(&mut self, slots: &[TxRequest], polling: Polling) -> bool {
        let expected = Expected::of(slots, START.wrapping_add(self.served), &self.page);
        let mut slots = slots.to_vec();
        for (slot, id) in slots.iter_mut().zip(500..) {
            slot.id = id;
        }
        let _ = self.bench.send(&slots);
        let (frames, outcome) = self.poll(polling, slots.len());
        let taken: Vec<_> = frames.iter().map(|f| (f.bytes().to_vec(), f.offload)).collect();
        assert_eq!(taken, expected.frames, "{slots:?}");
        let statuses = self.bench.tx_statuses();
        //= netif.h:id-echo
        let owed = expected.statuses.iter().zip(&slots).map(|(status, slot)| match *status {
            // An extra has no id. Its kind and flags stay where they were.
            NETIF_RSP_NULL => (u16::try_from(slot.gref & 0xFFFF).expect("16 bits"), *status),
            _ => (slot.id, *status),
        });
        assert!(owed.eq(statuses), "{slots:?}");
        self.served += u32::try_from(slots.len()).expect("a chain is short");
        match outcome {
            Ok(()) => assert!(expected.faults.is_empty(), "{slots:?}"),
            Err(down) => {
                let fault: TxFault = fault_of(&down);
                assert!(expected.faults.contains(&fault), "{fault:?} {slots:?}");
            }
        }
        !expected.faults.is_empty()
    }

    fn poll(&mut self, polling: Polling, slots: usize) -> (Vec<Frame>, Result<(), QueueDown>) {
        let budget = match polling {
            Polling::AtOnce => Budget::BATCH,
            Polling::OneByOne => Budget { frames: 1, ..Budget::BATCH },
        };
        // An order takes one more, for its response.
        let calls = 2 * slots;
        let mut frames = Vec::new();
        for _ in 0..calls {
            let mut batch = FrameBatch::new();
            let outcome = self.bench.back.ingress(budget, &mut self.bench.pool, &mut batch);
            assert!(batch.len() <= budget.frames);
            frames.extend(batch);
            if outcome.is_err() {
                return (frames, outcome);
            }
            self.bench.note_orders();
        }
        (frames, Ok(()))
    }
}

/// Every word of `len` letters.
fn words(len: u32) -> impl Iterator<Item = Vec<TxRequest>> {
    let letters = letters();
    (0..letters.len().pow(len)).map(move |number| {
        let places = (0..len).map(|place| number / letters.len().pow(place) % letters.len());
        places.map(|letter| letters[letter]).collect()
    })
}

/// Publishes each word in two parts, cut at every place, the first of which may be empty.
fn examine(len: u32, polling: Polling) {
    for word in words(len) {
        for cut in 0..word.len() {
            let mut examiner = Examiner::new();
            let (before, after) = word.split_at(cut);
            let is_over = cut > 0 && examiner.examine(before, polling);
            if !is_over {
                examiner.examine(after, polling);
            }
        }
    }
}

/// Miri takes a second for each chain.
const LONGEST: u32 = if cfg!(miri) { 1 } else { 3 };

#[test]
fn every_chain_of_up_to_three_slots_published_in_two_parts_follows_the_rules() {
    for len in 1..=LONGEST {
        examine(len, Polling::AtOnce);
    }
}

#[test]
fn every_chain_of_up_to_three_slots_has_the_same_result_one_frame_at_a_time() {
    for len in 1..=LONGEST {
        examine(len, Polling::OneByOne);
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many chains for Miri")]
fn every_chain_of_four_slots_follows_the_rules() {
    for word in words(4) {
        Examiner::new().examine(&word, Polling::AtOnce);
    }
}
