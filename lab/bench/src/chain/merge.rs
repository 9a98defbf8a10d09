//! Segments of a TCP flow that wait together are written as one frame, as Linux's GRO would make it
//! of them (`tcp_gro_receive` in `net/ipv4/tcp_offload.c`), so that the receiving kernel has fewer
//! frames. Only what bulk traffic between two guests consists of: IPv4 without options.

use std::io;
use std::iter;
use std::os::fd::AsFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use ringway_sys::SharedPages;
use ringway_sys::poll::{self, PollFlags};
use ringway_sys::process::kernel_version;
use ringway_sys::tun::{Part, TunFile, WriteOutcome};
use ringway_wire::vnet::{VIRTIO_NET_HDR_GSO_TCPV4, VirtioNetHdr};

use super::hop::{BUFFERS, Filled};

/// The most frames of one write: with more, the kernel is out of memory at times.
const MERGED: usize = 4;
/// The kernel that takes IPv4 frames of more than 64 KiB, and its longest.
const LONG: ((u32, u32), usize) = ((6, 3), 256 << 10);
/// The longest frame of others: Ethernet's header, and what IPv4's length can say.
const SHORT: usize = 14 + 65_535;
/// A device without room is tried again after this time at the latest.
const PAUSE: Duration = Duration::from_millis(1);

const IP_AT: usize = 14;
const IP_LEN_AT: usize = IP_AT + 2;
const IP_SUM_AT: usize = IP_AT + 10;
const TCP_AT: usize = IP_AT + 20;
const SEQUENCE_AT: usize = TCP_AT + 4;
const FLAGS_AT: usize = TCP_AT + 13;
const SUM_AT: usize = TCP_AT + 16;
/// Ethernet, IPv4 without options, TCP with all options.
const HEAD: usize = TCP_AT + 60;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// Writes frames to a device.
pub(super) struct Writer {
    len_max: usize,
}

/// A frame that waits, and its first bytes.
#[derive(Debug, Clone)]
struct Segment {
    frame: Filled,
    head: [u8; HEAD],
    /// The length of its headers, if it may be merged with others.
    data_at: Option<usize>,
}

type Segments = ArrayVec<Segment, BUFFERS>;

/// What a segment is to the run before it.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Next,
    /// Of another flow.
    Elsewhere,
    /// Of the same flow, and not to be merged: the run ends here.
    Behind,
}

impl Writer {
    pub(super) fn of_this_kernel() -> Writer {
        let (version, len) = LONG;
        Writer { len_max: if kernel_version() >= version { len } else { SHORT } }
    }

    /// Writes frames, those of a flow in their order.
    pub(super) fn write(
        &self,
        device: &TunFile,
        pages: &SharedPages,
        frames: &[Filled],
    ) -> io::Result<()> {
        let mut rest: Segments = frames.iter().map(|frame| Segment::of(*frame, pages)).collect();
        while !rest.is_empty() {
            let run = self.next_run(&mut rest);
            let merged = run.len() > 1 && write_merged(device, pages, &run)?;
            if !merged {
                run.iter().try_for_each(|it| write_alone(device, pages, &it.frame))?;
            }
        }
        Ok(())
    }

    /// Takes the first segment, and those that continue it.
    fn next_run(&self, rest: &mut Segments) -> Segments {
        let mut run: Segments = iter::once(rest.remove(0)).collect();
        let mut index = 0;
        while index < rest.len() && run.len() < MERGED {
            match self.place(&run, &rest[index]) {
                Place::Next => run.push(rest.remove(index)),
                Place::Elsewhere => index += 1,
                Place::Behind => break,
            }
        }
        run
    }

