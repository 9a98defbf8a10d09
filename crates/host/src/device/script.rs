//! A device that a toolstack's hotplug script places.

use std::io;

use ringway_datapath::OffloadCaps;
use ringway_xenbus::Hotplug;

use super::kernel::{Kernel, Link, LinkSetting, Tap};
use super::purpose::is_ours;
use super::{GSO_MAX, HOST_ADDRESS, take_over};

/// The device of a vif with a script.
pub(super) struct Wanted<'a> {
    /// The name that the script expects.
    pub(super) name: String,
    /// The name that it then gives the device, if the toolstack wants one (`vifname`).
    pub(super) renamed: Option<&'a str>,
    /// The state that the script has reported.
    pub(super) hotplug: Hotplug,
    pub(super) queues: u16,
    pub(super) mtu: Option<u16>,
}

impl Wanted<'_> {
    /// A device that waits for a script: down, and on no bridge. A device left by an earlier
    /// process of ours is taken as it is, whatever its current name.
    pub(super) fn open<K: Kernel>(&self, net: &mut K, note: &str) -> io::Result<K::Tap> {
        let tap = match self.find(net, note)? {
            Some(found) => {
                let (tap, found) = take_over(net, note, found, self.queues)?;
                net.set(&found.name, &[GSO_MAX])?;
                tap
            }
            None => self.make(net, note)?,
        };
        tap.set_offloads(OffloadCaps::ALL)?;
        Ok(tap)
    }

    fn make<K: Kernel>(&self, net: &mut K, note: &str) -> io::Result<K::Tap> {
        let name = &self.name;
        let tap = net.open_tap(name, self.queues)?;
        // Write the note before the device becomes persistent: none may persist without one.
        let settings = [LinkSetting::Alias(note), GSO_MAX, LinkSetting::Address(HOST_ADDRESS.0)];
        let mtu = self.mtu.map(|mtu| LinkSetting::Mtu(mtu.into()));
        net.set(name, &settings.into_iter().chain(mtu).collect::<Vec<_>>())?;
        tap.set_persistent(true)?;
        if self.hotplug == Hotplug::Connected {
            // The toolstack does not run it twice, and only the script knows what it did.
            tracing::warn!(
                name,
                "this is a new network device, and no hotplug script runs for it: no interface has \
                 the ifalias {note:?}"
            );
        }
        Ok(tap)
    }

    /// The device left by an earlier process, found by its note, because it may have been renamed.
    fn find(&self, net: &mut impl Kernel, note: &str) -> io::Result<Option<Link>> {
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
