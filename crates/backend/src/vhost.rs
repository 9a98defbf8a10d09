//! Virtio vifs: guests behind vhost-user sockets.
//!
//! A [`VhostVif`] has what a Xen vif has, except XenStore and the handshake over it: the session of
//! `vhost-shell` determines what to serve. A turn may change several queues; all of them are
//! detached from the workers when the first must stop, and attached again after the turn.

mod memory;
mod status;
mod unattached;
mod unshared;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{Mirrored, OffloadCaps, PortRules, QueueCounters};
use ringway_host::{
    Charged, Floor, Kernel as _, LeftOut, LinkSetting, LowMtu, NewQueues, Rules, Settings, Shared,
    Tap as _, VifState, connect, disconnect,
};
use ringway_hypervisor::Hypervisor;
use ringway_sys::eventfd::{EventFd, PeerCounters};
use ringway_sys::guest_memory::{DirtyLog, GuestMemory, MappingShare};
use ringway_tap::VifOrTap;
use ringway_vhost::backend::{AreaRequest, Bases, Log, Negotiated, Offer};
use ringway_vhost::{Area, Base, PairPlan, RegionKey, RingPlan};
use ringway_vhost_shell::{BackendEnd, Device, Note};
use ringway_virtback::{LogPlace, PairControl, PairParts, QueuePair, QueueParts, used_index};
use ringway_virtio::{Format, QueueOptions};
use ringway_wire::virtio::VHOST_F_LOG_ALL;
use ringway_worker::Attachment;
use ringway_xenbus::MIRROR_KEY;
use ringway_xenstore::RateLimit;

use crate::config::VhostVif as Config;
use crate::inflight::InflightArea;
use crate::machinery::{AnyQueue, HostingOf, Machinery};
use crate::sockets::PassedOn;
use crate::vif_or_trunk::VifOrTrunk;
use crate::virtio_features::offered;
use memory::MemoryLimit;
pub(crate) use unattached::Added;
use unattached::Unattached;
use unshared::Unshared;

/// The most bytes of a dirty log: a bit for each page of 16 TiB. It bounds the memory that one
/// session can have us map.
const LOG_LEN_MAX: u64 = 512 << 20;
/// How often pairs may be attached in a burst, and the interval after that: attaching involves all
/// workers, and a front-end causes it with each change. At its start, a front-end may cause it for
/// each pair.
const ATTACHES_BURST: u32 = 256;
const ATTACH_INTERVAL: Duration = Duration::from_millis(50);

/// A virtio vif that this backend serves.
pub(crate) struct VhostVif<H: Hypervisor> {
    pub(crate) state: VifState<Machinery<H>>,
    pub(crate) config: Config,
    /// Whether it was added while the host ran.
    pub(crate) at_run_time: bool,
    pub(crate) end: BackendEnd<PassedOn>,
    parts: Parts,
    settings: Settings,
    /// Why no front-end is accepted: panics over its guests.
    quarantined: Option<String>,
    /// Why it has no device on its bridge, so that no front-end is accepted.
    unattached: Option<Unattached>,
}

/// What a front-end has passed to us.
struct Parts {
    /// Its share of what this process can map.
    share: Arc<MappingShare>,
    memory: Option<Arc<GuestMemory>>,
    memory_limit: MemoryLimit,
    log: Option<Arc<DirtyLog>>,
    /// The area that records what is in flight.
    area: Option<InflightArea>,
    /// What the opener should send to the front-end.
    wanted: Option<AreaRequest>,
    /// Pairs that should be served.
    plans: BTreeMap<u16, PairPlan>,
    /// How often they may be attached to workers.
    rate_limit: RateLimit,
    /// When they will be attached, if that was deferred.
    due: Option<Instant>,
    /// Pairs that are being served.
    controls: BTreeMap<u16, Arc<PairControl>>,
    counters: BTreeMap<u16, Arc<QueueCounters>>,
    /// Its event counters that are written to.
    calls: PeerCounters,
    unshared: Unshared,
    /// A guest's address that must be announced to the network.
    announced: Option<[u8; 6]>,
    /// The least to offer.
    floor: Floor,
}

