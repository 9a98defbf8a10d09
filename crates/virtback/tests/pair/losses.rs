//! Front-ends that truncate the inflight area or the dirty log, or give a log that is too short.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_datapath::{FrameQueue, PortQueue};
use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{DirtyLog, MappingShare, Purpose, SharedFile};
use ringway_virtback::{InflightPlace, LogPlace, PairFault, QueuePair};
use ringway_wire::vhost_user::{inflight_packed, inflight_split};
use ringway_wire::virtio::{Features, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM};
use rustix::fs::ftruncate;

use crate::{DATA, Guest, LEN, SIZE, buffer, memory_file, parts, peer_fault, place};

/// The part of one queue, as an area of its own.
fn inflight(bits: &[u32]) -> (OwnedFd, InflightPlace) {
    let is_packed = bits.contains(&VIRTIO_F_RING_PACKED);
    let len = if is_packed { inflight_packed::len } else { inflight_split::len }(SIZE.into());
    let bytes = u64::try_from(len).unwrap();
    let fd = memory_file(bytes);
    let share = MappingShare::new().unwrap();
    let area = SharedFile::map(&share, Purpose::InflightArea, fd.try_clone().unwrap(), 0, bytes);
    let area = area.unwrap();
    (fd, InflightPlace { pages: area.pages().clone(), descriptors: SIZE, area })
}

fn log_of(len: u64) -> (OwnedFd, Arc<DirtyLog>) {
    let fd = memory_file(len);
    let log = DirtyLog::map(&MappingShare::new().unwrap(), fd.try_clone().unwrap(), 0, len);
    (fd, Arc::new(log.unwrap()))
}

#[test]
fn an_inflight_area_that_is_cut_ends_the_pair_and_gives_no_frame() {
    for bits in [&[VIRTIO_NET_F_CSUM][..], &[VIRTIO_F_RING_PACKED]] {
        let (fd, noted) = inflight(bits);
        let len = noted.area.pages().len();
        let mut guest = Guest::with(bits, |parts, _| parts.tx.inflight = Some(noted));
        assert_eq!(guest.transmit(&[&[buffer(DATA, 112)]]).unwrap().len(), 1);
        guest.pair.arm().unwrap();
        let area = SharedPages::map(&fd, 0, len).unwrap();
        assert_eq!(area.read::<u16>(8), 1, "its version");
        drop(area);
        ftruncate(&fd, 0).unwrap();
        let ended = peer_fault(guest.transmit(&[&[buffer(DATA, 112)]]).unwrap_err());
        assert_eq!(ended, PairFault::AreaLost { len }, "{bits:?}");
        let words = ended.to_string();
        for part in ["inflight area", "was truncated", "no room left", "sealed", "enlarge"] {
            assert!(words.contains(part), "{words}");
        }

        let (fd, noted) = inflight(bits);
        let mut guest = Guest::with(bits, |parts, _| parts.rx.inflight = Some(noted));
        ftruncate(&fd, 0).unwrap();
        guest.post(&[&[buffer(DATA, 112)]]);
        let mut from: FrameQueue = [guest.frame(60, 8)].into();
        let ended = guest.pair.egress(&mut from, &mut guest.pool).unwrap_err();
        assert_eq!(peer_fault(ended), PairFault::AreaLost { len }, "{bits:?}");
    }
}

#[test]
fn an_area_that_was_cut_before_is_not_used() {
    let guest = Guest::new(&[]);
    let (fd, noted) = inflight(&[]);
    let len = noted.area.pages().len();
    ftruncate(&fd, 0).unwrap();
    let mut parts = parts(&guest.memory, Features::of(&[VIRTIO_F_VERSION_1]), &guest.call);
    parts.rx.inflight = Some(noted);
    let refused = peer_fault(QueuePair::attach(parts).map(|_| ()).unwrap_err());
    assert_eq!(refused, PairFault::AreaLost { len });
}

#[test]
fn a_loss_of_another_front_end_harms_no_pair() {
    let (_fd, noted) = inflight(&[]);
    let mut guest = Guest::with(&[], |parts, _| parts.tx.inflight = Some(noted));
    let (other, noted) = inflight(&[]);
    ftruncate(&other, 0).unwrap();
    noted.pages.write(0, 1_u8);
    assert!(noted.area.is_lost());
    assert_eq!(guest.transmit(&[&[buffer(DATA, 112)]]).unwrap().len(), 1);
    guest.pair.arm().unwrap();
}

#[test]
fn a_log_that_is_cut_ends_the_pair() {
    let lost = PairFault::LogLost { len: 4096 };
    let new = || {
        Guest::with(&[], |parts, log| {
            let ring = |start| Some(place(start).device);
            let place = |start| LogPlace { log: Arc::clone(log), ring_address: ring(start) };
            (parts.tx.log, parts.rx.log) = (Some(place(0)), Some(place(0x4000)));
        })
    };
    let mut guest = new();
    ftruncate(&guest.log_fd, 0).unwrap();
    // The marks follow the check of the frames.
    guest.transmit(&[&[buffer(DATA, 112)]]).unwrap();
    assert_eq!(peer_fault(guest.pair.arm().unwrap_err()), lost);
    let words = lost.to_string();
    assert!(words.starts_with("the file of the dirty log (SET_LOG_BASE) was truncated"), "{words}");

    let mut guest = new();
    ftruncate(&guest.log_fd, 0).unwrap();
    guest.post(&[&[buffer(DATA, 112)]]);
    let mut from: FrameQueue = [guest.frame(60, 8)].into();
    let ended = guest.pair.egress(&mut from, &mut guest.pool).unwrap_err();
    assert_eq!(peer_fault(ended), lost);
}

#[test]
fn a_page_without_a_bit_in_the_log_ends_the_pair() {
    // Pages 0 to 39: the queues, and the first pages of the buffers.
    let (_fd, log) = log_of(5);
    let mut guest = Guest::with(&[], |parts, _| {
        parts.rx.log = Some(LogPlace { log, ring_address: Some(place(0x4000).device) });
    });
    guest.post(&[&[buffer(DATA, 112)], &[buffer(40 * 4096, 112)]]);
    let frame = |guest: &mut Guest| {
        let mut from: FrameQueue = [guest.frame(60, 8)].into();
        guest.pair.egress(&mut from, &mut guest.pool)
    };
    frame(&mut guest).unwrap();
    guest.pair.arm().unwrap();
    let ended = peer_fault(frame(&mut guest).unwrap_err());
    assert_eq!(ended, PairFault::OutsideLog { page: 40, len: 5, pages: 40 });
    let words = ended.to_string();
    for part in ["page 0x28", "0x5 bytes", "0x28 pages", "SET_LOG_BASE"] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_log_address_of_a_ring_outside_the_log_is_refused() {
    let guest = Guest::new(&[]);
    let features = Features::of(&[VIRTIO_F_VERSION_1]);
    for address in [LEN, u64::MAX - 1] {
        let (_fd, log) = log_of(LEN / 4096 / 8);
        let pages = log.pages_max();
        let mut parts = parts(&guest.memory, features, &guest.call);
        parts.tx.log = Some(LogPlace { log, ring_address: Some(address) });
        let refused = peer_fault(QueuePair::attach(parts).map(|_| ()).unwrap_err());
        let (page, len) = (address / 4096, pages / 8);
        assert_eq!(refused, PairFault::OutsideLog { page, len, pages });
    }
}
