//! Open vSwitch in the place of a Linux bridge: a private one, with a database of its own, for as
//! long as it is needed.
//!
//! It forwards in the kernel where the module is loaded, else in its own process, with segmentation
//! left to the other side there, too.

use std::path::Path;

use ringway_net::LinkSetting;
use tempfile::TempDir;

use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::configure;
use ringway_rig::ovs::{self, Datapath, Place};

/// Debian's package.
pub(crate) const PACKAGE: &str = "openvswitch-switch";
const SWITCH: &str = "ovs-vswitchd";
const MODULE: &str = "/sys/module/openvswitch";
const BRIDGE: &str = "ovs0";

/// What it is made of.
pub(crate) fn programs() -> impl Iterator<Item = &'static str> {
    ovs::TOOLS.into_iter().chain([SWITCH])
}

/// One that runs.
#[derive(Debug)]
pub struct OpenVswitch {
    switch: ovs::OpenVswitch,
    _dir: TempDir,
    /// Where it forwards, for people.
    pub datapath: &'static str,
}

impl OpenVswitch {
    /// Takes the ports of a Linux bridge in the namespace of `pid` over.
    ///
    /// # Errors
    /// What stands in the way, in the words of its programs.
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

/// Frees the ports of a bridge, and gives their names.
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
