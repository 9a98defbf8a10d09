//! Frames whose ends are in lent pages: they leave or are completed within a round.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use ringway_datapath::{
    Checksum, DropReason, End, Ends, Frame, FramePool, Gso, GsoKind, OffloadCaps, Pages,
    QueueTraits,
};
use ringway_engine::{Capture, Limits, Wait};

use crate::bench::{Bench, ONE, Station, TRAITS, byte_at};

const MEMORY: usize = 64 << 20;
const LEN: usize = 20_000;
/// Bytes before the end.
pub(crate) const HEAD_LEN: usize = 4096;

/// Kinds of lent ends.
const KINDS: [Ends; 2] = [Ends::GRANTED, Ends::MAPPED];

/// The peer that lends.
#[derive(Debug)]
pub(crate) struct Lender {
    kind: Ends,
    /// Pages whose bytes are on loan.
    on_loan: Mutex<Vec<Weak<LentPages>>>,
    is_readable: AtomicBool,
    completed: AtomicUsize,
}

impl Lender {
    fn new(kind: Ends) -> Arc<Lender> {
        Arc::new(Lender {
            kind,
            on_loan: Mutex::default(),
            is_readable: AtomicBool::new(true),
            completed: AtomicUsize::new(0),
        })
    }

    fn has_lent(&self) -> bool {
        let on_loan = self.on_loan.lock().expect("no test panics with the lock");
        on_loan.iter().any(|pages| pages.strong_count() > 0)
    }
}

#[derive(Debug)]
struct LentPages {
    bytes: Vec<u8>,
    lender: Arc<Lender>,
}

impl Pages for LentPages {
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        self.lender.completed.fetch_add(1, Relaxed);
        if !self.lender.is_readable.load(Relaxed) {
            return Err(DropReason::GrantCopy);
        }
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        Ok(())
    }

    fn kind(&self) -> Ends {
        self.lender.kind
    }

    fn memory(&self) -> &dyn Any {
        self
    }
}

/// Makes the frame with this number a TCP segment, and leaves its end in pages.
pub(crate) fn lend(frame: &mut Frame, lender: &Arc<Lender>, pool: &mut FramePool) {
    let bytes = frame.bytes_mut();
    let ip_len = u16::try_from(bytes.len() - 14).expect("frames are short");
    bytes.iter_mut().enumerate().skip(54).for_each(|(offset, byte)| *byte = byte_at(offset));
    bytes[12..54].fill(0);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&ip_len.to_be_bytes());
    bytes[23] = 6;
    bytes[46] = 0x50;
    let end = bytes[HEAD_LEN..].to_vec();
    bytes[HEAD_LEN..].fill(0);
    let len = end.len();
    let pages = Arc::new(LentPages { bytes: end, lender: Arc::clone(lender) });
    let mut on_loan = lender.on_loan.lock().expect("no test panics with the lock");
    on_loan.retain(|pages| pages.strong_count() > 0);
    on_loan.push(Arc::downgrade(&pages));
    let pages: Arc<dyn Pages> = pages;
    if lender.kind == Ends::MAPPED {
        return frame.lend(HEAD_LEN, pool.lender(&pages), 0);
    }
    frame.set_len(HEAD_LEN);
    let mut end = End::lent(pool.lender(&pages));
    assert!(end.push(0, len));
    frame.set_end(end);
    frame.offload.checksum = Checksum::Blank;
    frame.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
}

/// A sender that lends, and a receiver whose queue takes lent ends.
fn pair(bench: &mut Bench, kind: Ends) -> (Station, Station, Arc<Lender>) {
    let traits = QueueTraits { takes: Ends::GRANTED | Ends::MAPPED, ..TRAITS };
    let [sender, receiver] = [1, 2].map(|port| bench.port_with(port, 1, ONE, traits).remove(0));
    let lender = Lender::new(kind);
    sender.far().lender = Some(Arc::clone(&lender));
    (sender, receiver, lender)
}

