//! Flows of numbered frames, and the fate of each frame.
//!
//! A frame contains the number of its flow and its position in the flow: its number, or for TCP its
//! first byte in the stream, because such a frame may arrive in segments. All other bytes are
//! computed from these, so a changed or swapped byte is detected.

use std::collections::VecDeque;

use ringway_datapath::checksum::{self, Sum, pseudo_sum};
use ringway_datapath::headers::{Transport, parse};
use ringway_datapath::{Checksum, Frame, FramePool, Gso, GsoKind, MacAddr, OffloadCaps};
use ringway_wire::PAGE_SIZE;

use crate::choices::Choices;
use crate::flaw::{Checked, Flaw, Rule, ensure};

/// The kind of all frames of a flow, since only frames of one kind stay in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An unknown protocol: all frames go to queue 0.
    Unknown,
    Udp,
    Tcp,
}

/// Frames from one guest to another, in order.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) number: u16,
    pub(crate) kind: Kind,
    /// One frame in as many is long.
    long_one_in: usize,
    /// The indices of the guests.
    pub(crate) from: usize,
    pub(crate) to: usize,
    macs: [MacAddr; 2],
    /// The position of the next frame.
    next: u32,
    /// The expected position of the next piece that arrives.
    expected: u32,
    /// Frames that were sent and have not completely arrived, the oldest first.
    under_way: VecDeque<Span>,
    lost: Lost,
}

/// The position of a frame in its flow.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: u32,
    end: u32,
    /// The longest piece into which it may be cut.
    piece: u32,
}

/// The least and the most drops that account for what has not arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lost {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Lost {
    /// One frame that lacks `missing` bytes.
    fn of(missing: u32, piece: u32) -> Lost {
        Lost { least: 1, most: u64::from(missing.div_ceil(piece.max(1)).max(1)) }
    }

    pub(crate) fn and(self, other: Lost) -> Lost {
        Lost { least: self.least + other.least, most: self.most + other.most }
    }
}

/// The properties of a new frame, for marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) len: usize,
    pub(crate) is_to_segment: bool,
    pub(crate) is_blank: bool,
}

impl Flow {
    /// A flow in which nothing was sent yet.
    pub(crate) fn new(
        number: u16,
        kind: Kind,
        long_one_in: usize,
        ends: [(usize, MacAddr); 2],
    ) -> Flow {
        let [(from, from_mac), (to, to_mac)] = ends;
        let macs = [from_mac, to_mac];
        let (under_way, lost) = (VecDeque::new(), Lost::default());
        Flow { number, kind, long_one_in, from, to, macs, next: 0, expected: 0, under_way, lost }
    }

