//! An interface over vhost-user: the role of a guest and its virtual machine monitor, without a
//! virtual machine.
//!
//! The queues and buffers are in sealed memory that is passed to the back-end over a socket. When a
//! back-end leaves, the next one gets the same memory and the previous one's record of frames in
//! flight: no frame is lost. A back-end without support for such records (`INFLIGHT_SHMFD`), or
//! with which something else is negotiated, gets new queues. The device always stays, and with it
//! addresses, routes and connections.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{MacAddr, OffloadCaps, PortQueue, QueueCounters};
use ringway_net::Netlink;
use ringway_switch::PortId;
use ringway_sys::poll::{Source, Turns, readable, take_turns};
use ringway_tap::{Tap, VifOrTap};
use ringway_vhost::frontend::{Negotiated, Preferences};
use ringway_vhost::request::PROTOCOL_FEATURES;
use ringway_vhost::{Addresses, Area, Region, RegionKey, Request};
use ringway_vhost_shell::{Driver, Endpoint, FrontendEnd, Mode, Note, Parts};
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

use crate::Interface;
use crate::gro::Gro;
use crate::wired::{self, Ports};

/// Entries of a queue, as in QEMU.
const QUEUE_SIZE: u16 = 256;
/// The longest frame that may arrive if each frame takes one chain.
const FRAME_LEN_MAX: usize = 65_550;
const PORTS: Ports = Ports { tap: PortId(0), vif: PortId(1) };

/// The settings of a guest behind a socket.
#[derive(Debug, Clone)]
pub struct VhostConfig {
    /// The path of the socket to the back-end.
    pub socket: PathBuf,
    /// Which end creates the socket: with `Client`, the back-end does.
    pub mode: Mode,
    /// The device's name.
    pub device: String,
    /// The device's address.
    pub mac: MacAddr,
    /// Its MTU.
    pub mtu: u16,
    /// Its IP addresses, the most queues to ask for, and the offloads.
    pub interface: Interface,
    /// Its threads.
    pub workers: WorkersConfig,
}

/// What the process opens before it is confined.
#[derive(Debug)]
pub struct VhostSockets {
    endpoint: Endpoint,
    netlink: Netlink,
    gro: Gro,
}

impl VhostSockets {
    /// Opens them.
    ///
    /// # Errors
    /// Why the socket cannot be created, with its path, or another error of the system.
    pub fn open(config: &VhostConfig) -> io::Result<VhostSockets> {
        let endpoint = Endpoint::new(&config.socket, config.mode, Instant::now())?;
        let endpoint = endpoint.with_back_ends();
        Ok(VhostSockets { endpoint, netlink: Netlink::open()?, gro: Gro::open()? })
    }
}

/// Drives the interface until `stop` becomes readable.
///
/// # Errors
/// If threads or the device cannot be created at the start, or if a user deletes the device.
pub fn run_vhost(config: VhostConfig, sockets: VhostSockets, stop: impl AsFd) -> io::Result<()> {
    let VhostSockets { endpoint, mut netlink, gro } = sockets;
    let VhostConfig { device, mac, mtu, interface, workers, .. } = config;
    let workers = wired::start_workers(workers)?;
    let tap = wired::make_device(&mut netlink, &device, mac, mtu, &interface)?;
    let (made, shared, caps) = (Vec::new(), None, OffloadCaps::NONE);
    let guest = Guest { interface, tap, workers, made, shared, caps };
    let end = FrontendEnd::new(endpoint);
    let mut process = Process { guest, end, device, shown: None, netlink, gro };
    process.look_at_device();
    take_turns(&mut process, &stop)
}

/// What the control thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Stop,
    Workers,
    Socket,
    Links,
}

struct Process {
    guest: Guest,
    end: FrontendEnd,
    /// The device's name.
    device: String,
    /// The reason that was last logged why no frames flow.
    shown: Option<String>,
    netlink: Netlink,
    gro: Gro,
}

impl Process {
    fn look_at_device(&mut self) {
        if self.guest.interface.gro {
            self.gro.look(&self.guest.tap, &mut self.netlink);
        }
    }
}

impl Turns for Process {
    type Token = Token;
    const STOP: Token = Token::Stop;

    fn turn(&mut self, _ready: &[Token]) -> io::Result<Option<Duration>> {
        if self.gro.has_changed() {
            self.look_at_device();
        }
        let Process { guest, end, device, shown, .. } = self;
        let now = Instant::now();
        guest.take_failures(end, now)?;
        let has_more = end.turn(guest, now)?;
        // Log each reason once.
        if end.error() != shown.as_deref() {
            *shown = end.error().map(str::to_owned);
            shown.iter().for_each(|error| tracing::info!(device, "{error}"));
        }
        let pause = end.due().map(|due| due.saturating_duration_since(Instant::now()));
        Ok(if has_more { Some(Duration::ZERO) } else { pause })
    }

