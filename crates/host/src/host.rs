//! The host: all vifs that this process serves, and what happens to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ringway_hypervisor::Hypervisor as _;
use ringway_ovs::{Datapath, Ids};
use ringway_vif_shell::device::read_keys;
use ringway_wire::DomId;
use ringway_xenbus::backend::Input;
use ringway_xenbus::{KeySet, Vif, XenbusState};
use ringway_xenstore::{Lost, Watched, unless_refused};

use crate::comparison::Followed;
use crate::device::{Keeper, Link, Purpose};
use crate::mirrors::update_mirrors;
use crate::order::{self, Traffic};
use crate::pairs::update_pairs;
use crate::quarantine::Charged;
use crate::round_robin::{RoundRobin, VifEvents};
use crate::scope::{ROOT_TOKEN, Scope, list, log_refusal, unwatch_vif, watch_vif};
use crate::shared::{QueueDown, Shared};
use crate::uplink::UplinkPort;
use crate::vif_state::VifState;
use crate::virtio::VirtioVif;
use crate::world::{Parts, SessionEventOf, World};
use crate::xen::XenVif;

/// Guests whose vifs are listed together.
const GUESTS_TOGETHER_MAX: usize = 16; // not a limit: the others follow

/// Something that has happened to vifs. `S` is what the session of a virtio vif learns.
#[derive(Debug)]
pub enum Event<S> {
    /// A watch of XenStore.
    Watch(Watched),
    /// An engine gave up a queue.
    QueueDown(QueueDown),
    /// The supervisor orders this host to serve the vif. One that is served was made again.
    Serve(Vif),
    /// The supervisor has passed the device of a vif that is served once more, because it was made
    /// again, or that of a virtio vif at last.
    DevicePassed(Purpose),
    /// The MTU of the device that the supervisor has passed of this vif.
    DeviceMtu(Purpose, u32),
    /// The supervisor orders this host to stop serving the vif.
    Forget(Vif),
    /// The session of the virtio vif with this name has to handle this.
    Session(String, S),
    /// The virtio vif with this name was removed.
    Removed(String),
    /// The process that carries out [orders](crate::PortOrder) has begun, and knows of none.
    PluggerBegun,
    /// The last order was carried out, or why not.
    PortDone(Result<Ids, String>),
    /// These vifs, by the [paths](Purpose::path) of their purposes, have ports of Open vSwitch
    /// since an earlier process.
    PortsFound(Vec<String>),
    /// That process has found this datapath of the bridge that it was [asked](crate::Datapaths) for
    /// last, or why not.
    DatapathFound(Result<Datapath, String>),
}

/// All vifs that this process serves, and what they share.
///
/// An event of a vif of Xen is noted once per vif, however often it happens, and these vifs are
/// served in [turns](Host::turn). Virtio vifs have [turns of their own](Host::turn_virtio).
pub struct Host<W: World> {
    /// What all vifs share.
    pub shared: Shared,
    /// Which vifs are served.
    pub scope: Scope,
    /// The uplink of the switch, if it has one.
    pub uplink: Option<UplinkPort<W>>,
    pub(crate) vifs: BTreeMap<Vif, XenVif<W>>,
    pub(crate) virtio: Vec<VirtioVif<W>>,
    pub(crate) turns: RoundRobin,
    /// Any vif may have been added, changed or removed.
    must_scan: bool,
    /// Any vif of these guests may have been. A host with many guests is not read again whole for
    /// each that is created.
    guests_to_scan: BTreeSet<DomId>,
    /// Whether it has not searched for vifs yet.
    is_new: bool,
    traffic: Traffic,
}

impl<W: World> Host<W> {
    /// A host that has yet to find its vifs.
    pub fn new(shared: Shared, scope: Scope) -> Host<W> {
        Host {
            shared,
            scope,
            uplink: None,
            vifs: BTreeMap::new(),
            virtio: Vec::new(),
            turns: RoundRobin::default(),
            must_scan: true,
            guests_to_scan: BTreeSet::new(),
            is_new: true,
            traffic: Traffic::default(),
        }
    }

    /// Its vifs of Xen.
    pub fn vifs(&self) -> impl Iterator<Item = (Vif, &XenVif<W>)> {
        self.vifs.iter().map(|(vif, xen)| (*vif, xen))
    }

    /// The states of its vifs of all kinds.
    pub fn states(&self) -> impl Iterator<Item = &VifState<W>> + Clone {
        let virtio = self.virtio.iter().map(|it| &it.state);
        self.vifs.values().map(|it| &it.state).chain(virtio)
    }

