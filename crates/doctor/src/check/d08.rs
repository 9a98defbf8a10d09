//! D08: the members of a bridge disagree about the longest packet.

use std::collections::BTreeMap;

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::Host;

pub(super) const CHECK: Check = Check {
    id: "D08",
    title: "the hops of a path take packets of different lengths",
    group: Group::Links,
    rows: &["G16", "G38", "G50", "G51", "G52", "G53"],
    explanation: include_str!("../../explain/D08.md"),
    look: Some(look),
};

/// A member of a bridge: its name, its MTU, and the line that says so.
type Hop = (String, u64, Quote);

fn look(host: &Host) -> Looked {
    let mut bridges: BTreeMap<String, Vec<Hop>> = BTreeMap::new();
    for nic in host.nics() {
        let Ok(master) = host.file(&format!("sys/class/net/{nic}/master.link")) else { continue };
        let bridge = master.value().rsplit('/').next().unwrap_or_default().to_owned();
        // Open vSwitch's members have a common master and many bridges: nothing can be told.
        if bridge == "ovs-system" {
            continue;
        }
        let mtu = host.file(&format!("sys/class/net/{nic}/mtu"))?;
        bridges.entry(bridge).or_default().push((nic, mtu.number()?, mtu.quote(1)));
    }
    if bridges.is_empty() {
        return Err(Gap::NotHere("no bridge with members".to_owned()));
    }
    let findings: Vec<Finding> =
        bridges.iter().filter_map(|(bridge, hops)| judge(bridge, hops)).collect();
    if findings.is_empty() {
        let names: Vec<&str> = bridges.keys().map(String::as_str).collect();
        let summary = format!("all members take packets of the same length: {}", names.join(", "));
        return Ok(vec![all_well(summary, None)]);
    }
    Ok(findings)
}

fn judge(bridge: &str, hops: &[Hop]) -> Option<Finding> {
    let least = hops.iter().min_by_key(|(_, mtu, _)| *mtu)?;
    let most = hops.iter().max_by_key(|(_, mtu, _)| *mtu)?;
    if least.1 == most.1 {
        return None;
    }
    let summary =
        format!("{bridge} joins {} of MTU {} and {} of MTU {}", most.0, most.1, least.0, least.1);
    let raise = |(nic, mtu, _): &Hop| {
        let change =
            Change::new(Knob::Mtu { nic: nic.clone() }, Some(mtu.to_string()), most.1.to_string());
        (*mtu < most.1).then_some(change)
    };
    let own = Change::new(Knob::Mtu { nic: bridge.to_owned() }, None, most.1);
    let finding = Finding::new(Severity::Warning, bridge, summary)
        .cause(
            "A bridge cannot tell a sender that its packet is too long for the way out; it drops \
             it. Small packets pass, so logins work and transfers hang.",
        )
        .quote([most.2.clone(), least.2.clone()])
        .confidence(Confidence::High)
        .advise(Advice::by_change(
            "The same length everywhere, and in guests and on switches too. Test the whole way \
             afterwards: ping -M do -s MTU-28 HOST. On XCP set the network's MTU instead (G51).",
            hops.iter().filter_map(raise).chain([own]).collect(),
        ));
    Some(finding)
}
