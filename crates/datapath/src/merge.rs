//! TCP frames of one flow that continue each other, as one frame: what the receiving kernel would
//! make of them (GRO), made before they are written to it, so that it has fewer frames to handle.
//! [`merge_batch`] does so for a guest with what was read for it.
//!
//! Of frames to be written, only those with pending segmentation begin a run. What joins it follows
//! the rules of Linux (`tcp_gro_receive` in `net/ipv4/tcp_offload.c`, `inet_gro_receive` in
//! `net/ipv4/af_inet.c`): cutting the whole gives the segments that the frames would have been cut
//! into. Two rules differ. Linux keeps the first window that is advertised and ends a run at PSH;
//! here another window ends it, and PSH does not: the whole has it if one of its frames has it, and
//! what follows is here already, so that nothing waits.
//!
//! Over IPv4 the whole may exceed 64 KiB. Its header then has the length 0, which Linux reads as
//! "all that is in the buffer" from 6.3 on (`iph_totlen`).

mod batch;

use arrayvec::ArrayVec;
use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6, VirtioNetHdr,
};

use crate::checksum::{Sum, complete_ipv4_header, pseudo_sum, set_pseudo, write};
use crate::fields::{
    IPV4_CHECKSUM_OFFSET, IPV4_DF, IPV4_FLAGS_OFFSET, IPV4_LEN_OFFSET, IPV6_LEN_OFFSET, TCP_ACK,
    TCP_ECE, TCP_FIN, TCP_FLAGS_OFFSET, TCP_PSH, TCP_SEQUENCE_OFFSET,
};
use crate::frame::SEGMENT_USUAL;
use crate::headers::{ETH_LEN, Headers, IPV6_LEN, IpVersion, PROTO_TCP, Transport, chunk};
use crate::{Checksum, Frame, Gso, GsoKind, Offload};

pub use batch::merge_batch;

/// The most bytes of headers of a run: Ethernet, IPv6 without extensions, TCP with all options.
const HEAD_MAX: usize = ETH_LEN + IPV6_LEN + 60; // not a limit: longer ones are not merged

/// Headers of frames that are merged.
pub type Head = ArrayVec<u8, HEAD_MAX>;

/// Frames of a flow that were found to continue each other. It has no bytes but their headers.
#[derive(Debug)]
pub struct Run {
    headers: Headers,
    gso: Gso,
    /// The headers of the first frame, with the flags of all.
    head: Head,
    /// Data of all frames together, in bytes.
    payload: usize,
    /// The most bytes of the whole.
    len_max: usize,
    /// Whether its frames are as they were on a wire, each one segment.
    is_plain: bool,
    /// Nothing may follow: the last frame ended with a short segment, or the connection.
    is_closed: bool,
}

/// What a frame is to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It follows the run and now belongs to it.
    Next,
    /// It is of another flow, so it may leave after the run.
    Elsewhere,
    /// It may be of the same flow, and does not join: the run ends here, so that order is kept.
    Behind,
}

impl Run {
    /// A run that this frame begins, of at most `len_max` bytes; `None` if nothing could join it.
    #[inline]
    pub fn begin(first: &Frame, len_max: usize) -> Option<Run> {
        let gso = first.offload.gso?;
        if first.len() >= len_max || gso.kind.transport() != Transport::Tcp {
            return None;
        }
        Run::of(first, first.headers()?, gso, len_max)
    }

    /// A run of frames as they were on a wire, which this one begins, of at most `len_max` bytes.
    /// Shorter segments would count as abuse: see [`Frame::excess_segments`].
    fn begin_plain(first: &Frame, headers: Headers, len_max: usize) -> Option<Run> {
        let size = headers.end - headers.payload;
        if first.offload != Offload::NONE || size < SEGMENT_USUAL {
            return None;
        }
        let gso = Gso { kind: GsoKind::tcp(headers.version), size: u16::try_from(size).ok()? };
        let run = Run::of(first, headers, gso, len_max).filter(|_| is_sound(first, &headers))?;
        Some(Run { is_plain: true, ..run })
    }

