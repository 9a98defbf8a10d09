//! What the guest receives: frames become chains.
//!
//! With mergeable buffers a frame uses as many chains as it needs, without them exactly one. If
//! there are too few chains, the frame waits, and the chains already taken are returned.

use std::sync::atomic::Ordering;

use ringway_datapath::{
    DropReason, Frame, FrameForm, FramePool, FrameQueue, Offload, QueueDown, Result,
};
use ringway_sys::guest_memory::{GuestView, OutsideMemory};
use ringway_virtio::{Buffer, Notify, QueueFault};
use ringway_wire::virtio::VirtioNetHdrV1;
use ringway_wire::vnet::{VIRTIO_NET_HDR_GSO_NONE, VirtioNetHdr};
use zerocopy::IntoBytes;

use crate::lending::copy_end;
use crate::log::RingLog;
use crate::{PairFault, QueuePair, RX, Ring};

/// The most descriptors that one frame may use, in all its chains. With buffers of 64 bytes these
/// suffice for the longest frame: a guest that needs more has nearly empty buffers. Reading as many
/// descriptors as the queue has, in each of as many chains, would take longer than everything else
/// that a worker does.
const FRAME_DESCRIPTORS_MAX: usize = 1024;

/// The header of a frame that leaves no work to the guest.
///
/// It is a constant for speed: see "Structs that stall" in HACKING.md.
const PLAIN_HEADER: VirtioNetHdrV1 = VirtioNetHdrV1 { hdr: NO_WORK, num_buffers: 1 };
const NO_WORK: VirtioNetHdr = VirtioNetHdr {
    flags: 0,
    gso_type: VIRTIO_NET_HDR_GSO_NONE,
    hdr_len: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};

/// Frames that were placed.
#[derive(Default)]
struct Tally {
    frames: u64,
    bytes: u64,
}

/// The outcome for a frame.
enum Placed {
    /// The frame is in the guest's buffers.
    Whole,
    /// The frame waits for more chains.
    TooFewChains,
    Dropped(DropReason),
}

impl QueuePair {
    pub(crate) fn give_frames(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.is_rx_short = false;
        if from.is_empty() {
            return Ok(());
        }
        let given = match self.control.is_enabled() {
            true => self.place_frames(from, pool),
            false => {
                let dropped = from.drain(..).map(|frame| pool.recycle(frame)).count();
                self.counters.dropped.count(DropReason::NoRoute, widen(dropped));
                Ok(())
            }
        };
        let notify = self.rx.publish();
        self.control.rx_base.store(self.rx.half.base(), Ordering::Relaxed);
        let called = if notify == Notify::Peer { self.call(&self.rx) } else { Ok(()) };
        self.check_memory().map_err(QueueDown::peer)?;
        called?;
        given.map_err(QueueDown::peer)
    }

