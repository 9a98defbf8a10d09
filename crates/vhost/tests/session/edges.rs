//! Numbers at the ends of their ranges, and what a session forgets and remembers.

use ringway_vhost::backend::{Missing, PROTOCOL_FEATURES};
use ringway_vhost::request::{Ack, Area};
use ringway_vhost::{Fault, Inbox, Request};
use ringway_wire::vhost_user::{HEADER_LEN, Op};
use ringway_wire::virtio::{Features, VIRTIO_F_VERSION_1};

use crate::device::{
    Device, USUAL, addresses, driver_ok, enable, file, greeting, region, region_key, rings,
};

const PLAIN: Features = Features::of(&[VIRTIO_F_VERSION_1]);

/// All that a pair needs besides features and memory.
fn set_up(device: &mut Device, pair: u16) {
    for ring in rings(pair) {
        for request in [
            Request::SetVringNum { ring, size: 128 },
            Request::SetVringBase { ring, base: 9 },
            Request::SetVringAddr { ring, addresses: addresses(ring) },
            Request::SetVringKick { ring, file: Some(file()) },
        ] {
            device.ask(request).unwrap();
        }
    }
}

/// A device of two pairs, of which the first is enabled.
fn booted() -> Device {
    let mut device = Device::new(2);
    let first = greeting(0).into_iter().chain(enable(0, true));
    for request in first.chain(driver_ok(0, 0)).chain(driver_ok(1, 0)) {
        device.ask(request).unwrap();
    }
    device
}

/// Memory for what is in flight on two rings of 128 entries.
fn area(len: u64) -> Area {
    Area { file: file(), len, offset: 0, rings: 2, size: 128 }
}

const AREA_LEN: u64 = 2 * 2112;

#[test]
fn a_back_end_has_one_pair_at_least_and_128_at_most() {
    for (wanted, pairs) in [(0, 1), (1, 1), (128, 128), (129, 128)] {
        let mut device = Device::new(wanted);
        device.ask(Request::SetProtocolFeatures(PROTOCOL_FEATURES)).unwrap();
        device.ask(Request::GetQueueNum).unwrap();
        assert_eq!(device.number(), pairs);
    }
}

#[test]
fn the_first_mtu_of_a_front_end_is_the_one_that_counts_later() {
    let mut device = booted();
    for (mtu, is_refused) in [(67, true), (68, false), (9000, false), (9001, true)] {
        device.ask(Request::NetSetMtu(mtu)).unwrap();
        assert_eq!(device.session.refused_mtu().is_some(), is_refused, "{mtu}");
    }
    assert_eq!(device.mtu, Some(9000));
    assert_eq!(device.session.negotiated().map(|it| it.mtu), Some(68));
}

#[test]
fn a_status_and_an_area_have_limits() {
    let mut device = booted();
    device.ask(Request::SetStatus(255)).unwrap();
    device.ask(Request::GetStatus).unwrap();
    assert_eq!(device.number(), 255);
    let words = device.ask(Request::SetStatus(256)).unwrap_err().to_string();
    assert_eq!(words, "SET_STATUS has 256, expected a status of 8 bits");

    let words = device.ask(Request::SetInflightFd(area(AREA_LEN - 1))).unwrap_err().to_string();
    assert_eq!(words, "SET_INFLIGHT_FD has 4223, expected room for all its rings");
    let log = |size, offset| Request::SetLogBase { size, offset, file: file() };
    device.ask(log(u64::MAX, 0)).unwrap();
    let words = device.ask(log(u64::MAX, 1)).unwrap_err().to_string();
    assert_eq!(words, "SET_LOG_BASE has 1, expected an offset below the end of all addresses");
}

#[test]
fn a_ring_that_is_to_be_polled_all_the_time_is_refused() {
    let words = booted().ask(Request::SetVringKick { ring: 0, file: None }).unwrap_err();
    let words = words.to_string();
    assert!(words.ends_with("expected a descriptor: rings are not polled all the time"), "{words}");
}

#[test]
fn a_message_may_have_eight_regions_with_their_descriptors() {
    let message = Request::SetMemTable((0..8).map(region).collect()).write(Ack::No);
    let (bytes, mut inbox) = (message.bytes(), Inbox::default());
    let (header, payload) = bytes.split_at(HEADER_LEN);
    assert!(inbox.take(header, message.files).unwrap().is_none());
    let whole = inbox.take(payload, []).unwrap().expect("it is whole");
    assert_eq!(whole.files.len(), 8);
    let mut device = Device::new(1);
    device.take(whole).unwrap();
    assert_eq!(device.memory.len(), 8);
}

#[test]
fn rings_are_enabled_from_the_start_unless_protocol_features_were_agreed_on() {
    for (protocol, features, is_enabled) in [
        (None, PLAIN, true),
        (Some(PROTOCOL_FEATURES), PLAIN, false),
        (None, USUAL, false),
        (Some(PROTOCOL_FEATURES), USUAL, false),
    ] {
        let mut device = Device::new(1);
        if let Some(protocol) = protocol {
            device.ask(Request::SetProtocolFeatures(protocol)).unwrap();
        }
        device.ask(Request::SetFeatures(features)).unwrap();
        device.ask(Request::SetMemTable(vec![region(0), region(1)])).unwrap();
        set_up(&mut device, 0);
        let pairs = [device.served.len(), device.drained.len(), device.session.enabled()];
        let expected = if is_enabled { [1, 0, 1] } else { [0, 1, 0] };
        assert_eq!(pairs, expected, "{protocol:?} {features:?}");
    }
}