    fn place(&self, run: &[Segment], next: &Segment) -> Place {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Place::Behind };
        if first.flow() != next.flow() {
            return Place::Elsewhere;
        }
        let is_next = || {
            let (data_at, len) = (first.data_at?, data_len(run));
            let sequence = first.sequence().wrapping_add(u32::try_from(len).ok()?);
            let size = usize::from(first.frame.header.gso_size);
            let is_whole = last.data_len() % size == 0;
            let fits = data_at + len + next.data_len() <= self.len_max;
            let is_like = next.data_at == first.data_at
                && next.frame.header.gso_size == first.frame.header.gso_size
                && first.common_head()[..data_at] == next.common_head()[..data_at];
            (is_whole && fits && is_like && next.sequence() == sequence).then_some(())
        };
        is_next().map_or(Place::Behind, |()| Place::Next)
    }
}

impl Segment {
    fn of(frame: Filled, pages: &SharedPages) -> Segment {
        let mut head = [0; HEAD];
        let known = frame.len.min(HEAD);
        pages.copy_to(frame.at, &mut head[..known]);
        let data_at = TCP_AT + usize::from(head[TCP_AT + 12] >> 4) * 4;
        let VirtioNetHdr { gso_type, gso_size, .. } = frame.header;
        let is_data = head[12..15] == [0x08, 0x00, 0x45]
            && head[IP_AT + 9] == 6
            && head[FLAGS_AT] & !PSH == ACK
            && gso_type == VIRTIO_NET_HDR_GSO_TCPV4
            && gso_size > 0
            && data_at >= TCP_AT + 20
            && data_at < frame.len;
        Segment { frame, head, data_at: is_data.then_some(data_at) }
    }

    /// Its addresses and ports.
    fn flow(&self) -> &[u8] {
        &self.head[IP_AT + 12..TCP_AT + 4]
    }

    fn sequence(&self) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.head[SEQUENCE_AT..SEQUENCE_AT + 4]);
        u32::from_be_bytes(bytes)
    }

    fn data_len(&self) -> usize {
        self.data_at.map_or(0, |at| self.frame.len - at)
    }

    /// Its first bytes without what differs between the segments of a frame: IPv4's length,
    /// identification and checksum, TCP's sequence number and checksum, and PSH.
    fn common_head(&self) -> [u8; HEAD] {
        let mut head = self.head;
        let differing = [(IP_LEN_AT, 4), (IP_SUM_AT, 2), (SEQUENCE_AT, 4), (SUM_AT, 2)];
        differing.into_iter().for_each(|(at, len)| head[at..at + len].fill(0));
        head[FLAGS_AT] &= !PSH;
        head
    }
}

fn data_len(run: &[Segment]) -> usize {
    run.iter().map(Segment::data_len).sum()
}

