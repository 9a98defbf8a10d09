use ringway_datapath::OffloadCaps;

use super::*;

const OFFER: Offer = Offer::all(
    4,
    Features {
        scatter_gather: true,
        checksum_v4: true,
        checksum_v6: true,
        gso_v4: true,
        gso_v6: true,
    },
);

/// Keys as a Linux guest with two queues wrote them.
const TWO_QUEUES: &[(&str, &str)] = &[
    ("backend", "/local/domain/0/backend/vif/2/0"),
    ("backend-id", "0"),
    ("state", "4"),
    ("handle", "0"),
    ("mac", "00:16:3e:00:00:02"),
    ("trusted", "1"),
    ("mtu", "1500"),
    ("xdp-headroom", "0"),
    ("multi-queue-num-queues", "2"),
    ("queue-0", ""),
    ("queue-0/tx-ring-ref", "1032"),
    ("queue-0/rx-ring-ref", "1033"),
    ("queue-0/event-channel-tx", "15"),
    ("queue-0/event-channel-rx", "16"),
    ("queue-1", ""),
    ("queue-1/tx-ring-ref", "1034"),
    ("queue-1/rx-ring-ref", "1035"),
    ("queue-1/event-channel-tx", "17"),
    ("queue-1/event-channel-rx", "18"),
    ("request-rx-copy", "1"),
    ("feature-rx-notify", "1"),
    ("feature-sg", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-ipv6-csum-offload", "1"),
];

/// Keys as a small frontend without multi-queue or split event channels writes them.
const MINIMAL: &[(&str, &str)] = &[
    ("state", "4"),
    ("tx-ring-ref", "520"),
    ("rx-ring-ref", "521"),
    ("event-channel", "9"),
    ("request-rx-copy", "1"),
];

fn keys(of: &[(&str, &str)], changed: &[(&str, Option<&str>)]) -> Keys {
    let own = |text: &str| text.to_owned();
    let mut values: BTreeMap<String, String> =
        of.iter().map(|(key, value)| (own(key), own(value))).collect();
    for (key, value) in changed {
        match value {
            Some(value) => drop(values.insert(own(key), own(value))),
            None => drop(values.remove(*key)),
        }
    }
    Keys::new("/f", values)
}

fn refusal(of: &[(&str, &str)], changed: &[(&str, Option<&str>)]) -> String {
    let read = FrontendConfig::read(&keys(of, changed), &OFFER);
    read.expect_err("the keys are wrong").to_string()
}

#[test]
fn the_keys_of_a_linux_guest_are_read() {
    let keys = keys(TWO_QUEUES, &[]);
    let config = FrontendConfig::read(&keys, &OFFER).expect("the keys are good");
    assert_eq!(config.features.caps(), OffloadCaps::NETIF);
    assert!(config.rx_notify);
    let split = |tx, rx| EventPorts::Split { tx: EvtchnPort(tx), rx: EvtchnPort(rx) };
    let queue = |tx, rx, events| QueueConfig {
        tx_ring_ref: GrantRef(tx),
        rx_ring_ref: GrantRef(rx),
        events,
    };
    let queues = [queue(1032, 1033, split(15, 16)), queue(1034, 1035, split(17, 18))];
    assert_eq!(config.queues, queues);
    assert_eq!(keys.mtu(), Ok(1500));
    assert!(keys.mac().is_ok_and(|mac| mac.is_some()));
}

#[test]
fn the_keys_of_a_small_frontend_are_read() {
    let config = FrontendConfig::read(&keys(MINIMAL, &[]), &OFFER).expect("the keys are good");
    let [queue] = config.queues.as_slice() else { panic!("one queue") };
    assert_eq!(queue.events, EventPorts::Single(EvtchnPort(9)));
    assert!(!config.rx_notify && !config.features.scatter_gather);
    assert!(config.features.checksum_v4 && !config.features.checksum_v6);
}

#[test]
fn keys_that_a_frontend_writes_are_read_by_the_backend_whatever_was_there_before() {
    let queue = |n: u32| QueueConfig {
        tx_ring_ref: GrantRef(n),
        rx_ring_ref: GrantRef(n + 1),
        events: EventPorts::Split { tx: EvtchnPort(n), rx: EvtchnPort(n + 1) },
    };
    let mut store: BTreeMap<String, String> = BTreeMap::new();
    for (count, has_control) in [(1, true), (4, false), (2, true), (1, true), (3, false)] {
        let queues = (0..count).map(|n| queue(n * 2)).collect();
        let features = Features::from(OffloadCaps::NONE);
        let control = ControlConfig { ring_ref: GrantRef(100), event: EvtchnPort(100) };
        let control = has_control.then_some(control);
        let config = FrontendConfig {
            queues,
            features,
            rx_notify: true,
            control,
            multicast_control: has_control,
            headroom: if has_control { 256 } else { 0 },
        };
        for change in config.changes(4, QueueCountKey::MultiQueue) {
            match change {
                KeyChange::Set(key, value) => drop(store.insert(key, value)),
                KeyChange::Remove(key) => {
                    store.retain(|k, _| *k != key && !k.starts_with(&format!("{key}/")));
                }
            }
        }
        let read = FrontendConfig::read(&Keys::new("/f", store.clone()), &OFFER);
        assert_eq!(read, Ok(config));
    }
}

#[test]
fn an_offer_of_a_backend_is_read_by_the_frontend() {
    let changes = OFFER.changes().into_iter().filter_map(|change| match change {
        KeyChange::Set(key, value) => Some((key, value)),
        KeyChange::Remove(_) => None,
    });
    assert_eq!(Offer::read(&Keys::new("/b", changes)), Ok(OFFER));
    let bare = Offer::read(&keys(&[("feature-rx-copy", "1")], &[])).expect("it is enough");
    assert_eq!((bare.queues_max, bare.split_event_channels), (1, false));
    //= netif.h:ctrl-ring
    assert!(!bare.control_ring);
    //= netif.h:multicast-request
    assert!(!bare.multicast_control);
    //= netif.h:xdp-headroom
    assert!(!bare.xdp_headroom);
    assert!(Offer::read(&keys(&[], &[])).is_err());
}

#[test]
fn a_number_of_queues_that_is_not_offered_is_refused_with_both_numbers() {
    for (n, text) in [("0", "0"), ("5", "5"), ("4294967295", "4294967295")] {
        let refusal = refusal(TWO_QUEUES, &[("multi-queue-num-queues", Some(n))]);
        let expected = format!("/f/multi-queue-num-queues asks for {text} queues, expected 1 to 4");
        assert_eq!(refusal, expected);
    }
    let refusal = refusal(TWO_QUEUES, &[("multi-queue-num-queues", Some("-1"))]);
    assert!(refusal.contains("is \"-1\", expected a number"), "{refusal}");
}

/// Linux's frontend leaves them when it returns with several queues, and its backend reads only
/// those of the queues.
#[test]
fn flat_keys_are_ignored_with_several_queues() {
    let read = |changed: &[_]| FrontendConfig::read(&keys(TWO_QUEUES, changed), &OFFER);
    let stale = QUEUE_KEYS.map(|key| (key, Some("1032")));
    assert_eq!(read(&stale), read(&[]));
    assert!(read(&[]).is_ok());
}

#[test]
fn missing_unreadable_and_repeated_keys_are_refused_by_name() {
    for (key, value, text) in [
        ("queue-1/tx-ring-ref", None, "/f/queue-1/tx-ring-ref is missing"),
        ("queue-1/event-channel-rx", None, "/f/queue-1/event-channel-rx is missing"),
        ("queue-0/rx-ring-ref", Some(""), "/f/queue-0/rx-ring-ref is \"\", expected a number"),
        ("queue-0/rx-ring-ref", Some("4294967296"), "is \"4294967296\", expected a number"),
        (
            "queue-1/tx-ring-ref",
            Some("1033"),
            "/f/queue-1/tx-ring-ref is 1033, as is /f/queue-0/rx-ring-ref",
        ),
        (
            "queue-1/event-channel-tx",
            Some("16"),
            "/f/queue-1/event-channel-tx is 16, as is /f/queue-0/event-channel-rx",
        ),
        ("request-rx-copy", None, "/f/request-rx-copy is not 1"),
        ("feature-sg", Some("on"), "/f/feature-sg is \"on\", expected a number"),
    ] {
        let refusal = refusal(TWO_QUEUES, &[(key, value)]);
        assert!(refusal.contains(text), "{refusal}");
    }
    let long = "\u{7}".repeat(4000);
    assert!(refusal(TWO_QUEUES, &[("queue-0/tx-ring-ref", Some(&long))]).len() < 150);
}

#[test]
fn a_control_ring_is_one_of_its_own_and_only_where_it_is_offered() {
    //= netif.h:ctrl-ring
    let read = |changed: &[_], offer: &Offer| {
        let read = FrontendConfig::read(&keys(TWO_QUEUES, changed), offer);
        read.map(|config| config.control).map_err(|bad| bad.to_string())
    };
    let (ring, event) = (("ctrl-ring-ref", Some("8")), ("event-channel-ctrl", Some("9")));
    let control = ControlConfig { ring_ref: GrantRef(8), event: EvtchnPort(9) };
    assert_eq!(read(&[ring, event], &OFFER), Ok(Some(control)));
    assert_eq!(read(&[event], &OFFER), Ok(None), "as Linux's backend reads it");
    let without = Offer { control_ring: false, ..OFFER };
    for stale in [("ctrl-ring-ref", Some("8")), ("ctrl-ring-ref", Some("none"))] {
        assert_eq!(read(&[stale], &without), Ok(None));
    }
    for (changed, text) in [
        ([ring, ("event-channel-ctrl", None)], "/f/event-channel-ctrl is missing"),
        ([("ctrl-ring-ref", Some("-8")), event], "/f/ctrl-ring-ref is \"-8\", expected"),
        (
            [("ctrl-ring-ref", Some("1035")), event],
            "/f/ctrl-ring-ref is 1035, as is /f/queue-1/rx-ring-ref",
        ),
        (
            [ring, ("event-channel-ctrl", Some("15"))],
            "/f/event-channel-ctrl is 15, as is /f/queue-0/event-channel-tx",
        ),
    ] {
        let refusal = read(&changed, &OFFER).expect_err("the keys are wrong");
        assert!(refusal.contains(text), "{refusal}");
    }
}

#[test]
fn multicast_control_is_requested_only_where_it_is_offered() {
    //= netif.h:multicast-request
    let read = |value: Option<&str>, offer: &Offer| {
        let keys = keys(MINIMAL, &[("request-multicast-control", value)]);
        FrontendConfig::read(&keys, offer).map(|config| config.multicast_control)
    };
    assert_eq!(
        [None, Some("0"), Some("1")].map(|value| read(value, &OFFER)),
        [Ok(false), Ok(false), Ok(true)]
    );
    // It may be that of a connection to another backend, which knew what the guest wants.
    assert_eq!(read(Some("1"), &Offer { multicast_control: false, ..OFFER }), Ok(false));
    assert!(read(Some("yes"), &OFFER).is_err());
}

#[test]
fn headroom_is_given_where_it_is_offered_and_asked_for_in_bounds() {
    //= netif.h:xdp-headroom
    let read = |value: Option<&str>, offer: &Offer| {
        let keys = keys(MINIMAL, &[("xdp-headroom", value)]);
        let wanted = keys.headroom().map_err(|bad| bad.to_string());
        (wanted, FrontendConfig::read(&keys, offer).map(|config| config.headroom))
    };
    for (value, expected) in [(None, 0), (Some("0"), 0), (Some("256"), 256), (Some("2048"), 2048)] {
        assert_eq!(read(value, &OFFER), (Ok(expected), Ok(expected)));
    }
    // What cannot be used costs nothing but the headroom.
    for bad in ["2049", "32767", "65536", "4294967296", "-1", "", "many", "0x100", "256 "] {
        let (wanted, given) = read(Some(bad), &OFFER);
        let expected = format!(
            "/f/xdp-headroom is \"{bad}\", expected a number of bytes from 0 to {HEADROOM_MAX}"
        );
        assert_eq!((wanted, given), (Err(expected), Ok(0)));
    }
    // It may be that of a connection to another backend.
    let without = Offer { xdp_headroom: false, ..OFFER };
    assert_eq!(read(Some("256"), &without).1, Ok(0));
}

#[test]
fn addresses_and_mtus_that_no_vif_can_have_are_refused() {
    for mac in ["", "01:16:3e:00:00:02", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "1:2"] {
        let error = keys(TWO_QUEUES, &[("mac", Some(mac))]).mac().expect_err(mac);
        assert!(error.to_string().contains("the Ethernet address of a station"), "{error}");
    }
    let mtu = |mtu| keys(TWO_QUEUES, &[("mtu", mtu)]).mtu();
    assert_eq!([mtu(None), mtu(Some("68")), mtu(Some("65521"))], [Ok(1500), Ok(68), Ok(65521)]);
    for bad in ["67", "65522", "-1", ""] {
        assert!(mtu(Some(bad)).is_err(), "{bad}");
    }
}

#[test]
fn of_both_kinds_of_event_channels_the_offered_kind_is_used() {
    let joint = Offer { split_event_channels: false, ..OFFER };
    let is_split = |offer: &Offer, changed: &[_]| {
        let config = FrontendConfig::read(&keys(MINIMAL, changed), offer).expect("good");
        matches!(config.queues[0].events, EventPorts::Split { .. })
    };
    let both = [("event-channel-tx", Some("3")), ("event-channel-rx", Some("4"))];
    let split = [both[0], both[1], ("event-channel", None)];
    assert!(is_split(&OFFER, &both) && !is_split(&joint, &both));
    assert!(is_split(&OFFER, &split) && is_split(&joint, &split));
    assert!(!is_split(&OFFER, &[]) && !is_split(&joint, &[]));
}