    /// The next frame, of a random size that a peer with `caps` accepts; `None` without a buffer.
    pub(crate) fn make(
        &mut self,
        choices: &mut Choices,
        caps: OffloadCaps,
        pool: &mut FramePool,
    ) -> Option<(Frame, Made)> {
        let is_long = caps.scatter_gather && choices.is_one_in(self.long_one_in);
        let gso = self.kind == Kind::Tcp && caps.gso_v4 && caps.checksum_v4 && is_long;
        let is_blank =
            gso || (self.kind != Kind::Unknown && caps.checksum_v4 && choices.is_one_in(2));
        let payload = match (is_long, self.kind) {
            // A frame in one page if it is not to be segmented, for receivers without
            // scatter-gather.
            (false, _) => choices.from_to(8, 1400),
            (true, Kind::Tcp) if !gso => choices.from_to(8, 1400),
            (true, _) if choices.is_one_in(8) => choices.from_to(20_000, 65_000),
            (true, _) => choices.from_to(PAGE_SIZE, 3 * PAGE_SIZE),
        };
        let piece = if gso { u16::try_from(choices.from_to(400, 1448)).ok()? } else { 0 };
        let header = HEADERS_LEN + transport_len(self.kind);
        let mut frame = pool.take((header + payload).max(FRAME_LEN_MIN))?;
        self.fill(&mut frame, header);
        frame.offload.checksum = if is_blank { Checksum::Blank } else { Checksum::Unverified };
        if gso {
            frame.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size: piece });
        }
        finish_checksums(&mut frame);
        let made = Made { len: frame.len(), is_to_segment: gso, is_blank };
        self.sent(frame.len() - header, piece);
        Some((frame, made))
    }

    fn sent(&mut self, payload: usize, piece: u16) {
        let len = match self.kind {
            Kind::Tcp => u32::try_from(payload).expect("a frame is short"),
            Kind::Unknown | Kind::Udp => 1,
        };
        let piece = if piece == 0 { len } else { u32::from(piece) };
        let end = self.next + len;
        self.under_way.push_back(Span { first: self.next, end, piece });
        self.next = end;
    }

    /// Writes everything but checksums.
    fn fill(&self, frame: &mut Frame, header: usize) {
        let [from, to] = self.macs;
        let place = self.next;
        let bytes = frame.bytes_mut();
        let (head, payload) = bytes.split_at_mut(header);
        head.fill(0);
        head[0..6].copy_from_slice(&to.0);
        head[6..12].copy_from_slice(&from.0);
        if self.kind == Kind::Unknown {
            head[12..14].copy_from_slice(&ETHERTYPE_TEST.to_be_bytes());
        } else {
            fill_ip(head, self.number, self.kind, payload.len(), place);
        }
        let words = match self.kind {
            Kind::Tcp => payload,
            Kind::Unknown | Kind::Udp => {
                let (place_field, words) = payload.split_at_mut(PLACE_LEN);
                place_field[0..2].copy_from_slice(&self.number.to_be_bytes());
                place_field[2..6].copy_from_slice(&place.to_be_bytes());
                words
            }
        };
        let pattern = Pattern::of(self.number, self.kind, place);
        pattern.fill(words);
    }

    /// Takes a frame of this flow, or a segment of one, that has arrived.
    pub(crate) fn arrived(&mut self, piece: &Piece) -> Checked {
        let (first, end) = (piece.first, piece.end);
        ensure(first >= self.expected, Rule::Order, || {
            format!("flow {}: {first} to {end} came when {} was due", self.number, self.expected)
        })?;
        while let Some(span) = self.under_way.front().filter(|span| span.end <= first) {
            let missing = span.end - span.first.max(self.expected);
            self.lost = self.lost.and(Lost::of(missing, span.piece));
            self.under_way.pop_front();
        }
        let Some(span) = self.under_way.front().copied() else {
            return Err(self.unknown(piece));
        };
        if first < span.first || end > span.end {
            return Err(self.unknown(piece));
        }
        let due = span.first.max(self.expected);
        if first > due {
            self.lost = self.lost.and(Lost::of(first - due, span.piece));
        }
        self.expected = end;
        if end == span.end {
            self.under_way.pop_front();
        }
        Ok(())
    }

    fn unknown(&self, piece: &Piece) -> Flaw {
        let (first, end) = (piece.first, piece.end);
        let found = format!("flow {}: {first} to {end} is not a frame in flight", self.number);
        Flaw::new(Rule::Content, found)
    }

    /// The losses, once nothing is in flight any more.
    pub(crate) fn lost(&self) -> Lost {
        self.under_way.iter().fold(self.lost, |lost, span| {
            let missing = span.end - span.first.max(self.expected);
            lost.and(Lost::of(missing, span.piece))
        })
    }

    /// Nothing is in flight, and earlier losses are accounted for.
    pub(crate) fn settle(&mut self) {
        self.under_way.clear();
        self.expected = self.next;
        self.lost = Lost::default();
    }

    /// Whether frames were sent and have not arrived.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.under_way.is_empty() || self.lost != Lost::default()
    }

    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// The most that one frame holds, in units of a [`Share`].
    pub(crate) fn units_per_frame_max(&self) -> u64 {
        match self.kind {
            Kind::Tcp => 1 << 16,
            Kind::Unknown | Kind::Udp => 1,
        }
    }
}

/// The flow of a frame, and how much of the flow it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) flow: u16,
    /// Bytes of a TCP stream; 1 of any other.
    pub(crate) units: u64,
}

