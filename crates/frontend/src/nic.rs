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
use ringway_xenbus::{Features, Keys, Offer, QueueConfig, Vif};
use ringway_xenstore::{Client, Lost, XsError, device, or_refusal, unless_refused};

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
    /// Why it does not work, if it does not.
    pub(crate) error: Option<String>,
    /// What made a worker give a queue up, until that is looked at.
    pub(crate) fault: Option<String>,
    /// The device's name, and what is known of it beforehand.
    name: String,
    interface: Interface,
    /// The device, from the backend's first offer on.
    tap: Option<Tap>,
    tap_port: PortId,
    vif_port: PortId,
    /// Queues that are granted but not with a worker.
    idle: Vec<Queue<H>>,
    counters: Vec<Arc<QueueCounters>>,
    caps: OffloadCaps,
    /// The number of queues that was last complained of as too small.
    short: Option<usize>,
}

impl<H: Hypervisor> Nic<H> {
    pub(crate) fn new(vif: Vif, name: String, interface: Interface, ports: [PortId; 2]) -> Nic<H> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let queues = interface.queues.unwrap_or(u16::try_from(cpus).unwrap_or(u16::MAX));
        let features = Features::from(interface.offloads);
        let wish = Wish { queues: QueueCount::AtMost(queues), features };
        let [tap_port, vif_port] = ports;
        Nic {
            vif,
            handshake: Handshake::new(wish),
            wish,
            error: None,
            fault: None,
            name,
            interface,
            tap: None,
            tap_port,
            vif_port,
            idle: Vec::new(),
            counters: Vec::new(),
            caps: OffloadCaps::NONE,
            short: None,
        }
    }

    /// Makes the device, as the toolstack and the configuration say, unless it is there.
    fn make_device(&mut self, keys: &Keys) -> io::Result<()> {
        if self.tap.is_some() {
            return Ok(());
        }
        let dir = self.vif.frontend_dir();
        let mac = keys.mac().map_err(io::Error::other)?;
        let mac = mac.ok_or_else(|| io::Error::other(format!("{dir}/mac is missing")))?;
        let mtu = keys.mtu().map_err(io::Error::other)?;
        let tap = Tap::create(&self.name, 1)?;
        let mut netlink = Netlink::open()?;
        let settings = [
            LinkSetting::Address(mac.0),
            LinkSetting::Mtu(mtu.into()),
            LinkSetting::GsoMaxSize(GSO_MAX),
            LinkSetting::TxQueueLen(TX_QUEUE_LEN),
            LinkSetting::Up,
        ];
        netlink.set(tap.name(), &settings)?;
        for (address, prefix_len) in &self.interface.addresses {
            netlink.add_address(tap.name(), *address, *prefix_len)?;
        }
        if let Some(gateway) = self.interface.gateway {
            netlink.add_default_route(tap.name(), gateway)?;
        }
        self.tap = Some(tap);
        Ok(())
    }

    pub(crate) fn has_port(&self, port: PortId) -> bool {
        port == self.tap_port || port == self.vif_port
    }

    /// Takes what a worker gave up. A device that failed was deleted, and is made anew.
    pub(crate) fn take_failed(&mut self, port: VifOrTap<VifQueue<H::Grants, H::Event>>) {
        if let VifOrTap::Tap(_) = port {
            self.tap = None;
        }
        self.keep(port);
    }

    /// Keeps a queue whose grants are to be ended once the backend has let go.
    fn keep(&mut self, port: VifOrTap<VifQueue<H::Grants, H::Event>>) {
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
    ) -> Result<GuestVifStatus, Lost> {
        let dir = self.vif.backend_dir();
        let keys = unless_refused(device::read_keys(store, &dir), None)?;
        let offer = keys.as_ref().and_then(|keys| Offer::read(keys).ok());
        let refusal = keys.and_then(|keys| keys.error());
        let queue = |(index, counters): (u16, &Arc<QueueCounters>)| {
            let is_it = |placed: &&Placement| (placed.port, placed.queue) == (self.vif_port, index);
            let worker = placements.iter().find(is_it).map_or(0, |placed| placed.worker);
            QueueStatus::read(index, worker, counters)
        };
        Ok(GuestVifStatus {
            handle: self.vif.handle,
            interface: self.name.clone(),
            state: self.handshake.state().to_string(),
            max_queues: offer.map_or(1, |offer| offer.queues_max),
            offloads: ringway_control::offload_names(self.caps),
            error: self.error.clone().or(refusal),
            queues: (0..).zip(&self.counters).map(queue).collect(),
        })
    }

    /// Makes queues, fewer than wanted if there is no room for more, and says what the backend
    /// needs to know of them.
    fn allocate(&mut self, hypervisor: &H, wanted: Allocation) -> io::Result<Vec<QueueConfig>> {
        self.caps = wanted.backend.caps().and(self.interface.offloads);
        for _ in 0..wanted.queues {
            match self.make_queue(hypervisor, wanted) {
                Ok(queue) => self.idle.push(queue),
                Err(error) if self.idle.is_empty() => return Err(error),
                Err(error) => {
                    self.complain_of_few(wanted.queues, &error);
                    break;
                }
            }
        }
        Ok(self.idle.iter().map(VifQueue::config).collect())
    }

    fn make_queue(&mut self, hypervisor: &H, wanted: Allocation) -> io::Result<Queue<H>> {
        let backend = self.vif.backend;
        let events = if wanted.split_event_channels {
            let tx = hypervisor.alloc_unbound(backend)?;
            QueueEvents::Split { tx, rx: hypervisor.alloc_unbound(backend)? }
        } else {
            QueueEvents::Single(hypervisor.alloc_unbound(backend)?)
        };
        let counters = Arc::default();
        let mut queue =
            VifQueue::new(hypervisor.grants()?, backend, events, Arc::clone(&counters))?;
        queue.set_caps(self.caps);
        if let Some(pages) = self.interface.max_unanswered {
            queue.limit_unanswered(pages);
        }
        self.counters.push(counters);
        Ok(queue)
    }

    /// Once, and not each time that the backend makes the vif connect anew.
    fn complain_of_few(&mut self, wanted: u16, error: &io::Error) {
        let count = self.idle.len();
        if self.short.replace(count) != Some(count) {
            let handle = self.vif.handle;
            tracing::warn!(handle, "{count} queues and not {wanted}, as for one more: {error}");
        }
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
    /// Runs the handshake until it waits for something from outside. What XenStore refuses is a
    /// failure of this vif.
    pub(crate) fn feed(&mut self, handle: u32, input: Input) -> Result<(), Lost> {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let Some(nic) = self.nics.get_mut(&handle) else { return Ok(()) };
            let mut has_failed = false;
            for action in nic.handshake.handle(input) {
                if has_failed && !is_local(&action) {
                    continue;
                }
                let acted = self.act(handle, action);
                match or_refusal(acted)? {
                    Ok(answer) => next = answer.or(next),
                    Err(refusal) => {
                        has_failed = true;
                        next = Some(Input::Fail(refusal.to_string()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries out one action. An action that asks for an answer comes last and returns it.
    fn act(&mut self, handle: u32, action: Action) -> Result<Option<Input>, XsError> {
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
                let keys = device::read_keys(&mut self.store, &dir)?;
                let made = nic.make_device(&keys.unwrap_or_else(|| Keys::new(&dir, [])));
                let made = made.and_then(|()| nic.allocate(&self.hypervisor, wanted));
                if made.is_err() {
                    nic.release();
                }
                return Ok(Some(Input::Allocated(made.map_err(|error| error.to_string()))));
            }
            Action::Carrier(Carrier::Up) => {
                if let Err(error) = self.join(handle) {
                    return Ok(Some(Input::Fail(error.to_string())));
                }
                let is_repaired = self.nics.get_mut(&handle).and_then(|nic| nic.error.take());
                if is_repaired.is_some() {
                    self.set_error(handle, None)?;
                }
            }
            Action::Carrier(Carrier::Down) => self.part(handle),
            Action::Release => nic.release(),
            Action::ReportError(reason) => {
                tracing::warn!(handle, "{reason}");
                self.set_error(handle, Some(&reason))?;
                if let Some(nic) = self.nics.get_mut(&handle) {
                    nic.error = Some(reason);
                }
            }
            Action::Finished => self.remove(handle)?,
        }
        Ok(None)
    }

    /// Gives the queues to workers: frames flow.
    fn join(&mut self, handle: u32) -> io::Result<()> {
        let Some(nic) = self.nics.get_mut(&handle) else { return Ok(()) };
        let Some(tap) = &nic.tap else { return Ok(()) };
        // What the kernel leaves undone, the backend must be able to take.
        tap.set_offloads(nic.caps)?;
        let counters: Arc<QueueCounters> = Arc::default();
        let taps = tap.queues(Side::Guest, |_| Arc::clone(&counters));
        let taps = taps.into_iter().map(|tap| Attachment {
            port: VifOrTap::Tap(tap),
            counters: Arc::clone(&counters),
            flood: unlimited(),
        });
        let queues = nic.idle.drain(..).zip(&nic.counters).map(|(queue, counters)| Attachment {
            port: VifOrTap::Vif(queue),
            counters: Arc::clone(counters),
            flood: unlimited(),
        });
        self.workers.attach(nic.vif_port, &Forwarding::Patch(nic.tap_port), queues.collect())?;
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
        // Those that failed meanwhile; that they did no longer matters.
        self.collect_port_events();
        let Some(nic) = self.nics.get_mut(&handle) else { return };
        nic.fault = None;
        tracing::info!(handle, "disconnected");
    }
}

/// Whether an action is about nothing but this process.
fn is_local(action: &Action) -> bool {
    let is_down = matches!(action, Action::Carrier(Carrier::Down));
    is_down || matches!(action, Action::Release | Action::ReportError(_) | Action::Finished)
}

/// A patched port floods nobody.
fn unlimited() -> FloodBudget {
    FloodBudget::new(FloodLimit::NONE, Ticks::default())
}
