//! `struct virtio_net_hdr`, which a TAP device puts before each frame (`IFF_VNET_HDR`).
//!
//! Fields are in the host's byte order: the TAP default on both x86-64 and Arm64 Linux.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The 10-byte header (no `num_buffers`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VirtioNetHdr {
    /// `VIRTIO_NET_HDR_F_*` bits.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// Length of all headers, a hint.
    pub hdr_len: u16,
    /// Bytes of payload per segment.
    pub gso_size: u16,
    /// Where checksumming starts, from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum is stored, from `csum_start`.
    pub csum_offset: u16,
}

/// The checksum from `csum_start` on is still to be filled in.
pub const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
/// The checksums of this frame have been verified.
pub const VIRTIO_NET_HDR_F_DATA_VALID: u8 = 2;
/// Not a GSO frame.
pub const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
/// TCP over IPv4 segmentation.
pub const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
/// TCP over IPv6 segmentation.
pub const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
/// UDP segmentation, over IPv4 or IPv6: datagrams, not fragments.
pub const VIRTIO_NET_HDR_GSO_UDP_L4: u8 = 5;
/// Added to the type when the TCP header has ECN's CWR set.
pub const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

const _: () = assert!(size_of::<VirtioNetHdr>() == 10);
