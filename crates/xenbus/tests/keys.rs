//! Keys of toolstacks and peers: their places, and values at the ends of their ranges.

use ringway_datapath::MacAddr;
use ringway_wire::DomId;
use ringway_xenbus::{Device, KeyChange, Keys, Offered, Vif};

const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(2), handle: 1 };
const DIR: &str = "/local/domain/0/backend/vif/2/1";

fn keys(values: &[(&str, &str)]) -> Keys {
    Keys::new(DIR, values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
}

#[test]
fn nodes_are_where_a_stock_host_has_them() {
    let own = [VIF.online(), VIF.rate(), VIF.tenant(), VIF.backend_carrier(), VIF.backend_state()];
    let expected = ["online", "rate", "ringway-tenant", "carrier", "state"];
    assert_eq!(own, expected.map(|key| format!("{DIR}/{key}")));
    assert_eq!(VIF.frontend_state(), "/local/domain/2/device/vif/1/state");
    let for_tools = "/local/domain/0/error/backend/vif/2/1/error".to_owned();
    assert_eq!(VIF.backend_errors(), [for_tools, format!("{DIR}/error")]);
    assert_eq!(VIF.frontend_error(), "/local/domain/2/error/device/vif/1/error");
}

#[test]
fn a_running_vif_is_changed_by_some_keys_of_its_own_directory_only() {
    for key in [
        "online",
        "hotplug-status",
        "mac",
        "mtu",
        "rate",
        "carrier",
        "ringway-weight",
        "ip",
        "locking-mode",
        "ringway-mirror",
    ] {
        assert!(VIF.is_toolstacks(&format!("{DIR}/{key}")), "{key}");
    }
    assert!(VIF.is_toolstacks(DIR), "it was removed");
    for other in ["/state", "/feature-sg", "/online/x", "/", "online", "0/online", "0"] {
        assert!(!VIF.is_toolstacks(&format!("{DIR}{other}")), "{other}");
    }
    assert!(!VIF.is_toolstacks("/local/domain/0/backend/vif/2"));
}

#[test]
fn a_toolstack_makes_and_removes_a_vif_by_these_keys() {
    let device = Device::new(VIF, MacAddr([2, 0, 0, 0, 0, 7]));
    let set = |key: &str, value: &str| KeyChange::Set(key.to_owned(), value.to_owned());
    let common = [set("handle", "1"), set("mac", "02:00:00:00:00:07"), set("state", "1")];
    let first = [set("backend", DIR), set("backend-id", "0"), set("mtu", "1500")];
    assert_eq!(device.frontend_changes(), [first, common.clone()].concat());
    let changes = device.backend_changes();
    assert_eq!(changes[changes.len() - 3..], common);
    for expected in [set("frontend", "/local/domain/2/device/vif/1"), set("frontend-id", "2")] {
        assert!(changes.contains(&expected), "{expected:?}");
    }
    assert_eq!(Device::removal_changes(), [set("online", "0"), set("state", "5")]);
}

#[test]
fn a_vif_is_online_if_its_key_says_exactly_that() {
    assert!(keys(&[("online", "1")]).is_online());
    for other in ["0", "", "11", "yes", "1 "] {
        assert!(!keys(&[("online", other)]).is_online(), "{other:?}");
    }
    assert!(!keys(&[]).is_online());
}

#[test]
fn what_the_other_end_reports_is_cut_and_escaped() {
    assert_eq!(keys(&[]).error(), None);
    assert_eq!(keys(&[("error", "a\nb")]).error().as_deref(), Some("a\\nb"));
    let long = keys(&[("error", &"x".repeat(1000))]).error().expect("there is one");
    assert_eq!(long.len(), 300);
}

#[test]
fn numbers_of_queues_are_at_least_one() {
    let limit = |text| keys(&[("ringway-max-queues", text)]).max_queues_limit();
    assert_eq!((limit("1"), limit("65535")), (Ok(Some(1)), Ok(Some(65535))));
    for bad in ["0", "65536", "-1", ""] {
        assert!(limit(bad).is_err_and(|bad| bad.to_string().contains("from 1 to 65535")), "{bad}");
    }
    let offered = |newest, accepted| {
        let both = [("multi-queue-max-queues", newest), ("ringway-queues-accepted", accepted)];
        keys(&both).queues_offered()
    };
    assert_eq!((offered("2", "4"), offered("4", "2")), (Some(4), Some(4)));
    assert_eq!((offered("0", "1"), offered("1", "65536")), (Some(1), Some(1)));
    assert_eq!((offered("0", "none"), keys(&[]).queues_offered()), (None, None));
}

#[test]
fn an_earlier_offer_has_what_its_keys_say() {
    let read = |values: [&str; 4]| {
        let keys = [
            "feature-split-event-channels",
            "feature-ctrl-ring",
            "feature-multicast-control",
            "feature-xdp-headroom",
        ];
        let pairs: Vec<_> = keys.into_iter().zip(values).collect();
        let read = Offered::read(&self::keys(&pairs));
        assert_eq!(read.queues_max, None);
        [read.split_event_channels, read.control_ring, read.multicast_control, read.xdp_headroom]
    };
    assert_eq!(read(["1", "0", "0", "0"]), [true, false, false, false]);
    assert_eq!(read(["0", "1", "0", "0"]), [false, true, false, false]);
    assert_eq!(read(["0", "0", "1", "0"]), [false, false, true, false]);
    assert_eq!(read(["0", "0", "0", "1"]), [false, false, false, true]);
    assert_eq!(Offered::read(&keys(&[])), Offered::default());
}

#[test]
fn lists_and_names_of_rules_have_a_length_at_most() {
    let rules = |key, value: &str| keys(&[(key, value)]).rules();
    let trunk = |count: u16| {
        let vlans: Vec<String> = (1..=count).map(|vid| vid.to_string()).collect();
        rules("ringway-trunk", &vlans.join(","))
    };
    assert_eq!(trunk(64).map(|rules| rules.vlan.tagged.len()), Ok(64));
    assert!(trunk(65).is_err());
    let link = |len| rules("ringway-link-local-to", &"v".repeat(len));
    assert_eq!(link(64).map(|rules| rules.link_local_to.map(|name| name.len())), Ok(Some(64)));
    assert!(link(65).is_err() && rules("ringway-link-local-to", "vif 1").is_err());
    assert_eq!(link(0).map(|rules| rules.link_local_to), Ok(None));
    let addresses = |text| rules("ringway-addresses-per-vif", text).map(|it| it.addresses_max);
    assert_eq!((addresses("0"), addresses("1")), (Ok(None), Ok(Some(1))));
}

#[test]
fn a_control_ring_is_offered_unless_a_key_says_otherwise() {
    let wants = |text| keys(&[("ringway-control-ring", text)]).wants_control_ring();
    assert_eq!((wants("0"), wants("1")), (Ok(false), Ok(true)));
    assert!(wants("no").is_err());
    assert_eq!(keys(&[]).wants_control_ring(), Ok(true));
}

#[test]
fn multicast_control_is_offered_unless_a_key_says_otherwise() {
    let wants = |text| keys(&[("ringway-multicast-control", text)]).wants_multicast_control();
    assert_eq!((wants("0"), wants("1")), (Ok(false), Ok(true)));
    assert!(wants("no").is_err());
    assert_eq!(keys(&[]).wants_multicast_control(), Ok(true));
}

#[test]
fn a_vif_is_unplugged_if_its_key_says_exactly_that() {
    //= netif.h:frontend-link
    assert!(keys(&[("disconnect", "1")]).is_unplugged());
    for other in ["0", "", "11"] {
        assert!(!keys(&[("disconnect", other)]).is_unplugged(), "{other:?}");
    }
    assert!(!keys(&[]).is_unplugged());
}

#[test]
fn pages_stay_mapped_only_if_a_key_says_so() {
    let wants = |text| keys(&[("ringway-staging", text)]).wants_staging();
    assert_eq!((wants("0"), wants("1")), (Ok(false), Ok(true)));
    assert!(wants("yes").is_err());
    assert_eq!(keys(&[]).wants_staging(), Ok(false));
}

#[test]
fn a_key_of_an_earlier_version_is_named() {
    assert_eq!(keys(&[("ringway-completion", "sent")]).obsolete(), Some("ringway-completion"));
    assert_eq!(keys(&[("online", "1")]).obsolete(), None);
}
