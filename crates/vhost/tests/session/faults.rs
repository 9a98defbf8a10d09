//! Protocol violations by a front-end, and the texts of their refusals.

use crate::device::{
    Device, USUAL, addresses, driver_ok, enable, file, greeting, region, region_key,
};
use ringway_vhost::backend::{FEATURES, Missing, Negotiated, Offer, PROTOCOL_FEATURES};
use ringway_vhost::request::{Ack, Area};
use ringway_vhost::{Addresses, Fault, Inbox, Message, Region, Request};
use ringway_wire::vhost_user::{
    HEADER_LEN, Header, Op, REGIONS_MAX, VERSION, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
    VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD, VHOST_USER_PROTOCOL_F_LOG_SHMFD,
    VHOST_USER_PROTOCOL_F_MQ, VHOST_USER_PROTOCOL_F_NET_MTU, VHOST_USER_PROTOCOL_F_PAGEFAULT,
    VHOST_USER_PROTOCOL_F_RARP, VHOST_USER_PROTOCOL_F_RESET_DEVICE, VHOST_USER_PROTOCOL_F_STATUS,
    VringState,
};
use ringway_wire::virtio::{
    Features, VIRTIO_F_VERSION_1, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_RSS,
};
use zerocopy::IntoBytes;

fn raw(op: Op, payload: &[u8], files: usize) -> Message {
    Message {
        request: op.number(),
        flags: 0,
        payload: payload.to_vec(),
        files: (0..files).map(|_| file()).collect(),
    }
}

fn state(op: Op, index: u32, num: u32) -> Message {
    raw(op, VringState { index, num }.as_bytes(), 0)
}

fn refusal(message: Message) -> String {
    let mut device = Device::new(4);
    device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
    device.take(message).unwrap_err().to_string()
}

#[test]
fn rings_are_a_power_of_two_of_entries() {
    for size in [0, 3, 255, 65535, 65536, 32769] {
        let words = refusal(state(Op::SetVringNum, 0, size));
        let expected = format!("ring 0 has {size} entries, expected a power of two up to 32768");
        assert_eq!(words, expected);
    }
    let mut device = Device::new(1);
    device.take(state(Op::SetVringNum, 1, 32768)).unwrap();
}

#[test]
fn a_ring_is_one_that_there_is() {
    let expected = "SET_VRING_NUM is for ring 8, expected one of 8: there are 4 queues of two \
                    rings each";
    assert_eq!(refusal(state(Op::SetVringNum, 8, 256)), expected);
    assert!(refusal(state(Op::SetVringEnable, 999, 1)).contains("ring 999"));
    let kick = raw(Op::SetVringKick, 255_u64.as_bytes(), 1);
    assert!(refusal(kick).contains("ring 255"));
}

#[test]
fn numbers_of_bytes_and_descriptors_are_those_of_the_request() {
    assert_eq!(refusal(raw(Op::SetFeatures, &[0; 7], 0)), "SET_FEATURES has 7 bytes, expected 8");
    assert_eq!(refusal(raw(Op::GetFeatures, &[0; 8], 0)), "GET_FEATURES has 8 bytes, expected 0");
    assert_eq!(
        refusal(raw(Op::SetVringKick, 0_u64.as_bytes(), 0)),
        "SET_VRING_KICK has 0 descriptors, expected 1"
    );
    assert_eq!(
        refusal(raw(Op::SetVringCall, 0x100_u64.as_bytes(), 1)),
        "SET_VRING_CALL has 1 descriptors, expected 0"
    );
    assert!(refusal(raw(Op::AddMemReg, &[0; 40], 1)).contains("does not fit"));
    let mut table = raw(Op::SetMemTable, &[0; 8 + 32], 1);
    table.payload[0] = 2;
    assert_eq!(refusal(table), "SET_MEM_TABLE has 40 bytes, expected 72");
    let mut table = raw(Op::SetMemTable, &[0; 8], 0);
    table.payload[0] = 9;
    assert_eq!(refusal(table), "there are 9 regions of memory, expected at most 8");
}

