//! Offloads of vifs of both kinds, as they are set, and as the network behind them takes them.

use ringway_calls::{BackendRequest, VifStatus};
use ringway_datapath::{MacAddr, OffloadCaps};
use ringway_host::{Event, Host, Phase, VirtioWanted};
use ringway_ovs::Datapath;
use ringway_wire::DomId;
use ringway_wire::virtio::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MRG_RXBUF,
};
use ringway_xenbus::{Device, OffloadWish, Vif, VifLimits};
use ringway_xenstore::Watched;

use crate::ovs::{CONNECT, on_ovs};
use crate::world::{Act, Machine, wanted};
use crate::{MAC, bridged};

const ALL: [&str; 5] = ["sg", "csum-v4", "csum-v6", "gso-tcpv4", "gso-tcpv6"];

fn set(machine: &mut Machine, vif: &str, value: &str) -> Result<(), String> {
    let (vif, limit, value) = (vif.to_owned(), "offloads".to_owned(), value.to_owned());
    machine.call(&BackendRequest::SetLimit { vif, limit, value }).map(drop)
}

/// Whether ports got other limits since the last call: those of its device, then of its guest.
fn limited(machine: &mut Machine) -> Vec<bool> {
    std::mem::take(&mut machine.engines.plain)
}

/// Whether the front-end of `vm1` is offered to leave work to its host, and to be left with some.
fn offered(machine: &Machine) -> (bool, bool) {
    let said = machine.vif().session.said.as_ref().expect("it is connected");
    let features = said.offer().features();
    assert!(features.has(VIRTIO_NET_F_MRG_RXBUF), "long frames are for any network");
    (features.has(VIRTIO_NET_F_CSUM), features.has(VIRTIO_NET_F_GUEST_TSO4))
}

fn shown(status: &VifStatus) -> (Vec<&str>, &str) {
    (status.offloads.iter().map(String::as_str).collect(), status.limits.offloads.as_str())
}

#[test]
fn offloads_that_are_set_pass_or_are_completed_at_once_and_are_offered_later() {
    let mut machine = bridged();
    assert_eq!((shown(&machine.status()), offered(&machine)), ((ALL.into(), "auto"), (true, true)));
    limited(&mut machine);
    set(&mut machine, "vm1", "none").expect("it can be");
    assert_eq!(limited(&mut machine), [true, true]);
    let status = machine.status();
    assert_eq!((shown(&status), status.queues.len()), ((vec!["sg"], "none"), 1));
    assert_eq!(status.offloads_because, "as set");
    let refused = set(&mut machine, "vm1", "some").expect_err("it says nothing");
    assert_eq!(refused, "offloads: expected auto, all or none, not \"some\"");

    machine.front_end(&[Act::Leave, Act::Connect(8), Act::Start(0, true), Act::Apply]);
    assert_eq!((offered(&machine), shown(&machine.status()).0), ((false, false), vec!["sg"]));
    set(&mut machine, "vm1", "auto").expect("it can be");
    assert_eq!(shown(&machine.status()), (ALL.into(), "auto"));
    machine.front_end(&[Act::Leave, Act::Connect(9)]);
    assert_eq!(offered(&machine), (true, true));
}

#[test]
fn a_feature_for_both_versions_of_ip_follows_the_offloads_of_each() {
    let neither = OffloadCaps { gso_v4: false, gso_v6: false, ..OffloadCaps::NETIF };
    let udp_v4 = OffloadCaps { uso_v4: true, ..neither };
    for (offloads, expected) in [
        (neither, [false, false, false]),
        (udp_v4, [false, false, false]),
        (OffloadCaps { uso_v6: true, ..neither }, [false, false, false]),
        (OffloadCaps { uso_v6: true, ..udp_v4 }, [true, false, false]),
        (OffloadCaps { gso_v4: true, ..neither }, [false, true, true]),
        (OffloadCaps { gso_v6: true, ..neither }, [false, true, true]),
    ] {
        let mut machine = crate::machine();
        let described = VirtioWanted { offloads, ..wanted("vm1", None) };
        machine.add(described, Phase::Serving).expect("it can be");
        machine.front_end(&[Act::Connect(7)]);
        let said = machine.vif().session.said.as_ref().expect("it is connected");
        let features = said.offer().features();
        let of_both = [VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_GUEST_ECN];
        assert_eq!(of_both.map(|bit| features.has(bit)), expected, "{offloads:?}");
    }
}

#[test]
fn other_offloads_in_a_description_apply_while_the_guest_is_connected() {
    let mut machine = bridged();
    let limits = VifLimits { offloads: Some(OffloadWish::None), ..VifLimits::default() };
    let described = VirtioWanted { limits, ..wanted("vm1", Some("br0")) };
    let again = vec![described];
    limited(&mut machine);
    let changes = machine.act(|host, now, parts| host.reload(again, None, now, parts));
    assert_eq!(changes.expect("it is good").vifs[0].changed, ["offloads"]);
    assert_eq!(limited(&mut machine), [true, true]);
    assert_eq!(machine.status().queues.len(), 1, "it stays connected");
}