#[test]
fn a_ring_of_a_disabled_pair_runs_as_well() {
    let fault = booted().ask(Request::SetVringNum { ring: 3, size: 64 }).unwrap_err();
    assert!(matches!(fault, Fault::RingRunning { ring: 3, .. }), "{fault}");
}

#[test]
fn a_front_end_with_one_pair_says_nothing_of_others() {
    let mut device = Device::new(2);
    for request in greeting(0).into_iter().chain(driver_ok(0, 0)) {
        device.ask(request).unwrap();
    }
    assert!(!device.session.has_more_pairs());
    device.ask(Request::SetVringCall { ring: 2, file: Some(file()) }).unwrap();
    assert!(device.session.has_more_pairs());
}

#[test]
fn a_ring_that_lacks_most_is_named_with_its_direction() {
    let mut device = Device::new(1);
    device.ask(Request::SetVringNum { ring: 1, size: 128 }).unwrap();
    let unset = device.session.unset_ring().map(|ring| ring.to_string());
    let expected =
        "ring 0, on which the guest receives, has no size, no addresses, no base, no kick";
    assert_eq!(unset.as_deref(), Some(expected));
}

#[test]
fn a_pair_is_unset_from_the_first_part_of_it_on() {
    let parts: [fn() -> Request; 4] = [
        || Request::SetVringNum { ring: 0, size: 128 },
        || Request::SetVringBase { ring: 0, base: 9 },
        || Request::SetVringAddr { ring: 0, addresses: addresses(0) },
        || Request::SetVringKick { ring: 0, file: Some(file()) },
    ];
    for part in parts {
        let mut device = Device::new(1);
        assert_eq!(device.session.unset_ring(), None);
        device.ask(part()).unwrap();
        let unset = device.session.unset_ring().expect("there is more");
        assert_eq!((unset.ring, unset.lacks.len()), (1, 4), "after {:?}", part());
    }
}

#[test]
fn another_kick_starts_a_running_ring_again_and_what_it_has_does_not() {
    let mut device = booted();
    let starts = device.starts;
    device.ask(Request::SetVringKick { ring: 0, file: Some(file()) }).unwrap();
    assert_eq!(device.starts, starts + 1);
    device.ask(Request::SetVringAddr { ring: 0, addresses: addresses(0) }).unwrap();
    assert_eq!(device.starts, starts + 1);
}

#[test]
fn a_session_knows_its_last_request_and_its_memory() {
    let mut device = booted();
    assert_eq!(device.session.last(), Some(Op::SetVringCall));
    device.ask(Request::AddMemReg(region(5))).unwrap();
    assert_eq!(device.session.last(), Some(Op::AddMemReg));
    assert_eq!(device.session.regions(), [0, 1, 5].map(region_key));
}

#[test]
fn a_reset_forgets_the_driver_and_the_area_and_keeps_rings_enabled() {
    let mut device = booted();
    device.ask(Request::SetInflightFd(area(AREA_LEN))).unwrap();
    assert!(device.has_area);
    assert_eq!(device.served[&0].1[0].2, 0, "at the used index, whatever its base is");
    device.ask(Request::SetStatus(0)).unwrap();
    assert_eq!((device.session.missing(), device.session.features()), (Missing::Driver, None));
    assert!(!device.has_area && device.served.is_empty());
    device.ask(Request::SetFeatures(USUAL)).unwrap();
    set_up(&mut device, 0);
    assert_eq!(device.served[&0].1[0].2, 9, "at its base");
    // The request of a device of its own resets that, too.
    device.ask(Request::ResetDevice).unwrap();
    device.ask(Request::SetFeatures(USUAL)).unwrap();
    set_up(&mut device, 0);
    assert!(device.served.is_empty() && device.drained.contains_key(&0));
}

#[test]
fn memory_that_is_withdrawn_from_stopped_rings_is_no_fault_of_the_front_end() {
    let mut device = booted();
    device.ask(Request::SetMemTable(Vec::new())).unwrap();
    assert!(device.session.removed_memory().is_some(), "rings ran");
    device.ask(Request::SetMemTable(vec![region(0), region(1)])).unwrap();
    for ring in 0..4 {
        device.ask(Request::GetVringBase { ring }).unwrap();
    }
    device.ask(Request::SetMemTable(Vec::new())).unwrap();
    assert_eq!(device.session.missing(), Missing::Memory);
    assert_eq!(device.session.removed_memory(), None);
}

#[test]
fn an_address_is_announced_as_the_front_end_says_it() {
    let mut device = booted();
    device.ask(Request::SendRarp([2, 0, 0, 1, 2, 3])).unwrap();
    assert_eq!(device.announced, [[2, 0, 0, 1, 2, 3]]);
}
