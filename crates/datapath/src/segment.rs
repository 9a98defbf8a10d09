//! Prepares a frame for the port that it leaves by: completes checksums and cuts TCP data into
//! segments and UDP data into datagrams, if the far side does not take them as they are.

use crate::checksum::{
    Sum, complete_ipv4_header, complete_parsed, never_zero, pseudo_sum, set_pseudo, write,
};
use crate::fields::{
    IPV4_ID_OFFSET, IPV4_LEN_OFFSET, IPV6_LEN_OFFSET, TCP_CWR, TCP_FIN, TCP_FLAGS_OFFSET, TCP_PSH,
    TCP_SEQUENCE_OFFSET, UDP_LEN_OFFSET,
};
use crate::headers::{
    Headers, IPV6_LEN, IpVersion, Transport, chunk, may_be_for_dhcp_client, parse,
};
use crate::vnet::gso_headers;
use crate::{
    Checksum, DropReason, Frame, FramePool, FrameQueue, Gso, GsoKind, Offload, OffloadCaps,
};

/// Whether a frame asks for nothing, so that every port takes it as it is.
#[inline]
pub fn is_ready(frame: &Frame) -> bool {
    frame.offload.gso.is_none() && frame.offload.checksum != Checksum::Blank
}

/// Puts `frame` at the end of `out`, in a form that a port with `caps` takes: as it is if possible,
/// which costs a few comparisons; with its checksum completed; or as segments. For a DHCP client,
/// the checksum is always completed.
///
/// `out` may grow by [`SEGMENTS_MAX`] frames.
///
/// # Errors
/// The frame was dropped, its buffer is back in `pool` and nothing was added to `out`:
/// - [`DropReason::NoBuffer`] if `pool` had too few buffers for the segments;
/// - [`DropReason::BadOffload`] if the frame's headers do not match its offload, or it would become
///   more than [`SEGMENTS_MAX`] segments, or more than [`OUTPUT_LEN_MAX`] bytes.
#[inline]
pub fn prepare(
    mut frame: Frame,
    caps: OffloadCaps,
    pool: &mut FramePool,
    out: &mut FrameQueue,
) -> Result<(), DropReason> {
    let done = match (frame.offload.gso, frame.offload.checksum) {
        (None, Checksum::Unverified | Checksum::Validated) => Ok(()),
        (None, Checksum::Blank) => complete_for(&mut frame, caps, pool),
        (Some(gso), checksum) if takes_gso(caps, gso.kind) => match checksum {
            Checksum::Blank => Ok(()),
            Checksum::Unverified | Checksum::Validated => make_blank(&mut frame, gso.kind),
        },
        (Some(gso), _) => {
            let completed = pool.complete(&mut frame);
            let segmented = completed.and_then(|()| segment(&frame, gso, caps, pool, out));
            pool.recycle(frame);
            return segmented;
        }
    };
    match done {
        Ok(()) => out.push_back(frame),
        Err(_) => pool.recycle(frame),
    }
    done
}

/// The most segments that a frame may become: those of a 64 KiB frame with the shortest segments.
pub const SEGMENTS_MAX: usize = 65536 / SEGMENT_LEN_MIN; // not a limit: the longest frame
/// Payload bytes of the shortest segments that a frame may ask for: the smallest MSS that Linux's
/// TCP accepts from a peer (`TCP_MIN_SND_MSS` in `include/net/tcp.h`).
const SEGMENT_LEN_MIN: usize = 48;
/// The most datagrams that a frame may become: the most that Linux lets a program ask for
/// (`UDP_MAX_SEGMENTS`). These may be short.
const DATAGRAMS_MAX: usize = 128;
/// Bytes of headers that each segment may repeat, from Ethernet to TCP or UDP.
const HEADERS_LEN_MAX: usize = 256;

/// The most bytes that all segments of one frame may have together: those of 64 KiB with the
/// longest IPv4 headers, which no honest frame reaches.
pub const OUTPUT_LEN_MAX: usize = 256 << 10;

