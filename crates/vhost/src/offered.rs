//! What a back-end may offer, and what comes of it.

use std::fmt;

use ringway_wire::virtio::{
    Features, VHOST_F_LOG_ALL, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_F_ANY_LAYOUT,
    VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MQ,
    VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS, VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC,
};

use crate::request::PROTOCOL_FEATURES;

/// The MTUs that a device may have (virtio, 5.1.4).
pub(crate) const MTU_MIN: u16 = 68;

/// What both ends negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Features of virtio.
    pub features: Features,
    /// Features of the protocol.
    pub protocol: u64,
    /// Pairs of rings. A front-end knows how many it will use: the number wanted, or the number
    /// available if that is lower. A back-end knows how many it offered.
    pub pairs: u16,
    /// The MTU that the front-end has set, or 0.
    pub mtu: u16,
}

impl Negotiated {
    /// Nothing yet.
    pub const NONE: Negotiated =
        Negotiated { features: Features::NONE, protocol: 0, pairs: 0, mtu: 0 };
}

/// What a back-end offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Features of virtio; those that are not in [`FEATURES`] are left out.
    pub features: Features,
    /// What the same front-end negotiated in an earlier session. It is offered regardless of the
    /// rest, because neither a guest nor QEMU can lose any of it while it runs.
    pub floor: Negotiated,
    /// Features of the protocol; those that are not in [`PROTOCOL_FEATURES`] are left out.
    pub protocol: u64,
    /// Pairs of rings: from 1 to [`PAIRS_MAX`](crate::backend::PAIRS_MAX).
    pub pairs: u16,
    /// The largest MTU that another front-end may set.
    pub mtu_max: u16,
}

impl Offer {
    /// The virtio features to offer.
    pub fn features(&self) -> Features {
        let wanted = with_dependencies_met(self.features).or(self.floor.features);
        wanted.or(REQUIRED).and(FEATURES)
    }

    /// The protocol features to offer.
    pub fn protocol(&self) -> u64 {
        (self.protocol | self.floor.protocol) & PROTOCOL_FEATURES
    }

    /// The largest MTU that the front-end may set.
    pub fn mtu_max(&self) -> u16 {
        self.mtu_max.max(self.floor.mtu)
    }
}

/// The virtio features that a back-end may offer: all that this program implements.
///
/// QEMU itself implements the control queue, configuration space and guest announcements. RSS and
/// hash reports have no message in vhost-user.
pub const FEATURES: Features = Features::of(&[
    VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_MTU,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6,
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_USO,
    VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_STATUS,
    VIRTIO_NET_F_CTRL_VQ,
    VIRTIO_NET_F_GUEST_ANNOUNCE,
    VIRTIO_NET_F_MQ,
    VHOST_F_LOG_ALL,
    VIRTIO_F_ANY_LAYOUT,
    VIRTIO_RING_F_INDIRECT_DESC,
    VIRTIO_RING_F_EVENT_IDX,
    VHOST_USER_F_PROTOCOL_FEATURES,
    VIRTIO_F_VERSION_1,
    VIRTIO_F_RING_PACKED,
    VIRTIO_F_IN_ORDER,
]);

/// Features that are offered only on the user's request; without them a guest loses nothing. The
/// position in a packed ring is not kept in memory, so a guest of QEMU cannot continue with it
/// after a back-end was killed.
pub const OPT_IN: Features = Features::of(&[VIRTIO_F_RING_PACKED]);

/// Features that every version of the protocol requires.
pub const REQUIRED: Features = Features::of(&[VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES]);

/// Features that are useful or allowed only with all of some others (virtio, 5.1.3.1).
const NEEDS: &[(u32, &[u32])] = &[
    (VIRTIO_NET_F_GUEST_TSO4, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_TSO6, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_USO4, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_USO6, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_HOST_USO, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_HOST_TSO4, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_HOST_TSO6, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_MQ, &[VIRTIO_NET_F_CTRL_VQ]),
    (VIRTIO_NET_F_GUEST_ANNOUNCE, &[VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_STATUS]),
];

/// Features that need at least one of some others.
const NEEDS_ONE: &[(u32, &[u32])] = &[
    (VIRTIO_NET_F_GUEST_ECN, &[VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6]),
    (VIRTIO_NET_F_HOST_ECN, &[VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6]),
];

/// These features without those whose dependencies are missing.
pub fn with_dependencies_met(features: Features) -> Features {
    let has = |features: Features, bit: &u32| features.has(*bit);
    let needy = NEEDS.iter().fold(features, |left, (bit, needed)| {
        let is_good = needed.iter().all(|needed| has(left, needed));
        if is_good { left } else { left.without(Features::of(&[*bit])) }
    });
    NEEDS_ONE.iter().fold(needy, |left, (bit, needed)| {
        let is_good = needed.iter().any(|needed| has(left, needed));
        if is_good { left } else { left.without(Features::of(&[*bit])) }
    })
}

/// An MTU that a front-end may not show its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedMtu {
    /// In bytes.
    pub asked: u64,
    /// The longest one that is possible.
    pub most: u16,
}

impl fmt::Display for RefusedMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedMtu { asked, most } = self;
        write!(
            f,
            "the front-end wants its guest to have an MTU of {asked} (QEMU: host_mtu), and \
             {MTU_MIN} to {most} is possible here: change either that or `mtu` of the vif"
        )
    }
}