#[test]
fn what_the_datapath_of_a_bridge_does_not_take_is_done_here_as_soon_as_that_is_known() {
    let mut machine = on_ovs();
    let question = |machine: &mut Machine| machine.host.shared.datapaths.next_question();
    assert_eq!(question(&mut machine).map(|bridge| bridge.name).as_deref(), Some("br-int"));
    machine.front_end(&CONNECT);
    assert_eq!(offered(&machine), (true, true), "whatever its bridge takes");
    let status = machine.status();
    assert_eq!(shown(&status), (vec!["sg"], "auto"), "none is lost if this one does not");
    assert!(status.offloads_because.contains("has not said"), "{status:?}");
    limited(&mut machine);
    machine.on(Event::DatapathFound(Ok(Datapath::Kernel)));
    assert_eq!((limited(&mut machine), shown(&machine.status()).0), (vec![false; 2], ALL.into()));

    // By the time that it has its port, the bridge may be another one.
    let join = machine.host.shared.ovs.next_order(machine.now);
    assert!(join.is_some_and(|order| order.wanted.is_some()));
    machine.on(Event::PortDone(Ok(ringway_ovs::Ids::default())));
    assert!(question(&mut machine).is_some());
    machine.on(Event::PluggerBegun);
    assert!(question(&mut machine).is_some(), "again, because it may have been killed");
    machine.on(Event::DatapathFound(Ok(Datapath::Userspace)));
    let to_bridge_alone = vec![true, false];
    assert_eq!((limited(&mut machine), question(&mut machine)), (to_bridge_alone, None));
    let status = machine.status();
    assert_eq!((shown(&status), status.queues.len()), ((vec!["sg"], "auto"), 1));
    assert!(status.offloads_because.contains("userspace-tso-enable"), "{status:?}");
    set(&mut machine, "vm1", "all").expect("it can be");
    assert_eq!((limited(&mut machine), shown(&machine.status()).0), (vec![false; 2], ALL.into()));
    set(&mut machine, "vm1", "auto").expect("it can be");
    machine.front_end(&[Act::Leave, Act::Connect(8)]);
    assert_eq!(offered(&machine), (true, true));
}

#[test]
fn a_datapath_is_forgotten_once_no_vif_is_on_its_bridge() {
    let mut machine = on_ovs();
    machine.host.shared.datapaths.next_question().expect("it asks");
    machine.on(Event::DatapathFound(Ok(Datapath::Kernel)));
    let add = |machine: &mut Machine| {
        machine.add(wanted("vm2", Some("br-int")), Phase::Serving).expect("it can be");
        machine.shown("vm2").offloads_because.contains("the kernel's datapath")
    };
    let remove = |machine: &mut Machine, name: &str| {
        machine.on(Event::Removed(name.to_owned()));
        machine.act(Host::housekeep);
    };
    assert!(add(&mut machine));
    remove(&mut machine, "vm1");
    assert!(machine.shown("vm2").offloads_because.contains("the kernel's datapath"));
    machine.on(Event::Removed("vm2".to_owned()));
    assert!(add(&mut machine), "it was made again at once");
    remove(&mut machine, "vm2");
    assert!(!add(&mut machine), "the bridge may be another one by now");
}

const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(1), handle: 0 };

/// What the guest of a Xen vif is offered: segmentation, checksums over IPv4, and several slots.
fn offered_by_keys(machine: &mut Machine) -> [Option<String>; 3] {
    let read = |key: &str| {
        let path = format!("{}/{key}", VIF.backend_dir());
        machine.act(|_, _, parts| parts.store.read(&path)).expect("it may be read")
    };
    ["feature-gso-tcpv4", "feature-no-csum-offload", "feature-sg"].map(read)
}

#[test]
fn a_xen_vif_offers_all_whatever_the_datapath_of_its_bridge_takes_or_what_its_key_says() {
    let texts = |values: [Option<&str>; 3]| values.map(|value| value.map(str::to_owned));
    let all = texts([Some("1"), None, Some("1")]);
    let none = texts([Some("0"), Some("1"), Some("1")]);
    let mut machine = crate::machine();
    machine.kernel.add_ovs_bridge("br-int").expect("a bridge");
    machine.allow_ports();
    let bridge = Some("br-int".to_owned());
    machine.make(&Device { bridge, ..Device::new(VIF, MacAddr(MAC)) });
    machine.turn_all();
    assert_eq!(offered_by_keys(&mut machine), all);
    assert!(machine.host.shared.datapaths.next_question().is_some());
    machine.on(Event::DatapathFound(Ok(Datapath::Userspace)));
    machine.turn_all();
    assert_eq!(offered_by_keys(&mut machine), all);
    assert_eq!(machine.shown("vif1.0").state, "InitWait");

    for (value, expected) in [("all", &all), ("none", &none), ("auto", &all)] {
        set(&mut machine, "vif1.0", value).expect("it can be");
        machine.on(Event::Watch(Watched::Overflow));
        machine.turn_all();
        assert_eq!(offered_by_keys(&mut machine), *expected, "{value}");
        assert_eq!(machine.shown("vif1.0").limits.offloads, value);
    }
    // A vif that is made later finds what is known.
    machine.add(wanted("vm1", Some("br-int")), Phase::Serving).expect("it can be");
    assert!(machine.shown("vm1").offloads_because.contains("without userspace-tso-enable"));
}
