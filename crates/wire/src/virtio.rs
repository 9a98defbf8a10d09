//! Virtqueues and virtio-net, version 1: what a driver and a device write into guest memory.
//!
//! Layouts and rules are those of the Virtual I/O Device specification, version 1.2, sections 2.7
//! (split), 2.8 (packed) and 5.1 (network). Everything is little-endian, and so are the hosts that
//! ringway runs on; constants keep the spelling of Linux's headers.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::vnet::VirtioNetHdr;

const _: () = assert!(cfg!(target_endian = "little"), "virtio is little-endian, and so are we");

/// Entries of the longest queue that the specification allows.
pub const QUEUE_SIZE_MAX: u16 = 1 << 15;

/// A descriptor of a split queue or of its indirect table (`vring_desc`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Desc {
    /// The guest's address of the buffer.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `VRING_DESC_F_*`.
    pub flags: u16,
    /// The next descriptor, if the flags say that there is one.
    pub next: u16,
}

/// The chain continues.
pub const VRING_DESC_F_NEXT: u16 = 1;
/// The device writes the buffer; otherwise it reads it.
pub const VRING_DESC_F_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub const VRING_DESC_F_INDIRECT: u16 = 4;

/// Byte offsets of the driver's area of a split queue (`vring_avail`).
pub mod avail {
    /// `VRING_AVAIL_F_*`.
    pub const FLAGS: usize = 0;
    /// The free-running index after the last entry.
    pub const IDX: usize = 2;
    /// The first entry; each is the head of a chain.
    pub const RING: usize = 4;

    /// The index at which the driver wants to be called (`used_event`).
    pub const fn used_event(size: usize) -> usize {
        RING + 2 * size
    }

    /// Bytes of the area.
    pub const fn len(size: usize) -> usize {
        used_event(size) + 2
    }
}

/// Byte offsets of the device's area of a split queue (`vring_used`).
pub mod used {
    /// `VRING_USED_F_*`.
    pub const FLAGS: usize = 0;
    /// The free-running index after the last entry.
    pub const IDX: usize = 2;
    /// The first entry, a [`UsedElem`](super::UsedElem).
    pub const RING: usize = 4;

    /// The index at which the device wants to be kicked (`avail_event`).
    pub const fn avail_event(size: usize) -> usize {
        RING + 8 * size
    }

    /// Bytes of the area.
    pub const fn len(size: usize) -> usize {
        avail_event(size) + 2
    }
}

/// The driver polls: no call is wanted. Without [`VIRTIO_RING_F_EVENT_IDX`] only.
pub const VRING_AVAIL_F_NO_INTERRUPT: u16 = 1;
/// The device polls: no kick is wanted. Without [`VIRTIO_RING_F_EVENT_IDX`] only.
pub const VRING_USED_F_NO_NOTIFY: u16 = 1;

/// A chain that the device has used (`vring_used_elem`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UsedElem {
    /// The head of the chain.
    pub id: u32,
    /// Bytes that the device wrote.
    pub len: u32,
}

/// A descriptor of a packed queue or of its indirect table (`vring_packed_desc`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PackedDesc {
    /// The guest's address of the buffer.
    pub addr: u64,
    /// Bytes; in a used descriptor, those that the device wrote.
    pub len: u32,
    /// Chosen by the driver; the one in a chain's last descriptor counts.
    pub id: u16,
    /// `VRING_DESC_F_*` and `VRING_PACKED_DESC_F_*`.
    pub flags: u16,
}

/// Equals the driver's wrap counter where a descriptor is available.
pub const VRING_PACKED_DESC_F_AVAIL: u16 = 1 << 7;
/// Equals the available bit in a used descriptor, and differs from it in an available one.
pub const VRING_PACKED_DESC_F_USED: u16 = 1 << 15;

/// Byte offsets in an event suppression area of a packed queue (`vring_packed_desc_event`).
pub mod event {
    /// The descriptor at which an event is wanted, and the wrap counter in the top bit.
    pub const OFF_WRAP: usize = 0;
    /// `RING_EVENT_FLAGS_*`.
    pub const FLAGS: usize = 2;
    /// Bytes of the area.
    pub const LEN: usize = 4;
}

/// Events are wanted.
pub const RING_EVENT_FLAGS_ENABLE: u16 = 0;
/// No event is wanted.
pub const RING_EVENT_FLAGS_DISABLE: u16 = 1;
/// An event is wanted at one descriptor; with [`VIRTIO_RING_F_EVENT_IDX`] only.
pub const RING_EVENT_FLAGS_DESC: u16 = 2;

/// Bits of the device status (section 2.1), which vhost-user sends as a number of 64 bits: the
/// driver has found the device.
pub const VIRTIO_CONFIG_S_ACKNOWLEDGE: u64 = 1;
/// It can drive it.
pub const VIRTIO_CONFIG_S_DRIVER: u64 = 2;
/// It is ready.
pub const VIRTIO_CONFIG_S_DRIVER_OK: u64 = 4;
/// It has accepted features.
pub const VIRTIO_CONFIG_S_FEATURES_OK: u64 = 8;

/// The 12-byte header before each frame (`virtio_net_hdr_v1`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VirtioNetHdrV1 {
    /// The header that a TAP device uses.
    pub hdr: VirtioNetHdr,
    /// Chains that the frame takes: 1, or more with [`VIRTIO_NET_F_MRG_RXBUF`]. Only the device
    /// writes it.
    pub num_buffers: u16,
}

const _: () = {
    assert!(size_of::<Desc>() == 16);
    assert!(size_of::<UsedElem>() == 8);
    assert!(size_of::<PackedDesc>() == 16);
    assert!(size_of::<VirtioNetHdrV1>() == 12);
};