impl Share {
    /// Reads as little as possible: it is called for each frame at each place.
    pub(crate) fn of(bytes: &[u8]) -> Option<Share> {
        let number = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk::<2>).copied();
        match u16::from_be_bytes(number(12)?) {
            ETHERTYPE_TEST => Some(Share { flow: u16::from_be_bytes(number(14)?), units: 1 }),
            ETHERTYPE_IPV4 => {
                let flow = u16::from_be_bytes(number(34)?).checked_sub(PORT_FIRST)?;
                let l4_and_ip = u64::from(u16::from_be_bytes(number(16)?));
                let is_tcp = *bytes.get(23)? == PROTOCOL_TCP;
                Some(Share { flow, units: if is_tcp { l4_and_ip.saturating_sub(40) } else { 1 } })
            }
            _ => None,
        }
    }
}

/// A piece that has arrived, according to its own bytes.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) flow: u16,
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Piece {
    /// Reads a frame that arrived and checks all of its bytes; `None` for a frame without a flow.
    pub(crate) fn read(frame: &Frame) -> Checked<Option<Piece>> {
        let bytes = frame.bytes();
        let Some(&ethertype) = bytes.get(12..).and_then(<[u8]>::first_chunk::<2>) else {
            return Ok(None);
        };
        match u16::from_be_bytes(ethertype) {
            ETHERTYPE_TEST => Piece::numbered(Kind::Unknown, &bytes[14..]),
            ETHERTYPE_IPV4 => Piece::read_ip(frame),
            _ => Ok(None),
        }
    }

    fn read_ip(frame: &Frame) -> Checked<Option<Piece>> {
        let bytes = frame.bytes();
        let Some(headers) = parse(bytes) else { return Ok(None) };
        let Some([s0, s1, ..]) = headers.ports(bytes) else { return Ok(None) };
        let Some(flow) = u16::from_be_bytes([s0, s1]).checked_sub(PORT_FIRST) else {
            return Ok(None);
        };
        let (l4, payload) = (&bytes[headers.l4..headers.end], &bytes[headers.payload..headers.end]);
        let transport = if payload.len() + 8 == l4.len() { Transport::Udp } else { Transport::Tcp };
        if frame.offload.checksum != Checksum::Blank {
            let pseudo = pseudo_sum(headers.addresses(bytes), transport, l4.len());
            ensure(pseudo.and(Sum::of(l4)).fold() == [0xff; 2], Rule::Content, || {
                format!("flow {flow}: a checksum is wrong, offload {:?}", frame.offload)
            })?;
        }
        if transport == Transport::Udp {
            return Piece::numbered(Kind::Udp, payload);
        }
        let sequence = bytes.get(headers.l4 + 4..).and_then(<[u8]>::first_chunk::<4>);
        let first = u32::from_be_bytes(*sequence.expect("a TCP header has a sequence number"));
        let len = u32::try_from(payload.len()).expect("a frame is short");
        Pattern::of(flow, Kind::Tcp, first).check(payload)?;
        Ok(Some(Piece { flow, first, end: first + len }))
    }

    fn numbered(kind: Kind, payload: &[u8]) -> Checked<Option<Piece>> {
        let Some((&[f0, f1, p0, p1, p2, p3], words)) = payload.split_first_chunk::<PLACE_LEN>()
        else {
            return Ok(None);
        };
        let (flow, first) = (u16::from_be_bytes([f0, f1]), u32::from_be_bytes([p0, p1, p2, p3]));
        Pattern::of(flow, kind, first).check(words)?;
        Ok(Some(Piece { flow, first, end: first.wrapping_add(1) }))
    }
}

/// Bytes that are computed from their position.
struct Pattern {
    key: u64,
    /// The position of the first byte.
    position: u64,
}

impl Pattern {
    fn of(flow: u16, kind: Kind, place: u32) -> Pattern {
        let flow = u64::from(flow) << 40;
        match kind {
            Kind::Tcp => Pattern { key: flow, position: u64::from(place) },
            Kind::Unknown | Kind::Udp => Pattern { key: flow | u64::from(place), position: 0 },
        }
    }

