//! The device's pair of queues against a guest with hand-written chains, and a front-end that
//! truncates the memory or migrates the guest.

mod lending;
mod losses;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, FrameQueue, Pending, PoolBudget, PortQueue,
    QueueCounters, QueueDown, Woken,
};
use ringway_sys::SharedPages;
use ringway_sys::eventfd::{EventFd, PeerCounters};
use ringway_sys::guest_memory::{
    DirtyLog, GuestMemory, GuestView, MappingShare, OutsideMemory, Region,
};
use ringway_virtback::{LogPlace, PairControl, PairFault, PairParts, QueuePair, QueueParts};
use ringway_virtio::{
    Access, Buffer, DriverHalf, Format, PlaceError, QueueAreas, QueueFault, QueueOptions,
    QueuePlace,
};
use ringway_wire::virtio::{
    Desc, Features, PackedDesc, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC, VirtioNetHdrV1,
};
use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_UDP_L4, VirtioNetHdr,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerocopy::{FromBytes, IntoBytes};

const LEN: u64 = 1 << 20;
const SIZE: u16 = 16;
/// The guest address of its buffers.
const DATA: u64 = 1 << 16;

fn place(start: u64) -> QueuePlace {
    let [descriptors, driver, device] = [0, 0x1000, 0x2000].map(|offset| start + offset);
    QueuePlace { size: SIZE, descriptors, driver, device }
}

struct Guest {
    fd: OwnedFd,
    log_fd: OwnedFd,
    log: Arc<DirtyLog>,
    memory: Arc<GuestMemory>,
    view: GuestView,
    tx: DriverHalf,
    rx: DriverHalf,
    pair: QueuePair,
    counters: Arc<QueueCounters>,
    call: EventFd,
    pool: FramePool,
}

