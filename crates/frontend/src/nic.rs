//! One interface: a TAP device, a vif, and the handshake that joins them.
//!
//! A [`Nic`] owns all state of its vif, and is given what it shares with others.

use std::fmt::Arguments;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{GuestVifStatus, HashStatus, QueueStatus};
use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_hypervisor::{Hypervisor, QueueEvents};
use ringway_net::ethtool::Ethtool;
use ringway_net::{LinkSetting, Netlink};
use ringway_netfront::{Refusal, Slabs, StagedCount, VifQueue};
use ringway_switch::PortId;
use ringway_tap::{Tap, VifOrTap};
use ringway_vif_shell::{
    FrontendEnd, FrontendProcess, LeftOut, LogAllowance, Note, Released, device,
};
use ringway_worker::Placement;
use ringway_xenbus::frontend::{Allocated, Allocation, Input, Preferences, QueueCount};
use ringway_xenbus::{BadKeys, Features, KeySet, Keys, Offer, QueueConfig, Vif, XenbusState};
use ringway_xenstore::{Client, Lost, unless_refused};

use crate::Interface;
use crate::parts::{AnyQueue, Machinery, Parts};
use crate::reserve::Reserve;
use crate::wired::{self, Ports};

mod wish;

use wish::{absent_queue, wish};

/// How long a backend may take to close when the guest terminates: less than the supervisor of an
/// emulated guest waits for that.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(8);

type Queue<H> = VifQueue<<H as Hypervisor>::Grants, <H as Hypervisor>::Event>;

/// An interface of the guest: its end of the handshake, and its other state.
pub(crate) struct Nic<H: Hypervisor> {
    pub(crate) end: FrontendEnd,
    pub(crate) preferences: Preferences,
    link: NicLink<H>,
}

/// The state of an interface other than its handshake.
struct NicLink<H: Hypervisor> {
    vif: Vif,
    /// The device's name and configuration.
    name: String,
    interface: Interface,
    /// The device, from the backend's first offer on.
    tap: Option<Tap>,
    /// Whether the backend and the toolstack say that the link is up.
    is_up: bool,
    /// Whether the device has a carrier, and its MTU.
    shown: (bool, u16),
    /// The speed that the device was given, in megabits per second, if the toolstack has set one.
    speed: Option<u32>,
    /// Whether the toolstack distrusts the backend: then all bytes of frames are copied.
    must_copy: bool,
    tap_port: PortId,
    vif_port: PortId,
    /// Queues that are granted but not attached to a worker.
    idle: Vec<Queue<H>>,
    /// The slabs into which its device reads long frames.
    slabs: Option<Slabs>,
    counters: Vec<Arc<QueueCounters>>,
    caps: OffloadCaps,
    /// Whether the hash that was set is for this connection.
    may_wish: bool,
    /// Whether the backend has refused the hash that was set.
    refusal: Refusal,
    /// The pages that the backend keeps mapped.
    staged: StagedCount,
    /// The number of queues that was last reported as too small.
    short: Option<usize>,
    /// Why a worker gave up a queue, until that is handled.
    fault: Option<String>,
    /// The lines that its backend may still cause in the log.
    log: LogAllowance,
}

