//! The wire, and the other host at its end.
//!
//! Without a rate or a delay, the namespace with the device is the other host. With a rate, the
//! device is a port of a bridge, and a veth pair to another namespace is shaped in both directions,
//! so that the queue in front of the wire is downstream of everything that is measured. With a
//! delay, a relay takes the place of the pair.

use std::time::Duration;

use ringway_net::LinkSetting;

use super::{Blueprint, Delaying, End, Topology, far_address, give_address, relay};
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, configure};
use ringway_rig::veth;

const PATIENCE: Duration = Duration::from_secs(60);
/// The bridge's port to the wire.
pub(super) const PORT: &str = "line0";
/// Bytes that a line may send in one burst: more than the largest GSO frame.
const BURST_MIN: u64 = 256 << 10;

/// The other host, behind a device in the namespace of `pid`.
pub(crate) fn behind(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    device: &str,
    topology: &mut Topology,
) -> Result<End, PartError> {
    if blueprint.line_bps.is_none() && blueprint.delay.is_zero() {
        give_address(pid, device, far_address(0))?;
        return Ok(End::new(pid, far_address(0), device));
    }
    veth::add_bridge(pid)?;
    configure(pid, |net| net.set(device, &[LinkSetting::Master(veth::BRIDGE), LinkSetting::Up]))?;
    from_bridge(launcher, blueprint, pid, topology)
}

/// The other host, behind a port of the bridge in the namespace of `pid`.
pub(crate) fn from_bridge(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    topology: &mut Topology,
) -> Result<End, PartError> {
    let other = Namespace::new(launcher)?;
    if blueprint.delay.is_zero() {
        veth::connect(pid, PORT, other.pid())?;
    } else {
        let ends = [(pid, PORT), (other.pid(), veth::DEVICE)];
        let relay = relay::start(launcher, relay::RELAY, ends, blueprint.delay)?;
        configure(pid, |net| net.set(PORT, &[LinkSetting::Master(veth::BRIDGE)]))?;
        topology.delaying = Some(Delaying { _relay: Some(relay), ends });
    }
    give_address(other.pid(), veth::DEVICE, far_address(0))?;
    if let Some(bps) = blueprint.line_bps {
        shape(launcher, pid, PORT, bps)?;
        shape(launcher, other.pid(), veth::DEVICE, bps)?;
    }
    let end = End::new(other.pid(), far_address(0), veth::DEVICE);
    topology.namespaces.push(other);
    Ok(end)
}

/// A bridge at the other end of a line, for many hosts; without a rate it is the bridge in the
/// namespace of `pid` itself. Returns its namespace.
pub(crate) fn to_bridge(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    namespaces: &mut Vec<Namespace>,
) -> Result<u32, PartError> {
    let Some(bps) = blueprint.line_bps else { return Ok(pid) };
    let other = Namespace::new(launcher)?;
    veth::add_bridge(other.pid())?;
    veth::connect_as(pid, PORT, other.pid(), PORT)?;
    configure(other.pid(), |net| net.set(PORT, &[LinkSetting::Master(veth::BRIDGE)]))?;
    shape(launcher, pid, PORT, bps)?;
    shape(launcher, other.pid(), PORT, bps)?;
    let other_pid = other.pid();
    namespaces.push(other);
    Ok(other_pid)
}

/// Limits the rate at which a device sends.
fn shape(launcher: &Launcher, pid: u32, device: &str, bps: u64) -> Result<(), PartError> {
    // Two milliseconds at this rate, because a timer may be late.
    let burst = (bps / 8 / 500).max(BURST_MIN);
    let mut command = launcher.command_in(pid, "tc");
    command.args(["qdisc", "replace", "dev", device, "root", "tbf"]);
    command.args(["rate", &format!("{bps}bit"), "burst", &burst.to_string(), "latency", "10ms"]);
    launcher.start("tc", command)?.output(PATIENCE).map(drop)
}

/// Checks that this kernel and `tc` can shape, in a namespace where that disturbs nothing.
pub(crate) fn try_shaping(launcher: &Launcher, bps: u64) -> Result<(), PartError> {
    let place = Namespace::new(launcher)?;
    shape(launcher, place.pid(), "lo", bps)
}