fn memory_file(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

fn parts(memory: &Arc<GuestMemory>, features: Features, call: &EventFd) -> PairParts {
    let base = if features.has(VIRTIO_F_RING_PACKED) { 1 << 15 } else { 0 };
    let queue = |start| QueueParts {
        place: place(start),
        base,
        kick: EventFd::new().unwrap().share().unwrap(),
        call: Some(call.share().unwrap()),
        log: None,
        inflight: None,
    };
    PairParts {
        memory: Arc::clone(memory),
        features,
        tx: queue(0),
        rx: queue(0x4000),
        control: Arc::new(PairControl::new(true)),
        counters: Arc::default(),
        calls: PeerCounters::default(),
    }
}

impl Guest {
    fn new(bits: &[u32]) -> Guest {
        Guest::with(bits, |_, _| {})
    }

    fn with(bits: &[u32], change: impl FnOnce(&mut PairParts, &Arc<DirtyLog>)) -> Guest {
        let features = Features::of(&[&[VIRTIO_F_VERSION_1], bits].concat());
        let options = QueueOptions::of(features);
        let fd = memory_file(LEN);
        let region = Region {
            guest_address: 0,
            user_address: 0,
            len: LEN,
            file_offset: 0,
            fd: fd.try_clone().unwrap(),
        };
        let memory = Arc::new(GuestMemory::map(vec![region]).unwrap());
        let half = |start, access| {
            let areas = QueueAreas::find(&memory, options.format, place(start)).unwrap();
            DriverHalf::new(areas, options, access)
        };
        let (tx, rx) = (half(0, Access::Readable), half(0x4000, Access::Writable));
        let call = EventFd::new().unwrap();
        let log_fd = memory_file(4096);
        let log = Arc::new(
            DirtyLog::map(&MappingShare::new().unwrap(), log_fd.try_clone().unwrap(), 0, 4096)
                .unwrap(),
        );
        let mut parts = parts(&memory, features, &call);
        change(&mut parts, &log);
        let counters = Arc::clone(&parts.counters);
        let pair = QueuePair::attach(parts).unwrap();
        let view = GuestView::new(Arc::clone(&memory));
        let pool = FramePool::new(PoolBudget::new(8 << 20));
        Guest { fd, log_fd, log, memory, view, tx, rx, pair, counters, call, pool }
    }

    /// Transmits frames that are already in memory.
    fn transmit(&mut self, chains: &[&[Buffer]]) -> Result<Vec<Frame>, QueueDown> {
        for chain in chains {
            self.tx.push(chain);
        }
        let _ = self.tx.publish();
        let mut batch = FrameBatch::new();
        self.pair.ingress(Budget::BATCH, &mut self.pool, &mut batch)?;
        Ok(batch.into_iter().collect())
    }

    fn frame(&mut self, len: usize, byte: u8) -> Frame {
        let mut frame = self.pool.take(len).unwrap();
        frame.bytes_mut().fill(byte);
        frame
    }

    fn post(&mut self, chains: &[&[Buffer]]) {
        for chain in chains {
            self.rx.push(chain);
        }
        let _ = self.rx.publish();
    }

    fn used_lens(&mut self) -> Vec<u32> {
        self.rx.poll().unwrap();
        std::iter::from_fn(|| self.rx.take().unwrap().map(|used| used.len)).collect()
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view.copy_to(address, &mut bytes).unwrap();
        bytes
    }

    fn num_buffers(&self, address: u64) -> u16 {
        VirtioNetHdrV1::read_from_bytes(&self.bytes(address, 12)).unwrap().num_buffers
    }

    fn dropped(&self) -> Vec<(DropReason, u64)> {
        self.counters.dropped.snapshot().filter(|(_, count)| *count > 0).collect()
    }

    /// The pages that are marked in the log. Clears the log.
    fn marked(&self) -> Vec<u64> {
        let file = SharedPages::map(&self.log_fd, 0, 4096).unwrap();
        let mut bytes = [0; 4096];
        file.copy_to(0, &mut bytes);
        file.copy_from(0, &[0; 4096]);
        let byte = |page: u64| bytes[usize::try_from(page / 8).unwrap()];
        let is_set = |page: &u64| byte(*page) >> (page % 8) & 1 == 1;
        (0..LEN / 4096).filter(is_set).collect()
    }
}

fn buffer(address: u64, len: u32) -> Buffer {
    Buffer { address, len }
}

fn peer_fault(error: QueueDown) -> PairFault {
    match error {
        QueueDown::Peer(fault) => *fault.downcast().expect("a fault of a pair"),
        QueueDown::Host(error) => panic!("{error}"),
    }
}

#[test]
fn a_frame_may_lie_in_buffers_of_any_layout() {
    for layout in [VIRTIO_F_RING_PACKED, VIRTIO_NET_F_CSUM] {
        let mut guest = Guest::new(&[layout]);
        let bytes: Vec<u8> = (0..112).collect();
        let bytes = [&[0; 12], &bytes[12..]].concat();
        guest.view.copy_from(DATA, &bytes).unwrap();
        for cuts in [vec![112], vec![12, 100], vec![1, 10, 1, 50, 0, 50], vec![5, 8, 99]] {
            let mut at = DATA;
            let chain: Vec<Buffer> = cuts
                .iter()
                .map(|len| {
                    at += u64::from(*len);
                    buffer(at - u64::from(*len), *len)
                })
                .collect();
            let frames = guest.transmit(&[&chain]).unwrap();
            assert_eq!(frames[0].bytes(), &bytes[12..], "{cuts:?}");
            guest.tx.poll().unwrap();
            assert!(guest.tx.take().unwrap().is_some());
        }
    }
}

#[test]
fn a_header_that_its_frame_contradicts_costs_that_frame_only() {
    let mut guest = Guest::new(&[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_TSO4]);
    let good = VirtioNetHdr::default();
    let headers = [
        VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_TCPV4, gso_size: 100, ..good },
        VirtioNetHdr { gso_type: 3, gso_size: 100, ..good },
        VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_UDP_L4, gso_size: 100, ..good },
        VirtioNetHdr { flags: VIRTIO_NET_HDR_F_NEEDS_CSUM, csum_start: 4000, ..good },
        good,
    ];
    let mut chains = Vec::new();
    for (number, hdr) in (0..).zip(headers) {
        let at = DATA + 0x1000 * number;
        guest.view.copy_from(at, VirtioNetHdrV1 { hdr, num_buffers: 0 }.as_bytes()).unwrap();
        chains.push([buffer(at, 112)]);
    }
    let chains: Vec<&[Buffer]> = chains.iter().map(|chain| &chain[..]).collect();
    assert_eq!(guest.transmit(&chains).unwrap().len(), 1);
    assert_eq!(guest.dropped(), [(DropReason::BadOffload, 4)]);
    guest.tx.poll().unwrap();
    assert_eq!(std::iter::from_fn(|| guest.tx.take().unwrap()).count(), 5, "all are used");
}

