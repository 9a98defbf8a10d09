//! A vif's network device on the host: a TAP device, named as the kernel's backend names its own.
//!
//! Where the toolstack has a hotplug script, the device is the script's to place, and outlives this
//! process: a restarted backend finds it by its note (`ifalias`) and takes it over, with the bridge
//! it is on. Without a script we put it on its bridge, and it goes with the process.

use std::io;

use ringway_datapath::{Completion, MacAddr, OffloadCaps};
use ringway_net::{Link, LinkSetting, Netlink};
use ringway_tap::{Lifetime, Tap};
use ringway_xenbus::{Hotplug, Keys, Vif};

/// The longest frame that netif can describe (`XEN_NETIF_MAX_TX_SIZE`).
pub(crate) const GSO_MAX: LinkSetting<'static> = LinkSetting::GsoMaxSize(65535);
/// Addresses of the host's end: the largest that is no group's, so that no bridge chooses it for
/// its own. A guest with the same one would not hear its answers.
pub(crate) const HOST_ADDRESS: MacAddr = MacAddr([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);

/// A vif's network device.
pub(crate) struct VifDevice {
    pub(crate) tap: Tap,
    /// Queues that the device was made with: no more can be in use.
    pub(crate) queues_made: u16,
    /// What people see it as attached to.
    pub(crate) attached_to: String,
}

/// The name that people and scripts know a vif by.
pub(crate) fn vif_name(vif: Vif) -> String {
    format!("vif{}.{}", vif.frontend, vif.handle)
}

impl VifDevice {
    /// Makes the device that the toolstack wants, if it wants one. `owner` tells the devices of
    /// this backend from those of others, and stays the same when it is started again.
    pub(crate) fn make(
        net: &mut Netlink,
        vif: Vif,
        keys: &Keys,
        queues: u16,
        owner: &str,
        completion: Completion,
    ) -> io::Result<Option<VifDevice>> {
        let name = keys.device_name().map_err(io::Error::other)?;
        let name = name.map_or_else(|| vif_name(vif), str::to_owned);
        let mtu = keys.mtu_wanted().map_err(io::Error::other)?;
        let mtu = mtu.map(|mtu| LinkSetting::Mtu(mtu.into()));
        let tap = match (keys.script(), keys.bridge()) {
            (Some(_), _) => {
                let (tap, origin) = lasting(net, &name, &note(owner, vif), queues, mtu)?;
                if origin == Origin::New && Hotplug::read(keys) == Hotplug::Connected {
                    // The toolstack does not run it twice, and nobody else knows what it did.
                    tracing::warn!(name, "a new network device, for which no script is run");
                }
                tap
            }
            (None, Some(bridge)) => {
                bridged(net, &vif_name(vif), bridge, (queues, completion), mtu)?
            }
            (None, None) => return Ok(None),
        };
        tap.set_offloads(OffloadCaps::ALL)?;
        let attached_to = keys.bridge().map_or_else(|| tap.name().to_owned(), str::to_owned);
        Ok(Some(VifDevice { tap, queues_made: queues, attached_to }))
    }

    /// Lets the device go with its last queue, which is now unless workers have some.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.tap.set_lifetime(Lifetime::LastFile)
    }
}

/// A device that waits for a script: not up, on no bridge. One that an earlier process of ours has
/// left is taken as it is.
fn lasting(
    net: &mut Netlink,
    name: &str,
    note: &str,
    queues: u16,
    mtu: Option<LinkSetting<'_>>,
) -> io::Result<(Tap, Origin)> {
    let found = match net.link(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => Some(found?),
    };
    if found.as_ref().is_some_and(|link| !is_ours(link, note)) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!(
                "the name of network interface {name} is taken by one that is not this vif's \
                 (it has no note, ifalias, that says \"{note}\")"
            ),
        ));
    }
    let tap = Tap::create_multi_queue(name, queues)?;
    let address = found.is_none().then_some(LinkSetting::Address(HOST_ADDRESS.0));
    // The note comes before the device is made to last, so that none lasts without one.
    let settings = [LinkSetting::Alias(note), GSO_MAX].into_iter().chain(address).chain(mtu);
    net.set(name, &settings.collect::<Vec<_>>())?;
    tap.set_lifetime(Lifetime::Persistent)?;
    Ok((tap, if found.is_some() { Origin::TakenOver } else { Origin::New }))
}

/// Where a device is from.
#[derive(PartialEq, Eq)]
enum Origin {
    New,
    TakenOver,
}

/// A device on a bridge, as long as this process is there.
fn bridged(
    net: &mut Netlink,
    name: &str,
    bridge: &str,
    (queues, completion): (u16, Completion),
    mtu: Option<LinkSetting<'_>>,
) -> io::Result<Tap> {
    let tap = match completion {
        Completion::Copied => Tap::create(name, queues)?,
        Completion::Sent => Tap::create_multi_queue(name, queues)?,
    };
    let settings = [GSO_MAX, LinkSetting::Address(HOST_ADDRESS.0), LinkSetting::Master(bridge)];
    let settings = settings.into_iter().chain(mtu).chain([LinkSetting::Up]);
    net.set(tap.name(), &settings.collect::<Vec<_>>())?;
    Ok(tap)
}

/// Deletes the devices that an earlier process of this owner has left for vifs that are no longer
/// there, and tells their names. `is_kept` is asked of the others.
pub(crate) fn delete_stale(
    net: &mut Netlink,
    owner: &str,
    is_kept: impl Fn(Vif, &str) -> bool,
) -> io::Result<Vec<String>> {
    let mut deleted = Vec::new();
    for link in net.links()? {
        let note_of = |link: &Link| noted(owner, link.alias.as_deref()?);
        let Some(vif) = note_of(&link).filter(|_| is_tap(&link)) else { continue };
        if !is_kept(vif, &link.name) {
            net.delete(&link.name)?;
            deleted.push(link.name);
        }
    }
    Ok(deleted)
}

fn is_tap(link: &Link) -> bool {
    link.kind.as_deref() == Some("tun")
}

fn is_ours(link: &Link, note: &str) -> bool {
    is_tap(link) && link.alias.as_deref() == Some(note)
}

/// What we note on a device that lasts: whose it is, and for which vif.
fn note(owner: &str, vif: Vif) -> String {
    format!("ringway {owner} {}", vif.backend_dir())
}

/// The vif of a note of this owner.
fn noted(owner: &str, note: &str) -> Option<Vif> {
    let dir = note.strip_prefix("ringway ")?.strip_prefix(owner)?.strip_prefix(' ')?;
    Vif::from_backend_path(dir).filter(|vif| vif.backend_dir() == dir)
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;

    #[test]
    fn a_note_is_read_by_its_owner_alone() {
        let vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 1 };
        let text = note("/run/ringway/a b", vif);
        assert_eq!(noted("/run/ringway/a b", &text), Some(vif));
        for (owner, text) in [
            ("/run/ringway/a", text.as_str()),
            ("/run/ringway/b", &text),
            ("/run/ringway/a b", "ringway /run/ringway/a b"),
            ("/run/ringway/a b", "ringway /run/ringway/a b /local/domain/0/backend/vif/7"),
            ("/run/ringway/a b", &format!("{text}/state")),
            ("/run/ringway/a b", ""),
        ] {
            assert_eq!(noted(owner, text), None, "{owner} {text}");
        }
        // The kernel keeps 255 bytes, and a run directory fits the address of a socket.
        assert!(note(&"x".repeat(108), vif).len() <= 255);
    }
}
