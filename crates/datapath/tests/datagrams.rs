//! UDP segmentation, checked by etherparse, which shares no code with it.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice, VlanId};
use proptest::prelude::*;
use ringway_datapath::segment::{prepare, refuse};
use ringway_datapath::vnet::{offload_from_vnet, vnet_from_offload};
use ringway_datapath::{
    Checksum, DropReason, Frame, FramePool, FrameQueue, Gso, GsoKind, Offload, OffloadCaps,
    PoolBudget,
};
use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN, VIRTIO_NET_HDR_GSO_TCPV4,
    VIRTIO_NET_HDR_GSO_UDP_L4, VirtioNetHdr,
};

/// The most datagrams that Linux lets a program ask for in one call.
const DATAGRAMS_MAX: usize = 128;
const SOURCE_PORT: u16 = 5001;
const PORT: u16 = 40_000;

/// A UDP frame with pending segmentation.
#[derive(Debug, Clone)]
struct Large {
    kind: GsoKind,
    tags: usize,
    payload: Vec<u8>,
    size: u16,
}

impl Large {
    fn plain(kind: GsoKind, len: usize, size: u16) -> Large {
        let payload = (0..=u8::MAX).cycle().take(len).collect();
        Large { kind, tags: 0, payload, size }
    }

    fn is_v4(&self) -> bool {
        self.kind == GsoKind::UdpV4
    }

    fn l3(&self) -> usize {
        14 + 4 * self.tags
    }

    fn l4(&self) -> usize {
        self.l3() + if self.is_v4() { 20 } else { 40 }
    }

    fn offload(&self) -> Offload {
        let gso = Gso { kind: self.kind, size: self.size };
        Offload { checksum: Checksum::Blank, gso: Some(gso) }
    }

    fn bytes(&self) -> Vec<u8> {
        self.to_port(PORT)
    }

    fn to_port(&self, port: u16) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let (mut bytes, id) = (Vec::new(), |id| VlanId::try_new(id).expect("short"));
        macro_rules! finish {
            ($link:expr) => {
                match self.is_v4() {
                    true => $link.ipv4([10, 1, 2, 3], [10, 1, 2, 4], 64).udp(SOURCE_PORT, port),
                    false => $link.ipv6([0xfd; 16], [0xfe; 16], 64).udp(SOURCE_PORT, port),
                }
            };
        }
        let built = match self.tags {
            0 => finish!(link),
            1 => finish!(link.single_vlan(id(5))),
            _ => finish!(link.double_vlan(id(5), id(6))),
        };
        built.write(&mut bytes, &self.payload).expect("it has room");
        bytes
    }

    fn frame(&self, pool: &mut FramePool) -> Frame {
        let bytes = self.bytes();
        let mut frame = pool.take(bytes.len()).expect("there is memory");
        frame.bytes_mut().copy_from_slice(&bytes);
        frame.offload = self.offload();
        frame
    }

    fn vnet(&self) -> VirtioNetHdr {
        VirtioNetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: VIRTIO_NET_HDR_GSO_UDP_L4,
            hdr_len: u16::try_from(self.l4() + 8).expect("short"),
            gso_size: self.size,
            csum_start: u16::try_from(self.l4()).expect("short"),
            csum_offset: 6,
        }
    }
}

fn pool() -> FramePool {
    FramePool::new(PoolBudget::new(16 << 20))
}

fn larges() -> impl Strategy<Value = Large> {
    let kind = prop_oneof![Just(GsoKind::UdpV4), Just(GsoKind::UdpV6)];
    // Up to the maximum number of datagrams, as far as they fit into a packet.
    let sizes = (1..=1472_u16, 0..=DATAGRAMS_MAX, 0..1472_usize, any::<u8>());
    (kind, 0..3_usize, sizes).prop_map(|(kind, tags, (size, whole, rest, first))| {
        let segment_len = usize::from(size);
        let len = (segment_len * whole + rest % segment_len).min(segment_len * DATAGRAMS_MAX);
        let payload = (first..=u8::MAX).cycle().take(len.min(65_400)).collect();
        Large { kind, tags, payload, size }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 500 }))]

    #[test]
    fn datagrams_reassemble_to_the_frame(large in larges(), takes_blank: bool) {
        let mut pool = pool();
        let mut out = FrameQueue::new();
        let caps = OffloadCaps {
            checksum_v4: takes_blank,
            checksum_v6: takes_blank,
            ..OffloadCaps::NONE
        };
        let frame = large.frame(&mut pool);
        prop_assert_eq!(refuse(&frame, 65_535), None);
        prepare(frame, caps, &mut pool, &mut out).expect("it can be cut");

        let (size, whole) = (usize::from(large.size), large.bytes());
        prop_assert_eq!(out.len(), large.payload.len().div_ceil(size).max(1));
        let mut data = Vec::new();
        for (index, datagram) in out.iter().enumerate() {
            let checksum = if takes_blank { Checksum::Blank } else { Checksum::Validated };
            prop_assert_eq!(datagram.offload, Offload { checksum, gso: None });
            let bytes = datagram.bytes();
            let payload = check(&large, bytes, index, takes_blank);
            prop_assert!(payload.len() == size || index + 1 == out.len());
            data.extend_from_slice(payload);
            // Headers before IP, the addresses and the ports are unchanged.
            let (l3, l4) = (large.l3(), large.l4());
            prop_assert_eq!(&bytes[..l3], &whole[..l3]);
            prop_assert_eq!(&bytes[l3 + 12..l4 + 4], &whole[l3 + 12..l4 + 4]);
        }
        prop_assert!(data == large.payload);
    }
}