#[test]
fn datagrams_uncut_are_taken_where_that_was_agreed_on_and_their_header_says_how_long_they_are() {
    let hdr = VirtioNetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        gso_type: VIRTIO_NET_HDR_GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 100,
        csum_start: 34,
        csum_offset: 6,
    };
    let mut packet = vec![0; 42 + 250];
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[16..18].copy_from_slice(&278_u16.to_be_bytes());
    packet[23] = 17;
    for (bits, len, is_taken) in [
        (&[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_USO][..], 258_u16, true),
        (&[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_USO], 257, false),
        (&[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_USO], 259, false),
        // It requires the checksum feature, which was not negotiated.
        (&[VIRTIO_NET_F_HOST_USO], 258, false),
        (&[VIRTIO_NET_F_CSUM], 258, false),
    ] {
        let mut guest = Guest::new(bits);
        packet[38..40].copy_from_slice(&len.to_be_bytes());
        let bytes = [VirtioNetHdrV1 { hdr, num_buffers: 0 }.as_bytes(), &packet].concat();
        guest.view.copy_from(DATA, &bytes).unwrap();
        let all = u32::try_from(bytes.len()).unwrap();
        let frames = guest.transmit(&[&[buffer(DATA, all)]]).unwrap();
        let gso = frames.first().and_then(|frame| frame.offload.gso);
        assert_eq!(gso.is_some(), is_taken, "{bits:?} {len}");
        if !is_taken {
            assert_eq!(guest.dropped(), [(DropReason::BadOffload, 1)], "{bits:?} {len}");
        }
    }
}

#[test]
fn work_that_was_not_agreed_on_is_not_taken() {
    let mut guest = Guest::new(&[]);
    let hdr = VirtioNetHdr { flags: VIRTIO_NET_HDR_F_NEEDS_CSUM, ..VirtioNetHdr::default() };
    guest.view.copy_from(DATA, hdr.as_bytes()).unwrap();
    assert!(guest.transmit(&[&[buffer(DATA, 112)]]).unwrap().is_empty());
    assert_eq!(guest.dropped(), [(DropReason::BadOffload, 1)]);
}

#[test]
fn a_chain_too_short_for_a_frame_is_used_and_dropped() {
    let mut guest = Guest::new(&[]);
    let chains = [0, 1, 11, 12, 25].map(|len| [buffer(DATA, len)]);
    let chains: Vec<&[Buffer]> = chains.iter().map(|chain| &chain[..]).collect();
    assert!(guest.transmit(&chains).unwrap().is_empty());
    assert_eq!(guest.dropped(), [(DropReason::Malformed, 5)]);
    assert_eq!(guest.transmit(&[&[buffer(DATA, 26)]]).unwrap().len(), 1);
}

