//! A backend's process: its end of each vif's handshake, and the resulting actions.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringway_engine::steps::Engines as _;
use ringway_engine::{Credit, Limits};
use ringway_hypervisor::{Access, EventChannel, ForeignMemory, Hypervisor, QueueEvents};
use ringway_loopback::LoopbackDomain;
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_switch::PortId;
use ringway_vif_shell::{BackendEnd, BackendProcess, Note, device};
use ringway_wire::EvtchnPort;
use ringway_xenbus::backend::{Input, NotAttached};
use ringway_xenbus::{
    EventPorts, FrontendConfig, Hotplug, KeySet, Keys, Offer, QueueConfig, Rate, Vif, XenbusState,
};
use ringway_xenstore::{
    Client, Events, LocalStore, LocalTransport, Lost, Reply, Request, Transport, Watched,
    or_refusal, unless_refused,
};

use crate::canary::Canary;
use crate::control::{Ended, PortParts};
use crate::ledger::Owner;
use crate::marks::Mark;
use crate::plane::DataPlane;
use crate::port::Port;
use crate::scenario::HOST;
use crate::witness::{Purpose, WatchedMemory};

/// The token of the watch for vifs that come and go.
const ROOT_TOKEN: &str = "vifs";

/// The control thread of a backend's process.
pub(crate) struct Backend {
    store: Client<KillableTransport>,
    domain: LoopbackDomain,
    vifs: BTreeMap<Vif, Served>,
    config: BackendConfig,
}

/// How a backend serves its vifs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackendConfig {
    pub(crate) offer: Offer,
    pub(crate) canary: Option<Canary>,
}

/// A vif that it serves.
struct Served {
    end: BackendEnd,
    rest: Rest,
}

/// The state of a vif besides its handshake.
struct Rest {
    vif: Vif,
    rate: Option<Rate>,
    /// The credit outlives connections.
    credit: Option<Arc<Credit>>,
    port: Option<PortId>,
    /// The port of the device that the vif is patched to.
    device_port: Option<PortId>,
}

/// A session of XenStore that ends with its process.
struct KillableTransport {
    transport: LocalTransport,
    is_alive: Rc<Cell<bool>>,
}

impl Transport for KillableTransport {
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
        match self.is_alive.get() {
            true => self.transport.request(request, events),
            false => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        self.transport.take_events(events)
    }
}

impl Backend {
    /// A backend that has just started and searches for vifs.
    pub(crate) fn start(
        store: &LocalStore,
        domain: LoopbackDomain,
        config: BackendConfig,
        is_alive: Rc<Cell<bool>>,
    ) -> Result<Backend, Lost> {
        let transport =
            LocalTransport::open(store, HOST).expect("domain 0 has no limit of sessions");
        let mut store = Client::with_transport(KillableTransport { transport, is_alive });
        or_refusal(store.watch(&Vif::backend_root(HOST), ROOT_TOKEN))?.expect("domain 0 may watch");
        device::remove_stale_errors(&mut store, HOST)?;
        Ok(Backend { store, domain, vifs: BTreeMap::new(), config })
    }

    /// The port of this vif.
    pub(crate) fn port_of(&self, vif: Vif) -> Option<PortId> {
        self.vifs.get(&vif)?.rest.port
    }

    /// That port, and the one that it is patched to.
    pub(crate) fn ports_of(&self, vif: Vif) -> impl Iterator<Item = PortId> + use<> {
        let rest = self.vifs.get(&vif).map(|served| &served.rest);
        let ports = rest.map(|rest| [rest.port, rest.device_port]);
        ports.into_iter().flatten().flatten()
    }

    /// Whether a vif is connected, as far as the backend knows.
    pub(crate) fn is_connected(&self, vif: Vif) -> bool {
        self.vifs.get(&vif).is_some_and(|served| served.end.state() == XenbusState::Connected)
    }

    /// Why a vif is closed, if it is.
    pub(crate) fn error(&self, vif: Vif) -> Option<&str> {
        self.vifs.get(&vif)?.end.error()
    }