/// Why the interface's device cannot be made.
#[derive(Debug, thiserror::Error)]
enum NoDevice {
    #[error(transparent)]
    Keys(#[from] BadKeys),
    #[error("{0} is missing")]
    Missing(String),
    #[error(transparent)]
    Device(#[from] io::Error),
}

impl<H: Hypervisor> Nic<H> {
    pub(crate) fn new(vif: Vif, name: String, interface: Interface, ports: [PortId; 2]) -> Nic<H> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let queues = interface.queues.unwrap_or(u16::try_from(cpus).unwrap_or(u16::MAX));
        let features = Features::from(interface.offloads);
        let preferences = Preferences { queues: QueueCount::AtMost(queues), features };
        let [tap_port, vif_port] = ports;
        let link = NicLink {
            vif,
            name,
            interface,
            tap: None,
            is_up: true,
            shown: (true, 0),
            speed: None,
            must_copy: false,
            tap_port,
            vif_port,
            idle: Vec::new(),
            slabs: None,
            counters: Vec::new(),
            caps: OffloadCaps::NONE,
            may_wish: false,
            refusal: Refusal::default(),
            staged: StagedCount::default(),
            short: None,
            fault: None,
            log: LogAllowance::new(Instant::now()),
        };
        Nic { end: FrontendEnd::new(vif, preferences), preferences, link }
    }

    /// Begins the handshake. `own` is the frontend's state found in XenStore.
    pub(crate) fn start(&mut self, own: XenbusState, parts: &mut Parts<H>) -> Result<(), Lost> {
        let Parts { store, machinery } = parts;
        machinery.reserve.add(self.link.vif.handle);
        self.end.start(store, &mut NicProcess { link: &mut self.link, machinery }, own)
    }

    pub(crate) fn backend_changed(&mut self, parts: &mut Parts<H>) -> Result<(), Lost> {
        let Parts { store, machinery } = parts;
        self.end.backend_changed(store, &mut NicProcess { link: &mut self.link, machinery })
    }

    /// Connects again with another number of queues, on a user's request. Refuses a number that the
    /// backend does not offer now: it would close the vif, and the guest would be offline.
    pub(crate) fn set_queues(
        &mut self,
        queues: u16,
        parts: &mut Parts<H>,
    ) -> Result<Result<(), String>, Lost> {
        // Without a backend there is no offer, and the vif connects once there is one.
        let keys = self.backend_keys(&mut parts.store)?;
        let offer = keys.and_then(|keys| Offer::read(&keys).ok());
        let max = offer.map_or(u16::MAX, |offer| offer.queues_max);
        if !(1..=max).contains(&queues) {
            return Ok(Err(format!(
                "queues is {queues}, expected 1 to {max}: the backend offers {max}; `ringway vif \
                 set` changes max-queues there"
            )));
        }
        self.preferences = Preferences { queues: QueueCount::Exactly(queues), ..self.preferences };
        let Parts { store, machinery } = parts;
        let mut process = NicProcess { link: &mut self.link, machinery };
        self.end.reconnect(store, &mut process, self.preferences).map(Ok)
    }

    /// Connects again with another hash, on a user's request.
    pub(crate) fn set_hash(
        &mut self,
        hash: Option<(Vec<u8>, Vec<u16>)>,
        parts: &mut Parts<H>,
    ) -> Result<Result<(), String>, Lost> {
        let queues = self.link.counters.len();
        let wish = hash.map(|(key, mapping)| wish(&key, &mapping, queues)).transpose();
        let wish = match wish {
            Ok(wish) => wish,
            Err(reason) => return Ok(Err(reason)),
        };
        let keys = self.backend_keys(&mut parts.store)?;
        let offer = keys.and_then(|keys| Offer::read(&keys).ok());
        if wish.is_some() && offer.is_some_and(|offer| !offer.control_ring) {
            return Ok(Err("the backend offers no control ring, so it hashes as it likes".into()));
        }
        self.link.interface.hash = wish;
        let Parts { store, machinery } = parts;
        let mut process = NicProcess { link: &mut self.link, machinery };
        self.end.reconnect(store, &mut process, self.preferences).map(Ok)
    }

    /// Shows on the device what the backend and the toolstack say of the link now.
    pub(crate) fn follow_link(&mut self, parts: &mut Parts<H>) -> Result<(), Lost> {
        let Parts { store, machinery } = parts;
        let backend = self.backend_keys(store)?;
        let dir = self.link.vif.frontend_dir();
        let own = unless_refused(device::read_keys(store, &dir, KeySet::FrontendDevice), None)?;
        let is_unplugged = own.as_ref().is_some_and(Keys::is_unplugged);
        self.link.is_up = backend.is_none_or(|keys| keys.has_carrier()) && !is_unplugged;
        // A toolstack that writes no valid one changes nothing.
        let mtu = own.as_ref().and_then(|keys| keys.mtu().ok()).unwrap_or(self.link.shown.1);
        self.link.show(mtu, &mut machinery.netlink);
        let speed = own.and_then(|keys| keys.speed().ok()).flatten();
        self.link.show_speed(speed, machinery.ethtool.as_mut());
        Ok(())
    }

    /// What the backend offers now; `None` if there is no backend. The keys need not be of one
    /// moment: a backend that changes them all the time would have them read again and again.
    fn backend_keys(&self, store: &mut Client) -> Result<Option<Keys>, Lost> {
        let dir = self.link.vif.backend_dir();
        unless_refused(device::read_keys_apart(store, &dir, KeySet::Offer), None)
    }

    /// Connects again if a worker has given up a queue.
    pub(crate) fn recover(&mut self, parts: &mut Parts<H>) -> Result<(), Lost> {
        let Some(fault) = self.link.fault.take() else { return Ok(()) };
        self.link.warn(format_args!("{fault}"));
        let Parts { store, machinery } = parts;
        let mut process = NicProcess { link: &mut self.link, machinery };
        self.end.recover(store, &mut process, self.preferences, fault)
    }

    pub(crate) fn feed(&mut self, input: Input, parts: &mut Parts<H>) -> Result<(), Lost> {
        let Parts { store, machinery } = parts;
        self.end.feed(store, &mut NicProcess { link: &mut self.link, machinery }, input)
    }

    /// Follows what happens to the frames of its device.
    pub(crate) fn look_at_device(&self, parts: &mut Parts<H>) {
        self.link.look_at_device(&mut parts.machinery);
    }

    pub(crate) fn has_port(&self, port: PortId) -> bool {
        self.link.has_port(port)
    }

    /// A worker has detached this queue.
    pub(crate) fn take_failed(&mut self, fault: String, queue: AnyQueue<H>) {
        self.link.fault = Some(fault);
        self.link.take_failed(queue);
    }

    pub(crate) fn status(
        &self,
        store: &mut Client,
        placements: &[Placement],
    ) -> Result<GuestVifStatus, Lost> {
        let link = &self.link;
        let keys = self.backend_keys(store)?;
        let offer = keys.as_ref().and_then(|keys| Offer::read(keys).ok());
        let error = keys.and_then(|keys| keys.error());
        let refused = link.refusal.get();
        let queue = |(index, counters): (u16, &Arc<QueueCounters>)| {
            let is_it = |placed: &&Placement| (placed.port, placed.queue) == (link.vif_port, index);
            let worker = placements.iter().find(is_it).map_or(0, |placed| placed.worker);
            QueueStatus::read(index, worker, counters)
        };
        Ok(GuestVifStatus {
            handle: link.vif.handle,
            interface: link.name.clone(),
            state: self.end.state().to_string(),
            max_queues: offer.map_or(1, |offer| offer.queues_max),
            must_copy: link.must_copy,
            offloads: ringway_control::offload_names(link.caps),
            hash: link
                .interface
                .hash
                .as_ref()
                .filter(|_| link.may_wish && refused.is_none())
                .map(|wish| HashStatus::new(wish.types, &wish.key, &wish.mapping)),
            staged_pages: link.staged.get(),
            error: self.end.error().map(str::to_owned).or(error).or_else(|| {
                refused.map(|refused| format!("{refused}, so the hash that was set does not apply"))
            }),
            queues: (0..).zip(&link.counters).map(queue).collect(),
        })
    }
}

impl<H: Hypervisor> NicLink<H> {
    /// Makes the device per the toolstack and the configuration, unless it exists.
    fn make_device(
        &mut self,
        netlink: &mut Netlink,
        ethtool: Option<&mut Ethtool>,
        keys: &Keys,
    ) -> Result<(), NoDevice> {
        if self.tap.is_some() {
            return Ok(());
        }
        let mac = keys.mac()?.ok_or_else(|| NoDevice::Missing(keys.path("mac")))?;
        let mtu = keys.mtu()?;
        let tap = wired::make_device(netlink, &self.name, mac, mtu, &self.interface)?;
        self.tap = Some(tap);
        self.shown = (true, mtu);
        self.show(mtu, netlink);
        self.speed = None;
        self.show_speed(keys.speed().ok().flatten(), ethtool);
        Ok(())
    }

