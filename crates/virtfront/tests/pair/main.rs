//! Both ends of a virtio-net device on one memory: frames arrive as they were sent, in order, with
//! all features; and neither end sleeps while there is work for it.

mod joined;

use etherparse::PacketBuilder;
use ringway_datapath::{
    Budget, Checksum, DropReason, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, Offload,
    Pending, PoolBudget, PortQueue,
};
use ringway_wire::virtio::*;

use joined::Joined;

/// The feature sets of the tests: layout, events, order, and frame features.
fn sets() -> impl Iterator<Item = Features> {
    let choices =
        [VIRTIO_F_RING_PACKED, VIRTIO_RING_F_EVENT_IDX, VIRTIO_F_IN_ORDER, VIRTIO_NET_F_MRG_RXBUF];
    (0..1_u32 << choices.len()).map(move |set| {
        let mut bits = vec![VIRTIO_F_VERSION_1];
        bits.extend(choices.iter().enumerate().filter(|(n, _)| set >> n & 1 == 1).map(|(_, b)| b));
        Features::of(&bits)
    })
}

const OFFLOADS: [u32; 9] = [
    VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_USO,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6,
];

fn pool() -> FramePool {
    FramePool::new(PoolBudget::new(64 << 20))
}

fn tcp(pool: &mut FramePool, payload_len: usize, number: u8) -> Frame {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 1, 2, 3], [10, 1, 2, 4], 64)
        .tcp(5001, 40_000, 7, 9)
        .write(&mut bytes, &vec![number; payload_len])
        .expect("a packet");
    let mut frame = pool.take(bytes.len()).expect("a buffer");
    frame.bytes_mut().copy_from_slice(&bytes);
    frame
}

fn udp(pool: &mut FramePool, payload_len: usize, number: u8) -> Frame {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv6([0xfd; 16], [0xfe; 16], 64)
        .udp(5001, 40_000)
        .write(&mut bytes, &vec![number; payload_len])
        .expect("a packet");
    let mut frame = pool.take(bytes.len()).expect("a buffer");
    frame.bytes_mut().copy_from_slice(&bytes);
    frame
}

fn plain(pool: &mut FramePool, len: usize, number: u8) -> Frame {
    let mut frame = pool.take(len).expect("a buffer");
    frame.bytes_mut().fill(number);
    frame
}

/// Moves all frames of `from` through both ends and back out of the other.
fn carry(
    sender: &mut impl PortQueue,
    receiver: &mut impl PortQueue,
    pool: &mut FramePool,
    from: &mut FrameQueue,
) -> Vec<Frame> {
    let (mut received, mut batch) = (Vec::new(), FrameBatch::new());
    for _ in 0..10_000 {
        sender.egress(from, pool).expect("the peer is honest");
        receiver.ingress(Budget::BATCH, pool, &mut batch).expect("the peer is honest");
        for frame in &mut batch {
            pool.complete(frame).expect("the peer is honest");
        }
        received.extend(batch.drain(..));
        receiver.settle(pool).expect("the peer is honest");
        pool.end_loans();
        let is_idle = sender.arm().expect("honest") == Pending::Nothing
            && receiver.arm().expect("honest") == Pending::Nothing;
        if from.is_empty() && is_idle {
            return received;
        }
    }
    panic!("{} frames are left", from.len());
}

#[test]
fn frames_of_all_lengths_arrive_in_order_both_ways_with_every_set_of_features() {
    for features in sets() {
        for size in [32, 256] {
            let mut joined = Joined::new(features, size, 9000);
            let mut pool = pool();
            let mut random = fastrand::Rng::with_seed(0x5eed_0201);
            for round in 0..20 {
                for is_tx in [true, false] {
                    let lens: Vec<usize> = (0..100).map(|_| random.usize(14..9000)).collect();
                    let mut from: FrameQueue = (0_u8..)
                        .zip(&lens)
                        .map(|(number, len)| plain(&mut pool, *len, number))
                        .collect();
                    let (front, back) = (&mut joined.front, &mut joined.back);
                    let received = match is_tx {
                        true => carry(front, back, &mut pool, &mut from),
                        false => carry(back, front, &mut pool, &mut from),
                    };
                    let context = format!("{features:?}, {size}, round {round}, tx {is_tx}");
                    assert_eq!(received.len(), 100, "{context}");
                    for ((number, len), frame) in (0_u8..).zip(&lens).zip(&received) {
                        assert_eq!(frame.len(), *len, "{context}");
                        assert!(frame.bytes().iter().all(|byte| *byte == number), "{context}");
                    }
                    received.into_iter().for_each(|frame| pool.recycle(frame));
                }
                if round % 5 == 4 {
                    joined.attach_again();
                }
            }
        }
    }
}

