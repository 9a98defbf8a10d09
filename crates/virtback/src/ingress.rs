//! What the guest transmits: chains become frames.
//!
//! Each chain is read, checked, copied and used before the next one is read; all chains of a call
//! are published together. If the end of a frame was [lent](crate::lending), they are published at
//! the end of the engine's round. The header is parsed only after the frame is in private memory.

use std::sync::atomic::Ordering;

use ringway_datapath::headers::ETH_LEN;
use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FrameForm, FramePool, QueueDown, Result,
};
use ringway_sys::guest_memory::{GuestView, OutsideMemory};
use ringway_virtio::{Buffer, Notify, QueueFault};
use ringway_wire::virtio::VirtioNetHdrV1;
use zerocopy::IntoBytes;

use crate::lending::{LENT_LEN_MIN, leaves_nothing};
use crate::{PairFault, QueuePair, TX};

/// The most descriptors that a call reads before it returns: those of one chain in a long queue.
const DESCRIPTORS_MAX: usize = 4096;

impl QueuePair {
    pub(crate) fn take_frames(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result {
        let first_frame = into.len();
        debug_assert!(!self.lending.has_lent(), "a call with a budget while ends are on loan");
        let taken = self.copy_frames(budget, pool, into);
        if let Err(lost) = self.check_memory() {
            // Some of these bytes are zeros that replaced the guest's truncated memory.
            into.drain(first_frame..).for_each(|frame| pool.recycle(frame));
            return Err(QueueDown::peer(lost));
        }
        if !self.control.is_enabled() {
            let dropped = into.drain(first_frame..).map(|frame| pool.recycle(frame)).count();
            self.counters.dropped.count(DropReason::NoRoute, widen(dropped));
        }
        // The engine calls again when the lent frames of this batch are gone.
        let has_lent = self.lending.has_lent() && into[first_frame..].iter().any(Frame::is_lent);
        let called = if has_lent { Ok(()) } else { self.finish(pool) };
        let frames = &into[first_frame..];
        self.counters.add_tx(widen(frames.len()), widen(frames.iter().map(Frame::len).sum()));
        called?;
        taken.map_err(|fault| QueueDown::peer(PairFault::Queue { queue: TX, fault }))
    }

    /// Makes the chains of a batch visible as used: no frame refers to the guest's memory any more.
    pub(crate) fn finish(&mut self, pool: &FramePool) -> Result {
        self.lending.end(pool, &self.counters);
        let notify = self.tx.publish();
        self.control.tx_base.store(self.tx.half.base(), Ordering::Relaxed);
        if notify == Notify::Peer { self.call(&self.tx) } else { Ok(()) }
    }

    /// Takes chains until the room in `into`, the budget or the pool's buffers are used up, or a
    /// fault occurs.
    fn copy_frames(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), QueueFault> {
        // Drops count as well, so a call is bounded whatever the guest sends.
        let room = into.remaining_capacity().min(budget.frames);
        let mut left = Left { room, bytes: budget.bytes, descriptors: DESCRIPTORS_MAX };
        self.tx.half.poll()?;
        while !left.is_nothing() {
            self.tx.half.read_ahead(&self.view)?;
            self.copy_singles(&mut left, pool, into)?;
            let ring = &mut self.tx;
            if left.is_nothing() {
                break;
            }
            let position = ring.half.position();
            let Some(chain) = ring.half.take(&self.view, &mut ring.buffers)? else { break };
            left.room -= 1;
            left.descriptors = left.descriptors.saturating_sub(ring.buffers.list().len());
            let total = usize::try_from(ring.buffers.bytes()).unwrap_or(usize::MAX);
            let len = total.saturating_sub(self.form.header_len);
            if len < ETH_LEN {
                self.counters.dropped.count(DropReason::Malformed, 1);
                ring.half.push_used(chain, 0);
                continue;
            }
            let Some(mut frame) = pool.take(len) else {
                // The chain stays in the queue until there is a buffer.
                ring.half.rewind(position);
                break;
            };
            match copy_frame(&self.view, &self.form, ring.buffers.list(), &mut frame) {
                Ok(Ok(())) => {
                    left.bytes = left.bytes.saturating_sub(frame.work());
                    into.push(frame);
                }
                Ok(Err(reason)) => {
                    self.counters.dropped.count(reason, 1);
                    pool.recycle(frame);
                }
                Err(outside) => {
                    pool.recycle(frame);
                    return Err(outside.into());
                }
            }
            ring.half.push_used(chain, 0);
        }
        Ok(())
    }

    /// Does the same for chains of one buffer, up to the first chain of another kind. Nearly all
    /// frames take this path. The loop is short, so that the CPU starts on the next frames while it
    /// waits for the bytes of this one.
    #[inline(never)]
    fn copy_singles(
        &mut self,
        left: &mut Left,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), QueueFault> {
        const HEADER_LEN: usize = size_of::<VirtioNetHdrV1>();
        let QueuePair { view, tx, form, counters, lending, .. } = self;
        if form.header_len != HEADER_LEN {
            return Ok(());
        }
        let count = left.room.min(left.descriptors);
        let (mut taken, mut bytes) = (0, 0);
        let mut result = Ok(());
        let mut window = view.window();
        for buffer in tx.half.singles().take(count) {
            let total = usize::try_from(buffer.len).expect("32 bits fit");
            if total < HEADER_LEN + ETH_LEN || bytes >= left.bytes {
                break;
            }
            let Some(mut frame) = pool.take(total - HEADER_LEN) else { break };
            let mut header = VirtioNetHdrV1::default();
            let is_copied = frame.len() < LENT_LEN_MIN
                && window.is_some_and(|window| {
                    window.copy_to_both(buffer.address, &mut header, frame.bytes_mut())
                });
            if !is_copied {
                let copied = lending.copy(view, buffer.address, &mut header, &mut frame, pool);
                window = view.window();
                if let Err(outside) = copied {
                    pool.recycle(frame);
                    result = Err(outside.into());
                    break;
                }
            }
            taken += 1;
            if leaves_nothing(&header) {
                // A new frame has no work left to do.
                bytes += frame.len();
                into.push(frame);
                continue;
            }
            match form.read(&header.hdr, &mut frame) {
                Ok(offload) => {
                    frame.offload = offload;
                    bytes += frame.work();
                    into.push(frame);
                }
                Err(reason) => {
                    counters.dropped.count(reason, 1);
                    pool.recycle(frame);
                }
            }
        }
        if taken == 0 {
            return result;
        }
        tx.half.use_singles((0..taken).map(|_| 0));
        left.room -= taken;
        left.descriptors -= taken;
        left.bytes = left.bytes.saturating_sub(bytes);
        result
    }
}

/// What is left of a call's limits.
struct Left {
    room: usize,
    bytes: usize,
    descriptors: usize,
}

impl Left {
    #[inline]
    fn is_nothing(&self) -> bool {
        self.room == 0 || self.bytes == 0 || self.descriptors == 0
    }
}

/// Copies a frame out of its buffers, and parses its header.
#[inline]
fn copy_frame(
    view: &GuestView,
    form: &FrameForm,
    buffers: &[Buffer],
    frame: &mut Frame,
) -> Result<Result<(), DropReason>, OutsideMemory> {
    let mut header = VirtioNetHdrV1::default();
    match buffers {
        [only] if form.header_len == size_of_val(&header) => {
            view.copy_to_both(only.address, &mut header, frame.bytes_mut())?;
        }
        _ => {
            let header_bytes = &mut header.as_mut_bytes()[..form.header_len];
            gather(view, buffers, header_bytes, frame.bytes_mut())?;
        }
    }
    let read = form.read(&header.hdr, frame);
    Ok(read.map(|offload| frame.offload = offload))
}

/// Fills two slices, one after the other, from buffers that have as many bytes in all.
#[inline(never)]
fn gather(
    view: &GuestView,
    buffers: &[Buffer],
    header: &mut [u8],
    frame: &mut [u8],
) -> Result<(), OutsideMemory> {
    let (mut header, mut frame) = (header, frame);
    for buffer in buffers {
        let len = usize::try_from(buffer.len).expect("32 bits fit");
        let in_header = len.min(header.len());
        let (first, others) = std::mem::take(&mut header).split_at_mut(in_header);
        header = others;
        view.copy_to(buffer.address, first)?;
        let (second, others) = std::mem::take(&mut frame).split_at_mut(len - in_header);
        frame = others;
        view.copy_to(buffer.address + widen(in_header), second)?;
    }
    Ok(())
}

fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
