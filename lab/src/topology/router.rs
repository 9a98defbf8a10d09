//! A guest that routes between two interfaces, the host that sends, and the targets behind it.
//!
//! All of them share one Ethernet, as in the published set-up, where one port carried both sides: a
//! frame of the sender enters by the uplink, passes through the router, and leaves by the uplink.
//! If the router is bypassed, the sender is in the targets' network as well, and sends to each
//! target directly or through a tunnel of its own.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use ringway_net::LinkSetting;

use super::addresses::{
    BYPASS, BYPASS_TUNNEL, INNER, INNER_PREFIX_LEN, OUTER, OUTER_PREFIX_LEN, TUNNEL,
};
use super::machine::{Machine, wait_for_queues};
use super::node::{INNER_DEVICE, OUTER_DEVICE, SETTINGS, VIFS};
use super::{
    Blueprint, Driver, Encapsulation, End, Topology, UPLINK, far_address, near_address, wire,
};
use crate::study::TopologyKind;
use ringway_rig::child::{Child, PartError};
use ringway_rig::host::RunningHost;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, add_address, configure, set_sysctls};
use ringway_rig::veth;

/// Interfaces of a router with ringway's virtio driver, which numbers the devices of each socket.
const VIRTIO_DEVICES: [&str; 2] = ["outer0", "inner0"];
/// The tunnel device of a target, and of the router if it has one tunnel for all.
const TUNNEL_DEVICE: &str = "tunnel0";
/// Any identifier would do, and so would any administratively scoped multicast group (RFC 2365).
const VXLAN_ID: &str = "4200";
const VXLAN_GROUP: &str = "239.42.0.1";
/// The port that IANA assigned.
const VXLAN_PORT: &str = "4789";
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two checks for a device.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// ringway's host with a guest that routes.
pub(super) fn ringway(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
    let program = &blueprint.program()?;
    let place = launcher.dir()?;
    let mut description = blueprint.description();
    if blueprint.driver != Driver::Netfront {
        description += &blueprint.sockets(VIFS, place.path());
    }
    let host = RunningHost::start(launcher, program, &description)?;
    veth::add_bridge(host.pid())?;
    wait_for_uplink(host.pid())?;
    configure(host.pid(), |net| {
        net.set(UPLINK, &[LinkSetting::Master(veth::BRIDGE), LinkSetting::Up])
    })?;
    let (mut namespaces, mut drivers, mut machine) = (vec![], vec![], None);
    let mut notes = vec![];
    match blueprint.driver {
        Driver::Netfront => {
            let router = *host.guests().first().ok_or_else(|| {
                PartError::Failed("ringway run reported no guest that could route".to_owned())
            })?;
            set_up(launcher, blueprint, router, INNER_DEVICE)?;
        }
        Driver::Virtio => {
            let router = Namespace::new(launcher)?;
            drivers = virtio_interfaces(launcher, blueprint, program, router.pid(), place.path())?;
            wait_for_queues(&host, blueprint.queues)?;
            set_up(launcher, blueprint, router.pid(), VIRTIO_DEVICES[1])?;
            namespaces.push(router);
        }
        Driver::Machine => {
            let mut started = Machine::start(launcher, blueprint, place.path())?;
            started.set_queues(blueprint.queues, &host)?;
            machine = Some(started);
            if blueprint.kind == TopologyKind::Router {
                notes.push("the router is emulated: its figures do not show real speed".to_owned());
            }
        }
    }
    let mut topology = around(launcher, blueprint, host.pid())?;
    topology.namespaces.extend(namespaces);
    topology.notes.extend(notes);
    (topology.host, topology.drivers, topology.machine) = (Some(host), drivers, machine);
    topology.place = Some(place);
    Ok(topology)
}

/// Waits for the host's device on the wire: a host without guests is ready before the device
/// exists.
fn wait_for_uplink(pid: u32) -> Result<(), PartError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match configure(pid, |net| net.link(UPLINK).map(drop)) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            outcome => return outcome,
        }
    }
}

