//! Interfaces on top of others: VLANs, bonds, bridges, tunnels.

use std::collections::BTreeSet;

use super::{Facts, mtu, narrow, widen};
use crate::check::CheckResult;
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Gap;

/// Bytes that VXLAN adds over IPv4: inner Ethernet 14, VXLAN 8, UDP 8, IP 20.
const VXLAN: u64 = 50;
/// How many more bytes an IPv6 header has than one of IPv4.
pub(super) const IPV6_MORE: u64 = 20;
/// Bytes that WireGuard adds over IPv4: IP 20, UDP 8, its own header 16 and tag 16.
const WIREGUARD: u64 = 60;

/// Bytes that other tunnels add, by the type of the link (`linux/if_arp.h`): IP in IP, IPv6 or IPv4
/// in IPv6, IPv6 in IP, GRE with IP 20 and its own header 4, and GRE over IPv6.
const BY_TYPE: [(&str, u64); 5] = [("768", 20), ("769", 40), ("776", 20), ("778", 24), ("823", 44)];

/// Finds interfaces that send longer packets than those below them accept, except interfaces in
/// `known`.
pub(super) fn inspect(facts: &Facts, known: &[String]) -> CheckResult {
    let stack = &facts.stack;
    let uppers: BTreeSet<&String> = stack.links.iter().map(|(upper, _)| upper).collect();
    let mut findings = Vec::new();
    for nic in uppers.into_iter().filter(|nic| !known.contains(*nic)) {
        // The narrowest member of a bridge decides. A member may have been removed meanwhile.
        let taken = |lower: &&String| mtu(facts, lower).map(|(mtu, _)| mtu).unwrap_or(u64::MAX);
        let narrowest = stack.below(nic).min_by_key(taken);
        if let (Some(lower), Ok(_)) =
            (narrowest.filter(|nic| mtu(facts, nic).is_ok()), mtu(facts, nic))
        {
            findings.extend(judge(facts, nic, lower)?);
        }
    }
    Ok(findings)
}

/// Judges tunnels without a configured lower interface, where routes choose one per packet. They
/// are judged by the interface with the largest MTU, since no route leads through a wider one.
pub(super) fn routed(facts: &Facts, tunnels: &[String]) -> CheckResult {
    let nics = facts.nics.names();
    let is_way = |nic: &&String| {
        overhead(facts, nic) == 0 && facts.nics.device_type(nic).is_none() && !is_down(facts, nic)
    };
    let ways = nics.iter().filter(is_way);
    let widest = ways.filter_map(|nic| Some((mtu(facts, nic).ok()?.0, nic))).max();
    let Some((_, widest)) = widest else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    for nic in tunnels {
        findings.extend(judge(facts, nic, widest)?);
    }
    Ok(findings)
}

/// Names of devices that Open vSwitch makes for its tunnels. They take packets of any length: what
/// matters is the length of those that its ports send.
const OF_SWITCH: [&str; 2] = ["genev_sys_", "vxlan_sys_"];

/// Tunnels that are up and have no configured lower interface, except those of Open vSwitch.
pub(super) fn tunnels(facts: &Facts) -> Vec<String> {
    let mut nics = facts.nics.names();
    nics.retain(|nic| {
        let is_alone = facts.stack.below(nic).next().is_none();
        let is_switchs = OF_SWITCH.iter().any(|start| nic.starts_with(start));
        let is_judged = overhead(facts, nic) > 0 && is_alone && !is_switchs;
        is_judged && mtu(facts, nic).is_ok() && !is_down(facts, nic)
    });
    nics
}

fn is_down(facts: &Facts, nic: &str) -> bool {
    facts.states.of(nic).is_ok_and(|text| text.value() == "down")
}

/// Bytes that an interface adds to each packet.
pub(super) fn overhead(facts: &Facts, nic: &str) -> u64 {
    match facts.nics.device_type(nic).as_deref() {
        Some("vxlan" | "geneve") if is_over_ipv6(facts, nic) == Some(true) => VXLAN + IPV6_MORE,
        Some("vxlan" | "geneve") => VXLAN,
        Some("wireguard") => WIREGUARD,
        Some(_) => 0,
        None => {
            let Ok(kind) = facts.types.of(nic) else { return 0 };
            let known = BY_TYPE.iter().find(|(known, _)| *known == kind.value());
            known.map_or(0, |(_, bytes)| *bytes)
        }
    }
}

/// Whether the outer packets of a tunnel are IPv6; `None` if nothing says so.
fn is_over_ipv6(facts: &Facts, nic: &str) -> Option<bool> {
    facts.details.ok()?.links.of(nic)?.is_over_ipv6()
}