#[test]
fn a_lent_end_leaves_from_its_pages() {
    for kind in KINDS {
        let mut bench = Bench::new(MEMORY);
        let (sender, receiver, lender) = pair(&mut bench, kind);
        sender.far().script.extend([(2, LEN); 10]);
        bench.round();
        let far = receiver.far();
        assert_eq!((far.received, far.lent), (10, 10));
        assert_eq!((lender.completed.load(Relaxed), lender.has_lent()), (0, false));
    }
}

#[test]
fn what_waits_for_a_slow_receiver_is_completed_within_the_round() {
    for (room, kind) in [0, 3].into_iter().flat_map(|room| KINDS.map(|kind| (room, kind))) {
        let mut bench = Bench::new(MEMORY);
        let (sender, receiver, lender) = pair(&mut bench, kind);
        receiver.far().room = room;
        // More than an outbox takes at once, so that some frames stay at the source.
        sender.far().script.extend([(2, LEN); 500]);
        for _ in 0..200 {
            bench.round();
            assert!(!lender.has_lent(), "the sender waits for the receiver");
        }
        receiver.far().room = usize::MAX;
        for _ in 0..2000 {
            bench.round();
            assert!(!lender.has_lent());
        }
        let far = receiver.far();
        assert!(far.received > 3, "{}", far.received);
        assert!(lender.completed.load(Relaxed) > 0);
        // The last one left from its pages; those that waited have all their bytes.
        assert_eq!(far.longest[42..], payload());
    }
}

#[test]
fn a_sender_that_fails_has_its_memory_back_only_when_its_frames_are_completed() {
    for kind in KINDS {
        let mut bench = Bench::new(MEMORY);
        let (sender, receiver, lender) = pair(&mut bench, kind);
        sender.far().script.extend([(2, LEN); 10]);
        sender.far().breaks = true;
        bench.round();
        // The engine calls its queue for the last time before the other one sends.
        let far = receiver.far();
        assert_eq!((far.received, far.lent, lender.completed.load(Relaxed)), (10, 0, 10));
        assert_eq!(far.longest[42..], payload());
    }
}

/// A pair that has exchanged its first long frames, so that the sender looks ahead: the receiver
/// has no room left.
fn pair_that_looks_ahead(bench: &mut Bench) -> (Station, Station, Arc<Lender>) {
    let (sender, receiver, lender) = pair(bench, Ends::GRANTED);
    {
        let mut far = receiver.far();
        (far.shows_room, far.room) = (true, 2);
    }
    sender.far().script.extend([(2, LEN); 2]);
    bench.round();
    {
        let far = receiver.far();
        assert_eq!((far.lent, far.room), (2, 0));
    }
    (sender, receiver, lender)
}

#[test]
fn long_frames_wait_in_the_pages_of_their_sender() {
    let mut bench = Bench::new(MEMORY);
    let (sender, receiver, lender) = pair_that_looks_ahead(&mut bench);
    sender.far().script.extend([(2, LEN); 300]);
    let start = bench.now;
    for room in (1..=4).cycle() {
        bench.round();
        let (taken, received) = (sender.far().taken, receiver.far().received);
        assert_eq!(taken, received, "what has no room stays there");
        if sender.far().script.is_empty() {
            break;
        }
        receiver.far().room = room;
        // One round finds the room, and releases the sender.
        bench.round();
        assert!(bench.now < start + Duration::from_secs(1), "it goes on");
    }
    let far = receiver.far();
    assert_eq!((far.received, far.lent, lender.completed.load(Relaxed)), (302, 302, 0));
}

#[test]
fn an_engine_sleeps_until_there_is_room_and_then_goes_on() {
    let mut bench = Bench::new(MEMORY);
    let (sender, receiver, lender) = pair_that_looks_ahead(&mut bench);
    sender.far().script.push_back((2, LEN));
    let is_asleep = |wait| matches!(wait, Wait::Until(_) | Wait::Event);
    assert!((0..10).any(|_| is_asleep(bench.round())), "it waits for an event");
    receiver.far().room = 1;
    bench.ready(&receiver);
    for _ in 0..3 {
        bench.round();
    }
    assert_eq!((receiver.far().lent, lender.completed.load(Relaxed)), (3, 0));
    assert!((0..10).any(|_| is_asleep(bench.round())), "nothing is left to do");
}

