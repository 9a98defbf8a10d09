//! Segmentation, reassembled and checked by code that shares nothing with it.

use std::sync::Arc;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use ringway_datapath::segment::{OUTPUT_LEN_MAX, SEGMENTS_MAX, prepare, refuse};
use ringway_datapath::{
    Checksum, DropReason, FlowHash, Frame, FramePool, FrameQueue, Gso, GsoKind, Offload,
    OffloadCaps, PoolBudget,
};

const FLOW: FlowHash = FlowHash { value: 77, kind: 1 };
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;

#[test]
fn segments_reassemble_to_the_frame() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0010);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let mut out = FrameQueue::new();
    for round in 0..if cfg!(miri) { 6 } else { 600 } {
        let sample = Sample::random(&mut random, round);
        let caps = OffloadCaps {
            checksum_v4: random.bool(),
            checksum_v6: random.bool(),
            ..OffloadCaps::NONE
        };
        let mut frame = sample.frame(&mut pool);
        frame.flow = Some(FLOW);
        prepare(frame, caps, &mut pool, &mut out).unwrap();

        let blank_taken = if sample.is_v4 { caps.checksum_v4 } else { caps.checksum_v6 };
        let checksum = if blank_taken { Checksum::Blank } else { Checksum::Validated };
        assert_eq!(out.len(), sample.payload.len().div_ceil(sample.segment_len).max(1));
        let mut data = Vec::new();
        let last = out.len() - 1;
        for (index, segment) in out.iter().enumerate() {
            assert_eq!(segment.offload, Offload { checksum, gso: None });
            assert_eq!(segment.flow, Some(FLOW));
            sample.check(segment.bytes(), index, index == last, checksum, &mut data);
        }
        assert!(data == sample.payload, "round {round}");
        out.drain(..).for_each(|segment| pool.recycle(segment));
    }
}

#[test]
fn frames_that_a_port_accepts_are_unchanged() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0011);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    for round in 0..50 {
        let sample = Sample::random(&mut random, round);
        let mut out = FrameQueue::new();
        prepare(sample.frame(&mut pool), OffloadCaps::ALL, &mut pool, &mut out).unwrap();
        assert_eq!(out[0].bytes(), sample.bytes());
        assert_eq!(out[0].offload, sample.offload());

        for checksum in [Checksum::Unverified, Checksum::Validated] {
            let mut plain = sample.frame(&mut pool);
            plain.offload = Offload { checksum, gso: None };
            prepare(plain, OffloadCaps::NONE, &mut pool, &mut out).unwrap();
            let passed = out.pop_back().unwrap();
            assert_eq!(passed.bytes(), sample.bytes());
            assert_eq!(passed.offload.checksum, checksum);
        }
    }
}

#[test]
fn a_blank_checksum_is_completed_only_for_an_ip_version_that_the_port_does_not_accept() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0012);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    for round in 0..if cfg!(miri) { 4 } else { 100 } {
        let sample = Sample::random(&mut random, round);
        for (v4, v6) in [(false, false), (true, false), (false, true), (true, true)] {
            let caps = OffloadCaps { checksum_v4: v4, checksum_v6: v6, ..OffloadCaps::NONE };
            let mut frame = sample.frame(&mut pool);
            frame.offload = Offload { checksum: Checksum::Blank, gso: None };
            let mut out = FrameQueue::new();
            prepare(frame, caps, &mut pool, &mut out).unwrap();
            let is_taken = if sample.is_v4 { v4 } else { v6 };
            if is_taken {
                assert_eq!(out[0].offload.checksum, Checksum::Blank);
                assert_eq!(out[0].bytes(), sample.bytes());
            } else {
                assert_eq!(out[0].offload.checksum, Checksum::Validated);
                assert_eq!(sample.tcp_sum(out[0].bytes()), 0xffff);
            }
        }
    }
}

#[test]
fn a_large_frame_with_a_complete_checksum_becomes_blank() {
    let sample = Sample::random(&mut fastrand::Rng::with_seed(1), 0);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let mut frame = sample.frame(&mut pool);
    frame.offload.checksum = Checksum::Unverified;
    let mut out = FrameQueue::new();
    prepare(frame, OffloadCaps::ALL, &mut pool, &mut out).unwrap();
    assert_eq!(out[0].offload, sample.offload());
    let field = sample.l4 + 16;
    assert_eq!(out[0].bytes()[field..field + 2], sample.pseudo(out[0].len()).to_be_bytes());
}

