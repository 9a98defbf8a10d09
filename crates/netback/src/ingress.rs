//! What the guest transmits: tx slots become frames.
//!
//! One call is one pass through six phases, each over the whole batch: take the slots by value,
//! plan packets and copies (no side effects), copy, drop failed frames, respond to each slot,
//! publish. Orders of multicast frames come apart from packets, in calls of their own.

use arrayvec::ArrayVec;
use ringway_datapath::headers::ETH_LEN;
use ringway_datapath::{
    BATCH, Budget, DropReason, End, Frame, FrameBatch, FramePool, Offload, QueueDown, Result,
};
use ringway_hypervisor::{Direction, EventChannel, ForeignMemory, GrantCopy, GrantStatus};
use ringway_wire::netif::{NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, RX_RING_SLOTS, TxRequest};
use ringway_wire::{GrantRef, PAGE_SIZE};

use crate::changes::ChangeNumber;
use crate::lending::{END_LEN_MIN, HEAD_LEN_MIN, Lending, place};
use crate::multicast::MulticastControl;
use crate::parse::{FATAL_SLOTS, Parsed, check_range, checksum_of, parse_long};
use crate::runs::{TxPacket, for_each_run, good_response};
use crate::{Scratch, TxFault, VifQueue};

/// Slots read in one call: a batch of one-slot packets, or a few large ones, and always at
/// least one whole packet.
pub(crate) const WINDOW: usize = BATCH + 2 * FATAL_SLOTS;

