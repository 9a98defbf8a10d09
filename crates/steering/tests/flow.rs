//! The guarantees of the default hash.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;
use ringway_datapath::headers::Transport;
use ringway_steering::{BadFlowKey, FlowKey, FlowTuple, QueueIndex, flow_hash, queue_of};

const KEY: FlowKey = FlowKey::new([1, 2]);

#[test]
fn both_directions_of_a_flow_have_one_hash() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0030);
    for round in 0..if cfg!(miri) { 6 } else { 20_000 } {
        let (key, tuple) = (random_key(&mut random), random_tuple(&mut random, round % 2 == 0));
        assert_eq!(tuple.hash(key), tuple.reversed().hash(key));
        assert_eq!(flow_hash(&frame(&tuple, 10), key), Some(tuple.hash(key)));
        assert_eq!(flow_hash(&frame(&tuple.reversed(), 0), key), Some(tuple.hash(key)));
    }
}

#[test]
fn all_frames_of_a_flow_have_one_hash() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0031);
    for round in 0..if cfg!(miri) { 1 } else { 200 } {
        let (key, tuple) = (random_key(&mut random), random_tuple(&mut random, round % 2 == 0));
        let expected = Some(tuple.hash(key));
        for len in [0, 1, 1448, 60_000] {
            let mut bytes = frame(&tuple, len);
            assert_eq!(flow_hash(&bytes, key), expected);
            bytes.splice(12..12, [0x81, 0, 0, 9]);
            assert_eq!(flow_hash(&bytes, key), expected);
            bytes.extend([0; 20]);
            assert_eq!(flow_hash(&bytes, key), expected);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn random_flows_are_spread_evenly() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0032);
    let tuples: Vec<FlowTuple> =
        (0..64_000).map(|round| random_tuple(&mut random, round % 2 == 0)).collect();
    let key = random_key(&mut random);
    for queues in [2, 3, 4, 8, 16, 64] {
        assert_even(&tuples, queues, key);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn flows_that_differ_in_a_few_low_bits_are_spread_evenly() {
    let key = random_key(&mut fastrand::Rng::with_seed(0x5eed_0035));
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
                assert_even(&by_port, queues, key);
                assert_even(&by_address, queues, key);
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
            let (key, tuple) = (random_key(&mut random), random_tuple(&mut random, round % 2 == 0));
            let mut other = tuple;
            other.src.set_port(tuple.src.port() ^ (1 << bit));
            flipped += (tuple.hash(key) ^ other.hash(key)).count_ones();
        }
        let mean = f64::from(flipped) / f64::from(rounds);
        assert!((15.5..16.5).contains(&mean), "bit {bit} of the port flips {mean} bits");
    }
}

