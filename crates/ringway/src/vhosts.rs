//! Vifs that no toolstack makes, of the description and added while the host runs, as the host's
//! processes take them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use ringway_control::{DeviceWanted, files};
use ringway_host::VirtioWanted;
use ringway_host_shell::{VhostVif, VifPlace};
use ringway_vhost_shell::Mode;
use ringway_xenbus::VifLimits;

use crate::description::{GuestVif, NamespaceDevice, Place, SocketMode, VHOSTS_MAX, Vhost};
use crate::host::nodes;

/// The MTU of a device in a network namespace that has none of its own: Ethernet's.
const MTU_DEFAULT: u16 = 1500;

/// Which end creates the socket of a vif.
pub(crate) fn mode(mode: SocketMode) -> Mode {
    match mode {
        SocketMode::Client => Mode::Client,
        SocketMode::Server => Mode::Server,
    }
}

/// All that a backend knows of a vif.
pub(crate) fn config(described: &Vhost) -> VhostVif {
    let (features, protocol) = described.features();
    let limits = nodes::limits(&described.vif);
    // One on a bridge takes that of the bridge.
    let mtu = if described.vif.bridge.is_some() { described.vif.mtu } else { limits.mtu };
    VhostVif {
        wanted: VirtioWanted {
            name: described.name.0.clone(),
            queues: described.queues,
            offloads: described.vif.offloads.caps(),
            bridge: described.vif.bridge.as_ref().map(|bridge| bridge.0.clone()),
            iface_id: described.iface_id.as_ref().map(|id| id.0.clone()),
            vm_uuid: described.vm_uuid.as_ref().map(|id| id.0.clone()),
            bind: described.bind,
            features,
            protocol,
            mac: described.mac.map(|mac| mac.0),
            rules: described.vif.rules(),
            limits: VifLimits { mtu, ..limits },
            others: others(described),
        },
        place: match &described.place {
            Place::Socket { socket, mode: made_by } => {
                VifPlace::Socket { path: PathBuf::from(&socket.0), mode: mode(*made_by) }
            }
            Place::Namespace(NamespaceDevice { netns, device, .. }) => {
                VifPlace::Namespace { path: netns.path(), device: device.0.clone() }
            }
        },
        max_memory: described.max_memory.map(|max| max.bytes),
    }
}

/// Keys of which the host only knows whether they are the same as before.
fn others(described: &Vhost) -> Vec<(&'static str, String)> {
    let mut others = vec![
        ("max-memory", format!("{:?}", described.max_memory)),
        ("tenant", format!("{:?}", described.vif.tenant)),
    ];
    match &described.place {
        Place::Socket { socket, mode } => {
            others.extend([("socket", socket.to_string()), ("mode", mode.to_string())]);
        }
        Place::Namespace(NamespaceDevice { netns, device, addresses }) => others.extend([
            ("netns", netns.to_string()),
            ("device", device.to_string()),
            ("addresses", format!("{addresses:?}")),
        ]),
    }
    others
}

/// The device of a vif in its network namespace.
pub(crate) fn device(described: &Vhost, place: &NamespaceDevice) -> DeviceWanted {
    DeviceWanted {
        netns: place.netns.path(),
        name: place.device.0.clone(),
        mac: described.mac.map(|mac| mac.0.0),
        mtu: described.vif.mtu.unwrap_or(MTU_DEFAULT),
        addresses: place.addresses.iter().map(|it| (it.address, it.prefix_len)).collect(),
        queues: described.queues,
    }
}

/// Whether two vifs cannot be served at a time, because they have one name or one place.
pub(crate) fn is_same(one: &Vhost, other: &Vhost) -> bool {
    one.name == other.name || one.place.is_same(&other.place)
}

/// Those of a tenant that has a process of its own.
pub(crate) fn of_tenant(vhosts: &[Vhost], tenant: &str) -> Vec<Vhost> {
    let is_its = |vhost: &&Vhost| vhost.tenant().is_some_and(|name| name.0 == tenant);
    vhosts.iter().filter(is_its).cloned().collect()
}

/// Those of a description that is read again as they are in force, after `before`: a vif stays
/// where it is, and with its tenant, for as long as it is served.
pub(crate) fn in_force(before: &[Vhost], described: Vec<Vhost>) -> Vec<Vhost> {
    let in_force = |vhost: Vhost| match before.iter().find(|it| it.name == vhost.name) {
        None => vhost,
        Some(before) => {
            let vif = GuestVif { tenant: before.vif.tenant.clone(), ..vhost.vif };
            Vhost { place: before.place.clone(), vif, ..vhost }
        }
    };
    described.into_iter().map(in_force).collect()
}

/// Why the vifs of a description that is read again, after `before`, cannot be served beside those
/// that were added, if so.
pub(crate) fn refuse_described(
    before: &[Vhost],
    next: &[Vhost],
    added: &BTreeMap<String, Vhost>,
) -> Option<String> {
    let (described, count) = (next.len(), added.len());
    if described + count > usize::from(VHOSTS_MAX) {
        return Some(format!(
            "{described} virtio vifs are described and {count} were added while the host ran: \
             {VHOSTS_MAX} is the limit of both together"
        ));
    }
    let is_in = |all: &[Vhost], vhost: &Vhost| all.iter().any(|it| it.name == vhost.name);
    let stay = before.iter().filter(|vhost| is_in(next, vhost)).chain(added.values());
    let stay: Vec<&Vhost> = stay.collect();
    next.iter().filter(|vhost| !is_in(before, vhost)).find_map(|vhost| {
        let other = stay.iter().find(|it| is_same(it, vhost))?;
        let place = match vhost.place {
            Place::Socket { .. } => "socket",
            Place::Namespace(_) => "device",
        };
        Some(format!(
            "{} has the name or the {place} of {}, which stays as it was: choose another, or \
             remove that vif first",
            vhost.name, other.name
        ))
    })
}

/// Those that an earlier process has saved, which were added while the host ran.
pub(crate) fn read_added(file: &Path) -> Vec<Vhost> {
    let read = || -> Result<Vec<Vhost>> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    if !file.exists() {
        return Vec::new();
    }
    read().unwrap_or_else(|error| {
        tracing::warn!("{}: {error:#}", file.display());
        Vec::new()
    })
}

/// Saves those that were added, for processes that are started again.
///
/// # Errors
/// The reason why they are lost then, as text.
pub(crate) fn save_added<'a>(
    file: &Path,
    added: impl Iterator<Item = &'a Vhost>,
) -> Result<(), String> {
    let vhosts: Vec<&Vhost> = added.collect();
    let text = serde_json::to_vec_pretty(&vhosts).map_err(|error| error.to_string())?;
    files::replace(file, &text)
        .map_err(|error| format!("done, but lost when the backend restarts: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ringway_host::KEYS;
    use ringway_xenbus::{LIMITS, Limit};

    use crate::description::parse_vhost;

    #[test]
    fn of_each_key_it_is_known_whether_it_changes_while_the_vif_is_served() {
        let known = |section: &str| {
            let error = parse_vhost(&format!("[[{section}]]\nunknown = 1\n"));
            let error = error.expect_err("it is unknown").to_string();
            let (_, known) = error.split_once("expected one of ").expect("all keys");
            known.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<String>>()
        };
        let known: BTreeSet<String> = known("vhost").union(&known("namespace")).cloned().collect();
        let of_vif = KEYS.iter().map(|key| key.name).chain(LIMITS.iter().map(Limit::name));
        assert_eq!(known, of_vif.chain(["name"]).map(str::to_owned).collect());
    }
}
