use std::vec::Vec;

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use crate::segment::prepare;
use crate::vnet::offload_from_vnet;
use crate::{FramePool, FrameQueue, Offload, OffloadCaps, PoolBudget};

const LONGEST: usize = 256 << 10;
const SIZE: u16 = 100;
const FIRST: u32 = 0xffff_ff00;

fn pool() -> FramePool {
    FramePool::new(PoolBudget::new(64 << 20))
}

/// Data of a stream at this place, as its sender's kernel leaves it to be cut.
fn data(pool: &mut FramePool, is_v4: bool, place: usize, len: usize, flags: u8) -> Frame {
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = match is_v4 {
        true => ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
        false => ethernet.ipv6([1; 16], [2; 16], 64),
    };
    let sequence = FIRST.wrapping_add(u32::try_from(place).unwrap());
    let tcp = ip.tcp(5001, 5002, sequence, 4000).ack(77);
    let payload: Vec<u8> = (0u8..251).cycle().skip(place % 251).take(len).collect();
    let mut bytes = Vec::new();
    tcp.write(&mut bytes, &payload).unwrap();
    let l4 = bytes.len() - len - 20;
    bytes[l4 + TCP_FLAGS_OFFSET] |= flags;
    frame(pool, &bytes, (len > usize::from(SIZE)).then_some(is_v4))
}

/// A frame of these bytes, to be cut into segments if the version of IP is given.
fn frame(pool: &mut FramePool, bytes: &[u8], cut_as_v4: Option<bool>) -> Frame {
    let mut frame = pool.take(bytes.len()).unwrap();
    frame.bytes_mut().copy_from_slice(bytes);
    let kind = |is_v4| if is_v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let gso = cut_as_v4.map(|is_v4| Gso { kind: kind(is_v4), size: SIZE });
    frame.offload = Offload { checksum: Checksum::Blank, gso };
    frame
}

/// The segments that a frame is cut into, without what merging may change: the IPv4 identification
/// and its checksum, and PSH.
fn cut(pool: &mut FramePool, frame: Frame) -> Vec<Vec<u8>> {
    let mut out = FrameQueue::new();
    prepare(frame, OffloadCaps::NONE, pool, &mut out).unwrap();
    let segments = out.into_iter().map(|segment| {
        let headers = segment.headers().unwrap();
        let mut bytes = segment.bytes().to_vec();
        assert!(is_complete(&bytes, &headers), "the checksum of a segment");
        if headers.version == IpVersion::V4 {
            bytes[headers.l3 + 4..headers.l3 + 6].fill(0);
            bytes[headers.l3 + 10..headers.l3 + 12].fill(0);
        }
        bytes[headers.l4 + TCP_FLAGS_OFFSET] &= !TCP_PSH;
        bytes[headers.l4 + 16..headers.l4 + 18].fill(0);
        bytes
    });
    segments.collect()
}

fn is_complete(bytes: &[u8], headers: &Headers) -> bool {
    let mut again = bytes.to_vec();
    crate::checksum::complete_parsed(&mut again, headers).unwrap();
    again == bytes
}

/// What the frames of a run are together.
fn whole(pool: &mut FramePool, run: Run, frames: &[Frame]) -> Frame {
    let (header, head) = run.finish();
    let mut bytes = head.to_vec();
    frames.iter().for_each(|frame| bytes.extend_from_slice(&frame.bytes()[head.len()..]));
    let mut frame = frame(pool, &bytes, None);
    frame.offload = offload_from_vnet(&header, frame.bytes_mut()).expect("a header of our own");
    frame
}

fn places(frames: &[Frame]) -> (Run, Vec<Place>) {
    let mut run = Run::begin(&frames[0], LONGEST).expect("a frame to be cut");
    let places = frames[1..].iter().map(|frame| run.place(frame)).collect();
    (run, places)
}

#[test]
fn data_that_continues_is_one_frame_until_a_short_segment_or_the_end_of_the_stream() {
    let pool = &mut pool();
    for is_v4 in [true, false] {
        for (len, flags) in [(300, TCP_FIN), (150, 0), (60, TCP_PSH), (60, 0)] {
            let frames = [
                data(pool, is_v4, 0, 400, 0),
                data(pool, is_v4, 400, 200, TCP_PSH),
                data(pool, is_v4, 600, len, flags),
                data(pool, is_v4, 600 + len, 100, 0),
            ];
            let (run, found) = places(&frames);
            assert_eq!(found, [Place::Next, Place::Next, Place::Behind], "{len} {flags}");
            assert!(run.is_closed());
            let whole = whole(pool, run, &frames[..3]);
            let flags_at = whole.headers().unwrap().l4 + TCP_FLAGS_OFFSET;
            assert_eq!(whole.bytes()[flags_at], TCP_ACK | TCP_PSH | flags);
            let apart: Vec<_> =
                frames.into_iter().take(3).flat_map(|frame| cut(pool, frame)).collect();
            assert_eq!(cut(pool, whole), apart);
        }
    }
}