#[test]
fn a_fault_ends_the_pair_and_what_came_before_it_is_good() {
    let mut guest = Guest::new(&[]);
    let outside = [buffer(LEN - 10, 100)];
    guest.tx.push(&[buffer(DATA, 100)]);
    guest.tx.push(&outside);
    let _ = guest.tx.publish();
    let mut batch = FrameBatch::new();
    let ended = guest.pair.ingress(Budget::BATCH, &mut guest.pool, &mut batch).unwrap_err();
    let outside = OutsideMemory { address: LEN - 10, len: 12 };
    let fault = QueueFault::Outside(outside);
    assert_eq!(peer_fault(ended), PairFault::Queue { queue: "tx", fault });
    assert_eq!(batch.len(), 1);
    guest.tx.poll().unwrap();
    assert!(guest.tx.take().unwrap().is_some(), "the first was used");
    assert_eq!(guest.tx.take().unwrap(), None);
}

#[test]
fn a_frame_takes_as_many_mergeable_chains_as_it_needs() {
    for layout in [VIRTIO_F_RING_PACKED, VIRTIO_NET_F_CSUM] {
        let mut guest = Guest::new(&[layout, VIRTIO_NET_F_MRG_RXBUF]);
        let at = |number: u64| DATA + 0x1000 * number;
        guest.post(&[&[buffer(at(0), 100)], &[buffer(at(1), 10), buffer(at(2), 90)]]);
        let mut from: FrameQueue = [guest.frame(200, 7), guest.frame(60, 8)].into();
        guest.pair.egress(&mut from, &mut guest.pool).unwrap();
        assert_eq!(from.len(), 2, "12 + 200 bytes have no room in 200");
        assert_eq!(guest.used_lens(), []);
        assert_eq!(guest.pair.arm().unwrap(), Pending::Nothing);

        guest.post(&[&[buffer(at(3), 100)], &[buffer(at(4), 100)]]);
        guest.pair.woken(Woken::Unknown).unwrap();
        guest.pair.egress(&mut from, &mut guest.pool).unwrap();
        assert!(from.is_empty());
        assert_eq!(guest.used_lens(), [100, 100, 12, 72]);
        assert_eq!((guest.num_buffers(at(0)), guest.num_buffers(at(4))), (3, 1));
        assert_eq!(guest.bytes(at(0) + 12, 88), [7; 88]);
        assert_eq!(guest.bytes(at(1), 11), [vec![7; 10], vec![0]].concat());
        assert_eq!(guest.bytes(at(3), 13), [vec![7; 12], vec![0]].concat());
        assert_eq!(guest.bytes(at(4) + 12, 60), [8; 60]);
    }
}

#[test]
fn a_guest_that_makes_room_is_expected_to_kick() {
    let mut guest = Guest::new(&[]);
    let mut from: FrameQueue = [guest.frame(60, 8)].into();
    guest.pair.egress(&mut from, &mut guest.pool).unwrap();
    assert_eq!(guest.pair.arm().unwrap(), Pending::Nothing);
    guest.rx.push(&[buffer(DATA, 100)]);
    assert_eq!(guest.rx.publish(), ringway_virtio::Notify::Peer);
    assert_eq!(guest.pair.arm().unwrap(), Pending::Work);
}

#[test]
fn a_guest_with_a_split_queue_shows_what_it_has_taken_by_the_chains_that_it_posts() {
    let mut guest = Guest::new(&[]);
    let chain = [buffer(DATA, 100)];
    let chain = &chain[..];
    guest.post(&[chain; 16]);
    let mut from: FrameQueue = [guest.frame(60, 7), guest.frame(60, 8)].into();
    guest.pair.egress(&mut from, &mut guest.pool).unwrap();
    let mark = guest.pair.peer_progress().unwrap().mark();
    assert_eq!(guest.used_lens().len(), 2);
    for taken in 0..2 {
        assert!(!guest.pair.peer_progress().unwrap().has_taken(mark), "{taken}");
        guest.post(&[chain]);
    }
    assert!(guest.pair.peer_progress().unwrap().has_taken(mark));

    let mut guest = Guest::new(&[VIRTIO_F_RING_PACKED]);
    assert_eq!(guest.pair.peer_progress(), None);
}

