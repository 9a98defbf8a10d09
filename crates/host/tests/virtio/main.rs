//! What a host decides about virtio vifs and tenants, over front-ends that do what a test says.

#![allow(clippy::disallowed_methods, reason = "a test may read the clock")]

mod arrival;
mod calls;
mod described;
mod namespaces;
mod offloads;
mod ordered;
mod ovs;
mod passed;
mod reload;
mod rules;
mod take_over;
mod tenants;
mod uplink;
mod world;
mod xen;

use std::io;
use std::time::Duration;

use ringway_calls::BackendRequest;
use ringway_datapath::{MacAddr, PortRules};
use ringway_engine::Failure;
use ringway_host::{Charged, Event, Host, Note, Notes as _, Phase, Purpose, panic_line};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_switch::{Claim, PortId};
use ringway_vhost::backend::Negotiated;
use ringway_wire::virtio::Features;

use world::{Act, Machine, Silent, wanted};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const AT_ONCE: Duration = Duration::ZERO;
/// Longer than any pause before something is tried again.
const LATER: Duration = Duration::from_secs(60);

fn machine() -> Machine {
    Machine::start(SimKernel::default(), KeptNotes::default())
}

/// A machine with bridge `br0` and the vif `vm1` on it, served by one queue.
fn bridged() -> Machine {
    let mut machine = machine();
    machine.kernel.add_bridge("br0").expect("a bridge");
    machine.add(wanted("vm1", Some("br0")), Phase::Serving).expect("it can be");
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    assert_eq!(machine.status().queues.len(), 1);
    machine
}

#[test]
fn pairs_are_attached_together_after_a_turn_and_detached_by_the_first_change() {
    let mut machine = machine();
    machine.add(wanted("vm1", None), Phase::Serving).expect("it can be");
    machine.front_end(&[Act::Connect(7), Act::Announce(MAC), Act::Start(1, false), Act::Apply]);
    assert_eq!(machine.host.shared.ports_in_use(), 0, "no pair is enabled");
    machine.front_end(&[Act::Start(0, true), Act::Start(2, true)]);
    assert_eq!(machine.status().queues.len(), 0, "more may change");
    machine.front_end(&[Act::Apply, Act::Apply]);
    assert_eq!(machine.status().queues.len(), 2);
    assert_eq!(machine.host.shared.ports_in_use(), 2, "its own, and one of disabled queues");
    assert_eq!(machine.engines.patched, [None, Some(PortId(0))], "these are beside the others");
    let asked = Claim { mac: MacAddr(MAC), ip: None };
    assert_eq!(machine.engines.announced, [asked.announcement(false)], "as soon as it is served");
    machine.front_end(&[Act::Stop(0), Act::Stop(1)]);
    assert_eq!(machine.host.shared.ports_in_use(), 0);
    assert_eq!(machine.vif().session.rings.taken_back, 1, "all at once");
    machine.front_end(&[Act::Apply]);
    assert_eq!(machine.status().queues.len(), 1, "the other one goes on");
    machine.front_end(&[Act::Leave, Act::Apply]);
    assert_eq!(machine.host.shared.ports_in_use(), 0);
    assert_eq!(machine.status().state, "Waiting");
}

#[test]
fn pairs_that_cannot_be_attached_leave_nothing_behind() {
    let mut machine = bridged();
    for bad in [0, 1] {
        machine.front_end(&[Act::Break(Some(bad)), Act::Start(0, true), Act::Start(1, false)]);
        machine.front_end(&[Act::Apply]);
        let refused = machine.vif().session.refused.clone();
        assert_eq!(refused, Some(format!("pair {bad} is bad")));
        assert_eq!(machine.host.shared.ports_in_use(), 0);
    }
    machine.front_end(&[Act::Break(None), Act::Apply]);
    assert_eq!(machine.host.shared.ports_in_use(), 3, "one is that of its network device");
}

#[test]
fn a_queue_that_fails_closes_the_connection_and_another_front_end_may_come() {
    let mut machine = bridged();
    let port = machine.vif().state.connection.as_ref().expect("it is connected").port;
    let vm1 = Charged::Virtio("vm1".to_owned());
    assert_eq!(machine.host.shared.occupants.at(port), Some(vm1));
    let down = io::Error::other("a ring is broken").into();
    machine.engines.failures.push(Failure { port_id: port, queue_index: 0, queue: Silent, down });
    let down = machine.act(|host, _, parts| host.shared.next_report(parts.engines));
    machine.on(Event::QueueDown(down.expect("there is a report")));
    assert_eq!(machine.vif().session.closed, ["queue 0: a ring is broken"]);
    assert_eq!(machine.host.shared.ports_in_use(), 0);
    assert_eq!(machine.host.shared.occupants.at(port), None);
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    assert_eq!(machine.status().queues.len(), 1);
}

