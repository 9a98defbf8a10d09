//! A guest that routes between two interfaces, the host that sends, and the targets behind it.
//!
//! All of them meet on one Ethernet, as in the published set-up, where one port carried both sides:
//! what the sender sends comes in by the uplink, goes through the router, and leaves by the uplink.

use std::net::Ipv4Addr;
use std::time::Duration;

use ringway_net::LinkSetting;

use super::addresses::{INNER, INNER_PREFIX_LEN, OUTER, OUTER_PREFIX_LEN};
use super::{Blueprint, Encapsulation, End, Topology, UPLINK, far_address, near_address, wire};
use ringway_rig::child::PartError;
use ringway_rig::host::RunningHost;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, add_address, configure, set_sysctls};
use ringway_rig::veth;

/// Interfaces of the router.
const OUTER_DEVICE: &str = "eth0";
const INNER_DEVICE: &str = "eth1";
/// The tunnel at both of its ends.
const TUNNEL_DEVICE: &str = "vxlan0";
/// Any number will do, as any group of the administrators' own (RFC 2365).
const VXLAN_ID: &str = "4200";
const VXLAN_GROUP: &str = "239.42.0.1";
/// IANA's.
const VXLAN_PORT: &str = "4789";
const PATIENCE: Duration = Duration::from_secs(10);

/// Both interfaces are on one Ethernet, so each has to reply for its own address only.
const SETTINGS: [(&str, &str); 4] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv4.conf.all.arp_ignore", "1"),
    ("net.ipv4.conf.all.arp_announce", "2"),
    ("net.ipv4.conf.all.rp_filter", "0"),
];

/// ringway's host with a guest that routes.
pub(super) fn ringway(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
    let program = blueprint.program.as_deref().unwrap_or(launcher.program());
    let host = RunningHost::start(launcher, program, &blueprint.description())?;
    let router = *host.guests().first().ok_or_else(|| {
        PartError::Failed("ringway run reported no guest that could route".to_owned())
    })?;
    veth::add_bridge(host.pid())?;
    configure(host.pid(), |net| {
        net.set(UPLINK, &[LinkSetting::Master(veth::BRIDGE), LinkSetting::Up])
    })?;
    let mut topology = around(launcher, blueprint, host.pid(), router)?;
    topology.host = Some(host);
    Ok(topology)
}

/// A namespace that routes between two veth devices of a bridge.
pub(super) fn veth_bridge(
    launcher: &Launcher,
    blueprint: &Blueprint,
) -> Result<Topology, PartError> {
    let (bridge, router) = (Namespace::new(launcher)?, Namespace::new(launcher)?);
    veth::add_bridge(bridge.pid())?;
    for (device, address, prefix_len) in [
        (OUTER_DEVICE, OUTER, OUTER_PREFIX_LEN),
        (INNER_DEVICE, blueprint.router_inner(), INNER_PREFIX_LEN),
    ] {
        veth::connect_as(bridge.pid(), &format!("node-{device}"), router.pid(), device)?;
        add_address(router.pid(), device, address, prefix_len)?;
    }
    let mut topology = around(launcher, blueprint, bridge.pid(), router.pid())?;
    topology.namespaces.extend([router, bridge]);
    Ok(topology)
}

/// What is around a router: the other hosts, on the bridge in the namespace of `bridge_pid`.
fn around(
    launcher: &Launcher,
    blueprint: &Blueprint,
    bridge_pid: u32,
    router_pid: u32,
) -> Result<Topology, PartError> {
    set_sysctls(router_pid, &SETTINGS)?;
    if blueprint.encapsulation == Encapsulation::Vxlan {
        tunnel(launcher, router_pid, INNER_DEVICE, INNER)?;
    }
    let mut namespaces = Vec::new();
    let bridge_pid = wire::to_bridge(launcher, blueprint, bridge_pid, &mut namespaces)?;
    let mut host = |name: &str, address: Ipv4Addr, prefix_len| {
        let host = Namespace::new(launcher)?;
        veth::connect(bridge_pid, name, host.pid())?;
        add_address(host.pid(), veth::DEVICE, address, prefix_len)?;
        let pid = host.pid();
        namespaces.push(host);
        Ok::<_, PartError>(pid)
    };
    let sender = host("near0", near_address(0), OUTER_PREFIX_LEN)?;
    let way_to = |pid, device, gateway: Ipv4Addr| {
        configure(pid, |net| net.add_default_route(device, gateway.into()))
    };
    way_to(sender, veth::DEVICE, OUTER)?;
    let mut far = Vec::new();
    for index in 0..blueprint.targets {
        let address = far_address(index);
        let (under, device) = match blueprint.encapsulation {
            Encapsulation::None => (address, veth::DEVICE),
            Encapsulation::Vxlan => (tunnel_address(index), TUNNEL_DEVICE),
        };
        let target = host(&format!("far{index}"), under, INNER_PREFIX_LEN)?;
        if blueprint.encapsulation == Encapsulation::Vxlan {
            tunnel(launcher, target, veth::DEVICE, address)?;
        }
        way_to(target, device, INNER)?;
        far.push(End::new(target, address, device));
    }
    let near = vec![End::new(sender, near_address(0), veth::DEVICE)];
    Ok(Topology { namespaces, ..Topology::of(near, far) })
}

fn tunnel_address(index: u16) -> Ipv4Addr {
    let [_, second, high, low] = far_address(index).octets();
    Ipv4Addr::new(198, second, high | 128, low)
}

/// Makes a tunnel over a device, with an address inside. Its ends find each other by multicast.
fn tunnel(launcher: &Launcher, pid: u32, device: &str, address: Ipv4Addr) -> Result<(), PartError> {
    let mut command = launcher.command_in(pid, "ip");
    command.args(["link", "add", TUNNEL_DEVICE, "type", "vxlan", "id", VXLAN_ID]);
    command.args(["group", VXLAN_GROUP, "dev", device, "dstport", VXLAN_PORT]);
    launcher.start("ip", command)?.output(PATIENCE)?;
    add_address(pid, TUNNEL_DEVICE, address, INNER_PREFIX_LEN)
}

/// Whether this kernel and `ip` can make tunnels: tried where it disturbs nothing.
pub(crate) fn try_tunnel(launcher: &Launcher) -> Result<(), PartError> {
    let place = Namespace::new(launcher)?;
    veth::add_bridge(place.pid())?;
    tunnel(launcher, place.pid(), veth::BRIDGE, INNER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::addresses::TUNNEL;

    #[test]
    fn tunnels_and_targets_are_in_networks_of_their_own() {
        for index in [0, 11, 300] {
            let (inside, under) = (far_address(index), tunnel_address(index));
            assert!(inside.octets()[2] < 128 && under.octets()[2] >= 128, "{inside} {under}");
            assert_ne!(inside, INNER);
            assert_ne!(under, TUNNEL);
        }
    }
}
