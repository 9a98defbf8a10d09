//! Offloaded work: every later station does what a virtio-net header requests, and a frame that is
//! cut into segments keeps its data.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_datapath::headers::{Transport, parse};
use ringway_datapath::segment::{SEGMENTS_MAX, prepare};
use ringway_datapath::vnet::{offload_from_vnet, vnet_from_offload};
use ringway_datapath::{Checksum, Frame, FramePool, FrameQueue, Offload, OffloadCaps, PoolBudget};
use ringway_fuzz::{Input, frames};
use ringway_wire::vnet::{VIRTIO_NET_HDR_GSO_UDP_L4, VirtioNetHdr};

/// Memory for the longest frame and all its segments.
const BUDGET: usize = 16 << 20;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let caps = caps(&mut input);
    let mut header = VirtioNetHdr {
        flags: input.u8() % 4,
        gso_type: input.choose(&[0, 1, 3, 4, 5, 0x81, 0x84, 0x85]),
        hdr_len: input.u16(),
        gso_size: input.u16(),
        csum_start: input.u16(),
        csum_offset: input.u16(),
        ..VirtioNetHdr::default()
    };
    let bytes = if input.flag() {
        let is_tcp = header.gso_type & 0x7f != VIRTIO_NET_HDR_GSO_UDP_L4;
        let (bytes, at, _) = if is_tcp { frames::tcp(&mut input) } else { frames::udp(&mut input) };
        if input.flag() {
            header.csum_start = at as u16;
            header.csum_offset = if is_tcp { 16 } else { 6 };
        }
        bytes
    } else {
        input.rest().to_vec()
    };
    let bytes = &bytes[..bytes.len().min(frames::FRAME_LEN_MAX)];

    let budget = PoolBudget::new(BUDGET);
    let mut pool = FramePool::new(budget.clone());
    if let Some(mut frame) = frames::in_pool(bytes, &mut pool) {
        match offload_from_vnet(&header, frame.bytes_mut()) {
            Ok(offload) => {
                frame.offload = offload;
                check_promise(&frame);
                check_prepared(frame, caps, &mut pool);
            }
            Err(_) => pool.recycle(frame),
        }
    }
    drop(pool);
    assert_eq!(budget.bytes_left(), BUDGET, "a buffer was lost");
});

fn caps(input: &mut Input<'_>) -> OffloadCaps {
    let bits = input.u8();
    OffloadCaps {
        scatter_gather: bits & 1 != 0,
        checksum_v4: bits & 2 != 0,
        checksum_v6: bits & 4 != 0,
        gso_v4: bits & 8 != 0,
        gso_v6: bits & 16 != 0,
        uso_v4: bits & 32 != 0,
        uso_v6: bits & 64 != 0,
    }
}

/// The next TAP device would accept this frame.
fn check_promise(frame: &Frame) {
    let mut bytes = frame.bytes().to_vec();
    let header = vnet_from_offload(&frame.offload, &mut bytes).expect("it was promised");
    let again = offload_from_vnet(&header, &mut bytes).expect("we wrote the header");
    assert_eq!(again, frame.offload);
}

fn check_prepared(frame: Frame, caps: OffloadCaps, pool: &mut FramePool) {
    let (bytes, offload) = (frame.bytes().to_vec(), frame.offload);
    let mut out = FrameQueue::new();
    match prepare(frame, caps, pool, &mut out) {
        Ok(()) if out.len() == 1 && out[0].offload.gso == offload.gso => {
            check_whole(&out[0], &bytes, offload);
        }
        Ok(()) => check_segments(&out, &bytes, offload),
        Err(_) => assert!(out.is_empty(), "a frame that was dropped left something"),
    }
    out.drain(..).for_each(|frame| pool.recycle(frame));
}

/// Checks a frame that passed unchanged, or with its checksum completed.
fn check_whole(frame: &Frame, before: &[u8], offload: Offload) {
    assert_eq!(frame.len(), before.len());
    if offload.checksum == Checksum::Blank && frame.offload.checksum == Checksum::Validated {
        check_checksum(frame.bytes());
    }
}

/// Checks that segments carry the data in order, each at its position in the stream, none longer
/// than requested.
fn check_segments(segments: &FrameQueue, before: &[u8], offload: Offload) {
    let gso = offload.gso.expect("only such frames are cut");
    let whole = parse(before).expect("it was promised");
    let sequence = |frame: &[u8], l4: usize| {
        u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().expect("four bytes"))
    };
    assert!(segments.len() <= SEGMENTS_MAX);
    let mut data = Vec::new();
    for segment in segments {
        let headers = parse(segment.bytes()).expect("a segment has headers");
        assert_eq!((headers.l4, headers.payload), (whole.l4, whole.payload));
        assert_eq!(headers.end, segment.len());
        match gso.kind.transport() {
            Transport::Tcp => {
                let [own, first] =
                    [sequence(segment.bytes(), headers.l4), sequence(before, whole.l4)];
                let offset = usize::try_from(own.wrapping_sub(first));
                assert_eq!(offset, Ok(data.len()), "a segment is in the wrong place");
            }
            Transport::Udp => {
                let len = &segment.bytes()[headers.l4 + 4..headers.l4 + 6];
                let own = usize::from(u16::from_be_bytes([len[0], len[1]]));
                assert_eq!(own, segment.len() - headers.l4, "a datagram is of another length");
            }
        }
        assert!(headers.end - headers.payload <= usize::from(gso.size));
        data.extend_from_slice(&segment.bytes()[headers.payload..headers.end]);
        assert_eq!(segment.offload.gso, None);
        if segment.offload.checksum == Checksum::Validated {
            check_checksum(segment.bytes());
        }
    }
    assert!(data == before[whole.payload..whole.end], "the segments are other data");
}

fn check_checksum(frame: &[u8]) {
    let headers = parse(frame).expect("it has a checksum");
    let transport = headers.transport.expect("it has a checksum");
    let segment = &frame[headers.l4..headers.end];
    let sum = frames::transport_sum(headers.addresses(frame), transport.protocol(), segment);
    assert_eq!(sum, 0xffff, "{headers:?}");
}
