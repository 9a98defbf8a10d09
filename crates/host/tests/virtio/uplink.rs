//! What a host decides about its uplink.

use ringway_datapath::{MacAddr, Vid, VlanRules};
use ringway_host::{Followed, Host, PortDevice, QueueDown, Uplink, UplinkPort, UplinkRules};
use ringway_switch::{FloodLimit, StormLimits};

use crate::calls::status;
use crate::world::Machine;
use crate::{LATER, machine};

/// Rules of an uplink that is in so many VLANs.
fn rules(vlans: u16) -> UplinkRules {
    let tagged = (1..=vlans).filter_map(Vid::new).collect();
    UplinkRules::without_limits(VlanRules { untagged: None, tagged })
}

/// An uplink that is the device `up0`, with two queues.
pub(crate) fn described() -> Uplink {
    let (name, mac) = ("up0".to_owned(), MacAddr([2, 0, 0, 0, 0, 7]));
    let device = PortDevice { name, mac, addresses: Vec::new(), queues: 2, mtu: 1500 };
    Uplink { device, rules: rules(0) }
}

/// A machine with this uplink.
fn with_uplink() -> Machine {
    let mut machine = machine();
    machine.act(|host, now, parts| {
        let hosting = &mut parts.split(&mut host.shared, now).1;
        host.uplink = UplinkPort::open(Some(&described()), hosting).expect("it can be made");
    });
    machine
}

#[test]
fn a_failed_uplink_ends_the_process_unless_its_device_was_deleted_and_is_made_again() {
    let mut machine = with_uplink();
    let lose = |machine: &mut Machine| {
        machine.act(|Host { uplink, shared, .. }, now, _| {
            let uplink = uplink.as_ref().expect("it is attached");
            let port = uplink.port;
            let down = QueueDown { port, queue: 1, reason: "it is closed".to_owned() };
            uplink.lose(&down, shared, now).map_err(|error| error.to_string())
        })
    };
    assert_eq!(lose(&mut machine), Err("the uplink up0 failed: queue 1: it is closed".to_owned()));
    machine.kernel.remove("up0").expect("it exists");
    assert_eq!(lose(&mut machine), Ok(true));
    machine.now += LATER;
    assert_eq!(machine.act(Host::follow_devices), Some(Followed::Done));
    machine.kernel.remove("up0").expect("it exists again");
    let shown = status(&mut machine).uplink.expect("it is shown");
    assert_eq!((shown.name.as_str(), shown.queues.len(), shown.error), ("up0", 2, None));
}

#[test]
fn rules_of_an_uplink_are_set_if_they_are_others_and_possible() {
    let mut machine = with_uplink();
    let mut set = |vlans| {
        let set = machine.act(|host, now, parts| {
            let hosting = &mut parts.split(&mut host.shared, now).1;
            let uplink = host.uplink.as_mut().expect("it is attached");
            uplink.set_rules(&rules(vlans), hosting).is_ok()
        });
        (set, machine.engines.policies)
    };
    let each_queue = 2;
    assert_eq!([set(0), set(1)], [(true, 0), (true, each_queue)]);
    assert_eq!([set(257), set(1)], [(false, each_queue), (true, each_queue)]);
}

#[test]
fn what_goes_through_an_uplink_is_shown_as_of_a_vif() {
    let mut machine = with_uplink();
    machine.act(|host, now, parts| {
        let hosting = &mut parts.split(&mut host.shared, now).1;
        let broadcast = FloodLimit { frames_per_tick: 7, ..FloodLimit::NONE };
        let storm = StormLimits { broadcast, ..StormLimits::NONE };
        let uplink = host.uplink.as_mut().expect("it is attached");
        uplink.set_rules(&UplinkRules { storm, ..rules(2) }, hosting).expect("there is room");
    });
    let shown = status(&mut machine).uplink.expect("it is shown");
    assert_eq!((shown.trunk, shown.multicast_router.as_str()), (vec![1, 2], "always"));
    assert_eq!(shown.limits.broadcast.frames_per_second, Some(7));
}
