//! What every part of the data path shares: frames, the [`PortQueue`] that moves them, the reasons
//! for dropping a frame, and the reasons for closing a queue.
//!
//! This crate does no I/O and knows neither rings nor grants.
//!
//! # Example
//!
//! Frames are of a pool, whose memory has a limit:
//!
//! ```
//! use ringway_datapath::{FramePool, PoolBudget};
//!
//! let mut pool = FramePool::new(PoolBudget::new(1 << 20));
//! let mut frame = pool.take(60).expect("there is memory for one");
//! frame.bytes_mut()[..6].fill(0xff);
//! assert_eq!((frame.len(), frame.bytes()[5]), (60, 0xff));
//! pool.recycle(frame);
//! ```

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod checksum;
mod counters;
mod end;
mod fields;
mod form;
mod frame;
pub mod headers;
#[cfg(all(test, feature = "loom"))]
mod interleavings;
mod mac;
pub mod merge;
mod multicast;
mod pending;
mod port_id;
#[cfg(feature = "std")]
mod queue;
mod receipt;
mod rules;
pub mod segment;
mod sync;
pub mod tagging;
mod times;
mod verdict;
pub mod vlan;
pub mod vnet;
#[cfg(feature = "std")]
mod waits;
mod words;

pub use counters::{DropCounters, DropReason, QueueCounters, QueueTotals, Side};
pub use end::{End, Ends, Lender, PIECES_MAX, PagePool, Pages, Piece};
pub use form::FrameForm;
pub use frame::{
    BATCH, BODY_LEN_MAX, FlowHash, Frame, FrameBatch, FramePool, FrameQueue, LARGE_LEN, LoanUse,
    MIDDLE_LEN, Metadata, PoolBudget, SMALL_LEN,
};
pub use mac::MacAddr;
pub use multicast::{FilterFull, MulticastFilter};
pub use pending::Pending;
pub use port_id::PortId;
#[cfg(feature = "std")]
pub use queue::{
    Budget, PeerProgress, PortQueue, Probe, QueueDown, QueueTraits, Result, Wakers, Woken,
};
pub use receipt::{Receipt, Receipts};
pub use rules::{
    IpNetwork, LockingMode, Mirrored, MirroredPassage, MulticastRouter, PortRules, VlanRules,
    link_local_of,
};
pub use times::TimeCounters;
pub use verdict::Verdict;
pub use vlan::{FrameVlan, Vid};
#[cfg(feature = "std")]
pub use waits::{WaitCell, WaitReason};

use crate::headers::{IpVersion, Transport};
use ringway_wire::netif::{ExtraInfo, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

/// Whether the transport checksum of a frame is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Whatever the frame contains; not verified.
    #[default]
    Unverified,
    /// The field holds only the pseudo-header's sum; a later station adds the rest (`csum_blank`,
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`). Such data has never been on a wire, so it counts as
    /// validated.
    Blank,
    /// Complete, and verified or never on a wire (`data_validated`).
    Validated,
}

/// The kind of segments that a large frame is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4: separate datagrams, as with Linux's `UDP_SEGMENT`, not fragments.
    UdpV4,
    /// UDP over IPv6.
    UdpV6,
}

impl GsoKind {
    /// TCP over this version of IP.
    pub const fn tcp(version: IpVersion) -> GsoKind {
        match version {
            IpVersion::V4 => GsoKind::TcpV4,
            IpVersion::V6 => GsoKind::TcpV6,
        }
    }

    /// The IP version of the frame and of its segments.
    pub const fn version(self) -> IpVersion {
        match self {
            GsoKind::TcpV4 | GsoKind::UdpV4 => IpVersion::V4,
            GsoKind::TcpV6 | GsoKind::UdpV6 => IpVersion::V6,
        }
    }

    /// The protocol that the data belongs to.
    pub const fn transport(self) -> Transport {
        match self {
            GsoKind::TcpV4 | GsoKind::TcpV6 => Transport::Tcp,
            GsoKind::UdpV4 | GsoKind::UdpV6 => Transport::Udp,
        }
    }
}

/// Pending segmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gso {
    /// Protocol and IP version of the segments.
    pub kind: GsoKind,
    /// Payload bytes per segment; never 0.
    pub size: u16,
}

impl Gso {
    /// Reads a GSO extra; `None` if it asks for something unsupported.
    pub fn from_extra(extra: &ExtraInfo) -> Option<Gso> {
        match extra.gso() {
            (size @ 1.., GSO_TYPE_TCPV4) => Some(Gso { kind: GsoKind::TcpV4, size }),
            (size @ 1.., GSO_TYPE_TCPV6) => Some(Gso { kind: GsoKind::TcpV6, size }),
            _ => None,
        }
    }

    /// The matching GSO extra; `None` if netif cannot express it: netif knows only TCP.
    pub fn to_extra(self) -> Option<ExtraInfo> {
        let kind = match self.kind {
            GsoKind::TcpV4 => GSO_TYPE_TCPV4,
            GsoKind::TcpV6 => GSO_TYPE_TCPV6,
            GsoKind::UdpV4 | GsoKind::UdpV6 => return None,
        };
        Some(ExtraInfo::for_gso(self.size, kind))
    }
}

/// Work that a frame's sender leaves to a later station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// State of the checksum.
    pub checksum: Checksum,
    /// Segmentation, if any.
    pub gso: Option<Gso>,
}

impl Offload {
    /// Nothing is left to do, and the checksum was not verified.
    pub const NONE: Offload = Offload { checksum: Checksum::Unverified, gso: None };
}

/// What a port's far side accepts without our help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffloadCaps {
    /// Frames longer than the MTU allows, spread over several slots.
    pub scatter_gather: bool,
    /// Blank checksums over IPv4.
    pub checksum_v4: bool,
    /// Blank checksums over IPv6.
    pub checksum_v6: bool,
    /// TCP segmentation over IPv4.
    pub gso_v4: bool,
    /// TCP segmentation over IPv6.
    pub gso_v6: bool,
    /// UDP segmentation over IPv4.
    pub uso_v4: bool,
    /// UDP segmentation over IPv6.
    pub uso_v6: bool,
}

impl OffloadCaps {
    /// Everything: what a TAP device of Linux 6.2 takes.
    pub const ALL: OffloadCaps = OffloadCaps {
        scatter_gather: true,
        checksum_v4: true,
        checksum_v6: true,
        gso_v4: true,
        gso_v6: true,
        uso_v4: true,
        uso_v6: true,
    };
    /// Everything that netif can express: all except UDP segmentation.
    pub const NETIF: OffloadCaps = OffloadCaps { uso_v4: false, uso_v6: false, ..OffloadCaps::ALL };
    /// Nothing.
    pub const NONE: OffloadCaps = OffloadCaps {
        scatter_gather: false,
        checksum_v4: false,
        checksum_v6: false,
        gso_v4: false,
        gso_v6: false,
        uso_v4: false,
        uso_v6: false,
    };

    /// What both accept.
    pub fn and(self, other: OffloadCaps) -> OffloadCaps {
        OffloadCaps {
            scatter_gather: self.scatter_gather && other.scatter_gather,
            checksum_v4: self.checksum_v4 && other.checksum_v4,
            checksum_v6: self.checksum_v6 && other.checksum_v6,
            gso_v4: self.gso_v4 && other.gso_v4,
            gso_v6: self.gso_v6 && other.gso_v6,
            uso_v4: self.uso_v4 && other.uso_v4,
            uso_v6: self.uso_v6 && other.uso_v6,
        }
    }
}
