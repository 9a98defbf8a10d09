//! Long frames whose ends go from one guest's memory to another's.

use ringway_datapath::{Budget, DropReason, Frame, FrameBatch, FrameQueue, PortQueue};
use ringway_virtback::PairFault;
use ringway_wire::virtio::{VIRTIO_NET_F_CSUM, VIRTIO_NET_F_MRG_RXBUF, VirtioNetHdrV1};
use ringway_wire::vnet::{VIRTIO_NET_HDR_F_NEEDS_CSUM, VirtioNetHdr};
use rustix::fs::ftruncate;
use zerocopy::IntoBytes;

use crate::{DATA, Guest, buffer, peer_fault};

/// Bytes of a long frame.
const LONG: usize = 1500;
/// Bytes of a frame that are always copied.
const HEAD: usize = 116;

/// The address of a buffer.
fn at(number: u64) -> u64 {
    DATA + 0x1000 * number
}

/// The bytes of a frame with this number.
fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    (number..).map(|byte| byte.to_le_bytes()[0] ^ 0x55).take(len).collect()
}

impl Guest {
    /// Transmits frames of this length, one for each number, from one buffer each.
    fn transmit_frames(&mut self, numbers: std::ops::Range<u64>, len: usize) -> Vec<Frame> {
        let mut chains = Vec::new();
        for number in numbers {
            let bytes = [&[0; 12], &bytes_of(number, len)[..]].concat();
            self.view.copy_from(at(number), &bytes).unwrap();
            chains.push([buffer(at(number), u32::try_from(bytes.len()).unwrap())]);
        }
        let chains: Vec<&[_]> = chains.iter().map(|chain| &chain[..]).collect();
        self.transmit(&chains).unwrap()
    }

    /// Ends a round: lent chains are used.
    fn end_round(&mut self) {
        self.pair.settle(&mut self.pool).unwrap();
        self.pool.end_loans();
    }

    /// How many of the chains that it transmitted were used since the last call.
    fn used(&mut self) -> usize {
        self.tx.poll().unwrap();
        std::iter::from_fn(|| self.tx.take().unwrap()).count()
    }
}

fn lent(frames: &[Frame]) -> usize {
    frames.iter().filter(|frame| frame.is_lent()).count()
}

#[test]
fn the_end_of_a_long_frame_goes_from_guest_to_guest() {
    let (mut sender, mut receiver) = (Guest::new(&[]), Guest::new(&[]));
    let frames = sender.transmit_frames(0..3, LONG);
    assert_eq!((frames.len(), lent(&frames)), (3, 3));
    assert_eq!(frames[1].len(), LONG);
    assert_eq!(frames[1].bytes(), &bytes_of(1, LONG)[..HEAD], "what is inspected is copied");
    assert_eq!(sender.used(), 0, "the sender may not reuse the memory yet");

    let buffers = [at(0), at(1), at(2)].map(|address| [buffer(address, 2048)]);
    receiver.post(&buffers.each_ref().map(|chain| &chain[..]));
    // What the sender changes now does not change what was inspected.
    sender.view.copy_from(at(1) + 12, &[0xff; 64]).unwrap();
    let mut from: FrameQueue = frames.into();
    receiver.pair.egress(&mut from, &mut sender.pool).unwrap();
    assert!(from.is_empty());
    assert_eq!(receiver.used_lens(), [1512; 3]);
    for number in 0..3 {
        assert_eq!(receiver.bytes(at(number), 12)[..10], [0; 10], "a header that asks for nothing");
        assert_eq!(receiver.bytes(at(number) + 12, LONG), bytes_of(number, LONG));
    }

    assert_eq!(sender.used(), 0);
    sender.end_round();
    assert_eq!(sender.used(), 3);
    let totals = sender.counters.totals();
    assert_eq!((totals.tx_bytes, totals.tx_long, totals.tx_lent), (4500, 3, 3));
}

