//! What the guest receives: rx responses become frames, and their pages are posted again.
//!
//! The buffer of an rx slot is always the page with the slot's number, because responses come in
//! the slots of their requests (netif.h: rx-same-slot) and pages are posted in ring order.
//!
//! A frame may be behind headroom, if a frontend has asked for it, or the guest before it has. What
//! a queue gives has none: each response says where bytes of the frame are, and how many.

use ringway_datapath::headers::ETH_LEN;
use ringway_datapath::{
    BATCH, Budget, Checksum, DropReason, Frame, FrameBatch, FramePool, Gso, MIDDLE_LEN, Offload,
    QueueDown, Result,
};
use ringway_hypervisor::{Direction, EventChannel, GrantTable};
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_XDP, ExtraInfo, NETRXF_CSUM_BLANK,
    NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RX_RING_SLOTS, RxRequest,
    RxResponse,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{ResponseFault, VifQueue};

/// Slots read in one call; always at least one whole packet.
pub(crate) const WINDOW: usize = BATCH + SLOTS_MAX;
/// A first slot with fewer bytes may lack some headers.
const HEAD_LEN_MIN: usize = 256;
/// Slots of the longest packet: 17 pages, and a few extras.
const SLOTS_MAX: usize = 24;

impl<G: GrantTable, E: EventChannel> VifQueue<G, E> {
    pub(crate) fn take_packets(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result {
        let frames_end = into.capacity().min(into.len().saturating_add(budget.frames));
        let bytes_max = u64::try_from(budget.bytes).unwrap_or(u64::MAX);
        let count = self.rx.peek_responses(&mut *self.rx_responses).map_err(QueueDown::peer)?;
        let (mut consumed, mut packets, mut bytes, mut skipped) = (0, 0, 0, 0);
        while consumed < count && into.len() < frames_end && bytes < bytes_max {
            let window = &self.rx_responses[consumed..count];
            let first_slot = usize::from(self.rx.response_slot()) + consumed;
            // Not moved, as by `?`: see "Structs that stall" in HACKING.md.
            let parsed = parse(window);
            let packet = match &parsed {
                Ok(packet) => packet,
                Err(fault) => return Err(QueueDown::peer(*fault)),
            };
            if !packet.is_whole && count == self.rx_responses.len() && consumed > 0 {
                // It ends beyond the window: it is the first packet of the next call.
                break;
            }
            match self.copy_packet(packet, first_slot, consumed, pool) {
                Ok(frame) => {
                    packets += 1;
                    bytes += u64::try_from(frame.len()).unwrap_or(u64::MAX);
                    into.push(frame);
                }
                Err(DropReason::NoBuffer) => break,
                Err(reason) => self.counters.dropped.count(reason, 1),
            }
            if let Some(in_place) = &mut self.in_place {
                in_place.consumed(first_slot % RX_RING_SLOTS, packet.slots);
            }
            consumed += packet.slots;
            skipped += packet.skipped;
        }
        if consumed == 0 {
            return Ok(());
        }
        self.counters.add_rx(packets, bytes);
        self.counters.add_extras_skipped(skipped);
        self.rx.consume(consumed);
        if self.in_place.is_some() {
            return self.post_returned();
        }
        self.post_buffers(consumed);
        let notify = self.rx.publish_requests();
        self.notify(Direction::Rx, notify)
    }

    /// Posts the pages of packets that are gone, up to the first packet still in use.
    pub(crate) fn post_returned(&mut self) -> Result {
        let mut has_posted = false;
        while let Some(slots) = self.next_returned() {
            self.post_buffers(slots);
            has_posted = true;
        }
        if !has_posted {
            return Ok(());
        }
        let notify = self.rx.publish_requests();
        self.notify(Direction::Rx, notify)
    }

    fn next_returned(&mut self) -> Option<usize> {
        let slot = usize::from(self.rx.next_slot());
        self.in_place.as_mut()?.next(slot)
    }

    /// Gives the next `count` slots their pages.
    pub(crate) fn post_buffers(&mut self, count: usize) {
        let first = usize::from(self.rx.next_slot());
        let buffers = &self.rx_buffers;
        self.rx.push_requests((first..first + count).map(|slot| {
            let slot = slot % RX_RING_SLOTS;
            let id = u16::try_from(slot).expect("a ring is small");
            RxRequest { id, pad: 0, gref: buffers.gref(slot).0 }
        }));
    }

    fn copy_packet(
        &self,
        packet: &Packet,
        first_slot: usize,
        window_start: usize,
        pool: &mut FramePool,
    ) -> Result<Frame, DropReason> {
        if !packet.is_whole || packet.has_error || packet.len < ETH_LEN {
            return Err(DropReason::Malformed);
        }
        if packet.len > pool.frame_len_max() {
            return Err(DropReason::TooLong);
        }
        let mut frame = pool.take(packet.len).ok_or(DropReason::NoBuffer)?;
        frame.offload = packet.offload;
        if packet.len > MIDDLE_LEN && self.lend_packet(packet, first_slot, window_start, &mut frame)
        {
            return Ok(frame);
        }
        let mut rest = frame.bytes_mut();
        for index in packet.data_slots() {
            let (at, own) = packet.place_of(&self.rx_responses[window_start + index]);
            let (chunk, others) = rest.split_at_mut(own);
            let page = (first_slot + index) % RX_RING_SLOTS;
            let page = u16::try_from(page).expect("a ring is small");
            //= netif.h:rx-offset
            self.rx_buffers.read(page, at, chunk);
            rest = others;
        }
        Ok(frame)
    }

    /// Leaves all except the first page of a long packet in place. False if it must be copied.
    fn lend_packet(
        &self,
        packet: &Packet,
        first_slot: usize,
        window_start: usize,
        frame: &mut Frame,
    ) -> bool {
        let Some(in_place) = &self.in_place else { return false };
        if packet.place_of(&self.rx_responses[window_start]).1 < HEAD_LEN_MIN {
            return false;
        }
        let len = frame.len();
        let mut end = None;
        for index in packet.data_slots() {
            let page = (first_slot + index) % RX_RING_SLOTS;
            let (at, own) = packet.place_of(&self.rx_responses[window_start + index]);
            match &mut end {
                None => {
                    frame.set_len(own);
                    //= netif.h:rx-offset
                    let page = u16::try_from(page).expect("a ring is small");
                    self.rx_buffers.read(page, at, frame.bytes_mut());
                    end = Some(in_place.end(first_slot % RX_RING_SLOTS));
                }
                Some(end) => {
                    if !end.push(page * PAGE_SIZE + at, own) {
                        frame.set_len(len);
                        return false;
                    }
                }
            }
        }
        end.into_iter().for_each(|end| frame.set_end(end));
        true
    }
}

/// A packet as its responses describe it.
struct Packet {
    slots: usize,
    extras: usize,
    /// Those of the extras whose type is not known here.
    skipped: u64,
    len: usize,
    offload: Offload,
    /// Bytes of each slot with data that come before the packet's own.
    unused: usize,
    is_whole: bool,
    has_error: bool,
}

impl Packet {
    /// Where bytes of the packet begin in the page of a slot with data, and how many they are.
    fn place_of(&self, response: &RxResponse) -> (usize, usize) {
        let len = bytes_of(response);
        let unused = self.unused.min(len);
        (usize::from(response.offset) + unused, len - unused)
    }

