//! One vif: its handshake with the guest, and what comes of it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{Completion, MacAddr, OffloadCaps, QueueCounters};
use ringway_hypervisor::{Access, ForeignMemory, Hypervisor, QueueEvents};
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_switch::PortId;
use ringway_tap::{Side, VifOrTap};
use ringway_worker::{Attachment, Credit, Forwarding};
use ringway_xenbus::backend::{Action, Handshake, Input};
use ringway_xenbus::{
    BadKeys, EventPorts, Features, FrontendConfig, Hotplug, Keys, Offer, QueueConfig, Rate, Vif,
    XenbusState,
};
use ringway_xenstore::{Lost, XsError, device, or_refusal, unless_refused};

use crate::Backend;
use crate::device::{HOST_ADDRESS, VifDevice, vif_name};
use crate::log::{LeftOut, LogAllowance};

/// A vif in this backend's care.
pub(crate) struct Served {
    pub(crate) handshake: Handshake,
    pub(crate) offer: Offer,
    pub(crate) mac: Option<String>,
    /// If it does not stand on the switch.
    pub(crate) device: Option<VifDevice>,
    /// When it is answered what it transmits.
    pub(crate) completion: Completion,
    /// What the guest may transmit, as the toolstack has it.
    rate: Result<Option<Rate>, BadKeys>,
    /// The same as a budget. It outlives connections, or each would bring a new one.
    credit: Option<Arc<Credit>>,
    /// Why it is closed, if it is.
    pub(crate) error: Option<String>,
    /// While queues are attached.
    pub(crate) connection: Option<Connection>,
    log: LogAllowance,
}

/// A guest that is served.
pub(crate) struct Connection {
    pub(crate) port: PortId,
    /// Of the vif's network device, if it has one.
    pub(crate) device_port: Option<PortId>,
    pub(crate) queues: Vec<Arc<QueueCounters>>,
    pub(crate) caps: OffloadCaps,
}

impl Served {
    /// Whether something that the guest did may be logged, and how much was left out before.
    fn may_log(&mut self) -> Option<LeftOut> {
        self.log.line(Instant::now())
    }
}

impl<H: Hypervisor> Backend<H> {
    /// The toolstack has made, changed or removed a vif.
    pub(crate) fn look_at(&mut self, vif: Vif) -> Result<(), Lost> {
        // A directory that we may not read is as good as none.
        let keys = device::read_keys(&mut self.store, &vif.backend_dir());
        match (unless_refused(keys, None)?, self.vifs.contains_key(&vif)) {
            (Some(keys), true) if !keys.is_online() => self.feed(vif, Input::Offline),
            (Some(keys), true) => self.changed(vif, &keys),
            (None, false) => Ok(()),
            (None, true) => self.feed(vif, Input::Gone),
            (Some(keys), false) if !keys.is_online() => self.unwanted(vif, keys.state()),
            (Some(keys), false) => {
                let start = self.begin(vif, &keys)?;
                self.feed(vif, start)
            }
        }
    }

    /// A vif that is not written to the end yet, or on its way out. The toolstack may wait for an
    /// earlier backend, which has ended, to close it.
    fn unwanted(&mut self, vif: Vif, state: XenbusState) -> Result<(), Lost> {
        if state.is_gone() || state == XenbusState::Initialising {
            return Ok(());
        }
        let closed = device::set_state(&mut self.store, &vif.backend_state(), XenbusState::Closed);
        unless_refused(closed, ())
    }

    /// The toolstack, or a script of its, has changed keys of a vif that is in our care.
    fn changed(&mut self, vif: Vif, keys: &Keys) -> Result<(), Lost> {
        let own = self.vifs.get(&vif).map(|served| served.handshake.state());
        let is_asked = keys.state() == XenbusState::Closing && own != Some(XenbusState::Closing);
        self.set_rate(vif, keys);
        self.feed(vif, Input::Hotplug(Hotplug::read(keys)))?;
        if is_asked {
            self.feed(vif, Input::AskedToClose)?;
        }
        Ok(())
    }

