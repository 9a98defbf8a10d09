//! The features offered to virtio guests.

use ringway_datapath::OffloadCaps;
use ringway_vhost::backend::FEATURES;
use ringway_wire::virtio::{
    Features, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MRG_RXBUF,
};

/// The virtio features that correspond to these offloads.
pub(super) fn offered(caps: OffloadCaps) -> Features {
    let without = |is_there: bool, bits: &[u32]| {
        if is_there { Features::NONE } else { Features::of(bits) }
    };
    let left_out = [
        without(caps.scatter_gather, &[VIRTIO_NET_F_MRG_RXBUF]),
        without(caps.checksum_v4, &[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM]),
        without(caps.gso_v4, &[VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_GUEST_TSO4]),
        without(caps.gso_v6, &[VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_GUEST_TSO6]),
        without(caps.uso_v4, &[VIRTIO_NET_F_GUEST_USO4]),
        without(caps.uso_v6, &[VIRTIO_NET_F_GUEST_USO6]),
        // One feature for both IP versions.
        without(caps.uso_v4 && caps.uso_v6, &[VIRTIO_NET_F_HOST_USO]),
        without(caps.gso_v4 || caps.gso_v6, &[VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_GUEST_ECN]),
    ];
    left_out.into_iter().fold(FEATURES, Features::without)
}
