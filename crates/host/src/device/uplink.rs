//! The uplink: a port of the switch, by which the host reaches guests.

use std::io;

use ringway_datapath::{MulticastRouter, VlanRules};
use ringway_switch::StormLimits;

use super::kernel::Kernel;
use super::port_device::PortDevice;
use super::purpose::{Purpose, is_tap};
use super::{in_use, wait_for_name};

/// The uplink of a host.
#[derive(Debug, Clone)]
pub struct Uplink {
    /// Its device.
    pub device: PortDevice,
    /// What may change while it serves.
    pub rules: UplinkRules,
}

/// What goes through an uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkRules {
    /// The VLANs that it is in.
    pub vlan: VlanRules,
    /// Whether multicast routers are behind it.
    pub multicast_router: MulticastRouter,
    /// Limits of each kind of flood that enters by it, per second.
    pub storm: StormLimits,
}

impl UplinkRules {
    /// Those of an uplink that is in these VLANs and behind which all routers are. What is there
    /// has its own limits.
    pub fn without_limits(vlan: VlanRules) -> UplinkRules {
        let (multicast_router, storm) = (MulticastRouter::Always, StormLimits::NONE);
        UplinkRules { vlan, multicast_router, storm }
    }
}

/// Why the uplink of a host cannot have this name, if so: another interface has it. `owner` is that
/// of the host's devices.
///
/// # Errors
/// What the kernel reports.
pub fn uplink_obstacle(
    net: &mut impl Kernel,
    name: &str,
    owner: &str,
) -> io::Result<Option<String>> {
    match net.link(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(link) if Purpose::Uplink.is_of(&link, owner) => Ok(None),
        // It may go with a process that ends at this moment.
        Ok(link) if is_tap(&link) => match wait_for_name(net, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(Some(error.to_string()))
            }
            outcome => outcome.map(|()| None),
        },
        Ok(_) => Ok(Some(in_use(name).to_string())),
    }
}