impl<M: ForeignMemory + 'static, E: EventChannel> VifQueue<M, E> {
    pub(crate) fn take_packets(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result {
        let (taken, waiting) =
            self.tx.peek_requests(&mut self.scratch.tx_requests).map_err(QueueDown::peer)?;
        if taken == 0 {
            return Ok(());
        }
        self.stopwatch.on_seen(self.tx.consumer(), taken);
        let first_frame = into.len();
        let planned = self.plan_packets(taken, waiting, budget, pool, into);
        if self.unnoted.is_some() {
            self.count_refused_orders();
            return Ok(());
        }
        let frames = &mut into[first_frame..];
        if let Err(error) = self.memory.copy_from_peer(self.peer, &mut self.scratch.copies, frames)
        {
            // Nothing was copied: these buffers still hold data of other guests.
            into.drain(first_frame..).for_each(|frame| pool.recycle(frame));
            return Err(error.into());
        }
        self.judge_copies();
        // A frame that was not filled must not be forwarded, even if no event can be sent.
        self.drop_failed(first_frame, pool, into);
        self.respond(&into[first_frame..], pool)?;
        planned.map_err(QueueDown::peer)
    }

    /// Counts the orders of a batch that were refused.
    #[cold]
    fn count_refused_orders(&self) {
        let refused = self.scratch.packets.iter().filter_map(|packet| packet.verdict.err());
        refused.for_each(|reason| self.counters.dropped.count(reason, 1));
    }

    /// Responds to a batch, unless its frames or those before it must leave first.
    #[inline(always)]
    fn respond(&mut self, frames: &[Frame], pool: &mut FramePool) -> Result {
        if self.must_defer(frames) {
            self.defer_responses();
            return Ok(());
        }
        self.push_tx_responses();
        self.publish_responses()?;
        // Lent frames may have been dropped.
        self.lending.iter_mut().for_each(|lending| lending.end(pool));
        Ok(())
    }

    /// Responds to orders if they are noted by now. Nothing else is taken in before.
    #[cold]
    pub(crate) fn answer_orders(&mut self, pool: &mut FramePool) -> Result {
        if self.awaits_note() {
            return self.settle_responses(pool);
        }
        self.unnoted = None;
        self.respond(&[], pool)
    }

    /// Turns slots into packets, frames and copies, up to the room in `into`, the budget, the
    /// buffers in the pool, the first fault, or the first order. Packets planned before a fault are
    /// still served. Orders are carried out if they are the first, and nothing else is taken then.
    fn plan_packets(
        &mut self,
        taken: usize,
        waiting: usize,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), TxFault> {
        let Scratch { tx_requests, copies, packets, .. } = &mut *self.scratch;
        copies.clear();
        packets.clear();
        let first_frame = into.len();
        let frames_end = into.capacity().min(first_frame.saturating_add(budget.frames));
        let mut plan = Plan { copies, packets, pool, into, first_frame, work: 0 };
        let mut rest = &tx_requests[..taken];
        let may_add = |plan: &Plan<'_>| plan.into.len() < frames_end && plan.work < budget.bytes;
        while may_add(&plan) {
            let room = frames_end - plan.into.len();
            let singles = plan.add_singles(rest, room, budget.bytes);
            self.tx.consume(singles);
            rest = &rest[singles..];
            let Some(first) = rest.first().filter(|_| may_add(&plan)) else { break };
            let has_more_slots = first.flags & (NETTXF_EXTRA_INFO | NETTXF_MORE_DATA) != 0;
            let slots = if has_more_slots {
                let at = self.tx.consumer();
                let Some(parsed) = parse_long(first, rest, taken == waiting, at)? else { break };
                if let (Some(_), Some(multicast)) = (parsed.order, &self.multicast) {
                    // The responses of packets before them do not wait for a note.
                    if plan.packets.is_empty() {
                        let carried = plan.carry_out(rest, multicast, taken == waiting, at);
                        self.tx.consume(plan.packets.iter().map(|packet| packet.slots).sum());
                        self.unnoted = Some(carried?);
                    }
                    break;
                }
                plan.add_long(&rest[..parsed.slots], &parsed, self.lending.as_mut(), at)
            } else {
                plan.add_short(first)?
            };
            let Some(slots) = slots else { break };
            self.tx.consume(slots);
            rest = &rest[slots..];
        }
        Ok(())
    }

    /// Checks the status of every copy; no status may hide another (XSA-361).
    fn judge_copies(&mut self) {
        if self.scratch.copies.iter().all(|copy| copy.status == GrantStatus::Okay) {
            return;
        }
        let Scratch { copies, packets, .. } = &mut *self.scratch;
        let runs = std::mem::take(packets);
        packets.extend(runs.into_iter().flat_map(TxPacket::split));
        let mut copies = &copies[..];
        for packet in packets {
            let (own, others) = copies.split_at(packet.copies);
            if own.iter().any(|copy| copy.status != GrantStatus::Okay) {
                packet.verdict = Err(DropReason::GrantCopy);
            }
            copies = others;
        }
    }

    /// Pushes one response per slot, in ring order, whatever its status; responses to extras are
    /// NULL.
    fn push_tx_responses(&mut self) {
        let scratch = &*self.scratch;
        if let [TxPacket { slots, extras: 0, verdict: Ok(()), .. }] = scratch.packets[..] {
            // Nearly all batches are one run.
            let run = scratch.tx_requests[..slots].iter();
            return self.tx.push_responses(run.map(good_response));
        }
        self.tx.begin_responses();
        for_each_run(&scratch.tx_requests, &scratch.packets, |run, response| {
            self.tx.push_responses(run.iter().map(|slot| response.to(slot)));
        });
    }

    /// Whether the responses of a batch must wait: for its frames, or behind others.
    fn must_defer(&self, frames: &[Frame]) -> bool {
        self.lending.as_ref().is_some_and(|lending| {
            let has_lent = lending.has_lent() && frames.iter().any(Frame::is_lent);
            has_lent || !lending.unanswered.is_empty()
        })
    }

    /// Keeps the responses until the frames no longer refer to the guest's pages: within the round.
    ///
    /// If a backend ends before it has responded to a request, the next backend serves the request
    /// again: such a frame may leave twice but is never lost.
    fn defer_responses(&mut self) {
        let Some(lending) = &mut self.lending else { return };
        let scratch = &*self.scratch;
        let unanswered = &mut lending.unanswered;
        for_each_run(&scratch.tx_requests, &scratch.packets, |run, response| {
            unanswered.extend(run.iter().map(|slot| response.to(slot)));
        });
        self.counters.set_tx_unanswered(widen(unanswered.len()));
    }

    /// Responds to what waited for frames: none refers to the guest's pages any more.
    pub(crate) fn settle_responses(&mut self, pool: &FramePool) -> Result {
        let Some(lending) = &mut self.lending else { return Ok(()) };
        lending.end(pool);
        if lending.unanswered.is_empty() {
            return Ok(());
        }
        self.tx.push_responses(lending.unanswered.drain(..));
        self.counters.set_tx_unanswered(0);
        self.publish_responses()
    }

    fn publish_responses(&mut self) -> Result {
        let notify = self.tx.publish_responses();
        if let Some(time) = self.stopwatch.completed(self.tx.producer()) {
            self.counters.tx_response_times.count(time);
        }
        self.notify(Direction::Tx, notify)
    }

    /// Removes frames whose copies failed from the batch, without reordering the others, and counts
    /// them.
    fn drop_failed(&mut self, first_frame: usize, pool: &mut FramePool, into: &mut FrameBatch) {
        let mut failed = false;
        for packet in &self.scratch.packets {
            if let Err(reason) = packet.verdict {
                self.counters.dropped.count(reason, 1);
                failed = true;
            }
        }
        if failed {
            let packets = self.scratch.packets.iter().copied().flat_map(TxPacket::split);
            let mut verdicts = packets.filter(|packet| packet.copies > 0);
            let mut kept = FrameBatch::new();
            for (index, frame) in into.drain(..).enumerate() {
                let is_good =
                    index < first_frame || verdicts.next().is_some_and(|p| p.verdict.is_ok());
                if is_good { kept.push(frame) } else { pool.recycle(frame) }
            }
            *into = kept;
        }
        let frames = &into[first_frame.min(into.len())..];
        let bytes: usize = frames.iter().map(Frame::len).sum();
        self.counters.add_tx(widen(frames.len()), widen(bytes));
    }
}

