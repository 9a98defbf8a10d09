//! The network interface protocol (`netif.h`, `XEN_NETIF_*` and `xen_netif_*`).
//!
//! Directions are the guest's: a *tx* request asks the backend to transmit for the guest. The
//! order of the flag bits differs between the directions (`CSUM_BLANK` is bit 0 of tx and bit 1 of
//! rx), so each direction has its own constants.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{PAGE_SIZE, ring};

/// Slots in a tx ring.
pub const TX_RING_SLOTS: usize = ring::slot_count(TX_SLOT_LEN);
/// Slots in an rx ring.
pub const RX_RING_SLOTS: usize = ring::slot_count(RX_SLOT_LEN);
/// The most slots that a frame of `len` bytes takes if all except the last are full: those of its
/// pages, and one that asks for segmentation.
pub fn slots_max(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE) + 1
}

/// Slots in a control ring.
pub const CTRL_RING_SLOTS: usize = ring::slot_count(CTRL_SLOT_LEN);

/// Bytes from one tx slot to the next: the union of request and response.
pub const TX_SLOT_LEN: usize = size_of::<TxRequest>();
/// Bytes from one rx slot to the next.
pub const RX_SLOT_LEN: usize = size_of::<RxRequest>();
/// Bytes from one control slot to the next.
pub const CTRL_SLOT_LEN: usize = size_of::<CtrlRequest>();

/// The largest frame a tx request chain can describe (`XEN_NETIF_MAX_TX_SIZE`).
pub const MAX_TX_SIZE: u16 = 0xffff;
/// Slots that every backend must accept for one packet (`XEN_NETIF_NR_SLOTS_MIN`).
pub const NR_SLOTS_MIN: usize = 18;

/// A part of a packet for the backend to transmit (`xen_netif_tx_request`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TxRequest {
    /// The page that holds the data.
    pub gref: u32,
    /// Where in that page the data starts.
    pub offset: u16,
    /// `NETTXF_*`.
    pub flags: u16,
    /// Chosen by the guest, echoed in the response.
    pub id: u16,
    /// Bytes: of the whole packet in its first request, of this slot in the others.
    pub size: u16,
}

//= netif.h:flag-bits
/// The checksum is still blank (`NETTXF_csum_blank`).
pub const NETTXF_CSUM_BLANK: u16 = 1 << 0;
/// The data has been validated against its checksum (`NETTXF_data_validated`).
pub const NETTXF_DATA_VALIDATED: u16 = 1 << 1;
/// The packet continues in the next request (`NETTXF_more_data`).
pub const NETTXF_MORE_DATA: u16 = 1 << 2;
/// The next slot holds an [`ExtraInfo`] (`NETTXF_extra_info`).
pub const NETTXF_EXTRA_INFO: u16 = 1 << 3;

/// The backend's response to one tx slot (`xen_netif_tx_response`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TxResponse {
    /// The request's id.
    pub id: u16,
    /// `NETIF_RSP_*`.
    pub status: i16,
}

/// A page that the guest posts for a received packet (`xen_netif_rx_request`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RxRequest {
    /// Chosen by the guest, echoed in the response.
    pub id: u16,
    /// Not used; zero.
    pub pad: u16,
    /// The page to write to.
    pub gref: u32,
}

/// The backend's response to one rx slot (`xen_netif_rx_response`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RxResponse {
    /// The request's id.
    pub id: u16,
    /// Where in the page the data starts.
    pub offset: u16,
    /// `NETRXF_*`.
    pub flags: u16,
    /// Bytes in this slot if not negative, else `NETIF_RSP_*`.
    pub status: i16,
}

/// The data has been validated against its checksum (`NETRXF_data_validated`).
pub const NETRXF_DATA_VALIDATED: u16 = 1 << 0;
/// The checksum is still blank (`NETRXF_csum_blank`).
pub const NETRXF_CSUM_BLANK: u16 = 1 << 1;
/// The packet continues in the next response (`NETRXF_more_data`).
pub const NETRXF_MORE_DATA: u16 = 1 << 2;
/// The next slot holds an [`ExtraInfo`] (`NETRXF_extra_info`).
pub const NETRXF_EXTRA_INFO: u16 = 1 << 3;

/// The request failed (`XEN_NETIF_RSP_ERROR`).
pub const NETIF_RSP_ERROR: i16 = -1;
/// The packet was dropped (`XEN_NETIF_RSP_DROPPED`).
pub const NETIF_RSP_DROPPED: i16 = -2;
/// The request was served (`XEN_NETIF_RSP_OKAY`).
pub const NETIF_RSP_OKAY: i16 = 0;
/// The slot held an extra and has no result (`XEN_NETIF_RSP_NULL`).
pub const NETIF_RSP_NULL: i16 = 1;

/// Metadata of a packet, in a separate slot (`xen_netif_extra_info`).
///
/// `kind` defines the meaning of the six bytes of `payload`; [`ExtraInfo::gso`] reads them for GSO.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ExtraInfo {
    /// `EXTRA_TYPE_*` (the C field is `type`).
    pub kind: u8,
    /// `EXTRA_FLAG_*`.
    pub flags: u8,
    /// The union of the C structure.
    pub payload: [u8; 6],
}