#[test]
fn a_receiver_that_stops_holds_its_sender_only_briefly() {
    let mut bench = Bench::new(MEMORY);
    let (sender, _stopped, lender) = pair_that_looks_ahead(&mut bench);
    let other = bench.port(3, 1, ONE).remove(0);
    // After each long frame for the one that stopped, there is a short one for another.
    {
        let mut far = sender.far();
        far.script.extend([(2, LEN), (3, 60)]);
        far.is_endless = true;
    }
    let mut short = 0;
    bench.run(Duration::from_millis(300), |_| short = other.far().received);
    assert!(short > 300, "{short}");
    assert!(!lender.has_lent());
}

#[test]
fn short_frames_do_not_wait_for_room_that_only_long_ones_needed() {
    let mut bench = Bench::new(MEMORY);
    let (sender, _stopped, _) = pair_that_looks_ahead(&mut bench);
    let other = bench.port(3, 1, ONE).remove(0);
    {
        let mut far = sender.far();
        far.lender = None;
        far.script.extend([(3, 60); 5000]);
    }
    let start = bench.now;
    // The first batch may wait once: nothing shows whom it is for.
    bench.run(Duration::from_millis(60), |_| {});
    assert_eq!(other.far().received, 5000, "{:?}", bench.now - start);
}

#[test]
fn a_receiver_that_leaves_releases_its_sender() {
    let mut bench = Bench::new(MEMORY);
    let (sender, receiver, _) = pair_that_looks_ahead(&mut bench);
    let other = bench.port(3, 1, ONE).remove(0);
    sender.far().script.push_back((3, LEN));
    bench.round();
    bench.round();
    assert_eq!(other.far().received, 0, "it waits for the room that the last ones needed");
    bench.detach(&receiver);
    bench.round();
    bench.round();
    assert_eq!(other.far().received, 1);
}

#[test]
fn an_end_that_cannot_be_read_costs_its_own_frame() {
    for kind in KINDS {
        let mut bench = Bench::new(MEMORY);
        let (sender, receiver, lender) = pair(&mut bench, kind);
        lender.is_readable.store(false, Relaxed);
        receiver.far().room = 0;
        sender.far().script.extend([(2, LEN), (2, LEN), (2, LEN)]);
        bench.round();
        assert!(!lender.has_lent());
        assert_eq!(receiver.dropped(DropReason::GrantCopy), 3);
        sender.far().lender = None;
        receiver.far().room = usize::MAX;
        sender.far().script.push_back((2, 60));
        bench.round();
        assert_eq!(receiver.far().received, 1);
    }
}

/// What follows the headers of a lent frame.
fn payload() -> Vec<u8> {
    (54..LEN).map(byte_at).collect()
}

#[test]
fn every_reader_of_a_frame_gets_all_of_it() {
    // A mirror, a station that no port has, and a receiver that takes no lent ends.
    let cases = ["mirror", "flood", "plain"];
    for (case, kind) in cases.into_iter().flat_map(|case| KINDS.map(|kind| (case, kind))) {
        let mut bench = Bench::new(MEMORY);
        let (sender, receiver, lender) = pair(&mut bench, kind);
        let other = bench.port(3, 1, ONE).remove(0);
        let to = match case {
            "mirror" => {
                bench.mirror(3, &[1], &[]);
                2
            }
            "flood" => 9,
            _ => 3,
        };
        sender.far().script.push_back((to, LEN));
        for _ in 0..3 {
            bench.round();
        }
        assert_eq!(other.far().longest[42..], payload(), "{case}");
        if to == 3 {
            assert_eq!(receiver.far().received, 0);
        } else {
            assert_eq!(receiver.far().longest[42..], payload(), "{case}");
        }
        assert_eq!(receiver.far().lent, 0, "{case}");
        assert!(!lender.has_lent(), "{case}");
        for station in [&sender, &receiver, &other] {
            assert_eq!(station.dropped(DropReason::GrantCopy), 0, "{case}");
        }
    }
}

