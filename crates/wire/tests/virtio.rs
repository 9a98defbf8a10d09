//! The layouts and constants of virtio against those of Linux's headers, from `virtio-bindings`,
//! and against bytes from the specification's tables.

use std::mem::offset_of;

use ringway_wire::virtio::*;
use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_UDP_L4, VirtioNetHdr,
};
use virtio_bindings::{virtio_config, virtio_net, virtio_ring};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn structure_offsets_match_linuxs_headers() {
    macro_rules! same {
        ($ours:ty, $theirs:ty: $($own:ident = $other:ident),*) => {
            assert_eq!(size_of::<$ours>(), size_of::<$theirs>());
            $(assert_eq!(offset_of!($ours, $own), offset_of!($theirs, $other));)*
        };
    }
    same!(Desc, virtio_ring::vring_desc: addr = addr, len = len, flags = flags, next = next);
    same!(UsedElem, virtio_ring::vring_used_elem: id = id, len = len);
    same!(PackedDesc, virtio_ring::vring_packed_desc:
        addr = addr, len = len, id = id, flags = flags);
    same!(VirtioNetHdrV1, virtio_net::virtio_net_hdr_v1: num_buffers = num_buffers);
    assert_eq!(offset_of!(virtio_ring::vring_avail, ring), avail::RING);
    assert_eq!(offset_of!(virtio_ring::vring_avail, idx), avail::IDX);
    assert_eq!(offset_of!(virtio_ring::vring_used, ring), used::RING);
    assert_eq!(offset_of!(virtio_ring::vring_used, idx), used::IDX);
    assert_eq!(offset_of!(virtio_ring::vring_packed_desc_event, off_wrap), event::OFF_WRAP);
    assert_eq!(offset_of!(virtio_ring::vring_packed_desc_event, flags), event::FLAGS);
    assert_eq!(size_of::<virtio_ring::vring_packed_desc_event>(), event::LEN);
}

#[test]
fn constants_match_linuxs_headers() {
    for (ours, theirs) in [
        (VRING_DESC_F_NEXT, virtio_ring::VRING_DESC_F_NEXT),
        (VRING_DESC_F_WRITE, virtio_ring::VRING_DESC_F_WRITE),
        (VRING_DESC_F_INDIRECT, virtio_ring::VRING_DESC_F_INDIRECT),
        (VRING_AVAIL_F_NO_INTERRUPT, virtio_ring::VRING_AVAIL_F_NO_INTERRUPT),
        (VRING_USED_F_NO_NOTIFY, virtio_ring::VRING_USED_F_NO_NOTIFY),
        (VRING_PACKED_DESC_F_AVAIL, 1 << virtio_ring::VRING_PACKED_DESC_F_AVAIL),
        (VRING_PACKED_DESC_F_USED, 1 << virtio_ring::VRING_PACKED_DESC_F_USED),
        (RING_EVENT_FLAGS_ENABLE, virtio_ring::VRING_PACKED_EVENT_FLAG_ENABLE),
        (RING_EVENT_FLAGS_DISABLE, virtio_ring::VRING_PACKED_EVENT_FLAG_DISABLE),
        (RING_EVENT_FLAGS_DESC, virtio_ring::VRING_PACKED_EVENT_FLAG_DESC),
    ] {
        assert_eq!(u32::from(ours), theirs);
    }
    for (ours, theirs) in [
        (VIRTIO_CONFIG_S_ACKNOWLEDGE, virtio_config::VIRTIO_CONFIG_S_ACKNOWLEDGE),
        (VIRTIO_CONFIG_S_DRIVER, virtio_config::VIRTIO_CONFIG_S_DRIVER),
        (VIRTIO_CONFIG_S_DRIVER_OK, virtio_config::VIRTIO_CONFIG_S_DRIVER_OK),
        (VIRTIO_CONFIG_S_FEATURES_OK, virtio_config::VIRTIO_CONFIG_S_FEATURES_OK),
    ] {
        assert_eq!(ours, theirs.into());
    }
}