/// The headers of a run as one frame. TCP's checksum is left as it is: it is to be filled in where
/// the frame leaves the kernel, which this one does not.
fn merged_head(run: &[Segment], data_at: usize) -> ArrayVec<u8, HEAD> {
    let (first, rest) = run.split_first().expect("a run has segments");
    let mut head: ArrayVec<u8, HEAD> = first.head[..data_at].iter().copied().collect();
    // Longer than IPv4 can say: 0 stands for the length of the frame.
    let ip_len = u16::try_from(data_at - IP_AT + data_len(run)).unwrap_or(0);
    head[IP_LEN_AT..IP_LEN_AT + 2].copy_from_slice(&ip_len.to_be_bytes());
    head[IP_SUM_AT..IP_SUM_AT + 2].fill(0);
    let words = head[IP_AT..TCP_AT].chunks_exact(2);
    let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
    head[IP_SUM_AT..IP_SUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    head[FLAGS_AT] |= rest.iter().fold(0, |flags, segment| flags | segment.head[FLAGS_AT]);
    head
}

/// Writes a run as one frame. False if the kernel does not take it now.
fn write_merged(device: &TunFile, pages: &SharedPages, run: &[Segment]) -> io::Result<bool> {
    let Some((header, data_at)) =
        run.first().and_then(|first| Some((first.frame.header, first.data_at?)))
    else {
        return Ok(false);
    };
    let head = merged_head(run, data_at);
    let data = run.iter().map(|it| Part::Pages(pages, it.frame.at + data_at, it.data_len()));
    let parts = iter::once(Part::Bytes(&head)).chain(data);
    Ok(device.write_parts(&header, parts)? == WriteOutcome::Sent)
}

/// Writes a frame as soon as the device has room. One that it refuses is lost, as on a wire.
fn write_alone(device: &TunFile, pages: &SharedPages, frame: &Filled) -> io::Result<()> {
    loop {
        let whole = iter::once(Part::Pages(pages, frame.at, frame.len));
        match device.write_parts(&frame.header, whole)? {
            WriteOutcome::Full | WriteOutcome::NoMemory => {
                poll::wait(&[((), device.as_fd(), PollFlags::OUT)], Some(PAUSE))?;
            }
            WriteOutcome::Sent | WriteOutcome::Refused | WriteOutcome::LinkDown => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of a flow in memory of its own.
    fn segment(port: u8, sequence: u32, data_len: usize, flags: u8) -> Segment {
        let mut bytes = vec![0; TCP_AT + 20 + data_len];
        bytes[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        bytes[IP_AT + 9] = 6;
        bytes[TCP_AT + 3] = port;
        bytes[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&sequence.to_be_bytes());
        bytes[TCP_AT + 12] = 0x50;
        bytes[FLAGS_AT] = flags;
        let gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
        let header = VirtioNetHdr { gso_type, gso_size: 1448, ..VirtioNetHdr::default() };
        let pages = SharedPages::zeroed(bytes.len()).expect("there is memory");
        pages.copy_from(0, &bytes);
        Segment::of(Filled { header, at: 0, len: bytes.len() }, &pages)
    }

    /// The ports and the numbers of segments of the frames that are written.
    fn runs(segments: impl IntoIterator<Item = Segment>, len_max: usize) -> Vec<(u8, usize)> {
        let (writer, mut rest) = (Writer { len_max }, Segments::from_iter(segments));
        let mut runs = Vec::new();
        while !rest.is_empty() {
            let run = writer.next_run(&mut rest);
            runs.push((run[0].head[TCP_AT + 3], run.len()));
        }
        runs
    }

    #[test]
    fn flows_that_alternate_are_merged_apart() {
        let full = 2 * 1448;
        let flow = |port, number: u32| segment(port, number * 2896, full, ACK);
        let all = [flow(1, 0), flow(2, 7), flow(1, 1), flow(2, 8), flow(1, 2)];
        assert_eq!(runs(all, LONG.1), [(1, 3), (2, 2)]);
    }

    #[test]
    fn a_run_ends_with_a_short_segment_a_gap_or_its_longest_frame() {
        let first = || segment(1, 0, 1448, ACK);
        let next = |data_len, flags| segment(1, 1448, data_len, flags);
        assert_eq!(
            runs([first(), next(100, ACK), segment(1, 1548, 1448, ACK)], LONG.1),
            [(1, 2), (1, 1)]
        );
        assert_eq!(runs([first(), segment(1, 1449, 1448, ACK)], LONG.1), [(1, 1), (1, 1)]);
        assert_eq!(runs([first(), next(1448, ACK)], 2000), [(1, 1), (1, 1)]);
        assert_eq!(runs([first(), next(1448, ACK | 1)], LONG.1), [(1, 1), (1, 1)], "FIN");
        let five = (0..5).map(|number| segment(1, number * 1448, 1448, ACK));
        assert_eq!(runs(five, LONG.1), [(1, MERGED), (1, 1)]);
    }

    #[test]
    fn the_head_of_a_run_has_its_length_a_right_checksum_and_push() {
        let run = [segment(1, 0, 1448, ACK), segment(1, 1448, 1448, ACK | PSH)];
        let head = merged_head(&run, TCP_AT + 20);
        assert_eq!(head[IP_LEN_AT..IP_LEN_AT + 2], 2936_u16.to_be_bytes());
        assert_eq!(head[FLAGS_AT], ACK | PSH);
        let words = head[IP_AT..TCP_AT].chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let long = [segment(1, 0, 45 * 1448, ACK), segment(1, 45 * 1448, 1448, ACK)];
        assert_eq!(merged_head(&long, TCP_AT + 20)[IP_LEN_AT..IP_LEN_AT + 2], [0, 0]);
    }
}