/// The packets of one call that have been planned.
struct Plan<'a> {
    copies: &'a mut ArrayVec<GrantCopy, RX_RING_SLOTS>,
    packets: &'a mut ArrayVec<TxPacket, WINDOW>,
    pool: &'a mut FramePool,
    into: &'a mut FrameBatch,
    /// Where the frames of this call begin in `into`.
    first_frame: usize,
    /// The cost of these frames: see [`Frame::work`].
    work: usize,
}

impl Plan<'_> {
    /// The number of the next frame, which its copies refer to.
    #[inline]
    fn local(&self) -> u16 {
        u16::try_from(self.into.len() - self.first_frame).expect("a batch is small")
    }

    #[inline]
    fn push(&mut self, frame: Frame) {
        self.work += frame.work();
        self.into.push(frame);
    }

    /// Plans packets of one slot, as nearly all are: at most `room`, and none after the one that
    /// reaches `work_max`, up to the first that is of another kind, has no buffer or must be
    /// refused. Returns their number.
    #[inline]
    fn add_singles(&mut self, slots: &[TxRequest], room: usize, work_max: usize) -> usize {
        let (mut count, mut local) = (0, self.local());
        for slot in &slots[..room.min(slots.len())] {
            let len = usize::from(slot.size);
            let is_single = slot.flags & (NETTXF_EXTRA_INFO | NETTXF_MORE_DATA) == 0;
            let is_sound = len >= ETH_LEN && usize::from(slot.offset) + len <= PAGE_SIZE;
            if !is_single || !is_sound || self.work >= work_max {
                break;
            }
            let Some(mut frame) = self.pool.take(len) else { break };
            frame.offload.checksum = checksum_of(slot.flags);
            self.copies.push(copy_of(slot, slot.size, local, 0));
            self.work += len;
            self.into.push(frame);
            count += 1;
            local += 1;
        }
        if count > 0 {
            let (packets, slots, copies) = (count, count, count);
            self.packets.push(TxPacket { packets, slots, extras: 0, verdict: Ok(()), copies });
        }
        count
    }

    /// Plans a packet of one slot that is not part of a run, and returns its number of slots;
    /// `None` if there is no buffer for it.
    fn add_short(&mut self, slot: &TxRequest) -> Result<Option<usize>, TxFault> {
        let (packets, slots) = (1, 1);
        let mut packet = TxPacket { packets, slots, extras: 0, verdict: Ok(()), copies: 0 };
        if usize::from(slot.size) < ETH_LEN {
            packet.verdict = Err(DropReason::Malformed);
        } else {
            check_range(slot.offset, u32::from(slot.size))?;
            let Some(mut frame) = self.pool.take(usize::from(slot.size)) else { return Ok(None) };
            frame.offload = Offload { checksum: checksum_of(slot.flags), gso: None };
            self.copies.push(copy_of(slot, slot.size, self.local(), 0));
            packet.copies = 1;
            self.push(frame);
        }
        self.packets.push(packet);
        Ok(Some(1))
    }

    /// Adds a packet of these slots, of which the first has the index `first`.
    fn add_long<M>(
        &mut self,
        slots: &[TxRequest],
        parsed: &Parsed,
        lending: Option<&mut Lending<M>>,
        first: u32,
    ) -> Option<usize> {
        let mut copies = 0;
        if let Ok(total) = parsed.total {
            let mut frame = self.pool.take(usize::from(total))?;
            frame.offload = parsed.offload;
            let lending = lending.filter(|_| is_long(total));
            let lent = lending.and_then(|it| lend(it, slots, parsed, total, first, self.pool));
            let in_head = match lent {
                Some((head_len, end)) => {
                    frame.set_len(head_len);
                    frame.set_end(end);
                    head_len
                }
                None => {
                    let lead = bytes_before_full_pages(slots, parsed, total);
                    frame.align_end_of_head(lead);
                    usize::from(total)
                }
            };
            let lens = data_lens(slots, parsed, total);
            copies = plan_copies(lens, in_head, self.local(), self.copies);
            self.push(frame);
        }
        let (extras, verdict) = (parsed.extras, parsed.total.map(|_| ()));
        let slots = parsed.slots;
        self.packets.push(TxPacket { packets: 1, slots, extras, verdict, copies });
        Some(slots)
    }

    /// Carries out the orders that these slots begin with, of which the first has the index `at`. A
    /// fault of one ends that; those before it need no note, because the vif is closed.
    #[cold]
    fn carry_out(
        &mut self,
        slots: &[TxRequest],
        multicast: &MulticastControl,
        is_all: bool,
        mut at: u32,
    ) -> Result<ChangeNumber, TxFault> {
        let mut rest = slots;
        while let Some(first) = rest.first().filter(|it| it.flags & NETTXF_EXTRA_INFO != 0) {
            let Some(parsed) = parse_long(first, rest, is_all, at)? else { break };
            let Some(order) = parsed.order else { break };
            let Parsed { slots, extras, .. } = parsed;
            let verdict = multicast.carry_out(order);
            self.packets.push(TxPacket { packets: 1, slots, extras, verdict, copies: 0 });
            rest = &rest[slots..];
            at = at.wrapping_add(u32::try_from(slots).expect("a ring is small"));
        }
        Ok(multicast.changes.add())
    }
}