    /// Handles one pending event, if there is one.
    pub(crate) fn turn(&mut self, plane: &mut DataPlane) -> Result<bool, Lost> {
        if self.take_failure(plane)? || self.resume(plane)? {
            return Ok(true);
        }
        match self.store.next_watch()? {
            None => return Ok(false),
            Some(Watched::Overflow) => self.read_everything(plane)?,
            Some(Watched::Node(event)) if event.token == ROOT_TOKEN => {
                plane.journal.note(|| format!("backend: {} has changed", event.path));
                match Vif::from_backend_path(&event.path) {
                    Some(vif) if self.vifs.contains_key(&vif) => {
                        self.known_changed(vif, &event.path, plane)?;
                    }
                    Some(vif) => self.device_changed(vif, plane)?,
                    None => self.scan(plane)?,
                }
            }
            Some(Watched::Node(event)) => {
                plane.journal.note(|| format!("backend: {} has changed", event.path));
                if let Some(vif) = Vif::from_backend_path(&event.token) {
                    self.frontend_changed(vif, plane)?;
                }
            }
        }
        Ok(true)
    }

    /// When a deferred action is due.
    pub(crate) fn due(&self) -> Option<std::time::Instant> {
        self.vifs.values().filter_map(|served| served.end.due()).min()
    }

    /// Closes the vif of a queue that an engine has given up.
    fn take_failure(&mut self, plane: &mut DataPlane) -> Result<bool, Lost> {
        let Some(failure) = plane.next_failure() else { return Ok(false) };
        let (port, down) = (failure.port_id, failure.down.to_string());
        // Drops the queue, and with it the mapping of its rings.
        drop(failure.queue);
        let vif = self.vifs.values().find(|served| served.rest.port == Some(port));
        if let Some(vif) = vif.map(|served| served.rest.vif) {
            plane.blame(vif.frontend, &down);
            self.feed(vif, Input::PeerFault(down), plane)?;
        }
        Ok(true)
    }

