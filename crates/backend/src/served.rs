//! One vif: its handshake with the guest, and what comes of it.

use std::io;
use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_hypervisor::{Access, ForeignMemory, Hypervisor, QueueEvents};
use ringway_net::{LinkSetting, Netlink};
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_switch::PortId;
use ringway_tap::{Side, Tap, VifOrTap};
use ringway_worker::{Attachment, Forwarding};
use ringway_xenbus::backend::{Action, Handshake, Input};
use ringway_xenbus::{EventPorts, Features, FrontendConfig, Hotplug, Offer, QueueConfig, Vif};
use ringway_xenstore::device;

use crate::Backend;
use crate::uplink::GSO_MAX;

/// A vif in this backend's care.
pub(crate) struct Served {
    pub(crate) handshake: Handshake,
    pub(crate) port: PortId,
    pub(crate) offer: Offer,
    pub(crate) mac: Option<String>,
    pub(crate) bridge: Option<Bridged>,
    /// Why it is closed, if it is.
    pub(crate) error: Option<String>,
    /// The queues attached now.
    pub(crate) queues: Vec<Arc<QueueCounters>>,
    pub(crate) caps: OffloadCaps,
}

/// A vif that is a port of a Linux bridge instead of the switch.
pub(crate) struct Bridged {
    pub(crate) name: String,
    tap: Tap,
    tap_port: PortId,
    queues_made: u16,
}

impl Bridged {
    /// Queues that the TAP device was made with: no more can be in use.
    pub(crate) fn queues_made(&self) -> u16 {
        self.queues_made
    }
}

/// The name that people and scripts know a vif by.
pub(crate) fn vif_name(vif: Vif) -> String {
    format!("vif{}.{}", vif.frontend, vif.handle)
}

impl<H: Hypervisor> Backend<H> {
    /// The toolstack has made, changed or removed a vif.
    pub(crate) fn look_at(&mut self, vif: Vif) -> io::Result<()> {
        let keys = device::read_keys(&mut self.store, &vif.backend_dir())?;
        match (keys, self.vifs.contains_key(&vif)) {
            (Some(keys), true) if !keys.is_online() => self.feed(vif, Input::Offline),
            (Some(keys), true) => self.feed(vif, Input::Hotplug(Hotplug::read(&keys))),
            (None, false) => Ok(()),
            (None, true) => self.feed(vif, Input::Gone),
            // Not written to the end yet, or on its way out: there is nothing to serve.
            (Some(keys), false) if !keys.is_online() => Ok(()),
            (Some(keys), false) => match self.begin(vif, &keys) {
                Ok(()) => {
                    let own = keys.state();
                    let peer = device::state(&mut self.store, &vif.frontend_state())?;
                    self.feed(vif, Input::Start { own, peer })
                }
                Err(error) => self.report(vif, &error.to_string()),
            },
        }
    }

    /// Makes what a vif needs before its guest appears.
    fn begin(&mut self, vif: Vif, keys: &ringway_xenbus::Keys) -> io::Result<()> {
        let mac = keys.mac().map_err(io::Error::other)?;
        let max_queues = keys.max_queues_wanted().map_err(io::Error::other)?;
        let offer = Offer {
            queues_max: max_queues.unwrap_or(self.config.max_queues).max(1),
            split_event_channels: self.config.split_event_channels,
            features: Features::from(self.config.offloads),
        };
        let port = self.allocate_port()?;
        let bridge = match keys.bridge() {
            Some(bridge) => match self.make_bridged(vif, bridge, offer.queues_max) {
                Ok(bridged) => Some(bridged),
                Err(error) => {
                    self.free_port(port);
                    return Err(error);
                }
            },
            None => None,
        };
        self.store.watch(&vif.frontend_state(), &vif.backend_dir())?;
        let served = Served {
            handshake: Handshake::new(offer, Hotplug::read(keys)),
            port,
            offer,
            mac: mac.map(|mac| mac.to_string()),
            bridge,
            error: None,
            queues: Vec::new(),
            caps: OffloadCaps::NONE,
        };
        self.vifs.insert(vif, served);
        Ok(())
    }

    /// A TAP device for the vif, on the bridge, named as the kernel's backend names its own.
    fn make_bridged(&mut self, vif: Vif, bridge: &str, queues: u16) -> io::Result<Bridged> {
        let tap = Tap::create(&vif_name(vif), queues)?;
        tap.set_offloads(OffloadCaps::ALL)?;
        let settings = [GSO_MAX, LinkSetting::Master(bridge), LinkSetting::Up];
        Netlink::open()?.set(tap.name(), &settings)?;
        let tap_port = self.allocate_port()?;
        Ok(Bridged { name: bridge.to_owned(), tap, tap_port, queues_made: queues })
    }

    pub(crate) fn frontend_changed(&mut self, vif: Vif) -> io::Result<()> {
        if !self.vifs.contains_key(&vif) {
            return Ok(());
        }
        let peer = device::state(&mut self.store, &vif.frontend_state())?;
        self.feed(vif, Input::FrontendState(peer))
    }