    fn word(&self, index: u64) -> [u8; 8] {
        ((self.key ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
    }

    /// Visits the bytes for each part of a payload of `len` bytes: the rest of the first word,
    /// whole words, and the beginning of the last one.
    #[inline]
    fn each(&self, len: usize, mut visit: impl FnMut(usize, &[u8])) {
        let mut words = (self.position / 8..).map(|index| self.word(index));
        let mut word = || words.next().expect("there is no last word");
        let skipped = usize::try_from(self.position % 8).expect("a small number");
        let mut at = 0;
        if skipped != 0 {
            at = len.min(8 - skipped);
            visit(0, &word()[skipped..skipped + at]);
        }
        while at + 8 <= len {
            visit(at, &word());
            at += 8;
        }
        if at < len {
            visit(at, &word()[..len - at]);
        }
    }

    fn fill(&self, into: &mut [u8]) {
        self.each(into.len(), |at, part| into[at..at + part.len()].copy_from_slice(part));
    }

    fn check(&self, bytes: &[u8]) -> Checked {
        let mut wrong = None;
        self.each(bytes.len(), |at, part| {
            if bytes[at..at + part.len()] != *part {
                wrong = wrong.or(Some(at));
            }
        });
        let found = |at| Flaw::new(Rule::Content, format!("byte {at} of a payload is not as sent"));
        wrong.map_or(Ok(()), |at| Err(found(at)))
    }
}

fn transport_len(kind: Kind) -> usize {
    match kind {
        Kind::Unknown => 0,
        Kind::Udp => 20 + 8,
        Kind::Tcp => 20 + 20,
    }
}

fn fill_ip(head: &mut [u8], flow: u16, kind: Kind, payload: usize, place: u32) {
    let be = |len: usize| u16::try_from(len).expect("a frame is short").to_be_bytes();
    head[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let l4_len = transport_len(kind) - 20 + payload;
    let ip = &mut head[14..34];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&be(20 + l4_len));
    ip[8] = 64;
    ip[9] = if kind == Kind::Tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
    ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let l4 = &mut head[34..];
    l4[0..2].copy_from_slice(&(PORT_FIRST + flow).to_be_bytes());
    l4[2..4].copy_from_slice(&PORT_FIRST.to_be_bytes());
    if kind == Kind::Tcp {
        l4[4..8].copy_from_slice(&place.to_be_bytes());
        l4[12] = 0x50;
        l4[13] = 0x10;
    } else {
        l4[4..6].copy_from_slice(&be(l4_len));
    }
}

/// Writes the checksum that the frame's offload promises.
fn finish_checksums(frame: &mut Frame) {
    let Some(headers) = parse(frame.bytes()) else { return };
    let is_blank = frame.offload.checksum == Checksum::Blank;
    let bytes = frame.bytes_mut();
    let done = checksum::complete_ipv4_header(bytes, &headers).and_then(|()| match is_blank {
        true => checksum::set_pseudo(bytes, &headers),
        false => checksum::complete_parsed(bytes, &headers),
    });
    done.expect("these headers are sound");
}

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const HEADERS_LEN: usize = 14;
const FRAME_LEN_MIN: usize = 60;
/// The number of the flow, and the position within it.
const PLACE_LEN: usize = 6;
/// The EtherType for local experiments (IEEE 802).
const ETHERTYPE_TEST: u16 = 0x88b5;
const ETHERTYPE_IPV4: u16 = 0x0800;
/// The source port of flow 0.
const PORT_FIRST: u16 = 1000;

/// A broadcast that teaches the switch a guest's port.
pub(crate) fn announcement(mac: MacAddr, pool: &mut FramePool) -> Option<Frame> {
    let mut frame = pool.take(FRAME_LEN_MIN)?;
    let bytes = frame.bytes_mut();
    bytes.fill(0);
    bytes[0..6].fill(0xff);
    bytes[6..12].copy_from_slice(&mac.0);
    bytes[12..14].copy_from_slice(&ETHERTYPE_ANNOUNCEMENT.to_be_bytes());
    Some(frame)
}

/// Another EtherType for local experiments.
const ETHERTYPE_ANNOUNCEMENT: u16 = 0x88b6;