    /// How many vifs there are, and how many of them are connected.
    pub fn counts(&self) -> (usize, usize) {
        let is_connected = |it: &&XenVif<W>| it.end.state() == XenbusState::Connected;
        let connected = self.vifs.values().filter(is_connected).count();
        let virtio = self.virtio.iter().filter(|it| it.is_serving()).count();
        (self.vifs.len() + self.virtio.len(), connected + virtio)
    }

    /// One of its vifs of Xen.
    pub fn vif(&self, vif: Vif) -> Option<&XenVif<W>> {
        self.vifs.get(&vif)
    }

    /// The state of one of its vifs of Xen.
    pub fn state_mut(&mut self, vif: Vif) -> Option<&mut VifState<W>> {
        self.vifs.get_mut(&vif).map(|it| &mut it.state)
    }

    /// What all vifs share, and their states.
    pub fn states_mut(&mut self) -> (&mut Shared, impl Iterator<Item = &mut VifState<W>>) {
        let virtio = self.virtio.iter_mut().map(|it| &mut it.state);
        (&mut self.shared, self.vifs.values_mut().map(|it| &mut it.state).chain(virtio))
    }

    /// The name of the uplink, if there is one.
    pub(crate) fn uplink_name(&self) -> Option<&str> {
        self.uplink.as_ref().map(|uplink| uplink.name.as_str())
    }