    fn place_frames(
        &mut self,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> Result<(), PairFault> {
        let (mut packets, mut bytes) = (0, 0);
        let mut given = self.rx.half.poll().map_err(fault);
        while given.is_ok() {
            if let Err(error) = self.rx.half.read_ahead(&self.view) {
                given = Err(fault(error));
                break;
            }
            let placed;
            (placed, given) = self.place_singles(from, pool);
            packets += placed.frames;
            bytes += placed.bytes;
            let (Some(frame), Ok(())) = (from.front_mut(), &given) else { break };
            if placed.frames > 0 {
                // There may be more chains of one buffer, which are not read yet.
                continue;
            }
            // Only frames in one buffer can get their ends from another guest.
            let completed = pool.complete(frame);
            match completed
                .map_or_else(|reason| Ok(Placed::Dropped(reason)), |()| self.place(frame))
            {
                Ok(Placed::Whole) => {
                    packets += 1;
                    bytes += widen(frame.len());
                }
                Ok(Placed::TooFewChains) => {
                    self.is_rx_short = true;
                    break;
                }
                Ok(Placed::Dropped(reason)) => self.counters.dropped.count(reason, 1),
                Err(fault) => {
                    given = Err(fault);
                    break;
                }
            }
            from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
        }
        self.counters.add_rx(packets, bytes);
        given
    }

    /// Writes frames into chains of one buffer, up to the first frame or chain that needs
    /// [`place`](QueuePair::place), and uses the chains together. Nearly all frames take this path.
    /// Returns what was placed, even if it ends with a fault.
    #[inline(never)]
    fn place_singles(
        &mut self,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> (Tally, Result<(), PairFault>) {
        const HEADER_LEN: usize = size_of::<VirtioNetHdrV1>();
        let QueuePair { view, rx: ring, form, .. } = self;
        if form.header_len != HEADER_LEN || ring.log.is_some() {
            return (Tally::default(), Ok(()));
        }
        let (mut placed, mut bytes) = (0, 0);
        let mut result = Ok(());
        let mut window = view.window();
        for (buffer, frame) in ring.half.singles().zip(from.iter_mut()) {
            let room = usize::try_from(buffer.len).expect("32 bits fit");
            if room < HEADER_LEN + frame.len() {
                break;
            }
            let is_placed = frame.offload == Offload::NONE
                && frame.is_complete()
                && window.is_some_and(|window| {
                    window.copy_from_both(buffer.address, &PLAIN_HEADER, frame.bytes())
                });
            if !is_placed {
                let written = write_single(view, form, buffer.address, frame, pool);
                window = view.window();
                match written {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(outside(error));
                        break;
                    }
                }
            }
            bytes += widen(frame.len());
            placed += 1;
        }
        if placed == 0 {
            return (Tally::default(), result);
        }
        let used = from.iter().take(placed).map(|frame| written(HEADER_LEN + frame.len()));
        ring.half.use_singles(used);
        from.drain(..placed).for_each(|frame| pool.recycle(frame));
        (Tally { frames: widen(placed), bytes }, result)
    }

    /// Writes one frame into the guest's buffers, and uses its chains.
    fn place(&mut self, frame: &mut Frame) -> Result<Placed, PairFault> {
        let (view, ring, form) = (&self.view, &mut self.rx, &self.form);
        let mut space = None;
        let header = match header(form, frame, &mut space) {
            Ok(header) => header,
            Err(reason) => return Ok(Placed::Dropped(reason)),
        };
        let start = ring.half.position();
        let needed = form.header_len + frame.len();
        let Some(chain) = ring.half.take(view, &mut ring.buffers).map_err(fault)? else {
            return Ok(Placed::TooFewChains);
        };
        check_descriptors(ring.buffers.list().len())?;
        let room = usize::try_from(ring.buffers.bytes()).unwrap_or(usize::MAX);
        if room >= needed {
            write_whole(view, ring, form, header, frame).map_err(outside)?;
            ring.half.push_used(chain, written(needed));
            return Ok(Placed::Whole);
        }
        if room < form.header_len {
            let (bytes, header_len) = (ring.buffers.bytes(), form.header_len);
            return Err(PairFault::NoRoomForHeader { bytes, header_len });
        }
        if !form.is_mergeable {
            ring.half.rewind(start);
            return Ok(Placed::Dropped(DropReason::TooLong));
        }
        ring.half.rewind(start);
        self.place_over_several(header, frame)
    }

    /// Writes a frame into several chains. The header in the first says how many there are.
    #[inline(never)]
    fn place_over_several(
        &mut self,
        header: &VirtioNetHdrV1,
        frame: &Frame,
    ) -> Result<Placed, PairFault> {
        let (view, ring) = (&self.view, &mut self.rx);
        let start = ring.half.position();
        let mut rest = frame.bytes();
        let mut descriptors = 0;
        self.pending.clear();
        // Each iteration takes a chain, and the queue has at most as many as entries.
        while !rest.is_empty() || self.pending.is_empty() {
            if self.pending.len() == usize::from(ring.size) {
                ring.half.rewind(start);
                return Ok(Placed::Dropped(DropReason::TooLong));
            }
            let Some(chain) = ring.half.take(view, &mut ring.buffers).map_err(fault)? else {
                ring.half.rewind(start);
                return Ok(Placed::TooFewChains);
            };
            descriptors += ring.buffers.list().len();
            check_descriptors(descriptors)?;
            let skip = if self.pending.is_empty() { self.form.header_len } else { 0 };
            let room = usize::try_from(ring.buffers.bytes()).unwrap_or(usize::MAX);
            let (piece, others) = rest.split_at(room.saturating_sub(skip).min(rest.len()));
            let log = ring.log.as_ref();
            scatter(view, log, ring.buffers.list(), skip, piece).map_err(outside)?;
            self.pending.push((chain, written(skip + piece.len())));
            rest = others;
        }
        let end = ring.half.position();
        ring.half.rewind(start);
        // Takes the same chain again, which is still there if the guest is honest.
        if ring.half.take(view, &mut ring.buffers).map_err(fault)?.is_some() {
            let num_buffers = u16::try_from(self.pending.len()).expect("a queue is small");
            let header = VirtioNetHdrV1 { num_buffers, ..*header };
            let bytes = &header.as_bytes()[..self.form.header_len];
            let log = ring.log.as_ref();
            scatter(view, log, ring.buffers.list(), 0, bytes).map_err(outside)?;
        }
        ring.half.rewind(end);
        for (chain, len) in self.pending.drain(..) {
            ring.half.push_used(chain, len);
        }
        Ok(Placed::Whole)
    }
}

/// The header of a frame that needs one chain. One that asks for something is built in `space`.
#[inline]
fn header<'a>(
    form: &FrameForm,
    frame: &mut Frame,
    space: &'a mut Option<VirtioNetHdrV1>,
) -> Result<&'a VirtioNetHdrV1, DropReason> {
    if frame.offload == Offload::NONE {
        return Ok(&PLAIN_HEADER);
    }
    let hdr = form.write(frame)?;
    Ok(space.insert(VirtioNetHdrV1 { hdr, num_buffers: 1 }))
}

