//! Topologies built from network namespaces: ringway's host with its guests, and the baselines
//! through the same machine.
//!
//! A topology consists of processes and their namespaces, and is removed when its value is dropped.
//! Nothing is created in the user's own network.

mod addresses;
mod blueprint;
pub(crate) mod machine;
mod node;
pub mod ovs;
pub(crate) mod relay;
pub(crate) mod router;
pub(crate) mod tuning;
pub(crate) mod wire;

use std::net::Ipv4Addr;
use std::time::Duration;

use ringway_net::LinkSetting;
use ringway_rig::child::{Child, PartError};
use ringway_rig::host::RunningHost;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, add_address, configure};
use ringway_rig::veth;
use tempfile::TempDir;

use crate::study::{Subject, TopologyKind};
pub(crate) use blueprint::Lines;
pub use blueprint::{Attached, Blueprint, Driver, Encapsulation, Layout, More, unsupported};
pub use machine::Machine;
pub use ovs::OpenVswitch;

/// Prefix length of the network, which is the one for benchmarks (RFC 2544, C.2.2).
const PREFIX_LEN: u8 = 15;
/// The host's device on the wire.
const UPLINK: &str = "wire0";
/// The Linux bridge of the guests, in place of the switch.
const GUEST_BRIDGE: &str = "guests0";
/// The Linux bridge of their peers, if a relay is between the two.
const PEER_BRIDGE: &str = "peers0";
/// The relay's devices on bridges.
const DELAYING: [&str; 2] = ["delay0", "delay1"];

/// Blueprints refuse it, because nothing is built for it.
const MACHINE: &str = "a path to another machine is not built";

/// One end of a measured path: a kernel with its own TCP/IP stack.
#[derive(Debug, Clone)]
pub struct End {
    /// A process in its network namespace.
    pub pid: u32,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its interface.
    pub interface: String,
}

/// An existing topology. Its parts end with it, the host first.
#[derive(Debug)]
pub struct Topology {
    /// The measured guests, or their counterparts in a baseline.
    pub near: Vec<End>,
    /// Their peers: the other host, or one guest for each of them. With a router there are several
    /// peers for the only end on this side.
    pub far: Vec<End>,
    /// Notes that apply to all measurements here.
    pub notes: Vec<String>,
    /// What forwards between guests, if neither the switch nor the kernel does.
    pub ovs: Option<OpenVswitch>,
    /// ringway's host, if the subject is ringway.
    pub host: Option<RunningHost>,
    /// The relay's process, if the subject is the bare relay.
    pub relay: Option<Child>,
    /// The relay that delays frames, if there is a delay.
    delaying: Option<Delaying>,
    /// The virtual machine that routes, if one does.
    pub machine: Option<Machine>,
    /// The processes that drive the interfaces of a guest that the host did not create.
    drivers: Vec<Child>,
    /// The directory of their sockets.
    place: Option<TempDir>,
    namespaces: Vec<Namespace>,
}

