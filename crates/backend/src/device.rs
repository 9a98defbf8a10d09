//! A vif's network device on the host: a TAP device, named like those of the kernel's backend.
//!
//! If the toolstack has a hotplug script, the script places the device, which outlives this
//! process: a restarted backend finds it by its note (`ifalias`) and takes it over, with its bridge
//! and its current name, because a stock script renames it if the toolstack asks for it
//! (`vifname`). Without a script, we put it on its bridge, and it is deleted with the process.

use std::io;
use std::thread;
use std::time::Duration;

use ringway_datapath::{Completion, MacAddr, OffloadCaps};
use ringway_net::{Link, LinkSetting, Netlink};
use ringway_tap::{Lifetime, Tap};
use ringway_xenbus::{Hotplug, Keys, Vif};

/// The longest frame that netif can describe (`XEN_NETIF_MAX_TX_SIZE`).
pub(crate) const GSO_MAX: LinkSetting<'static> = LinkSetting::GsoMaxSize(65535);
/// Address of the host's end: the largest that is not a group's, so that no bridge chooses it for
/// its own. A guest with the same one would not receive its replies.
pub(crate) const HOST_ADDRESS: MacAddr = MacAddr([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);

/// How often to check whether the name of a new device is free, and the pause after each: the
/// device of a killed process may exist for another moment.
const NAME_CHECKS: u32 = 20;
const NAME_CHECK_PAUSE: Duration = Duration::from_millis(10);
/// How often a device may be renamed while it is looked up and opened.
const RENAMES_MAX: usize = 4;

/// A vif's network device.
pub(crate) struct VifDevice {
    pub(crate) tap: Tap,
    /// The kernel's number for it. Its name may change.
    pub(crate) index: u32,
    /// Queues that the device was created with: no more can be in use.
    pub(crate) queues_made: u16,
    /// What the device is attached to, for display.
    pub(crate) attached_to: String,
}

/// The name by which people and scripts know a vif.
pub(crate) fn vif_name(vif: Vif) -> String {
    format!("vif{}.{}", vif.frontend, vif.handle)
}

impl VifDevice {
    /// Makes the device that the toolstack wants, if it wants one. `owner` distinguishes the
    /// devices of this backend from those of others, and stays the same across restarts.
    pub(crate) fn make(
        net: &mut Netlink,
        vif: Vif,
        keys: &Keys,
        queues: u16,
        owner: &str,
        completion: Completion,
    ) -> io::Result<Option<VifDevice>> {
        let renamed = keys.device_name().map_err(io::Error::other)?;
        let mtu = keys.mtu_configured().map_err(io::Error::other)?;
        let mtu = mtu.map(|mtu| LinkSetting::Mtu(mtu.into()));
        let (tap, index) = match (keys.script(), keys.bridge()) {
            (Some(_), _) => {
                let (name, hotplug) = (vif_name(vif), Hotplug::read(keys));
                let wanted = Wanted { name, renamed, hotplug };
                let note = note(owner, vif);
                let (tap, index, origin) = open_persistent(net, &wanted, &note, queues, mtu)?;
                if origin == Origin::New && wanted.hotplug == Hotplug::Connected {
                    // The toolstack does not run it twice, and only the script knows what it did.
                    tracing::warn!(
                        name = wanted.name,
                        "this is a new network device, and no hotplug script runs for it: no \
                         interface has the ifalias {note:?}"
                    );
                }
                (tap, index)
            }
            (None, Some(bridge)) => {
                let tap = bridged(net, &vif_name(vif), bridge, (queues, completion), mtu)?;
                let index = net.link(tap.name())?.index;
                (tap, index)
            }
            (None, None) => return Ok(None),
        };
        tap.set_offloads(OffloadCaps::ALL)?;
        let attached_to = keys.bridge().or(renamed).unwrap_or(tap.name()).to_owned();
        Ok(Some(VifDevice { tap, index, queues_made: queues, attached_to }))
    }

    /// Makes the device of a virtio vif, which is deleted with this process.
    pub(crate) fn make_bridged(
        net: &mut Netlink,
        name: &str,
        bridge: &str,
        queues: u16,
        mtu: Option<u16>,
    ) -> io::Result<VifDevice> {
        let explain = |error: io::Error| {
            let what = format!("network device {name} on bridge {bridge}: {error}");
            io::Error::new(error.kind(), what)
        };
        let mtu = mtu.map(|mtu| LinkSetting::Mtu(mtu.into()));
        check_names(net, name, bridge).map_err(explain)?;
        let made = bridged(net, name, bridge, (queues, Completion::Copied), mtu);
        let tap = made.map_err(explain)?;
        tap.set_offloads(OffloadCaps::ALL)?;
        let index = net.link(tap.name())?.index;
        Ok(VifDevice { tap, index, queues_made: queues, attached_to: bridge.to_owned() })
    }

    /// Lets the device be deleted with its last queue: now, unless workers still have some.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.tap.set_lifetime(Lifetime::LastFile)
    }
}