#[test]
fn a_frame_that_no_number_of_chains_holds_is_dropped() {
    let mut guest = Guest::new(&[VIRTIO_NET_F_MRG_RXBUF]);
    let chains: Vec<[Buffer; 1]> = (0..SIZE).map(|_| [buffer(DATA, 12)]).collect();
    let chains: Vec<&[Buffer]> = chains.iter().map(|chain| &chain[..]).collect();
    guest.post(&chains);
    let mut from: FrameQueue = [guest.frame(1000, 7), guest.frame(14, 7)].into();
    guest.pair.egress(&mut from, &mut guest.pool).unwrap();
    assert!(from.is_empty());
    assert_eq!(guest.dropped(), [(DropReason::TooLong, 1)]);
    assert_eq!(guest.used_lens(), [12, 12, 2]);
}

#[test]
fn a_guest_that_makes_a_frame_take_very_many_descriptors_ends_the_pair() {
    const MANY: u16 = 256;
    const START: u64 = 0x40000;
    let mut guest = Guest::with(&[VIRTIO_NET_F_MRG_RXBUF], |parts, _| {
        parts.rx.place = QueuePlace { size: MANY, ..place(START) };
    });
    // One chain of all descriptors, of which only the first has room, and only for a header. The
    // chain is available once per entry of the queue.
    for index in 0..MANY {
        let (len, flags) = match index {
            0 => (12, 3),
            _ if index == MANY - 1 => (0, 2),
            _ => (0, 3),
        };
        let desc = Desc { addr: DATA, len, flags, next: index + 1 };
        let at = START + 16 * u64::from(index);
        guest.view.copy_from(at, desc.as_bytes()).expect("it is in memory");
    }
    let mut available = vec![0; 4 + 2 * usize::from(MANY)];
    available[2..4].copy_from_slice(&MANY.to_le_bytes());
    guest.view.copy_from(START + 0x1000, &available).expect("it is in memory");

    let mut frames = FrameQueue::from([guest.frame(2000, 1)]);
    let ended = guest.pair.egress(&mut frames, &mut guest.pool).expect_err("it takes 42,752");
    assert_eq!(peer_fault(ended), PairFault::TooManyDescriptors { limit: 1024 });
}

#[test]
fn a_chain_without_room_for_a_header_ends_the_pair() {
    let mut guest = Guest::new(&[VIRTIO_NET_F_MRG_RXBUF]);
    guest.post(&[&[buffer(DATA, 11)]]);
    let mut from: FrameQueue = [guest.frame(60, 8)].into();
    let ended = guest.pair.egress(&mut from, &mut guest.pool).unwrap_err();
    assert_eq!(peer_fault(ended), PairFault::NoRoomForHeader { bytes: 11, header_len: 12 });
}

#[test]
fn memory_that_is_cut_ends_the_pair_and_gives_no_frame() {
    let lost = PairFault::MemoryLost { guest_address: 0, len: LEN };
    for cut in [0, DATA] {
        let mut guest = Guest::new(&[]);
        ftruncate(&guest.fd, cut).unwrap();
        let ended = guest.transmit(&[&[buffer(DATA, 112)]]);
        assert_eq!(peer_fault(ended.unwrap_err()), lost);
        assert!(guest.memory.is_lost());
    }
    let mut guest = Guest::new(&[]);
    guest.post(&[&[buffer(DATA, 112)]]);
    ftruncate(&guest.fd, DATA).unwrap();
    let mut from: FrameQueue = [guest.frame(60, 8)].into();
    let ended = guest.pair.egress(&mut from, &mut guest.pool).unwrap_err();
    assert_eq!(peer_fault(ended), lost);
}

