//! Virtio front-ends that do what the protocol permits and few do: they change their guest's memory
//! while its rings run, or make an event descriptor block. Frames are compared, and none that the
//! guest has handed over may be lost.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringway_e2e::host::{Host, SOON, describe, wait_for};
use ringway_e2e::machine::{ADDRESS, EchoConnection};
use ringway_e2e::virtio_guest::{Maker, guest_with, keeping_neighbor};
use ringway_vhost::{Region, RegionKey, Request};
use ringway_wire::vhost_user::VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::rogues::{Pings, Rogue, keep_neighbors, memory};
use crate::virtio::{KEY, LEN};

/// Chains of each ring.
const CHAINS: u16 = 64;
/// Bytes of a buffer, and where buffers of each ring begin in each region.
const BUFFER: u64 = 2048;
const BUFFERS: [u64; 2] = [0x40000, 0x60000];
/// The header of a frame.
const HEADER: usize = 12;
/// Addresses and type of a frame.
const ETHERNET: usize = 14;
/// A type for experiments.
const TYPE: [u8; 2] = [0x88, 0xb5];
/// The number of frames that need not arrive.
const HELLO: u64 = u64::MAX;
const EVERYONE: [u8; 6] = [0xff; 6];
/// How long a frame may take before it is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(50);
/// A limit for frames to cross.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ring of a guest, by its number: 0 receives and 1 transmits.
struct Ring {
    number: u64,
    /// Chains made available and found used, modulo 2^16.
    made: u16,
    taken: u16,
    /// Descriptors that no chain uses.
    free: Vec<u16>,
    /// The region of the buffer of each descriptor.
    regions: Vec<usize>,
}

impl Ring {
    fn new(number: u64) -> Ring {
        let free = (0..CHAINS).collect();
        Ring { number, made: 0, taken: 0, free, regions: vec![0; usize::from(CHAINS)] }
    }

    /// Where it is in the first region.
    fn place(&self) -> u64 {
        self.number * 0x10000
    }

    fn buffer(&self, chain: u16) -> u64 {
        BUFFERS[usize::from(self.number == 1)] + BUFFER * u64::from(chain)
    }
}

/// A guest behind a front-end. Its memory may have several regions.
struct Guest {
    front_end: Rogue,
    rings: [Ring; 2],
    mac: [u8; 6],
    /// The files of all regions that there have been.
    files: Vec<OwnedFd>,
    /// Those in which new buffers are placed.
    usable: Vec<usize>,
    /// Numbers its buffers, so that they alternate between regions.
    placed: usize,
}

impl Guest {
    /// Connects, and makes room for frames.
    fn start(socket: &Path, last: u8) -> Guest {
        let mut front_end = Rogue::new(socket);
        front_end.send(Request::SetProtocolFeatures(VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS));
        front_end.begin();
        front_end.enable();
        front_end.is_handled();
        let files = vec![front_end.memory.try_clone().expect("a descriptor")];
        let mut guest = Guest {
            front_end,
            rings: [Ring::new(0), Ring::new(1)],
            mac: [2, 0, 0, 0, 7, last],
            files,
            usable: vec![0],
            placed: 0,
        };
        guest.make_room();
        guest
    }

    fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let count = rustix::io::pread(&self.files[0], &mut bytes, offset).expect("it is memory");
        assert_eq!(count, N);
        bytes
    }

    /// Makes a free chain available.
    fn make(&mut self, ring: usize, bytes: &[u8], len: usize, flags: u16) {
        let region = self.usable[self.placed % self.usable.len()];
        self.placed += 1;
        let chain = self.rings[ring].free.pop().expect("a free chain");
        self.rings[ring].regions[usize::from(chain)] = region;
        let Ring { made, .. } = self.rings[ring];
        let (place, buffer) = (self.rings[ring].place(), self.rings[ring].buffer(chain));
        rustix::io::pwrite(&self.files[region], bytes, buffer).expect("it is memory");
        let address = key(region).guest_address + buffer;
        let len = u32::try_from(len).expect("a buffer");
        let parts = [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &[0; 2]];
        self.front_end.write(&parts.concat(), place + 16 * u64::from(chain));
        let entry = place + 0x4004 + 2 * u64::from(made % 256);
        self.front_end.write(&chain.to_le_bytes(), entry);
        self.rings[ring].made = made.wrapping_add(1);
        self.front_end.write(&self.rings[ring].made.to_le_bytes(), place + 0x4002);
    }

    /// The next used chain and its bytes.
    fn take(&mut self, ring: usize) -> Option<Vec<u8>> {
        let place = self.rings[ring].place() + 0x8000;
        let Ring { taken, .. } = self.rings[ring];
        if u16::from_le_bytes(self.read(place + 2)) == taken {
            return None;
        }
        let [a, b, _, _, len @ ..]: [u8; 8] = self.read(place + 4 + 8 * u64::from(taken % 256));
        let (chain, len) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(len));
        let known = &mut self.rings[ring];
        known.taken = taken.wrapping_add(1);
        assert!(chain < CHAINS && !known.free.contains(&chain), "chain {chain} was used twice");
        known.free.push(chain);
        let (region, buffer) = (known.regions[usize::from(chain)], known.buffer(chain));
        let mut bytes = vec![0; usize::try_from(len).expect("a buffer")];
        rustix::io::pread(&self.files[region], &mut bytes, buffer).expect("it is memory");
        Some(bytes)
    }

    /// Gives all free chains of the receive ring to the back-end.
    fn make_room(&mut self) {
        while !self.rings[0].free.is_empty() {
            self.make(0, &[], usize::try_from(BUFFER).expect("small"), 2);
        }
        self.front_end.kick(0);
    }

    /// Transmits a frame with this number, if a chain is free.
    fn transmit(&mut self, to: [u8; 6], number: u64) -> bool {
        while self.take(1).is_some() {}
        if self.rings[1].free.is_empty() {
            return false;
        }
        let frame = [&[0; HEADER][..], &to, &self.mac, &TYPE, &payload(number)].concat();
        self.make(1, &frame, frame.len(), 0);
        self.front_end.kick(1);
        true
    }

    /// The number of the next received frame, whose payload is compared.
    fn receive(&mut self, from: [u8; 6]) -> Option<u64> {
        loop {
            let bytes = self.take(0)?;
            let frame = bytes.get(HEADER..).expect("a header");
            // Linux in other guests sends frames to all.
            if frame[6..12] == from && frame[12..14] == TYPE {
                let (number, _) = frame[ETHERNET..].split_first_chunk().expect("a number");
                let number = u64::from_le_bytes(*number);
                assert_eq!(frame[ETHERNET..], payload(number), "frame {number}");
                return Some(number);
            }
        }
    }

    /// How many buffers in a region the back-end has.
    fn outstanding(&self, region: usize) -> usize {
        let of_ring = |ring: &Ring| {
            let is_there = |chain: &u16| {
                !ring.free.contains(chain) && ring.regions[usize::from(*chain)] == region
            };
            (0..CHAINS).filter(is_there).count()
        };
        self.rings.iter().map(of_ring).sum()
    }

    fn region(&self, region: usize) -> Region {
        Region { key: key(region), file: self.files[region].try_clone().expect("a descriptor") }
    }
}

/// Where a region is: the first as that of all these front-ends, the others behind it.
fn key(region: usize) -> RegionKey {
    let offset = LEN * u64::try_from(region).expect("few");
    RegionKey {
        guest_address: KEY.guest_address + offset,
        user_address: KEY.user_address + offset,
        ..KEY
    }
}

