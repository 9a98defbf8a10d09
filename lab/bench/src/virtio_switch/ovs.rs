//! Open vSwitch with DPDK, without a card, in a network namespace of its own.
//!
//! A pool of the usual size does not fit, so each port has a pool.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ringway_rig::launcher::{self, Launcher};
use ringway_rig::namespace::Namespace;
use ringway_rig::ovs::{Datapath, OpenVswitch, Place, TOOLS};

use super::SwitchWork;
use crate::pages::Pages;

/// Debian's package installs it outside `PATH`.
const SWITCHES: [&str; 2] =
    ["ovs-vswitchd-dpdk", "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"];
const PACKAGES: &str = "openvswitch-switch openvswitch-switch-dpdk librte-net-vhost23";
const BRIDGE: &str = "br0";

/// Its programs.
pub(super) struct Programs {
    switch: PathBuf,
}

impl Programs {
    /// Finds them, or names what is missing.
    pub(super) fn find() -> Result<Programs, String> {
        let missing = || format!("apt-get install {PACKAGES}");
        if TOOLS.iter().any(|name| launcher::find(name).is_none()) {
            return Err(missing());
        }
        let switch = SWITCHES.into_iter().find_map(launcher::find).ok_or_else(missing)?;
        Ok(Programs { switch })
    }
}

/// A running switch. It ends with this value, before its namespace.
pub(super) struct Switch {
    _switch: OpenVswitch,
    namespace: Namespace,
    launcher: Launcher,
    dir: PathBuf,
}

impl Switch {
    /// Starts it with two ports that connect to sockets in a directory, and one polling core.
    pub(super) fn start(
        programs: &Programs,
        dir: &Path,
        sockets: [&str; 2],
        cpu: usize,
        pages: Pages,
    ) -> Result<Switch> {
        let launcher = crate::child::launcher()?;
        let namespace = Namespace::new(&launcher)?;
        let place = Place { launcher: &launcher, pid: namespace.pid(), dir };
        let mask = format!("0x{:x}", 1_u64 << cpu);
        let settings = [
            "other_config:dpdk-init=true",
            &format!("other_config:dpdk-extra=\"{} --no-pci\"", pages.arguments_in_memory(3072)),
            "other_config:per-port-memory=true",
            &format!("other_config:pmd-cpu-mask={mask}"),
            &format!("other_config:dpdk-lcore-mask={mask}"),
        ];
        let switch = place.start(&programs.switch, Datapath::Process, &settings, BRIDGE)?;
        for (number, socket) in sockets.into_iter().enumerate() {
            let port = format!("vm{number}");
            let path = format!("options:vhost-server-path={}", place.file(socket));
            let words = ["add-port", BRIDGE, &port, "--", "set", "interface", &port];
            place.set(&words, &["type=dpdkvhostuserclient", &path])?;
        }
        Ok(Switch { _switch: switch, namespace, launcher, dir: dir.to_owned() })
    }

    /// What its polling core has done, in cycles.
    pub(super) fn work(&self) -> Result<SwitchWork> {
        let Switch { launcher, dir, namespace, .. } = self;
        let place = Place { launcher, pid: namespace.pid(), dir };
        let shown = place.ask(&["dpif-netdev/pmd-stats-show"])?;
        let cycles = |of: &str| -> Option<f64> {
            let (_, rest) = shown.split_once(&format!("\n  {of} cycles: "))?;
            rest.split_whitespace().next()?.parse().ok()
        };
        let both = cycles("processing").zip(cycles("idle"));
        let (busy, idle) = both.with_context(|| format!("no cycles in {shown:?}"))?;
        Ok(SwitchWork { busy, all: busy + idle })
    }
}
