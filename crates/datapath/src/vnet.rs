//! [`Offload`] to and from `struct virtio_net_hdr`, for TAP devices and virtio-net guests.
//!
//! Both directions distrust their input: they compare the header's numbers with the frame's own
//! headers, so that an [`Offload`] never asks for what a later station cannot do.

use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_DATA_VALID, VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN,
    VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
    VIRTIO_NET_HDR_GSO_UDP_L4, VirtioNetHdr,
};

use crate::checksum::{complete_at, complete_parsed, set_pseudo};
use crate::fields::{TCP_CWR, TCP_FLAGS_OFFSET, UDP_LEN_OFFSET};
use crate::headers::{ETH_LEN, Headers, IpVersion, Transport, chunk, parse, parse_head};
use crate::{Checksum, DropReason, Frame, FramePool, Gso, GsoKind, Offload};

/// Reads the pending work of a frame from the header before it. The frame changes only if the blank
/// checksum is not a TCP or UDP one: that one is completed here, in software.
///
/// # Errors
/// [`DropReason::BadOffload`] if the header asks for segmentation that [`Gso`] does not know or
/// that the frame's headers contradict, or for a checksum that is outside the frame, or covers its
/// headers.
#[inline]
pub fn offload_from_vnet(hdr: &VirtioNetHdr, frame: &mut [u8]) -> Result<Offload, DropReason> {
    if hdr.gso_type != VIRTIO_NET_HDR_GSO_NONE {
        return gso_from_vnet(hdr, frame, frame.len());
    }
    let checksum = if hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
        let (start, offset) = (usize::from(hdr.csum_start), usize::from(hdr.csum_offset));
        let headers = parse(frame);
        if headers.is_some_and(|headers| is_standard_place(&headers, start, offset)) {
            Checksum::Blank
        } else {
            if start < first_checksum_start(headers.as_ref())? {
                return Err(DropReason::BadOffload);
            }
            complete_at(frame, start, offset)?;
            Checksum::Validated
        }
    } else if hdr.flags & VIRTIO_NET_HDR_F_DATA_VALID != 0 {
        Checksum::Validated
    } else {
        Checksum::Unverified
    };
    Ok(Offload { checksum, gso: None })
}

/// [`offload_from_vnet`] for a frame whose end may be in pages: the end stays in pages if the frame
/// is to be segmented and its headers precede it.
///
/// # Errors
/// As [`offload_from_vnet`].
#[inline]
pub fn offload_of(
    hdr: &VirtioNetHdr,
    frame: &mut Frame,
    pool: &mut FramePool,
) -> Result<Offload, DropReason> {
    if !frame.is_complete() {
        let is_gso = hdr.gso_type != VIRTIO_NET_HDR_GSO_NONE;
        if let (true, Ok(offload)) = (is_gso, gso_from_vnet(hdr, frame.bytes(), frame.len())) {
            return Ok(offload);
        }
        pool.complete(frame)?;
    }
    offload_from_vnet(hdr, frame.bytes_mut())
}

fn gso_from_vnet(hdr: &VirtioNetHdr, frame: &[u8], len: usize) -> Result<Offload, DropReason> {
    let headers = parse_head(frame, len).ok_or(DropReason::BadOffload)?;
    let kind = match (hdr.gso_type & !VIRTIO_NET_HDR_GSO_ECN, headers.version) {
        (VIRTIO_NET_HDR_GSO_TCPV4, _) => GsoKind::TcpV4,
        (VIRTIO_NET_HDR_GSO_TCPV6, _) => GsoKind::TcpV6,
        // Only TCP has congestion windows.
        (VIRTIO_NET_HDR_GSO_UDP_L4, _) if hdr.gso_type & VIRTIO_NET_HDR_GSO_ECN != 0 => {
            return Err(DropReason::BadOffload);
        }
        (VIRTIO_NET_HDR_GSO_UDP_L4, IpVersion::V4) => GsoKind::UdpV4,
        (VIRTIO_NET_HDR_GSO_UDP_L4, IpVersion::V6) => GsoKind::UdpV6,
        _ => return Err(DropReason::BadOffload),
    };
    check_kind(frame, &headers, kind)?;
    let (start, offset) = (usize::from(hdr.csum_start), usize::from(hdr.csum_offset));
    let needs_checksum = hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0;
    if hdr.gso_size == 0 || (needs_checksum && !is_standard_place(&headers, start, offset)) {
        return Err(DropReason::BadOffload);
    }
    // Each segment gets its own checksum, so the checksum of the whole is always blank.
    Ok(Offload { checksum: Checksum::Blank, gso: Some(Gso { kind, size: hdr.gso_size }) })
}

