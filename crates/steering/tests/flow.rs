//! The guarantees of the default hash.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;
use ringway_datapath::headers::Transport;
use ringway_steering::{FlowTuple, QueueIndex, flow_hash, queue_of};

#[test]
fn both_directions_of_a_flow_have_one_hash() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0030);
    for round in 0..if cfg!(miri) { 6 } else { 20_000 } {
        let tuple = random_tuple(&mut random, round % 2 == 0);
        assert_eq!(tuple.hash(), tuple.reversed().hash());
        assert_eq!(flow_hash(&frame(&tuple, 10)), Some(tuple.hash()));
        assert_eq!(flow_hash(&frame(&tuple.reversed(), 0)), Some(tuple.hash()));
    }
}

#[test]
fn all_frames_of_a_flow_have_one_hash() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0031);
    for round in 0..if cfg!(miri) { 1 } else { 200 } {
        let tuple = random_tuple(&mut random, round % 2 == 0);
        let expected = Some(tuple.hash());
        for len in [0, 1, 1448, 60_000] {
            let mut bytes = frame(&tuple, len);
            assert_eq!(flow_hash(&bytes), expected);
            bytes.splice(12..12, [0x81, 0, 0, 9]);
            assert_eq!(flow_hash(&bytes), expected);
            bytes.extend([0; 20]);
            assert_eq!(flow_hash(&bytes), expected);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn random_flows_are_spread_evenly() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0032);
    let tuples: Vec<FlowTuple> =
        (0..64_000).map(|round| random_tuple(&mut random, round % 2 == 0)).collect();
    for queues in [2, 3, 4, 8, 16, 64] {
        assert_even(&tuples, queues);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn flows_that_differ_in_a_few_low_bits_are_spread_evenly() {
    let end = |address: IpAddr, port| SocketAddr::new(address, port);
    let v4 = |last: u8| IpAddr::from([10, 0, 0, last]);
    let v6 = |last: u8| IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let versions: [fn(u8) -> IpAddr; 2] = [v4, v6];
    for address in versions {
        for transport in [Transport::Tcp, Transport::Udp] {
            // One client, one server, and ports in the ascending order of an operating system.
            let by_port: Vec<FlowTuple> = (32_768..48_768)
                .map(|port| FlowTuple {
                    src: end(address(1), port),
                    dst: end(address(2), 5201),
                    transport,
                })
                .collect();
            // Equal ports on both ends, and communicating neighbours.
            let by_address: Vec<FlowTuple> = (0..16_000u16)
                .map(|number| {
                    let [high, low] = number.to_be_bytes();
                    let port = 5000 + u16::from(high);
                    FlowTuple {
                        src: end(address(low), port),
                        dst: end(address(low ^ 1), port),
                        transport,
                    }
                })
                .filter(|tuple| {
                    matches!(tuple.src.ip(), IpAddr::V4(ip) if ip.octets()[3] & 1 == 0)
                        || matches!(tuple.src.ip(), IpAddr::V6(ip) if ip.octets()[15] & 1 == 0)
                })
                .collect();
            for queues in [2, 4, 8, 16] {
                assert_even(&by_port, queues);
                assert_even(&by_address, queues);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn every_bit_of_the_tuple_changes_half_of_the_hash() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0033);
    for bit in 0..16 {
        let (mut flipped, rounds) = (0, 2_000u32);
        for round in 0..rounds {
            let tuple = random_tuple(&mut random, round % 2 == 0);
            let mut other = tuple;
            other.src.set_port(tuple.src.port() ^ (1 << bit));
            flipped += (tuple.hash() ^ other.hash()).count_ones();
        }
        let mean = f64::from(flipped) / f64::from(rounds);
        assert!((15.5..16.5).contains(&mean), "bit {bit} of the port flips {mean} bits");
    }
}

#[test]
fn all_fragments_of_a_packet_are_hashed_by_address_to_one_queue() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0034);
    let tuple = random_tuple(&mut random, true);
    let mut first = frame(&tuple, 100);
    let mut later = first.clone();
    first[20] = 0x20;
    later[20..22].copy_from_slice(&[0, 5]);
    later[34..54].fill(0xee);
    let hash = flow_hash(&first);
    assert!(hash.is_some());
    assert_eq!(flow_hash(&later), hash);
    assert_ne!(hash, Some(tuple.hash()));
    // Any other protocol over IP is treated alike: here OSPF.
    let mut other = frame(&tuple, 100);
    other[23] = 89;
    assert_eq!(flow_hash(&other), hash);
}

#[test]
fn pings_and_frames_other_than_ip_have_no_flow() {
    let mut ping = Vec::new();
    let link = || PacketBuilder::ethernet2([2; 6], [4; 6]);
    let v4 = link().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).icmpv4_echo_request(1, 2);
    v4.write(&mut ping, b"ping").unwrap();
    assert_eq!(flow_hash(&ping), None);
    // A ping that is too large for one packet stays on the same queue.
    ping[20] = 0x20;
    assert_eq!(flow_hash(&ping), None);

    let mut ping = Vec::new();
    let v6 = link().ipv6([1; 16], [2; 16], 64).icmpv6_echo_request(1, 2);
    v6.write(&mut ping, b"ping").unwrap();
    assert_eq!(flow_hash(&ping), None);

    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(flow_hash(&arp), None);
    assert_eq!(flow_hash(&[]), None);
    assert_eq!(queue_of(None, 8), QueueIndex::FIRST);
}

#[test]
fn every_queue_is_reached_and_no_other() {
    for queues in [1, 2, 3, 8, 100, u16::MAX] {
        assert_eq!(queue_of(Some(0), queues), QueueIndex(0));
        assert_eq!(queue_of(Some(u32::MAX), queues), QueueIndex(queues - 1));
    }
    assert_eq!(queue_of(Some(u32::MAX), 0), QueueIndex(0));
}

/// Checks that chi-square of the counts against equal shares is below the value that 1 in 10 000
/// seeds would exceed (by Wilson and Hilferty's approximation).
fn assert_even(tuples: &[FlowTuple], queues: u16) {
    let mut counts = vec![0u32; usize::from(queues)];
    for tuple in tuples {
        counts[usize::from(queue_of(Some(tuple.hash()), queues).0)] += 1;
    }
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / f64::from(queues);
    let chi2: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let freedom = f64::from(queues - 1);
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 3.72 * spread.sqrt()).powi(3);
    assert!(chi2 < limit, "{queues} queues: chi-square {chi2:.1} over {limit:.1}: {counts:?}");
}

fn random_tuple(random: &mut fastrand::Rng, is_v4: bool) -> FlowTuple {
    let mut address = || match is_v4 {
        true => IpAddr::from(random.u32(..).to_be_bytes()),
        // Global addresses, never IPv4-mapped ones.
        false => IpAddr::from((random.u128(..) >> 4 | 2 << 124).to_be_bytes()),
    };
    let (src, dst) = (address(), address());
    FlowTuple {
        src: SocketAddr::new(src, random.u16(..)),
        dst: SocketAddr::new(dst, random.u16(..)),
        transport: if random.bool() { Transport::Tcp } else { Transport::Udp },
    }
}

fn frame(tuple: &FlowTuple, len: usize) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = match (tuple.src.ip(), tuple.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => link.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => link.ipv6(src.octets(), dst.octets(), 64),
        _ => panic!("one of each"),
    };
    let (src, dst, payload) = (tuple.src.port(), tuple.dst.port(), vec![7; len]);
    let mut frame = Vec::new();
    match tuple.transport {
        Transport::Tcp => ip.tcp(src, dst, 1, 1).write(&mut frame, &payload).unwrap(),
        Transport::Udp => ip.udp(src, dst).write(&mut frame, &payload).unwrap(),
    }
    frame
}