#[test]
fn gso_needs_scatter_gather_and_blank_checksums() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0013);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    for round in 0..20 {
        let mut sample = Sample::random(&mut random, round);
        sample.segment_len = 1000;
        sample.payload.resize(3000, 1);
        for caps in [
            OffloadCaps { scatter_gather: false, ..OffloadCaps::ALL },
            OffloadCaps { checksum_v4: false, checksum_v6: false, ..OffloadCaps::ALL },
            OffloadCaps { gso_v4: false, gso_v6: false, ..OffloadCaps::ALL },
            OffloadCaps { gso_v4: !sample.is_v4, gso_v6: sample.is_v4, ..OffloadCaps::ALL },
        ] {
            let mut out = FrameQueue::new();
            prepare(sample.frame(&mut pool), caps, &mut pool, &mut out).unwrap();
            assert_eq!(out.len(), 3);
        }
    }
}

#[test]
fn without_buffers_nothing_is_sent_and_nothing_is_lost() {
    let mut sample = Sample::random(&mut fastrand::Rng::with_seed(2), 0);
    sample.payload.resize(10_000, 1);
    sample.segment_len = 1000;
    // One large buffer and six small ones; ten are needed.
    let budget = PoolBudget::new(65_792 + 4096 + 6 * 2048);
    let mut pool = FramePool::new(Arc::clone(&budget));
    let mut out = FrameQueue::new();
    for _ in 0..3 {
        let frame = sample.frame(&mut pool);
        let result = prepare(frame, OffloadCaps::NONE, &mut pool, &mut out);
        assert_eq!(result, Err(DropReason::NoBuffer));
        assert!(out.is_empty());
    }
    drop(pool);
    assert_eq!(budget.bytes_left(), 65_792 + 4096 + 6 * 2048);
}

#[test]
fn nonsensical_frames_are_dropped() {
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let good = Sample::random(&mut fastrand::Rng::with_seed(3), 0);
    let [other_version, other_transport] = match good.gso().kind {
        GsoKind::TcpV4 => [GsoKind::TcpV6, GsoKind::UdpV4],
        GsoKind::TcpV6 => [GsoKind::TcpV4, GsoKind::UdpV6],
        kind => panic!("{kind:?} has no sequence numbers"),
    };
    let mut out = FrameQueue::new();
    let mut refused = |gso: Gso, edit: &dyn Fn(&mut Frame)| {
        let mut frame = good.frame(&mut pool);
        frame.offload.gso = Some(gso);
        edit(&mut frame);
        let result = prepare(frame, OffloadCaps::NONE, &mut pool, &mut out);
        assert_eq!(result, Err(DropReason::BadOffload));
        assert!(out.is_empty());
    };
    refused(Gso { size: 0, ..good.gso() }, &|_| {});
    refused(Gso { kind: other_version, ..good.gso() }, &|_| {});
    refused(Gso { kind: other_transport, ..good.gso() }, &|_| {});
    refused(good.gso(), &|frame| frame.bytes_mut()[good.l4 + 12] = 0);
    refused(good.gso(), &|frame| frame.bytes_mut()[12] = 0);
    refused(good.gso(), &|frame| frame.set_len(good.l4));
}

#[test]
fn the_number_of_segments_is_bounded() {
    let mut sample = Sample::random(&mut fastrand::Rng::with_seed(4), 0);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    sample.segment_len = 2;
    for (segments, result) in
        [(SEGMENTS_MAX, Ok(())), (SEGMENTS_MAX + 1, Err(DropReason::BadOffload))]
    {
        sample.payload.resize(segments * 2, 0);
        let mut out = FrameQueue::new();
        let frame = sample.frame(&mut pool);
        assert_eq!(prepare(frame, OffloadCaps::NONE, &mut pool, &mut out), result);
    }
}

/// A frame of IPv6 and TCP with `extensions` headers of `len` bytes each before TCP, to be cut.
fn with_extensions(
    pool: &mut FramePool,
    frame_len: usize,
    (extensions, len): (usize, usize),
    size: u16,
) -> Frame {
    const DESTINATION_OPTIONS: u8 = 60;
    const TCP: u8 = 6;
    let mut frame = pool.take(frame_len).expect("there is memory");
    let bytes = frame.bytes_mut();
    bytes.fill(0);
    bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
    let ip_len = u16::try_from(frame_len - 14 - 40).expect("it fits");
    bytes[14] = 0x60;
    bytes[18..20].copy_from_slice(&ip_len.to_be_bytes());
    bytes[20] = if extensions > 0 { DESTINATION_OPTIONS } else { TCP };
    let mut at = 54;
    for index in 0..extensions {
        bytes[at] = if index + 1 < extensions { DESTINATION_OPTIONS } else { TCP };
        bytes[at + 1] = u8::try_from(len / 8 - 1).expect("short");
        at += len;
    }
    bytes[at + 12] = 5 << 4;
    let gso = Some(Gso { kind: GsoKind::TcpV6, size });
    frame.offload = Offload { checksum: Checksum::Blank, gso };
    frame
}