/// Invalid on the wire (`XEN_NETIF_EXTRA_TYPE_NONE`).
pub const EXTRA_TYPE_NONE: u8 = 0;
/// Segmentation offload (`XEN_NETIF_EXTRA_TYPE_GSO`).
pub const EXTRA_TYPE_GSO: u8 = 1;
/// Add a multicast address (`XEN_NETIF_EXTRA_TYPE_MCAST_ADD`).
pub const EXTRA_TYPE_MCAST_ADD: u8 = 2;
/// Remove a multicast address (`XEN_NETIF_EXTRA_TYPE_MCAST_DEL`).
pub const EXTRA_TYPE_MCAST_DEL: u8 = 3;
/// The flow hash of the packet (`XEN_NETIF_EXTRA_TYPE_HASH`).
pub const EXTRA_TYPE_HASH: u8 = 4;
/// The bytes before a packet that are free (`XEN_NETIF_EXTRA_TYPE_XDP`): of Linux, and not in the
/// public header.
pub const EXTRA_TYPE_XDP: u8 = 5;
/// One more than the last type of the public header (`XEN_NETIF_EXTRA_TYPE_MAX`).
pub const EXTRA_TYPE_MAX: u8 = 5;
/// Another extra follows this one (`XEN_NETIF_EXTRA_FLAG_MORE`).
pub const EXTRA_FLAG_MORE: u8 = 1 << 0;

/// The most bytes that ringway leaves free before a packet: half a page, so that a frame of 1500
/// bytes with its headers is still in one page, as programs of XDP need it.
pub const HEADROOM_MAX: u16 = 2048;

/// TCP over IPv4 (`XEN_NETIF_GSO_TYPE_TCPV4`).
pub const GSO_TYPE_TCPV4: u8 = 1;
/// TCP over IPv6 (`XEN_NETIF_GSO_TYPE_TCPV6`).
pub const GSO_TYPE_TCPV6: u8 = 2;

/// A message of the guest on the control ring (`xen_netif_ctrl_request`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CtrlRequest {
    /// Chosen by the guest, echoed in the response.
    pub id: u16,
    /// `CTRL_TYPE_*` (the C field is `type`).
    pub kind: u16,
    /// What they mean depends on `kind`.
    pub data: [u32; 3],
}

/// The backend's response to one message (`xen_netif_ctrl_response`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CtrlResponse {
    /// The request's id.
    pub id: u16,
    /// The request's `kind`.
    pub kind: u16,
    /// `CTRL_STATUS_*`.
    pub status: u32,
    /// What a successful request asked for, else zero.
    pub data: u32,
}

/// A page in a list of pages to map or to unmap (`xen_netif_gref`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GrefEntry {
    /// Its grant (the C field is `ref`).
    pub gref: u32,
    /// `GREF_*`.
    pub flags: u16,
    /// `CTRL_STATUS_*`, written by the backend when it unmaps.
    pub status: u16,
}

/// The backend only reads the page (`XEN_NETIF_CTRLF_GREF_readonly`).
pub const GREF_READONLY: u16 = 1 << 0;
/// Entries of a list, which is in one page.
pub const GREFS_PER_LIST: usize = PAGE_SIZE / size_of::<GrefEntry>();

/// Which hash types the backend knows (`XEN_NETIF_CTRL_TYPE_GET_HASH_FLAGS`).
pub const CTRL_TYPE_GET_HASH_FLAGS: u16 = 1;
/// Select hash types (`XEN_NETIF_CTRL_TYPE_SET_HASH_FLAGS`).
pub const CTRL_TYPE_SET_HASH_FLAGS: u16 = 2;
/// Replace the key (`XEN_NETIF_CTRL_TYPE_SET_HASH_KEY`).
pub const CTRL_TYPE_SET_HASH_KEY: u16 = 3;
/// The most entries of a mapping (`XEN_NETIF_CTRL_TYPE_GET_HASH_MAPPING_SIZE`).
pub const CTRL_TYPE_GET_HASH_MAPPING_SIZE: u16 = 4;
/// Begin another mapping (`XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING_SIZE`).
pub const CTRL_TYPE_SET_HASH_MAPPING_SIZE: u16 = 5;
/// Write a part of the mapping (`XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING`).
pub const CTRL_TYPE_SET_HASH_MAPPING: u16 = 6;
/// Select the algorithm (`XEN_NETIF_CTRL_TYPE_SET_HASH_ALGORITHM`).
pub const CTRL_TYPE_SET_HASH_ALGORITHM: u16 = 7;
/// The most pages that the backend keeps mapped (`XEN_NETIF_CTRL_TYPE_GET_GREF_MAPPING_SIZE`).
pub const CTRL_TYPE_GET_GREF_MAPPING_SIZE: u16 = 8;
/// Map the pages of a list, and keep them mapped (`XEN_NETIF_CTRL_TYPE_ADD_GREF_MAPPING`).
pub const CTRL_TYPE_ADD_GREF_MAPPING: u16 = 9;
/// Unmap the pages of a list (`XEN_NETIF_CTRL_TYPE_DEL_GREF_MAPPING`).
pub const CTRL_TYPE_DEL_GREF_MAPPING: u16 = 10;