/// The data of one datagram, whose headers another parser finds correct.
fn check<'bytes>(large: &Large, bytes: &'bytes [u8], index: usize, is_blank: bool) -> &'bytes [u8] {
    let sliced = SlicedPacket::from_ethernet(bytes).expect("a strict parser takes it");
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("not UDP") };
    let payload = &bytes[large.l4() + 8..];
    assert_eq!(usize::from(udp.length()), 8 + payload.len());
    assert_eq!((udp.source_port(), udp.destination_port()), (SOURCE_PORT, PORT));
    let complete = match sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let ip = ip.header().to_header();
            assert_eq!(usize::from(ip.identification), index);
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            udp.to_header().calc_checksum_ipv4(&ip, payload)
        }
        Some(NetSlice::Ipv6(ip)) => {
            udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), payload)
        }
        _ => panic!("not IP"),
    };
    if !is_blank {
        assert_eq!(udp.checksum(), complete.expect("it is short"));
    }
    payload
}

#[test]
fn a_blank_checksum_is_completed_for_a_client_of_dhcp() {
    let blank = |bytes: &[u8]| {
        let (mut pool, mut out) = (pool(), FrameQueue::new());
        let mut frame = pool.take(bytes.len()).expect("there is memory");
        frame.bytes_mut().copy_from_slice(bytes);
        frame.offload.checksum = Checksum::Blank;
        prepare(frame, OffloadCaps::ALL, &mut pool, &mut out).expect("it can be sent");
        out.pop_front().expect("one frame")
    };
    for tags in 0..=2 {
        for (kind, port) in [(GsoKind::UdpV4, 68), (GsoKind::UdpV4, 67), (GsoKind::UdpV6, 546)] {
            let complete = Large { tags, ..Large::plain(kind, 300, 0) }.to_port(port);
            let mut bytes = complete.clone();
            let field = complete.len() - 300 - 2;
            bytes[field..field + 2].fill(0);
            let sent = blank(&bytes);
            let is_completed = sent.bytes() == complete;
            assert_eq!(is_completed, port == 68, "port {port} behind {tags} tags");
            assert_eq!(sent.offload.checksum == Checksum::Blank, !is_completed);
        }
    }
    // What only looks like that: TCP, and no IP.
    let mut other = Large::plain(GsoKind::UdpV4, 300, 0).to_port(68);
    other[23] = 6;
    assert_eq!(blank(&other).bytes(), other);
    other[12] = 0x88;
    assert_eq!(blank(&other).bytes(), other);
}

#[test]
fn a_port_that_accepts_uncut_datagrams_gets_them() {
    let mut pool = pool();
    for kind in [GsoKind::UdpV4, GsoKind::UdpV6] {
        let large = Large::plain(kind, 3000, 1000);
        let only = |uso_v4, uso_v6| OffloadCaps { uso_v4, uso_v6, ..OffloadCaps::ALL };
        for (caps, count) in [
            (OffloadCaps::ALL, 1),
            (OffloadCaps::NETIF, 3),
            (OffloadCaps { scatter_gather: false, ..OffloadCaps::ALL }, 3),
            (OffloadCaps { checksum_v4: false, checksum_v6: false, ..OffloadCaps::ALL }, 3),
            (only(true, false), if large.is_v4() { 1 } else { 3 }),
            (only(false, true), if large.is_v4() { 3 } else { 1 }),
        ] {
            let mut out = FrameQueue::new();
            prepare(large.frame(&mut pool), caps, &mut pool, &mut out).expect("it can be cut");
            assert_eq!(out.len(), count, "{kind:?} {caps:?}");
        }
        assert_eq!(large.offload().gso.and_then(Gso::to_extra).map(|_| ()), None);
    }
}