    /// Gives the device the speed that the toolstack has set; without a valid one it keeps its own.
    fn show_speed(&mut self, speed: Option<u32>, ethtool: Option<&mut Ethtool>) {
        let (Some(tap), Some(mbit), Some(ethtool)) = (&self.tap, speed, ethtool) else { return };
        if self.speed != speed && ethtool.set_speed(tap.name(), mbit).is_ok() {
            self.speed = speed;
        }
    }

    /// Gives the device the carrier that it should have, and this MTU. Reports nothing that a
    /// backend could cause any number of times.
    fn show(&mut self, mtu: u16, netlink: &mut Netlink) {
        let Some(tap) = &self.tap else { return };
        let wanted = (self.is_up, mtu);
        if wanted == self.shown {
            return;
        }
        let settings = [LinkSetting::Carrier(self.is_up), LinkSetting::Mtu(mtu.into())];
        let set = netlink.set(tap.name(), &settings);
        // Linux before 5.0 does not set the carrier of a TAP device.
        let set = set.or_else(|_| netlink.set(tap.name(), &settings[1..]));
        tracing::debug!(handle = self.vif.handle, is_up = self.is_up, mtu, ?set, "link");
        if set.is_ok() {
            self.shown = wanted;
        }
    }

    fn look_at_device(&self, machinery: &mut Machinery<H>) {
        let Machinery { netlink, gro, .. } = machinery;
        if let Some(tap) = self.tap.as_ref().filter(|_| self.interface.gro) {
            gro.look(tap, netlink);
        }
    }