#[test]
fn a_request_that_was_not_negotiated_is_refused() {
    let unknown = Message { request: 99, flags: 0, payload: Vec::new(), files: Vec::new() };
    assert_eq!(refusal(unknown), "request 99 is unknown");
    assert_eq!(
        refusal(raw(Op::GetConfig, &[], 0)),
        "GET_CONFIG belongs to a protocol feature that is not in use"
    );
    assert_eq!(
        refusal(raw(Op::PostcopyAdvise, &[], 0)),
        "POSTCOPY_ADVISE: postcopy is not supported; migrate without it"
    );
    let mut device = Device::new(1);
    let early = device.ask(Request::AddMemReg(region(0))).unwrap_err();
    assert!(matches!(early, Fault::NotNegotiated { .. }));
    let features = Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_NET_F_RSS]);
    let words = device.ask(Request::SetFeatures(features)).unwrap_err().to_string();
    assert_eq!(words, "SET_FEATURES sets rss, which was not offered");
    let asked = Request::SetProtocolFeatures(VHOST_USER_PROTOCOL_F_PAGEFAULT);
    let words = device.ask(asked).unwrap_err().to_string();
    assert_eq!(words, "SET_PROTOCOL_FEATURES sets 0x100, which was not offered");
}

#[test]
fn a_request_of_a_protocol_feature_is_taken_with_that_alone() {
    const AREA: u64 = VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD;
    const SLOTS: u64 = VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
    const STATUS: u64 = VHOST_USER_PROTOCOL_F_STATUS;
    let log = || Request::SetLogBase { size: 4096, offset: 0, file: file() };
    let area =
        || Request::SetInflightFd(Area { rings: 2, size: 128, len: 4224, offset: 0, file: file() });
    let requests: [(u64, fn() -> Request); 12] = [
        (VHOST_USER_PROTOCOL_F_MQ, || Request::GetQueueNum),
        (VHOST_USER_PROTOCOL_F_LOG_SHMFD, log),
        (VHOST_USER_PROTOCOL_F_RARP, || Request::SendRarp([2, 0, 0, 0, 0, 1])),
        (VHOST_USER_PROTOCOL_F_NET_MTU, || Request::NetSetMtu(1500)),
        (AREA, || Request::GetInflightFd { rings: 2, size: 128 }),
        (AREA, area),
        (VHOST_USER_PROTOCOL_F_RESET_DEVICE, || Request::ResetDevice),
        (SLOTS, || Request::GetMaxMemSlots),
        (SLOTS, || Request::AddMemReg(region(0))),
        (SLOTS, || Request::RemMemReg(region_key(0))),
        (STATUS, || Request::SetStatus(1)),
        (STATUS, || Request::GetStatus),
    ];
    for (feature, request) in requests {
        for (protocol, is_taken) in [(feature, true), (PROTOCOL_FEATURES & !feature, false)] {
            let mut device = Device::new(1);
            device.ask(Request::SetProtocolFeatures(protocol)).unwrap();
            let taken = device.ask(request());
            let is_refused = matches!(taken, Err(Fault::NotNegotiated { .. }));
            assert_eq!((taken.is_ok(), is_refused), (is_taken, !is_taken), "{:?}", request());
        }
    }
}

#[test]
fn requests_that_need_nothing_done_are_read_like_the_others() {
    let mut device = Device::new(1);
    device.ask(Request::SetLogFd(file())).unwrap();
    device.ask(Request::SetVringErr { ring: 1, file: Some(file()) }).unwrap();
    assert_eq!(refusal(raw(Op::SetLogFd, &[0; 8], 1)), "SET_LOG_FD has 8 bytes, expected 0");
    for (files, is_taken) in [(0, true), (1, true), (2, false)] {
        let mut message = Request::RemMemReg(region_key(0)).write(Ack::No);
        message.files = (0..files).map(|_| file()).collect();
        let mut device = Device::new(1);
        device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
        assert_eq!(device.take(message).is_ok(), is_taken, "{files} descriptors");
    }
}

#[test]
fn an_area_is_for_rings_that_there_can_be() {
    for (rings, size, is_taken) in [(2, 32768, true), (2, 32769, false), (3, 128, false)] {
        let mut device = Device::new(1);
        device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
        let taken = device.ask(Request::GetInflightFd { rings, size });
        assert_eq!(taken.is_ok(), is_taken, "{rings} rings of {size}");
    }
}

#[test]
fn features_without_a_name_are_shown_beside_those_that_have_one() {
    let mut bits = (0..64).map(|bit| 1_u64 << bit);
    let unnamed = bits.find(|bit| Features(*bit).names().next().is_none()).expect("not all are");
    let features = Features(unnamed).or(Features::of(&[VIRTIO_NET_F_RSS]));
    let words = Device::new(1).ask(Request::SetFeatures(features)).unwrap_err().to_string();
    assert_eq!(words, format!("SET_FEATURES sets rss {unnamed:#x}, which was not offered"));
}