/// A device that waits for a script: down, and on no bridge. A device left by an earlier process of
/// ours is taken as it is, whatever its current name.
fn open_persistent(
    net: &mut Netlink,
    wanted: &Wanted<'_>,
    note: &str,
    queues: u16,
    mtu: Option<LinkSetting<'_>>,
) -> io::Result<(Tap, u32, Origin)> {
    for _ in 0..RENAMES_MAX {
        let Some(found) = wanted.find(net, note)? else { break };
        let tap = Tap::create_multi_queue(&found.name, queues)?;
        // If the device was renamed meanwhile, opening the old name would make a new device.
        if net.link(&found.name).is_ok_and(|link| link.index == found.index) {
            let settings: Vec<_> = [GSO_MAX].into_iter().chain(mtu).collect();
            net.set(&found.name, &settings)?;
            return Ok((tap, found.index, Origin::TakenOver));
        }
    }
    let name = &wanted.name;
    let tap = Tap::create_multi_queue(name, queues)?;
    // Write the note before the device becomes persistent: none may persist without one.
    let settings = [LinkSetting::Alias(note), GSO_MAX, LinkSetting::Address(HOST_ADDRESS.0)];
    net.set(name, &settings.into_iter().chain(mtu).collect::<Vec<_>>())?;
    tap.set_lifetime(Lifetime::Persistent)?;
    let index = net.link(name)?.index;
    Ok((tap, index, Origin::New))
}

/// The device of a vif with a script.
struct Wanted<'a> {
    /// The name that the script expects.
    name: String,
    /// The name that it then gives the device, if the toolstack wants one (`vifname`).
    renamed: Option<&'a str>,
    /// The state that the script has reported.
    hotplug: Hotplug,
}

impl Wanted<'_> {
    /// The device left by an earlier process, found by its note, because it may have been renamed.
    fn find(&self, net: &mut Netlink, note: &str) -> io::Result<Option<Link>> {
        for name in [Some(self.name.as_str()), self.renamed].into_iter().flatten() {
            let found = match net.link(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            if is_ours(&found, note) {
                return Ok(Some(found));
            }
            // Once its script is done, a vif is served under its current name: it may have been
            // renamed again.
            if name == self.name || self.hotplug != Hotplug::Connected {
                return Err(name_is_taken(name, note));
            }
        }
        match self.hotplug {
            // Its device may have been renamed.
            Hotplug::Connected => Ok(net.links()?.into_iter().find(|link| is_ours(link, note))),
            _ => Ok(None),
        }
    }
}

fn name_is_taken(name: &str, note: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!(
            "the name {name} is taken by another network interface (its ifalias is not \
             \"{note}\"): rename or remove it"
        ),
    )
}

/// The origin of a device.
#[derive(PartialEq, Eq)]
enum Origin {
    New,
    TakenOver,
}