    fn of(first: &Frame, headers: Headers, gso: Gso, len_max: usize) -> Option<Run> {
        if gso.kind.version() != headers.version || !is_mergeable(first, &headers) {
            return None;
        }
        let head = Head::try_from(first.bytes().get(..headers.payload)?).ok()?;
        let payload = headers.end - headers.payload;
        let (is_plain, is_closed) = (false, false);
        let run = Run { headers, gso, head, payload, len_max, is_plain, is_closed };
        (!run.is_last(run.head[headers.l4 + TCP_FLAGS_OFFSET], payload)).then_some(run)
    }

    /// Whether nothing may follow a frame with these flags and so much data.
    fn is_last(&self, flags: u8, payload: usize) -> bool {
        flags & TCP_FIN != 0 || payload % usize::from(self.gso.size.max(1)) != 0
    }

    /// Whether no frame can join any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Where a frame that leaves after the run's frames belongs.
    pub fn place(&mut self, next: &Frame) -> Place {
        match next.headers() {
            Some(headers) => self.place_of(next, &headers),
            None => Place::Elsewhere,
        }
    }

    fn place_of(&mut self, next: &Frame, headers: &Headers) -> Place {
        if !self.may_be_same_flow(next.bytes(), headers) {
            return Place::Elsewhere;
        }
        match self.joined(next, headers) {
            Some(()) => Place::Next,
            None => Place::Behind,
        }
    }

    /// A fragment has no ports, so it may belong to any flow between its addresses.
    fn may_be_same_flow(&self, next: &[u8], headers: &Headers) -> bool {
        let own = &self.headers;
        let ports = headers.ports(next);
        headers.version == own.version
            && headers.protocol == PROTO_TCP
            && headers.addresses(next) == own.addresses(&self.head)
            && (ports.is_none() || ports == own.ports(&self.head))
    }

    /// Adds a frame of the flow; `None` if it does not continue the run.
    fn joined(&mut self, next: &Frame, headers: &Headers) -> Option<()> {
        let payload = headers.end - headers.payload;
        let size = usize::from(self.gso.size);
        let has_size = match next.offload.gso {
            _ if self.is_plain => next.offload == Offload::NONE && payload <= size,
            Some(gso) => gso == self.gso,
            None => next.offload.checksum == Checksum::Blank && payload <= size,
        };
        let whole = self.head.len() + self.payload + payload;
        let fits = has_size && whole <= self.len_max && whole <= self.longest();
        if self.is_closed || !fits || !is_mergeable(next, headers) {
            return None;
        }
        let head = next.bytes().get(..headers.payload)?;
        let follows = sequence(&self.head, headers.l4)?.wrapping_add(self.payload.try_into().ok()?);
        if !self.is_like(headers, head) || sequence(head, headers.l4)? != follows {
            return None;
        }
        if self.is_plain && !is_sound(next, headers) {
            return None;
        }
        let flags = head[headers.l4 + TCP_FLAGS_OFFSET];
        self.head[headers.l4 + TCP_FLAGS_OFFSET] |= flags;
        self.payload += payload;
        self.is_closed = self.is_last(flags, payload);
        Some(())
    }

    /// Whether the headers of a frame differ from those of the run only where segments of a frame
    /// do.
    fn is_like(&self, headers: &Headers, head: &[u8]) -> bool {
        let Headers { l3, l4, payload, version, .. } = self.headers;
        if (headers.l3, headers.l4, headers.payload) != (l3, l4, payload) {
            return false;
        }
        let of_tcp = [(l4 + TCP_SEQUENCE_OFFSET, 4), (l4 + Transport::Tcp.checksum_offset(), 2)];
        // The identification follows the length.
        let of_ip: &[_] = match version {
            IpVersion::V4 => &[(l3 + IPV4_LEN_OFFSET, 4), (l3 + IPV4_CHECKSUM_OFFSET, 2)],
            IpVersion::V6 => &[(l3 + IPV6_LEN_OFFSET, 2)],
        };
        let mut expected = self.head.clone();
        for &(at, len) in of_ip.iter().chain(&of_tcp) {
            expected[at..at + len].copy_from_slice(&head[at..at + len]);
        }
        let flags_at = l4 + TCP_FLAGS_OFFSET;
        expected[flags_at] &= !(TCP_FIN | TCP_PSH);
        expected[flags_at] |= head[flags_at] & (TCP_FIN | TCP_PSH);
        expected[..] == *head
    }