    /// Notes what has happened.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn on(
        &mut self,
        event: Event<SessionEventOf<W>>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        match event {
            Event::Watch(watched) => self.note_watch(watched),
            Event::QueueDown(down) => self.lose_queue(&down, now, parts)?,
            Event::Serve(vif) => {
                let Scope::Only(vifs) = &mut self.scope else { return Ok(()) };
                if vifs.insert(vif) {
                    log_refusal(vif, watch_vif(parts.store, vif)?);
                }
                self.begin_again(vif, now, parts)?;
            }
            Event::DevicePassed(vif) => self.renew_device(&vif, now, parts)?,
            Event::DeviceMtu(vif, mtu) => {
                parts.devices.set_mtu(&vif, mtu);
                let device = self.state_for(&vif).and_then(|state| state.device.as_mut());
                device.into_iter().for_each(|device| device.mtu = mtu);
            }
            Event::Forget(vif) => {
                let Scope::Only(vifs) = &mut self.scope else { return Ok(()) };
                if vifs.remove(&vif) {
                    log_refusal(vif, unwatch_vif(parts.store, vif)?);
                    self.note_device(vif);
                }
            }
            Event::Session(name, event) => {
                let (_, mut hosting) = parts.split(&mut self.shared, now);
                let found = self.virtio.iter_mut().find(|it| it.state.name == name);
                if let Some(virtio) = found {
                    virtio.on(event, &mut hosting);
                }
            }
            Event::Removed(name) => self.remove_virtio(&name, now, parts),
            Event::PluggerBegun => {
                self.shared.ovs.ask_again();
                self.shared.datapaths.ask_again();
            }
            Event::PortDone(outcome) => self.port_done(outcome, now, parts)?,
            Event::DatapathFound(found) => self.datapath_found(found, now, parts),
            Event::PortsFound(paths) => {
                paths.iter().for_each(|path| self.leave_if_unneeded(path));
            }
        }
        Ok(())
    }

    /// Handles a queue that an engine gave up: its guest is disconnected, unless its vif has only
    /// lost its network device.
    fn lose_queue(
        &mut self,
        down: &QueueDown,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        if self.states().any(|state| state.has_lost_device(down.port)) {
            self.shared.comparison.note_change(now);
            return Ok(());
        }
        let fault = format!("queue {}: {}", down.queue, down.reason);
        let xen = self.vifs.iter().find(|(_, xen)| xen.state.has_port(down.port));
        if let Some(vif) = xen.map(|(vif, _)| *vif) {
            return self.feed(vif, Input::PeerFault(fault), now, parts);
        }
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        let virtio = self.virtio.iter_mut().find(|it| it.state.has_port(down.port));
        virtio.into_iter().for_each(|it| it.close(&fault, &mut hosting));
        Ok(())
    }

    /// Serves a vif by other queues: its guest stays connected. A vif without a device begins with
    /// it; a virtio vif may have waited for that.
    fn renew_device(
        &mut self,
        vif: &Purpose,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        // If it was deleted meanwhile, its next queues follow.
        let device = parts.devices.passed(vif);
        let state = self.state_for(vif);
        let is_quarantined = state.as_ref().is_some_and(|state| state.is_quarantined);
        if state.is_some_and(|state| state.renew_device(device)) {
            self.shared.comparison.note_made(now);
            return Ok(());
        }
        match vif {
            _ if is_quarantined => {}
            Purpose::Xen(vif) => self.begin_again(*vif, now, parts)?,
            Purpose::Virtio(name) => {
                let found = self.virtio.iter_mut().find(|it| it.state.name == *name);
                found.into_iter().for_each(|it| it.attach_next_turn(now));
            }
            Purpose::Uplink => {}
        }
        Ok(())
    }

    pub(crate) fn state_for(&mut self, vif: &Purpose) -> Option<&mut VifState<W>> {
        match vif {
            Purpose::Xen(vif) => self.state_mut(*vif),
            Purpose::Virtio(name) => {
                let found = self.virtio.iter_mut().find(|it| it.state.name == *name);
                found.map(|it| &mut it.state)
            }
            Purpose::Uplink => None,
        }
    }

    fn begin_again(
        &mut self,
        vif: Vif,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        self.feed(vif, Input::Gone, now, parts)?;
        self.drop_if_finished(vif, parts);
        self.note_device(vif);
        Ok(())
    }

    /// Whether vifs wait for their turns.
    pub fn has_turns(&self) -> bool {
        self.must_scan || !self.guests_to_scan.is_empty() || !self.turns.is_empty()
    }

    /// Whether a network device is needed for the uplink or one of its vifs.
    pub fn needs_device(&self, purpose: &Purpose, link: &Link) -> bool {
        match purpose {
            Purpose::Xen(vif) => self.vifs.get(vif).is_some_and(|it| it.state.needs_device(link)),
            Purpose::Virtio(name) => {
                let found = self.virtio.iter().find(|it| it.state.name == *name);
                found.is_some_and(|it| it.is_on_bridge() && it.state.needs_device(link))
            }
            Purpose::Uplink => self.uplink.is_some(),
        }
    }

    /// Follows what has become of the network devices of its vifs and of the uplink, if it is time
    /// to.
    pub fn follow_devices(&mut self, now: Instant, parts: &mut Parts<'_, W>) -> Option<Followed> {
        let has_uplink = self.uplink.as_ref().is_some_and(UplinkPort::has_device);
        let has_devices = has_uplink || self.states().any(|state| state.device.is_some());
        if !self.shared.comparison.take_due(has_devices, now) {
            return None;
        }
        // Another process may keep the devices.
        let followed = match parts.devices.keeper().map(Keeper::read_links) {
            Some(None) => Followed::Again,
            links => {
                let links = links.flatten();
                let (_, mut hosting) = parts.split(&mut self.shared, now);
                let xen = self.vifs.values_mut().map(|it| &mut it.state);
                let states = xen.chain(self.virtio.iter_mut().map(|it| &mut it.state));
                let vifs = states.map(|it| it.follow_device(links.as_ref(), &mut hosting)).max();
                let uplink = self.uplink.as_mut();
                let uplink = uplink.map(|it| it.follow_device(links.as_ref(), &mut hosting));
                vifs.max(uplink).unwrap_or(Followed::Done)
            }
        };
        self.shared.comparison.done(followed, now);
        Some(followed)
    }

    /// When something is due that was deferred.
    pub fn due(&self) -> Option<Instant> {
        let xen = self.vifs.values().filter_map(XenVif::due);
        let virtio = self.virtio.iter().filter_map(VirtioVif::due);
        xen.chain(virtio).chain(self.shared.ovs.due()).min()
    }

    /// Gives turns to the vifs of Xen whose deferred work is due.
    pub fn note_due(&mut self, now: Instant) {
        for (vif, xen) in &self.vifs {
            if xen.due().is_some_and(|due| due <= now) {
                self.turns.note(*vif, |events| events.is_due = true);
            }
        }
    }

    /// Serves the next vif of Xen that has a turn, or takes over the next that were found, or looks
    /// for vifs. Returns false if there was
    /// nothing to do.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn turn(&mut self, now: Instant, parts: &mut Parts<'_, W>) -> Result<bool, Lost> {
        if std::mem::take(&mut self.must_scan) {
            self.scan(parts)?;
            return Ok(true);
        }
        let found = self.next_found();
        if !found.is_empty() {
            self.take_over(&found, now, parts)?;
            return Ok(true);
        }
        if !self.guests_to_scan.is_empty() {
            self.scan_guests(parts)?;
            return Ok(true);
        }
        let Some((vif, events)) = self.turns.next() else { return Ok(false) };
        self.take_turn(vif, events, now, parts)?;
        Ok(true)
    }

    /// Does what is due from time to time.
    pub fn housekeep(&mut self, now: Instant, parts: &mut Parts<'_, W>) {
        self.shared.switch.expire(self.shared.ticks(now));
        self.forget_datapaths();
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        let xen = self.vifs.values_mut().map(|it| &mut it.state);
        for state in xen.chain(self.virtio.iter_mut().map(|it| &mut it.state)) {
            state.assign_refused(&mut hosting);
            state.log_drops(hosting.shared, now);
        }
        self.virtio.iter_mut().for_each(VirtioVif::housekeep);
        let frames = self.vifs.iter().map(|(vif, xen)| (*vif, xen.state.frames()));
        self.traffic.follow(frames, now, parts.notes);
    }

    /// Updates the switch's mirrors and pairs to the present ports.
    pub fn follow_ports(&self) {
        let uplink = self.uplink.as_ref().map(|uplink| (uplink.name.as_str(), uplink.port));
        update_mirrors(&self.shared.switch, self.states(), uplink);
        update_pairs(&self.shared.switch, self.states());
    }

    /// Serves vifs again once their panics are forgotten.
    pub fn release_expired(&mut self, notes: &mut W::Notes) {
        if self.shared.quarantine.expire(notes) {
            let vifs: Vec<Vif> = self.vifs.keys().copied().collect();
            vifs.into_iter().for_each(|vif| self.restart_if_released(vif));
            let shared = &self.shared;
            self.virtio.iter_mut().for_each(|it| it.check_quarantine(shared));
        }
    }

    /// Forgets the panics over a vif of Xen, and serves it. Returns whether there were any.
    pub fn release(&mut self, vif: Vif, notes: &mut W::Notes) -> bool {
        let was_any = self.shared.quarantine.release(&Charged::Xen(vif), notes);
        self.restart_if_released(vif);
        was_any
    }

    /// Serves a vif that is no longer quarantined.
    fn restart_if_released(&mut self, vif: Vif) {
        let is_released = self.shared.quarantine.reason(&Charged::Xen(vif)).is_none();
        let is_it = |it: &XenVif<W>| it.state.is_quarantined && is_released;
        if self.vifs.get(&vif).is_some_and(is_it) {
            self.vifs.remove(&vif);
            self.note_device(vif);
        }
    }

    /// Notes every guest that exists or was known, or the vifs that this process is to serve. At
    /// the start, those that had traffic recently have the first turns.
    fn scan(&mut self, parts: &mut Parts<'_, W>) -> Result<(), Lost> {
        if std::mem::take(&mut self.is_new) {
            let backend = parts.hypervisor.domid();
            let mut busy = order::read(parts.notes);
            busy.retain(|vif| vif.backend == backend && self.scope.has(*vif));
            busy.into_iter().for_each(|vif| self.note_device(vif));
        }
        match &self.scope {
            Scope::Only(ours) => {
                let vifs: BTreeSet<Vif> = self.vifs.keys().chain(ours).copied().collect();
                vifs.into_iter().for_each(|vif| self.note_device(vif));
            }
            Scope::Domain => {
                let guests = list(parts.store, &Vif::backend_root(parts.hypervisor.domid()))?;
                let guests = guests.iter().filter_map(|guest| guest.parse().ok()).map(DomId);
                self.guests_to_scan.extend(guests);
                self.guests_to_scan.extend(self.vifs.keys().map(|vif| vif.frontend));
            }
        }
        Ok(())
    }

    /// Notes every vif of some guests that exists or was known.
    fn scan_guests(&mut self, parts: &mut Parts<'_, W>) -> Result<(), Lost> {
        let root = Vif::backend_root(parts.hypervisor.domid());
        let guests = std::iter::from_fn(|| self.guests_to_scan.pop_first());
        let guests: Vec<DomId> = guests.take(GUESTS_TOGETHER_MAX).collect();
        let dirs: Vec<String> = guests.iter().map(|guest| format!("{root}/{guest}")).collect();
        let listed = parts.store.directories(&dirs)?;
        for ((guest, dir), listed) in guests.into_iter().zip(dirs).zip(listed) {
            let listed = unless_refused(listed, Vec::new())?;
            let listed = listed.iter().map(|it| Vif::from_backend_path(&format!("{dir}/{it}")));
            let known = self.vifs.keys().copied().filter(|vif| vif.frontend == guest);
            let vifs: BTreeSet<Vif> = listed.flatten().chain(known).collect();
            vifs.into_iter().for_each(|vif| self.note_device(vif));
        }
        Ok(())
    }

    fn note_watch(&mut self, watched: Watched) {
        match watched {
            Watched::Node(event) if event.token == ROOT_TOKEN => {
                match Vif::from_backend_path(&event.path) {
                    Some(vif) => self.note_write(vif, &event.path),
                    None => match Vif::guest_from_backend_path(&event.path) {
                        Some(guest) => self.guests_to_scan.extend([guest]),
                        None => self.must_scan = true,
                    },
                }
            }
            Watched::Node(event) => {
                if let Some(vif) = Vif::from_backend_path(&event.token) {
                    self.turns.note(vif, |events| events.has_frontend_changed = true);
                }
            }
            Watched::Overflow => {
                self.must_scan = true;
                for vif in self.vifs.keys() {
                    self.turns.note(*vif, |events| events.has_frontend_changed = true);
                }
            }
        }
    }

    /// Notes a change in a backend's directory, perhaps one of our own.
    fn note_write(&mut self, vif: Vif, path: &str) {
        // Our own writes cause events as well: only the toolstack's writes count.
        if !self.vifs.contains_key(&vif) || vif.is_toolstacks(path) {
            self.note_device(vif);
        } else if path == vif.backend_state() {
            self.turns.note(vif, |events| events.was_own_state_written = true);
        }
    }

    pub(crate) fn note_device(&mut self, vif: Vif) {
        self.turns.note(vif, |events| events.has_device_changed = true);
    }

    fn take_turn(
        &mut self,
        vif: Vif,
        events: VifEvents,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let was_forged = events.was_own_state_written && self.is_state_foreign(vif, parts)?;
        if events.has_device_changed || was_forged {
            self.device_changed(vif, now, parts)?;
        }
        let Some(xen) = self.vifs.get_mut(&vif) else { return Ok(()) };
        if events.has_frontend_changed {
            xen.frontend_changed(&mut self.shared, parts, now)?;
        }
        if events.is_due {
            xen.resume(&mut self.shared, parts, now)?;
        }
        Ok(())
    }

    fn is_state_foreign(&self, vif: Vif, parts: &mut Parts<'_, W>) -> Result<bool, Lost> {
        let found = self.vifs.get(&vif);
        found.map_or(Ok(false), |it| it.is_state_foreign(parts.store))
    }

    /// Handles a vif that the toolstack has created, changed or removed.
    fn device_changed(
        &mut self,
        vif: Vif,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let read = read_keys(parts.store, &vif.backend_dir(), KeySet::BackendDevice);
        let is_ours = self.scope.has(vif);
        // Treat a directory that we may not read, or another process's vif, as absent.
        let keys = unless_refused(read, None)?.filter(|_| is_ours);
        if let Some(xen) = self.vifs.get_mut(&vif) {
            // Only the toolstack that creates the vif writes this state. If it writes its keys one
            // by one, that may be after our offer, which the frontend then never sees.
            let is_made_again = keys
                .as_ref()
                .is_some_and(|keys| keys.is_online() && keys.state() == XenbusState::Initialising);
            let shared = &mut self.shared;
            match is_made_again && xen.end.state() != XenbusState::Initialising {
                true => xen.feed(Input::Gone, shared, parts, now)?,
                false => xen.device_changed(keys.as_ref(), shared, parts, now)?,
            }
            self.drop_if_finished(vif, parts);
            if !is_made_again {
                return Ok(());
            }
        }
        self.begin(vif, keys, now, parts)
    }

    pub(crate) fn feed(
        &mut self,
        vif: Vif,
        input: Input,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let Some(xen) = self.vifs.get_mut(&vif) else { return Ok(()) };
        xen.feed(input, &mut self.shared, parts, now)
    }

    fn drop_if_finished(&mut self, vif: Vif, parts: &mut Parts<'_, W>) {
        if self.vifs.get(&vif).is_some_and(|it| it.end.is_finished()) {
            if let Some(xen) = self.vifs.remove(&vif) {
                self.shared.restarts.end(&xen.state.name, parts.notes);
                xen.remove(&mut self.shared, parts.devices, parts.notes);
            }
            self.shared.quarantine.release(&Charged::Xen(vif), parts.notes);
        }
    }
}