/// A set of feature bits.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Features(pub u64);

impl Features {
    /// No feature.
    pub const NONE: Features = Features(0);

    /// The set of these bits.
    pub const fn of(bits: &[u32]) -> Features {
        let (mut set, mut index) = (0, 0);
        while index < bits.len() {
            set |= 1 << bits[index];
            index += 1;
        }
        Features(set)
    }

    /// Whether a bit is set.
    #[inline]
    pub const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// The features in both sets.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// The features in either set.
    pub const fn or(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// The features in this set and not in the other.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// The names of all known bits, the lowest first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FEATURE_NAMES.iter().filter(move |(bit, _)| self.has(*bit)).map(|(_, name)| *name)
    }

    /// The feature with this name.
    pub fn named(name: &str) -> Option<Features> {
        let found = FEATURE_NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(bit, _)| Features::of(&[*bit]))
    }
}

macro_rules! features {
    ($($(#[doc = $doc:literal])+ $constant:ident = $bit:literal, $name:literal;)*) => {
        $($(#[doc = $doc])+ pub const $constant: u32 = $bit;)*
        /// Each bit with its name, the lowest bit first.
        pub const FEATURE_NAMES: &[(u32, &str)] = &[$(($constant, $name)),*];
    };
}

features! {
    /// The device accepts frames with blank checksums.
    VIRTIO_NET_F_CSUM = 0, "csum";
    /// The driver accepts frames with blank checksums.
    VIRTIO_NET_F_GUEST_CSUM = 1, "guest_csum";
    /// The driver may change its offloads while it runs.
    VIRTIO_NET_F_CTRL_GUEST_OFFLOADS = 2, "ctrl_guest_offloads";
    /// The device announces its largest MTU.
    VIRTIO_NET_F_MTU = 3, "mtu";
    /// The device announces an address.
    VIRTIO_NET_F_MAC = 5, "mac";
    /// The driver takes TCP segmentation over IPv4.
    VIRTIO_NET_F_GUEST_TSO4 = 7, "guest_tso4";
    /// The driver takes TCP segmentation over IPv6.
    VIRTIO_NET_F_GUEST_TSO6 = 8, "guest_tso6";
    /// The driver takes segmentation of TCP with CWR set.
    VIRTIO_NET_F_GUEST_ECN = 9, "guest_ecn";
    /// The driver takes UDP fragmentation.
    VIRTIO_NET_F_GUEST_UFO = 10, "guest_ufo";
    /// The device takes TCP segmentation over IPv4.
    VIRTIO_NET_F_HOST_TSO4 = 11, "host_tso4";
    /// The device takes TCP segmentation over IPv6.
    VIRTIO_NET_F_HOST_TSO6 = 12, "host_tso6";
    /// The device takes segmentation of TCP with CWR set.
    VIRTIO_NET_F_HOST_ECN = 13, "host_ecn";
    /// The device takes UDP fragmentation.
    VIRTIO_NET_F_HOST_UFO = 14, "host_ufo";
    /// A received frame may use several chains.
    VIRTIO_NET_F_MRG_RXBUF = 15, "mrg_rxbuf";
    /// The device reports whether its link is up.
    VIRTIO_NET_F_STATUS = 16, "status";
    /// There is a control queue.
    VIRTIO_NET_F_CTRL_VQ = 17, "ctrl_vq";
    /// The control queue accepts address filters.
    VIRTIO_NET_F_CTRL_RX = 18, "ctrl_rx";
    /// The control queue accepts VLAN filters.
    VIRTIO_NET_F_CTRL_VLAN = 19, "ctrl_vlan";
    /// The driver announces itself when the device asks it to.
    VIRTIO_NET_F_GUEST_ANNOUNCE = 21, "guest_announce";
    /// The device has several pairs of queues.
    VIRTIO_NET_F_MQ = 22, "mq";
    /// The control queue sets the address.
    VIRTIO_NET_F_CTRL_MAC_ADDR = 23, "ctrl_mac_addr";
    /// vhost: all writes to guest memory are logged.
    VHOST_F_LOG_ALL = 26, "log_all";
    /// The driver may lay descriptors out freely; part of version 1.
    VIRTIO_F_ANY_LAYOUT = 27, "any_layout";
    /// A descriptor may refer to a table of descriptors.
    VIRTIO_RING_F_INDIRECT_DESC = 28, "indirect_desc";
    /// Each side names the index at which it wants an event.
    VIRTIO_RING_F_EVENT_IDX = 29, "event_idx";
    /// vhost-user: there are protocol features.
    VHOST_USER_F_PROTOCOL_FEATURES = 30, "protocol_features";
    /// Version 1 of the specification.
    VIRTIO_F_VERSION_1 = 32, "version_1";
    /// Addresses are translated by an IOMMU.
    VIRTIO_F_ACCESS_PLATFORM = 33, "access_platform";
    /// Queues are packed.
    VIRTIO_F_RING_PACKED = 34, "ring_packed";
    /// Chains are used in the order in which they were made available.
    VIRTIO_F_IN_ORDER = 35, "in_order";
    /// The driver takes UDP segmentation over IPv4.
    VIRTIO_NET_F_GUEST_USO4 = 54, "guest_uso4";
    /// The driver takes UDP segmentation over IPv6.
    VIRTIO_NET_F_GUEST_USO6 = 55, "guest_uso6";
    /// The device takes UDP segmentation.
    VIRTIO_NET_F_HOST_USO = 56, "host_uso";
    /// The device reports the hash of each frame.
    VIRTIO_NET_F_HASH_REPORT = 57, "hash_report";
    /// The device steers by hash.
    VIRTIO_NET_F_RSS = 60, "rss";
}