#[test]
fn a_sum_of_zero_is_sent_as_all_ones() {
    let mut pool = pool();
    let (mut large, mut out) = (Large::plain(GsoKind::UdpV4, 2000, 1000), FrameQueue::new());
    prepare(large.frame(&mut pool), OffloadCaps::NONE, &mut pool, &mut out).expect("it can be cut");
    // Adding the checksum of the first to its data makes the sum all ones.
    let bytes = out[0].bytes();
    let [sum, data] = [40, 42].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let (added, carry) = sum.overflowing_add(data);
    large.payload[..2].copy_from_slice(&(added + u16::from(carry)).to_be_bytes());
    out.clear();
    prepare(large.frame(&mut pool), OffloadCaps::NONE, &mut pool, &mut out).expect("it can be cut");
    assert_eq!(out[0].bytes()[40..42], [0xff, 0xff]);
    assert_ne!(out[1].bytes()[40..42], [0xff, 0xff]);
}

#[test]
fn a_header_survives_a_round_trip() {
    for kind in [GsoKind::UdpV4, GsoKind::UdpV6] {
        for tags in 0..3 {
            let large = Large { tags, ..Large::plain(kind, 5000, 1200) };
            let mut bytes = large.bytes();
            assert_eq!(offload_from_vnet(&large.vnet(), &mut bytes), Ok(large.offload()));
            assert_eq!(vnet_from_offload(&large.offload(), &mut bytes), Ok(large.vnet()));
        }
    }
}

#[test]
fn a_header_that_contradicts_its_frame_is_refused() {
    let large = Large::plain(GsoKind::UdpV4, 5000, 1200);
    let good = large.vnet();
    let refused = |hdr: &VirtioNetHdr, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = large.bytes();
        edit(&mut bytes);
        assert_eq!(offload_from_vnet(hdr, &mut bytes), Err(DropReason::BadOffload), "{hdr:?}");
    };
    for bad in [
        VirtioNetHdr { gso_size: 0, ..good },
        // Congestion windows are TCP's, and so is that kind.
        VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_UDP_L4 | VIRTIO_NET_HDR_GSO_ECN, ..good },
        VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_TCPV4, ..good },
        // Fragments.
        VirtioNetHdr { gso_type: 3, ..good },
        VirtioNetHdr { csum_start: 33, ..good },
        VirtioNetHdr { csum_offset: 16, ..good },
    ] {
        refused(&bad, &|_| {});
    }
    // The length in the header of UDP: one less, one more, none.
    for len in [5007_u16, 5009, 0] {
        refused(&good, &|bytes| bytes[38..40].copy_from_slice(&len.to_be_bytes()));
    }
    // TCP; a fragment; cut short.
    refused(&good, &|bytes| bytes[23] = 6);
    refused(&good, &|bytes| bytes[20] = 0x20);
    refused(&good, &|bytes| bytes.truncate(5000));
    // A frame that was not checked at ingress is checked again when it is cut.
    let (mut pool, mut out) = (pool(), FrameQueue::new());
    for (at, value) in [(38, 0xff), (23, 6), (12, 0)] {
        let mut frame = large.frame(&mut pool);
        frame.bytes_mut()[at] = value;
        let cut = prepare(frame, OffloadCaps::NONE, &mut pool, &mut out);
        assert_eq!(cut, Err(DropReason::BadOffload));
        assert!(out.is_empty());
    }
}

#[test]
fn more_datagrams_than_a_program_may_ask_for_are_refused() {
    let mut pool = pool();
    for kind in [GsoKind::UdpV4, GsoKind::UdpV6] {
        for size in [1, 47, 500] {
            for (more, reason) in [(0, None), (1, Some(DropReason::BadOffload))] {
                let len = DATAGRAMS_MAX * usize::from(size) + more;
                let frame = Large::plain(kind, len, size).frame(&mut pool);
                assert_eq!(refuse(&frame, 65_535), reason, "{kind:?} {size} {len}");
            }
        }
        // No datagram may be longer than the link allows.
        let frame = Large::plain(kind, 5000, 1600).frame(&mut pool);
        assert_eq!(refuse(&frame, 1518), Some(DropReason::TooLong));
    }
}
