//! An interface over vhost-user: what a guest is to a virtual machine monitor, without one.
//!
//! The queues and buffers are in sealed memory that the back-end is handed over a socket. When it
//! leaves, the next one gets the same, with what the one before noted of what was under way: no
//! frame is lost. A back-end that knows no such notes (`INFLIGHT_SHMFD`) gets new queues, and so
//! does one with which something else is agreed on. The device stays whatever comes, and with it
//! addresses, routes and connections.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{MacAddr, OffloadCaps, PortQueue, QueueCounters};
use ringway_net::Netlink;
use ringway_switch::PortId;
use ringway_tap::{Tap, VifOrTap};
use ringway_vhost::frontend::{Agreement, Wish};
use ringway_vhost::request::PROTOCOL_FEATURES;
use ringway_vhost::{Addresses, Area, Region, RegionKey, Request};
use ringway_vhost_shell::{Driver, FrontendEnd, Meeting, Mode, Note, Parts};
use ringway_virtfront::{FrontMemory, MemoryShape, QueueOffer, QueuePair};
use ringway_virtio::QueueOptions;
use ringway_wire::vhost_user::VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD;
use ringway_wire::virtio::{
    Features, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO,
    VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use ringway_worker::{Workers, WorkersConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Interface;
use crate::wired::{self, Ports};

/// Entries of a queue, as QEMU has it.
const QUEUE_SIZE: u16 = 256;
/// The longest frame that may come where a frame has one chain.
const FRAME_LEN_MAX: usize = 65_550;
const PORTS: Ports = Ports { tap: PortId(0), vif: PortId(1) };

/// The settings of a guest behind a socket.
#[derive(Debug, Clone)]
pub struct VhostConfig {
    /// Where the back-end is met.
    pub socket: PathBuf,
    /// Who makes the socket: with `Client` the back-end does.
    pub mode: Mode,
    /// What the device is called.
    pub device: String,
    /// The device's address.
    pub mac: MacAddr,
    /// Its MTU.
    pub mtu: u16,
    /// Its IP addresses, how many queues to ask for at most, and what may be left undone.
    pub interface: Interface,
    /// Its threads.
    pub workers: WorkersConfig,
}

/// What it has open before it is confined.
#[derive(Debug)]
pub struct VhostSockets {
    meeting: Meeting,
    netlink: Netlink,
}

impl VhostSockets {
    /// Opens them.
    ///
    /// # Errors
    /// Why the socket cannot be made, with its path, or what else the system reports.
    pub fn open(config: &VhostConfig) -> io::Result<VhostSockets> {
        let meeting = Meeting::new(&config.socket, config.mode, Instant::now())?;
        let meeting = meeting.with_back_ends();
        Ok(VhostSockets { meeting, netlink: Netlink::open()? })
    }
}

/// Drives the interface until `stop` becomes readable.
///
/// # Errors
/// What the system lacks at the start: threads, a device; or if a user deletes the device.
pub fn run_vhost(config: VhostConfig, sockets: VhostSockets, stop: impl AsFd) -> io::Result<()> {
    let VhostSockets { meeting, mut netlink } = sockets;
    let VhostConfig { device, mac, mtu, interface, workers, .. } = config;
    let workers = Workers::start(workers)?;
    // A worker that panicked may have left its queues inconsistent, so the process ends.
    workers.on_panic(Box::new(|serving| {
        tracing::error!(?serving, "a worker has panicked: the process ends");
        std::process::abort()
    }));
    let tap = wired::make_device(&mut netlink, &device, mac, mtu, &interface)?;
    let mut end = FrontendEnd::new(meeting);
    let mut guest =
        Guest { interface, tap, workers, made: Vec::new(), kept: None, caps: OffloadCaps::NONE };
    let mut shown = None;
    loop {
        let now = Instant::now();
        guest.take_failures(&mut end, now)?;
        let has_more = end.turn(&mut guest, now)?;
        // Log each reason once.
        if end.error() != shown.as_deref() {
            shown = end.error().map(str::to_owned);
            shown.iter().for_each(|error| tracing::info!(device, "{error}"));
        }
        let pause = end.due().map(|due| due.saturating_duration_since(Instant::now()));
        let pause = if has_more { Some(Duration::ZERO) } else { pause };
        let mut fds =
            vec![PollFd::new(&stop, PollFlags::IN), PollFd::new(&guest.workers, PollFlags::IN)];
        fds.extend(end.waker().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        match poll(&mut fds, pause.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// The guest's half of the queues, and its device.
struct Guest {
    interface: Interface,
    tap: Tap,
    workers: Workers<VifOrTap<QueuePair>>,
    /// Queues that no worker has yet.
    made: Vec<(QueuePair, Arc<QueueCounters>)>,
    /// What back-ends have had of the queues.
    kept: Option<Kept>,
    caps: OffloadCaps,
}

/// What a back-end gets of the queues, and the next one may get again.
struct Kept {
    agreed: Agreement,
    memory: FrontMemory,
    /// The rx and the tx queue of each pair, in turn.
    rings: Vec<QueueOffer>,
    /// Where back-ends note what is under way; none before one has made it.
    area: Option<Area>,
}

impl Kept {
    /// The area, if there is one, and then all that a back-end is to know of the rings.
    fn requests(&self) -> io::Result<Vec<Request>> {
        let mut requests = Vec::new();
        if let Some(area) = &self.area {
            let file = area.file.try_clone()?;
            requests.push(Request::SetInflightFd(Area { file, ..*area }));
        }
        for (ring, offer) in (0..).zip(&self.rings) {
            let base = u32::from(self.memory.used_index(offer.place));
            ask_for(ring, base, offer, &mut requests)?;
        }
        Ok(requests)
    }

    fn region(&self) -> io::Result<Region> {
        let it = self.memory.region()?;
        let key = RegionKey {
            guest_address: it.guest_address,
            size: it.len,
            user_address: it.user_address,
            file_offset: it.file_offset,
        };
        Ok(Region { key, file: it.fd })
    }
}

impl Guest {
    /// Workers gave queues up: the back-end broke the protocol, or a user has deleted the
    /// device.
    fn take_failures(&mut self, end: &mut FrontendEnd, now: Instant) -> io::Result<()> {
        while let Some(failure) = self.workers.next_failure() {
            if failure.port_id == PORTS.tap {
                return Err(io::Error::other(format!("{}: {}", self.tap.name(), failure.down)));
            }
            let reason = format!("queue {}: {}", failure.queue_index, failure.down);
            self.forget();
            end.close(self, &reason, now);
        }
        Ok(())
    }

    fn queues(&self) -> u16 {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        self.interface.queues.unwrap_or_else(|| u16::try_from(cpus()).unwrap_or(u16::MAX))
    }

    /// Queues that go on where an earlier back-end stopped, or new ones.
    fn make_parts(&mut self, agreed: Agreement) -> io::Result<Parts> {
        if let Some(kept) = &self.kept {
            if kept.agreed == agreed && kept.area.is_some() {
                return Ok(Parts { regions: vec![kept.region()?], requests: kept.requests()? });
            }
        }
        self.forget();
        let features = agreed.features;
        let memory = FrontMemory::new(MemoryShape {
            pairs: usize::from(agreed.pairs),
            format: QueueOptions::of(features).format,
            size: QUEUE_SIZE,
            frame_len_max: FRAME_LEN_MAX,
        })?;
        let mut rings = Vec::new();
        for number in 0..usize::from(agreed.pairs) {
            let counters: Arc<QueueCounters> = Arc::default();
            let pair = QueuePair::new(&memory, number, features, Arc::clone(&counters))?;
            let [tx, rx] = pair.offers()?;
            rings.extend([rx, tx]);
            self.caps = pair.describe().caps;
            self.made.push((pair, counters));
        }
        let kept = self.kept.insert(Kept { agreed, memory, rings, area: None });
        let requests = match agreed.protocol & VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD {
            0 => kept.requests()?,
            // The rings follow in later messages.
            _ => vec![Request::GetInflightFd { rings: 2 * agreed.pairs, size: QUEUE_SIZE }],
        };
        Ok(Parts { regions: vec![kept.region()?], requests })
    }

    /// Throws the queues away.
    fn forget(&mut self) {
        if self.kept.take().is_some() {
            self.workers.detach(PORTS.tap);
            self.workers.detach(PORTS.vif);
            self.made.clear();
        }
    }
}

/// All that a back-end is to know of one ring.
fn ask_for(
    ring: u16,
    base: u32,
    offer: &QueueOffer,
    requests: &mut Vec<Request>,
) -> io::Result<()> {
    let QueueOffer { place, kick, call } = offer;
    let addresses = Addresses {
        descriptor: place.descriptors,
        used: place.device,
        available: place.driver,
        log: None,
    };
    requests.extend([
        Request::SetVringNum { ring, size: place.size },
        Request::SetVringBase { ring, base },
        Request::SetVringAddr { ring, addresses },
        Request::SetVringCall { ring, file: Some(call.try_clone()?) },
        Request::SetVringKick { ring, file: Some(kick.try_clone()?) },
        Request::SetVringEnable { ring, is_enabled: true },
    ]);
    Ok(())
}

impl Driver for Guest {
    fn wish(&self) -> Wish {
        Wish {
            features: wanted(self.interface.offloads),
            protocol: PROTOCOL_FEATURES,
            pairs: self.queues(),
        }
    }

    fn make(&mut self, agreed: Agreement) -> Result<Parts, String> {
        self.make_parts(agreed).map_err(|error| error.to_string())
    }

    fn take_area(&mut self, area: Area) -> Result<Vec<Request>, String> {
        let Some(kept) = &mut self.kept else { return Ok(Vec::new()) };
        kept.area = Some(area);
        kept.requests().map_err(|error| error.to_string())
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        let queues = self.made.len();
        if queues == 0 {
            tracing::info!(device = self.tap.name(), "connected again, with the same queues");
            return Ok(());
        }
        let made = self.made.drain(..);
        wired::join(&mut self.workers, PORTS, &self.tap, self.caps, made, None)
            .map_err(|error| error.to_string())?;
        tracing::info!(device = self.tap.name(), queues, "connected");
        Ok(())
    }

    fn carrier_down(&mut self) {
        // The next back-end continues with the frames in the queues, if it can.
        let is_kept = self.kept.as_ref().is_some_and(|kept| kept.area.is_some());
        if !is_kept || !self.made.is_empty() {
            self.forget();
        }
    }

    fn note(&mut self, note: Note<'_>) {
        let device = self.tap.name();
        match note {
            Note::Met => tracing::debug!(device, "the back-end has connected"),
            Note::Left => tracing::info!(device, "the back-end has disconnected"),
            // The log shows it as the reason why no frames flow.
            Note::Closed(_) | Note::Removed | Note::Stopped(_) => {}
        }
    }
}

/// What is used of virtio where the back-end offers it.
fn wanted(caps: OffloadCaps) -> Features {
    let with = |is_wanted: bool, bits: &[u32]| {
        if is_wanted { Features::of(bits) } else { Features::NONE }
    };
    let parts = [
        Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC]),
        Features::of(&[VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF]),
        with(caps.checksum_v4, &[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM]),
        with(caps.gso_v4, &[VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_GUEST_TSO4]),
        with(caps.gso_v6, &[VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_GUEST_TSO6]),
        with(caps.uso_v4, &[VIRTIO_NET_F_GUEST_USO4]),
        with(caps.uso_v6, &[VIRTIO_NET_F_GUEST_USO6]),
        with(caps.uso_v4 && caps.uso_v6, &[VIRTIO_NET_F_HOST_USO]),
    ];
    parts.into_iter().fold(Features::NONE, Features::or)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