/// Both interfaces of a router with ringway's virtio driver, in the namespace of a process.
fn virtio_interfaces(
    launcher: &Launcher,
    blueprint: &Blueprint,
    program: &Path,
    pid: u32,
    dir: &Path,
) -> Result<Vec<Child>, PartError> {
    let addresses = [(OUTER, OUTER_PREFIX_LEN), (blueprint.router_inner(), INNER_PREFIX_LEN)];
    let interfaces = VIFS.into_iter().zip(VIRTIO_DEVICES).zip(addresses);
    let start = |((name, device), (address, prefix_len)): ((&str, &str), (Ipv4Addr, u8))| {
        let prefix = device.trim_end_matches('0');
        let mut command = launcher.command_in(pid, program);
        command.args(["--log-level", "warn", "guest", "--vhost"]).arg(dir.join(name));
        command.args(["--queues", &blueprint.queues.to_string()]);
        command.args(["--mtu", &blueprint.mtu.to_string(), "--prefix", prefix]);
        command.args(["--address", &format!("{address}/{prefix_len}")]);
        if let Some(key) = blueprint.flow_key {
            command.args(["--flow-key", &key.to_string()]);
        }
        launcher.start("ringway guest", command)
    };
    interfaces.map(start).collect()
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
    set_up(launcher, blueprint, router.pid(), INNER_DEVICE)?;
    let mut topology = around(launcher, blueprint, bridge.pid())?;
    topology.namespaces.extend([router, bridge]);
    Ok(topology)
}

/// Makes a namespace with both interfaces route, into tunnels if the blueprint has any.
fn set_up(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    inner_device: &str,
) -> Result<(), PartError> {
    set_sysctls(pid, &SETTINGS)?;
    tunnels(launcher, blueprint, pid, inner_device, (TUNNEL, INNER))
}

/// The common end of the tunnels to all targets, over a device with the first address. The second
/// address is the one inside the tunnels.
fn tunnels(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    device: &str,
    (under, inside): (Ipv4Addr, Ipv4Addr),
) -> Result<(), PartError> {
    match blueprint.encapsulation {
        Encapsulation::None => return Ok(()),
        Encapsulation::Vxlan => vxlan(launcher, pid, device, under)?,
        Encapsulation::Gre => {
            // As on an OpenStack node, the tunnels are ports of a bridge.
            configure(pid, |net| {
                net.add_bridge(TUNNEL_DEVICE)?;
                net.set(TUNNEL_DEVICE, &[LinkSetting::Up])
            })?;
            for index in 0..blueprint.targets {
                let port = format!("tunnel-to{index}");
                gre(launcher, pid, &port, (under, tunnel_address(index)))?;
                configure(pid, |net| {
                    net.set(&port, &[LinkSetting::Master(TUNNEL_DEVICE), LinkSetting::Up])
                })?;
            }
        }
    }
    add_address(pid, TUNNEL_DEVICE, inside, INNER_PREFIX_LEN)
}