/// The header to put before a frame that leaves with `offload`. If the checksum is blank, as in
/// every frame with pending segmentation, the pseudo-header's sum is written into its field, as the
/// receiver expects.
///
/// `hdr_len` covers all headers; a receiver must treat it as a hint only.
///
/// # Errors
/// [`DropReason::BadOffload`] if the frame's headers do not match `offload`.
#[inline]
pub fn vnet_from_offload(offload: &Offload, frame: &mut [u8]) -> Result<VirtioNetHdr, DropReason> {
    let len = frame.len();
    vnet_from_head(offload, frame, len)
}

/// The header to put before a frame that is written to a TAP device, and whose end may be in pages:
/// the end stays in pages if the required headers precede it.
///
/// Linux does not read `VIRTIO_NET_HDR_F_DATA_VALID` there, as drivers of virtio-net do. It would
/// verify the checksum, and drop the packet if the sender marked it valid without writing one. A
/// blank checksum needs no verification, so a validated one becomes blank. If frames must be plain,
/// as the device passes them on to who takes none that are blank, it is completed.
///
/// # Errors
/// As [`vnet_from_offload`].
#[inline]
pub fn vnet_for_tap(
    frame: &mut Frame,
    is_plain: bool,
    pool: &mut FramePool,
) -> Result<VirtioNetHdr, DropReason> {
    const VALIDATED: Offload = Offload { checksum: Checksum::Validated, gso: None };
    if frame.offload == VALIDATED {
        return vnet_of_validated(frame, is_plain, pool);
    }
    let (offload, len) = (frame.offload, frame.len());
    match vnet_from_head(&offload, frame.bytes_mut(), len) {
        Err(_) if !frame.is_complete() => {
            pool.complete(frame)?;
            vnet_from_offload(&offload, frame.bytes_mut())
        }
        made => made,
    }
}

/// The header of a validated frame with its checksum made blank, if it has one. It is completed
/// where frames must be plain, for a DHCP client, as in [`prepare`](crate::segment::prepare), and
/// where padding follows the packet: the receiver of a blank checksum adds up all bytes to the end
/// of the frame.
#[inline(never)]
fn vnet_of_validated(
    frame: &mut Frame,
    is_plain: bool,
    pool: &mut FramePool,
) -> Result<VirtioNetHdr, DropReason> {
    let Some(headers) = frame.headers().filter(|headers| headers.transport.is_some()) else {
        return Ok(VirtioNetHdr::default());
    };
    let is_padded = headers.end < frame.len();
    if is_plain || is_padded || headers.is_for_dhcp_client(frame.bytes()) {
        pool.complete(frame)?;
        complete_parsed(frame.bytes_mut(), &headers)?;
        return Ok(VirtioNetHdr::default());
    }
    needs_checksum(frame.bytes_mut(), &headers)
}

/// The header of a frame of `len` bytes of which `frame` has only the first.
#[inline]
fn vnet_from_head(
    offload: &Offload,
    frame: &mut [u8],
    len: usize,
) -> Result<VirtioNetHdr, DropReason> {
    match (offload.gso, offload.checksum) {
        (None, Checksum::Unverified) => Ok(VirtioNetHdr::default()),
        (None, Checksum::Validated) => {
            Ok(VirtioNetHdr { flags: VIRTIO_NET_HDR_F_DATA_VALID, ..VirtioNetHdr::default() })
        }
        (None, Checksum::Blank) => {
            let headers = parse_head(frame, len).ok_or(DropReason::BadOffload)?;
            needs_checksum(frame, &headers)
        }
        (Some(gso), _) => {
            let headers = gso_headers(frame, len, gso.kind)?;
            let with_ecn = |gso_type: u8, frame: &[u8]| {
                let flags = frame.get(headers.l4 + TCP_FLAGS_OFFSET).copied().unwrap_or_default();
                gso_type | if flags & TCP_CWR != 0 { VIRTIO_NET_HDR_GSO_ECN } else { 0 }
            };
            let gso_type = match gso.kind {
                GsoKind::TcpV4 => with_ecn(VIRTIO_NET_HDR_GSO_TCPV4, frame),
                GsoKind::TcpV6 => with_ecn(VIRTIO_NET_HDR_GSO_TCPV6, frame),
                GsoKind::UdpV4 | GsoKind::UdpV6 => VIRTIO_NET_HDR_GSO_UDP_L4,
            };
            Ok(VirtioNetHdr { gso_type, gso_size: gso.size, ..needs_checksum(frame, &headers)? })
        }
    }
}

