//! Open vSwitch in place of a Linux bridge: a private instance with its own database, for as long
//! as it is needed.
//!
//! It forwards in the kernel if the module is loaded, else in its own process. Segmentation offload
//! works in both.

use std::path::Path;

use ringway_net::LinkSetting;
use tempfile::TempDir;

use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::configure;
use ringway_rig::ovs::{self, Datapath, Place};

/// Its package in Debian.
pub(crate) const PACKAGE: &str = "openvswitch-switch";
const SWITCH: &str = "ovs-vswitchd";
const MODULE: &str = "/sys/module/openvswitch";
/// Its bridge, which is also the device of the namespace's own TCP/IP stack on it.
pub(crate) const BRIDGE: &str = "ovs0";

/// Its programs.
pub(crate) fn programs() -> impl Iterator<Item = &'static str> {
    ovs::TOOLS.into_iter().chain([SWITCH])
}

/// A running instance.
#[derive(Debug)]
pub struct OpenVswitch {
    switch: ovs::OpenVswitch,
    _dir: TempDir,
    /// Where it forwards, for people.
    pub datapath: &'static str,
}

impl OpenVswitch {
    /// Takes over the ports of a Linux bridge in the namespace of `pid`.
    ///
    /// # Errors
    /// Why not, in the words of its programs.
    pub fn in_place_of(
        launcher: &Launcher,
        pid: u32,
        bridge: &str,
    ) -> Result<OpenVswitch, PartError> {
        let dir = launcher.dir()?;
        let place = Place { launcher, pid, dir: dir.path() };
        let (datapath, name) = match Path::new(MODULE).exists() {
            true => (Datapath::Kernel, "in the kernel"),
            false => (Datapath::Process, "in its own process"),
        };
        let settings = ["other_config:userspace-tso-enable=true"];
        let switch = place.start(SWITCH.as_ref(), datapath, &settings, BRIDGE)?;
        for port in take_ports(pid, bridge)? {
            place.set(&["add-port", BRIDGE, &port], &[])?;
        }
        Ok(OpenVswitch { switch, _dir: dir, datapath: name })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.switch.pid()
    }
}

/// Detaches the ports of a bridge, and returns their names.
fn take_ports(pid: u32, bridge: &str) -> Result<Vec<String>, PartError> {
    configure(pid, |net| {
        let index = net.link(bridge)?.index;
        let links = net.links()?.into_iter().filter(|link| link.master == Some(index));
        let names: Vec<String> = links.map(|link| link.name).collect();
        for name in &names {
            net.set(name, &[LinkSetting::NoMaster])?;
        }
        Ok(names)
    })
}
