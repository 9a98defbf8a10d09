//! Frames that are written as one: what is cut from the whole is what would be cut from the frames,
//! and nothing of a flow overtakes what came before it. Frames that are read as one: what is cut
//! from the whole is the very frames.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_datapath::checksum::{complete, complete_ipv4_header};
use ringway_datapath::headers::{Transport, parse};
use ringway_datapath::merge::{Place, Run, merge_batch};
use ringway_datapath::segment::prepare;
use ringway_datapath::vnet::offload_from_vnet;
use ringway_datapath::{
    Checksum, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, Offload, OffloadCaps,
    PoolBudget,
};
use ringway_fuzz::{Input, frames};

const BUDGET: usize = 16 << 20;
/// Short enough that a run and its segments fit into the budget.
const PAYLOAD_MAX: usize = 4000;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut pool = FramePool::new(PoolBudget::new(BUDGET));
    let (mut first, l4, payload_at) = frames::tcp(&mut input);
    first.truncate(payload_at + PAYLOAD_MAX);
    let kind = if first[12] == 0x08 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let gso = Gso { kind, size: 1 + input.u16() % 1500 };
    // Data, most often: other flags would end most runs.
    first[l4 + 13] = if input.flag() { 0x10 } else { input.u8() };
    let payload = first.split_off(payload_at);
    let mut made = Vec::new();
    let mut place = 0;
    for _ in 0..1 + input.below(5) {
        let whole = payload.len() / usize::from(gso.size) * usize::from(gso.size);
        let len = if input.flag() { whole } else { input.below(payload.len() + 1) };
        let mut bytes = first.clone();
        bytes.extend_from_slice(&payload[..len]);
        set_place(&mut bytes, l4, place);
        if input.flag() {
            let at = input.below(payload_at);
            bytes[at] ^= input.u8();
        }
        place += len;
        let Some(mut frame) = frames::in_pool(&bytes, &mut pool) else { return };
        let gso = (len > usize::from(gso.size) || input.flag()).then_some(gso);
        frame.offload = Offload { checksum: Checksum::Blank, gso };
        made.push(frame);
    }
    match input.flag() {
        true => check_read(made, &mut input, &mut pool),
        false => check(made, &mut pool),
    }
});

/// Checks what becomes one frame of what was read.
fn check_read(made: Vec<Frame>, input: &mut Input<'_>, pool: &mut FramePool) {
    let mut batch = FrameBatch::new();
    for mut frame in made {
        frame.offload = Offload::NONE;
        if let Some(headers) = parse(frame.bytes()).filter(|_| !input.flag()) {
            let _ = complete_ipv4_header(frame.bytes_mut(), &headers);
            // Fails without a TCP header.
            let _ = complete(frame.bytes_mut());
        }
        batch.push(frame);
    }
    let before = in_flows(batch.iter().map(|frame| without_changes(frame.bytes())));
    merge_batch(&mut batch, 0, pool, |_| true);
    let mut after = Vec::new();
    for frame in batch {
        if frame.offload.gso.is_none() {
            after.push(without_changes(frame.bytes()));
            continue;
        }
        let Some(segments) = cut(frame, pool) else { return };
        after.extend(segments);
    }
    assert_eq!(in_flows(after.into_iter()), before, "other frames");
}

/// Frames, those of each flow in order.
fn in_flows(frames: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = frames.collect();
    frames.sort_by_key(|bytes| {
        parse(bytes).map(|headers| (headers.addresses(bytes).to_vec(), headers.ports(bytes)))
    });
    frames
}

/// Writes the sequence number and the length.
fn set_place(bytes: &mut [u8], l4: usize, place: usize) {
    let field: [u8; 4] = bytes[l4 + 4..l4 + 8].try_into().expect("four bytes");
    let sequence = u32::from_be_bytes(field).wrapping_add(place as u32);
    bytes[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
    let (at, from) = if bytes[12] == 0x08 { (16, 14) } else { (18, 54) };
    let len = (bytes.len() - from) as u16;
    bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
}

fn check(made: Vec<Frame>, pool: &mut FramePool) {
    let mut frames = made.into_iter();
    let Some(first) = frames.next() else { return };
    let Some(mut run) = Run::begin(&first, 256 << 10) else { return };
    let own = parse(first.bytes()).expect("a run has headers");
    let mut members = vec![first];
    for next in frames {
        match run.place(&next) {
            Place::Next => members.push(next),
            Place::Behind => break,
            Place::Elsewhere => {
                let its = parse(next.bytes());
                let is_of_flow = its.is_some_and(|its| {
                    its.addresses(next.bytes()) == own.addresses(members[0].bytes())
                        && its.ports(next.bytes()) == own.ports(members[0].bytes())
                        && its.protocol == own.protocol
                });
                assert!(!is_of_flow, "a frame of the flow would be overtaken");
            }
        }
    }
    let (header, head) = run.finish();
    let mut whole = head.to_vec();
    for member in &members {
        whole.extend_from_slice(&member.bytes()[head.len()..]);
    }
    let Some(mut frame) = frames::in_pool(&whole, pool) else { return };
    frame.offload = offload_from_vnet(&header, frame.bytes_mut()).expect("we wrote the header");
    let Some(of_whole) = cut(frame, pool) else { return };
    let mut apart = Vec::new();
    for member in members {
        let Some(segments) = cut(member, pool) else { return };
        apart.extend(segments);
    }
    assert_eq!(of_whole, apart, "other segments");
}

/// The segments of a frame, without what merging may change. `None` if there is no memory for them
/// or they are too many.
fn cut(frame: Frame, pool: &mut FramePool) -> Option<Vec<Vec<u8>>> {
    let mut out = FrameQueue::new();
    prepare(frame, OffloadCaps::NONE, pool, &mut out).ok()?;
    let mut segments = Vec::new();
    for segment in out {
        let headers = parse(segment.bytes()).expect("a segment has headers");
        let bytes = segment.bytes();
        let sum =
            frames::transport_sum(headers.addresses(bytes), 6, &bytes[headers.l4..headers.end]);
        assert_eq!(sum, 0xffff, "{headers:?}");
        segments.push(without_changes(bytes));
        pool.recycle(segment);
    }
    Some(segments)
}

/// A segment without what merging may change: the IPv4 identification and its checksum, and PSH.
fn without_changes(segment: &[u8]) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    let Some(headers) = parse(segment).filter(|it| it.transport == Some(Transport::Tcp)) else {
        return bytes;
    };
    if bytes[12] == 0x08 {
        bytes[18..20].fill(0);
        bytes[24..26].fill(0);
    }
    bytes[headers.l4 + 13] &= !8;
    bytes[headers.l4 + 16..headers.l4 + 18].fill(0);
    bytes
}