#[inline]
fn needs_checksum(frame: &mut [u8], headers: &Headers) -> Result<VirtioNetHdr, DropReason> {
    let transport = headers.transport.ok_or(DropReason::BadOffload)?;
    set_pseudo(frame, headers)?;
    let field = |offset: usize| u16::try_from(offset).map_err(|_| DropReason::BadOffload);
    Ok(VirtioNetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        hdr_len: field(headers.payload)?,
        csum_start: field(headers.l4)?,
        csum_offset: field(transport.checksum_offset())?,
        ..VirtioNetHdr::default()
    })
}

/// The headers of a frame that is to be cut as `kind`: `len` bytes, of which `frame` has the first.
#[inline]
pub(crate) fn gso_headers(frame: &[u8], len: usize, kind: GsoKind) -> Result<Headers, DropReason> {
    let headers = parse_head(frame, len).ok_or(DropReason::BadOffload)?;
    check_kind(frame, &headers, kind)?;
    Ok(headers)
}

/// Whether a frame with these headers can be cut as `kind`. The length in a UDP header must be that
/// of the packet.
#[inline]
fn check_kind(frame: &[u8], headers: &Headers, kind: GsoKind) -> Result<(), DropReason> {
    let is_right = headers.version == kind.version()
        && headers.transport == Some(kind.transport())
        && match kind.transport() {
            Transport::Tcp => true,
            Transport::Udp => chunk(frame, headers.l4 + UDP_LEN_OFFSET).is_some_and(|len| {
                usize::from(u16::from_be_bytes(len)) == headers.end - headers.l4
            }),
        };
    if is_right { Ok(()) } else { Err(DropReason::BadOffload) }
}

#[inline]
fn is_standard_place(headers: &Headers, start: usize, offset: usize) -> bool {
    headers.l4 == start && headers.transport.is_some_and(|found| found.checksum_offset() == offset)
}