#[test]
fn regions_neither_overlap_nor_go_past_the_last_address() {
    let mut device = Device::new(1);
    device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
    device.ask(Request::AddMemReg(region(1))).unwrap();
    let mut shifted = region(1);
    shifted.key.guest_address += 0x1000;
    shifted.key.user_address += 0x1000;
    let words = device.ask(Request::AddMemReg(shifted)).unwrap_err().to_string();
    assert_eq!(words, "regions at guest addresses 0x101000 and 0x100000 overlap");
    let mut shifted = region(1);
    let user_address = shifted.key.user_address;
    shifted.key.guest_address += 0x10_0000_0000;
    shifted.key.user_address += 0x1000;
    let words = device.ask(Request::AddMemReg(shifted)).unwrap_err().to_string();
    let shifted = user_address + 0x1000;
    let expected =
        format!("regions at front-end (user) addresses {shifted:#x} and {user_address:#x} overlap");
    assert_eq!(words, expected);
    for wrong in [u64::MAX, u64::MAX - 0xf_ffff + 1] {
        let mut key = region(1).key;
        key.guest_address = wrong;
        let asked = Request::AddMemReg(Region { key, file: file() });
        assert!(matches!(device.ask(asked).unwrap_err(), Fault::RegionRange { .. }));
    }
    // They may touch, whichever comes first.
    device.ask(Request::AddMemReg(region(0))).unwrap();
    let slots = (2..).map(region).take(507);
    for region in slots {
        device.ask(Request::AddMemReg(region)).unwrap();
    }
    let words = device.ask(Request::AddMemReg(region(600))).unwrap_err().to_string();
    assert_eq!(words, "there are 510 regions of memory, expected at most 509");
}

#[test]
fn addresses_of_rings_are_aligned() {
    let good = addresses(0);
    let wrong = [
        (Addresses { descriptor: good.descriptor + 8, ..good }, "descriptor table", 16, 8),
        (Addresses { available: good.available + 1, ..good }, "available ring", 2, 1),
        (Addresses { used: good.used + 2, ..good }, "used ring", 4, 2),
    ];
    for (addresses, part, alignment, off) in wrong {
        let mut device = Device::new(1);
        let fault = device.ask(Request::SetVringAddr { ring: 1, addresses }).unwrap_err();
        let Fault::Misaligned { address, .. } = fault else { panic!("{fault}") };
        assert_eq!(address % alignment, off);
        let expected = format!(
            "SET_VRING_ADDR for ring 1: the {part} is at {address:#x}, expected a multiple of \
             {alignment}"
        );
        assert_eq!(fault.to_string(), expected);
    }
}

#[test]
fn an_mtu_that_is_too_large_is_refused() {
    let mut device = Device::new(1);
    device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
    device.ask(Request::NetSetMtu(9001)).unwrap();
    assert_eq!((device.number(), device.mtu), (1, None));
    let refused = device.session.refused_mtu().expect("it was refused").to_string();
    assert!(refused.contains("an MTU of 9001 (QEMU: host_mtu), and 68 to 9000"), "{refused}");
    device.ask(Request::NetSetMtu(1500)).unwrap();
    assert_eq!((device.mtu, device.session.refused_mtu()), (Some(1500), None));
}