fn judge(facts: &Facts, nic: &str, lower: &str) -> Result<Option<Finding>, Gap> {
    let ((own, own_quote), (below, below_quote)) = (mtu(facts, nic)?, mtu(facts, lower)?);
    let overhead = overhead(facts, nic);
    let need = own.saturating_add(overhead);
    if overhead == VXLAN && need.saturating_add(IPV6_MORE) > below && need <= below {
        return Ok(over_unknown(facts, nic, lower, need));
    }
    if need <= below || below <= overhead {
        return Ok(None);
    }
    let (summary, cause) = if overhead == 0 {
        let summary =
            format!("{nic} sends packets of {own} bytes, but {lower} below it takes {below}");
        (summary, "Packets that are longer than the MTU of the interface below are dropped there.")
    } else {
        let summary = format!(
            "{nic} needs {need} bytes with its headers, but {lower} below it takes {below}"
        );
        let cause = "A tunnel encapsulates each frame: VXLAN and Geneve add 50 bytes, WireGuard \
                     60, each 20 more over IPv6, GRE 24, IP in IP 20. What does not fit is split \
                     into two packets, which costs both ends, or dropped.";
        (summary, cause)
    };
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause(cause)
        .quote([own_quote, below_quote])
        .confidence(Confidence::High)
        .advise(Advice::by_change(
            "Reduce its MTU to what fits, and that of its guests as well:",
            narrow(nic, own, below - overhead),
        ))
        .advise(Advice::by_change(
            "Or raise the MTU of the interface below, if its whole network supports that:",
            widen(lower, below, need),
        ));
    Ok(Some(finding))
}

/// A tunnel that fits only if its outer packets are IPv4, and nothing says whether they are.
fn over_unknown(facts: &Facts, nic: &str, lower: &str, need: u64) -> Option<Finding> {
    if is_over_ipv6(facts, nic).is_some() {
        return None;
    }
    let summary = format!(
        "cannot tell whether packets of {nic} fit into {lower} below it: they need {need} bytes \
         over IPv4, {} over IPv6",
        need.saturating_add(IPV6_MORE)
    );
    let finding = Finding::new(Severity::Unknown, nic, summary)
        .cause("Its other end is not set on the interface: a controller or entries decide it.");
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    #[test]
    fn a_tunnel_that_routes_lead_is_judged_by_the_widest_way() {
        let judged = |mtu: &str, card: &str, remote: &str| {
            let links =
                format!(r#"[{{"ifname":"vx","linkinfo":{{"info_data":{{{remote}}}}}}}]{}"#, '\n');
            let pieces = [
                ("commands/ip_-d_-j_link_show", links.as_str()),
                ("sys/class/net/vx/uevent", "DEVTYPE=vxlan\n"),
                ("sys/class/net/vx/mtu", mtu),
                ("sys/class/net/eth0/mtu", card),
                ("sys/class/net/eth1/mtu", "1400\n"),
            ];
            let host = host(pieces);
            let facts = host.fact().expect("sound");
            let found = routed(&facts, &tunnels(&facts)).expect("sound");
            found.into_iter().map(|one| one.summary).collect::<Vec<_>>()
        };
        let (v4, v6) = (r#""remote":"192.0.2.9""#, r#""remote6":"2001:db8::1""#);
        let said = judged("1500\n", "1500\n", v4);
        assert_eq!(said, ["vx needs 1550 bytes with its headers, but eth0 below it takes 1500"]);
        assert_eq!(judged("1450\n", "1500\n", v4), Vec::<String>::new());
        assert_eq!(judged("1500\n", "9000\n", v4), Vec::<String>::new());
        let said = judged("1450\n", "1500\n", v6);
        assert_eq!(said, ["vx needs 1520 bytes with its headers, but eth0 below it takes 1500"]);
        assert_eq!(judged("1430\n", "1500\n", v6), Vec::<String>::new());
        let said = judged("1450\n", "1500\n", "");
        assert!(said[0].starts_with("cannot tell whether packets of vx fit"), "{said:?}");
    }

    #[test]
    fn a_tunnel_of_open_vswitch_takes_packets_of_any_length() {
        let pieces = [
            ("sys/class/net/genev_sys_6081/mtu", "65000\n"),
            ("sys/class/net/genev_sys_6081/uevent", "DEVTYPE=geneve\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
        ];
        let host = host(pieces);
        let facts = host.fact().expect("sound");
        assert_eq!(tunnels(&facts), Vec::<String>::new());
    }
}