/// Done (`XEN_NETIF_CTRL_STATUS_SUCCESS`).
pub const CTRL_STATUS_SUCCESS: u32 = 0;
/// No such message, or not in this state (`XEN_NETIF_CTRL_STATUS_NOT_SUPPORTED`).
pub const CTRL_STATUS_NOT_SUPPORTED: u32 = 1;
/// A value is not valid (`XEN_NETIF_CTRL_STATUS_INVALID_PARAMETER`).
pub const CTRL_STATUS_INVALID_PARAMETER: u32 = 2;
/// More than the backend has room for (`XEN_NETIF_CTRL_STATUS_BUFFER_OVERFLOW`).
pub const CTRL_STATUS_BUFFER_OVERFLOW: u32 = 3;

/// The backend steers as it likes (`XEN_NETIF_CTRL_HASH_ALGORITHM_NONE`).
pub const HASH_ALGORITHM_NONE: u8 = 0;
/// The backend steers by a Toeplitz hash (`XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ`).
pub const HASH_ALGORITHM_TOEPLITZ: u8 = 1;
/// The number of a hash of IPv4 addresses, and of its bit (`_XEN_NETIF_CTRL_HASH_TYPE_IPV4`).
pub const HASH_TYPE_IPV4: u8 = 0;
/// That of addresses and ports of TCP over IPv4 (`_XEN_NETIF_CTRL_HASH_TYPE_IPV4_TCP`).
pub const HASH_TYPE_IPV4_TCP: u8 = 1;
/// That of IPv6 addresses (`_XEN_NETIF_CTRL_HASH_TYPE_IPV6`).
pub const HASH_TYPE_IPV6: u8 = 2;
/// That of addresses and ports of TCP over IPv6 (`_XEN_NETIF_CTRL_HASH_TYPE_IPV6_TCP`).
pub const HASH_TYPE_IPV6_TCP: u8 = 3;

impl ExtraInfo {
    /// The extra that announces segmentation into payloads of `size` bytes of type `gso_type`.
    pub fn for_gso(size: u16, gso_type: u8) -> ExtraInfo {
        let [low, high] = size.to_le_bytes();
        ExtraInfo { kind: EXTRA_TYPE_GSO, flags: 0, payload: [low, high, gso_type, 0, 0, 0] }
    }

    /// The extra that says by which hash, of type `HASH_TYPE_*`, a packet was steered.
    pub fn for_hash(value: u32, hash_type: u8, algorithm: u8) -> ExtraInfo {
        //= netif.h:hash-extra
        let [a, b, c, d] = value.to_le_bytes();
        let payload = [hash_type, algorithm, a, b, c, d];
        ExtraInfo { kind: EXTRA_TYPE_HASH, flags: 0, payload }
    }

    /// The extra of a packet before which so many bytes of its first page are free.
    pub fn for_xdp(headroom: u16) -> ExtraInfo {
        //= netif.h:xdp-extra
        let [low, high] = headroom.to_le_bytes();
        ExtraInfo { kind: EXTRA_TYPE_XDP, flags: 0, payload: [low, high, 0, 0, 0, 0] }
    }

    /// The extra of a request that adds an Ethernet address to those whose frames the guest gets
    /// ([`EXTRA_TYPE_MCAST_ADD`]), or removes it ([`EXTRA_TYPE_MCAST_DEL`]).
    pub fn for_multicast(kind: u8, address: [u8; 6]) -> ExtraInfo {
        ExtraInfo { kind, flags: 0, payload: address }
    }

    /// The bytes that are free before a packet ([`EXTRA_TYPE_XDP`]), as the peer wrote them.
    pub fn headroom(&self) -> u16 {
        u16::from_le_bytes([self.payload[0], self.payload[1]])
    }

    /// Segment size in bytes and `GSO_TYPE_*`, as the peer wrote them: unchecked.
    pub fn gso(&self) -> (u16, u8) {
        (u16::from_le_bytes([self.payload[0], self.payload[1]]), self.payload[2])
    }
}

const _: () = {
    assert!(size_of::<TxRequest>() == 12 && size_of::<TxResponse>() == 4);
    assert!(size_of::<RxRequest>() == 8 && size_of::<RxResponse>() == 8);
    assert!(size_of::<ExtraInfo>() == 8);
    assert!(size_of::<CtrlRequest>() == 16 && size_of::<CtrlResponse>() == 12);
    assert!(size_of::<GrefEntry>() == 8 && GREFS_PER_LIST == 512);
    assert!(TX_RING_SLOTS == 256 && RX_RING_SLOTS == 256 && CTRL_RING_SLOTS == 128);
};
