//! Guests are announced when they arrive, and at no other time.

use std::time::Duration;

use ringway_datapath::{LockingMode, MacAddr, Mirrored, PortRules, Vid, VlanRules};
use ringway_host::{Event, Phase, VirtioWanted};
use ringway_ovs::Ids;
use ringway_switch::Claim;
use ringway_vhost::backend::Negotiated;
use ringway_wire::virtio::Features;

use crate::world::{Act, Machine, wanted};
use crate::{AT_ONCE, LATER, MAC, machine};

/// A vif that is locked to addresses.
fn locked() -> VirtioWanted {
    let allowed = ["10.0.0.5", "10.1.0.0/24", "fd77::5"].map(|it| it.parse().expect("good"));
    let rules = PortRules { allowed: allowed.to_vec(), ..PortRules::default() };
    VirtioWanted { mac: Some(MacAddr(MAC)), rules, ..wanted("vm1", None) }
}

fn with(vif: VirtioWanted) -> Machine {
    let mut machine = machine();
    machine.add(vif, Phase::Serving).expect("it can be");
    machine
}

/// The front-end of this process connects, and its guest has one pair served.
fn connect(machine: &mut Machine, process: u32) {
    let negotiated = Negotiated { features: Features(1 << 32), pairs: 1, ..Negotiated::NONE };
    let acts = [Act::Connect(process), Act::Negotiate(negotiated), Act::Start(0, true), Act::Apply];
    machine.front_end(&acts);
}

/// What was announced since the last call.
fn announced(machine: &mut Machine) -> Vec<Vec<u8>> {
    std::mem::take(&mut machine.engines.announced)
}

/// What announces the vif's Ethernet address, and these addresses with it.
fn frames(ips: &[&str]) -> Vec<Vec<u8>> {
    let ips = ips.iter().map(|ip| Some(ip.parse().expect("an address")));
    let claims = [None].into_iter().chain(ips).map(|ip| Claim { mac: MacAddr(MAC), ip });
    claims.map(|claim| claim.announcement(false)).collect()
}

const NOTHING: [Vec<u8>; 0] = [];

#[test]
fn a_guest_is_announced_when_another_front_end_brings_it_and_not_when_one_returns() {
    let mut machine = with(locked());
    let own = frames(&["10.0.0.5", "fd77::5"]);
    connect(&mut machine, 7);
    assert_eq!(announced(&mut machine), own);
    // Open vSwitch may not have had flows for it.
    let soon = [10, 20, 40, 80, 160].map(|pause| (pause, frames(&[])));
    for (pause, expected) in soon.into_iter().chain([690, 2000].map(|it| (it, own.clone()))) {
        assert_eq!(machine.host.due(), Some(machine.now + Duration::from_millis(pause)));
        machine.turn_after(Duration::from_millis(pause - 1));
        assert_eq!(announced(&mut machine), NOTHING);
        machine.turn_after(Duration::from_millis(1));
        assert_eq!(announced(&mut machine), expected);
    }
    assert_eq!((machine.host.due(), machine.status().announced), (None, Some(14)));
    machine.turn_after(LATER);
    // Its guest starts again, or the connection was lost.
    machine.front_end(&[Act::Stop(0), Act::Start(0, true), Act::Apply, Act::Leave]);
    connect(&mut machine, 7);
    assert_eq!(announced(&mut machine), NOTHING);

    let mut next = Machine::start(machine.kernel.clone(), machine.notes.clone());
    next.add(locked(), Phase::Start).expect("it can be");
    connect(&mut next, 7);
    next.turn_after(LATER);
    assert_eq!(announced(&mut next), NOTHING, "the network knows it");
    next.front_end(&[Act::Leave]);
    connect(&mut next, 8);
    assert_eq!(announced(&mut next), own, "it was moved here");
    next.front_end(&[Act::Leave]);
    next.turn_after(LATER);
    assert_eq!(announced(&mut next), NOTHING, "it was moved away");
}

#[test]
fn the_pairs_of_a_guest_that_is_attached_again_announce_what_the_last_have_not() {
    let mut machine = with(wanted("vm1", None));
    connect(&mut machine, 7);
    machine.front_end(&[Act::Announce(MAC), Act::Stop(0), Act::Start(0, true), Act::Apply]);
    assert_eq!(announced(&mut machine), frames(&[]), "the front-end has asked for this");
}

#[test]
fn pairs_that_are_attached_again_continue_what_is_announced_until_that_is_over() {
    let mut machine = with(locked());
    connect(&mut machine, 7);
    assert_eq!(machine.engines.announcements, 1);
    let again = [Act::Stop(0), Act::Start(0, true), Act::Apply];
    machine.front_end(&again);
    assert_eq!(machine.engines.announcements, 2, "the last pairs may not have sent all");
    while let Some(due) = machine.host.due() {
        machine.now = due;
        machine.turn_after(AT_ONCE);
    }
    let all = machine.engines.announcements;
    machine.front_end(&again);
    assert_eq!(machine.engines.announcements, all);
}

