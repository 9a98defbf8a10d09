//! The requests that QEMU 7.2 with `mq=on` sends, as observed, and the same in other orders.

use crate::device::{
    Device, STEP, USUAL, addresses, driver_ok, enable, file, greeting, region, rings,
};
use ringway_vhost::backend::{FEATURES, Missing, Offer, PROTOCOL_FEATURES, with_dependencies_met};
use ringway_vhost::{Fault, Request};
use ringway_wire::virtio::{
    Features, VIRTIO_F_RING_PACKED, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ,
};

const PAIRS: u16 = 2;

fn ask_all(device: &mut Device, asked: impl IntoIterator<Item = Request>) {
    for request in asked {
        let what = format!("{request:?}");
        device.ask(request).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    }
}

/// A guest whose driver uses the first pair.
fn booted() -> Device {
    let mut device = Device::new(PAIRS);
    for pair in 0..PAIRS {
        ask_all(&mut device, greeting(pair));
    }
    // Enabled many times before negotiation.
    for _ in 0..9 {
        ask_all(&mut device, enable(0, true));
        ask_all(&mut device, enable(1, false));
    }
    for pair in 0..PAIRS {
        ask_all(&mut device, driver_ok(pair, 0));
    }
    device
}

fn served(device: &Device) -> Vec<u16> {
    device.served.keys().copied().collect()
}

#[test]
fn a_guest_boots_with_one_pair_and_takes_the_other() {
    let mut device = booted();
    assert_eq!(served(&device), [0]);
    assert_eq!(device.memory.len(), 2, "a region that comes again is the same");
    ask_all(&mut device, enable(1, true));
    assert_eq!(served(&device), [0, 1]);
    assert_eq!(device.session.missing(), Missing::Nothing);
}

#[test]
fn the_number_of_queues_changes_and_rings_go_on_where_they_were() {
    let mut device = booted();
    ask_all(&mut device, enable(1, true));
    ask_all(&mut device, enable(1, false));
    assert_eq!(served(&device), [0]);
    let drained: Vec<u16> = device.drained.keys().copied().collect();
    assert_eq!(drained, [1], "what its guest has transmitted there is taken");
    ask_all(&mut device, enable(1, true));
    assert_eq!(served(&device), [0, 1]);
    assert_eq!(device.served[&1].1[0].2, STEP, "where it was stopped");
    assert_eq!(device.served[&0].1[0].2, STEP, "it was stopped once, to be given its call");
}

#[test]
fn after_a_reconnection_rings_are_enabled_before_features_are_set() {
    let mut device = Device::new(PAIRS);
    for pair in 0..PAIRS {
        ask_all(&mut device, greeting(pair));
    }
    for pair in 0..PAIRS {
        ask_all(&mut device, enable(pair, true));
        ask_all(&mut device, driver_ok(pair, 55675));
    }
    assert_eq!(served(&device), [0, 1]);
    let bases = |pair: u16| device.served[&pair].1.map(|(_, _, base)| base);
    // A call descriptor for a running ring restarts it.
    assert_eq!(bases(0)[0], 55675 + STEP);
    assert_eq!(bases(1)[0], 55675 + STEP);
}

#[test]
fn at_its_end_rings_are_stopped_and_enabled_once_more() {
    let mut device = booted();
    ask_all(&mut device, enable(1, true));
    for pair in 0..PAIRS {
        for ring in rings(pair) {
            device.ask(Request::GetVringBase { ring }).unwrap();
            let reply = device.sent.last().unwrap();
            assert_eq!(reply.payload[..4], u32::from(ring).to_ne_bytes());
        }
    }
    assert_eq!(served(&device), [0; 0]);
    for pair in 0..PAIRS {
        ask_all(&mut device, enable(pair, true));
    }
    assert_eq!(served(&device), [0; 0]);
    ask_all(&mut device, [Request::GetStatus, Request::SetStatus(0)]);
    // The guest reboots.
    for pair in 0..PAIRS {
        ask_all(&mut device, driver_ok(pair, 0));
    }
    assert_eq!(served(&device), [0, 1]);
}