#[test]
fn a_guest_keeps_what_it_has_though_less_is_configured_now() {
    let tso = Features::of(&[VIRTIO_NET_F_HOST_TSO4]);
    let offer = Offer {
        features: FEATURES.without(tso),
        floor: Negotiated {
            features: tso.or(Features::of(&[VIRTIO_NET_F_RSS])),
            protocol: VHOST_USER_PROTOCOL_F_MQ
                | VHOST_USER_PROTOCOL_F_RARP
                | VHOST_USER_PROTOCOL_F_PAGEFAULT,
            pairs: 4,
            mtu: 4000,
        },
        protocol: PROTOCOL_FEATURES & !VHOST_USER_PROTOCOL_F_MQ,
        pairs: 1,
        mtu_max: 1500,
    };
    let mut device = Device::with(offer);
    device.ask(Request::GetFeatures).unwrap();
    assert_eq!(Features(device.number()), FEATURES, "and nothing that cannot be kept");
    device.ask(Request::GetProtocolFeatures).unwrap();
    assert_eq!(device.number(), PROTOCOL_FEATURES);
    device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
    device.ask(Request::GetQueueNum).unwrap();
    assert_eq!(device.number(), 4, "QEMU ends a session that offers fewer than it has");
    device.ask(Request::NetSetMtu(4001)).unwrap();
    assert_eq!((device.number(), device.mtu), (1, None));
    device.ask(Request::NetSetMtu(4000)).unwrap();
    assert_eq!(device.mtu, Some(4000), "QEMU does not use a back-end that refuses it");
    device.ask(Request::SetFeatures(FEATURES)).unwrap();
    device.ask(Request::SetVringNum { ring: 7, size: 256 }).unwrap();
    assert_eq!(device.session.negotiated().map(|it| it.mtu), Some(4000), "for the next process");
}

#[test]
fn an_old_driver_and_memory_of_its_own_are_named() {
    let mut device = Device::new(1);
    assert_eq!(device.session.missing(), Missing::Driver);
    for request in greeting(0).into_iter().chain(enable(0, true)) {
        device.ask(request).unwrap();
    }
    device.ask(Request::SetFeatures(Features::NONE)).unwrap();
    assert_eq!(device.session.missing(), Missing::Version1);
    device.ask(Request::SetFeatures(USUAL)).unwrap();
    assert_eq!(device.session.missing(), Missing::Memory);
    device.ask(Request::AddMemReg(region(0))).unwrap();
    assert_eq!(device.session.missing(), Missing::Rings);
    assert_eq!(device.session.unset_ring(), None);
    device.ask(Request::SetVringEnable { ring: 0, is_enabled: false }).unwrap();
    let mut all = driver_ok(0, 0);
    let of_tx = all.split_off(all.len() - 5);
    for request in all {
        device.ask(request).unwrap();
    }
    let lacking = [
        "no size, no addresses, no base, no kick",
        "no addresses, no base, no kick",
        "no addresses, no kick",
        "no kick",
    ];
    for (lacks, next) in lacking.into_iter().zip(of_tx) {
        assert_eq!(device.session.missing(), Missing::Rings);
        let unset = device.session.unset_ring().map(|ring| ring.to_string());
        let expected = format!("ring 1, on which the guest transmits, has {lacks}");
        assert_eq!(unset, Some(expected));
        device.ask(next).unwrap();
    }
    assert_eq!(device.session.unset_ring(), None);
    assert_eq!(device.session.missing(), Missing::Enabled);
}

#[test]
fn half_a_message_is_waited_for_without_blocking() {
    let mut inbox = Inbox::default();
    let message = Request::SetFeatures(FEATURES).write(ringway_vhost::request::Ack::Wanted);
    let bytes = message.bytes();
    for (index, byte) in bytes[..bytes.len() - 1].iter().enumerate() {
        assert!(inbox.wanted() >= 1);
        assert!(inbox.take(&[*byte], []).unwrap().is_none());
        let len = if index + 1 < HEADER_LEN { HEADER_LEN } else { bytes.len() };
        assert_eq!(inbox.partial_message(), Some((index + 1, len)));
    }
    assert_eq!(inbox.wanted(), 1);
    let whole = inbox.take(&bytes[bytes.len() - 1..], []).unwrap().unwrap();
    assert_eq!(whole.payload, FEATURES.0.as_bytes());
    assert!(whole.needs_reply());
    assert_eq!((inbox.partial_message(), inbox.wanted()), (None, HEADER_LEN));
}

#[test]
fn a_header_that_no_message_has_is_refused_at_once() {
    let header = |flags, size| Header { request: 2, flags, size };
    let begin = |header: Header| Inbox::default().take(header.as_bytes(), []).unwrap_err();
    let words = begin(header(0, 8)).to_string();
    assert_eq!(words, "SET_FEATURES has version 0, expected 1");
    for size in [265, u32::MAX] {
        let words = begin(header(VERSION, size)).to_string();
        assert_eq!(words, format!("SET_FEATURES announces {size} bytes, expected at most 264"));
    }
    let files = (0..=REGIONS_MAX).map(|_| file());
    let fault = Inbox::default().take(&[2], files).unwrap_err();
    assert_eq!(fault, Fault::TooManyFiles { found: 9, max: 8 });
}