#[test]
fn frames_that_are_short_or_ask_for_something_are_copied_and_used_at_once() {
    let mut guest = Guest::new(&[VIRTIO_NET_F_CSUM]);
    let frames = guest.transmit_frames(0..2, 500);
    assert_eq!((frames.len(), lent(&frames), guest.used()), (2, 0, 2));

    // A UDP packet without its checksum.
    let mut packet = vec![0; LONG];
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[16..18].copy_from_slice(&1486_u16.to_be_bytes());
    packet[23] = 17;
    packet[38..40].copy_from_slice(&1466_u16.to_be_bytes());
    packet[42..].copy_from_slice(&bytes_of(0, LONG - 42));
    let flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    let hdr = VirtioNetHdr { flags, csum_start: 34, csum_offset: 6, ..VirtioNetHdr::default() };
    let header = VirtioNetHdrV1 { hdr, num_buffers: 0 };
    guest.view.copy_from(DATA, &[header.as_bytes(), &packet].concat()).unwrap();
    let frames = guest.transmit(&[&[buffer(DATA, 1512)]]).unwrap();
    assert_eq!((lent(&frames), guest.used()), (0, 1));
    assert_eq!(frames[0].bytes()[42..], packet[42..]);

    let frames = guest.transmit(&[&[buffer(DATA, 12), buffer(DATA + 12, 1500)]]).unwrap();
    assert_eq!((frames.len(), lent(&frames), guest.used()), (1, 0, 1), "of two buffers");

    // Frames that left work suggest that the next ones do as well.
    assert_eq!(lent(&guest.transmit_frames(0..8, LONG)), 0);
    assert_eq!(guest.counters.totals().tx_long, 8);
}

#[test]
fn a_receiver_with_shorter_buffers_gets_all_bytes_and_the_next_frames_are_copied() {
    let mut sender = Guest::new(&[]);
    let mut receiver = Guest::new(&[VIRTIO_NET_F_MRG_RXBUF]);
    let frames = sender.transmit_frames(0..1, LONG);
    assert_eq!(lent(&frames), 1);
    receiver.post(&[&[buffer(at(0), 1012)], &[buffer(at(1), 512)]]);
    let mut from: FrameQueue = frames.into();
    receiver.pair.egress(&mut from, &mut sender.pool).unwrap();
    assert_eq!(receiver.used_lens(), [1012, 500]);
    let received = [receiver.bytes(at(0) + 12, 1000), receiver.bytes(at(1), 500)].concat();
    assert_eq!(received, bytes_of(0, LONG));
    sender.end_round();
    assert_eq!(sender.used(), 1);
    let totals = sender.counters.totals();
    assert_eq!((totals.tx_long, totals.tx_lent), (1, 0));

    for _ in 0..1024 / 8 {
        let frames = sender.transmit_frames(0..8, LONG);
        assert_eq!((lent(&frames), sender.used()), (0, 8));
        frames.into_iter().for_each(|frame| sender.pool.recycle(frame));
    }
    assert_eq!(lent(&sender.transmit_frames(0..8, LONG)), 8);
}

#[test]
fn a_disabled_pair_uses_long_frames_at_once() {
    let mut guest = Guest::with(&[], |parts, _| parts.control.set_enabled(false));
    assert!(guest.transmit_frames(0..4, LONG).is_empty());
    assert_eq!(guest.used(), 4);
    assert_eq!(guest.dropped(), [(DropReason::NoRoute, 4)]);
}

#[test]
fn a_sender_that_truncates_its_memory_harms_only_itself() {
    let (mut sender, mut receiver) = (Guest::new(&[]), Guest::new(&[]));
    let mut from: FrameQueue = sender.transmit_frames(0..1, LONG).into();
    ftruncate(&sender.fd, 0).unwrap();
    receiver.post(&[&[buffer(at(0), 2048)]]);
    receiver.pair.egress(&mut from, &mut sender.pool).expect("the receiver has done nothing wrong");
    assert_eq!(receiver.used_lens(), [1512]);
    let start = bytes_of(0, HEAD);
    assert_eq!(receiver.bytes(at(0) + 12, LONG), [&start[..], &[0; LONG - HEAD]].concat());

    let mut batch = FrameBatch::new();
    sender.pair.settle(&mut sender.pool).unwrap();
    let ended = sender.pair.ingress(Budget::BATCH, &mut sender.pool, &mut batch).unwrap_err();
    assert!(matches!(peer_fault(ended), PairFault::MemoryLost { .. }));
}

#[test]
fn a_frame_is_dropped_if_its_end_was_lent_in_an_earlier_round() {
    let (mut sender, mut receiver) = (Guest::new(&[]), Guest::new(&[]));
    let mut from: FrameQueue = sender.transmit_frames(0..2, LONG).into();
    sender.end_round();
    receiver.post(&[&[buffer(at(0), 2048)]]);
    receiver.pair.egress(&mut from, &mut sender.pool).unwrap();
    assert!(from.is_empty());
    assert_eq!(receiver.dropped(), [(DropReason::GrantCopy, 2)]);
    assert_eq!(sender.counters.totals().tx_lent, 0);
    assert_eq!(receiver.used_lens(), [], "its buffer is left for the next frame");
}
