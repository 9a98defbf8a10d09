//! Network devices of a host, which outlive its processes.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, bail};
use ringway_control::RunDir;
use ringway_host::{
    Joining, Kernel as _, LinkKind, Purpose, check_bridge, delete_devices, uplink_obstacle,
};
use ringway_host_shell::{HostKernel, delete_in_namespaces};
use ringway_ovs::OpenVswitch;

use super::claim::{forget_vifs, remove_device_notes};
use crate::description::{BridgeName, Guest, Host, HostNetwork};
use crate::vsctl::{has_vsctl, vsctl, wait_for_lock};

/// How the devices of a host are marked: by its run directory. A host with another one may serve
/// another XenStore, where the same names mean other vifs.
pub(crate) fn owner(dir: &Path) -> String {
    dir.display().to_string()
}

/// Checks that the uplink can have its name, before anything is started: a backend that cannot make
/// it would be started again and again.
///
/// # Errors
/// The reason, with the remedy.
pub(crate) fn check_uplink(host: &Host, dir: &Path) -> Result<()> {
    let Some(uplink) = &host.uplink else { return Ok(()) };
    match uplink_obstacle(&mut HostKernel::open()?, &uplink.name.0, &owner(dir))? {
        Some(reason) => bail!("[uplink] name: {reason}"),
        None => Ok(()),
    }
}

/// Checks that guests' vifs can be on bridges that the host does not make itself: a guest whose vif
/// cannot would never connect, and the host never be ready.
///
/// # Errors
/// The reason, with the remedy.
pub(crate) fn check_bridges(host: &Host, network: HostNetwork) -> Result<()> {
    let joining = match (host.is_isolated, has_vsctl()) {
        (true, _) => Joining::Isolated,
        (false, true) => Joining::Possible,
        (false, false) => Joining::WithoutVsctl,
    };
    for (guest, bridge) in bridges_of_others(host) {
        let checked = check_bridge(&mut HostKernel::open()?, &bridge.0, joining);
        let Err(error) = checked else { continue };
        let reason = match (error.kind(), network) {
            (ErrorKind::NotFound, HostNetwork::Private) => {
                "not started by root, the host has a network namespace of its own, and there only \
                 the bridges that a [[bridge]] describes"
                    .to_owned()
            }
            _ => error.to_string(),
        };
        bail!("[[guest]] {}: bridge {bridge}: {reason}", guest.name);
    }
    Ok(())
}

/// The bridges of guests' vifs that the host does not make itself.
fn bridges_of_others(host: &Host) -> impl Iterator<Item = (&Guest, &BridgeName)> {
    let vifs = host.guests.iter().flat_map(|guest| guest.vifs.iter().map(move |vif| (guest, vif)));
    let bridges = vifs.filter_map(|(guest, vif)| Some((guest, vif.bridge.as_ref()?)));
    bridges.filter(move |(_, bridge)| host.bridges.iter().all(|made| made.name.0 != bridge.0))
}

fn is_of_linux(bridge: &BridgeName) -> bool {
    let link = HostKernel::open().and_then(|mut net| net.link(&bridge.0));
    link.is_ok_and(|link| link.kind == LinkKind::Bridge)
}

/// Deletes all devices of the hosts with this run directory, and the notes about them.
pub(crate) fn remove_all(dir: &RunDir) -> Result<()> {
    let owner = owner(dir.path());
    delete_devices(&mut HostKernel::open()?, &owner, |_, _| false);
    delete_in_namespaces(dir, &owner);
    remove_device_notes(dir);
    Ok(())
}

/// Which devices end with an emulated host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Those of Xen's vifs: their domains are this host's.
    OfGuests,
    /// All: the host has no description that a next one would have, too.
    All,
}

/// The devices of an emulated host, and what is noted of vifs whose domains are its own. Dropping
/// it deletes those that end with the host.
pub(crate) struct HostDevices {
    dir: RunDir,
    ending: Ending,
    /// Whether its guests may have ports of Open vSwitch.
    may_have_ports: bool,
}

impl HostDevices {
    /// Deletes what a killed host left. Its ports are removed by the first process that serves.
    pub(crate) fn take(host: &Host, dir: &Path, ending: Ending) -> HostDevices {
        let may_have_ports =
            has_vsctl() && bridges_of_others(host).any(|(_, bridge)| !is_of_linux(bridge));
        let devices = HostDevices { dir: RunDir::new(dir), ending, may_have_ports };
        devices.delete(Ending::OfGuests);
        devices
    }

    fn delete(&self, ending: Ending) {
        let is_kept =
            |purpose: &Purpose| ending == Ending::OfGuests && !matches!(purpose, Purpose::Xen(_));
        match HostKernel::open() {
            Ok(mut net) => {
                delete_devices(&mut net, &owner(self.dir.path()), |purpose, _| is_kept(purpose));
            }
            Err(error) => tracing::warn!("cannot remove network devices: {error}"),
        }
        // The vifs of Xen are gone with their guests.
        forget_vifs(&self.dir);
    }

    /// Removes ports of guests' vifs: the process that served these has ended, perhaps before all
    /// was done.
    fn remove_ports(&self) -> Result<(), String> {
        let lock = match wait_for_lock(&self.dir.plugging()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            lock => lock.map_err(|error| error.to_string())?,
        };
        let run = |arguments: &[String]| vsctl(arguments, &lock);
        let switch = OpenVswitch { owner: owner(self.dir.path()), run };
        let is_of_guest = |vif: &&String| matches!(Purpose::parse(vif), Some(Purpose::Xen(_)));
        switch.vifs()?.iter().filter(is_of_guest).try_for_each(|vif| switch.leave(vif))
    }
}

impl Drop for HostDevices {
    fn drop(&mut self) {
        if self.may_have_ports {
            if let Err(reason) = self.remove_ports() {
                tracing::warn!("ports of guests stay on Open vSwitch: {reason}");
            }
        }
        self.delete(self.ending);
    }
}
