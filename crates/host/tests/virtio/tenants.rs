//! What the host decides about tenants, in the process that joins them.

use std::io;
use std::sync::Arc;

use ringway_calls::BackendStatus;
use ringway_datapath::{MacAddr, Vid, VlanRules};
use ringway_host::{Hosting, TenantRules, Tenants, UplinkPort};
use ringway_switch::PortId;

use crate::uplink::described;
use crate::world::{Machine, Quiet, Silent};
use crate::{MAC, machine};

fn act<R>(machine: &mut Machine, act: impl FnOnce(&mut Hosting<'_, Quiet>) -> R) -> R {
    machine.act(|host, now, parts| act(&mut parts.split(&mut host.shared, now).1))
}

/// A tenant with this address only, in so many VLANs.
fn rules(vlans: u16) -> TenantRules {
    let tagged = (1..=vlans).filter_map(Vid::new).collect();
    let vlans = VlanRules { untagged: None, tagged };
    TenantRules::new(Some(vec![MacAddr(MAC)]), Vec::new(), vlans, false)
}

fn attach(
    tenants: &mut Tenants<Quiet>,
    machine: &mut Machine,
    name: &str,
    rules: &TenantRules,
) -> io::Result<()> {
    let queues = vec![(Silent, Arc::default()), (Silent, Arc::default())];
    act(machine, |hosting| tenants.attach(name, queues, rules, hosting))
}

fn status(tenants: &Tenants<Quiet>, machine: &mut Machine) -> BackendStatus {
    act(machine, |hosting| tenants.status(hosting))
}

#[test]
fn an_address_stays_with_the_first_tenant_until_that_is_gone() {
    let (mut machine, mut tenants) = (machine(), Tenants::new(None));
    for name in ["one", "two"] {
        attach(&mut tenants, &mut machine, name, &rules(0)).expect("there is room");
    }
    let is_at = |status: BackendStatus| -> Vec<String> {
        status.fdb.into_iter().map(|entry| entry.port).collect()
    };
    let shown = status(&tenants, &mut machine);
    let trunks = shown.trunks.iter().map(|it| (it.name.as_str(), it.queues.len()));
    assert_eq!(trunks.collect::<Vec<_>>(), [("trunk-one", 2), ("trunk-two", 2)]);
    assert_eq!(is_at(shown), ["trunk-one"]);
    act(&mut machine, |hosting| {
        assert!(tenants.remove("one", hosting) && !tenants.remove("one", hosting));
        tenants.allow("one", &rules(0), hosting);
        tenants.allow("two", &rules(0), hosting);
    });
    assert_eq!(is_at(status(&tenants, &mut machine)), ["trunk-two"]);
}

#[test]
fn a_tenant_that_cannot_be_attached_takes_no_port() {
    let (mut machine, mut tenants) = (machine(), Tenants::new(None));
    let refused = attach(&mut tenants, &mut machine, "one", &rules(257));
    assert!(refused.expect_err("there are too many").to_string().contains("256"));
    assert_eq!(machine.host.shared.ports_in_use(), 0);
    assert!(status(&tenants, &mut machine).trunks.is_empty());
    attach(&mut tenants, &mut machine, "one", &rules(1)).expect("there is room");
}

#[test]
fn the_uplink_beside_tenants_is_made_again_if_its_device_was_deleted() {
    let mut machine = machine();
    let uplink = act(&mut machine, |hosting| UplinkPort::open(Some(&described()), hosting));
    let mut tenants = Tenants::new(uplink.expect("it can be made"));
    attach(&mut tenants, &mut machine, "one", &rules(0)).expect("there is room");
    assert_eq!([0, 1, 2].map(|port| tenants.at(PortId(port))), [None, Some("one"), None]);
    machine.kernel.remove("up0").expect("it exists");
    act(&mut machine, |hosting| tenants.follow_uplink(hosting));
    assert!(machine.kernel.find("up0").is_some());
    let uplink = status(&tenants, &mut machine).uplink.expect("it is shown");
    assert_eq!((uplink.name.as_str(), uplink.error), ("up0", None));
}