#[test]
fn a_queue_that_is_not_in_memory_is_refused() {
    let guest = Guest::new(&[]);
    let mut parts = parts(&guest.memory, Features::of(&[VIRTIO_F_VERSION_1]), &guest.call);
    parts.rx.place.device = LEN;
    let refused = peer_fault(QueuePair::attach(parts).map(|_| ()).unwrap_err());
    assert!(matches!(
        refused,
        PairFault::Place { queue: "rx", error: PlaceError::Outside { area: "device", .. } }
    ));
}

#[test]
fn every_page_that_is_written_is_in_the_log() {
    let formats = [(Format::Split, vec![]), (Format::Packed, vec![VIRTIO_F_RING_PACKED])];
    let options = [vec![], vec![VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC]];
    for ((format, bits), options) in
        formats.iter().flat_map(|it| options.iter().map(move |o| (it, o)))
    {
        let bits = [&bits[..], options, &[VIRTIO_NET_F_MRG_RXBUF]].concat();
        let mut guest = Guest::with(&bits, |parts, log| {
            // The address of the device's area for both, as in QEMU.
            let place = |start| {
                let ring_address = Some(place(start).device);
                Some(LogPlace { log: Arc::clone(log), ring_address })
            };
            (parts.tx.log, parts.rx.log) = (place(0), place(0x4000));
        });
        let ring = |start: u64| match format {
            Format::Split => vec![start + 2],
            Format::Packed => vec![start, start + 2],
        };
        assert_eq!(guest.marked(), [ring(0), ring(4)].concat(), "taken over");
        guest.transmit(&[&[buffer(DATA, 112)]]).unwrap();
        assert_eq!(guest.marked(), ring(0), "what is read is not marked");
        guest.post(&[&[buffer(DATA + 4000, 200)], &[buffer(0x80_000, 100)]]);
        let mut from: FrameQueue = [guest.frame(250, 8)].into();
        guest.pair.egress(&mut from, &mut guest.pool).unwrap();
        assert_eq!(guest.marked(), [ring(4), vec![16, 17, 128]].concat());
        guest.pair.arm().unwrap();
        assert_eq!(guest.marked(), ring(0), "the wish for a kick");
        assert!(!guest.log.is_lost());
    }
}

/// QEMU may read the log at any time: a guest that moved with a used entry and without the bytes of
/// its buffer would read stale ones.
#[test]
fn a_page_is_in_the_log_before_its_buffer_is_used() {
    let mut guest = Guest::new(&[VIRTIO_NET_F_MRG_RXBUF]);
    // The log lies over the used ring, such that the bits of pages 16 to 31 are the used index: a
    // mark before the index is published is overwritten, and a later one would change the index.
    let used_ring = place(0x4000).device;
    let share = MappingShare::new().unwrap();
    let log = DirtyLog::map(&share, guest.fd.try_clone().unwrap(), used_ring, 4096).unwrap();
    let features = Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF]);
    let mut parts = parts(&guest.memory, features, &guest.call);
    parts.rx.log = Some(LogPlace { log: Arc::new(log), ring_address: Some(used_ring) });
    guest.pair = QueuePair::attach(parts).unwrap();
    let used_index =
        |guest: &Guest| u16::from_le_bytes(guest.bytes(used_ring + 2, 2).try_into().unwrap());
    assert_eq!(used_index(&guest), 0);
    // Pages 16 and 27: the bits with values 1 and 2048.
    let buffers = [buffer(DATA, 200), buffer(DATA + 11 * 4096, 200)];
    guest.post(&[&buffers[..1], &buffers[1..]]);
    let mut from: FrameQueue = [guest.frame(100, 8), guest.frame(100, 9)].into();
    guest.pair.egress(&mut from, &mut guest.pool).unwrap();
    assert_eq!(used_index(&guest), 2);
    assert_eq!(guest.bytes(DATA + 11 * 4096 + 12, 100), [9; 100]);
}