    fn has_port(&self, port: PortId) -> bool {
        port == self.tap_port || port == self.vif_port
    }

    /// Takes a queue that a worker gave up. A failed device was deleted, and is made again.
    fn take_failed(&mut self, queue: AnyQueue<H>) {
        if let VifOrTap::Tap(_) = queue {
            self.tap = None;
        }
        self.keep(queue);
    }

    /// Keeps a queue until the backend has closed and its grants can end.
    fn keep(&mut self, queue: AnyQueue<H>) {
        match queue {
            VifOrTap::Vif(queue) => self.idle.push(queue),
            // `tap` owns the device.
            VifOrTap::Tap(_) => {}
        }
    }

    /// Makes queues, fewer than wanted if there is no room for more, and returns what the backend
    /// must know about them.
    fn make_queues(
        &mut self,
        hypervisor: &H,
        reserve: &mut Reserve,
        wanted: Allocation,
    ) -> io::Result<Allocated> {
        self.caps = wanted.backend.caps().and(self.interface.offloads);
        for _ in 0..wanted.queues {
            match self.make_queue(hypervisor, wanted) {
                Ok(queue) => self.idle.push(queue),
                Err(error) if self.idle.is_empty() => return Err(error),
                Err(error) => {
                    self.warn_too_few_queues(wanted.queues, &error);
                    break;
                }
            }
        }
        let queues: Vec<QueueConfig> = self.idle.iter().map(VifQueue::config).collect();
        let may_wish = wanted.control_ring && self.may_wish();
        let wants_control = may_wish || wanted.control_ring && self.interface.staging;
        let first = self.idle.first_mut().filter(|_| wants_control);
        let backend = self.vif.backend;
        let control = first
            .map(|queue| queue.add_control(backend, hypervisor.alloc_unbound(backend)?))
            .transpose()?;
        self.may_wish = may_wish && control.is_some();
        reserve.remove(self.vif.handle);
        // The kernel does not tell which groups its device listens to.
        Ok(Allocated { queues, control, multicast_control: false })
    }