impl<H: Hypervisor> VhostVif<H> {
    /// Starts waiting for a front-end.
    ///
    /// # Errors
    /// If there are too many of them.
    pub(crate) fn begin(
        Added { config, at_run_time, may_wait }: Added,
        place: PassedOn,
        hosting: &mut HostingOf<'_, H>,
    ) -> io::Result<VhostVif<H>> {
        let now = hosting.now;
        let share = MappingShare::new().map_err(io::Error::other)?;
        let floor = Floor::read(&config.name, hosting.notes);
        // A user sees at once that an MTU cannot be; a description is served as far as possible.
        let low_mtu = if may_wait { LowMtu::Warn } else { LowMtu::Refuse };
        let made = unattached::make_device(&config, &floor, low_mtu, hosting).transpose();
        let (device, unattached) = match made {
            Ok(device) => (device, None),
            Err(error) if may_wait => (None, Some(Unattached::new(&error, now))),
            Err(error) => return Err(error),
        };
        let settings = Settings::read(&config.name, &config.limits, &config.rules, hosting.notes);
        let wanted = settings.rules(&config.rules);
        let rules = Rules { wanted, mac: config.mac, ..Rules::default() };
        let (charged, offer) =
            (Charged::Virtio(config.name.clone()), hosting.shared.offer(Some(config.queues)));
        let mut state = VifState::new(charged, offer, rules, hosting.shared, now);
        state.device = device;
        state.limited.mtu_min = floor.mtu();
        state.set_limits(&settings.keys(), hosting);
        let parts = Parts {
            share,
            memory: None,
            memory_limit: MemoryLimit::new(config.max_memory),
            log: None,
            area: None,
            wanted: None,
            plans: BTreeMap::new(),
            rate_limit: RateLimit::new(ATTACHES_BURST, ATTACH_INTERVAL, now),
            due: None,
            controls: BTreeMap::new(),
            counters: BTreeMap::new(),
            calls: PeerCounters::default(),
            unshared: Unshared::default(),
            announced: None,
            floor,
        };
        let end = BackendEnd::new(place);
        let mut vif = VhostVif {
            state,
            config,
            at_run_time,
            end,
            parts,
            settings,
            quarantined: None,
            unattached,
        };
        vif.check_quarantine(hosting.shared);
        Ok(vif)
    }

    /// Accepts front-ends, or not, according to the remembered panics.
    pub(crate) fn check_quarantine(&mut self, shared: &Shared) {
        self.quarantined = shared.quarantine.reason(&self.state.charged);
        if let Some(reason) = &self.quarantined {
            tracing::warn!(vif = self.state.name, "{reason}");
        }
        self.state.is_quarantined = self.quarantined.is_some();
    }

    /// Does pending work; returns whether there may be more.
    pub(crate) fn turn(&mut self, hosting: &mut HostingOf<'_, H>) -> io::Result<bool> {
        if self.quarantined.is_some() || !self.attach(hosting) {
            return Ok(false);
        }
        let now = hosting.now;
        let VhostVif { state, config, end, parts, .. } = self;
        let more = end.turn(&mut Serving { state, config, parts, hosting }, now)?;
        let Some(wanted) = self.parts.wanted.take() else { return Ok(more) };
        if let Err(error) = self.end.source().send_area_order(wanted) {
            self.on_area_sent(hosting, Err(format!("the inflight area: {error}")));
        }
        Ok(more)
    }

    /// Handles the outcome of sending an area to its front-end.
    pub(crate) fn on_area_sent(
        &mut self,
        hosting: &mut HostingOf<'_, H>,
        outcome: Result<(), String>,
    ) {
        let now = hosting.now;
        let VhostVif { state, config, end, parts, .. } = self;
        end.on_area_sent(&mut Serving { state, config, parts, hosting }, outcome, now);
    }

    /// Sets a valid limit on a user's request, for as long as the vif exists.
    pub(crate) fn set_limit(
        &mut self,
        key: &str,
        value: &str,
        hosting: &mut HostingOf<'_, H>,
    ) -> Result<(), String> {
        let noted = self.settings.set(key, value, hosting.notes);
        self.state.set_limits(&self.settings.keys(), hosting);
        noted
    }