#[test]
fn a_vif_of_the_description_waits_for_its_bridge_and_one_that_is_added_is_refused() {
    let mut machine = machine();
    let refusal = machine.add(wanted("vm1", Some("br0")), Phase::Serving).expect_err("no bridge");
    assert!(refusal.contains("network device vm1 on bridge br0"), "{refusal}");
    machine.add(wanted("vm1", Some("br0")), Phase::Start).expect("it may wait");
    machine.turn_after(AT_ONCE);
    let status = machine.status();
    assert_eq!((status.attached_to.as_str(), status.state.as_str()), ("br0", "Waiting"));
    assert!(status.error.is_some_and(|error| error.contains("on bridge br0")));
    assert!(machine.vif().is_closed() && machine.host.due().is_some());
    machine.kernel.add_bridge("br0").expect("a bridge");
    machine.turn_after(AT_ONCE);
    assert_eq!(machine.vif().session.turns, 0, "it is not tried again at once");
    machine.now = machine.host.due().expect("it is tried again");
    machine.turn_after(AT_ONCE);
    assert_eq!(machine.vif().session.turns, 1);
    assert!(!machine.vif().is_closed());
    assert!(machine.kernel.find("vm1").is_some());
}

#[test]
fn a_vif_whose_device_is_passed_at_last_does_not_wait_longer() {
    let mut machine = machine();
    machine.add(wanted("vm1", Some("br0")), Phase::Start).expect("it may wait");
    machine.kernel.add_bridge("br0").expect("a bridge");
    machine.on(Event::DevicePassed(Purpose::Virtio("vm2".to_owned())));
    machine.turn_after(AT_ONCE);
    assert!(machine.vif().is_closed(), "it is another's");
    machine.on(Event::DevicePassed(Purpose::Virtio("vm1".to_owned())));
    machine.turn_after(AT_ONCE);
    assert!(!machine.vif().is_closed());
}

#[test]
fn the_status_of_a_vif_shows_where_its_device_is_and_that_it_was_deleted() {
    let mut machine = bridged();
    let kernel = machine.kernel.clone();
    let mut shown = || {
        let status = machine.status();
        (status.attached_to, status.is_down, status.error)
    };
    assert_eq!(shown(), ("br0".to_owned(), false, None));
    kernel.add_bridge("br1").expect("a bridge");
    kernel.set_master("vm1", Some("br1")).expect("both exist");
    kernel.set_up("vm1", false).expect("it exists");
    assert_eq!(shown(), ("br1".to_owned(), true, None));
    kernel.refuse(1);
    assert_eq!(shown(), ("br0".to_owned(), false, None), "links that cannot be read say nothing");
    kernel.remove("vm1").expect("it exists");
    let gone = Some("its network device was deleted".to_owned());
    assert_eq!(shown(), ("br0".to_owned(), false, gone));
    machine.host.shared.comparison.note_change(machine.now);
    machine.now += LATER;
    machine.act(Host::follow_devices).expect("it is time");
    let status = machine.status();
    assert_eq!((status.error, status.queues.len()), (None, 1), "its guest stays connected");
}

#[test]
fn a_vif_with_two_panics_accepts_no_front_end_until_it_is_released() {
    let mut notes = KeptNotes::default();
    let line = panic_line(0, &Charged::Virtio("vm1".to_owned()));
    notes.write(&Note::Panics, line.repeat(2).as_bytes()).expect("there is room");
    let mut machine = Machine::start(SimKernel::default(), notes);
    machine.add(wanted("vm1", None), Phase::Start).expect("it is shown");
    machine.turn_after(LATER);
    assert_eq!(machine.vif().session.turns, 0);
    let status = machine.status();
    assert!(status.error.is_some_and(|error| error.contains("is quarantined")));
    assert_eq!(status.error_kind.as_deref(), Some("fault"));
    let [wait] = &status.waits[..] else { panic!("{:?}", status.waits) };
    assert_eq!((wait.kind.as_str(), wait.milliseconds), ("quarantine", 0));
    assert_eq!(wait.reason, "it is quarantined for 360 more minutes");
    machine.call(&BackendRequest::Release { vif: "vm1".to_owned() }).expect("it is");
    machine.turn_after(AT_ONCE);
    assert_eq!(machine.vif().session.turns, 1);
    assert_eq!(machine.status().error_kind.as_deref(), Some("no_guest"), "its machine is off");
    let again = machine.call(&BackendRequest::Release { vif: "vm1".to_owned() });
    assert!(again.expect_err("it is no more").contains("is not quarantined"));
}