    /// Whether a hash was set, and is one for the queues that exist now. The backend would refuse
    /// another one in the midst of its messages, and then hash by half of them.
    fn may_wish(&mut self) -> bool {
        let Some(wish) = &self.interface.hash else { return false };
        let queues = self.idle.len();
        let absent = absent_queue(&wish.mapping, queues);
        if let Some(queue) = absent {
            self.warn(format_args!(
                "the hash that was set is left out: its mapping has queue {queue}, and there are \
                 {queues}"
            ));
        }
        absent.is_none()
    }

    /// Makes the slabs, if a queue of each vif that has none would have room beside them: no vif
    /// lacks pages that serve only the speed of another. Without slabs, every frame is copied.
    fn make_slabs(&mut self, hypervisor: &H, reserve: &Reserve) {
        if self.slabs.is_some() || self.must_copy {
            return;
        }
        let backend = self.vif.backend;
        let made = reserve.make_beside(hypervisor, |grants| Slabs::new(grants, backend));
        if let Ok(slabs) = made {
            self.idle.iter_mut().for_each(|queue| queue.send_from(&slabs));
            self.slabs = Some(slabs);
        }
    }

    /// Says over the control ring how the vif's queues are to be served: before they have frames.
    fn send_messages(&mut self) -> ringway_datapath::Result {
        let NicLink { idle, interface, may_wish, refusal, staged, .. } = self;
        let pages = interface.staging.then(|| idle.iter().map(VifQueue::pages).collect());
        let Some(first) = idle.first_mut() else { return Ok(()) };
        if let Some(wish) = interface.hash.as_ref().filter(|_| *may_wish) {
            *refusal = first.refusal();
            first.wish(wish.clone())?;
        }
        *staged = first.staged();
        pages.map_or(Ok(()), |pages| first.stage(pages))
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
        let in_place = if self.must_copy { Ok(()) } else { queue.receive_in_place() };
        if let Err(error) = in_place {
            // The backend knows nothing of its pages.
            let _ = queue.close();
            return Err(error);
        }
        if let Some(pages) = self.interface.max_unanswered {
            queue.limit_unanswered(pages);
        }
        self.counters.push(counters);
        Ok(queue)
    }

    /// Reports it once, not each time that the backend makes the vif reconnect.
    fn warn_too_few_queues(&mut self, wanted: u16, error: &io::Error) {
        let count = self.idle.len();
        if self.short.replace(count) != Some(count) {
            self.warn(format_args!(
                "{count} queues instead of {wanted}: cannot create another one: {error}"
            ));
        }
    }

    /// Warns of something that the backend can cause any number of times.
    fn warn(&mut self, what: Arguments<'_>) {
        if let Some(LeftOut(left_out)) = self.log.line(Instant::now()) {
            tracing::warn!(handle = self.vif.handle, left_out, "{what}");
        }
    }

    fn note(&mut self, note: Note<'_>) {
        match note {
            Note::State(state) => {
                tracing::debug!(handle = self.vif.handle, %state, "frontend state");
            }
            Note::Refused(refusal) => self.warn(format_args!("{refusal}")),
            Note::Waits(reason) | Note::Closed(reason) => self.warn(format_args!("{reason}")),
            // Only a backend waits for a script.
            Note::AwaitsHotplug => {}
        }
    }