    fn resume(&mut self, plane: &mut DataPlane) -> Result<bool, Lost> {
        let Backend { store, domain, vifs, config } = self;
        for Served { end, rest } in vifs.values_mut() {
            if end.due().is_some_and(|due| due <= plane.now) {
                let now = plane.now;
                let mut serving = Serving { rest, plane, domain, config };
                end.resume(store, &mut serving, now)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Our own writes cause events as well; only these come from the toolstack.
    fn known_changed(&mut self, vif: Vif, path: &str, plane: &mut DataPlane) -> Result<(), Lost> {
        if vif.is_toolstacks(path) {
            return self.device_changed(vif, plane);
        }
        if path == vif.backend_state() {
            let found = device::state(&mut self.store, path);
            let found = unless_refused(found, XenbusState::Unknown)?;
            if self.vifs.get(&vif).is_some_and(|served| served.end.state() != found) {
                return self.device_changed(vif, plane);
            }
        }
        Ok(())
    }

    fn read_everything(&mut self, plane: &mut DataPlane) -> Result<(), Lost> {
        self.scan(plane)?;
        let vifs: Vec<Vif> = self.vifs.keys().copied().collect();
        vifs.into_iter().try_for_each(|vif| self.frontend_changed(vif, plane))
    }

    fn scan(&mut self, plane: &mut DataPlane) -> Result<(), Lost> {
        let root = Vif::backend_root(HOST);
        let mut vifs: Vec<Vif> = self.vifs.keys().copied().collect();
        for guest in unless_refused(self.store.directory(&root), Vec::new())? {
            let dir = format!("{root}/{guest}");
            for handle in unless_refused(self.store.directory(&dir), Vec::new())? {
                let vif = Vif::from_backend_path(&format!("{dir}/{handle}"));
                vifs.extend(vif.filter(|vif| !self.vifs.contains_key(vif)));
            }
        }
        vifs.into_iter().try_for_each(|vif| self.device_changed(vif, plane))
    }

    fn device_changed(&mut self, vif: Vif, plane: &mut DataPlane) -> Result<(), Lost> {
        let dir = vif.backend_dir();
        let read = device::read_keys(&mut self.store, &dir, KeySet::BackendDevice);
        let keys = unless_refused(read, None)?;
        let Backend { store, domain, vifs, config } = self;
        let now = plane.now;
        if let Some(Served { end, rest }) = vifs.get_mut(&vif) {
            if let Some(keys) = keys.as_ref().filter(|keys| keys.is_online()) {
                rest.set_rate(keys, plane);
            }
            let mut serving = Serving { rest, plane, domain, config };
            end.device_changed(store, &mut serving, keys.as_ref(), now)?;
            if end.is_finished() {
                vifs.remove(&vif);
            }
            return Ok(());
        }
        match keys {
            Some(keys) if keys.is_online() => self.begin(vif, &keys, plane),
            Some(keys) => self.close_unwanted(vif, &keys),
            None => device::remove_error(&mut self.store, vif),
        }
    }

    fn close_unwanted(&mut self, vif: Vif, keys: &Keys) -> Result<(), Lost> {
        device::remove_error(&mut self.store, vif)?;
        if keys.state().is_gone() || keys.state() == XenbusState::Initialising {
            return Ok(());
        }
        let closed = device::set_state(&mut self.store, &vif.backend_state(), XenbusState::Closed);
        unless_refused(closed, ())
    }

    fn begin(&mut self, vif: Vif, keys: &Keys, plane: &mut DataPlane) -> Result<(), Lost> {
        let end = BackendEnd::new(vif, self.config.offer, Hotplug::read(keys), plane.now);
        let rest = Rest { vif, rate: None, credit: None, port: None, device_port: None };
        let mut served = Served { end, rest };
        served.rest.set_rate(keys, plane);
        let Backend { store, domain, config, .. } = self;
        let now = plane.now;
        let mut serving = Serving { rest: &mut served.rest, plane, domain, config };
        served.end.start(store, &mut serving, keys, now)?;
        self.vifs.insert(vif, served);
        Ok(())
    }

    fn frontend_changed(&mut self, vif: Vif, plane: &mut DataPlane) -> Result<(), Lost> {
        let Backend { store, domain, vifs, config } = self;
        let Some(Served { end, rest }) = vifs.get_mut(&vif) else { return Ok(()) };
        let now = plane.now;
        end.frontend_changed(store, &mut Serving { rest, plane, domain, config }, now)
    }

    fn feed(&mut self, vif: Vif, input: Input, plane: &mut DataPlane) -> Result<(), Lost> {
        let Backend { store, domain, vifs, config } = self;
        let Some(Served { end, rest }) = vifs.get_mut(&vif) else { return Ok(()) };
        let now = plane.now;
        end.feed(store, &mut Serving { rest, plane, domain, config }, input, now)
    }
}

impl Rest {
    fn set_rate(&mut self, keys: &Keys, plane: &mut DataPlane) {
        // An invalid rate is no limit.
        let rate = keys.rate().ok().flatten();
        if self.rate == rate {
            return;
        }
        self.rate = rate;
        self.credit = rate.map(|Rate { bytes, interval_us }| {
            Arc::new(Credit::new(bytes, Duration::from_micros(interval_us), plane.now))
        });
        plane.credits.extend(self.credit.clone());
        if let Some(port) = self.port {
            plane.limit(port, &Limits::of_ingress(self.credit.as_ref()));
        }
    }
}

/// The actions of the backend's process for one vif.
struct Serving<'a> {
    rest: &'a mut Rest,
    plane: &'a mut DataPlane,
    domain: &'a LoopbackDomain,
    config: &'a BackendConfig,
}

impl BackendProcess for Serving<'_> {
    fn attach(&mut self, config: &FrontendConfig) -> Result<(), NotAttached> {
        let attached =
            self.connect(config).map_err(|error| NotAttached::Refused(error.to_string()));
        let (guest, done) = (self.rest.vif.frontend, attached.clone());
        self.plane.journal.note(|| format!("backend: attaches rings of domain {guest}: {done:?}"));
        attached
    }

    fn detach(&mut self) {
        let Some(port) = self.rest.port.take() else { return };
        let guest = self.rest.vif.frontend;
        self.plane.disturb(guest);
        self.plane.journal.note(|| format!("backend: releases domain {guest}, port {port}"));
        for port in self.rest.device_port.take().into_iter().chain([port]) {
            // If the process has ended, everything has been released.
            let _: Result<(), Ended> = self.plane.detach(port);
        }
    }

    fn note(&mut self, note: Note<'_>) {
        let guest = self.rest.vif.frontend;
        self.plane.journal.note(|| format!("backend: domain {guest}: {note:?}"));
    }
}

impl Serving<'_> {
    fn connect(&mut self, config: &FrontendConfig) -> io::Result<()> {
        let features =
            FrontendFeatures { caps: config.features.caps(), rx_notify: config.rx_notify };
        let mut queues = Vec::new();
        let guest = self.rest.vif.frontend;
        let owner = self.plane.guests.iter().position(|honest| honest.domid == guest);
        let owner = owner.map(Owner::Guest);
        for queue in &config.queues {
            let (parts, ports) = self.queue_parts(queue, features)?;
            let counters = Arc::clone(&parts.counters);
            let QueueParts { tx_ring, rx_ring, .. } = &parts;
            let rings = owner.map(|_| self.plane.witness.show(guest, tx_ring, rx_ring));
            let mut queue = VifQueue::attach(parts).map_err(io::Error::other)?;
            queue.lend_pages(self.memory(Purpose::Bodies)?);
            let counted = owner.map(|owner| (owner, self.plane.ledger.clone()));
            queues.push((Port::of_vif(queue, ports, counted, self.config.canary, rings), counters));
        }
        let port = self.plane.allocate_port(owner)?;
        self.rest.port = Some(port);
        let honest = self.plane.guests.iter().find(|honest| honest.domid == guest);
        let is_honest = honest.is_some();
        if honest.is_some_and(|honest| honest.is_up) {
            self.plane.marks.hit(Mark::Reattached);
        }
        if let Some(workers) = self.plane.workers.as_mut().filter(|_| is_honest) {
            workers.counters.extend(queues.iter().map(|(_, counters)| Arc::clone(counters)));
        }
        self.rest.device_port = self.attach_device(port, queues.len())?;
        let patched_to = self.rest.device_port;
        let limits = Limits::of_ingress(self.rest.credit.as_ref());
        let attached =
            self.plane.attach(PortParts { id: port, limits, patched_to, is_shared: false, queues });
        self.plane.marks.hit(Mark::Connected);
        attached
    }

