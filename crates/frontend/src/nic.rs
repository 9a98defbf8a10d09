//! One interface: a TAP device, a vif, and the handshake that joins them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringway_control::{GuestVifStatus, QueueStatus};
use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_hypervisor::{Hypervisor, QueueEvents};
use ringway_net::{LinkSetting, Netlink};
use ringway_netfront::VifQueue;
use ringway_switch::{FloodBudget, FloodLimit, PortId, Ticks};
use ringway_tap::{Side, Tap, VifOrTap};
use ringway_worker::{Attachment, Forwarding, Placement};
use ringway_xenbus::frontend::{Action, Allocation, Carrier, Handshake, Input, QueueCount, Wish};
use ringway_xenbus::{Features, QueueConfig, Vif};
use ringway_xenstore::{Client, device};

use crate::{Frontend, Interface};

/// How long a backend may take to let go when the guest ends.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Frames that the kernel may queue for an interface: the TAP driver drops what comes on top, so
/// this is more than the 500 it starts with.
const TX_QUEUE_LEN: u32 = 2000;
/// The longest frame that netif can describe (`XEN_NETIF_MAX_TX_SIZE`).
const GSO_MAX: u32 = 65535;

type Queue<H> = VifQueue<<H as Hypervisor>::Grants, <H as Hypervisor>::Event>;

/// An interface of the guest.
pub(crate) struct Nic<H: Hypervisor> {
    pub(crate) vif: Vif,
    pub(crate) handshake: Handshake,
    pub(crate) wish: Wish,
    /// What the backend did that we cannot accept.
    pub(crate) error: Option<String>,
    tap: Tap,
    tap_port: PortId,
    vif_port: PortId,
    /// Work that the guest may leave undone, and takes undone.
    own_caps: OffloadCaps,
    /// Queues that are granted but not with a worker.
    idle: Vec<Queue<H>>,
    counters: Vec<Arc<QueueCounters>>,
    caps: OffloadCaps,
}

impl<H: Hypervisor> Nic<H> {
    /// Makes the TAP device. `index` counts the interfaces of the guest.
    pub(crate) fn new(vif: Vif, interface: Interface, index: usize) -> io::Result<Nic<H>> {
        let tap = Tap::create(&interface.name, 1)?;
        let mut netlink = Netlink::open()?;
        let settings = [
            LinkSetting::Address(interface.mac),
            LinkSetting::Mtu(interface.mtu),
            LinkSetting::GsoMaxSize(GSO_MAX),
            LinkSetting::TxQueueLen(TX_QUEUE_LEN),
            LinkSetting::Up,
        ];
        netlink.set(tap.name(), &settings)?;
        for (address, prefix_len) in interface.addresses {
            netlink.add_address(tap.name(), address, prefix_len)?;
        }
        if let Some(gateway) = interface.gateway {
            netlink.add_default_route(tap.name(), gateway)?;
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let queues = interface.queues.unwrap_or(u16::try_from(cpus).unwrap_or(u16::MAX));
        let features = Features::from(interface.offloads);
        let wish = Wish { queues: QueueCount::AtMost(queues), features };
        let port = |offset| {
            u16::try_from(2 * index + offset).map(PortId).map_err(|_| io::ErrorKind::InvalidInput)
        };
        Ok(Nic {
            vif,
            handshake: Handshake::new(wish),
            wish,
            error: None,
            tap,
            tap_port: port(0)?,
            vif_port: port(1)?,
            own_caps: interface.offloads,
            idle: Vec::new(),
            counters: Vec::new(),
            caps: OffloadCaps::NONE,
        })
    }

    pub(crate) fn has_port(&self, port: PortId) -> bool {
        port == self.tap_port || port == self.vif_port
    }

    /// Keeps a queue whose grants are to be ended once the backend has let go.
    pub(crate) fn keep(&mut self, port: VifOrTap<VifQueue<H::Grants, H::Event>>) {
        match port {
            VifOrTap::Vif(queue) => self.idle.push(queue),
            // The device itself is kept in `tap`.
            VifOrTap::Tap(_) => {}
        }
    }

    pub(crate) fn status(
        &self,
        store: &mut Client,
        placements: &[Placement],
    ) -> io::Result<GuestVifStatus> {
        let key = |name: &str| format!("{}/{name}", self.vif.backend_dir());
        let max_queues = store.read(&key("multi-queue-max-queues"))?;
        let refusal = store.read(&key("error"))?;
        let queue = |(index, counters): (u16, &Arc<QueueCounters>)| {
            let is_it = |placed: &&Placement| (placed.port, placed.queue) == (self.vif_port, index);
            let worker = placements.iter().find(is_it).map_or(0, |placed| placed.worker);
            QueueStatus::read(index, worker, counters)
        };
        Ok(GuestVifStatus {
            handle: self.vif.handle,
            interface: self.tap.name().to_owned(),
            state: self.handshake.state().to_string(),
            max_queues: max_queues.and_then(|max| max.parse().ok()).unwrap_or(1),
            offloads: ringway_control::offload_names(self.caps),
            error: self.error.clone().or(refusal),
            queues: (0..).zip(&self.counters).map(queue).collect(),
        })
    }

    /// Makes queues and says what the backend needs to know of them.
    fn allocate(&mut self, hypervisor: &H, wanted: Allocation) -> io::Result<Vec<QueueConfig>> {
        let backend = self.vif.backend;
        self.counters.clear();
        self.caps = wanted.backend.caps().and(self.own_caps);
        for _ in 0..wanted.queues {
            let events = if wanted.split_event_channels {
                let tx = hypervisor.alloc_unbound(backend)?;
                QueueEvents::Split { tx, rx: hypervisor.alloc_unbound(backend)? }
            } else {
                QueueEvents::Single(hypervisor.alloc_unbound(backend)?)
            };
            let counters = Arc::default();
            let grants = hypervisor.grants()?;
            let mut queue = VifQueue::new(grants, backend, events, Arc::clone(&counters))?;
            queue.set_caps(self.caps);
            self.counters.push(counters);
            self.idle.push(queue);
        }
        Ok(self.idle.iter().map(VifQueue::config).collect())
    }

    /// Ends the grants of all queues.
    fn release(&mut self) {
        for queue in self.idle.drain(..) {
            if let Err(in_use) = queue.close() {
                tracing::warn!(handle = self.vif.handle, "pages of a queue are lost: {in_use}");
            }
        }
        self.counters.clear();
        self.caps = OffloadCaps::NONE;
    }
}

impl<H: Hypervisor> Frontend<H> {
    /// Runs the handshake until it waits for something from outside.
    pub(crate) fn feed(&mut self, handle: u32, input: Input) -> io::Result<()> {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let Some(nic) = self.nics.get_mut(&handle) else { return Ok(()) };
            for action in nic.handshake.handle(input) {
                if let Some(answer) = self.act(handle, action)? {
                    next = Some(answer);
                }
            }
        }
        Ok(())
    }

