//! The guest's vifs: the toolstack creates and removes them while the guest runs.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use ringway_control::GuestVifStatus;
use ringway_hypervisor::Hypervisor;
use ringway_switch::PortId;
use ringway_vif_shell::{device, set_error};
use ringway_xenbus::frontend::Input;
use ringway_xenbus::{KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{Lost, WatchEvent, Watched, or_refusal, unless_refused};

use crate::Frontend;
use crate::nic::Nic;
use crate::pace::Changes;

/// The token of the watch for added and removed vifs. Watches of backends have their vif's handle
/// as token, and those of their links the handle behind a prefix.
const ROOT_TOKEN: &str = "vifs";
const LINK_TOKEN: &str = "link-";
/// Watch events that are noted before other work gets a turn: backends can cause any number of
/// them.
const EVENTS_MAX: usize = 1024;

/// A vif whose directory cannot be used.
pub(crate) struct Refused {
    state: XenbusState,
    reason: String,
}

impl<H: Hypervisor> Frontend<H> {
    fn vif_root(&self) -> String {
        Vif::frontend_root(self.parts.machinery.hypervisor.domid())
    }

    /// Starts watching for vifs. The watch fires at once.
    pub(crate) fn watch_vifs(&mut self) -> io::Result<()> {
        let root = self.vif_root();
        or_refusal(self.parts.store.watch(&root, ROOT_TOKEN))?.map_err(io::Error::other)
    }

    /// Stops watching for vifs, so that none is found while the guest closes them.
    pub(crate) fn unwatch_vifs(&mut self) -> Result<(), Lost> {
        let root = self.vif_root();
        unless_refused(self.parts.store.unwatch(&root, ROOT_TOKEN), ())?;
        self.is_leaving = true;
        Ok(())
    }

    /// Notes the watch events that have arrived, and follows the changes of the vifs that are due,
    /// each once. Returns how long the rest may wait, if there is any.
    pub(crate) fn follow(&mut self) -> Result<Option<Duration>, Lost> {
        let has_more = self.take_watches()?;
        let due = self.paces.take(Instant::now());
        // An event that arrives together with a reply does not make the descriptor readable.
        let must_return = has_more || !due.is_empty();
        for (handle, changes) in due {
            self.follow_vif(handle, changes)?;
        }
        if must_return {
            return Ok(Some(Duration::ZERO));
        }
        let due = self.paces.due();
        Ok(due.map(|due| due.saturating_duration_since(Instant::now())))
    }

    /// Notes the watch events that have arrived; returns whether there may be more.
    fn take_watches(&mut self) -> Result<bool, Lost> {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.parts.store.next_watch()? else { return Ok(false) };
            match event {
                Watched::Node(event) if event.token == ROOT_TOKEN => {
                    self.directory_changed(&event)?;
                }
                Watched::Node(event) => {
                    if let Some(handle) = event.token.strip_prefix(LINK_TOKEN) {
                        let handle = parse_handle(handle);
                        handle.into_iter().for_each(|handle| self.link_changed(handle));
                    } else if let Ok(handle) = event.token.parse() {
                        self.note(handle, |changes| changes.has_state_changed = true);
                    }
                }
                Watched::Overflow => {
                    self.scan()?;
                    let all = Changes { has_state_changed: true, has_link_changed: true };
                    for handle in self.nics.keys().copied().collect::<Vec<u32>>() {
                        self.note(handle, |changes| *changes = all);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Notes a change of a vif, if there is such a vif.
    fn note(&mut self, handle: u32, record: impl FnOnce(&mut Changes)) {
        if self.nics.contains_key(&handle) {
            self.paces.note(handle, Instant::now(), record);
        }
    }

    /// The backend or the toolstack may have changed what the device of a vif shows.
    fn link_changed(&mut self, handle: u32) {
        self.note(handle, |changes| changes.has_link_changed = true);
    }

    fn follow_vif(&mut self, handle: u32, changes: Changes) -> Result<(), Lost> {
        let Some(nic) = self.nics.get_mut(&handle) else { return Ok(()) };
        if changes.has_state_changed {
            nic.backend_changed(&mut self.parts)?;
        }
        if changes.has_link_changed {
            nic.follow_link(&mut self.parts)?;
        }
        self.drop_finished()
    }

    /// Drops the vifs that this guest no longer serves.
    pub(crate) fn drop_finished(&mut self) -> Result<(), Lost> {
        let finished = self.nics.values().filter(|nic| nic.end.is_finished());
        for vif in finished.map(|nic| nic.end.vif()).collect::<Vec<Vif>>() {
            tracing::debug!(handle = vif.handle, "vif removed");
            self.nics.remove(&vif.handle);
            self.paces.forget(vif.handle);
            self.parts.machinery.reserve.remove(vif.handle);
            let unwatched =
                self.parts.store.unwatch(&vif.backend_carrier(), &link_token(vif.handle));
            unless_refused(unwatched, ())?;
        }
        Ok(())
    }

    /// Handles a change below the directory of all vifs, perhaps one of our own.
    fn directory_changed(&mut self, event: &WatchEvent) -> Result<(), Lost> {
        if self.is_leaving {
            return Ok(());
        }
        let below =
            event.path.strip_prefix(&self.vif_root()).and_then(|rest| rest.strip_prefix('/'));
        let Some(below) = below else { return self.scan() };
        let (handle, key) = below.split_once('/').unwrap_or((below, ""));
        let Some(handle) = parse_handle(handle) else { return Ok(()) };
        match key {
            "disconnect" | "mtu" | "speed" if self.nics.contains_key(&handle) => {
                self.link_changed(handle);
                Ok(())
            }
            // The toolstack changes nothing else of a known vif; it can only recreate it.
            key if matches!(key, "" | "state") || !self.nics.contains_key(&handle) => {
                self.inspect(handle)
            }
            _ => Ok(()),
        }
    }

    fn scan(&mut self) -> Result<(), Lost> {
        let root = self.vif_root();
        let names = unless_refused(self.parts.store.directory(&root), Vec::new())?;
        let mut handles: BTreeSet<u32> =
            names.iter().filter_map(|name| parse_handle(name)).collect();
        handles.extend(self.nics.keys().chain(self.refused.keys()));
        handles.into_iter().try_for_each(|handle| self.inspect(handle))
    }

    /// Begins to serve a new vif, and drops a removed one.
    fn inspect(&mut self, handle: u32) -> Result<(), Lost> {
        let dir = format!("{}/{handle}", self.vif_root());
        let read = device::read_keys(&mut self.parts.store, &dir, KeySet::FrontendDevice);
        let keys = unless_refused(read, None)?;
        let keys = keys.unwrap_or_else(|| Keys::new(&dir, []));
        let found = Vif::from_frontend_keys(self.parts.machinery.hypervisor.domid(), handle, &keys);
        if let Some(nic) = self.nics.get_mut(&handle) {
            // Only we and the toolstack write our state: if it differs from what we wrote, the
            // toolstack has recreated the directory.
            let is_it = found == Ok(Some(nic.end.vif())) && keys.state() == nic.end.state();
            if is_it {
                return Ok(());
            }
            nic.feed(Input::Gone, &mut self.parts)?;
            self.drop_finished()?;
        }
        match found {
            Ok(Some(vif)) => self.add(vif, keys.state()),
            Ok(None) => {
                self.refused.remove(&handle);
                Ok(())
            }
            Err(bad) => self.refuse(handle, keys.state(), bad.to_string()),
        }
    }

    fn add(&mut self, vif: Vif, own: XenbusState) -> Result<(), Lost> {
        let handle = vif.handle;
        self.refused.remove(&handle);
        let ports = match self.free_ports() {
            Some(ports) => ports,
            None => return self.refuse(handle, own, "the guest has too many vifs".to_owned()),
        };
        let (name, interface) = (self.config.device_name(handle), self.config.interface(handle));
        let mut nic = Nic::new(vif, name, interface.clone(), ports);
        if let Err(refusal) = or_refusal(nic.end.watch(&mut self.parts.store))? {
            return self.refuse(handle, own, refusal.to_string());
        }
        // Without it, the device shows what the link was at first.
        let watched = self.parts.store.watch_node(&vif.backend_carrier(), &link_token(vif.handle));
        unless_refused(watched, ())?;
        tracing::debug!(handle, backend = %vif.backend, "vif found");
        nic.start(own, &mut self.parts)?;
        self.nics.insert(handle, nic);
        Ok(())
    }

    fn refuse(&mut self, handle: u32, state: XenbusState, reason: String) -> Result<(), Lost> {
        let is_known = self.refused.get(&handle).is_some_and(|known| known.reason == reason);
        if !is_known {
            tracing::warn!(handle, "{reason}");
            let guest = self.parts.machinery.hypervisor.domid();
            set_error(&mut self.parts.store, guest, handle, Some(&reason))?;
        }
        self.refused.insert(handle, Refused { state, reason });
        Ok(())
    }

    pub(crate) fn refused_statuses(&self) -> impl Iterator<Item = GuestVifStatus> {
        self.refused.iter().map(|(handle, refused)| GuestVifStatus {
            handle: *handle,
            interface: self.config.device_name(*handle),
            state: refused.state.to_string(),
            max_queues: 1,
            error: Some(refused.reason.clone()),
            ..GuestVifStatus::default()
        })
    }

    /// Two unused port numbers: for the device, and for the vif.
    fn free_ports(&self) -> Option<[PortId; 2]> {
        let is_free = |port: &u16| self.nics.values().all(|nic| !nic.has_port(PortId(*port)));
        let port = (0..u16::MAX).step_by(2).find(is_free)?;
        Some([PortId(port), PortId(port + 1)])
    }
}

fn link_token(handle: u32) -> String {
    format!("{LINK_TOKEN}{handle}")
}

/// Parses a handle in the toolstacks' spelling: another spelling would be another node.
fn parse_handle(name: &str) -> Option<u32> {
    name.parse().ok().filter(|handle: &u32| handle.to_string() == name)
}