#[test]
fn cutting_a_hostile_frame_costs_no_more_than_an_honest_one() {
    let budget = PoolBudget::new(128 << 20);
    let mut pool = FramePool::new(Arc::clone(&budget));
    let mut out = FrameQueue::new();
    // The most that an honest guest may send; then an attack that took 85 MiB for one frame; the
    // same with segments that are long enough; the same with headers that are short enough.
    let cases = [
        ((0, 8), 48, None),
        ((1, 8), 1448, None),
        ((10, 8), 1200, None),
        ((10, 2040), 33, Some(DropReason::BadOffload)),
        ((10, 2040), 48, Some(DropReason::BadOffload)),
        ((10, 16), 48, Some(DropReason::BadOffload)),
        ((1, 160), 48, Some(DropReason::BadOffload)),
    ];
    for (extensions, size, reason) in cases {
        let frame = with_extensions(&mut pool, 65_454, extensions, size);
        assert_eq!(refuse(&frame, usize::MAX), reason, "{extensions:?} {size}");
        // Also without that question.
        let result = prepare(frame, OffloadCaps::NONE, &mut pool, &mut out);
        assert_eq!(result.err(), reason, "{extensions:?} {size}");
        let bytes: usize = out.iter().map(Frame::len).sum();
        let memory: usize = out.iter().map(Frame::capacity).sum();
        assert!(bytes <= OUTPUT_LEN_MAX, "{bytes}");
        assert!(memory <= 3 << 20, "{memory}");
        out.drain(..).for_each(|segment| pool.recycle(segment));
    }
    drop(pool);
    assert_eq!(budget.bytes_left(), 128 << 20);
}

#[test]
fn neither_frames_nor_segments_exceed_the_mtu() {
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let whole = |pool: &mut FramePool, len| pool.take(len).expect("there is memory");
    assert_eq!(refuse(&whole(&mut pool, 1518), 1518), None);
    assert_eq!(refuse(&whole(&mut pool, 1519), 1518), Some(DropReason::TooLong));
    assert_eq!(refuse(&whole(&mut pool, 65_535), usize::MAX), None);
    for (size, reason) in [(1448, None), (1519, Some(DropReason::TooLong))] {
        let frame = with_extensions(&mut pool, 60_000, (0, 8), size);
        assert_eq!(refuse(&frame, 1518), reason, "{size}");
    }
}

#[test]
fn an_ip_length_of_zero_means_to_the_end_of_the_frame() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0014);
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    for round in 0..20 {
        let sample = Sample::random(&mut random, round);
        let mut frame = sample.frame(&mut pool);
        let length_at = sample.l3 + if sample.is_v4 { 2 } else { 4 };
        frame.bytes_mut()[length_at..length_at + 2].fill(0);
        let (mut out, mut data) = (FrameQueue::new(), Vec::new());
        prepare(frame, OffloadCaps::NONE, &mut pool, &mut out).unwrap();
        let last = out.len() - 1;
        for (index, segment) in out.iter().enumerate() {
            let is_last = index == last;
            sample.check(segment.bytes(), index, is_last, Checksum::Validated, &mut data);
        }
        assert!(data == sample.payload);
    }
}

/// A random TCP frame, and what its segments must look like.
struct Sample {
    is_v4: bool,
    header: Vec<u8>,
    payload: Vec<u8>,
    segment_len: usize,
    l3: usize,
    l4: usize,
}

impl Sample {
    fn random(random: &mut fastrand::Rng, round: usize) -> Sample {
        let is_v4 = random.bool();
        let mut header = vec![2; 12];
        for tag in 0..random.u8(..3) {
            header.extend([0x81, 0x00, 0, tag]);
        }
        header.extend(if is_v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
        let l3 = header.len();
        if is_v4 {
            let options = random.u8(..4);
            header.extend([0x45 + options, 0, 0, 0, random.u8(..), random.u8(..), 0x40, 0]);
            header.extend([64, 6, 0xde, 0xad]);
            header.extend((0..8).map(|_| random.u8(..)));
            // "No operation", the option of one byte.
            header.extend(vec![1; usize::from(options) * 4]);
        } else {
            let has_extension = random.bool();
            header.extend([0x60, 0, 0, 0, 0, 0, if has_extension { 60 } else { 6 }, 64]);
            header.extend((0..32).map(|_| random.u8(..)));
            if has_extension {
                header.extend([6, 0, 1, 4, 0, 0, 0, 0]);
            }
        }
        let l4 = header.len();
        let options = random.u8(..=10);
        header.extend((0..12).map(|_| random.u8(..)));
        header.extend([(5 + options) << 4, FIN | PSH | ACK | CWR, 1, 2, 0xbe, 0xef, 0, 0]);
        header.extend(vec![1; usize::from(options) * 4]);

        let segment_len =
            *[1, 7, 48, 536, 1220, 1448, 1460, 8948, 65_535].get(round % 9).unwrap_or(&1448);
        let room = (65_535 - header.len()).min(segment_len * SEGMENTS_MAX);
        let payload_len = match round % 5 {
            0 => random.usize(..=room),
            1 => room,
            2 => room / segment_len * segment_len,
            3 => (segment_len + 1).min(room),
            _ => random.usize(..=(segment_len * 4).min(room)),
        };
        let mut payload = vec![0; payload_len];
        random.fill(&mut payload);
        Sample { is_v4, header, payload, segment_len, l3, l4 }
    }

    fn gso(&self) -> Gso {
        let kind = if self.is_v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
        Gso { kind, size: u16::try_from(self.segment_len).unwrap() }
    }

    fn offload(&self) -> Offload {
        Offload { checksum: Checksum::Blank, gso: Some(self.gso()) }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&self.header[..], &self.payload].concat();
        let (length_at, len) = match self.is_v4 {
            true => (self.l3 + 2, bytes.len() - self.l3),
            false => (self.l3 + 4, bytes.len() - self.l3 - 40),
        };
        bytes[length_at..length_at + 2].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        bytes
    }

