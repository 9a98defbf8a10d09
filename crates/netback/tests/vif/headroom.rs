//! What a guest with headroom receives.

use ringway_datapath::{DropReason, Frame, Offload, OffloadCaps, Pending, PortQueue};
use ringway_wire::netif::{
    ExtraInfo, HEADROOM_MAX, NETIF_RSP_ERROR, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

use crate::frames::pattern;
use crate::guest::Bench;

const MORE: u16 = NETRXF_MORE_DATA;
const EXTRA: u16 = NETRXF_EXTRA_INFO;

fn with_headroom(headroom: u16) -> Bench {
    let bench = Bench::new();
    bench.headroom.set(headroom);
    bench
}

fn frame(bench: &mut Bench, bytes: &[u8]) -> Frame {
    bench.frame(bytes, Offload::NONE)
}

fn extra(response: RxResponse) -> ExtraInfo {
    ExtraInfo::read_from_bytes(response.as_bytes()).expect("both have 8 bytes")
}

/// Reads one frame as Linux' frontend does: its first page from where the extra says, whatever the
/// response's offset, and the others from where their responses say.
fn read_as_linux(bench: &mut Bench, pages: &[GrantRef]) -> Vec<u8> {
    let responses = bench.rx_responses();
    assert_eq!(responses.len(), pages.len(), "as many as were posted");
    let extra = extra(responses[1]);
    assert_eq!((extra.kind, extra.flags), (5, 0));
    let mut bytes = Vec::new();
    for (slot, (response, gref)) in responses.iter().zip(pages).enumerate() {
        if slot == 1 {
            continue;
        }
        let start = if slot == 0 { extra.headroom() } else { response.offset };
        let start = usize::from(start);
        let end = start + usize::try_from(response.status).expect("no errors");
        assert!(end <= PAGE_SIZE, "it drops such a frame");
        bytes.extend(&bench.read_page(*gref, PAGE_SIZE)[start..end]);
        let is_last = slot + 1 == responses.len() || responses.len() == 2;
        assert_eq!(response.flags & MORE != 0, !is_last, "slot {slot}");
    }
    bytes
}

#[test]
fn a_frame_is_behind_its_headroom_and_an_extra_says_how_much_that_is() {
    let mut bench = with_headroom(256);
    let grefs = bench.post(7, 2);
    let data = pattern(1, 60);
    let frame = frame(&mut bench, &data);
    assert!(bench.egress(vec![frame]).is_empty());
    let responses = bench.rx_responses();
    //= netif.h:xdp-extra
    assert_eq!(responses[0], RxResponse { id: 7, offset: 256, flags: EXTRA, status: 60 });
    let expected = ExtraInfo { kind: 5, flags: 0, payload: [0, 1, 0, 0, 0, 0] };
    assert_eq!(extra(responses[1]), expected);
    let page = bench.read_page(grefs[0], PAGE_SIZE);
    assert_eq!(page[256..316], data);
    assert!(page[..256].iter().chain(&page[316..]).all(|byte| *byte == 0), "nothing else is there");
    let totals = bench.counters.totals();
    assert_eq!((totals.rx_packets, totals.rx_bytes), (1, 60));
}

#[test]
fn frames_of_any_length_are_whole_for_a_stock_frontend() {
    for headroom in [1, 255, 256, 2047, HEADROOM_MAX] {
        let first = PAGE_SIZE - usize::from(headroom);
        for len in [14, 60, first - 1, first, first + 1, 4096, first + 4096, first + 4097, 65_549] {
            let mut bench = with_headroom(headroom);
            let data = pattern(len, len);
            let pages = (len + usize::from(headroom)).div_ceil(PAGE_SIZE);
            let slots = u16::try_from(pages + 1).expect("few");
            let posted = bench.post(0, slots);
            let frame = frame(&mut bench, &data);
            assert!(bench.egress(vec![frame]).is_empty(), "{len} bytes behind {headroom}");
            assert!(read_as_linux(&mut bench, &posted) == data, "{len} bytes behind {headroom}");
        }
    }
}

#[test]
fn several_frames_of_a_batch_use_pages_in_order() {
    let mut bench = with_headroom(256);
    let posted = bench.post(0, 9);
    let data = [60, 5000, 61].map(|len| pattern(len, len));
    let frames = data.iter().map(|bytes| frame(&mut bench, bytes)).collect();
    assert!(bench.egress(frames).is_empty());
    let responses = bench.rx_responses();
    let found: Vec<_> = responses.iter().map(|it| (it.offset, it.flags, it.status)).collect();
    assert_eq!(found[0], (256, EXTRA, 60));
    assert_eq!(found[2], (256, EXTRA | MORE, 3840));
    assert_eq!(found[4], (0, 0, 1160));
    assert_eq!(found[5], (256, EXTRA, 61));
    assert_eq!(responses.len(), 7, "two pages are left");
    assert_eq!(bench.read_page(posted[5], 317)[256..], data[2]);
    assert_eq!(bench.read_page(posted[4], 1160), &data[1][3840..]);
    assert_eq!(bench.counters.totals().rx_packets, 3);
}

#[test]
fn a_frame_waits_until_pages_for_all_its_slots_are_posted() {
    // It fills one page and, because of the headroom, a byte of the next; the extra is the third.
    let mut bench = with_headroom(256);
    let len = PAGE_SIZE - 256 + 1;
    let data = pattern(1, len);
    let mut posted = bench.post(0, 2);
    let frame = frame(&mut bench, &data);
    let mut waiting = bench.egress(vec![frame]);
    assert_eq!((waiting.len(), bench.rx_responses().len()), (1, 0));
    assert_eq!(bench.back.room_for(len), Some(0));
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
    posted.extend(bench.post(2, 1));
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
    bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
    assert!(waiting.is_empty());
    assert!(read_as_linux(&mut bench, &posted) == data);
}

#[test]
fn room_is_counted_with_headroom() {
    let mut bench = Bench::new();
    bench.post(0, 12);
    assert_eq!(bench.back.room_for(60), Some(6));
    bench.headroom.set(256);
    assert_eq!(bench.back.room_for(60), Some(3));
}

/// A guest may ask at any time, and takes each frame by what that says.
#[test]
fn headroom_changes_between_batches_and_each_frame_says_what_it_has() {
    let mut bench = Bench::new();
    for (round, headroom) in [0, 256, 64, 0, u16::MAX, 0].into_iter().enumerate() {
        bench.headroom.set(headroom);
        let headroom = headroom.min(HEADROOM_MAX);
        assert_eq!(bench.headroom.get(), headroom, "half a page at most");
        let (data, first_id) = (pattern(round, 100), u16::try_from(3 * round).expect("few"));
        let posted = bench.post(first_id, if headroom > 0 { 2 } else { 1 });
        let frame = frame(&mut bench, &data);
        assert!(bench.egress(vec![frame]).is_empty());
        let responses = bench.rx_responses();
        let flags = if headroom > 0 { EXTRA } else { 0 };
        let first = RxResponse { id: first_id, offset: headroom, flags, status: 100 };
        assert_eq!(responses[0], first);
        let rest: Vec<_> = responses[1..].iter().map(|response| extra(*response)).collect();
        let expected = (headroom > 0).then(|| ExtraInfo::for_xdp(headroom));
        assert_eq!(rest, Vec::from_iter(expected));
        let start = usize::from(headroom);
        assert_eq!(bench.read_page(posted[0], start + 100)[start..], data);
    }
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_of_its_frame_alone() {
    let mut bench = with_headroom(256);
    let good = bench.post(0, 2);
    bench.post_grants(&[(2, GrantRef(1 << 20))]);
    let rest = bench.post(3, 3);
    let frames = (0..3).map(|seed| frame(&mut bench, &pattern(seed, 60))).collect();
    assert!(bench.egress(frames).is_empty());
    let statuses: Vec<i16> = bench.rx_responses().iter().map(|it| it.status).collect();
    assert_eq!([statuses[0], statuses[2], statuses[4]], [60, NETIF_RSP_ERROR, 60]);
    assert_eq!(bench.dropped(DropReason::GrantCopy), 1);
    for (gref, seed) in [(good[0], 0), (rest[1], 2)] {
        assert_eq!(bench.read_page(gref, 316)[256..], pattern(seed, 60));
    }
}

#[test]
fn a_guest_without_scatter_gather_gets_what_fits_into_one_page_with_its_headroom() {
    let mut bench = Bench::starting_at(0, OffloadCaps::NONE);
    bench.headroom.set(256);
    let posted = bench.post(0, 4);
    let lens = [PAGE_SIZE - 256 + 1, PAGE_SIZE - 256];
    let frames = lens.map(|len| frame(&mut bench, &pattern(len, len)));
    assert!(bench.egress(frames.into()).is_empty());
    assert_eq!(bench.dropped(DropReason::TooLong), 1);
    let responses = bench.rx_responses();
    assert_eq!((responses.len(), responses[0].status), (2, 3840));
    assert_eq!(bench.read_page(posted[0], PAGE_SIZE)[256..], pattern(3840, 3840));
}
