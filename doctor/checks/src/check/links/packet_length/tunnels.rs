//! Ports of Open vSwitch whose packets do not fit into its tunnels.

use std::collections::{BTreeMap, BTreeSet};

use super::stack::IPV6_MORE;
use super::{Facts, mtu, narrow, widen};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{NicRole, SwitchDatabase};
use ringway_evidence::parse::ovsdb::Port;
use ringway_evidence::{Quote, squeezed};

/// Bytes that the switch adds to a packet over IPv4, by the kind of tunnel: IP 20, UDP 8 and a
/// header of 8, or GRE 4, and the inner frame's own 14.
const ADDED: [(&str, u64); 3] = [("geneve", 50), ("gre", 38), ("vxlan", 50)];
/// Bytes of the option that OVN adds to Geneve, which has the logical ports.
const OVN_OPTION: u64 = 8;

/// What is known of tunnels of the switch.
#[derive(Default)]
pub(super) struct Tunnels {
    /// Bridges with tunnels. Their ports may be of many logical networks, each with its MTU.
    bridges: BTreeSet<String>,
    /// Whether the database is torn.
    is_torn: bool,
    /// Those that are too narrow, and what could not be read.
    pub(super) findings: Vec<Finding>,
}

impl Tunnels {
    /// Whether the ports of a bridge of the switch are not to be compared with each other.
    pub(super) fn are_of(&self, bridge: &str) -> bool {
        self.is_torn || self.bridges.contains(bridge)
    }

    /// Whether there is anything to say.
    pub(super) fn is_empty(&self) -> bool {
        self.bridges.is_empty() && !self.is_torn
    }
}

/// A tunnel, and the longest packet that fits into it.
struct Tunnel<'a> {
    port: &'a Port,
    egress: &'a str,
    /// The MTU of the egress, with its line.
    below: (u64, Quote),
    added: u64,
    room: u64,
}

pub(super) fn inspect(facts: &Facts) -> Tunnels {
    let all = match SwitchDatabase::ports(&facts.database) {
        Ok(all) => all,
        Err(gap) => {
            let findings = vec![Finding::gap("Open vSwitch", &gap)];
            return Tunnels { is_torn: true, findings, ..Tunnels::default() };
        }
    };
    // A container may have interfaces of the same names as the machine, on which the switch runs.
    let is_here = |port: &Port| port.mtu.is_some() && port.mtu == kernels(facts, &port.name);
    if !all.iter().any(is_here) {
        return Tunnels::default();
    }
    let mut narrowest: BTreeMap<&str, Tunnel<'_>> = BTreeMap::new();
    for tunnel in all.iter().filter_map(|port| tunnel(facts, all, port)) {
        let known = narrowest.get(tunnel.port.bridge.as_str());
        if known.is_none_or(|known| tunnel.room < known.room) {
            narrowest.insert(&tunnel.port.bridge, tunnel);
        }
    }
    let findings = narrowest.values().filter_map(|tunnel| judge(facts, all, tunnel)).collect();
    let bridges = narrowest.keys().map(|bridge| (*bridge).to_owned()).collect();
    Tunnels { bridges, findings, ..Tunnels::default() }
}

fn tunnel<'a>(facts: &Facts, all: &[Port], port: &'a Port) -> Option<Tunnel<'a>> {
    let (_, added) = ADDED.iter().find(|(kind, _)| *kind == port.kind)?;
    let ovn = facts.settings.ok().map(|known| &known.settings);
    let ovn = ovn.filter(|ovn| ovn.remote.is_some() && ovn.bridge() == port.bridge);
    let option = if ovn.is_some() && port.kind == "geneve" { OVN_OPTION } else { 0 };
    // Where nothing says that the outer packets are IPv6, they need no less than over IPv4.
    let is_ipv6 = ovn.is_some_and(|ovn| ovn.encap_ip.as_ref().is_some_and(|ip| ip.contains(':')));
    let added = added + option + if is_ipv6 { IPV6_MORE } else { 0 };
    let egress = port.egress()?;
    let below = length(facts, all, egress)?;
    let room = below.0.checked_sub(added)?;
    Some(Tunnel { port, egress, below, added, room })
}

/// The MTU of an interface that the kernel has.
fn kernels(facts: &Facts, nic: &str) -> Option<u64> {
    Some(mtu(facts, nic).ok()?.0)
}

/// The MTU of an interface, by the kernel or else by the switch's database.
fn length(facts: &Facts, all: &[Port], nic: &str) -> Option<(u64, Quote)> {
    mtu(facts, nic).ok().or_else(|| {
        let port = all.iter().find(|port| port.name == nic)?;
        Some((port.mtu?, port.quote(&format!("mtu: {}", port.mtu?))))
    })
}

fn judge(facts: &Facts, all: &[Port], tunnel: &Tunnel<'_>) -> Option<Finding> {
    let Tunnel { port, egress, below: (below, quote), added, room } = tunnel;
    let is_guests = |one: &&Port| {
        let is_card = facts.nics.role(&one.name) == NicRole::Physical && one.iface_id().is_none();
        one.bridge == port.bridge && one.is_of_guests() && !is_card
    };
    let with_length = |one: &Port| Some((one.name.clone(), length(facts, all, &one.name)?));
    let mut wide: Vec<(String, (u64, Quote))> =
        all.iter().filter(is_guests).filter_map(with_length).collect();
    wide.retain(|(_, (own, _))| own > room);
    let (widest, (own, own_quote)) = wide.iter().max_by_key(|(_, (own, _))| *own)?;
    let more = match wide.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more like it"),
    };
    let bridge = squeezed(&port.bridge);
    let summary = format!(
        "{widest} sends packets of {own} bytes, but {room} fit into tunnels of {bridge}{more}"
    );
    let cause = format!(
        "With headers of {added} bytes ({}), a packet must fit into the {below} of {egress}. What \
         does not is split or dropped; small packets pass, so logins work and transfers hang. A \
         guest that was given a lower MTU, as by OVN's DHCP, does not send such packets.",
        port.kind
    );
    let is_of_kernel = |nic: &str| kernels(facts, nic).is_some();
    let changes = wide.iter().filter(|(nic, _)| is_of_kernel(nic));
    let changes = changes.filter_map(|(nic, (own, _))| narrow(nic, *own, *room));
    let above = widen(egress, *below, own.saturating_add(*added));
    let finding = Finding::new(Severity::Warning, bridge, summary)
        .cause(cause)
        .quote([own_quote.clone(), quote.clone()])
        .quote([port.quote(&format!("status: tunnel_egress_iface={egress}"))])
        .confidence(Confidence::Medium)
        .advise(Advice::by_change(
            format!("Reduce the MTU of the ports to {room}, and that of their guests as well:"),
            changes,
        ))
        .advise(Advice::by_change(
            "Or raise the MTU below, if its whole network supports that:",
            above.filter(|_| is_of_kernel(egress)),
        ));
    Some(finding)
}
