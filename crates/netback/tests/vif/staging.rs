//! Staging grants: pages of a guest that stay mapped, and what a guest can do with that.

use std::sync::Arc;

use ringway_datapath::{DropReason, Frame, FrameQueue, Offload, Pending, PortQueue};
use ringway_hypervisor::{Access, GrantTable, GrantedPages};
use ringway_loopback::FaultPoint;
use ringway_netback::{PageBudget, STAGED_PAGES_MAX, StagedPages, Staging};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    CTRL_STATUS_INVALID_PARAMETER as INVALID, CTRL_STATUS_SUCCESS as SUCCESS,
    CTRL_TYPE_ADD_GREF_MAPPING as ADD, CTRL_TYPE_DEL_GREF_MAPPING as DEL,
    CTRL_TYPE_GET_GREF_MAPPING_SIZE as GET_SIZE, GREF_READONLY, GREFS_PER_LIST, GrefEntry,
    NETIF_RSP_ERROR, NETIF_RSP_OKAY, NETTXF_MORE_DATA, RxResponse, TxRequest,
};
use ringway_wire::{GrantRef, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::control::Guest;
use crate::frames::pattern;
use crate::guest::Bench;
use crate::machine::{GUEST, HOST};

/// Mappings of a queue and its control ring.
const RINGS: usize = 3;

/// A guest whose pages may stay mapped, with a page for its lists.
struct Staged {
    bench: Bench,
    guest: Guest,
    list: GrantedPages,
}

fn staging(budget: usize) -> Staging {
    let queues = vec![Arc::<StagedPages>::default(), Arc::default()];
    Staging { queues, budget: Arc::new(PageBudget::new(budget)) }
}

impl Staged {
    fn new() -> Staged {
        Staged::within(4096)
    }

    fn within(budget: usize) -> Staged {
        Staged::of(Bench::new(), budget)
    }

    fn of(mut bench: Bench, budget: usize) -> Staged {
        let guest = Guest::with(&mut bench, Some(staging(budget)));
        let list = bench.machine.grants().share(HOST, 1, Access::ReadWrite);
        Staged { bench, guest, list: list.expect("a new guest has memory") }
    }

    fn share(&self, count: usize, access: Access) -> GrantedPages {
        self.bench.machine.grants().share(HOST, count, access).expect("a test needs few pages")
    }

    fn write_list(&self, entries: &[GrefEntry]) {
        self.list.pages.copy_from(0, entries.as_bytes());
    }

    fn statuses(&self, count: usize) -> Vec<u16> {
        let mut bytes = vec![0; count * size_of::<GrefEntry>()];
        self.list.pages.copy_to(0, &mut bytes);
        let entries = bytes.chunks_exact(size_of::<GrefEntry>());
        entries.map(|entry| u16::from_ne_bytes([entry[6], entry[7]])).collect()
    }

    /// Sends a message, and has the queue polled until its response is there.
    fn send(&mut self, kind: u16, data: [u32; 3]) -> (u32, u32) {
        self.guest.push(kind, data);
        self.response()
    }

    fn response(&mut self) -> (u32, u32) {
        for _ in 0..200 {
            assert!(self.bench.ingress().expect("no fault").is_empty());
            if let [response] = self.guest.responses()[..] {
                assert!(!self.bench.changes.has_unnoted(), "nothing of it is noted");
                return (response.status, response.data);
            }
        }
        panic!("no response")
    }

    fn send_list(&mut self, kind: u16, queue: u32, entries: &[GrefEntry]) -> (u32, u32) {
        self.write_list(entries);
        let count = u32::try_from(entries.len()).expect("it is short");
        self.send(kind, [queue, self.list.grefs[0].0, count])
    }

    /// Has pages mapped for this queue.
    fn add(&mut self, pages: &GrantedPages, flags: u16) {
        for grefs in pages.grefs.chunks(GREFS_PER_LIST) {
            assert_eq!(self.send_list(ADD, 0, &entries(grefs, flags)), (SUCCESS, 0));
        }
    }

    fn mappings(&self) -> usize {
        self.bench.machine.loopback.holdings_of(HOST).mappings
    }
}

fn entries(grefs: &[GrantRef], flags: u16) -> Vec<GrefEntry> {
    grefs.iter().map(|gref| GrefEntry { gref: gref.0, flags, status: 0xffff }).collect()
}

fn page(pages: &GrantedPages, number: usize) -> SharedPages {
    pages.pages.slice(number * PAGE_SIZE..(number + 1) * PAGE_SIZE)
}

fn request(gref: GrantRef, id: u16, size: usize) -> TxRequest {
    let size = u16::try_from(size).expect("a page is 4096 bytes");
    TxRequest { gref: gref.0, offset: 16, flags: 0, id, size }
}

#[test]
fn mapped_pages_are_copied_without_the_hypervisor() {
    let mut staged = Staged::new();
    let (tx, rx) = (staged.share(4, Access::ReadOnly), staged.share(4, Access::ReadWrite));
    staged.add(&tx, GREF_READONLY);
    staged.add(&rx, 0);
    assert_eq!(staged.mappings(), RINGS + 8);
    let calls = staged.bench.copy_calls();
    for (id, gref) in (0..).zip(&tx.grefs) {
        page(&tx, id.into()).copy_from(16, &pattern(id.into(), 1500));
        let _ = staged.bench.send(&[request(*gref, id, 1500)]);
    }
    let frames = staged.bench.ingress().expect("no fault");
    for (number, frame) in frames.iter().enumerate() {
        assert_eq!(frame.bytes(), pattern(number, 1500));
    }
    assert_eq!(frames.len(), 4);
    frames.into_iter().for_each(|frame| staged.bench.pool.recycle(frame));

    let posted: Vec<_> = (0..).zip(rx.grefs.iter().copied()).collect();
    staged.bench.post_grants(&posted);
    let long = pattern(9, 9000);
    let frame = staged.bench.frame(&long, Offload::NONE);
    assert!(staged.bench.egress(vec![frame]).is_empty());
    let lens: Vec<i16> = staged.bench.rx_responses().iter().map(|it| it.status).collect();
    assert_eq!(lens, [4096, 4096, 808]);
    let mut bytes = vec![0; 9000];
    rx.pages.copy_to(0, &mut bytes);
    assert_eq!(bytes, long);
    assert_eq!(staged.bench.copy_calls(), calls, "no call of the hypervisor");
}

#[test]
fn a_batch_may_have_pages_of_all_kinds() {
    let mut staged = Staged::new();
    let (tx, other) = (staged.share(1, Access::ReadOnly), staged.share(1, Access::ReadOnly));
    staged.add(&tx, GREF_READONLY);
    let [mapped, granted] = [tx.grefs[0], other.grefs[0]];
    for (seed, pages) in [(1, &tx), (2, &other)] {
        page(pages, 0).copy_from(16, &pattern(seed, 1000));
    }
    let bad = GrantRef(0x00ff_ffff);
    let grefs = [granted, mapped, bad, mapped, granted, bad, mapped];
    let requests: Vec<_> = (0..).zip(grefs).map(|(id, gref)| request(gref, id, 1000)).collect();
    let _ = staged.bench.send(&requests);
    let frames = staged.bench.ingress().expect("no fault");
    let expected: Vec<Vec<u8>> = [2, 1, 1, 2, 1].map(|seed| pattern(seed, 1000)).into();
    let bytes: Vec<&[u8]> = frames.iter().map(Frame::bytes).collect();
    assert_eq!(bytes, expected);
    let statuses: Vec<i16> = staged.bench.tx_statuses().iter().map(|(_, status)| *status).collect();
    let (good, lost) = (NETIF_RSP_OKAY, NETIF_RSP_ERROR);
    assert_eq!(statuses, [good, good, lost, good, good, lost, good]);
    assert_eq!(staged.bench.dropped(DropReason::GrantCopy), 2);
}

#[test]
fn a_page_that_is_mapped_to_be_read_is_not_written_there() {
    let mut staged = Staged::new();
    let (writable, read_only) =
        (staged.share(1, Access::ReadWrite), staged.share(1, Access::ReadOnly));
    staged.add(&writable, GREF_READONLY);
    staged.add(&read_only, GREF_READONLY);
    let calls = staged.bench.copy_calls();
    staged.bench.post_grants(&[(0, writable.grefs[0]), (1, read_only.grefs[0])]);
    let frames = (1..=2).map(|seed| staged.bench.frame(&pattern(seed, 60), Offload::NONE));
    let frames = frames.collect();
    assert!(staged.bench.egress(frames).is_empty());
    let statuses: Vec<i16> = staged.bench.rx_responses().iter().map(|it| it.status).collect();
    assert_eq!(statuses, [60, NETIF_RSP_ERROR], "the grants decide");
    assert_eq!(staged.bench.copy_calls(), calls + 1);
    assert_eq!(staged.bench.read_page(read_only.grefs[0], 60), [0; 60]);
}

#[test]
fn a_list_is_mapped_in_full_or_not_at_all() {
    //= netif.h:gref-add
    let mut staged = Staged::within(64);
    let pages = staged.share(20, Access::ReadWrite);
    let read_only = staged.share(1, Access::ReadOnly);
    let good = entries(&pages.grefs, 0);
    for bad in [
        GrefEntry { gref: 0x00ff_ffff, flags: 0, status: 0 },
        GrefEntry { gref: u32::MAX, flags: GREF_READONLY, status: 0 },
        GrefEntry { gref: read_only.grefs[0].0, flags: 0, status: 0 },
        GrefEntry { gref: read_only.grefs[0].0, flags: 2, status: 0 },
        good[3],
    ] {
        for place in [0, 10, 20] {
            let mut list = good.clone();
            list.insert(place, bad);
            assert_eq!(staged.send_list(ADD, 0, &list), (INVALID, 0), "{bad:?} at {place}");
            assert_eq!(staged.mappings(), RINGS);
        }
    }
    let gref = staged.list.grefs[0].0;
    staged.write_list(&good);
    for count in [513, 1 << 16, 1 << 31, u32::MAX] {
        assert_eq!(staged.send(ADD, [0, gref, count]), (INVALID, 0), "{count}");
    }
    for queue in [2, 1 << 16, u32::MAX] {
        assert_eq!(staged.send(ADD, [queue, gref, 20]), (INVALID, 0), "queue {queue}");
    }
    assert_eq!(staged.send(ADD, [0, 0x00ff_ffff, 20]), (INVALID, 0), "there is no such list");
    assert_eq!(staged.send(ADD, [0, gref, 0]), (SUCCESS, 0));
    assert_eq!(staged.mappings(), RINGS);
    staged.bench.machine.loopback.fail_next(GUEST, FaultPoint::Map);
    assert_eq!(staged.send(ADD, [0, gref, 20]), (INVALID, 0));
    assert_eq!(staged.mappings(), RINGS);
    for round in 1..=2 {
        // For each queue by itself.
        assert_eq!(staged.send(ADD, [round - 1, gref, 20]), (SUCCESS, 0));
        assert_eq!(staged.send(ADD, [round - 1, gref, 20]), (INVALID, 0), "they are mapped");
    }
    assert_eq!(staged.mappings(), RINGS + 40);
    let more = staged.share(25, Access::ReadWrite);
    let more = entries(&more.grefs, 0);
    assert_eq!(staged.send_list(ADD, 0, &more), (INVALID, 0), "no room for all guests' pages");
    assert_eq!(staged.send_list(ADD, 0, &more[..24]), (SUCCESS, 0));
}

#[test]
fn a_queue_has_a_number_of_pages_that_it_says() {
    //= netif.h:gref-mapping-size
    let mut staged = Staged::new();
    let max = u32::try_from(STAGED_PAGES_MAX).expect("it is small");
    for queue in [0, 1] {
        assert_eq!(staged.send(GET_SIZE, [queue, 0, 0]), (SUCCESS, max));
    }
    assert_eq!(staged.send(GET_SIZE, [2, 0, 0]), (INVALID, 0));
    let pages = staged.share(STAGED_PAGES_MAX + 1, Access::ReadOnly);
    let (most, one) = pages.grefs.split_at(STAGED_PAGES_MAX);
    for grefs in most.chunks(GREFS_PER_LIST) {
        let list = entries(grefs, GREF_READONLY);
        assert_eq!(staged.send_list(ADD, 0, &list), (SUCCESS, 0));
    }
    assert_eq!(staged.send_list(ADD, 0, &entries(one, GREF_READONLY)), (INVALID, 0));
    assert_eq!(
        staged.send(GET_SIZE, [0, 0, 0]),
        (SUCCESS, max),
        "what may be there, not what may be added"
    );
    assert_eq!(staged.send_list(ADD, 1, &entries(one, GREF_READONLY)), (SUCCESS, 0));
    let counts = staged.guest.staging.as_ref().map(|it| [0, 1].map(|at| it.queues[at].count()));
    assert_eq!(counts, Some([STAGED_PAGES_MAX, 1]));
}

#[test]
fn an_unmapped_page_may_be_used_again_and_is_copied_by_its_grant() {
    //= netif.h:gref-del
    let mut staged = Staged::new();
    let pages = staged.share(20, Access::ReadOnly);
    staged.add(&pages, GREF_READONLY);
    let mut list = entries(&pages.grefs[..10], 0);
    list.insert(3, GrefEntry { gref: 0x00ff_ffff, flags: 0, status: 0 });
    list.push(list[0]);
    assert_eq!(staged.send_list(DEL, 0, &list), (SUCCESS, 10));
    let mut expected = vec![0; 12];
    (expected[3], expected[11]) = (2, 2);
    assert_eq!(staged.statuses(12), expected);
    assert_eq!(staged.mappings(), RINGS + 10);
    assert_eq!(
        staged.send_list(DEL, 1, &entries(&pages.grefs, 0)),
        (SUCCESS, 0),
        "another queue's"
    );

    let calls = staged.bench.copy_calls();
    page(&pages, 0).copy_from(16, &pattern(3, 60));
    let _ = staged.bench.send(&[request(pages.grefs[0], 0, 60)]);
    assert_eq!(staged.bench.ingress().expect("no fault")[0].bytes(), pattern(3, 60));
    assert_eq!(staged.bench.copy_calls(), calls + 1);

    // Nothing is unmapped for a list that cannot have its statuses.
    let rest = entries(&pages.grefs[10..], 0);
    let gref = staged.bench.page(0, rest.as_bytes(), Access::ReadOnly);
    assert_eq!(staged.send(DEL, [0, gref.0, 10]), (INVALID, 0));
    assert_eq!(staged.mappings(), RINGS + 10);
    assert_eq!(staged.send_list(DEL, 0, &rest), (SUCCESS, 10));
    staged.bench.machine.grants().end(pages).expect("no page is mapped any more");
}

#[test]
fn each_call_maps_a_few_pages_and_the_queue_sleeps_when_all_are() {
    let mut staged = Staged::new();
    let pages = staged.share(GREFS_PER_LIST, Access::ReadOnly);
    staged.write_list(&entries(&pages.grefs, GREF_READONLY));
    staged.guest.push(ADD, [0, staged.list.grefs[0].0, 512]);
    let packet = staged.bench.packet(1, &[&pattern(1, 60)]);
    let _ = staged.bench.send(&packet);
    let mut calls = 0;
    while staged.guest.responses().is_empty() {
        let before = staged.mappings();
        assert!(staged.bench.ingress().expect("no fault").is_empty(), "in place of frames");
        assert_eq!(staged.mappings() - before, 8);
        assert_eq!(staged.bench.back.arm().expect("no fault"), Pending::Work);
        calls += 1;
    }
    assert_eq!(calls, 64);
    assert_eq!(staged.bench.ingress().expect("no fault").len(), 1);
    assert_eq!(staged.bench.back.arm().expect("no fault"), Pending::Nothing);
}

#[test]
fn a_backend_that_takes_over_knows_of_no_page_and_serves_the_guest() {
    let mut staged = Staged::new();
    let pages = staged.share(20, Access::ReadOnly);
    staged.add(&pages, GREF_READONLY);
    // It ends in the midst of a list.
    let more = staged.share(20, Access::ReadOnly);
    staged.write_list(&entries(&more.grefs, GREF_READONLY));
    staged.guest.push(ADD, [0, staged.list.grefs[0].0, 20]);
    assert!(staged.bench.ingress().expect("no fault").is_empty());
    assert_eq!(staged.mappings(), RINGS + 28);
    staged.guest.staging = Some(staging(100));
    staged.bench.attach_again().expect("the rings are sound");
    staged.guest.join(&mut staged.bench).expect("the ring is sound");
    assert_eq!(staged.mappings(), RINGS, "nothing of the first one is left");
    // The message without a response is carried out again.
    assert_eq!(staged.response(), (SUCCESS, 0));
    assert_eq!(staged.mappings(), RINGS + 20);

    page(&pages, 0).copy_from(16, &pattern(3, 60));
    let _ = staged.bench.send(&[request(pages.grefs[0], 0, 60)]);
    assert_eq!(staged.bench.ingress().expect("no fault")[0].bytes(), pattern(3, 60));
    assert_eq!(staged.send_list(DEL, 0, &entries(&pages.grefs, 0)), (SUCCESS, 0));
    staged.add(&pages, GREF_READONLY);
    assert_eq!(staged.mappings(), RINGS + 40);
}

#[test]
fn what_is_mapped_is_unmapped_with_its_queues() {
    let mut staged = Staged::new();
    let pages = staged.share(20, Access::ReadOnly);
    staged.add(&pages, GREF_READONLY);
    let Staged { bench, guest, .. } = staged;
    let machine = bench.machine.clone();
    drop((bench, guest));
    assert_eq!(machine.loopback.holdings_of(HOST).mappings, 0);
    machine.grants().end(pages).expect("no page is mapped any more");
}

/// A long packet in pages full of bytes, of which the backend lends the end.
fn lent_packet(staged: &mut Staged, bytes: &[u8]) -> Frame {
    let pages = staged.share(bytes.len() / PAGE_SIZE, Access::ReadOnly);
    pages.pages.copy_from(0, bytes);
    staged.add(&pages, GREF_READONLY);
    let last = pages.grefs.len() - 1;
    let size = |id: usize| if id == 0 { bytes.len() } else { PAGE_SIZE };
    let requests = pages.grefs.iter().enumerate().map(|(id, gref)| TxRequest {
        gref: gref.0,
        offset: 0,
        flags: if id < last { NETTXF_MORE_DATA } else { 0 },
        id: u16::try_from(id).expect("a packet has few slots"),
        size: u16::try_from(size(id)).expect("a packet is at most 64 KiB"),
    });
    let requests: Vec<_> = requests.collect();
    let _ = staged.bench.send(&requests);
    let frame = staged.bench.ingress().expect("no fault").pop().expect("one frame");
    assert!(frame.is_lent());
    frame
}

#[test]
fn frames_that_are_lent_are_completed_from_mapped_pages() {
    for is_joined_last in [false, true] {
        let mut staged = Staged::new();
        staged.bench.back.lend_pages(staged.bench.machine.memory());
        if is_joined_last {
            staged.guest.join(&mut staged.bench).expect("the ring is sound");
        }
        let bytes = pattern(4, 5 * PAGE_SIZE);
        let mut frame = lent_packet(&mut staged, &bytes);
        let calls = staged.bench.copy_calls();
        staged.bench.pool.complete(&mut frame).expect("the pages are there");
        assert_eq!(frame.bytes(), bytes);
        assert_eq!(staged.bench.copy_calls(), calls);
        staged.bench.pool.recycle(frame);
    }
}

#[test]
fn lent_frames_go_from_mapped_pages_to_mapped_pages() {
    let len = 5 * PAGE_SIZE;
    for (are_posted_mapped, calls) in [(true, 0), (false, 2)] {
        let mut sender = Staged::new();
        let mut receiver = Staged::of(sender.bench.beside(), 4096);
        sender.bench.back.lend_pages(sender.bench.machine.memory());
        let bytes = pattern(5, len);
        let frame = lent_packet(&mut sender, &bytes);
        let posted = receiver.share(6, Access::ReadWrite);
        if are_posted_mapped {
            receiver.add(&posted, 0);
        }
        let ids: Vec<_> = (0..).zip(posted.grefs.iter().copied()).collect();
        receiver.bench.post_grants(&ids);
        let guest = receiver.bench.machine.guest_id;
        let calls_to = |bench: &Bench| bench.machine.loopback.passages(guest, FaultPoint::CopyCall);
        let before = calls_to(&receiver.bench);
        let mut leaving = FrameQueue::from([frame]);
        receiver.bench.back.egress(&mut leaving, &mut sender.bench.pool).expect("no fault");
        assert!(leaving.is_empty());
        assert_eq!(calls_to(&receiver.bench) - before, calls);
        let mut received = vec![0; len];
        posted.pages.copy_to(0, &mut received);
        assert_eq!(received, bytes);
        sender.bench.settle().expect("no fault");
        assert_eq!(sender.bench.tx_responses().len(), 5);
        // Nothing of the sender stays with the receiver's queue.
        drop(sender);
        assert_eq!(receiver.mappings(), RINGS + if are_posted_mapped { 6 } else { 0 });
    }
}

#[test]
fn pages_are_received_behind_headroom_as_well() {
    let mut staged = Staged::new();
    let rx = staged.share(2, Access::ReadWrite);
    staged.add(&rx, 0);
    staged.bench.headroom.set(256);
    let calls = staged.bench.copy_calls();
    staged.bench.post_grants(&[(0, rx.grefs[0]), (1, rx.grefs[1])]);
    let frame = staged.bench.frame(&pattern(1, 60), Offload::NONE);
    assert!(staged.bench.egress(vec![frame]).is_empty());
    let responses = staged.bench.rx_responses();
    let RxResponse { offset, status, .. } = responses[0];
    assert_eq!((offset, status), (256, 60));
    assert_eq!(staged.bench.read_page(rx.grefs[0], 316)[256..], pattern(1, 60));
    assert_eq!(staged.bench.copy_calls(), calls);
}