#[test]
fn the_header_describes_offloaded_work() {
    for base in sets() {
        let features = base.or(Features::of(&OFFLOADS));
        let mut joined = Joined::new(features, 256, 65_600);
        let mut pool = pool();
        for is_tx in [true, false] {
            let blank = Offload { checksum: Checksum::Blank, gso: None };
            let gso = |kind| Some(Gso { kind, size: 1448 });
            let offloads = [
                (100, Offload::default()),
                (100, Offload { checksum: Checksum::Validated, gso: None }),
                (1000, blank),
                (64_000, Offload { gso: gso(GsoKind::TcpV4), ..blank }),
                (60_000, Offload { gso: gso(GsoKind::UdpV6), ..blank }),
            ];
            let mut from: FrameQueue = offloads
                .iter()
                .map(|(len, offload)| {
                    let of_udp = offload.gso.is_some_and(|gso| gso.kind == GsoKind::UdpV6);
                    let make = if of_udp { udp } else { tcp };
                    let mut frame = make(&mut pool, *len, 5);
                    frame.offload = *offload;
                    frame
                })
                .collect();
            let (front, back) = (&mut joined.front, &mut joined.back);
            let received = match is_tx {
                true => carry(front, back, &mut pool, &mut from),
                false => carry(back, front, &mut pool, &mut from),
            };
            let found: Vec<Offload> = received.iter().map(|frame| frame.offload).collect();
            let expected: Vec<Offload> = offloads.iter().map(|(_, offload)| *offload).collect();
            assert_eq!(found, expected, "{features:?}");
        }
    }
}

#[test]
fn an_end_accepts_only_negotiated_offloads() {
    let mut bits = vec![VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF];
    let caps = |bits: &[u32]| {
        let joined = Joined::new(Features::of(bits), 256, 1514);
        [joined.front.describe().caps, joined.back.describe().caps]
    };
    for caps in caps(&bits) {
        assert!(caps.scatter_gather && !caps.checksum_v4 && !caps.gso_v4);
    }
    // Segmentation without checksums is ignored.
    bits.push(VIRTIO_NET_F_GUEST_TSO4);
    assert!(!caps(&bits)[1].gso_v4);
    bits.push(VIRTIO_NET_F_GUEST_CSUM);
    let [front, back] = caps(&bits);
    assert!(back.gso_v4 && back.checksum_v6 && !back.gso_v6 && !front.checksum_v4);
    assert!(!back.uso_v4 && !front.uso_v4);
    // Each version of IP alone in one direction, and both together in the other.
    bits.extend([VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_USO]);
    let [front, back] = caps(&bits);
    assert!(!back.uso_v4 && back.uso_v6 && front.uso_v4 && front.uso_v6 && !front.gso_v4);
    // Only a peer that negotiated checksums may be notified that one was verified.
    let mut joined = Joined::new(Features::of(&bits[..2]), 256, 1514);
    let mut pool = pool();
    let mut frame = tcp(&mut pool, 100, 1);
    frame.offload.checksum = Checksum::Validated;
    let mut from: FrameQueue = [frame].into();
    let received = carry(&mut joined.back, &mut joined.front, &mut pool, &mut from);
    assert_eq!(received[0].offload.checksum, Checksum::Unverified);
}

#[test]
fn without_mergeable_buffers_a_frame_that_no_chain_holds_is_dropped() {
    let mut joined = Joined::new(Features::of(&[VIRTIO_F_VERSION_1]), 256, 1514);
    let mut pool = pool();
    let mut from: FrameQueue =
        [plain(&mut pool, 2037, 1), plain(&mut pool, 2036, 2)].into_iter().collect();
    let received = carry(&mut joined.back, &mut joined.front, &mut pool, &mut from);
    assert_eq!(received.iter().map(Frame::len).collect::<Vec<_>>(), [2036]);
    let dropped: Vec<_> =
        joined.back_counters.dropped.snapshot().filter(|(_, count)| *count > 0).collect();
    assert_eq!(dropped, [(DropReason::TooLong, 1)]);
}

#[test]
fn a_disabled_pair_drops_what_comes_and_gives_nothing() {
    let mut joined = Joined::new(Features::of(&[VIRTIO_F_VERSION_1]), 256, 1514);
    let mut pool = pool();
    for is_enabled in [false, true] {
        joined.control.set_enabled(is_enabled);
        for is_tx in [true, false] {
            let mut from: FrameQueue = (0..10).map(|n| plain(&mut pool, 100, n)).collect();
            let (front, back) = (&mut joined.front, &mut joined.back);
            let received = match is_tx {
                true => carry(front, back, &mut pool, &mut from),
                false => carry(back, front, &mut pool, &mut from),
            };
            assert_eq!(received.len(), if is_enabled { 10 } else { 0 });
        }
    }
    let totals = joined.back_counters.totals();
    assert_eq!((totals.tx_packets, totals.rx_packets), (10, 10));
    assert_eq!((totals.tx_bytes, totals.rx_bytes), (1000, 1000));
}

#[test]
fn a_frame_without_a_buffer_waits_where_it_is() {
    for features in sets() {
        let mut joined = Joined::new(features, 256, 1514);
        let mut pool = pool();
        let mut from: FrameQueue = (0..10).map(|n| plain(&mut pool, 100, n)).collect();
        let mut spent = FramePool::new(PoolBudget::new(0));
        let mut batch = FrameBatch::new();
        for is_tx in [true, false] {
            let mut from: FrameQueue = from.drain(..5).collect();
            let Joined { front, back, .. } = &mut joined;
            let (sender, receiver): (&mut dyn PortQueue, &mut dyn PortQueue) =
                if is_tx { (front, back) } else { (back, front) };
            sender.egress(&mut from, &mut pool).unwrap();
            receiver.ingress(Budget::BATCH, &mut spent, &mut batch).unwrap();
            assert!(batch.is_empty() && spent.take_shortage());
            assert_eq!(receiver.arm().unwrap(), Pending::Work, "{features:?}");
            receiver.ingress(Budget::BATCH, &mut pool, &mut batch).unwrap();
            assert_eq!(batch.drain(..).count(), 5, "{features:?}");
        }
    }
}