#[test]
fn memory_that_comes_while_rings_run_is_added_between_two_runs() {
    let mut device = booted();
    ask_all(&mut device, [Request::AddMemReg(region(5))]);
    assert_eq!(served(&device), [0]);
    assert_eq!(device.memory.len(), 3);
    ask_all(&mut device, [Request::RemMemReg(crate::device::region_key(5))]);
    ask_all(&mut device, [Request::RemMemReg(crate::device::region_key(5))]);
    assert_eq!((served(&device), device.memory.len()), (vec![0], 2));
    ask_all(&mut device, [Request::SetMemTable(Vec::new())]);
    assert_eq!(served(&device), [0; 0]);
    assert_eq!(device.session.missing(), Missing::Memory);
    let removed_memory = device.session.removed_memory().expect("rings ran").to_string();
    let expected = "(0x200000 bytes, regions: 2) while rings in it were running (pairs: 1)";
    assert!(removed_memory.contains(expected), "{removed_memory}");
    // There are no more actions.
    ask_all(&mut device, [Request::SetMemTable(Vec::new())]);
    assert_eq!(device.session.removed_memory().expect("rings ran").to_string(), removed_memory);
    ask_all(&mut device, [Request::SetMemTable(vec![region(0), region(1)])]);
    assert_eq!(served(&device), [0]);
    assert_eq!(device.session.removed_memory(), None);
    ask_all(&mut device, [0, 1].map(|it| Request::RemMemReg(crate::device::region_key(it))));
    let removed_memory = device.session.removed_memory().expect("rings ran").to_string();
    assert!(removed_memory.contains("(0x100000 bytes, regions: 1)"), "{removed_memory}");
}

#[test]
fn writes_are_logged_while_a_guest_moves() {
    let mut device = booted();
    let log = Request::SetLogBase { size: 4096, offset: 0, file: file() };
    device.ask(log).unwrap();
    assert!(device.has_log);
    assert_eq!(device.number(), 0, "the front-end waits for that");
    for ring in rings(0) {
        let addresses = ringway_vhost::Addresses { log: Some(0x1000), ..addresses(ring) };
        device.ask(Request::SetVringAddr { ring, addresses }).unwrap();
    }
    assert_eq!(device.served[&0].1[1].1.log, Some(0x1000));
}

/// The requests that come once for one pair, for trying every order.
fn parts() -> Vec<fn() -> Request> {
    vec![
        || Request::SetFeatures(USUAL),
        || Request::SetMemTable(vec![region(0), region(1)]),
        || Request::SetVringEnable { ring: 0, is_enabled: true },
        || Request::SetVringEnable { ring: 1, is_enabled: true },
        || Request::SetVringNum { ring: 0, size: 256 },
        || Request::SetVringBase { ring: 0, base: 9 },
        || Request::SetVringAddr { ring: 0, addresses: addresses(0) },
        || Request::SetVringKick { ring: 0, file: Some(file()) },
        || Request::SetVringKick { ring: 1, file: Some(file()) },
    ]
}

/// The remaining requests of the second ring come first: they are like those of the first.
fn with_second_ring() -> Device {
    let mut device = Device::new(1);
    ask_all(
        &mut device,
        [
            Request::SetProtocolFeatures(PROTOCOL_FEATURES),
            Request::SetVringNum { ring: 1, size: 256 },
            Request::SetVringBase { ring: 1, base: 9 },
            Request::SetVringAddr { ring: 1, addresses: addresses(1) },
        ],
    );
    device
}

/// After each set of requests any two others may change places, so every order of all of them has
/// the same result. None of them starts a pair before all have arrived.
#[test]
fn every_order_of_requests_ends_with_the_pair_served() {
    let parts = parts();
    let all = (1_usize << parts.len()) - 1;
    let reach = |set: usize, last: &[usize]| {
        let mut device = with_second_ring();
        let first = (0..parts.len()).filter(|part| set >> part & 1 == 1);
        for part in first.chain(last.iter().copied()) {
            let asked = parts[part]();
            let what = format!("{asked:?}");
            device.ask(asked).unwrap_or_else(|fault| panic!("{what}: {fault}"));
        }
        let is_all = set | last.iter().fold(0, |set, part| set | 1 << part) == all;
        assert_eq!(device.served.len(), usize::from(is_all), "after {set:b} and {last:?}");
        (device.served, device.session.missing())
    };
    for set in 0..all {
        let left: Vec<usize> = (0..parts.len()).filter(|part| set >> part & 1 == 0).collect();
        for (place, one) in left.iter().enumerate() {
            for other in &left[place + 1..] {
                assert_eq!(reach(set, &[*one, *other]), reach(set, &[*other, *one]));
            }
        }
    }
}