    /// Does not count the unused bytes, as Linux' backend does, which fills no slot with fewer.
    #[cold]
    fn leave_out(&mut self, window: &[RxResponse]) {
        for slot in self.data_slots().filter_map(|slot| window.get(slot)) {
            self.has_error |= bytes_of(slot) < self.unused;
            self.len -= bytes_of(slot).min(self.unused);
        }
    }

    /// The slots that hold data: all except the extras, which follow the first.
    fn data_slots(&self) -> impl Iterator<Item = usize> + use<> {
        let extras = 1..=self.extras;
        (0..self.slots).filter(move |slot| !extras.contains(slot))
    }
}

/// Reads one packet from the front of `window`, which is not empty.
fn parse(window: &[RxResponse]) -> Result<Packet, ResponseFault> {
    let first = window[0];
    let mut packet = Packet {
        slots: 1,
        extras: 0,
        skipped: 0,
        len: bytes_of(&first),
        offload: Offload { checksum: checksum_of(first.flags), gso: None },
        unused: 0,
        is_whole: true,
        has_error: first.status < 0,
    };
    check_range(&first)?;
    let mut more_extras = first.flags & NETRXF_EXTRA_INFO != 0;
    let mut more_data = first.flags & NETRXF_MORE_DATA != 0;
    while more_extras || more_data {
        if packet.slots >= SLOTS_MAX {
            return Err(ResponseFault::TooManySlots { limit: SLOTS_MAX });
        }
        let Some(slot) = window.get(packet.slots) else {
            packet.is_whole = false;
            break;
        };
        packet.slots += 1;
        if more_extras {
            packet.extras += 1;
            let (extra, _) =
                ExtraInfo::read_from_prefix(slot.as_bytes()).expect("an extra fits a slot");
            //= netif.h:extras-skipped
            if extra.kind == EXTRA_TYPE_GSO {
                packet.offload.gso = Some(gso_of(&extra)?);
                packet.offload.checksum = Checksum::Blank;
            } else if extra.kind == EXTRA_TYPE_XDP {
                //= netif.h:xdp-extra
                packet.unused = if first.offset == 0 { extra.headroom().into() } else { 0 };
            } else {
                packet.skipped += 1;
            }
            more_extras = extra.flags & EXTRA_FLAG_MORE != 0;
        } else {
            check_range(slot)?;
            packet.len += bytes_of(slot);
            packet.has_error |= slot.status < 0;
            more_data = slot.flags & NETRXF_MORE_DATA != 0;
        }
    }
    if packet.unused > 0 {
        packet.leave_out(window);
    }
    Ok(packet)
}

/// Bytes in a slot; 0 if its copy failed.
fn bytes_of(response: &RxResponse) -> usize {
    usize::try_from(response.status).unwrap_or(0)
}

fn check_range(response: &RxResponse) -> Result<(), ResponseFault> {
    if usize::from(response.offset) + bytes_of(response) <= PAGE_SIZE {
        return Ok(());
    }
    Err(ResponseFault::LeavesPage { offset: response.offset, status: response.status })
}

fn gso_of(extra: &ExtraInfo) -> Result<Gso, ResponseFault> {
    let (size, kind) = extra.gso();
    Gso::from_extra(extra).ok_or(ResponseFault::BadGso { kind, size })
}

fn checksum_of(flags: u16) -> Checksum {
    if flags & NETRXF_CSUM_BLANK != 0 {
        Checksum::Blank
    } else if flags & NETRXF_DATA_VALIDATED != 0 {
        Checksum::Validated
    } else {
        Checksum::Unverified
    }
}