/// Writes a header, and a frame of any kind, into a buffer that has room for both. False if the
/// frame cannot be written in this way. Not inlined, to keep the path of other frames short.
///
/// # Errors
/// [`OutsideMemory`].
#[inline(never)]
fn write_single(
    view: &GuestView,
    form: &FrameForm,
    address: u64,
    frame: &mut Frame,
    pool: &mut FramePool,
) -> Result<bool, OutsideMemory> {
    let mut space = None;
    let Ok(header) = header(form, frame, &mut space) else { return Ok(false) };
    view.copy_from_both(address, header, frame.bytes())?;
    if frame.is_complete() {
        return Ok(true);
    }
    let end = address + widen(size_of_val(header) + frame.bytes().len());
    let Some(copied) = copy_end(frame, pool, view, end) else { return Ok(false) };
    copied?;
    pool.count_copied(frame);
    Ok(true)
}

/// Writes header and frame into a chain that has room for both.
#[inline]
fn write_whole(
    view: &GuestView,
    ring: &Ring,
    form: &FrameForm,
    header: &VirtioNetHdrV1,
    frame: &Frame,
) -> Result<(), OutsideMemory> {
    let log = ring.log.as_ref();
    if let (&[only, ..], None) = (ring.buffers.list(), log) {
        let room = usize::try_from(only.len).expect("32 bits fit");
        if form.header_len == size_of_val(header) && room >= form.header_len + frame.len() {
            return view.copy_from_both(only.address, header, frame.bytes());
        }
    }
    let header = &header.as_bytes()[..form.header_len];
    scatter(view, log, ring.buffers.list(), 0, header)?;
    scatter(view, log, ring.buffers.list(), header.len(), frame.bytes())
}

/// Writes bytes into buffers from offset `skip` on, and logs the writes. Bytes without room are
/// left out.
#[inline(never)]
fn scatter(
    view: &GuestView,
    log: Option<&RingLog>,
    buffers: &[Buffer],
    skip: usize,
    bytes: &[u8],
) -> Result<(), OutsideMemory> {
    let (mut skip, mut rest) = (skip, bytes);
    for buffer in buffers {
        let len = usize::try_from(buffer.len).expect("32 bits fit");
        let skipped = skip.min(len);
        skip -= skipped;
        let (piece, others) = rest.split_at((len - skipped).min(rest.len()));
        let address = buffer.address + widen(skipped);
        view.copy_from(address, piece)?;
        if let Some(log) = log {
            log.mark(address, piece.len());
        }
        rest = others;
        if rest.is_empty() {
            break;
        }
    }
    Ok(())
}

fn check_descriptors(of_frame: usize) -> Result<(), PairFault> {
    match of_frame <= FRAME_DESCRIPTORS_MAX {
        true => Ok(()),
        false => Err(PairFault::TooManyDescriptors { limit: FRAME_DESCRIPTORS_MAX }),
    }
}

fn fault(fault: QueueFault) -> PairFault {
    PairFault::Queue { queue: RX, fault }
}

fn outside(outside: OutsideMemory) -> PairFault {
    fault(outside.into())
}

/// A length in the format of a used entry: no frame is longer than 64 KiB plus headers.
fn written(len: usize) -> u32 {
    u32::try_from(len).expect("a frame is 64 KiB")
}

fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