/// At each moment of a whole boot an additional request arrives, and the rest as before.
#[test]
fn whatever_comes_between_leaves_a_device_that_can_be_served_again() {
    let disturbances: Vec<fn() -> Request> = vec![
        || Request::GetVringBase { ring: 0 },
        || Request::GetVringBase { ring: 3 },
        || Request::SetMemTable(Vec::new()),
        || Request::RemMemReg(crate::device::region_key(1)),
        || Request::SetStatus(0),
        || Request::ResetOwner,
        || Request::SetVringEnable { ring: 2, is_enabled: false },
        || Request::SetVringCall { ring: 1, file: None },
        || Request::SetLogBase { size: 4096, offset: 0, file: file() },
        || Request::GetInflightFd { rings: 4, size: 256 },
    ];
    let boot = || {
        let parts = [greeting(0), greeting(1)].into_iter().flatten();
        let parts = parts.chain(enable(0, true)).chain(enable(1, true));
        parts.chain(driver_ok(0, 0)).chain(driver_ok(1, 0)).collect::<Vec<_>>()
    };
    let count = boot().len();
    for disturbance in &disturbances {
        // Some are faults before negotiation.
        for moment in greeting(0).len()..=count {
            let mut device = Device::new(PAIRS);
            for (place, request) in boot().into_iter().enumerate() {
                if place == moment {
                    device.ask(disturbance()).unwrap();
                }
                // Setting up a running ring is a fault; setting up a stopped one is not.
                device.ask(request).unwrap();
            }
            if moment == count {
                device.ask(disturbance()).unwrap();
            }
            // All missing requests are sent again.
            for ring in [0, 1, 2, 3] {
                device.ask(Request::GetVringBase { ring }).unwrap();
            }
            for pair in 0..PAIRS {
                ask_all(&mut device, enable(pair, true));
                ask_all(&mut device, driver_ok(pair, 0));
            }
            assert_eq!(served(&device), [0, 1], "{:?} at {moment}", disturbance());
        }
    }
}

#[test]
fn a_running_ring_takes_no_other_size_or_base() {
    let mut device = booted();
    let fault = device.ask(Request::SetVringBase { ring: 1, base: 3 }).unwrap_err();
    assert!(matches!(fault, Fault::RingRunning { ring: 1, .. }));
    assert_eq!(fault.to_string(), "SET_VRING_BASE for ring 1, which is running");
}

#[test]
fn a_packed_ring_continues_at_a_32_bit_base_with_two_positions() {
    let base = 0x8007_8003;
    let mut device = Device::new(1);
    let refused = device.ask(Request::SetVringBase { ring: 0, base }).unwrap_err().to_string();
    assert!(refused.contains("an index of 16 bits"), "{refused}");
    let mut device = Device::with(Offer { features: FEATURES, ..*device.session.offer() });
    ask_all(&mut device, greeting(0));
    ask_all(&mut device, enable(0, true));
    ask_all(&mut device, driver_ok(0, base));
    let packed = Features::of(&[VIRTIO_F_RING_PACKED]).or(USUAL);
    device.ask(Request::SetFeatures(packed)).unwrap();
    let [rx, _] = &device.served[&0].1;
    let at = rx.2;
    assert_eq!(at >> 16, base >> 16);
    device.ask(Request::GetVringBase { ring: 0 }).unwrap();
    let state = &device.sent.last().expect("there is a reply").payload;
    assert_eq!(state[4..8], (at + STEP).to_ne_bytes());
}

#[test]
fn a_feature_is_not_offered_without_those_that_it_needs() {
    let offered =
        |left_out: &[u32]| with_dependencies_met(FEATURES.without(Features::of(left_out)));
    assert_eq!(offered(&[]), FEATURES);
    let names = |features: Features| FEATURES.without(features).names().collect::<Vec<_>>();
    assert_eq!(
        names(offered(&[VIRTIO_NET_F_CSUM])),
        ["csum", "host_tso4", "host_tso6", "host_ecn", "host_uso"]
    );
    assert_eq!(names(offered(&[VIRTIO_NET_F_CTRL_VQ])), ["ctrl_vq", "guest_announce", "mq"]);
}