    /// Makes it the output of a mirror, or an ordinary vif.
    pub(crate) fn set_mirror(
        &mut self,
        mirror: Vec<Mirrored>,
        value: &str,
        hosting: &mut HostingOf<'_, H>,
    ) -> Result<(), String> {
        let rules = PortRules { mirror, ..self.state.rules.wanted.clone() };
        self.state.update_rules(rules, None, hosting)?;
        self.settings.set(MIRROR_KEY, value, hosting.notes)
    }

    /// Handles a queue that a worker gave up: the guest is disconnected, and may reconnect.
    pub(crate) fn close(&mut self, hosting: &mut HostingOf<'_, H>, reason: &str) {
        let now = hosting.now;
        let VhostVif { state, config, end, parts, .. } = self;
        end.close(&mut Serving { state, config, parts, hosting }, reason, now);
    }
}

impl<H: Hypervisor> VhostVif<H> {
    /// Ends it for good: a later vif with this name is a different one.
    pub(crate) fn end(mut self, hosting: &mut HostingOf<'_, H>) {
        let now = hosting.now;
        let VhostVif { state, config, end, parts, .. } = &mut self;
        end.remove(&mut Serving { state, config, parts, hosting }, now);
        let notes = &mut *hosting.notes;
        for forgotten in [self.parts.floor.forget(notes), self.settings.forget(notes)] {
            let _ = forgotten.inspect_err(|reason| tracing::warn!("{reason}"));
        }
        hosting.shared.quarantine.release(&self.state.charged, notes);
        let device = self.state.device;
        let removed = device.map(|device| hosting.devices.remove(device, hosting.notes));
        if let Some(Err(error)) = removed {
            tracing::debug!(%error, "the network device was already gone");
        }
    }
}

/// One vif, with the services needed to serve its guest.
struct Serving<'a, 'b, H: Hypervisor> {
    state: &'a mut VifState<Machinery<H>>,
    config: &'a Config,
    parts: &'a mut Parts,
    hosting: &'a mut HostingOf<'b, H>,
}

impl<H: Hypervisor> Device for Serving<'_, '_, H> {
    fn offer(&mut self, front_end: Option<u32>) -> Offer {
        let caps = self.config.offloads.and(self.hosting.shared.config.offloads);
        let floor = self.parts.floor.of(front_end);
        self.keep_mtu(floor.mtu);
        Offer {
            features: offered(caps).and(self.config.features),
            floor,
            protocol: self.config.protocol,
            pairs: self.config.queues,
            mtu_max: self.config.limits.mtu.unwrap_or_else(|| self.state.mtu_max()),
        }
    }

    fn set_memory(&mut self, regions: Vec<ringway_vhost::Region>) -> Result<(), String> {
        self.parts.set_memory(regions)
    }

    fn add_region(&mut self, added: ringway_vhost::Region) -> Result<(), String> {
        self.parts.add_region(added)
    }

    fn remove_region(&mut self, removed: RegionKey) -> Result<(), String> {
        self.parts.remove_region(&removed)
    }

