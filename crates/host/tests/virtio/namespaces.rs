//! What a host decides about network namespaces: the same as about vifs of virtio.

use ringway_calls::{BackendRequest, NamespaceStatus, Reconnect};
use ringway_host::{AddedVirtio, Event, Phase};

use crate::machine;
use crate::world::{Act, Front, Machine, wanted};

/// A machine with the namespace `vm1`, whose device has two queues.
fn with_namespace() -> Machine {
    let mut machine = machine();
    let added =
        AddedVirtio { wanted: wanted("vm1", None), at_run_time: false, phase: Phase::Serving };
    let front = || Ok(Front { is_namespace: true, ..Front::default() });
    let added = machine.act(|host, now, parts| host.add_virtio(added, front, now, parts));
    added.expect("it can be");
    machine.front_end(&[Act::Start(0, true), Act::Start(1, true), Act::Apply]);
    machine
}

#[test]
fn a_namespace_is_shown_as_one_and_announced_by_nothing() {
    let mut machine = with_namespace();
    let shown = machine.status();
    assert_eq!((shown.kind.as_str(), shown.state.as_str()), ("namespace", "Connected"));
    assert_eq!((shown.attached_to.as_str(), shown.queues.len()), ("switch", 2));
    assert_eq!(shown.virtio, None);
    let (path, device) = ("/run/netns/web".to_owned(), "eth0".to_owned());
    assert_eq!(shown.namespace, Some(NamespaceStatus { path, device }));
    assert!(machine.engines.announced.is_empty(), "its kernel does that");
    assert_eq!(machine.host.counts(), (1, 1));
}

#[test]
fn rules_and_limits_of_a_namespace_are_set_while_it_is_served() {
    let mut machine = with_namespace();
    for (limit, value) in [("weight", "7"), ("vlan", "5")] {
        let (vif, limit, value) = ("vm1".to_owned(), limit.to_owned(), value.to_owned());
        machine.call(&BackendRequest::SetLimit { vif, limit, value }).expect("it can be");
    }
    let shown = machine.status();
    assert_eq!((shown.limits.weight, shown.vlan, shown.queues.len()), (7, Some(5), 2));
}

#[test]
fn the_queues_of_a_namespace_are_those_of_its_device() {
    let mut machine = with_namespace();
    let (vif, reconnect) = ("vm1".to_owned(), Reconnect::Later);
    let call = BackendRequest::SetMaxQueues { vif, max_queues: 1, reconnect };
    let refused = machine.call(&call).expect_err("it cannot be");
    assert!(refused.contains("change `queues` in its [[namespace]]"), "{refused}");
}

#[test]
fn a_device_that_was_deleted_detaches_its_port_until_the_next() {
    let mut machine = with_namespace();
    let ports = machine.host.shared.ports_in_use();
    machine.front_end(&[Act::Leave]);
    assert_eq!(machine.host.shared.ports_in_use(), 0);
    machine.front_end(&[Act::Start(0, true), Act::Apply]);
    assert_eq!((machine.host.shared.ports_in_use(), machine.status().queues.len()), (ports, 1));
    machine.on(Event::Removed("vm1".to_owned()));
    assert_eq!(machine.host.shared.ports_in_use(), 0);
}