#[test]
fn a_capture_shows_all_of_a_frame_which_arrives_whole() {
    let cases = [(true, false), (false, true), (true, true)];
    for ((at_sender, at_receiver), kind) in
        cases.into_iter().flat_map(|case| KINDS.map(|kind| (case, kind)))
    {
        let mut bench = Bench::new(MEMORY);
        let (sender, receiver, lender) = pair(&mut bench, kind);
        let new = || Arc::new(Capture::new(usize::MAX, (Instant::now(), SystemTime::now())));
        let captures = [(at_sender, &sender), (at_receiver, &receiver)].map(|(is_on, station)| {
            let capture = is_on.then(new);
            capture.iter().for_each(|capture| bench.capture(station, capture));
            capture
        });
        sender.far().script.push_back((2, LEN));
        bench.round();
        for capture in captures.iter().flatten() {
            let shown = capture.next().expect("the frame has passed");
            assert_eq!(shown.len, LEN);
            assert_eq!(shown.bytes[54..], payload());
            assert!(capture.next().is_none(), "it has passed once");
        }
        {
            let far = receiver.far();
            assert_eq!((far.received, far.lent), (1, 0));
            assert_eq!(far.longest[42..], payload());
        }
        assert!(!lender.has_lent());
        // The first frame after it finds that it has ended; later ones stay in their pages again.
        captures.iter().flatten().for_each(|capture| capture.close());
        for _ in 0..3 {
            sender.far().script.push_back((2, LEN));
            bench.round();
        }
        let far = receiver.far();
        assert_eq!((far.received, far.lent), (4, 2), "captures {at_sender} {at_receiver}");
    }
}

#[test]
fn segments_for_a_receiver_that_needs_them_hold_all_bytes() {
    let without_gso = OffloadCaps { gso_v4: false, gso_v6: false, ..OffloadCaps::ALL };
    for caps in [without_gso, OffloadCaps::NONE] {
        let mut bench = Bench::new(MEMORY);
        let (sender, _, lender) = pair(&mut bench, Ends::GRANTED);
        let traits = QueueTraits { caps, takes: Ends::GRANTED, ..TRAITS };
        let receiver = bench.port_with(3, 1, ONE, traits).remove(0);
        sender.far().script.extend([(3, LEN); 2]);
        bench.round();
        assert!(!lender.has_lent());
        for _ in 0..3 {
            bench.round();
        }
        let far = receiver.far();
        assert_eq!(far.stream, [payload(), payload()].concat(), "{caps:?}");
        let segments = u64::try_from((LEN - 54).div_ceil(1448)).expect("few");
        assert_eq!((far.received, far.lent), (2 * segments, 0), "{caps:?}");
        assert!(far.lens.iter().all(|len| *len <= 1448 + 54), "{:?}", far.lens);
        assert_eq!(receiver.dropped(DropReason::GrantCopy), 0);
    }
}

#[test]
fn a_port_whose_frames_must_be_plain_gets_segments_whatever_its_queue_takes() {
    let mut bench = Bench::new(MEMORY);
    let (sender, receiver, lender) = pair(&mut bench, Ends::GRANTED);
    let segments = u64::try_from((LEN - 54).div_ceil(1448)).expect("few");
    let mut expected = (0, 0);
    // As it is set while frames pass, more than once.
    for is_plain in [false, true, true, false] {
        bench.limit(&receiver, &Limits { is_plain, ..Limits::default() });
        sender.far().script.push_back((2, LEN));
        bench.ready(&sender);
        for _ in 0..4 {
            bench.round();
        }
        expected.0 += if is_plain { segments } else { 1 };
        expected.1 += u64::from(!is_plain);
        let far = receiver.far();
        assert_eq!((far.received, far.lent), expected, "plain: {is_plain}");
        assert!(!lender.has_lent());
    }
    assert_eq!(receiver.far().stream, [payload(), payload()].concat());
}