    fn set_log(&mut self, log: Log) -> Result<(), String> {
        if log.size > LOG_LEN_MAX {
            return Err(format!("a log of {} bytes, expected at most {LOG_LEN_MAX}", log.size));
        }
        self.parts.log = None;
        let log = DirtyLog::map(&self.parts.share, log.file, log.offset, log.size);
        self.parts.log = Some(Arc::new(log.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn start(&mut self, plan: PairPlan) -> Result<(), String> {
        self.detach();
        if let Some(area) = &self.parts.area {
            area.starts(QueueOptions::of(plan.features).format, plan.pair);
        }
        self.parts.plans.insert(plan.pair, plan);
        Ok(())
    }

    fn stop(&mut self, pair: u16) -> Bases {
        self.detach();
        self.parts.note_stop(pair);
        let plan = self.parts.plans.remove(&pair);
        let memory = &self.parts.memory;
        let base = |ring: &RingPlan| match ring.base {
            Base::At(base) => base,
            Base::Used => {
                let index = memory.as_ref().and_then(|memory| used_index(ring, memory).ok());
                index.map_or(0, u32::from)
            }
        };
        plan.map_or(Bases { rx: 0, tx: 0 }, |plan| Bases { rx: base(&plan.rx), tx: base(&plan.tx) })
    }

    fn apply_changes(&mut self) -> Result<(), String> {
        let is_needed = self.parts.plans.values().any(|plan| plan.is_enabled);
        self.parts.due = None;
        if self.state.connection.is_some() || !is_needed {
            return Ok(());
        }
        if let Err(later) = self.parts.rate_limit.take(self.hosting.now) {
            self.parts.due = Some(later);
            return Ok(());
        }
        self.attach().map_err(|error| error.to_string())
    }

    fn announce(&mut self, mac: [u8; 6]) {
        self.parts.announced = Some(mac);
        self.send_announcement();
    }

    fn set_mtu(&mut self, mtu: u16) {
        tracing::debug!(vif = self.state.name, mtu, "the front-end reports this MTU to its guest");
    }

    fn make_area(&mut self, wanted: AreaRequest) -> Result<(), String> {
        // A confined process can neither create nor send a file: the opener does both.
        self.parts.wanted = Some(wanted);
        Ok(())
    }

    fn set_area(&mut self, area: Area) -> Result<(), String> {
        self.parts.area = None;
        self.parts.area = InflightArea::map(&self.parts.share, area)?;
        Ok(())
    }

    fn drop_area(&mut self) {
        self.parts.area = None;
    }

    fn negotiated(&mut self, negotiated: Negotiated) {
        // A front-end may set any MTU if none is configured. No longer frames passed, though.
        let mtu = u32::from(negotiated.mtu).min(self.state.mtu(self.hosting.shared));
        let negotiated = Negotiated { mtu: u16::try_from(mtu).unwrap_or(0), ..negotiated };
        let noted = self.parts.floor.note(negotiated, self.hosting.notes);
        let Err(reason) = noted else { return };
        let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) else { return };
        tracing::warn!(left_out, "{reason}");
    }

    fn reset(&mut self) {
        self.detach();
        self.parts.calls = PeerCounters::default();
        let Parts { memory, log, area, wanted, plans, counters, due, announced, unshared, .. } =
            self.parts;
        *unshared = Unshared::default();
        self.parts.memory_limit.forget_first();
        (*memory, *log, *due, *announced) = (None, None, None, None);
        (*area, *wanted) = (None, None);
        plans.clear();
        counters.clear();
    }

    fn note(&mut self, note: Note<'_>) {
        let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) else { return };
        let vif = &self.state.name;
        match note {
            Note::Connected => tracing::info!(vif, left_out, "the front-end has connected"),
            Note::Disconnected => tracing::info!(vif, left_out, "the front-end has disconnected"),
            Note::Removed => tracing::info!(vif, left_out, "the vif was removed"),
            Note::Closed(why) | Note::Stopped(why) | Note::Left(why) => {
                tracing::warn!(vif, left_out, "{why}");
            }
        }
    }
}

impl<H: Hypervisor> Serving<'_, '_, H> {
    /// Lets frames be as long as the front-end and its guest expect since an earlier session.
    fn keep_mtu(&mut self, kept: u16) {
        let Serving { state, hosting, .. } = self;
        if std::mem::replace(&mut state.limited.mtu_min, kept) == kept {
            return;
        }
        let (Some(device), Some(keeper)) = (&state.device, hosting.devices.keeper()) else {
            return;
        };
        let setting = LinkSetting::Mtu(device.mtu.max(kept.into()));
        if let Err(error) = keeper.net.set(device.tap.name(), &[setting]) {
            tracing::debug!(vif = state.name, %error, "the network device keeps its MTU");
        }
    }

    /// Attaches all pairs that should be served to workers, as one port.
    fn attach(&mut self) -> io::Result<()> {
        let plans = std::mem::take(&mut self.parts.plans);
        let made = |of: &mut Self, is_enabled: bool| -> io::Result<Vec<_>> {
            let plans = plans.values().filter(|plan| plan.is_enabled == is_enabled);
            plans.map(|plan| of.pair(plan)).collect()
        };
        let (made, drained) = (made(self, true), made(self, false));
        self.parts.plans = plans;
        let mut caps = OffloadCaps::ALL;
        let mut enabled = Vec::new();
        for (queue, counters) in made? {
            caps = caps.and(ringway_datapath::PortQueue::describe(&queue).caps);
            enabled.push(self.attachment(queue, counters));
        }
        let disabled = drained?.into_iter();
        let disabled = disabled.map(|(queue, counters)| self.attachment(queue, counters)).collect();
        let queues = enabled.len();
        let connected = connect(
            self.state,
            NewQueues { enabled, disabled, steering: None, caps },
            self.hosting,
        );
        if let Err(error) = connected {
            self.note_bases();
            return Err(error);
        }
        tracing::debug!(vif = self.state.name, queues, "connected");
        self.send_announcement();
        Ok(())
    }