/// Why a frame is refused at ingress, whether or not its receiver would take it whole; `None` if it
/// is accepted.
///
/// It is refused if it, or its segments, would be longer than `len_max` bytes
/// ([`DropReason::TooLong`]), or if it asks for segments that no honest sender asks for
/// ([`DropReason::BadOffload`]): these would cost a thousand times what the frame did, here or in
/// the receiving kernel or guest.
#[inline]
pub fn refuse(frame: &Frame, len_max: usize) -> Option<DropReason> {
    match frame.offload.gso {
        None => (frame.len() > len_max).then_some(DropReason::TooLong),
        Some(gso) => refuse_segments(frame, gso, len_max),
    }
}

fn refuse_segments(frame: &Frame, gso: Gso, len_max: usize) -> Option<DropReason> {
    let segment_len = usize::from(gso.size);
    if segment_len > len_max {
        return Some(DropReason::TooLong);
    }
    let is_abusive = match gso.kind {
        // Without extension headers, its headers are never too long.
        GsoKind::TcpV4 => segment_len < SEGMENT_LEN_MIN,
        GsoKind::TcpV6 => {
            segment_len < SEGMENT_LEN_MIN
                || frame.headers().is_some_and(|headers| {
                    headers.payload > HEADERS_LEN_MAX
                        || output_len(headers.payload, frame.len(), segment_len) > OUTPUT_LEN_MAX
                })
        }
        GsoKind::UdpV4 | GsoKind::UdpV6 => frame.headers().is_some_and(|headers| {
            headers.payload > HEADERS_LEN_MAX
                || segment_count(headers.end - headers.payload, segment_len) > DATAGRAMS_MAX
        }),
    };
    is_abusive.then_some(DropReason::BadOffload)
}

/// The most bytes that all segments of a frame have together.
fn output_len(header_len: usize, frame_len: usize, segment_len: usize) -> usize {
    let payload_len = frame_len.saturating_sub(header_len);
    frame_len + segment_count(payload_len, segment_len) * header_len
}

/// The number of segments of `payload_len` bytes. A frame without data is odd, but is one packet.
fn segment_count(payload_len: usize, segment_len: usize) -> usize {
    payload_len.div_ceil(segment_len.max(1)).max(1)
}

/// Whether a port with `caps` takes frames that are to be cut as `kind`.
///
/// Each segment needs its own checksum, and the whole needs several slots, so segmentation can be
/// left to the far side only if it also takes blank checksums and several slots.
#[inline]
pub fn takes_gso(caps: OffloadCaps, kind: GsoKind) -> bool {
    caps.scatter_gather
        && match kind {
            GsoKind::TcpV4 => caps.gso_v4 && caps.checksum_v4,
            GsoKind::TcpV6 => caps.gso_v6 && caps.checksum_v6,
            GsoKind::UdpV4 => caps.uso_v4 && caps.checksum_v4,
            GsoKind::UdpV6 => caps.uso_v6 && caps.checksum_v6,
        }
}

#[inline]
fn takes_blank(caps: OffloadCaps, version: IpVersion) -> bool {
    match version {
        IpVersion::V4 => caps.checksum_v4,
        IpVersion::V6 => caps.checksum_v6,
    }
}

#[inline]
fn complete_for(
    frame: &mut Frame,
    caps: OffloadCaps,
    pool: &mut FramePool,
) -> Result<(), DropReason> {
    if caps.checksum_v4 && caps.checksum_v6 && !is_for_dhcp_client(frame) {
        return Ok(());
    }
    pool.complete(frame)?;
    let headers = parse(frame.bytes()).ok_or(DropReason::BadOffload)?;
    if takes_blank(caps, headers.version) && !headers.is_for_dhcp_client(frame.bytes()) {
        return Ok(());
    }
    complete_parsed(frame.bytes_mut(), &headers)?;
    frame.offload.checksum = Checksum::Validated;
    Ok(())
}

/// Whether a frame is for a DHCP client. Many read packets before their kernel does, and do not
/// learn there that a checksum is blank. Clients of DHCPv6 read them from the kernel.
#[inline]
fn is_for_dhcp_client(frame: &Frame) -> bool {
    let is_possible = may_be_for_dhcp_client(frame.bytes());
    is_possible && frame.headers().is_some_and(|headers| headers.is_for_dhcp_client(frame.bytes()))
}