    /// Somebody, mostly we, has written a backend's state.
    pub(crate) fn own_state_written(&mut self, vif: Vif) -> Result<(), Lost> {
        let own = self.vifs.get(&vif).map(|served| served.handshake.state());
        let found = self.state(&vif.backend_state())?;
        if own.is_some_and(|own| own != found) { self.look_at(vif) } else { Ok(()) }
    }

    /// Makes what a vif needs before its guest appears, and tells how its handshake begins.
    fn begin(&mut self, vif: Vif, keys: &Keys) -> Result<Input, Lost> {
        let (mut offer, mut mac, mut vif_device) = (self.offer(None), None, None);
        let completion = self.completion(keys).unwrap_or_default();
        let peer = self.state(&vif.frontend_state())?;
        let mut start = Input::Start { own: keys.state(), peer };
        match self.prepare(vif, keys) {
            Ok(prepared) => (offer, mac, vif_device) = prepared,
            Err(error) => start = Input::Refused(error.to_string()),
        }
        let watched = self.store.watch(&vif.frontend_state(), &vif.backend_dir());
        if let Err(refusal) = or_refusal(watched)? {
            // A driver domain has a quota.
            start = Input::Refused(refusal.to_string());
        }
        let served = Served {
            handshake: Handshake::new(offer, Hotplug::read(keys)),
            offer,
            mac: mac.map(|mac| mac.to_string()),
            device: vif_device,
            completion,
            rate: Ok(None),
            credit: None,
            error: None,
            connection: None,
            log: LogAllowance::new(Instant::now()),
        };
        self.vifs.insert(vif, served);
        self.set_rate(vif, keys);
        Ok(start)
    }

    /// # Errors
    /// Why this host cannot serve the vif as the toolstack describes it.
    fn prepare(
        &self,
        vif: Vif,
        keys: &Keys,
    ) -> io::Result<(Offer, Option<MacAddr>, Option<VifDevice>)> {
        let mac = keys.mac().map_err(io::Error::other)?;
        if let Some(mac) = mac.filter(|mac| mac.is_multicast() || *mac == HOST_ADDRESS) {
            let expected = "the address of one station, and not that of the host's end";
            return Err(io::Error::other(format!("the vif's mac is {mac}, expected {expected}")));
        }
        let completion = self.completion(keys).map_err(io::Error::other)?;
        let offer = self.offer(keys.max_queues_wanted().map_err(io::Error::other)?);
        let owner = self.device_owner();
        let vif_device = VifDevice::make(vif, keys, offer.queues_max, &owner, completion)?;
        Ok((offer, mac, vif_device))
    }

    /// When a vif is answered, as the toolstack or else the configuration has it.
    fn completion(&self, keys: &Keys) -> Result<Completion, BadKeys> {
        Ok(keys.completion_wanted()?.unwrap_or(self.config.completion))
    }

    fn offer(&self, queues_wanted: Option<u16>) -> Offer {
        Offer {
            queues_max: queues_wanted.unwrap_or(self.config.max_queues).max(1),
            split_event_channels: self.config.split_event_channels,
            features: Features::from(self.config.offloads),
        }
    }

    /// By what devices of this backend are known. A backend with another run directory may serve
    /// another XenStore, where the same names mean other vifs.
    pub(crate) fn device_owner(&self) -> String {
        self.config.dir.path().display().to_string()
    }

    /// Limits what the guest may transmit as the toolstack wants it. A rate that cannot be read is
    /// none, as for Linux' backend.
    fn set_rate(&mut self, vif: Vif, keys: &Keys) {
        let Some(served) = self.vifs.get_mut(&vif) else { return };
        let rate = keys.rate();
        if served.rate == rate {
            return;
        }
        let limit = rate.as_ref().ok().copied().flatten();
        served.credit = limit.map(|Rate { bytes, interval_us }| {
            Arc::new(Credit::new(bytes, Duration::from_micros(interval_us), Instant::now()))
        });
        match &rate {
            Ok(rate) => {
                tracing::info!(vif = vif_name(vif), ?rate, "limit of what the guest transmits");
            }
            Err(bad) => tracing::warn!(vif = vif_name(vif), "{bad}: transmits without a limit"),
        }
        served.rate = rate;
        if let Some(connection) = &served.connection {
            self.workers.limit(connection.port, served.credit.as_ref());
        }
    }