/// One copy per data slot that has bytes, for the first `in_head` bytes; an empty slot needs no
/// copy (XSA-448). Returns their number.
#[inline(never)]
fn plan_copies<'a>(
    data_lens: impl Iterator<Item = (&'a TxRequest, u16)>,
    in_head: usize,
    local: u16,
    copies: &mut impl Extend<GrantCopy>,
) -> usize {
    let (mut count, mut local_offset) = (0, 0);
    copies.extend(data_lens.filter_map(|(slot, len)| {
        let at = local_offset;
        local_offset += u32::from(len);
        //= netif.h:empty-slot
        let has_bytes = len > 0 && usize::try_from(at).is_ok_and(|at| at < in_head);
        count += usize::from(has_bytes);
        has_bytes.then(|| copy_of(slot, len, local, at))
    }));
    count
}

fn is_long(total: u16) -> bool {
    usize::from(total) >= HEAD_LEN_MIN + END_LEN_MIN
}

/// The length of the head and the end of a long packet, whose first slot has this index; `None` if
/// it should be copied as a whole. The head ends with a slot.
fn lend<M>(
    lending: &mut Lending<M>,
    slots: &[TxRequest],
    parsed: &Parsed,
    total: u16,
    first: u32,
    pool: &mut FramePool,
) -> Option<(usize, End)> {
    if !lending.is_worthwhile() {
        return None;
    }
    let mut end = lending.end_for(pool);
    let mut head_len = 0;
    let numbers = (0..slots.len()).filter(|slot| !parsed.is_extra(*slot));
    for (number, (slot, len)) in numbers.zip(data_lens(slots, parsed, total)) {
        if head_len < HEAD_LEN_MIN {
            head_len += usize::from(len);
            continue;
        }
        let index = first.wrapping_add(u32::try_from(number).expect("a ring is small"));
        if !lending.push(&mut end, place(index), slot, len) {
            return None;
        }
    }
    (end.len() >= END_LEN_MIN).then_some((head_len, end))
}

/// The data slots of a packet, each with its number of bytes.
fn data_lens<'a>(
    slots: &'a [TxRequest],
    parsed: &'a Parsed,
    total: u16,
) -> impl Iterator<Item = (&'a TxRequest, u16)> {
    let data = || slots.iter().enumerate().filter(|(slot, _)| !parsed.is_extra(*slot));
    let further: u32 = data().skip(1).map(|(_, slot)| u32::from(slot.size)).sum();
    //= netif.h:first-size-is-total
    let first_len = u16::try_from(u32::from(total) - further).expect("parse checked the sum");
    data().map(move |(index, slot)| (slot, if index == 0 { first_len } else { slot.size }))
}

/// Bytes of a packet before its first slot that fills a page, or all of its bytes. If these end at
/// a page boundary in our buffer, each slot that fills a page is copied to exactly one page.
fn bytes_before_full_pages(slots: &[TxRequest], parsed: &Parsed, total: u16) -> usize {
    let lens = data_lens(slots, parsed, total);
    let before = lens.take_while(|(_, len)| usize::from(*len) < PAGE_SIZE);
    before.map(|(_, len)| usize::from(len)).sum()
}

#[inline]
fn copy_of(slot: &TxRequest, len: u16, local: u16, local_offset: u32) -> GrantCopy {
    let status = GrantStatus::GeneralError;
    GrantCopy { gref: GrantRef(slot.gref), offset: slot.offset, len, local, local_offset, status }
}

fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
