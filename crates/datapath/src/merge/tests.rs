use std::vec::Vec;

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use crate::checksum::complete;
use crate::headers::parse;
use crate::segment::prepare;
use crate::vnet::offload_from_vnet;
use crate::{FrameBatch, FramePool, FrameQueue, OffloadCaps, PoolBudget, SMALL_LEN};

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

/// The segments that a frame is cut into, without what merging may change.
fn cut(pool: &mut FramePool, frame: Frame) -> Vec<Vec<u8>> {
    let mut out = FrameQueue::new();
    prepare(frame, OffloadCaps::NONE, pool, &mut out).unwrap();
    let segments = out.into_iter().map(|segment| {
        let headers = segment.headers().unwrap();
        assert!(is_complete(segment.bytes(), &headers), "the checksum of a segment");
        without_changes(segment.bytes())
    });
    segments.collect()
}

/// A segment without what merging may change: the IPv4 identification and its checksum, and PSH.
fn without_changes(segment: &[u8]) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    let Some(headers) = parse(segment).filter(|it| it.transport == Some(Transport::Tcp)) else {
        return bytes;
    };
    if headers.version == IpVersion::V4 {
        bytes[headers.l3 + 4..headers.l3 + 6].fill(0);
        bytes[headers.l3 + 10..headers.l3 + 12].fill(0);
    }
    bytes[headers.l4 + TCP_FLAGS_OFFSET] &= !TCP_PSH;
    bytes[headers.l4 + 16..headers.l4 + 18].fill(0);
    bytes
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

/// Bytes of data in most frames of a stream that was on a wire.
const WIRE: usize = 600;

/// Data of a stream as it was on a wire.
fn plain(pool: &mut FramePool, is_v4: bool, place: usize, len: usize, flags: u8) -> Frame {
    let mut frame = data(pool, is_v4, place, len, flags);
    complete(frame.bytes_mut()).unwrap();
    frame.offload = Offload::NONE;
    frame
}

/// Such data of another flow, unless `flow` is 0.
fn of_flow(pool: &mut FramePool, is_v4: bool, flow: u8, place: usize, len: usize) -> Frame {
    let mut frame = plain(pool, is_v4, place, len, 0);
    let port_at = frame.len() - len - 20;
    frame.bytes_mut()[port_at + 1] ^= flow;
    complete(frame.bytes_mut()).unwrap();
    frame
}

/// A frame of these bytes, as it was on a wire.
fn read(pool: &mut FramePool, bytes: &[u8]) -> Frame {
    let mut frame = frame(pool, bytes, None);
    frame.offload = Offload::NONE;
    frame
}

/// The frames that a batch of these becomes.
fn merged(pool: &mut FramePool, frames: Vec<Frame>) -> Vec<Frame> {
    let mut batch: FrameBatch = frames.into_iter().collect();
    merge_batch(&mut batch, 0, pool, |_| true);
    batch.into_iter().collect()
}

/// The data in each frame that four frames of a stream become, of which this is the second.
fn with_second(pool: &mut FramePool, is_v4: bool, second: Frame) -> Vec<usize> {
    let headers = second.headers().unwrap();
    let third_at = WIRE + headers.end - headers.payload;
    let frames = vec![
        plain(pool, is_v4, 0, WIRE, 0),
        second,
        plain(pool, is_v4, third_at, WIRE, 0),
        plain(pool, is_v4, third_at + WIRE, WIRE, 0),
    ];
    data_of(&merged(pool, frames))
}

/// Bytes of data in each frame.
fn data_of(frames: &[Frame]) -> Vec<usize> {
    let headers = frames.iter().map(|frame| frame.headers().unwrap());
    headers.map(|headers| headers.end - headers.payload).collect()
}

#[test]
fn what_was_read_is_merged_up_to_a_short_frame_or_the_end_of_the_stream() {
    let pool = &mut pool();
    for is_v4 in [true, false] {
        for (len, flags, expected) in [
            (WIRE, 0, vec![4 * WIRE]),
            (WIRE, TCP_PSH, vec![4 * WIRE]),
            (WIRE, TCP_FIN, vec![2 * WIRE, 2 * WIRE]),
            (WIRE - 1, 0, vec![2 * WIRE - 1, 2 * WIRE]),
            (WIRE + 1, 0, vec![WIRE, 2 * WIRE + 1, WIRE]),
        ] {
            let second = plain(pool, is_v4, WIRE, len, flags);
            assert_eq!(with_second(pool, is_v4, second), expected, "{len} {flags}");
        }
        let long = (0..60).map(|number| plain(pool, is_v4, number * 1400, 1400, 0)).collect();
        assert_eq!(data_of(&merged(pool, long)), [46 * 1400, 14 * 1400], "64 KiB at most");
        let short = (0..3).map(|number| plain(pool, is_v4, number * 500, 500, 0)).collect();
        assert_eq!(data_of(&merged(pool, short)), [500; 3], "they would count as abuse");
    }
}

