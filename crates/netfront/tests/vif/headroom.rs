//! Frames behind headroom, as Linux' backend places them and as ours does.

use ringway_datapath::{DropReason, Frame};
use ringway_wire::netif::{ExtraInfo, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RxResponse};

use crate::backend::Bench;
use crate::frames::pattern;

const MORE: u16 = NETRXF_MORE_DATA;
const EXTRA: u16 = NETRXF_EXTRA_INFO;
const PAGE_SIZE: usize = 4096;

/// Which backend places the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// It leaves bytes free in each page, and counts them.
    Linux,
    /// It leaves them free in the first page, whose offset says so.
    Ours,
}

/// Responds with a frame behind headroom, from the next slot on. Returns the slots that it took.
fn respond(bench: &mut Bench, slot: usize, bytes: &[u8], headroom: u16, backend: Backend) -> usize {
    let free = usize::from(headroom);
    let (mut at, mut page) = (0, 0);
    while at < bytes.len() {
        let skipped = if page == 0 || backend == Backend::Linux { free } else { 0 };
        let len = (bytes.len() - at).min(PAGE_SIZE - skipped);
        let place = if page == 0 { slot } else { slot + 1 + page };
        bench.fill(place, skipped, &bytes[at..at + len]);
        at += len;
        let more = if at < bytes.len() { MORE } else { 0 };
        let (offset, counted) = match backend {
            Backend::Linux => (0, skipped + len),
            Backend::Ours => (skipped, len),
        };
        let _ = bench.respond(RxResponse {
            id: u16::try_from(place % 256).expect("a ring is small"),
            offset: u16::try_from(offset).expect("it is in a page"),
            flags: more | if page == 0 { EXTRA } else { 0 },
            status: i16::try_from(counted).expect("it is in a page"),
        });
        if page == 0 {
            let _ = bench.respond(ExtraInfo::for_xdp(headroom));
        }
        page += 1;
    }
    page + 1
}

/// Takes in the only frame, all of which is in its buffer then.
fn receive(bench: &mut Bench) -> Frame {
    let mut frames = bench.ingress().expect("the backend is honest");
    assert_eq!(frames.len(), 1);
    let mut frame = frames.remove(0);
    bench.pool.complete(&mut frame).expect("its pages are the guest's own");
    frame
}

#[test]
fn frames_of_both_backends_are_whole_whether_or_not_they_stay_in_their_pages() {
    for (backend, is_in_place) in
        [Backend::Linux, Backend::Ours].into_iter().flat_map(|it| [(it, false), (it, true)])
    {
        let mut bench = Bench::new();
        if is_in_place {
            bench.front.receive_in_place().expect("the test has descriptors");
        }
        let mut slot = 0;
        for headroom in [1, 256, 2048] {
            for len in [14, 60, 1500, 4096 - 256, 4096 - 255, 5000, 20_000] {
                let bytes = pattern(len, len);
                //= netif.h:xdp-extra
                slot += respond(&mut bench, slot, &bytes, headroom, backend);
                let frame = receive(&mut bench);
                let case = format!("{backend:?}, {len} bytes behind {headroom}");
                assert!(frame.bytes() == bytes, "{case}");
                bench.pool.recycle(frame);
            }
        }
        assert_eq!(bench.counters.totals().extras_skipped, 0);
    }
}

#[test]
fn a_slot_that_is_shorter_than_the_headroom_that_it_counts_is_no_frame() {
    let mut bench = Bench::new();
    for (slot, (status, headroom)) in
        [(60, 61), (60, u16::MAX), (100, 86), (100, 87)].into_iter().enumerate()
    {
        let id = u16::try_from(2 * slot).expect("few");
        let _ = bench.respond(RxResponse { id, offset: 0, flags: EXTRA, status });
        let _ = bench.respond(ExtraInfo::for_xdp(headroom));
    }
    let frames = bench.ingress().expect("no fault");
    assert_eq!(frames.len(), 1, "one is as long as a header of Ethernet");
    assert_eq!(frames[0].len(), 14);
    assert_eq!(bench.dropped(DropReason::Malformed), 3);
    // Of a packet in two slots, the second holds fewer bytes than are counted.
    let _ = bench.respond(RxResponse { id: 8, offset: 0, flags: EXTRA | MORE, status: 4096 });
    let _ = bench.respond(ExtraInfo::for_xdp(256));
    let _ = bench.respond(RxResponse { id: 10, offset: 0, flags: 0, status: 255 });
    assert!(bench.ingress().expect("no fault").is_empty());
    assert_eq!(bench.dropped(DropReason::Malformed), 4);
}