/// The hosts around a router, on the bridge in the namespace of `bridge_pid`.
fn around(
    launcher: &Launcher,
    blueprint: &Blueprint,
    bridge_pid: u32,
) -> Result<Topology, PartError> {
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
    let is_bypassed = blueprint.kind == TopologyKind::RouterBypass;
    let sender = host("near0", near_address(0), OUTER_PREFIX_LEN)?;
    let way_to = |pid, device, gateway: Ipv4Addr| {
        configure(pid, |net| net.add_default_route(device, gateway.into()))
    };
    way_to(sender, veth::DEVICE, OUTER)?;
    let far_end = if is_bypassed {
        // As a host with distributed routing does: no address of its own is routed.
        let address = match blueprint.encapsulation {
            Encapsulation::None => BYPASS,
            Encapsulation::Vxlan | Encapsulation::Gre => BYPASS_TUNNEL,
        };
        add_address(sender, veth::DEVICE, address, INNER_PREFIX_LEN)?;
        tunnels(launcher, blueprint, sender, veth::DEVICE, (BYPASS_TUNNEL, BYPASS))?;
        (BYPASS_TUNNEL, BYPASS)
    } else {
        (TUNNEL, INNER)
    };
    let mut far = Vec::new();
    for index in 0..blueprint.targets {
        let (under, inside) = (tunnel_address(index), far_address(index));
        let name = format!("far{index}");
        let (target, device) = match blueprint.encapsulation {
            Encapsulation::None => (host(&name, inside, INNER_PREFIX_LEN)?, veth::DEVICE),
            Encapsulation::Vxlan => {
                let target = host(&name, under, INNER_PREFIX_LEN)?;
                vxlan(launcher, target, veth::DEVICE, under)?;
                add_address(target, TUNNEL_DEVICE, inside, INNER_PREFIX_LEN)?;
                (target, TUNNEL_DEVICE)
            }
            Encapsulation::Gre => {
                let target = host(&name, under, INNER_PREFIX_LEN)?;
                gre(launcher, target, TUNNEL_DEVICE, (under, far_end.0))?;
                add_address(target, TUNNEL_DEVICE, inside, INNER_PREFIX_LEN)?;
                (target, TUNNEL_DEVICE)
            }
        };
        way_to(target, device, far_end.1)?;
        far.push(End::new(target, inside, device));
    }
    // If it bypasses the router, it uses its address in the targets' network.
    let address = if is_bypassed { BYPASS } else { near_address(0) };
    let near = vec![End::new(sender, address, veth::DEVICE)];
    Ok(Topology { namespaces, ..Topology::of(near, far) })
}

fn tunnel_address(index: u16) -> Ipv4Addr {
    let [_, second, high, low] = far_address(index).octets();
    Ipv4Addr::new(198, second, high | 128, low)
}

/// Creates a VXLAN tunnel end over a device. `local` is its address there, because the device may
/// have others. The ends find each other by multicast.
fn vxlan(launcher: &Launcher, pid: u32, device: &str, local: Ipv4Addr) -> Result<(), PartError> {
    let mut words = vec![TUNNEL_DEVICE, "type", "vxlan", "id", VXLAN_ID, "group", VXLAN_GROUP];
    let local = local.to_string();
    words.extend(["local", &local, "dev", device, "dstport", VXLAN_PORT]);
    ip_link_add(launcher, pid, &words)
}

/// Creates a GRE tunnel end from the first address to the second.
fn gre(
    launcher: &Launcher,
    pid: u32,
    name: &str,
    (local, remote): (Ipv4Addr, Ipv4Addr),
) -> Result<(), PartError> {
    let (local, remote) = (local.to_string(), remote.to_string());
    ip_link_add(launcher, pid, &[name, "type", "gretap", "local", &local, "remote", &remote])
}

fn ip_link_add(launcher: &Launcher, pid: u32, words: &[&str]) -> Result<(), PartError> {
    let mut command = launcher.command_in(pid, "ip");
    command.args(["link", "add"]).args(words);
    launcher.start("ip", command)?.output(PATIENCE).map(drop)
}

/// Checks that this kernel and `ip` can create tunnels, in a namespace where that disturbs nothing.
pub(crate) fn try_tunnel(
    launcher: &Launcher,
    encapsulation: Encapsulation,
) -> Result<(), PartError> {
    let place = Namespace::new(launcher)?;
    match encapsulation {
        Encapsulation::None => Ok(()),
        Encapsulation::Vxlan => {
            veth::add_bridge(place.pid())?;
            vxlan(launcher, place.pid(), veth::BRIDGE, TUNNEL)
        }
        Encapsulation::Gre => gre(launcher, place.pid(), TUNNEL_DEVICE, (TUNNEL, INNER)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_and_targets_are_in_networks_of_their_own() {
        for index in [0, 11, 300] {
            let (inside, under) = (far_address(index), tunnel_address(index));
            assert!(inside.octets()[2] < 128 && under.octets()[2] >= 128, "{inside} {under}");
            assert!(![INNER, BYPASS].contains(&inside), "{inside}");
            assert!(![TUNNEL, BYPASS_TUNNEL].contains(&under), "{under}");
        }
    }
}