    /// Ends the grants of all queues.
    fn release(&mut self, hypervisor: &H, reserve: &mut Reserve) -> Released {
        reserve.add(self.vif.handle);
        let mut released = Released::Free;
        for queue in std::mem::take(&mut self.idle) {
            let is_lent = queue.has_lent_pages();
            if let Err(in_use) = queue.close() {
                if !is_lent {
                    released = Released::KeptByBackend;
                }
                self.warn(format_args!("pages of a queue stay allocated: {in_use}"));
            }
        }
        if let Some(slabs) = self.slabs.take() {
            let is_lent = slabs.has_lent_pages();
            let grants = hypervisor.grants().map_err(|error| error.to_string());
            let closed = grants.and_then(|mut grants| {
                slabs.close(&mut grants).map_err(|in_use| in_use.to_string())
            });
            if let Err(reason) = closed {
                if !is_lent {
                    released = Released::KeptByBackend;
                }
                self.warn(format_args!("pages of a vif are lost: {reason}"));
            }
        }
        self.counters.clear();
        self.staged = StagedCount::default();
        self.caps = OffloadCaps::NONE;
        released
    }
}

/// One vif, with what its queues need.
struct NicProcess<'a, H: Hypervisor> {
    link: &'a mut NicLink<H>,
    machinery: &'a mut Machinery<H>,
}

impl<H: Hypervisor> FrontendProcess for NicProcess<'_, H> {
    fn allocate(&mut self, own: &Keys, wanted: Allocation) -> Result<Allocated, String> {
        let NicProcess { link, machinery } = self;
        //= netif.h:trusted
        link.must_copy = !own.trusts_backend();
        let Machinery { hypervisor, netlink, ethtool, reserve, .. } = &mut **machinery;
        let made = link.make_device(netlink, ethtool.as_mut(), own);
        let made = made.map_err(|error| error.to_string());
        let made = made.and_then(|()| {
            link.make_queues(hypervisor, reserve, wanted).map_err(|error| error.to_string())
        });
        if made.is_err() {
            link.release(hypervisor, reserve);
        }
        made
    }

    fn release(&mut self) -> Released {
        let Machinery { hypervisor, reserve, .. } = &mut *self.machinery;
        self.link.release(hypervisor, reserve)
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        self.join().map_err(|error| error.to_string())
    }

    /// Takes the queues back from their workers: frames stay in the kernel's queue.
    fn carrier_down(&mut self) {
        let NicProcess { link, machinery } = self;
        machinery.workers.detach(link.tap_port);
        for queue in machinery.workers.detach(link.vif_port) {
            link.keep(queue);
        }
        // Takes back the queues that failed meanwhile; their faults no longer matter.
        for event in machinery.take_events_of(|port| link.has_port(port)) {
            link.take_failed(event.queue);
        }
        link.fault = None;
        if let Some(LeftOut(left_out)) = link.log.line(Instant::now()) {
            tracing::info!(handle = link.vif.handle, left_out, "disconnected");
        }
    }

    fn note(&mut self, note: Note<'_>) {
        self.link.note(note);
    }
}

impl<H: Hypervisor> NicProcess<'_, H> {
    /// Gives the queues to workers: frames flow.
    fn join(&mut self) -> io::Result<()> {
        let NicProcess { link, machinery } = self;
        link.make_slabs(&machinery.hypervisor, &machinery.reserve);
        link.send_messages().map_err(io::Error::other)?;
        let Some(tap) = &link.tap else { return Ok(()) };
        let ports = Ports { tap: link.tap_port, vif: link.vif_port };
        let queues = link.idle.drain(..).zip(link.counters.iter().cloned());
        let page_pool = link.slabs.as_ref().map(Slabs::page_pool);
        wired::join(&mut machinery.workers, ports, tap, link.caps, queues, page_pool)?;
        if let Some(LeftOut(left_out)) = link.log.line(Instant::now()) {
            let queues = link.counters.len();
            tracing::info!(handle = link.vif.handle, queues, left_out, "connected");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
