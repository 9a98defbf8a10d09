//! What the kernel offers: veth pairs and a Linux bridge, with the offloads it chooses, which are
//! all.

use ringway_net::LinkSetting;

use crate::namespace::configure;
use crate::child::PartError;

/// The bridge.
pub const BRIDGE: &str = "bridge0";
/// The device in the namespace at the other end of a port.
pub const DEVICE: &str = "eth0";

/// Makes a bridge in the namespace of a process.
pub fn add_bridge(pid: u32) -> Result<(), PartError> {
    configure(pid, |net| {
        net.add_bridge(BRIDGE)?;
        net.set(BRIDGE, &[LinkSetting::Up])
    })
}

/// Connects a bridge to another namespace, where [`DEVICE`] appears, by the port `port`.
pub fn connect(bridge_pid: u32, port: &str, pid: u32) -> Result<(), PartError> {
    connect_as(bridge_pid, port, pid, DEVICE)
}

/// Connects a bridge to another namespace, where `device` appears, by the port `port`.
pub fn connect_as(
    bridge_pid: u32,
    port: &str,
    pid: u32,
    device: &str,
) -> Result<(), PartError> {
    // The name inside exists in the other namespace at most.
    let inside = format!("{port}-in");
    configure(bridge_pid, |net| {
        net.add_veth(port, &inside)?;
        net.set(&inside, &[LinkSetting::NetnsOf(pid)])?;
        net.set(port, &[LinkSetting::Master(BRIDGE)])?;
        net.set(port, &[LinkSetting::Up])
    })?;
    configure(pid, |net| net.set(&inside, &[LinkSetting::Name(device), LinkSetting::Up]))
}