/// Makes the checksum of a frame with pending segmentation blank. A sender may have completed it,
/// which serves no purpose.
#[cold]
fn make_blank(frame: &mut Frame, kind: GsoKind) -> Result<(), DropReason> {
    let headers = gso_headers(frame.bytes(), frame.len(), kind)?;
    set_pseudo(frame.bytes_mut(), &headers)?;
    frame.offload.checksum = Checksum::Blank;
    Ok(())
}

/// Cuts a frame, all or nothing.
fn segment(
    frame: &Frame,
    gso: Gso,
    caps: OffloadCaps,
    pool: &mut FramePool,
    out: &mut FrameQueue,
) -> Result<(), DropReason> {
    let cutter = Cutter::new(frame, gso, caps)?;
    let queued_before = out.len();
    for index in 0..cutter.segment_count {
        match cutter.cut(index, pool) {
            Ok(segment) => out.push_back(segment),
            Err(reason) => {
                while out.len() > queued_before {
                    out.pop_back().into_iter().for_each(|segment| pool.recycle(segment));
                }
                return Err(reason);
            }
        }
    }
    Ok(())
}

/// What all segments of one frame share.
struct Cutter<'frame> {
    frame: &'frame Frame,
    headers: Headers,
    /// All headers, Ethernet to TCP or UDP.
    header: &'frame [u8],
    payload: &'frame [u8],
    segment_len: usize,
    segment_count: usize,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    checksum: Checksum,
    transport: CutTransport,
    ipv4_id: u16,
}

/// What differs in the headers of one frame's segments.
enum CutTransport {
    Tcp {
        sequence: u32,
        flags: u8,
    },
    /// Only the length differs between datagrams.
    Udp,
}

impl<'frame> Cutter<'frame> {
    fn new(frame: &'frame Frame, gso: Gso, caps: OffloadCaps) -> Result<Self, DropReason> {
        let headers = gso_headers(frame.bytes(), frame.len(), gso.kind)?;
        let packet = frame.bytes().get(..headers.end).ok_or(DropReason::BadOffload)?;
        let (header, payload) =
            packet.split_at_checked(headers.payload).ok_or(DropReason::BadOffload)?;
        let segment_len = usize::from(gso.size);
        let segment_count = segment_count(payload.len(), segment_len);
        if segment_len == 0
            || segment_count > SEGMENTS_MAX
            || header.len() > HEADERS_LEN_MAX
            || output_len(header.len(), packet.len(), segment_len) > OUTPUT_LEN_MAX
        {
            return Err(DropReason::BadOffload);
        }
        let checksum = match takes_blank(caps, headers.version) {
            true => Checksum::Blank,
            false => Checksum::Validated,
        };
        let transport = gso.kind.transport();
        Ok(Cutter {
            frame,
            header,
            payload,
            segment_len,
            segment_count,
            pseudo: pseudo_sum(headers.addresses(packet), transport, 0),
            checksum,
            transport: CutTransport::read(transport, header, headers.l4)?,
            ipv4_id: u16::from_be_bytes(read(header, headers.l3 + IPV4_ID_OFFSET)?),
            headers,
        })
    }

    fn cut(&self, index: usize, pool: &mut FramePool) -> Result<Frame, DropReason> {
        let start = index * self.segment_len;
        let end = self.payload.len().min(start + self.segment_len);
        let data = self.payload.get(start..end).unwrap_or_default();
        let mut segment = pool.take(self.header.len() + data.len()).ok_or(DropReason::NoBuffer)?;
        match self.fill(segment.bytes_mut(), index, data) {
            Ok(()) => {
                segment.offload = Offload { checksum: self.checksum, gso: None };
                segment.flow = self.frame.flow;
                Ok(segment)
            }
            Err(reason) => {
                pool.recycle(segment);
                Err(reason)
            }
        }
    }