    /// Has a served pair send the pending announcement, from which the switch learns the guest's
    /// port. If no pair is served yet, the announcement waits.
    fn send_announcement(&mut self) {
        let Parts { announced, plans, controls, calls, .. } = &mut *self.parts;
        let served = plans.values().find(|plan| plan.is_enabled);
        let served = served.and_then(|plan| Some((plan, controls.get(&plan.pair)?)));
        let (Some((plan, control)), Some(mac)) = (served, announced.take_if(|_| served.is_some()))
        else {
            return;
        };
        control.announce(mac);
        let kick = plan.tx.kick.as_fd().try_clone_to_owned();
        let kick = kick.and_then(|kick| EventFd::to_peer(kick, calls));
        if let Err(error) = kick.and_then(|kick| kick.signal()) {
            tracing::debug!(vif = self.state.name, %error, "the guest will be announced later");
        }
    }

    fn attachment(
        &self,
        queue: QueuePair,
        counters: Arc<QueueCounters>,
    ) -> Attachment<AnyQueue<H>> {
        Attachment {
            queue: VifOrTap::Vif(VifOrTrunk::Virtio(Box::new(queue))),
            counters,
            flood: Arc::clone(&self.state.limited.flood),
            stations: self.state.limited.stations(),
        }
    }

    /// Takes all pairs back from their workers, and notes where each must continue.
    fn detach(&mut self) {
        if disconnect(self.state, self.hosting) {
            self.note_bases();
        }
    }

    /// Notes where each pair must continue that was served.
    fn note_bases(&mut self) {
        for (pair, control) in std::mem::take(&mut self.parts.controls) {
            let Some(plan) = self.parts.plans.get_mut(&pair) else { continue };
            let [tx, rx] = control.bases();
            plan.tx.base = Base::At(tx);
            plan.rx.base = Base::At(rx);
        }
    }

    fn pair(&mut self, plan: &PairPlan) -> io::Result<(QueuePair, Arc<QueueCounters>)> {
        let memory = self.parts.memory.clone();
        let memory = memory.ok_or_else(|| io::Error::other("there is no memory"))?;
        let counters = Arc::clone(self.parts.counters.entry(plan.pair).or_default());
        let control = Arc::new(PairControl::new(plan.is_enabled));
        self.parts.controls.insert(plan.pair, Arc::clone(&control));
        let log = self.parts.log.clone().filter(|_| plan.features.has(VHOST_F_LOG_ALL));
        let format = QueueOptions::of(plan.features).format;
        let parts = PairParts {
            features: plan.features,
            tx: self.queue(&plan.tx, 2 * plan.pair + 1, &memory, (format, log.clone()))?,
            rx: self.queue(&plan.rx, 2 * plan.pair, &memory, (format, log))?,
            memory,
            control,
            counters: Arc::clone(&counters),
            calls: self.parts.calls.clone(),
        };
        let queues = QueuePair::attach(parts).map_err(io::Error::other)?;
        self.parts.area.iter_mut().for_each(|area| area.is_served(plan.pair));
        Ok((queues, counters))
    }

    fn queue(
        &self,
        plan: &RingPlan,
        ring: u16,
        memory: &GuestMemory,
        (format, log): (Format, Option<Arc<DirtyLog>>),
    ) -> io::Result<QueueParts> {
        let parts = QueueParts::of_plan(plan, memory, format);
        Ok(QueueParts {
            log: log.map(|log| LogPlace { log, ring_address: plan.addresses.log }),
            inflight: self.parts.area.as_ref().and_then(|it| it.part(format, ring, plan.size)),
            ..parts.map_err(|error| io::Error::other(format!("ring {ring}: {error}")))?
        })
    }
}