#[test]
fn writes_through_an_indirect_table_are_logged_and_the_table_is_not() {
    const TABLE: u64 = 0x90_000;
    for format in [Format::Split, Format::Packed] {
        let bits = match format {
            Format::Split => vec![VIRTIO_RING_F_INDIRECT_DESC],
            Format::Packed => vec![VIRTIO_RING_F_INDIRECT_DESC, VIRTIO_F_RING_PACKED],
        };
        let mut guest = Guest::with(&bits, |parts, log| {
            let ring_address = Some(place(0x4000).device);
            parts.rx.log = Some(LogPlace { log: Arc::clone(log), ring_address });
        });
        guest.marked();
        // Two buffers in a table, and the descriptor that refers to it.
        let (next, write, indirect) = (1_u16, 2_u16, 4_u16);
        let in_table = |address: u64, len: u32, index: u16| match format {
            Format::Split => {
                let flags = if index == 0 { write | next } else { write };
                Desc { addr: address, len, flags, next: index + 1 }.as_bytes().to_vec()
            }
            Format::Packed => {
                PackedDesc { addr: address, len, id: 0, flags: write }.as_bytes().to_vec()
            }
        };
        let table = [in_table(0xa0_000, 100, 0), in_table(0xb0_ff0, 200, 1)].concat();
        guest.view.copy_from(TABLE, &table).unwrap();
        match format {
            Format::Split => {
                let desc = Desc { addr: TABLE, len: 32, flags: indirect, next: 0 };
                guest.view.copy_from(0x4000, desc.as_bytes()).unwrap();
                guest.view.copy_from(0x4000 + 0x1002, &1_u16.to_le_bytes()).unwrap();
            }
            Format::Packed => {
                // Available in the first round: the available bit is set, the used bit is not.
                let flags = indirect | 1 << 7;
                let desc = PackedDesc { addr: TABLE, len: 32, id: 0, flags };
                guest.view.copy_from(0x4000, desc.as_bytes()).unwrap();
            }
        }
        let mut from: FrameQueue = [guest.frame(180, 8)].into();
        guest.pair.egress(&mut from, &mut guest.pool).unwrap();
        assert!(from.is_empty());
        let ring = if format == Format::Split { vec![6] } else { vec![4, 6] };
        assert_eq!(guest.marked(), [ring, vec![0xa0, 0xb0, 0xb1]].concat(), "{format:?}");
        assert_eq!(guest.bytes(0xb0_ff0, 92), [8; 92]);
    }
}

/// QEMU's file of memory that the guest does not share stays as it was: zeros.
#[test]
fn a_guest_that_kicks_and_posts_nothing_is_noticed() {
    for bits in [&[][..], &[VIRTIO_F_RING_PACKED]] {
        let control = Arc::new(PairControl::new(true));
        let mut kick = None;
        let mut guest = Guest::with(bits, |parts, _| {
            parts.control = Arc::clone(&control);
            kick =
                Some(EventFd::to_peer(parts.tx.kick.try_clone().unwrap(), &parts.calls).unwrap());
        });
        let is_blank_after_kick = |guest: &mut Guest| {
            kick.as_ref().unwrap().signal().unwrap();
            guest.pair.woken(Woken::Unknown).unwrap();
            control.is_blank()
        };
        assert!(!control.is_blank());
        assert!(is_blank_after_kick(&mut guest) && is_blank_after_kick(&mut guest));
        guest.post(&[&[buffer(DATA, 2000)]]);
        assert!(!is_blank_after_kick(&mut guest));
    }
}

#[test]
fn a_guest_is_called_when_its_queues_are_taken_over() {
    let guest = Guest::new(&[]);
    assert!(guest.call.clear().unwrap());
    assert_eq!(guest.counters.totals().events_sent, 2);
}
