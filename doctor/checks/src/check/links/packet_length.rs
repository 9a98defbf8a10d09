//! D08: the hops of a path disagree about the longest packet.

#[path = "packet_length/path.rs"]
mod path;
#[path = "packet_length/stack.rs"]
mod stack;
#[path = "packet_length/tunnels.rs"]
mod tunnels;
#[path = "packet_length/xapi.rs"]
mod xapi;

use std::collections::BTreeMap;

use self::tunnels::Tunnels;
use crate::check::{Check, Group, Judged, Verdicts, all_well, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Interfaces, LinkDetails, LinkStates, LinkTypes, Mtus, Paths, Stack, SwitchBridges,
    SwitchDatabase, SwitchSettings, TcpMtuProbing, Tried, VifStore, XapiCards, XapiInventory,
    XapiNetworks, XapiVifs,
};
use ringway_evidence::facts;
use ringway_evidence::parse::ovs::SwitchPorts;
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D08",
    slug: "packet-length",
    title: "the hops of a path have different MTUs",
    group: Group::Links,
    sources: &[
        "throughput-guide:packet-cost",
        "throughput-guide:jumbo-frames",
        "throughput-guide:jumbo-stop",
        "throughput-guide:jumbo-network",
        "throughput-guide:jumbo-start",
        "throughput-guide:jumbo-guest",
    ],
    explanation: include_str!("packet_length.txt"),
    absent: "one hop, and no path was requested",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        mtus: Mtus,
        types: LinkTypes,
        states: LinkStates,
        stack: Stack,
        details: Tried<LinkDetails>,
        switched: Tried<SwitchBridges>,
        database: Tried<SwitchDatabase>,
        settings: Tried<SwitchSettings>,
        paths: Paths,
        probing: Tried<TcpMtuProbing>,
        networks: Tried<XapiNetworks>,
        cards: Tried<XapiCards>,
        vifs: Tried<XapiVifs>,
        inventory: Tried<XapiInventory>,
        store: Tried<VifStore>,
    }
}

/// The minimum MTU for IPv6 (RFC 8200, 5): below it an interface loses its IPv6 addresses.
const IPV6_MTU: u64 = 1280;

/// A member of a bridge: its name, its MTU, and the line with the MTU.
type Hop = (String, u64, Quote);

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    // XAPI comes first, because it overrides any other setting of its bridges.
    let set = xapi::inspect(facts).unwrap_or_else(|gap| vec![Finding::gap("XAPI", &gap)]);
    let is_set = |bridge: &String| set.iter().any(|finding| finding.subject == *bridge);
    let is_set_any = !set.is_empty();
    let switchs = tunnels::inspect(facts);
    let bridges = bridges(facts, &switchs)?;
    let mut findings: Vec<Finding> = bridges
        .iter()
        .filter(|(bridge, _)| !is_set(bridge))
        .filter_map(|(bridge, hops)| unequal(facts, bridge, hops))
        .collect();
    let known = findings.iter().chain(&set).map(|finding| finding.subject.clone());
    let known: Vec<String> = known.collect();
    let stacked = !facts.stack.links.is_empty();
    findings.extend(stack::inspect(facts, &known)?);
    let tunnels = stack::tunnels(facts);
    findings.extend(stack::routed(facts, &tunnels)?);
    let has_tunnels = !tunnels.is_empty() || !switchs.is_empty();
    let has_hops = !bridges.is_empty() || stacked || has_tunnels;
    findings.extend(switchs.findings);
    let paths = path::inspect(facts)?;
    findings.extend(set);
    if findings.is_empty() && has_hops {
        let names: Vec<&str> = bridges.keys().map(String::as_str).collect();
        let summary = if names.is_empty() {
            "no interface has a larger MTU than those below it".to_owned()
        } else {
            format!("all members have the same MTU: {}", names.join(", "))
        };
        findings.push(all_well(summary, None));
    }
    if has_hops || !paths.is_empty() || is_set_any {
        out.add(findings);
        out.add(paths);
    }
    Ok(())
}

/// The members of each bridge, except those of a switch whose tunnels decide.
fn bridges(facts: &Facts, tunnels: &Tunnels) -> Result<BTreeMap<String, Vec<Hop>>, Gap> {
    let mut bridges: BTreeMap<String, Vec<Hop>> = BTreeMap::new();
    for nic in facts.nics.names() {
        let Some(master) = facts.nics.master(&nic) else { continue };
        let bridge = master.value().rsplit('/').next().unwrap_or_default().to_owned();
        // Members of all Open vSwitch bridges have one common master, and the switch lists them.
        if bridge == "ovs-system" {
            continue;
        }
        let (mtu, quote) = mtu(facts, &nic)?;
        bridges.entry(bridge).or_default().push((nic, mtu, quote));
    }
    let switched = facts.switched.ok().map(|text| SwitchPorts::parse(text)).transpose()?;
    for (bridge, ports) in switched.into_iter().flat_map(|all| all.bridges) {
        // Tunnels and patches are no interfaces of the kernel.
        let hop = |nic: String| {
            let (mtu, quote) = mtu(facts, &nic).ok()?;
            Some((nic, mtu, quote))
        };
        let hops: Vec<Hop> = ports.into_iter().filter_map(hop).collect();
        if hops.len() > 1 && !tunnels.are_of(&bridge) {
            bridges.insert(bridge, hops);
        }
    }
    Ok(bridges)
}

/// The MTU of an interface, with its line.
fn mtu(facts: &Facts, nic: &str) -> Result<(u64, Quote), Gap> {
    let text = facts.mtus.of(nic)?;
    Ok((text.number()?, text.quote(1)))
}

/// The change that raises an interface's MTU.
fn widen(nic: &str, current: u64, proposed: u64) -> Option<Change> {
    Change::raise(Knob::Mtu { nic: nic.to_owned() }, current, proposed)
}

/// The change that lowers an interface's MTU to what passes.
fn narrow(nic: &str, current: u64, proposed: u64) -> Option<Change> {
    let is_for_both = proposed >= IPV6_MTU;
    Change::lower(Knob::Mtu { nic: nic.to_owned() }, current, proposed).filter(|_| is_for_both)
}

fn unequal(facts: &Facts, bridge: &str, hops: &[Hop]) -> Option<Finding> {
    let least = hops.iter().min_by_key(|(_, mtu, _)| *mtu)?;
    let most = hops.iter().max_by_key(|(_, mtu, _)| *mtu)?;
    if least.1 == most.1 {
        return None;
    }
    let summary =
        format!("{bridge} joins {} of MTU {} and {} of MTU {}", most.0, most.1, least.0, least.1);
    let members = hops.iter().filter_map(|(nic, current, _)| widen(nic, *current, most.1));
    let own = mtu(facts, bridge).ok().and_then(|(current, _)| widen(bridge, current, most.1));
    let finding = Finding::new(Severity::Warning, bridge, summary)
        .cause(
            "A bridge cannot tell a sender that its packet is too long for the outgoing port; it \
             drops it. Small packets pass, so logins work and transfers hang.",
        )
        .quote([most.2.clone(), least.2.clone()])
        .confidence(Confidence::High)
        .advise(Advice::by_change(
            "Use the same MTU everywhere, also in guests and on switches. Then test the whole \
             path: ringway doctor --check D08 --path HOST. On XCP set the network's MTU instead.",
            members.chain(own),
        ));
    Some(finding)
}
