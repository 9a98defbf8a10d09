//! The features of virtio that a back-end may offer, and which of them need others.

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

/// Features of virtio that a back-end may offer: all that this program can keep.
///
/// The control queue is QEMU's own, and so are configuration space and the announcements of a
/// guest. RSS and the reporting of hashes have no message in vhost-user.
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

/// Those of them that are offered where a user asks for them, only: without them a guest loses
/// nothing. The place in a packed ring is nowhere in memory, so that a guest of QEMU cannot go on
/// with it when a back-end was killed.
pub const OPT_IN: Features = Features::of(&[VIRTIO_F_RING_PACKED]);

/// Those that no version of the protocol does without.
pub const REQUIRED: Features = Features::of(&[VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES]);

/// Features that are of use, or allowed, with all of some others only (virtio, 5.1.3.1).
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

/// The same where one of them is enough.
const NEEDS_ONE: &[(u32, &[u32])] = &[
    (VIRTIO_NET_F_GUEST_ECN, &[VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6]),
    (VIRTIO_NET_F_HOST_ECN, &[VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6]),
];

/// These features without those that need one which is not there.
pub fn without_orphans(features: Features) -> Features {
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
