//! The Toeplitz hash against its published values.

use std::net::SocketAddr;

use etherparse::PacketBuilder;
use ringway_datapath::headers::Transport;
use ringway_steering::toeplitz::{
    HASH_TYPES_KNOWN, HashType, MAPPING_LEN_MAX, SettingRefused, Toeplitz, ToeplitzSteering,
};
use ringway_steering::{FlowTuple, QueueIndex};

/// The key of the published verification suite for receive-side scaling.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Source, destination, hash of the addresses, hash with the ports.
const PUBLISHED: [(&str, &str, u32, u32); 8] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
    ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
    ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
    ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
    (
        "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
        "[fe80::200:f8ff:fe21:67cf]:38024",
        0x4b61_e985,
        0x02d1_feef,
    ),
];

#[test]
fn published_test_vectors_are_reproduced() {
    let mut steering = ToeplitzSteering::new();
    steering.set_key(&KEY).unwrap();
    for (src, dst, by_address, by_port) in PUBLISHED {
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let (plain, tcp) = match src {
            SocketAddr::V4(_) => (HashType::Ipv4, HashType::Ipv4Tcp),
            SocketAddr::V6(_) => (HashType::Ipv6, HashType::Ipv6Tcp),
        };
        for transport in [Transport::Tcp, Transport::Udp] {
            let frame = frame(src, dst, transport);
            let tuple = FlowTuple { src, dst, transport };
            for (types, expected) in [
                (0, None),
                (plain.mask(), Some((by_address, plain))),
                (tcp.mask(), Some((by_port, tcp))),
                (HASH_TYPES_KNOWN, Some((by_port, tcp))),
            ] {
                let expected = match (transport, types) {
                    (Transport::Tcp, _) => expected,
                    // Ports of UDP never count.
                    (Transport::Udp, types) if types & plain.mask() != 0 => {
                        Some((by_address, plain))
                    }
                    (Transport::Udp, _) => None,
                };
                steering.set_types(types).unwrap();
                assert_eq!(steering.flow_hash(&frame), expected);
                assert_eq!(steering.tuple_hash(&tuple), expected);
            }
        }
    }
}

#[test]
fn fragments_are_hashed_on_addresses_only() {
    let mut steering = ToeplitzSteering::new();
    steering.set_key(&KEY).unwrap();
    steering.set_types(HASH_TYPES_KNOWN).unwrap();
    let (src, dst, by_address, _) = PUBLISHED[0];
    let mut frame = frame(src.parse().unwrap(), dst.parse().unwrap(), Transport::Tcp);
    frame[20] = 0x20;
    assert_eq!(steering.flow_hash(&frame), Some((by_address, HashType::Ipv4)));
}

#[test]
fn the_table_equals_the_definition_for_any_key_and_input() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0020);
    for _ in 0..if cfg!(miri) { 1 } else { 2_000 } {
        let mut key = vec![0; random.usize(..=40)];
        let mut input = vec![0; random.usize(..=36)];
        random.fill(&mut key);
        random.fill(&mut input);
        let bit = |bytes: &[u8], at: usize| {
            bytes.get(at / 8).is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0)
        };
        let mut expected = 0u32;
        for at in (0..input.len() * 8).filter(|&at| bit(&input, at)) {
            expected ^= (at..at + 32).fold(0, |word, at| word << 1 | u32::from(bit(&key, at)));
        }
        assert_eq!(Toeplitz::new(&key).unwrap().hash(&input), expected);
    }
}

#[test]
fn invalid_settings_are_refused_and_change_nothing() {
    let mut steering = ToeplitzSteering::new();
    assert_eq!(steering.set_key(&[0; 41]), Err(SettingRefused::KeyTooLong { len: 41 }));
    assert_eq!(steering.set_key(&[0; 4096]), Err(SettingRefused::KeyTooLong { len: 4096 }));
    assert_eq!(steering.set_types(0x10), Err(SettingRefused::UnknownType { mask: 0x10 }));
    let too_long = u32::try_from(MAPPING_LEN_MAX).unwrap() + 1;
    for len in [too_long, u32::MAX] {
        let refused = steering.set_mapping_size(len);
        assert_eq!(refused, Err(SettingRefused::MappingTooLong { len }));
    }

    steering.set_mapping_size(4).unwrap();
    steering.set_mapping(0, &[3, 2, 1, 0], 4).unwrap();
    for (offset, entries) in [(4, &[0][..]), (0, &[0; 5]), (u32::MAX, &[0]), (3, &[0, 0])] {
        let refused = steering.set_mapping(offset, entries, 4);
        let count = entries.len();
        assert_eq!(refused, Err(SettingRefused::OutsideMapping { offset, count, len: 4 }));
    }
    let refused = steering.set_mapping(0, &[0, 4], 4);
    assert_eq!(refused, Err(SettingRefused::NoSuchQueue { queue: 4, queues: 4 }));
    let queues: Vec<u16> = (0..4).map(|hash| steering.queue_of(Some(hash), 4).0).collect();
    assert_eq!(queues, [3, 2, 1, 0]);
}

#[test]
fn the_mapping_table_selects_the_queue_or_else_the_remainder() {
    let mut steering = ToeplitzSteering::new();
    assert_eq!(steering.queue_of(Some(11), 4), QueueIndex(3));
    assert_eq!(steering.queue_of(Some(11), 0), QueueIndex(0));
    assert_eq!(steering.queue_of(None, 4), QueueIndex(0));
    steering.set_mapping_size(128).unwrap();
    assert_eq!(steering.queue_of(Some(11), 4), QueueIndex(0));
    steering.set_mapping(11, &[7], 8).unwrap();
    assert_eq!(steering.queue_of(Some(128 + 11), 8), QueueIndex(7));
    // The vif has reconnected with fewer queues.
    assert_eq!(steering.queue_of(Some(11), 4), QueueIndex(3));
    assert_eq!(steering.queue_of(Some(11), 0), QueueIndex(0));
}

fn frame(src: SocketAddr, dst: SocketAddr, transport: Transport) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = match (src, dst) {
        (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            link.ipv4(src.ip().octets(), dst.ip().octets(), 64)
        }
        (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
            link.ipv6(src.ip().octets(), dst.ip().octets(), 64)
        }
        _ => panic!("one of each"),
    };
    let mut frame = Vec::new();
    match transport {
        Transport::Tcp => {
            ip.tcp(src.port(), dst.port(), 1, 1).write(&mut frame, b"data").unwrap();
        }
        Transport::Udp => ip.udp(src.port(), dst.port()).write(&mut frame, b"data").unwrap(),
    }
    frame
}