#[test]
fn what_was_read_and_differs_from_its_neighbours_stays_apart() {
    let pool = &mut pool();
    let good = plain(pool, true, WIRE, WIRE, 0).bytes().to_vec();
    let apart = [WIRE, WIRE, 2 * WIRE];
    type Change = (&'static str, fn(&mut Vec<u8>));
    let changes: [Change; 6] = [
        ("a gap", |bytes| bytes[41] ^= 1),
        ("another acknowledgement", |bytes| bytes[45] ^= 1),
        ("another type of service", |bytes| bytes[15] ^= 1),
        ("a reset", |bytes| bytes[47] |= 4),
        ("options", |bytes| {
            bytes.splice(54..54, [1; 4]);
            (bytes[17], bytes[46]) = (bytes[17] + 4, 0x60);
        }),
        ("a VLAN tag", |bytes| {
            bytes.splice(12..12, [0x81, 0, 0, 7]);
        }),
    ];
    for (what, change) in changes {
        let mut bytes = good.clone();
        change(&mut bytes);
        complete(&mut bytes).unwrap();
        let headers = parse(&bytes).unwrap();
        complete_ipv4_header(&mut bytes, &headers).unwrap();
        let second = read(pool, &bytes);
        assert_eq!(with_second(pool, true, second), apart, "{what}");
    }
    for (what, at) in [("header", 24), ("checksum", 50), ("data", 400)] {
        let mut second = read(pool, &good);
        second.bytes_mut()[at] ^= 1;
        assert_eq!(with_second(pool, true, second), apart, "a wrong checksum: {what}");
    }
    let mut marked = read(pool, &good);
    marked.offload.checksum = Checksum::Validated;
    assert_eq!(with_second(pool, true, marked), apart, "it has a mark");
}

#[test]
fn flows_are_merged_beside_each_other_where_the_guest_takes_it() {
    let pool = &mut pool();
    for (start, v4, v6, expected) in [
        (0, true, true, vec![3 * WIRE, 3 * WIRE]),
        (0, true, false, vec![3 * WIRE, WIRE, WIRE, WIRE]),
        (0, false, true, vec![WIRE, 3 * WIRE, WIRE, WIRE]),
        (2, true, true, vec![WIRE, WIRE, 2 * WIRE, 2 * WIRE]),
    ] {
        let mut batch = FrameBatch::new();
        for place in [0, WIRE, 2 * WIRE] {
            batch.extend([true, false].map(|is_v4| plain(pool, is_v4, place, WIRE, 0)));
        }
        merge_batch(&mut batch, start, pool, |version| match version {
            IpVersion::V4 => v4,
            IpVersion::V6 => v6,
        });
        assert_eq!(data_of(&batch), expected, "{v4} {v6}");
    }
    let mut frames: Vec<Frame> =
        [0, WIRE].map(|place| of_flow(pool, true, 0, place, WIRE)).into_iter().collect();
    frames.extend((1..9).map(|flow| of_flow(pool, true, flow, 0, WIRE)));
    frames.push(of_flow(pool, true, 0, 2 * WIRE, WIRE));
    let found = data_of(&merged(pool, frames));
    assert_eq!((found[0], found.len()), (2 * WIRE, 10), "so many flows at a time");
}

#[test]
fn without_memory_for_the_whole_its_frames_stay_apart_and_in_order() {
    let pool = &mut FramePool::new(PoolBudget::new(3 * SMALL_LEN));
    let frames: Vec<Frame> =
        [0, WIRE, 2 * WIRE].map(|place| plain(pool, true, place, WIRE, 0)).into_iter().collect();
    let bytes = |frames: &[Frame]| -> Vec<Vec<u8>> {
        frames.iter().map(|frame| frame.bytes().to_vec()).collect()
    };
    let before = bytes(&frames);
    assert_eq!(bytes(&merged(pool, frames)), before);
}

/// Frames without what merging may change, those of a flow in order.
fn in_flows(frames: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = frames.map(|bytes| without_changes(&bytes)).collect();
    frames.sort_by_key(|bytes| {
        parse(bytes).map(|headers| (headers.addresses(bytes).to_vec(), headers.ports(bytes)))
    });
    frames
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

    /// Whatever was read, the whole is cut into the very frames, and a wrong one stays as it is.
    #[test]
    fn what_was_read_is_cut_again_into_the_very_frames(
        is_v4: bool,
        kinds in prop::collection::vec((0u8..2, 0usize..5), 2..24),
        altered in 0usize..24,
        at in 0usize..90,
        bits: u8,
    ) {
        let pool = &mut pool();
        let mut places = [0; 2];
        let mut frames = Vec::new();
        for (flow, kind) in kinds {
            let len = [WIRE, WIRE, WIRE, WIRE + 100, 40][kind];
            let place = &mut places[usize::from(flow)];
            frames.push(of_flow(pool, is_v4, flow, *place, len));
            *place += len;
        }
        let altered = altered.min(frames.len() - 1);
        frames[altered].bytes_mut()[at] ^= bits;
        let first_summed = if is_v4 { 14 } else { 54 };
        let wrong = (bits != 0 && at >= first_summed).then(|| frames[altered].bytes().to_vec());
        let before = in_flows(frames.iter().map(|frame| frame.bytes().to_vec()));
        let after = merged(pool, frames);
        if let Some(wrong) = wrong {
            prop_assert!(after.iter().any(|frame| frame.bytes() == wrong));
        }
        let after = after.into_iter().flat_map(|frame| match frame.offload.gso {
            Some(_) => cut(pool, frame),
            None => [frame.bytes().to_vec()].into(),
        });
        prop_assert_eq!(in_flows(after), before);
    }
}