    /// The most bytes that headers can describe. Over IPv6, a longer packet needs an option that
    /// guests may not know.
    fn longest(&self) -> usize {
        match self.headers.version {
            IpVersion::V4 => usize::MAX,
            IpVersion::V6 => self.headers.l3 + IPV6_LEN + usize::from(u16::MAX),
        }
    }

    /// The headers of the whole, and the virtio-net header to put before them. The data of the
    /// frames follows, each without the headers before it.
    pub fn finish(mut self) -> (VirtioNetHdr, Head) {
        let end = self.head.len() + self.payload;
        let headers = Headers { end, ..self.headers };
        let (at, len) = ip_len(&headers);
        let filled = write(&mut self.head, at, len)
            .and_then(|()| complete_ipv4_header(&mut self.head, &headers))
            .and_then(|()| set_pseudo(&mut self.head, &headers));
        debug_assert_eq!(filled, Ok(()), "headers of a frame that was parsed");
        let field = |offset: usize| u16::try_from(offset).unwrap_or(0);
        let header = VirtioNetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: match self.gso.kind {
                GsoKind::TcpV6 => VIRTIO_NET_HDR_GSO_TCPV6,
                _ => VIRTIO_NET_HDR_GSO_TCPV4,
            },
            hdr_len: field(headers.payload),
            gso_size: self.gso.size,
            csum_start: field(headers.l4),
            csum_offset: field(Transport::Tcp.checksum_offset()),
        };
        (header, self.head)
    }
}

/// Whether a frame could be part of a run: TCP data over IPv4 that is not to be
/// fragmented, without options, or over IPv6 without extensions; no VLAN tag and no padding; and of
/// flags only ACK, ECE, PSH and FIN.
fn is_mergeable(frame: &Frame, headers: &Headers) -> bool {
    let byte = |at: usize| frame.bytes().get(at).copied().unwrap_or_default();
    let ip_len = headers.l4 - headers.l3;
    let is_plain = match headers.version {
        IpVersion::V4 => ip_len == 20 && byte(headers.l3 + IPV4_FLAGS_OFFSET) & IPV4_DF != 0,
        IpVersion::V6 => ip_len == IPV6_LEN,
    };
    let flags = byte(headers.l4 + TCP_FLAGS_OFFSET);
    let is_data = headers.transport == Some(Transport::Tcp)
        && headers.payload < headers.end
        && flags & !(TCP_ECE | TCP_PSH | TCP_FIN) == TCP_ACK;
    is_plain && is_data && headers.l3 == ETH_LEN && headers.end == frame.len()
}

/// Where an IP header has the length of its packet, and that length; 0 if it is too long.
fn ip_len(headers: &Headers) -> (usize, [u8; 2]) {
    let (at, len) = match headers.version {
        IpVersion::V4 => (IPV4_LEN_OFFSET, headers.end - headers.l3),
        IpVersion::V6 => (IPV6_LEN_OFFSET, headers.end - headers.l3 - IPV6_LEN),
    };
    (headers.l3 + at, u16::try_from(len).unwrap_or(0).to_be_bytes())
}

/// Whether the checksums of a TCP frame are right, that of an IPv4 header among them, and the
/// length of its packet.
fn is_sound(frame: &Frame, headers: &Headers) -> bool {
    let bytes = frame.bytes();
    let (at, len) = ip_len(headers);
    let Some(segment) = bytes.get(headers.l4..headers.end) else { return false };
    let is_right = |sum: Sum| sum.checksum() == [0, 0];
    let is_header_right = match headers.version {
        IpVersion::V4 => is_right(Sum::of(&bytes[headers.l3..headers.l4])),
        IpVersion::V6 => true,
    };
    let pseudo = pseudo_sum(headers.addresses(bytes), Transport::Tcp, segment.len());
    chunk(bytes, at) == Some(len) && is_header_right && is_right(pseudo.and(Sum::of(segment)))
}

fn sequence(head: &[u8], l4: usize) -> Option<u32> {
    chunk(head, l4 + TCP_SEQUENCE_OFFSET).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