/// Kinds of flows from which a sender may choose: what it may set as it likes, of one end or both.
const CHOICES: [fn(u32) -> FlowTuple; 6] = [
    |at| v4([0xc000_0200 + (at >> 16), 0x0a00_0002], [at, 443]),
    |at| v4([0x0a00_0000 + at, 0x0a00_0002], [4000, 443]),
    |at| v4([0x0a00_0000 + at, 0x0b00_0000 - at], [at, u32::MAX - at]),
    |at| v6([1, 2], [u64::from(at >> 16), 9], [at, 443]),
    |at| v6([1, 2], [u64::from(at) << 32, 9], [4000, 443]),
    |at| v6([u64::from(at) << 40, 2], [7, u64::from(at) << 40], [4000, 443]),
];

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn flows_chosen_to_meet_one_queue_are_spread_by_any_other_key() {
    const FLOWS: u32 = 10_000;
    const QUEUES: u16 = 8;
    let mut random = fastrand::Rng::with_seed(0x5eed_0036);
    for choice in CHOICES {
        let words = [random.u64(..), random.u64(..)];
        let meets = |flow: &FlowTuple| {
            queue_of(Some(flow.hash(FlowKey::new(words))), QUEUES) == QueueIndex(3)
        };
        let flows: Vec<FlowTuple> =
            (0..).map(choice).filter(meets).take(usize::try_from(FLOWS).unwrap()).collect();
        // Others at random, and those that are closest.
        let [first, second] = words;
        let close = [[first ^ 1, second], [first, second ^ 1], [first ^ 1 << 63, second]];
        let others = (0..20).map(|_| random_key(&mut random));
        for key in close.map(FlowKey::new).into_iter().chain(others) {
            let counts = counts(&flows, QUEUES, key);
            // Seven standard deviations of random placement.
            let most = FLOWS / u32::from(QUEUES) * 12 / 10;
            assert!(counts.iter().all(|count| *count < most), "{}: {counts:?}", flows[0].src);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs more flows than Miri can hash in time")]
fn whether_two_flows_meet_depends_on_the_key() {
    const KEYS: u32 = 4_000;
    let base = v4([0x0a00_0001, 0x0a00_0002], [40_000, 5201]);
    let mut pairs = vec![
        (base, FlowTuple { transport: Transport::Udp, ..base }),
        (base, v4([0x0a00_0001, 0x0a00_0002], [5201, 40_000])),
        (base, v4([0x0a00_0001, 0x0a00_0002], [40_001, 5200])),
        (base, v4([0x0a00_0000, 0x0a00_0003], [40_000, 5201])),
        (base, v4([!0x0a00_0001, !0x0a00_0002], [!40_000, !5201])),
        (v6([7, 9], [1, 2], [1, 1]), v6([9, 7], [1, 2], [1, 1])),
        (v6([7, 7], [1, 2], [1, 1]), v6([6, 6], [1, 2], [1, 1])),
        (v6([7, 7], [1, 2], [1, 3]), v6([7, 7], [1, 2], [3, 1])),
    ];
    // A bit that changes at both ends cancels in a sum or in an exclusive-or.
    for bit in 0..16 {
        let both = [40_000 ^ 1 << bit, 5201 ^ 1 << bit];
        pairs.push((base, v4([0x0a00_0001, 0x0a00_0002], both)));
        pairs.push((v6([7, 7], [1, 2], [40_000, 5201]), v6([7, 7], [1, 2], both)));
    }
    for bit in 0..32 {
        let both = [0x0a00_0001 ^ 1 << bit, 0x0a00_0002 ^ 1 << bit];
        pairs.push((base, v4(both, [40_000, 5201])));
    }
    let mut random = fastrand::Rng::with_seed(0x5eed_0037);
    for (one, other) in pairs {
        let mut met = 0;
        for _ in 0..KEYS {
            let key = random_key(&mut random);
            let queue = |flow: FlowTuple| queue_of(Some(flow.hash(key)), 4);
            met += u32::from(queue(one) == queue(other));
        }
        // A quarter, with six standard deviations.
        assert!((836..1164).contains(&met), "{one:?} and {other:?} meet in {met} of {KEYS}");
    }
}

#[test]
fn a_key_is_32_digits_and_is_in_no_log() {
    let text = "6d5a56da255b0ec24167253d43a38fb0";
    let key: FlowKey = text.parse().unwrap();
    assert_eq!(key, FlowKey::new([0x6d5a_56da_255b_0ec2, 0x4167_253d_43a3_8fb0]));
    assert_eq!(key.to_string(), text);
    assert_eq!(FlowKey::new([0, 1]).to_string(), format!("{:032}", 1));
    assert_eq!(text.to_uppercase().parse(), Ok(key));
    assert!(!format!("{key:?}").contains("6d"));
    for bad in ["", "6d5a", &text[1..], &format!("{text}0"), &format!("+{}", &text[1..])] {
        assert_eq!(bad.parse::<FlowKey>(), Err(BadFlowKey), "{bad}");
    }
}

#[test]
fn all_fragments_of_a_packet_are_hashed_by_address_to_one_queue() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0034);
    let (key, tuple) = (random_key(&mut random), random_tuple(&mut random, true));
    let mut first = frame(&tuple, 100);
    let mut later = first.clone();
    first[20] = 0x20;
    later[20..22].copy_from_slice(&[0, 5]);
    later[34..54].fill(0xee);
    let hash = flow_hash(&first, key);
    assert!(hash.is_some());
    assert_eq!(flow_hash(&later, key), hash);
    assert_ne!(hash, Some(tuple.hash(key)));
    // Any other protocol over IP is treated alike: here OSPF.
    let mut other = frame(&tuple, 100);
    other[23] = 89;
    assert_eq!(flow_hash(&other, key), hash);
}

#[test]
fn pings_and_frames_other_than_ip_have_no_flow() {
    let mut ping = Vec::new();
    let link = || PacketBuilder::ethernet2([2; 6], [4; 6]);
    let v4 = link().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).icmpv4_echo_request(1, 2);
    v4.write(&mut ping, b"ping").unwrap();
    assert_eq!(flow_hash(&ping, KEY), None);
    // A ping that is too large for one packet stays on the same queue.
    ping[20] = 0x20;
    assert_eq!(flow_hash(&ping, KEY), None);

    let mut ping = Vec::new();
    let v6 = link().ipv6([1; 16], [2; 16], 64).icmpv6_echo_request(1, 2);
    v6.write(&mut ping, b"ping").unwrap();
    assert_eq!(flow_hash(&ping, KEY), None);

    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(flow_hash(&arp, KEY), None);
    assert_eq!(flow_hash(&[], KEY), None);
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
fn assert_even(tuples: &[FlowTuple], queues: u16, key: FlowKey) {
    let counts = counts(tuples, queues, key);
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / f64::from(queues);
    let chi2: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let freedom = f64::from(queues - 1);
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 3.72 * spread.sqrt()).powi(3);
    assert!(chi2 < limit, "{queues} queues: chi-square {chi2:.1} over {limit:.1}: {counts:?}");
}

/// How many of the flows meet each queue.
fn counts(tuples: &[FlowTuple], queues: u16, key: FlowKey) -> Vec<u32> {
    let mut counts = vec![0u32; usize::from(queues)];
    for tuple in tuples {
        counts[usize::from(queue_of(Some(tuple.hash(key)), queues).0)] += 1;
    }
    counts
}

/// A flow of TCP between two addresses; of ports the lower bits count.
fn v4(addresses: [u32; 2], ports: [u32; 2]) -> FlowTuple {
    flow(addresses.map(|address| IpAddr::from(address.to_be_bytes())), ports)
}

/// A flow of TCP between two addresses, each of a network and an interface in it.
fn v6(src: [u64; 2], dst: [u64; 2], ports: [u32; 2]) -> FlowTuple {
    let address = |[network, interface]: [u64; 2]| {
        let bits = u128::from(network) << 64 | u128::from(interface) | 2 << 124;
        IpAddr::from(bits.to_be_bytes())
    };
    flow([address(src), address(dst)], ports)
}

fn flow([src, dst]: [IpAddr; 2], ports: [u32; 2]) -> FlowTuple {
    let [from, to] = ports.map(|port| u16::try_from(port & 0xffff).unwrap());
    FlowTuple {
        src: SocketAddr::new(src, from),
        dst: SocketAddr::new(dst, to),
        transport: Transport::Tcp,
    }
}

fn random_key(random: &mut fastrand::Rng) -> FlowKey {
    FlowKey::new([random.u64(..), random.u64(..)])
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