/// Checks that a new device can have this name, and that the bridge is one.
fn check_names(net: &mut Netlink, name: &str, bridge: &str) -> io::Result<()> {
    let is_bridge = net.link(bridge)?.kind.as_deref() == Some("bridge");
    if !is_bridge {
        let what = format!("{bridge} is not a bridge");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    for _ in 0..NAME_CHECKS {
        match net.link(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => thread::sleep(NAME_CHECK_PAUSE),
        }
    }
    Err(in_use(name))
}

/// The error if an interface has the name of a new device.
pub(crate) fn in_use(name: &str) -> io::Error {
    let what = format!("an interface {name} exists already: remove it, or choose another name");
    io::Error::new(io::ErrorKind::AlreadyExists, what)
}

/// A device on a bridge, for as long as this process exists.
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

/// Deletes the devices that an earlier process of this owner left for vifs that no longer exist,
/// and returns their names. Devices for which `is_kept` is true stay.
pub(crate) fn delete_stale(
    net: &mut Netlink,
    owner: &str,
    is_kept: impl Fn(Vif, &Link) -> bool,
) -> io::Result<Vec<String>> {
    let mut deleted = Vec::new();
    for link in net.links()? {
        let note_of = |link: &Link| vif_of_note(owner, link.alias.as_deref()?);
        let Some(vif) = note_of(&link).filter(|_| is_tap(&link)) else { continue };
        if !is_kept(vif, &link) {
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

/// The note on a persistent device: its owner and its vif.
fn note(owner: &str, vif: Vif) -> String {
    format!("ringway {owner} {}", vif.backend_dir())
}

/// The vif in a note of this owner.
fn vif_of_note(owner: &str, note: &str) -> Option<Vif> {
    let dir = note.strip_prefix("ringway ")?.strip_prefix(owner)?.strip_prefix(' ')?;
    Vif::from_backend_path(dir).filter(|vif| vif.backend_dir() == dir)
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;

    #[test]
    fn a_virtio_vif_takes_over_no_interface_and_needs_a_bridge() {
        // The namespace is that of the thread.
        if let Err(error) = ringway_sys::namespace::unshare_network() {
            println!("SKIPPED: {error}");
            return;
        }
        let mut net = Netlink::open().expect("netlink");
        let theirs = match Tap::create_multi_queue("vm1", 1) {
            Ok(theirs) => theirs,
            Err(error) => {
                println!("SKIPPED: {error}");
                return;
            }
        };
        let refusal = |net: &mut Netlink, name: &str, bridge: &str| {
            let made = VifDevice::make_bridged(net, name, bridge, 1, None);
            made.err().expect("refused").to_string()
        };
        assert!(refusal(&mut net, "vm2", "lo").ends_with(": lo is not a bridge"));
        assert!(refusal(&mut net, "vm2", "vm1").ends_with(": vm1 is not a bridge"));
        assert!(refusal(&mut net, "vm2", "br0").contains("br0"));
        net.add_bridge("br0").expect("a bridge");
        let taken = refusal(&mut net, "vm1", "br0");
        assert!(taken.contains("an interface vm1 exists already"), "{taken}");
        drop(theirs);
        VifDevice::make_bridged(&mut net, "vm1", "br0", 1, None).expect("the name is free");
    }

    #[test]
    fn a_note_is_recognized_only_by_its_owner() {
        let vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 1 };
        let text = note("/run/ringway/a b", vif);
        assert_eq!(vif_of_note("/run/ringway/a b", &text), Some(vif));
        for (owner, text) in [
            ("/run/ringway/a", text.as_str()),
            ("/run/ringway/b", &text),
            ("/run/ringway/a b", "ringway /run/ringway/a b"),
            ("/run/ringway/a b", "ringway /run/ringway/a b /local/domain/0/backend/vif/7"),
            ("/run/ringway/a b", &format!("{text}/state")),
            ("/run/ringway/a b", ""),
        ] {
            assert_eq!(vif_of_note(owner, text), None, "{owner} {text}");
        }
        // The kernel keeps 255 bytes; a run directory is shorter, as it fits a socket's address.
        assert!(note(&"x".repeat(108), vif).len() <= 255);
    }
}
