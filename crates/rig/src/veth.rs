//! The kernel's means to connect namespaces: veth pairs and a bridge. Offloads keep the kernel's
//! default, which is all of them.

use ringway_net::LinkSetting;

use crate::child::PartError;
use crate::namespace::configure;

/// The name of the bridge.
pub const BRIDGE: &str = "bridge0";
/// The device in the namespace at the other end of a port.
pub const DEVICE: &str = "eth0";

/// Makes [`BRIDGE`] in the namespace of a process.
///
/// # Errors
/// If there is one already, or the kernel has no bridges.
pub fn add_bridge(pid: u32) -> Result<(), PartError> {
    configure(pid, |net| {
        net.add_bridge(BRIDGE)?;
        net.set(BRIDGE, &[LinkSetting::Up])
    })
}

/// Connects the bridge in the namespace of `bridge_pid` to the namespace of `pid`, where [`DEVICE`]
/// appears. The bridge's port is named `port`.
///
/// # Errors
/// If there is no bridge, or a device of one of the names already.
pub fn connect(bridge_pid: u32, port: &str, pid: u32) -> Result<(), PartError> {
    connect_as(bridge_pid, port, pid, DEVICE)
}

/// Connects the bridge in the namespace of `bridge_pid` to the namespace of `pid`, where `device`
/// appears. The bridge's port is named `port`.
///
/// # Errors
/// As [`connect`].
pub fn connect_as(bridge_pid: u32, port: &str, pid: u32, device: &str) -> Result<(), PartError> {
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