    fn frame(&self, pool: &mut FramePool) -> Frame {
        let bytes = self.bytes();
        // Always a large buffer, so that a test knows the memory that it takes.
        let mut frame = pool.take(bytes.len().max(2049)).unwrap();
        frame.set_len(bytes.len());
        frame.bytes_mut().copy_from_slice(&bytes);
        frame.offload = self.offload();
        frame
    }

    /// The pseudo-header's sum for a frame of `len` bytes.
    fn pseudo(&self, len: usize) -> u16 {
        let (start, end) = match self.is_v4 {
            true => (self.l3 + 12, self.l3 + 20),
            false => (self.l3 + 8, self.l3 + 40),
        };
        let tcp_len = u16::try_from(len - self.l4).unwrap().to_be_bytes();
        naive_sum(&[&self.header[start..end], &[0, 6], &tcp_len].concat())
    }

    /// All ones if the TCP checksum is right.
    fn tcp_sum(&self, frame: &[u8]) -> u16 {
        let pseudo = self.pseudo(frame.len()).to_be_bytes();
        naive_sum(&[&pseudo, &frame[self.l4..]].concat())
    }

    fn check(
        &self,
        segment: &[u8],
        index: usize,
        is_last: bool,
        checksum: Checksum,
        data: &mut Vec<u8>,
    ) {
        let sliced = SlicedPacket::from_ethernet(segment).expect("a strict parser takes it");
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("not TCP") };
        let number = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, &b| sum << 8 | u32::from(b));
        let advance = u32::try_from(index * self.segment_len).unwrap();
        let sequence = number(&self.header[self.l4 + 4..self.l4 + 8]);
        assert_eq!(tcp.sequence_number(), sequence.wrapping_add(advance));
        assert_eq!((tcp.fin(), tcp.psh(), tcp.ack()), (is_last, is_last, true));
        assert_eq!(tcp.cwr(), index == 0);
        assert_eq!(segment.len() - self.header.len(), tcp.payload().len());
        assert!(is_last || tcp.payload().len() == self.segment_len);
        data.extend(tcp.payload());

        match sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                let first = number(&self.header[self.l3 + 4..self.l3 + 6]);
                let id = (first + u32::try_from(index).unwrap()) & 0xffff;
                assert_eq!(u32::from(ip.header().identification()), id);
                assert_eq!(naive_sum(&segment[self.l3..self.l4]), 0xffff);
                assert_eq!(usize::from(ip.header().total_len()), segment.len() - self.l3);
            }
            Some(NetSlice::Ipv6(ip)) => {
                let len = usize::from(ip.header().payload_length());
                assert_eq!(len, segment.len() - self.l3 - 40);
            }
            _ => panic!("not IP"),
        }
        if checksum == Checksum::Blank {
            assert_eq!(tcp.checksum(), self.pseudo(segment.len()));
        } else {
            assert_eq!(self.tcp_sum(segment), 0xffff);
        }

        // Everything else is unchanged.
        let mut expected = self.header.clone();
        for field in [self.l3 + 2..self.l3 + 6, self.l3 + 10..self.l3 + 12] {
            if self.is_v4 {
                expected[field.clone()].copy_from_slice(&segment[field]);
            }
        }
        if !self.is_v4 {
            expected[self.l3 + 4..self.l3 + 6].copy_from_slice(&segment[self.l3 + 4..self.l3 + 6]);
        }
        for field in
            [self.l4 + 4..self.l4 + 8, self.l4 + 13..self.l4 + 14, self.l4 + 16..self.l4 + 18]
        {
            expected[field.clone()].copy_from_slice(&segment[field]);
        }
        assert_eq!(segment[..expected.len()], expected);
    }
}

fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}