    pub(crate) fn frontend_changed(&mut self, vif: Vif) -> Result<(), Lost> {
        if !self.vifs.contains_key(&vif) {
            return Ok(());
        }
        let peer = self.state(&vif.frontend_state())?;
        self.feed(vif, Input::FrontendState(peer))
    }

    /// A state; that of a device in a domain that is gone may not be read, and is none.
    fn state(&mut self, node: &str) -> Result<XenbusState, Lost> {
        unless_refused(device::state(&mut self.store, node), XenbusState::Unknown)
    }

    /// Only the loss of the store is the backend's end. What the store refuses of one vif is for
    /// the log.
    fn written(&mut self, vif: Vif, outcome: Result<(), XsError>) -> Result<(), Lost> {
        if let Err(error) = or_refusal(outcome)? {
            if let Some(LeftOut(left_out)) = self.may_log(vif) {
                tracing::warn!(vif = vif_name(vif), left_out, "{error}");
            }
        }
        Ok(())
    }

    /// Workers gave queues up.
    pub(crate) fn take_port_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.port_events.pop_front().or_else(|| self.workers.next_event()) {
            let reason = event.down.to_string();
            let is_it = |served: &Served| {
                let connection = served.connection.as_ref();
                connection.is_some_and(|it| {
                    it.port == event.port_id || it.device_port == Some(event.port_id)
                })
            };
            let vif = self.vifs.iter().find(|(_, served)| is_it(served)).map(|(vif, _)| *vif);
            let is_uplink = self.uplink.as_ref().is_some_and(|up| up.port == event.port_id);
            // The port ends here, and with it the mapping of its rings.
            drop(event.port);
            if let Some(vif) = vif {
                let fault = format!("queue {}: {reason}", event.queue_index);
                self.feed(vif, Input::PeerFault(fault))?;
            } else if is_uplink {
                return Err(io::Error::other(format!("the uplink failed: {reason}")));
            }
        }
        Ok(())
    }

    /// Forgets what workers have said of a port that they no longer have: its number may be another
    /// vif's from now on.
    fn forget_port(&mut self, port: PortId) {
        while let Some(event) = self.workers.next_event() {
            self.port_events.push_back(event);
        }
        self.port_events.retain(|event| event.port_id != port);
        self.free_port(port);
    }

    /// Runs the handshake until it waits for something from outside.
    pub(crate) fn feed(&mut self, vif: Vif, input: Input) -> Result<(), Lost> {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let Some(served) = self.vifs.get_mut(&vif) else { return Ok(()) };
            for action in served.handshake.handle(input) {
                if let Some(answer) = self.act(vif, action)? {
                    next = Some(answer);
                }
            }
        }
        Ok(())
    }

    /// Carries out one action. An action that asks for an answer comes last and returns it.
    fn act(&mut self, vif: Vif, action: Action) -> Result<Option<Input>, Lost> {
        let dir = vif.backend_dir();
        match action {
            Action::WriteKeys(changes) => {
                let changed = device::change(&mut self.store, &dir, &changes);
                self.written(vif, changed)?;
            }
            Action::SetState(state) => {
                tracing::debug!(vif = vif_name(vif), %state, "backend state");
                let set = device::set_state(&mut self.store, &vif.backend_state(), state);
                self.written(vif, set)?;
            }
            Action::ReadFrontend => {
                let dir = vif.frontend_dir();
                let keys = unless_refused(device::read_keys(&mut self.store, &dir), None)?;
                let keys = keys.unwrap_or_else(|| ringway_xenbus::Keys::new(&dir, []));
                return Ok(Some(Input::FrontendKeys(keys)));
            }
            Action::Attach(config, _) => {
                let attached = self.attach(vif, &config).map_err(|error| error.to_string());
                return Ok(Some(Input::Attached(attached)));
            }
            Action::Detach => self.detach(vif),
            Action::AwaitHotplug => {
                if let Some(LeftOut(left_out)) = self.may_log(vif) {
                    let name = vif_name(vif);
                    tracing::info!(
                        vif = name,
                        left_out,
                        "served, and waits for the hotplug script"
                    );
                }
            }
            Action::ReportError(reason) => self.report(vif, &reason)?,
            Action::ClearError => self.clear_error(vif)?,
            Action::Finished => self.finish(vif)?,
        }
        Ok(None)
    }

    fn may_log(&mut self, vif: Vif) -> Option<LeftOut> {
        self.vifs.get_mut(&vif)?.may_log()
    }

    /// Maps the guest's rings, binds its event channels and gives the queues to workers.
    fn attach(&mut self, vif: Vif, config: &FrontendConfig) -> io::Result<()> {
        let features =
            FrontendFeatures { caps: config.features.caps(), rx_notify: config.rx_notify };
        let completion = self.vifs.get(&vif).map(|served| served.completion);
        let mut attachments = Vec::new();
        let mut counters = Vec::new();
        for queue in &config.queues {
            let parts = self.queue_parts(vif, queue, features)?;
            counters.push(Arc::clone(&parts.counters));
            let counters = Arc::clone(&parts.counters);
            let mut port = VifQueue::attach(parts).map_err(io::Error::other)?;
            if completion == Some(Completion::Sent) {
                port.answer_when_sent()?;
            }
            let port = VifOrTap::Vif(port);
            let flood = self.switch.flood_budget(self.now());
            attachments.push(Attachment { port, counters, flood });
        }
        let count = u16::try_from(attachments.len()).unwrap_or(u16::MAX);
        let port = self.allocate_port()?;
        let device_port = match self.attach_device(vif, port, count, features.caps) {
            Ok(device_port) => device_port,
            Err(error) => {
                self.free_port(port);
                return Err(error);
            }
        };
        let forwarding = match device_port {
            None => Forwarding::Switch(Arc::clone(&self.switch)),
            Some(device_port) => Forwarding::Patch(device_port),
        };
        let Some(served) = self.vifs.get_mut(&vif) else { return Ok(()) };
        let credit = served.credit.as_ref();
        let attached = self.workers.attach_limited(port, &forwarding, credit, attachments);
        let caps = features.caps.and(self.config.offloads);
        served.connection = Some(Connection { port, device_port, queues: counters, caps });
        if let Err(error) = attached {
            self.detach(vif);
            return Err(error);
        }
        if let Some(LeftOut(left_out)) = self.may_log(vif) {
            tracing::info!(vif = vif_name(vif), queues = count, left_out, "connected");
        }
        Ok(())
    }

    /// Gives the queues of the vif's network device to workers, if it has one, as another port.
    fn attach_device(
        &mut self,
        vif: Vif,
        to: PortId,
        count: u16,
        caps: OffloadCaps,
    ) -> io::Result<Option<PortId>> {
        let now = self.now();
        let Some(served) = self.vifs.get_mut(&vif) else { return Ok(None) };
        let Some(vif_device) = &mut served.device else { return Ok(None) };
        vif_device.tap.set_enabled(count)?;
        vif_device.tap.set_offloads(caps)?;
        let counters: Vec<Arc<QueueCounters>> = (0..count).map(|_| Arc::default()).collect();
        let mut queues = vif_device.tap.queues(Side::Host, |queue| Arc::clone(&counters[queue]));
        if served.completion == Completion::Sent {
            vif_device.tap.hold_receipts(&mut queues)?;
        }
        let port = self.allocate_port()?;
        let taps = queues.into_iter().zip(counters).map(|(queue, counters)| Attachment {
            port: VifOrTap::Tap(queue),
            counters,
            flood: self.switch.flood_budget(now),
        });
        let taps = taps.collect();
        if let Err(error) = self.workers.attach(port, &Forwarding::Patch(to), taps) {
            self.free_port(port);
            return Err(error);
        }
        Ok(Some(port))
    }

    fn queue_parts(
        &mut self,
        vif: Vif,
        queue: &QueueConfig,
        features: FrontendFeatures,
    ) -> io::Result<QueueParts<H::Memory, H::Event>> {
        let peer = vif.frontend;
        let mut memory = self.hypervisor.memory()?;
        let mut map = |gref| {
            memory.map(peer, gref, Access::ReadWrite).map_err(|error| {
                io::Error::new(error.kind(), format!("ring page with grant {gref}: {error}"))
            })
        };
        let (tx_ring, rx_ring) = (map(queue.tx_ring_ref)?, map(queue.rx_ring_ref)?);
        let bind = |port| {
            self.hypervisor.bind_interdomain(peer, port).map_err(|error| {
                io::Error::new(error.kind(), format!("event channel {port}: {error}"))
            })
        };
        let events = match queue.events {
            EventPorts::Split { tx, rx } => QueueEvents::Split { tx: bind(tx)?, rx: bind(rx)? },
            EventPorts::Single(both) => QueueEvents::Single(bind(both)?),
        };
        let counters = Arc::default();
        Ok(QueueParts { peer, memory, tx_ring, rx_ring, events, features, counters })
    }

    /// Takes the queues back from their workers, which unmaps and unbinds them.
    fn detach(&mut self, vif: Vif) {
        let Some(served) = self.vifs.get_mut(&vif) else { return };
        let Some(connection) = served.connection.take() else { return };
        for port in connection.device_port.into_iter().chain([connection.port]) {
            self.workers.detach(port);
            self.forget_port(port);
        }
        if let Some(LeftOut(left_out)) = self.may_log(vif) {
            tracing::info!(vif = vif_name(vif), left_out, "disconnected");
        }
    }

    /// Says why a vif is closed: once in the log, and where tools look.
    fn report(&mut self, vif: Vif, reason: &str) -> Result<(), Lost> {
        if let Some(LeftOut(left_out)) = self.may_log(vif) {
            tracing::warn!(vif = vif_name(vif), left_out, "{reason}");
        }
        let [for_tools, beside_keys] = vif.backend_errors();
        let written = self.store.transaction(|tx| {
            tx.write(&for_tools, reason)?;
            match tx.read_bytes(&vif.backend_state())? {
                Some(_) => tx.write(&beside_keys, reason),
                None => Ok(()),
            }
        });
        if let Err(refusal) = or_refusal(written)? {
            // A driver domain may lack the right, or the room: its guests are served nevertheless.
            tracing::debug!(vif = vif_name(vif), %refusal, "the error nodes");
        }
        if let Some(served) = self.vifs.get_mut(&vif) {
            served.error = Some(reason.to_owned());
        }
        Ok(())
    }

    fn clear_error(&mut self, vif: Vif) -> Result<(), Lost> {
        let Some(served) = self.vifs.get_mut(&vif) else { return Ok(()) };
        if served.error.take().is_some() {
            for node in vif.backend_errors() {
                unless_refused(self.store.remove(&node), ())?;
            }
        }
        Ok(())
    }

    /// The vif is no longer this backend's business.
    fn finish(&mut self, vif: Vif) -> Result<(), Lost> {
        let unwatched = self.store.unwatch(&vif.frontend_state(), &vif.backend_dir());
        unless_refused(unwatched, ())?;
        let served = self.vifs.remove(&vif);
        if let Some(vif_device) = served.and_then(|served| served.device) {
            let name = vif_device.tap.name().to_owned();
            if let Err(error) = vif_device.remove() {
                tracing::debug!(name, %error, "the network device was gone already");
            }
        }
        let [for_tools, _] = vif.backend_errors();
        // A driver domain has no such node, nor the right to one.
        unless_refused(self.store.remove(&for_tools), ())
    }
}