/// Bytes and a length that follow from a number (splitmix64).
fn payload(number: u64) -> Vec<u8> {
    let bytes = (1..200).flat_map(|word: u64| {
        let mixed = number.wrapping_add(word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
    });
    let len = 64 + usize::try_from(number % 1300).expect("small");
    number.to_le_bytes().into_iter().chain(bytes).take(len).collect()
}

/// Two guests that exchange numbered frames.
struct Exchange {
    changing: Guest,
    steady: Guest,
    /// Frames that the one with changing memory has transmitted, and that the other has received.
    sent: u64,
    arrived: u64,
    /// Frames that the changing one has received.
    received: u64,
    /// Frames that the other has transmitted to it, and when the last was, if that has not arrived.
    offered: u64,
    pending: Option<Instant>,
}

impl Exchange {
    fn new(mut changing: Guest, mut steady: Guest) -> Exchange {
        // The switch learns both addresses. A frame may be dropped while ports are still being
        // attached to all workers.
        wait_for("a frame to all", SOON, || {
            steady.transmit(EVERYONE, HELLO);
            changing.receive(steady.mac)
        });
        changing.make_room();
        wait_for("a frame to one", SOON, || {
            changing.transmit(steady.mac, HELLO);
            steady.receive(changing.mac)
        });
        steady.make_room();
        let (sent, arrived, received, offered) = (0, 0, 0, 0);
        Exchange { changing, steady, sent, arrived, received, offered, pending: None }
    }

    /// Exchanges frames without waiting.
    fn step(&mut self) {
        let Exchange { changing, steady, .. } = self;
        while self.sent - self.arrived < u64::from(CHAINS / 2)
            && changing.transmit(steady.mac, self.sent)
        {
            self.sent += 1;
        }
        while let Some(number) = steady.receive(changing.mac) {
            if number != HELLO {
                assert_eq!(number, self.arrived, "every frame of it arrives, in order");
                self.arrived += 1;
            }
        }
        steady.make_room();
        // While its port is not there, the switch drops frames to the changing guest, or floods
        // them to others. So only what it transmits, or had in its rings, may not be lost.
        // waits: a frame that was dropped has no event, and is sent again.
        let is_due = self.pending.is_none_or(|since| since.elapsed() > RESEND_AFTER);
        if is_due && steady.transmit(changing.mac, self.received) {
            self.pending = Some(Instant::now());
            self.offered += 1;
        }
        while let Some(number) = changing.receive(steady.mac) {
            // One that was sent again may come twice.
            if number == self.received {
                self.received += 1;
                self.pending = None;
            }
        }
        changing.make_room();
    }

    /// Exchanges frames until some more have crossed in both directions.
    fn go_on(&mut self, what: &str) {
        let [arrived, received] = [self.arrived + 100, self.received + 10];
        self.until(what, |it| it.arrived >= arrived && it.received >= received);
    }

    /// Exchanges frames until a condition holds.
    fn until(&mut self, what: &str, holds: impl Fn(&Exchange) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            self.step();
            thread::yield_now();
            assert!(Instant::now() < deadline, "waited {PATIENCE:?}: {what}");
        }
    }

    /// Has the changing guest place its buffers in these regions, and waits until the back-end has
    /// no others.
    fn place_in(&mut self, regions: &[usize]) {
        self.changing.usable = regions.to_vec();
        let all = 0..self.changing.files.len();
        let others: Vec<usize> = all.filter(|region| !regions.contains(region)).collect();
        self.until("buffers to come back", |it| {
            others.iter().all(|region| it.changing.outstanding(*region) == 0)
        });
    }

    /// Waits for all frames that are on their way from the changing guest.
    fn end(&mut self) {
        let Exchange { changing, steady, arrived, .. } = self;
        wait_for("the last frames", SOON, || {
            while let Some(number) = steady.receive(changing.mac) {
                assert_eq!(number, *arrived, "every frame of it arrives, in order");
                *arrived += 1;
            }
            (*arrived == self.sent).then_some(())
        });
    }

    /// Sends a request while frames cross.
    fn change(&mut self, what: &str, request: Request) {
        self.changing.front_end.send(request);
        // Not until the back-end has handled it, so that frames cross meanwhile.
        for _ in 0..20 {
            self.step();
        }
        self.changing.front_end.is_handled();
        self.go_on(what);
    }
}

/// How often all changes are made.
const ROUNDS: usize = 10;