    /// Workers gave queues up.
    pub(crate) fn take_port_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.workers.next_event() {
            let reason = event.down.to_string();
            let is_it = |served: &Served| {
                let tap_port = served.bridge.as_ref().map(|bridge| bridge.tap_port);
                served.port == event.port_id || tap_port == Some(event.port_id)
            };
            let vif = self.vifs.iter().find(|(_, served)| is_it(served)).map(|(vif, _)| *vif);
            // The port ends here, and with it the mapping of its rings.
            drop(event.port);
            match vif {
                Some(vif) => {
                    let fault = format!("queue {}: {reason}", event.queue_index);
                    self.feed(vif, Input::PeerFault(fault))?;
                }
                None => {
                    return Err(io::Error::other(format!("the uplink failed: {reason}")));
                }
            }
        }
        Ok(())
    }

    /// Runs the handshake until it waits for something from outside.
    pub(crate) fn feed(&mut self, vif: Vif, input: Input) -> io::Result<()> {
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
    fn act(&mut self, vif: Vif, action: Action) -> io::Result<Option<Input>> {
        let dir = vif.backend_dir();
        match action {
            Action::WriteKeys(changes) => device::change(&mut self.store, &dir, &changes)?,
            Action::SetState(state) => {
                tracing::debug!(vif = vif_name(vif), %state, "backend state");
                device::set_state(&mut self.store, &vif.backend_state(), state)?;
            }
            Action::ReadFrontend => {
                let dir = vif.frontend_dir();
                let keys = device::read_keys(&mut self.store, &dir)?;
                let keys = keys.unwrap_or_else(|| ringway_xenbus::Keys::new(&dir, []));
                return Ok(Some(Input::FrontendKeys(keys)));
            }
            Action::Attach(config, _) => {
                let attached = self.attach(vif, &config).map_err(|error| error.to_string());
                return Ok(Some(Input::Attached(attached)));
            }
            Action::Detach => self.detach(vif),
            Action::AwaitHotplug => {
                tracing::info!(vif = vif_name(vif), "served; waits for the hotplug script");
            }
            Action::ReportError(reason) => self.report(vif, &reason)?,
            Action::ClearError => self.clear_error(vif)?,
            Action::Finished => self.finish(vif)?,
        }
        Ok(None)
    }

    /// Maps the guest's rings, binds its event channels and gives the queues to workers.
    fn attach(&mut self, vif: Vif, config: &FrontendConfig) -> io::Result<()> {
        let features =
            FrontendFeatures { caps: config.features.caps(), rx_notify: config.rx_notify };
        let mut attachments = Vec::new();
        let mut counters = Vec::new();
        for queue in &config.queues {
            let parts = self.queue_parts(vif, queue, features)?;
            let counted = Arc::clone(&parts.counters);
            let port = VifQueue::attach(parts).map_err(io::Error::other)?;
            counters.push(Arc::clone(&counted));
            attachments.push(Attachment {
                port: VifOrTap::Vif(port),
                counters: counted,
                flood: self.switch.flood_budget(self.now()),
            });
        }
        let count = u16::try_from(attachments.len()).unwrap_or(u16::MAX);
        let now = self.now();
        let Some(served) = self.vifs.get_mut(&vif) else { return Ok(()) };
        let forwarding = match &mut served.bridge {
            None => Forwarding::Switch(Arc::clone(&self.switch)),
            Some(bridged) => {
                bridged.tap.set_enabled(count)?;
                bridged.tap.set_offloads(features.caps)?;
                let counters: Vec<Arc<QueueCounters>> =
                    (0..count).map(|_| Arc::default()).collect();
                let queues = bridged.tap.queues(Side::Host, |queue| Arc::clone(&counters[queue]));
                let queues = queues.into_iter().zip(counters);
                let taps = queues.map(|(queue, counters)| Attachment {
                    port: VifOrTap::Tap(queue),
                    counters,
                    flood: self.switch.flood_budget(now),
                });
                let to_guest = Forwarding::Patch(served.port);
                self.workers.attach(bridged.tap_port, &to_guest, taps.collect())?;
                Forwarding::Patch(bridged.tap_port)
            }
        };
        if let Err(error) = self.workers.attach(served.port, &forwarding, attachments) {
            if let Forwarding::Patch(tap_port) = forwarding {
                self.workers.detach(tap_port);
            }
            return Err(error);
        }
        served.queues = counters;
        served.caps = features.caps.and(self.config.offloads);
        tracing::info!(vif = vif_name(vif), queues = count, "connected");
        Ok(())
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
        if let Some(bridged) = &served.bridge {
            self.workers.detach(bridged.tap_port);
        }
        self.workers.detach(served.port);
        self.switch.fdb().remove_port(served.port);
        served.queues.clear();
        tracing::info!(vif = vif_name(vif), "disconnected");
    }

    /// Says why a vif is closed: once in the log, and where tools look.
    fn report(&mut self, vif: Vif, reason: &str) -> io::Result<()> {
        tracing::warn!(vif = vif_name(vif), "{reason}");
        let [for_tools, beside_keys] = vif.backend_errors();
        self.store.write(&for_tools, reason)?;
        if self.store.read_bytes(&vif.backend_state())?.is_some() {
            self.store.write(&beside_keys, reason)?;
        }
        if let Some(served) = self.vifs.get_mut(&vif) {
            served.error = Some(reason.to_owned());
        }
        Ok(())
    }

    fn clear_error(&mut self, vif: Vif) -> io::Result<()> {
        let Some(served) = self.vifs.get_mut(&vif) else { return Ok(()) };
        if served.error.take().is_some() {
            for node in vif.backend_errors() {
                self.store.remove(&node)?;
            }
        }
        Ok(())
    }

    /// The vif is no longer this backend's business.
    fn finish(&mut self, vif: Vif) -> io::Result<()> {
        self.store.unwatch(&vif.frontend_state(), &vif.backend_dir())?;
        if let Some(served) = self.vifs.remove(&vif) {
            self.free_port(served.port);
            if let Some(bridged) = served.bridge {
                self.free_port(bridged.tap_port);
            }
        }
        let [for_tools, _] = vif.backend_errors();
        self.store.remove(&for_tools)
    }
}
