//! Between the virtio-net header and [`Offload`].
//!
//! A stand-in: TCP and UDP over IPv4 and IPv6 without VLAN tags or extension headers.

use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_DATA_VALID, VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN,
    VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6, VirtioNetHdr,
};

use crate::{Checksum, DropReason, Gso, GsoKind, Offload};

/// What the sender of a frame left undone, from the header before it.
///
/// # Errors
/// [`DropReason::BadOffload`] if it cannot be expressed.
pub fn offload_from_vnet(hdr: &VirtioNetHdr, _frame: &mut [u8]) -> Result<Offload, DropReason> {
    let checksum = if hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
        Checksum::Blank
    } else if hdr.flags & VIRTIO_NET_HDR_F_DATA_VALID != 0 {
        Checksum::Validated
    } else {
        Checksum::Unverified
    };
    let kind = match hdr.gso_type & !VIRTIO_NET_HDR_GSO_ECN {
        VIRTIO_NET_HDR_GSO_NONE => return Ok(Offload { checksum, gso: None }),
        VIRTIO_NET_HDR_GSO_TCPV4 => GsoKind::TcpV4,
        VIRTIO_NET_HDR_GSO_TCPV6 => GsoKind::TcpV6,
        _ => return Err(DropReason::BadOffload),
    };
    Ok(Offload { checksum, gso: Some(Gso { kind, size: hdr.gso_size }) })
}

/// The header that says what is still undone.
///
/// # Errors
/// [`DropReason::BadOffload`] if the frame is not what its offload says.
pub fn vnet_from_offload(offload: &Offload, frame: &mut [u8]) -> Result<VirtioNetHdr, DropReason> {
    let mut hdr = VirtioNetHdr::default();
    match offload.checksum {
        Checksum::Unverified => return Ok(hdr),
        Checksum::Validated => hdr.flags = VIRTIO_NET_HDR_F_DATA_VALID,
        Checksum::Blank => {
            let (start, field) = checksum_place(frame).ok_or(DropReason::BadOffload)?;
            hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
            (hdr.csum_start, hdr.csum_offset) = (start, field);
        }
    }
    if let Some(gso) = offload.gso {
        hdr.gso_type = match gso.kind {
            GsoKind::TcpV4 => VIRTIO_NET_HDR_GSO_TCPV4,
            GsoKind::TcpV6 => VIRTIO_NET_HDR_GSO_TCPV6,
        };
        hdr.gso_size = gso.size;
        let doff = frame.get(usize::from(hdr.csum_start) + 12).ok_or(DropReason::BadOffload)? >> 4;
        hdr.hdr_len = hdr.csum_start + u16::from(doff) * 4;
    }
    Ok(hdr)
}

/// Where the transport header starts, and where in it the checksum stands.
fn checksum_place(frame: &[u8]) -> Option<(u16, u16)> {
    let (start, protocol) = match *frame.get(12..14)? {
        [0x08, 0x00] => (14 + u16::from(frame.get(14)? & 0xf) * 4, frame.get(23)?),
        [0x86, 0xdd] => (14 + 40, frame.get(20)?),
        _ => return None,
    };
    match protocol {
        6 => Some((start, 16)),
        17 => Some((start, 6)),
        _ => None,
    }
}