#[test]
fn feature_bits_match_linuxs_headers() {
    for (ours, theirs) in [
        (VIRTIO_NET_F_CSUM, virtio_net::VIRTIO_NET_F_CSUM),
        (VIRTIO_NET_F_GUEST_CSUM, virtio_net::VIRTIO_NET_F_GUEST_CSUM),
        (VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, virtio_net::VIRTIO_NET_F_CTRL_GUEST_OFFLOADS),
        (VIRTIO_NET_F_MTU, virtio_net::VIRTIO_NET_F_MTU),
        (VIRTIO_NET_F_MAC, virtio_net::VIRTIO_NET_F_MAC),
        (VIRTIO_NET_F_GUEST_TSO4, virtio_net::VIRTIO_NET_F_GUEST_TSO4),
        (VIRTIO_NET_F_GUEST_TSO6, virtio_net::VIRTIO_NET_F_GUEST_TSO6),
        (VIRTIO_NET_F_GUEST_ECN, virtio_net::VIRTIO_NET_F_GUEST_ECN),
        (VIRTIO_NET_F_GUEST_UFO, virtio_net::VIRTIO_NET_F_GUEST_UFO),
        (VIRTIO_NET_F_HOST_TSO4, virtio_net::VIRTIO_NET_F_HOST_TSO4),
        (VIRTIO_NET_F_HOST_TSO6, virtio_net::VIRTIO_NET_F_HOST_TSO6),
        (VIRTIO_NET_F_HOST_ECN, virtio_net::VIRTIO_NET_F_HOST_ECN),
        (VIRTIO_NET_F_HOST_UFO, virtio_net::VIRTIO_NET_F_HOST_UFO),
        (VIRTIO_NET_F_MRG_RXBUF, virtio_net::VIRTIO_NET_F_MRG_RXBUF),
        (VIRTIO_NET_F_STATUS, virtio_net::VIRTIO_NET_F_STATUS),
        (VIRTIO_NET_F_CTRL_VQ, virtio_net::VIRTIO_NET_F_CTRL_VQ),
        (VIRTIO_NET_F_CTRL_RX, virtio_net::VIRTIO_NET_F_CTRL_RX),
        (VIRTIO_NET_F_CTRL_VLAN, virtio_net::VIRTIO_NET_F_CTRL_VLAN),
        (VIRTIO_NET_F_GUEST_ANNOUNCE, virtio_net::VIRTIO_NET_F_GUEST_ANNOUNCE),
        (VIRTIO_NET_F_MQ, virtio_net::VIRTIO_NET_F_MQ),
        (VIRTIO_NET_F_CTRL_MAC_ADDR, virtio_net::VIRTIO_NET_F_CTRL_MAC_ADDR),
        (VIRTIO_F_ANY_LAYOUT, virtio_config::VIRTIO_F_ANY_LAYOUT),
        (VIRTIO_RING_F_INDIRECT_DESC, virtio_ring::VIRTIO_RING_F_INDIRECT_DESC),
        (VIRTIO_RING_F_EVENT_IDX, virtio_ring::VIRTIO_RING_F_EVENT_IDX),
        (VIRTIO_F_VERSION_1, virtio_config::VIRTIO_F_VERSION_1),
        (VIRTIO_F_ACCESS_PLATFORM, virtio_config::VIRTIO_F_ACCESS_PLATFORM),
        (VIRTIO_F_RING_PACKED, virtio_config::VIRTIO_F_RING_PACKED),
        (VIRTIO_F_IN_ORDER, virtio_config::VIRTIO_F_IN_ORDER),
        (VIRTIO_NET_F_GUEST_USO4, virtio_net::VIRTIO_NET_F_GUEST_USO4),
        (VIRTIO_NET_F_GUEST_USO6, virtio_net::VIRTIO_NET_F_GUEST_USO6),
        (VIRTIO_NET_F_HOST_USO, virtio_net::VIRTIO_NET_F_HOST_USO),
        (VIRTIO_NET_F_HASH_REPORT, virtio_net::VIRTIO_NET_F_HASH_REPORT),
        (VIRTIO_NET_F_RSS, virtio_net::VIRTIO_NET_F_RSS),
    ] {
        assert_eq!(ours, theirs);
    }
}

#[test]
fn bytes_match_the_tables_of_the_specification() {
    let desc = Desc {
        addr: 0x1122_3344_5566_7788,
        len: 0x0102_0304,
        flags: VRING_DESC_F_WRITE | VRING_DESC_F_NEXT,
        next: 0x0506,
    };
    let bytes = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2, 1, 3, 0, 6, 5];
    assert_eq!((desc.as_bytes(), Desc::read_from_bytes(&bytes)), (&bytes[..], Ok(desc)));
    let packed = PackedDesc {
        addr: desc.addr,
        len: desc.len,
        id: 0x0506,
        flags: VRING_PACKED_DESC_F_AVAIL | VRING_PACKED_DESC_F_USED | VRING_DESC_F_INDIRECT,
    };
    let bytes = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2, 1, 6, 5, 0x84, 0x80];
    assert_eq!(packed.as_bytes(), bytes);
    let hdr = VirtioNetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        gso_type: VIRTIO_NET_HDR_GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let hdr = VirtioNetHdrV1 { hdr, num_buffers: 0x0203 };
    assert_eq!(hdr.as_bytes(), [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 3, 2]);
    assert_eq!(UsedElem { id: 7, len: 300 }.as_bytes(), [7, 0, 0, 0, 0x2c, 1, 0, 0]);
}

#[test]
fn the_gso_type_of_datagrams_matches_linuxs_headers() {
    // The headers of Linux 6.1, which golden.c may find, do not have it.
    assert_eq!(u32::from(VIRTIO_NET_HDR_GSO_UDP_L4), virtio_net::VIRTIO_NET_HDR_GSO_UDP_L4);
}

#[test]
fn areas_of_a_split_queue_have_the_specified_lengths() {
    // "Available Ring: 6 + 2 * Queue Size; Used Ring: 6 + 8 * Queue Size".
    for size in [1, 2, 256, 32_768] {
        assert_eq!(avail::len(size), 6 + 2 * size);
        assert_eq!(used::len(size), 6 + 8 * size);
    }
}

#[test]
fn a_set_of_features_has_the_names_of_its_bits() {
    let set = Features::of(&[VIRTIO_NET_F_CSUM, VIRTIO_F_VERSION_1, 63]);
    assert_eq!(set.0, 1 << 63 | 1 << 32 | 1);
    assert_eq!(set.names().collect::<Vec<_>>(), ["csum", "version_1"]);
    let mut bits = FEATURE_NAMES.iter().map(|(bit, _)| *bit);
    assert!(bits.by_ref().is_sorted());
    for (bit, name) in FEATURE_NAMES {
        assert_eq!(Features::named(name), Some(Features::of(&[*bit])), "{name}");
    }
    assert_eq!(set.without(Features(1)).and(Features(u64::MAX)).or(Features(2)).0, set.0 + 1);
}
