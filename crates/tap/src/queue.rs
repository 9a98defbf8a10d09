//! The [`PortQueue`] over one queue of a TAP device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use ringway_datapath::merge::{Place, Run, merge_batch};
use ringway_datapath::vnet::{offload_of, vnet_for_tap};
use ringway_datapath::{
    BODY_LEN_MAX, Budget, DropReason, End, Ends, Frame, FrameBatch, FramePool, FrameQueue,
    MIDDLE_LEN, OffloadCaps, PIECES_MAX, PagePool, PeerProgress, Pending, PortQueue, Probe,
    QueueCounters, QueueDown, QueueTraits, Result, Side, Wakers, Woken,
};
use ringway_sys::SharedPages;
use ringway_sys::tun::{PARTS_MAX, Part, TunFile, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;

use crate::{Modes, bit};

/// One queue of a TAP device.
#[derive(Debug)]
pub struct TapQueue {
    file: Arc<TunFile>,
    side: Side,
    caps: OffloadCaps,
    counters: Arc<QueueCounters>,
    /// Where long incoming frames are put; `None` to put them into buffers.
    page_pool: Option<Box<dyn PagePool>>,
    modes: Arc<Modes>,
    /// The last ingress stopped before it found the device empty, so that no event will come.
    may_have_more: bool,
}

impl TapQueue {
    /// A queue that another process opened, such as a supervisor with more rights. UDP frames with
    /// pending segmentation are cut before they are written, whatever the kernel supports.
    ///
    /// # Errors
    /// If `fd` is not a queue of a TAP device with the framing of [`TunFile::open`].
    pub fn from_fd(fd: OwnedFd, side: Side, counters: Arc<QueueCounters>) -> io::Result<TapQueue> {
        let file = Arc::new(TunFile::from_fd(fd)?);
        Ok(TapQueue::new(file, side, OffloadCaps::NETIF, counters, Arc::default()))
    }

    pub(crate) fn new(
        file: Arc<TunFile>,
        side: Side,
        caps: OffloadCaps,
        counters: Arc<QueueCounters>,
        modes: Arc<Modes>,
    ) -> TapQueue {
        let page_pool = None;
        TapQueue { file, side, caps, counters, page_pool, modes, may_have_more: false }
    }

    /// Puts long incoming frames, except their first page, into these pages.
    pub fn use_page_pool(&mut self, page_pool: Box<dyn PagePool>) {
        self.page_pool = Some(page_pool);
    }

    /// Reads one frame. `room` has space for any frame, because the length is not known in advance;
    /// most frames are small and are copied out of it, so it serves many reads.
    fn read(&mut self, room: &mut Room, pool: &mut FramePool) -> io::Result<Read> {
        let Room { large, end } = room;
        let Some(mut buffer) = large.take().or_else(|| pool.take(READ_LEN)) else {
            return Ok(Read::Nothing);
        };
        if end.is_none() {
            *end = self.page_pool.as_mut().and_then(|page_pool| page_pool.take());
        }
        let mut header = VirtioNetHdr::default();
        let outcome = match end.as_ref().and_then(part_of) {
            Some((pages, part)) => {
                let head = &mut buffer.bytes_mut()[..MIDDLE_LEN];
                self.file.read_pages(&mut header, head, pages, part)
            }
            None => self.file.read_frame(&mut header, buffer.bytes_mut()),
        };
        let len = match outcome {
            Ok(Some(len)) if len < READ_LEN => len,
            other => {
                *large = Some(buffer);
                let cut = other?.map(|_| Read::Dropped(DropReason::TooLong));
                return Ok(cut.unwrap_or(Read::Nothing));
            }
        };
        let mut frame = if len > MIDDLE_LEN {
            match end.take() {
                None => buffer.set_len(len),
                Some(mut end) => {
                    buffer.set_len(MIDDLE_LEN);
                    end.truncate(len - MIDDLE_LEN);
                    buffer.set_end(end);
                }
            }
            buffer
        } else {
            let small = pool.take(len);
            let copied = small.map(|mut small| {
                small.bytes_mut().copy_from_slice(&buffer.bytes()[..len]);
                small
            });
            *large = Some(buffer);
            let Some(copied) = copied else { return Ok(Read::Dropped(DropReason::NoBuffer)) };
            copied
        };
        match offload_of(&header, &mut frame, pool) {
            Ok(offload) => {
                frame.offload = offload;
                Ok(Read::Frame(frame))
            }
            Err(reason) => {
                pool.recycle(frame);
                Ok(Read::Dropped(reason))
            }
        }
    }

    /// Writes one frame.
    fn write(&mut self, frame: &mut Frame, pool: &mut FramePool) -> io::Result<Written> {
        let is_plain = self.modes.is_plain.load(Ordering::Relaxed);
        let header = match vnet_for_tap(frame, is_plain, pool) {
            Ok(header) => header,
            Err(reason) => return Ok(Written::Dropped(reason)),
        };
        let outcome = match frame.end() {
            None => self.file.write_frame(&header, frame.bytes())?,
            Some(_) => match self.write_with_end(&header, frame, pool)? {
                Ok(outcome) => outcome,
                Err(reason) => return Ok(Written::Dropped(reason)),
            },
        };
        Ok(match outcome {
            WriteOutcome::Sent => Written::Sent,
            WriteOutcome::Full => Written::Later,
            WriteOutcome::Refused => Written::Dropped(DropReason::BadOffload),
            WriteOutcome::LinkDown => Written::Dropped(DropReason::NoRoute),
            WriteOutcome::NoMemory => Written::Dropped(DropReason::NoBuffer),
        })
    }

    /// Writes a frame whose end is in pages: directly from there, if possible. The inner error is
    /// why these pages cannot be read.
    fn write_with_end(
        &self,
        header: &VirtioNetHdr,
        frame: &mut Frame,
        pool: &mut FramePool,
    ) -> io::Result<Result<WriteOutcome, DropReason>> {
        if let Some(parts) = parts_of(frame, 0, pool) {
            return self.file.write_parts(header, parts).map(Ok);
        }
        match pool.complete(frame) {
            Ok(()) => self.file.write_frame(header, frame.bytes()).map(Ok),
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// Takes the frames that continue this one out of those that leave after it.
    fn run_of(&self, first: &Frame, from: &mut FrameQueue) -> Option<(Run, Members)> {
        let mut run = Run::begin(first, self.modes.merge_len.load(Ordering::Relaxed))?;
        let mut members = Members::new();
        let mut at = 0;
        while at < from.len().min(LOOK_AHEAD) && !members.is_full() && !run.is_closed() {
            match run.place(&from[at]) {
                Place::Next => members.extend(from.remove(at)),
                Place::Elsewhere => at += 1,
                Place::Behind => break,
            }
        }
        (!members.is_empty()).then_some((run, members))
    }

    /// Writes a run as one frame; false if that was not possible now, for whatever reason.
    fn write_run(&self, run: Run, first: &Frame, others: &Members, pool: &FramePool) -> bool {
        let (header, head) = run.finish();
        let mut parts: ArrayVec<Part<'_>, PARTS_MAX> = ArrayVec::new();
        parts.push(Part::Bytes(&head));
        for frame in std::iter::once(first).chain(others) {
            let Some(own) = parts_of(frame, head.len(), pool) else { return false };
            parts.extend(own);
        }
        matches!(self.file.write_parts(&header, parts.into_iter()), Ok(WriteOutcome::Sent))
    }

    fn count_ingress(&self, frames: u64, bytes: u64) {
        match self.side {
            Side::Guest => self.counters.add_tx(frames, bytes),
            Side::Host => self.counters.add_rx(frames, bytes),
        }
    }

    fn count_egress(&self, frames: u64, bytes: u64) {
        match self.side {
            Side::Guest => self.counters.add_rx(frames, bytes),
            Side::Host => self.counters.add_tx(frames, bytes),
        }
    }
}

impl PortQueue for TapQueue {
    /// If the pool has no large frames, frames wait in the kernel, up to the length of its queue
    /// (`LinkSetting::TxQueueLen` in `ringway-net`).
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        let bytes_max = u64::try_from(budget.bytes).unwrap_or(u64::MAX).min(BATCH_BYTES);
        let mut tally = Tally::default();
        let mut result = Ok(());
        let mut room = Room::default();
        let start = into.len();
        self.may_have_more = true;
        // Drops count against the room, too, so a call is bounded whatever the kernel sends.
        for _ in 0..into.remaining_capacity().min(budget.frames) {
            if tally.bytes >= bytes_max {
                break;
            }
            match self.read(&mut room, pool) {
                Ok(Read::Frame(frame)) => {
                    tally.add(&frame);
                    into.push(frame);
                }
                Ok(Read::Dropped(reason)) => self.counters.dropped.count(reason, 1),
                Ok(Read::Nothing) => {
                    self.may_have_more = false;
                    break;
                }
                Err(error) => {
                    result = Err(QueueDown::Host(error));
                    break;
                }
            }
        }
        if let Some(unused) = room.large {
            pool.recycle(unused);
        }
        let merged = self.modes.merged_versions.load(Ordering::Relaxed);
        if merged != 0 && into.len() > start + 1 {
            merge_batch(into, start, pool, |version| merged & bit(version) != 0);
        }
        self.count_ingress(tally.frames, tally.bytes);
        result
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        Ok(())
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        let mut tally = Tally::default();
        let mut result = Ok(());
        // Frames that could not be written as one.
        let mut singly = 0_usize;
        while let Some(mut frame) = from.pop_front() {
            let run = if singly == 0 { self.run_of(&frame, from) } else { None };
            singly = singly.saturating_sub(1);
            if let Some((run, others)) = run {
                if self.write_run(run, &frame, &others, pool) {
                    for frame in std::iter::once(frame).chain(others) {
                        tally.add(&frame);
                        pool.recycle(frame);
                    }
                    continue;
                }
                singly = others.len();
                others.into_iter().rev().for_each(|frame| from.push_front(frame));
            }
            match self.write(&mut frame, pool) {
                Ok(Written::Sent) => tally.add(&frame),
                Ok(Written::Dropped(reason)) => self.counters.dropped.count(reason, 1),
                Ok(Written::Later) => {
                    from.push_front(frame);
                    break;
                }
                Err(error) => {
                    from.push_front(frame);
                    result = Err(QueueDown::Host(error));
                    break;
                }
            }
            pool.recycle(frame);
        }
        self.count_egress(tally.frames, tally.bytes);
        result
    }

    /// There is nothing to arm: the descriptor reports every frame that arrives at an empty device.
    fn arm(&mut self) -> Result<Pending> {
        Ok(if self.may_have_more { Pending::Work } else { Pending::Nothing })
    }

    fn woken(&mut self, _: Woken) -> Result {
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        let (caps, probe, retry) = (self.caps, Probe::SystemCall, Some(RETRY));
        QueueTraits { caps, probe, retry, takes: Ends::OWN }
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

impl Wakers for TapQueue {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        visit(self.as_fd());
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The interval at which a backlog is retried on a device that had no room for it.
const RETRY: Duration = Duration::from_millis(50);

/// Bytes that a read has room for. The longest frame that netif can describe has one less, so a
/// read that fills it may be truncated and is dropped.
const READ_LEN: usize = MIDDLE_LEN + BODY_LEN_MAX;
/// Bytes after which a batch ends, so that it stays in a core's cache.
const BATCH_BYTES: u64 = 256 << 10;

/// Where a frame is read to.
#[derive(Default)]
struct Room {
    large: Option<Frame>,
    /// For what follows the first [`MIDDLE_LEN`] bytes.
    end: Option<End>,
}

/// Frames that are written as one with another. More need memory in longer pieces than a kernel
/// always has.
type Members = ArrayVec<Frame, 3>;
/// Frames among which those that continue another are searched for.
const LOOK_AHEAD: usize = 32;

const _: () = assert!(PARTS_MAX > 4 * (1 + PIECES_MAX));

/// Where the bytes of a frame behind the first `from` are; `None` if the kernel cannot read them
/// there, or if these are not in the frame's buffer.
fn parts_of<'a>(
    frame: &'a Frame,
    from: usize,
    pool: &'a FramePool,
) -> Option<impl Iterator<Item = Part<'a>>> {
    let bytes = frame.bytes().get(from..)?;
    let end = match frame.end() {
        None => None,
        Some(end) => Some((end, pool.pages_of(end)?.memory().downcast_ref::<SharedPages>()?)),
    };
    let pieces = end.into_iter().flat_map(|(end, pages)| {
        end.pieces().iter().map(move |piece| Part::Pages(pages, piece.at, piece.len))
    });
    Some(std::iter::once(Part::Bytes(bytes)).chain(pieces))
}

/// The memory of an end in one piece, and the piece's place in it.
fn part_of(end: &End) -> Option<(&SharedPages, (usize, usize))> {
    let [piece] = end.pieces() else { return None };
    let pages = end.kept_pages()?.memory().downcast_ref()?;
    (piece.len == BODY_LEN_MAX).then_some((pages, (piece.at, piece.len)))
}

enum Read {
    Frame(Frame),
    Dropped(DropReason),
    Nothing,
}

enum Written {
    Sent,
    Dropped(DropReason),
    Later,
}

/// Counts on the stack, published once per batch.
#[derive(Default)]
struct Tally {
    frames: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, frame: &Frame) {
        self.frames += 1;
        // A length of at most 64 KiB fits; there is just no `From` for it.
        self.bytes += u64::try_from(frame.len()).unwrap_or(0);
    }
}