/// A relay that delays frames, and its devices.
#[derive(Debug)]
struct Delaying {
    /// Held only to keep the process alive; a bare relay is in `relay`.
    _relay: Option<Child>,
    ends: [(u32, &'static str); 2],
}

impl End {
    fn new(pid: u32, address: Ipv4Addr, interface: &str) -> End {
        End { pid, address, interface: interface.to_owned() }
    }
}

impl Topology {
    /// Builds a topology. `launcher` starts its processes; ringway itself is `blueprint.program`.
    ///
    /// # Errors
    /// Why it cannot be built.
    pub fn build(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
        let is_router = blueprint.kind.has_router();
        let mut topology = match blueprint.subject {
            Subject::Ringway if is_router => router::ringway(launcher, blueprint)?,
            Subject::VethBridge if is_router => router::veth_bridge(launcher, blueprint)?,
            Subject::Ringway if blueprint.sends_from_host => host_alone(launcher, blueprint)?,
            Subject::Ringway => ringway(launcher, blueprint)?,
            Subject::VethBridge => veth_bridge(launcher, blueprint)?,
            Subject::TapRelay => tap_relay(launcher, blueprint)?,
            Subject::Machine => return Err(PartError::Failed(MACHINE.to_owned())),
        };
        let notes = tuning::tune(launcher, &topology, blueprint)?;
        topology.notes.extend(notes);
        Ok(topology)
    }

    /// A topology of these ends, without anything else yet.
    fn of(near: Vec<End>, far: Vec<End>) -> Topology {
        Topology {
            near,
            far,
            notes: vec![],
            ovs: None,
            host: None,
            relay: None,
            delaying: None,
            machine: None,
            drivers: vec![],
            place: None,
            namespaces: vec![],
        }
    }

    /// Puts Open vSwitch in place of a bridge in the namespace of `pid`.
    fn forward_by_ovs(
        &mut self,
        launcher: &Launcher,
        pid: u32,
        bridge: &str,
    ) -> Result<(), PartError> {
        let ovs = OpenVswitch::in_place_of(launcher, pid, bridge)?;
        self.notes.push(format!("Open vSwitch forwards {}", ovs.datapath));
        self.ovs = Some(ovs);
        Ok(())
    }

    /// One process in each network namespace.
    fn pids(&self) -> impl Iterator<Item = u32> {
        let ends = self.near.iter().chain(&self.far).map(|end| end.pid);
        let between = self.namespaces.iter().map(Namespace::pid);
        ends.chain(between).chain(self.host.as_ref().map(RunningHost::pid))
    }

    /// The processes that drive the guests' interfaces, unless the kernel does.
    pub(crate) fn frontends(&self) -> Vec<u32> {
        let guests = self.host.iter().flat_map(|host| host.guests().iter().copied());
        let machine = self.machine.as_ref().map(Machine::pid);
        guests.chain(self.drivers.iter().map(Child::pid)).chain(machine).collect()
    }

    /// The ends that exchange traffic: guests with their peers, or one host with all targets.
    pub fn pairs(&self) -> Vec<(&End, &End)> {
        let count = self.near.len().max(self.far.len());
        let pair = |index| (&self.near[index % self.near.len()], &self.far[index % self.far.len()]);
        (0..count).map(pair).collect()
    }

    /// Frames that the device queues of the delaying relay have dropped; `None` without such a
    /// relay.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub(crate) fn delay_drops(&self) -> Result<Option<u64>, PartError> {
        let Some(Delaying { ends, .. }) = &self.delaying else { return Ok(None) };
        let drops: Result<Vec<u64>, _> = ends.iter().map(|end| relay::dropped(*end)).collect();
        Ok(Some(drops?.into_iter().sum()))
    }

    /// The process that forwards, if neither ringway nor the kernel does.
    pub fn switch_pid(&self) -> Option<u32> {
        let relay = self.relay.as_ref().map(Child::pid);
        relay.or_else(|| self.ovs.as_ref().map(OpenVswitch::pid))
    }
}

/// The address of a measured guest.
pub(crate) fn near_address(index: u16) -> Ipv4Addr {
    numbered(18, index)
}

/// The address of a peer.
fn far_address(index: u16) -> Ipv4Addr {
    numbered(19, index)
}

/// Gives a link an address in the common network, and sets it up.
fn give_address(pid: u32, link: &str, address: Ipv4Addr) -> Result<(), PartError> {
    add_address(pid, link, address, PREFIX_LEN)
}

fn numbered(second: u8, index: u16) -> Ipv4Addr {
    let [high, low] = (index + 1).to_be_bytes();
    Ipv4Addr::new(198, second, high, low)
}

fn ringway(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
    let host = RunningHost::start(launcher, &blueprint.program()?, &blueprint.description())?;
    let guests = usize::from(blueprint.guests);
    let end = |(pid, address): (&u32, Ipv4Addr)| End::new(*pid, address, "eth0");
    let near: Vec<End> =
        host.guests().iter().take(guests).zip((0..).map(near_address)).map(end).collect();
    let mut topology = Topology::of(near, vec![]);
    topology.far = match blueprint.kind {
        TopologyKind::Wire => {
            configure(host.pid(), |net| net.set(UPLINK, &[LinkSetting::Up]))?;
            vec![wire::behind(launcher, blueprint, host.pid(), UPLINK, &mut topology)?]
        }
        TopologyKind::Guests
        | TopologyKind::Router
        | TopologyKind::RouterBypass
        | TopologyKind::InterHost => {
            host.guests().iter().skip(guests).zip((0..).map(far_address)).map(end).collect()
        }
    };
    if blueprint.is_split() {
        let ends = DELAYING.map(|device| (host.pid(), device));
        let bridges = [GUEST_BRIDGE, PEER_BRIDGE];
        topology.delaying = Some(delay_between(launcher, ends, bridges, blueprint)?);
    }
    if blueprint.attached == Attached::OpenVswitch {
        topology.forward_by_ovs(launcher, host.pid(), GUEST_BRIDGE)?;
    }
    topology.host = Some(host);
    Ok(topology)
}

/// A relay between two bridges.
fn delay_between(
    launcher: &Launcher,
    ends: [(u32, &'static str); 2],
    bridges: [&str; 2],
    blueprint: &Blueprint,
) -> Result<Delaying, PartError> {
    let relay = relay::start(launcher, relay::RELAY, ends, blueprint.delay)?;
    for ((pid, device), bridge) in ends.into_iter().zip(bridges) {
        configure(pid, |net| net.set(device, &[LinkSetting::Master(bridge)]))?;
    }
    Ok(Delaying { _relay: Some(relay), ends })
}

/// The host's own TCP/IP stack on a bridge, or on Open vSwitch, with the wire as a port, without
/// any guest.
fn host_alone(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
    let host = Namespace::new(launcher)?;
    veth::add_bridge(host.pid())?;
    let mut topology = Topology::of(vec![], vec![]);
    let far = wire::from_bridge(launcher, blueprint, host.pid(), &mut topology)?;
    topology.far.push(far);
    let device = match blueprint.attached {
        Attached::Switch | Attached::Bridge => veth::BRIDGE,
        Attached::OpenVswitch => {
            topology.forward_by_ovs(launcher, host.pid(), veth::BRIDGE)?;
            ovs::BRIDGE
        }
    };
    let near = End::new(host.pid(), near_address(0), device);
    give_address(near.pid, device, near.address)?;
    topology.near.push(near);
    topology.namespaces.push(host);
    Ok(topology)
}

fn veth_bridge(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
    let bridge = Namespace::new(launcher)?;
    veth::add_bridge(bridge.pid())?;
    let peers = if blueprint.is_split() { Some(Namespace::new(launcher)?) } else { None };
    let mut topology = Topology::of(vec![], vec![]);
    let mut peer_bridge = bridge.pid();
    if let Some(peers) = peers {
        peer_bridge = peers.pid();
        veth::add_bridge(peer_bridge)?;
        let ends = [(bridge.pid(), DELAYING[0]), (peer_bridge, DELAYING[1])];
        topology.delaying = Some(delay_between(launcher, ends, [veth::BRIDGE; 2], blueprint)?);
        topology.namespaces.push(peers);
    }
    let namespaces = &mut topology.namespaces;
    let mut guest = |bridge: u32, prefix: &str, index: u16, address: Ipv4Addr| {
        let guest = Namespace::new(launcher)?;
        veth::connect(bridge, &format!("{prefix}{index}"), guest.pid())?;
        give_address(guest.pid(), veth::DEVICE, address)?;
        let end = End::new(guest.pid(), address, veth::DEVICE);
        namespaces.push(guest);
        Ok::<_, PartError>(end)
    };
    let indices = 0..blueprint.guests;
    let near = |index| guest(bridge.pid(), "near", index, near_address(index));
    let near: Result<Vec<End>, _> = indices.clone().map(near).collect();
    let far: Result<Vec<End>, _> = match blueprint.kind {
        TopologyKind::Wire => Ok(vec![]),
        TopologyKind::Guests
        | TopologyKind::Router
        | TopologyKind::RouterBypass
        | TopologyKind::InterHost => {
            indices.map(|index| guest(peer_bridge, "far", index, far_address(index))).collect()
        }
    };
    (topology.near, topology.far) = (near?, far?);
    if topology.far.is_empty() {
        let far = wire::from_bridge(launcher, blueprint, bridge.pid(), &mut topology)?;
        topology.far.push(far);
    }
    topology.namespaces.push(bridge);
    Ok(topology)
}

fn tap_relay(launcher: &Launcher, blueprint: &Blueprint) -> Result<Topology, PartError> {
    let ends = [Namespace::new(launcher)?, Namespace::new(launcher)?];
    let [near, far] = ends.each_ref().map(Namespace::pid);
    // A wire has its own delaying relay.
    let is_wire = blueprint.kind == TopologyKind::Wire;
    let delay = if is_wire { Duration::ZERO } else { blueprint.delay };
    let ends_of_relay = [(near, relay::DEVICE), (far, relay::DEVICE)];
    let part = blueprint.relay.unwrap_or(relay::RELAY);
    let relay = relay::start(launcher, part, ends_of_relay, delay)?;
    give_address(near, relay::DEVICE, near_address(0))?;
    let mut topology = Topology::of(vec![End::new(near, near_address(0), relay::DEVICE)], vec![]);
    topology.namespaces = Vec::from(ends);
    topology.relay = Some(relay);
    if !delay.is_zero() {
        topology.delaying = Some(Delaying { _relay: None, ends: ends_of_relay });
    }
    let far = match blueprint.kind {
        TopologyKind::Wire => wire::behind(launcher, blueprint, far, relay::DEVICE, &mut topology)?,
        TopologyKind::Guests
        | TopologyKind::Router
        | TopologyKind::RouterBypass
        | TopologyKind::InterHost => {
            give_address(far, relay::DEVICE, far_address(0))?;
            End::new(far, far_address(0), relay::DEVICE)
        }
    };
    topology.far.push(far);
    Ok(topology)
}