#[test]
fn a_guest_that_may_route_is_announced_as_a_router() {
    let rules = PortRules { is_router: true, ..locked().rules };
    let mut machine = with(VirtioWanted { rules, ..locked() });
    connect(&mut machine, 7);
    let ip = Some("fd77::5".parse().expect("an address"));
    let of_router = Claim { mac: MacAddr(MAC), ip }.announcement(true);
    assert_eq!(announced(&mut machine).last(), Some(&of_router));
}

#[test]
fn a_guest_is_not_announced_against_the_rules_of_its_vif() {
    let trunk = VlanRules { untagged: None, tagged: vec![Vid::new(6).expect("a VLAN")] };
    for rules in [
        PortRules { is_unannounced: true, ..locked().rules },
        PortRules { locking: Some(LockingMode::Disabled), ..locked().rules },
        PortRules { vlan: trunk, ..locked().rules },
        PortRules { mirror: Mirrored::parse_list("all").expect("good"), ..locked().rules },
    ] {
        let mut machine = with(VirtioWanted { rules: rules.clone(), ..locked() });
        connect(&mut machine, 7);
        machine.turn_after(LATER);
        assert_eq!(announced(&mut machine), NOTHING, "{rules:?}");
        assert_eq!(machine.status().announced, None);
        machine.front_end(&[Act::Announce(MAC)]);
        assert_eq!(announced(&mut machine), frames(&[]), "its front-end asks");
    }
}

#[test]
fn an_address_that_another_vif_has_is_not_announced() {
    let mut machine = with(VirtioWanted { name: "first".to_owned(), ..locked() });
    for act in [Act::Connect(6), Act::Start(0, true), Act::Apply] {
        machine.on(Event::Session("first".to_owned(), act));
    }
    assert_eq!(announced(&mut machine).len(), 3);
    machine.add(locked(), Phase::Start).expect("it is served as far as possible");
    connect(&mut machine, 7);
    assert_eq!(announced(&mut machine), NOTHING);
}

#[test]
fn a_guest_that_arrives_again_and_again_is_announced_now_and_then() {
    let mut machine = with(locked());
    let own = frames(&["10.0.0.5", "fd77::5"]);
    for process in 1..100 {
        connect(&mut machine, process);
        machine.front_end(&[Act::Leave]);
    }
    assert_eq!(announced(&mut machine).len(), 4 * own.len());
    machine.turn_after(LATER);
    connect(&mut machine, 100);
    assert_eq!(announced(&mut machine), own);
}

#[test]
fn a_guest_that_moves_every_other_second_is_announced_each_time_and_repeated_now_and_then() {
    let mut machine = with(locked());
    let own = frames(&["10.0.0.5", "fd77::5"]);
    let mut repeated = 0;
    for process in 1..=40 {
        connect(&mut machine, process);
        assert_eq!(announced(&mut machine), own, "as it comes for the {process}th time");
        for _ in 0..2 {
            machine.turn_after(Duration::from_secs(1));
            repeated += usize::from(!announced(&mut machine).is_empty());
        }
        machine.front_end(&[Act::Leave]);
    }
    // Four at once, and one each 10 s of 80.
    assert_eq!(repeated, 2 * (4 + 7));
}

#[test]
fn a_guest_that_moves_more_often_than_may_be_announced_waits_no_longer_than_a_second() {
    let mut machine = with(locked());
    for process in 1..=4 {
        connect(&mut machine, process);
        machine.front_end(&[Act::Leave]);
    }
    announced(&mut machine);
    connect(&mut machine, 5);
    assert_eq!(announced(&mut machine), NOTHING);
    let due = machine.host.due().expect("it waits");
    assert_eq!(due, machine.now + Duration::from_secs(1));
    machine.turn_after(Duration::from_millis(999));
    assert_eq!((announced(&mut machine), machine.host.due()), (NOTHING.to_vec(), Some(due)));
    machine.turn_after(Duration::from_millis(1));
    assert_eq!(announced(&mut machine), frames(&["10.0.0.5", "fd77::5"]));
}

#[test]
fn a_guest_on_open_vswitch_is_announced_once_it_has_its_port() {
    let mut machine = machine();
    machine.kernel.add_ovs_bridge("br-int").expect("a bridge");
    machine.allow_ports();
    let vif = VirtioWanted { bridge: Some("br-int".to_owned()), ..locked() };
    machine.add(vif, Phase::Serving).expect("it can be");
    connect(&mut machine, 7);
    machine.turn_after(LATER);
    assert_eq!(announced(&mut machine), NOTHING);
    machine.host.shared.ovs.next_order(machine.now).expect("it joins");
    machine.on(Event::PortDone(Ok(Ids::default())));
    assert_eq!(announced(&mut machine), frames(&["10.0.0.5", "fd77::5"]), "in no later turn");
}