#[test]
fn a_vif_that_cannot_be_beside_the_others_is_refused() {
    let mut machine = machine();
    machine.attach_uplink();
    let mac = Some(MacAddr(MAC));
    let first = ringway_host::VirtioWanted { mac, ..wanted("vm1", None) };
    machine.add(first.clone(), Phase::Serving).expect("it can be");
    let mut refused = |other, phase| machine.add(other, phase).expect_err("it cannot be");
    assert_eq!(refused(first.clone(), Phase::Start), "a vif vm1 exists already");
    let refusal = refused(wanted("ringway0", None), Phase::Start);
    assert!(refusal.contains("is the name of the uplink"), "{refusal}");
    let rules = PortRules { allowed_macs: vec![MacAddr(MAC)], ..PortRules::default() };
    let allowed = ringway_host::VirtioWanted { rules, ..wanted("vm2", None) };
    let refusal = refused(allowed, Phase::Serving);
    assert!(refusal.contains("allowed-macs 52:54:00:00:00:01 is that of vm1"), "{refusal}");
    let same = ringway_host::VirtioWanted { name: "vm2".to_owned(), ..first };
    let refusal = refused(same.clone(), Phase::Serving);
    assert!(refusal.contains("is that of vm1, in its mac"), "{refusal}");
    machine.add(same, Phase::Start).expect("a description is served as far as possible");
}

#[test]
fn flows_are_balanced_between_several_queues_if_the_host_does_that() {
    for (balances_flows, pairs, moved) in [(false, 2, None), (true, 1, None), (true, 2, Some(0))] {
        let mut machine = machine();
        machine.host.shared.config.balances_flows = balances_flows;
        machine.add(wanted("vm1", None), Phase::Serving).expect("it can be");
        machine.front_end(&[Act::Connect(7)]);
        (0..pairs).for_each(|pair| machine.front_end(&[Act::Start(pair, true)]));
        machine.front_end(&[Act::Apply]);
        let status = machine.status();
        assert_eq!((status.queues.len(), status.flows_moved), (usize::from(pairs), moved));
        machine.front_end(&[Act::Leave, Act::Connect(8), Act::Start(0, true), Act::Apply]);
        let status = machine.status();
        assert_eq!((status.queues.len(), status.flows_moved), (1, None), "another guest's");
    }
}

#[test]
fn attaching_again_and_again_is_put_off() {
    let mut machine = bridged();
    let mut changes = 0;
    while machine.status().queues.len() == 1 {
        machine.front_end(&[Act::Start(0, true), Act::Apply]);
        changes += 1;
    }
    assert_eq!(changes, 256, "the burst, of which one was used before");
    let due = machine.host.due().expect("it is attached later");
    machine.now = due;
    machine.front_end(&[Act::Apply]);
    assert_eq!(machine.status().queues.len(), 1);
}

#[test]
fn a_guest_keeps_what_it_has_negotiated_and_a_removed_vif_leaves_nothing() {
    let mut machine = bridged();
    let used = Negotiated { features: Features(1 << 32), protocol: 1, pairs: 8, mtu: 1500 };
    machine.front_end(&[Act::Negotiate(used)]);
    let (kernel, notes) = (machine.kernel.clone(), machine.notes.clone());
    let mut next = Machine::start(kernel.clone(), notes.clone());
    next.add(wanted("vm1", Some("br0")), Phase::Start).expect("it can be");
    for (process, pairs) in [(7, 8), (9, 4)] {
        next.front_end(&[Act::Connect(process)]);
        assert_eq!(next.status().max_queues, pairs, "of process {process}");
    }
    next.on(Event::Removed("vm1".to_owned()));
    assert_eq!(next.host.virtio().len(), 0);
    drop((machine, next));
    assert_eq!(kernel.find("vm1"), None);
    assert_eq!(notes.clone().read(&Note::Negotiated("vm1".to_owned()), 100), b"");
}