    /// Carries out one action. An action that asks for an answer comes last and returns it.
    fn act(&mut self, handle: u32, action: Action) -> io::Result<Option<Input>> {
        let Some(nic) = self.nics.get_mut(&handle) else { return Ok(None) };
        let dir = nic.vif.frontend_dir();
        match action {
            Action::WriteKeys(changes) => device::change(&mut self.store, &dir, &changes)?,
            Action::SetState(state) => {
                tracing::debug!(handle, %state, "frontend state");
                device::set_state(&mut self.store, &nic.vif.frontend_state(), state)?;
            }
            Action::ReadBackend => {
                let dir = nic.vif.backend_dir();
                let keys = device::read_keys(&mut self.store, &dir)?;
                let keys = keys.unwrap_or_else(|| ringway_xenbus::Keys::new(&dir, []));
                return Ok(Some(Input::BackendKeys(keys)));
            }
            Action::Allocate(wanted) => {
                let made = nic.allocate(&self.hypervisor, wanted);
                if made.is_err() {
                    nic.release();
                }
                return Ok(Some(Input::Allocated(made.map_err(|error| error.to_string()))));
            }
            Action::Carrier(Carrier::Up) => self.join(handle)?,
            Action::Carrier(Carrier::Down) => self.part(handle),
            Action::Release => nic.release(),
            Action::ReportError(reason) => {
                tracing::warn!(handle, "{reason}");
                nic.error = Some(reason.clone());
                self.store.write(&nic.vif.frontend_error(), &reason)?;
            }
            Action::Finished => {}
        }
        Ok(None)
    }

    /// Gives the queues to workers: frames flow.
    fn join(&mut self, handle: u32) -> io::Result<()> {
        let Some(nic) = self.nics.get_mut(&handle) else { return Ok(()) };
        nic.error = None;
        // What the kernel leaves undone, the backend must be able to take.
        nic.tap.set_offloads(nic.caps)?;
        let queues = nic.idle.drain(..).zip(&nic.counters).map(|(queue, counters)| Attachment {
            port: VifOrTap::Vif(queue),
            counters: Arc::clone(counters),
            flood: unlimited(),
        });
        self.workers.attach(nic.vif_port, &Forwarding::Patch(nic.tap_port), queues.collect())?;
        let counters: Arc<QueueCounters> = Arc::default();
        let taps = nic.tap.queues(Side::Guest, |_| Arc::clone(&counters));
        let taps = taps.into_iter().map(|tap| Attachment {
            port: VifOrTap::Tap(tap),
            counters: Arc::clone(&counters),
            flood: unlimited(),
        });
        self.workers.attach(nic.tap_port, &Forwarding::Patch(nic.vif_port), taps.collect())?;
        tracing::info!(handle, queues = nic.counters.len(), "connected");
        Ok(())
    }

    /// Takes the queues back from their workers: frames stay in the kernel's queue.
    fn part(&mut self, handle: u32) {
        let Some(nic) = self.nics.get_mut(&handle) else { return };
        self.workers.detach(nic.tap_port);
        for port in self.workers.detach(nic.vif_port) {
            nic.keep(port);
        }
        tracing::info!(handle, "disconnected");
    }
}

/// A patched port floods nobody.
fn unlimited() -> FloodBudget {
    FloodBudget::new(FloodLimit::NONE, Ticks::default())
}