/// The least offset at which a checksum may start that is not the usual one of TCP or UDP: behind
/// the headers that deliver the frame, since completing it writes into the frame. UDP may carry
/// another packet, such as that of a tunnel; TCP may not.
fn first_checksum_start(headers: Option<&Headers>) -> Result<usize, DropReason> {
    let Some(headers) = headers else { return Ok(ETH_LEN) };
    match headers.transport {
        None => Ok(headers.l4),
        Some(Transport::Udp) => Ok(headers.payload),
        Some(Transport::Tcp) => Err(DropReason::BadOffload),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use crate::checksum::complete;
    use crate::{FramePool, PoolBudget};

    #[test]
    fn a_blank_checksum_survives_a_round_trip() {
        for is_tcp in [true, false] {
            let complete = packet(is_tcp);
            let mut frame = complete.clone();
            let blank = Offload { checksum: Checksum::Blank, gso: None };
            let hdr = vnet_from_offload(&blank, &mut frame).unwrap();
            assert_eq!(hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
            assert_eq!((hdr.csum_start, hdr.csum_offset), (34, if is_tcp { 16 } else { 6 }));
            assert_eq!(hdr.hdr_len, if is_tcp { 54 } else { 42 });
            assert_eq!(offload_from_vnet(&hdr, &mut frame), Ok(blank));
            // Completing it, as the receiver does, gives the checksum that a sender would have
            // written.
            complete_at(&mut frame, 34, usize::from(hdr.csum_offset)).unwrap();
            assert_eq!(frame, complete);
        }
    }

    #[test]
    fn checksum_states_without_work_need_no_headers() {
        for (checksum, flags) in [(Checksum::Unverified, 0), (Checksum::Validated, 2)] {
            let offload = Offload { checksum, gso: None };
            let hdr = VirtioNetHdr { flags, ..VirtioNetHdr::default() };
            assert_eq!(vnet_from_offload(&offload, &mut []), Ok(hdr));
            assert_eq!(offload_from_vnet(&hdr, &mut []), Ok(offload));
        }
    }

    #[test]
    fn a_gso_frame_survives_a_round_trip_and_always_needs_its_checksum() {
        let offload = Offload {
            checksum: Checksum::Blank,
            gso: Some(Gso { kind: GsoKind::TcpV4, size: 1448 }),
        };
        for cwr in [0, TCP_CWR] {
            let mut frame = packet(true);
            frame[34 + TCP_FLAGS_OFFSET] |= cwr;
            for checksum in [Checksum::Blank, Checksum::Validated, Checksum::Unverified] {
                let hdr = vnet_from_offload(&Offload { checksum, ..offload }, &mut frame).unwrap();
                assert_eq!(hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
                assert_eq!(hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4 | cwr);
                assert_eq!((hdr.gso_size, hdr.hdr_len), (1448, 54));
                assert_eq!(offload_from_vnet(&hdr, &mut frame), Ok(offload));
            }
        }
    }

    #[test]
    fn segmentation_that_contradicts_the_frame_is_refused() {
        let good = VirtioNetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: VIRTIO_NET_HDR_GSO_TCPV4,
            hdr_len: 54,
            gso_size: 100,
            csum_start: 34,
            csum_offset: 16,
        };
        assert!(offload_from_vnet(&good, &mut packet(true)).is_ok());
        let refused = Err(DropReason::BadOffload);
        for bad in [
            VirtioNetHdr { gso_size: 0, ..good },
            VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_TCPV6, ..good },
            VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_ECN, ..good },
            VirtioNetHdr { gso_type: 3, ..good },
            VirtioNetHdr { csum_start: 33, ..good },
            VirtioNetHdr { csum_offset: 6, ..good },
        ] {
            assert_eq!(offload_from_vnet(&bad, &mut packet(true)), refused, "{bad:?}");
        }
        assert_eq!(offload_from_vnet(&good, &mut packet(false)), refused);
        assert_eq!(offload_from_vnet(&good, &mut []), refused);

        let v6 = Offload { gso: Some(Gso { kind: GsoKind::TcpV6, size: 9 }), ..Offload::default() };
        assert_eq!(vnet_from_offload(&v6, &mut packet(true)).unwrap_err(), DropReason::BadOffload);
    }

    #[test]
    fn a_checksum_of_another_protocol_is_completed_at_once() {
        // An ICMP echo request whose checksum the sender left to its device.
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 1, 2, 3], [10, 1, 2, 4], 64)
            .icmpv4_echo_request(1, 2)
            .write(&mut frame, b"payload")
            .unwrap();
        let expected = frame.clone();
        frame[36..38].fill(0);
        let hdr = VirtioNetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            csum_start: 34,
            csum_offset: 2,
            ..VirtioNetHdr::default()
        };
        let offload = offload_from_vnet(&hdr, &mut frame).unwrap();
        assert_eq!(offload, Offload { checksum: Checksum::Validated, gso: None });
        assert_eq!(frame, expected);

        let outside = VirtioNetHdr { csum_start: 34, csum_offset: u16::MAX, ..hdr };
        assert_eq!(offload_from_vnet(&outside, &mut frame), Err(DropReason::BadOffload));
        assert_eq!(frame, expected);
    }

    #[test]
    fn a_checksum_over_the_headers_of_a_frame_is_refused() {
        let asked = |frame: &[u8], csum_start, csum_offset| {
            let flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
            let hdr = VirtioNetHdr { flags, csum_start, csum_offset, ..VirtioNetHdr::default() };
            let mut after = frame.to_vec();
            let read = offload_from_vnet(&hdr, &mut after);
            if read.is_err() {
                assert_eq!((read, &*after), (Err(DropReason::BadOffload), frame));
            }
            read.is_ok()
        };
        let (tcp, udp) = (packet(true), packet(false));
        // The addresses and the type of Ethernet; the addresses of IP; a place within the header.
        for (start, offset) in [(0, 0), (12, 0), (14, 12), (26, 0), (30, 0), (33, 1), (34, 0)] {
            assert!(!asked(&tcp, start, offset) && !asked(&udp, start, offset), "{start}+{offset}");
        }
        assert!(!asked(&tcp, 36, 14) && !asked(&tcp, 54, 16) && !asked(&udp, 41, 6));
        // What a tunnel carries.
        assert!(asked(&udp, 42, 16) && asked(&udp, 90, 6));
        let mut other = tcp;
        other[23] = 47;
        assert!(asked(&other, 34, 0) && asked(&other, 58, 16) && !asked(&other, 33, 20));
        // Not IP.
        other[12..14].copy_from_slice(&[0x88, 0x64]);
        assert!(asked(&other, 14, 0) && asked(&other, 22, 16) && !asked(&other, 13, 16));
    }

    #[test]
    fn a_validated_checksum_that_is_for_a_tap_device_becomes_blank_unless_frames_are_plain() {
        let written = |bytes: &[u8], is_plain| {
            let mut pool = FramePool::new(PoolBudget::new(1 << 16));
            let mut frame = pool.take(bytes.len()).unwrap();
            frame.bytes_mut().copy_from_slice(bytes);
            frame.offload.checksum = Checksum::Validated;
            let hdr = vnet_for_tap(&mut frame, is_plain, &mut pool).unwrap();
            (hdr, frame.bytes().to_vec())
        };
        let for_tap = |bytes: &[u8]| written(bytes, false);
        for is_tcp in [true, false] {
            let complete = packet(is_tcp);
            let (hdr, mut after) = for_tap(&complete);
            assert_eq!((hdr.flags, hdr.csum_start), (VIRTIO_NET_HDR_F_NEEDS_CSUM, 34));
            complete_at(&mut after, 34, usize::from(hdr.csum_offset)).unwrap();
            assert_eq!(after, complete);

            // Whether or not its sender has written one.
            let mut without = complete.clone();
            without[34 + usize::from(hdr.csum_offset)] ^= 1;
            for bytes in [&complete, &without] {
                assert_eq!(written(bytes, true), (VirtioNetHdr::default(), complete.clone()));
            }

            let mut padded = complete.clone();
            padded.extend([0x77; 7]);
            let expected = padded.clone();
            padded[34 + usize::from(hdr.csum_offset)] ^= 1;
            assert_eq!(for_tap(&padded), (VirtioNetHdr::default(), expected));
        }
        let mut for_dhcp_client = packet(false);
        for_dhcp_client[36..38].copy_from_slice(&[0, 68]);
        let (hdr, after) = for_tap(&for_dhcp_client);
        complete(&mut for_dhcp_client).unwrap();
        assert_eq!((hdr, after), (VirtioNetHdr::default(), for_dhcp_client));
        let mut fragment = packet(false);
        fragment[20] = 0x20;
        for (bytes, is_plain) in [(&fragment[..], false), (&[0; 60], false), (&fragment, true)] {
            assert_eq!(written(bytes, is_plain), (VirtioNetHdr::default(), bytes.to_vec()));
        }
    }

    #[test]
    fn arbitrary_headers_and_frames_cause_no_panic() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0005);
        for _ in 0..if cfg!(miri) { 100 } else { 100_000 } {
            let mut frame = packet(random.bool());
            let at = random.usize(..frame.len());
            frame[at] = random.u8(..);
            frame.truncate(random.usize(..=frame.len()));
            let hdr = VirtioNetHdr {
                flags: random.u8(..4),
                gso_type: random.u8(..6) | if random.bool() { 0x80 } else { 0 },
                hdr_len: random.u16(..),
                gso_size: random.u16(..),
                csum_start: random.u16(..100),
                csum_offset: random.u16(..40),
            };
            if let Ok(offload) = offload_from_vnet(&hdr, &mut frame) {
                vnet_from_offload(&offload, &mut frame).unwrap();
            }
        }
    }

    fn packet(is_tcp: bool) -> Vec<u8> {
        let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 1, 2, 3], [10, 1, 2, 4], 64);
        let mut frame = Vec::new();
        match is_tcp {
            true => ip.tcp(5001, 40_000, 7, 9).write(&mut frame, &[0x5a; 300]).unwrap(),
            false => ip.udp(5001, 40_000).write(&mut frame, &[0x5a; 300]).unwrap(),
        }
        frame
    }
}