    fn sources(&self) -> Vec<Source<'_, Token>> {
        let socket = self.end.waker().map(|(fd, events)| (Token::Socket, fd, events));
        let links = readable(Token::Links, &self.gro);
        [readable(Token::Workers, &self.guest.workers), links].into_iter().chain(socket).collect()
    }
}

/// The guest's half of the queues, and its device.
struct Guest {
    interface: Interface,
    tap: Tap,
    workers: Workers<VifOrTap<QueuePair>>,
    /// Queues that are not attached to a worker yet.
    made: Vec<(QueuePair, Arc<QueueCounters>)>,
    /// The queues' state shared with back-ends.
    shared: Option<SharedQueues>,
    caps: OffloadCaps,
}

/// What a back-end gets of the queues, and the next one may get as well.
struct SharedQueues {
    negotiated: Negotiated,
    memory: FrontMemory,
    /// The rx and the tx queue of each pair, alternating.
    rings: Vec<QueueOffer>,
    /// Where back-ends record frames in flight; `None` until one has made it.
    area: Option<Area>,
}

impl SharedQueues {
    /// Requests for the area, if there is one, and then for everything that a back-end must know
    /// about the rings.
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
    /// Handles queues that workers gave up: the back-end broke the protocol, or a user deleted the
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

    /// Queues that continue where an earlier back-end stopped, or new ones.
    fn make_parts(&mut self, negotiated: Negotiated) -> io::Result<Parts> {
        if let Some(shared) = &self.shared {
            if shared.negotiated == negotiated && shared.area.is_some() {
                return Ok(Parts { regions: vec![shared.region()?], requests: shared.requests()? });
            }
        }
        self.forget();
        let features = negotiated.features;
        let memory = FrontMemory::new(MemoryShape {
            pairs: usize::from(negotiated.pairs),
            format: QueueOptions::of(features).format,
            size: QUEUE_SIZE,
            frame_len_max: FRAME_LEN_MAX,
        })?;
        let mut rings = Vec::new();
        for number in 0..usize::from(negotiated.pairs) {
            let counters: Arc<QueueCounters> = Arc::default();
            let pair = QueuePair::new(&memory, number, features, Arc::clone(&counters))?;
            let [tx, rx] = pair.offers()?;
            rings.extend([rx, tx]);
            self.caps = pair.describe().caps;
            self.made.push((pair, counters));
        }
        let shared = self.shared.insert(SharedQueues { negotiated, memory, rings, area: None });
        let requests = match negotiated.protocol & VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD {
            0 => shared.requests()?,
            // The rings follow in later messages.
            _ => vec![Request::GetInflightFd { rings: 2 * negotiated.pairs, size: QUEUE_SIZE }],
        };
        Ok(Parts { regions: vec![shared.region()?], requests })
    }

    /// Discards the queues.
    fn forget(&mut self) {
        if self.shared.take().is_some() {
            self.workers.detach(PORTS.tap);
            self.workers.detach(PORTS.vif);
            self.made.clear();
        }
    }
}

/// Requests for everything that a back-end must know about one ring.
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
    fn preferences(&self) -> Preferences {
        Preferences {
            features: wanted(self.interface.offloads),
            protocol: PROTOCOL_FEATURES,
            pairs: self.queues(),
        }
    }

    fn make(&mut self, negotiated: Negotiated) -> Result<Parts, String> {
        self.make_parts(negotiated).map_err(|error| error.to_string())
    }

    fn take_area(&mut self, area: Area) -> Result<Vec<Request>, String> {
        let Some(shared) = &mut self.shared else { return Ok(Vec::new()) };
        shared.area = Some(area);
        shared.requests().map_err(|error| error.to_string())
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        let queues = self.made.len();
        if queues == 0 {
            tracing::info!(device = self.tap.name(), "reconnected, with the same queues");
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
        let is_kept = self.shared.as_ref().is_some_and(|shared| shared.area.is_some());
        if !is_kept || !self.made.is_empty() {
            self.forget();
        }
    }

    fn note(&mut self, note: Note<'_>) {
        let device = self.tap.name();
        match note {
            Note::Connected => tracing::debug!(device, "the back-end has connected"),
            Note::Disconnected => tracing::info!(device, "the back-end has disconnected"),
            // The log shows it as the reason why no frames flow.
            Note::Closed(_) | Note::Left(_) | Note::Removed | Note::Stopped(_) => {}
        }
    }
}

/// The virtio features that are used if the back-end offers them.
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