#[test]
fn frames_cross_while_a_front_end_changes_its_memory() {
    let Some(_turn) = ringway_e2e::shared_turn(&["unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &["changing", "steady"], "max-queues = 2"));
    let backend = host.pid_of("backend");
    let [changing, steady] =
        [("changing", 1), ("steady", 2)].map(|(name, last)| Guest::start(&dir.join(name), last));
    let mut exchange = Exchange::new(changing, steady);
    exchange.changing.files.extend([memory(LEN), memory(LEN)]);
    exchange.go_on("one region");
    for _ in 0..ROUNDS {
        let both = [0, 1].map(|region| exchange.changing.region(region));
        exchange.change("another table", Request::SetMemTable(both.into()));
        exchange.place_in(&[0, 1]);
        exchange.go_on("buffers in two regions");
        let third = exchange.changing.region(2);
        exchange.change("one more region", Request::AddMemReg(third));
        exchange.place_in(&[0, 1, 2]);
        exchange.go_on("buffers in three regions");
        exchange.place_in(&[0, 2]);
        exchange.change("without a region that is unused", Request::RemMemReg(key(1)));
        exchange.place_in(&[0]);
        let first = exchange.changing.region(0);
        exchange.change("the first table", Request::SetMemTable(vec![first]));
    }
    let memory = host.text(&["vif", "show", "changing"]);
    assert!(memory.contains("1 MiB, not sealed"), "{memory}");
    exchange.end();
    let Exchange { arrived, received, offered, .. } = exchange;
    println!(
        "{} changes, {arrived} frames from the guest and {received} to it, for which {offered} \
         were transmitted",
        4 * ROUNDS
    );
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
    let vif = host.vif("changing").expect("it is there");
    assert!(vif.error.is_none() && vif.state == "Connected", "{vif:?}");
}

fn description(dir: &Path, names: &[&str], host: &str) -> String {
    let mut text = describe(host, &[("a", "", "queues = 2"), ("b", "", "queues = 2")]);
    for name in names {
        let socket = dir.join(name);
        text += &format!(
            "[[vhost]]\nname = \"{name}\"\nsocket = \"{}\"\nqueues = 1\nmode = \"server\"\n",
            socket.display()
        );
    }
    text
}

/// How often a guest disturbs its kicks, and how many it takes each time.
const BURSTS: usize = 20;
const BURST: u64 = 1000;

/// A kick that blocks its reader, and that the guest empties again before the worker reads it.
#[test]
fn a_kick_that_blocks_stops_no_worker() {
    let Some(_turn) = ringway_e2e::shared_turn(&["ip", "ping", "socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    // One worker: if it waits for the guest, all others do.
    let workers = "max-queues = 2\nworkers = 1";
    let host = Host::start(&description(dir, &["honest", "changing", "steady"], workers));
    let backend = host.pid_of("backend");
    let kept = dir.join("kept");
    let beside = keeping_neighbor("10.77.0.2", &kept);
    let _honest = guest_with(dir, "honest", Maker::Backend, &beside);
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "a guest of virtio");
    let [changing, steady] =
        [("changing", 1), ("steady", 2)].map(|(name, last)| Guest::start(&dir.join(name), last));
    let mut exchange = Exchange::new(changing, steady);
    exchange.go_on("as the back-end has set it up");
    keep_neighbors(&host, &kept);
    let pings = [Pings::start(&host, "a", "10.77.0.2"), Pings::start(&host, "b", ADDRESS)];

    let kick = exchange.changing.front_end.kick.try_clone().expect("a descriptor");
    let flags = fcntl_getfl(&kick).expect("flags");
    assert!(flags.contains(OFlags::NONBLOCK), "the back-end has set it: {flags:?}");
    fcntl_setfl(&kick, flags - OFlags::NONBLOCK).expect("it is ours");
    let mut stolen = 0;
    for _ in 0..BURSTS {
        stolen += disturb(&kick, &mut exchange);
        // Nothing kicks any more, so a worker that waits for a kick waits until the end.
        echo.expect_progress(&host, "a kick was taken from the worker");
    }
    exchange.changing.front_end.kick(1);
    exchange.go_on("the guest leaves its kicks alone");
    println!("{stolen} kicks stolen, {} frames crossed", exchange.arrived);
    pings.into_iter().for_each(Pings::end);
    for name in ["vif1.0", "vif2.0", "honest"] {
        let queues = host.vif(name).expect("it is there").queues;
        assert!(queues.iter().all(|queue| queue.dropped.is_empty()), "{queues:?}");
    }
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
}

/// Exchanges frames while the guest kicks and reads the kicks itself, until it has done that often
/// enough and frames have crossed beside it. Returns how often it did.
fn disturb(kick: &OwnedFd, exchange: &mut Exchange) -> u64 {
    let (stolen, should_end) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let thief = scope.spawn(|| steal(kick, &stolen, &should_end));
        let arrived = exchange.arrived + 10;
        exchange.until("kicks to be stolen", |it| {
            stolen.load(Ordering::Relaxed) >= BURST && it.arrived >= arrived
        });
        should_end.store(true, Ordering::Relaxed);
        // Its last read may wait for a kick that the worker has read first.
        while !thief.is_finished() {
            rustix::io::write(kick, &1_u64.to_ne_bytes()).expect("a descriptor");
            thread::yield_now();
        }
    });
    stolen.into_inner()
}

/// Kicks and reads the kicks itself, until it should end.
fn steal(kick: &OwnedFd, stolen: &AtomicU64, should_end: &AtomicBool) {
    while !should_end.load(Ordering::Relaxed) {
        rustix::io::write(kick, &1_u64.to_ne_bytes()).expect("a descriptor");
        rustix::io::read(kick, &mut [0; 8]).expect("a descriptor");
        stolen.fetch_add(1, Ordering::Relaxed);
    }
}