    /// Attaches the device that the vif is patched to, if there is one, with as many queues.
    fn attach_device(&mut self, to: PortId, count: usize) -> io::Result<Option<PortId>> {
        let guest = self.rest.vif.frontend;
        let Some(device) = self.plane.device_of(guest) else { return Ok(None) };
        if self.plane.devices[device].queues() != count {
            self.plane.devices[device].reset(count);
        }
        let id = self.plane.allocate_port(Some(Owner::Device(device)))?;
        let queues = self.plane.device_queues(device, self.config.canary);
        let limits = Limits::default();
        let port = PortParts { id, limits, patched_to: Some(to), is_shared: false, queues };
        self.plane.attach(port)?;
        self.plane.marks.hit(Mark::Patched);
        Ok(Some(id))
    }

    fn memory(&self, purpose: Purpose) -> io::Result<WatchedMemory> {
        let DataPlane { machine, witness, .. } = &*self.plane;
        Ok(WatchedMemory::new(self.domain.memory()?, machine, witness, purpose))
    }

    fn queue_parts(
        &self,
        queue: &QueueConfig,
        features: FrontendFeatures,
    ) -> io::Result<(QueueParts<WatchedMemory, ringway_loopback::LoopbackEvent>, Vec<EvtchnPort>)>
    {
        let peer = self.rest.vif.frontend;
        let mut memory = self.memory(Purpose::Packets)?;
        let tx_ring = memory.map(peer, queue.tx_ring_ref, Access::ReadWrite)?;
        let rx_ring = memory.map(peer, queue.rx_ring_ref, Access::ReadWrite)?;
        let bind = |port| self.domain.bind_interdomain(peer, port);
        let (events, ports) = match queue.events {
            EventPorts::Split { tx, rx } => {
                let (tx, rx) = (bind(tx)?, bind(rx)?);
                let ports = vec![tx.port(), rx.port()];
                (QueueEvents::Split { tx, rx }, ports)
            }
            EventPorts::Single(both) => {
                let both = bind(both)?;
                let ports = vec![both.port()];
                (QueueEvents::Single(both), ports)
            }
        };
        let counters = Arc::default();
        let parts = QueueParts { peer, memory, tx_ring, rx_ring, events, features, counters };
        Ok((parts, ports))
    }
}