    fn fill(&self, segment: &mut [u8], index: usize, data: &[u8]) -> Result<(), DropReason> {
        let (header, payload) =
            segment.split_at_mut_checked(self.header.len()).ok_or(DropReason::BadOffload)?;
        header.copy_from_slice(self.header);
        payload.copy_from_slice(data);
        let headers = Headers { end: segment.len(), ..self.headers };
        self.fill_ip(segment, index, &headers)?;
        let transport = match self.transport {
            CutTransport::Tcp { sequence, flags } => {
                self.fill_tcp(segment, index, &headers, sequence, flags)?;
                Transport::Tcp
            }
            CutTransport::Udp => {
                let len = number(headers.end - headers.l4)?;
                write(segment, headers.l4 + UDP_LEN_OFFSET, len.to_be_bytes())?;
                Transport::Udp
            }
        };
        self.fill_checksum(segment, &headers, transport)
    }

    fn fill_ip(
        &self,
        segment: &mut [u8],
        index: usize,
        headers: &Headers,
    ) -> Result<(), DropReason> {
        match headers.version {
            IpVersion::V4 => {
                let id = self.ipv4_id.wrapping_add(number(index)?);
                write(segment, headers.l3 + IPV4_ID_OFFSET, id.to_be_bytes())?;
                let len = number(headers.end - headers.l3)?;
                write(segment, headers.l3 + IPV4_LEN_OFFSET, len.to_be_bytes())?;
                complete_ipv4_header(segment, headers)
            }
            IpVersion::V6 => {
                let len = number(headers.end - headers.l3 - IPV6_LEN)?;
                write(segment, headers.l3 + IPV6_LEN_OFFSET, len.to_be_bytes())
            }
        }
    }

    fn fill_tcp(
        &self,
        segment: &mut [u8],
        index: usize,
        headers: &Headers,
        sequence: u32,
        mut flags: u8,
    ) -> Result<(), DropReason> {
        let advance = u32::try_from(index * self.segment_len).or(Err(DropReason::BadOffload))?;
        let [s0, s1, s2, s3] = sequence.wrapping_add(advance).to_be_bytes();
        write(segment, headers.l4 + TCP_SEQUENCE_OFFSET, [s0, s1])?;
        write(segment, headers.l4 + TCP_SEQUENCE_OFFSET + 2, [s2, s3])?;

        if index > 0 {
            // The congestion window was reduced once only.
            flags &= !TCP_CWR;
        }
        if index + 1 < self.segment_count {
            flags &= !(TCP_FIN | TCP_PSH);
        }
        let flags_at = headers.l4 + TCP_FLAGS_OFFSET;
        *segment.get_mut(flags_at).ok_or(DropReason::BadOffload)? = flags;
        Ok(())
    }

    fn fill_checksum(
        &self,
        segment: &mut [u8],
        headers: &Headers,
        transport: Transport,
    ) -> Result<(), DropReason> {
        let pseudo = self.pseudo.and_u16(number(headers.end - headers.l4)?);
        let field = headers.l4 + transport.checksum_offset();
        write(segment, field, pseudo.fold())?;
        if self.checksum != Checksum::Blank {
            let summed = segment.get(headers.l4..).ok_or(DropReason::BadOffload)?;
            let checksum = Sum::of(summed).checksum();
            write(segment, field, never_zero(transport, checksum))?;
        }
        Ok(())
    }
}

impl CutTransport {
    fn read(transport: Transport, header: &[u8], l4: usize) -> Result<CutTransport, DropReason> {
        Ok(match transport {
            Transport::Udp => CutTransport::Udp,
            Transport::Tcp => {
                let [flags] = read(header, l4 + TCP_FLAGS_OFFSET)?;
                let sequence = u32::from_be_bytes(read(header, l4 + TCP_SEQUENCE_OFFSET)?);
                CutTransport::Tcp { sequence, flags }
            }
        })
    }
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], DropReason> {
    chunk(bytes, at).ok_or(DropReason::BadOffload)
}

/// A length for a 16-bit field. A frame whose IP length is 0 may be longer than any packet.
fn number(value: usize) -> Result<u16, DropReason> {
    u16::try_from(value).or(Err(DropReason::BadOffload))
}

// A segment's index is added to a 16-bit identification.
const _: () = assert!(SEGMENTS_MAX < 65536);