#[test]
fn frames_of_other_flows_may_leave_later_and_those_of_the_flow_may_not() {
    let pool = &mut pool();
    let change = |pool: &mut FramePool, at: usize, bits: u8| {
        let mut frame = data(pool, true, 400, 200, 0);
        frame.bytes_mut()[at] ^= bits;
        frame
    };
    let elsewhere = [
        ("another source", 26, 1),
        ("another destination", 33, 1),
        ("another port", 34, 1),
        ("another port", 37, 1),
        ("another protocol", 23, 6 ^ 17),
        ("not IP", 12, 0xff),
    ];
    let behind = [
        ("another receiver on the link", 0, 1),
        ("another type of service", 15, 1),
        ("may be fragmented", 20, IPV4_DF),
        ("a fragment", 21, 8),
        ("another time to live", 22, 1),
        ("another place in the stream", 41, 1),
        ("another acknowledgement", 45, 1),
        ("a reset", 47, 4),
        ("a synchronisation", 47, 2),
        ("urgent data", 47, 0x20),
        ("a reduced congestion window", 47, 0x80),
        ("congestion was met", 47, TCP_ECE),
        ("another window", 49, 1),
        ("another urgent pointer", 53, 1),
    ];
    for (expected, cases) in [(Place::Elsewhere, &elsewhere[..]), (Place::Behind, &behind[..])] {
        for &(what, at, bits) in cases {
            let frames = [data(pool, true, 0, 400, 0), change(pool, at, bits)];
            assert_eq!(places(&frames).1, [expected], "{what}");
        }
    }
}

#[test]
fn a_frame_that_nothing_could_follow_begins_no_run() {
    let pool = &mut pool();
    let begins = |frame: &Frame| Run::begin(frame, LONGEST).is_some();
    assert!(begins(&data(pool, true, 0, 400, TCP_PSH)));
    assert!(!begins(&data(pool, true, 0, 450, 0)), "a short last segment");
    assert!(!begins(&data(pool, true, 0, 400, TCP_FIN)), "the end of the stream");
    assert!(!begins(&data(pool, true, 0, 100, 0)), "nothing is left to be cut");
    let long = data(pool, true, 0, 400, 0);
    assert!(Run::begin(&long, long.len()).is_none(), "as long as the whole may be");
    let padded = [long.bytes(), &[0; 4]].concat();
    assert!(!begins(&frame(pool, &padded, Some(true))), "padding");
}

#[test]
fn a_packet_of_ipv4_may_exceed_its_length_field_and_one_of_ipv6_may_not() {
    let pool = &mut pool();
    for is_v4 in [true, false] {
        let frames: Vec<_> =
            (0..5).map(|index| data(pool, is_v4, index * 60_000, 60_000, 0)).collect();
        let (run, found) = places(&frames);
        if !is_v4 {
            assert_eq!(found, [Place::Behind; 4]);
            continue;
        }
        // The fifth would make it longer than 256 KiB.
        assert_eq!(found, [Place::Next, Place::Next, Place::Next, Place::Behind]);
        let (header, head) = run.finish();
        assert_eq!((header.gso_size, header.csum_start, head.len()), (SIZE, 34, 54));
        assert_eq!(head[16..18], [0, 0], "Linux takes the buffer's length");
        // The pseudo-header has the whole length, in two halves.
        let sum = crate::checksum::Sum::of(&[10, 0, 0, 1, 10, 0, 0, 2])
            .and_u16(6)
            .and_u16(u16::try_from((240_020 >> 16) & 0xffff).unwrap())
            .and_u16(u16::try_from(240_020 & 0xffff).unwrap());
        assert_eq!(head[50..52], sum.fold());
    }
}

proptest! {
    /// Whatever differs between frames, the whole is cut into the segments of its frames.
    #[test]
    fn the_whole_is_cut_into_the_segments_of_its_frames(
        is_v4: bool,
        lens in prop::collection::vec(1usize..700, 2..6),
        whole_segments: bool,
        changed in 1usize..6,
        at in 0usize..80,
        bits: u8,
    ) {
        let pool = &mut pool();
        let mut place = 0;
        let mut frames = Vec::new();
        for (index, mut len) in lens.into_iter().enumerate() {
            if whole_segments || index == 0 {
                len = len.next_multiple_of(SIZE.into()).max(200);
            }
            frames.push(data(pool, is_v4, place, len, 0));
            place += len;
        }
        let last = changed.min(frames.len() - 1);
        if let Some(byte) = frames[last].bytes_mut().get_mut(at) {
            *byte ^= bits;
        }
        let mut run = Run::begin(&frames[0], LONGEST).expect("a frame to be cut");
        let joined = frames[1..].iter().take_while(|frame| run.place(frame) == Place::Next).count();
        let members = &frames[..=joined];
        let merged = whole(pool, run, members);
        let apart: Vec<_> =
            frames.into_iter().take(joined + 1).flat_map(|frame| cut(pool, frame)).collect();
        prop_assert_eq!(cut(pool, merged), apart);
    }
}
