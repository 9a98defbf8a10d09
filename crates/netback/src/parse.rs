//! What the slots of a packet of several slots say.

use ringway_datapath::headers::ETH_LEN;
use ringway_datapath::{Checksum, DropReason, Gso, Offload, Result};
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, EXTRA_TYPE_MAX, EXTRA_TYPE_NONE, ExtraInfo, NETTXF_CSUM_BLANK,
    NETTXF_DATA_VALIDATED, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, NR_SLOTS_MIN, TxRequest,
};

use crate::TxFault;
use crate::multicast::MulticastOrder;
use crate::runs::extra_of;

/// A packet with this many data slots or more makes the guest count as malicious
/// (`netif.h:slots-min`: `fatal_skb_slots` of Linux).
pub(crate) const FATAL_SLOTS: usize = 20;
//= netif.h:slots-min
/// The most data slots that are served: the first and [`NR_SLOTS_MIN`] more.
const SLOTS_MAX: usize = 1 + NR_SLOTS_MIN;

/// A packet as parsed from its slots.
pub(crate) struct Parsed {
    pub(crate) slots: usize,
    pub(crate) extras: usize,
    /// Length of the frame, or why it is dropped.
    pub(crate) total: Result<u16, DropReason>,
    pub(crate) offload: Offload,
    /// An order, in place of a packet.
    pub(crate) order: Option<MulticastOrder>,
}

impl Parsed {
    pub(crate) fn is_extra(&self, slot: usize) -> bool {
        (1..=self.extras).contains(&slot)
    }
}

/// Reads a packet of several slots from the front of `slots`. Their order is: first, extras,
/// further data (`netif.h:slot-order`).
///
/// `None` if it ends beyond the peeked slots; a fault if it ends beyond the produced ones.
#[inline(never)]
pub(crate) fn parse_long(
    first: &TxRequest,
    slots: &[TxRequest],
    is_all: bool,
    consumer: u32,
) -> Result<Option<Parsed>, TxFault> {
    //= netif.h:packet-published-whole
    let missing =
        |have: usize| if is_all { Err(TxFault::cut_off(consumer, have)) } else { Ok(None) };
    //= netif.h:slot-order
    let mut offload = Offload { checksum: checksum_of(first.flags), gso: None };
    let (mut extras, mut order) = (0, None);
    let mut more_extras = first.flags & NETTXF_EXTRA_INFO != 0;
    while more_extras {
        let Some(slot) = slots.get(1 + extras) else { return missing(slots.len()) };
        let extra = extra_of(slot);
        check_extra(&extra)?;
        if extra.kind == EXTRA_TYPE_GSO {
            offload.gso = Some(gso_of(&extra)?);
            // Segmentation implies that the segments' checksums are pending.
            offload.checksum = Checksum::Blank;
        } else {
            order = MulticastOrder::of(&extra).or(order);
        }
        more_extras = extra.flags & EXTRA_FLAG_MORE != 0;
        extras += 1;
        if extras > FATAL_SLOTS {
            return Err(TxFault::TooManySlots { limit: FATAL_SLOTS });
        }
    }

    let mut data = 1;
    let mut further_bytes = 0_u32;
    let mut total_is_short = false;
    let mut last = *first;
    while last.flags & NETTXF_MORE_DATA != 0 {
        if data > FATAL_SLOTS {
            return Err(TxFault::TooManySlots { limit: FATAL_SLOTS });
        }
        let Some(slot) = slots.get(extras + data) else { return missing(slots.len()) };
        further_bytes += u32::from(slot.size);
        total_is_short |= further_bytes > u32::from(first.size);
        if !total_is_short {
            check_range(slot.offset, u32::from(slot.size))?;
        }
        last = *slot;
        data += 1;
    }

    let total = match order {
        // A queue without such orders drops it.
        Some(_) => Err(DropReason::Malformed),
        None => total_of(first, data, further_bytes)?,
    };
    Ok(Some(Parsed { slots: extras + data, extras, total, offload, order }))
}

/// The length of a packet's frame, or why it is dropped, by its number of data slots and the bytes
/// in those after the first.
fn total_of(
    first: &TxRequest,
    data: usize,
    further_bytes: u32,
) -> Result<Result<u16, DropReason>, TxFault> {
    let in_first = u32::from(first.size).checked_sub(further_bytes);
    match in_first {
        _ if data > SLOTS_MAX => Ok(Err(DropReason::TooLong)),
        Some(in_first) if usize::from(first.size) >= ETH_LEN => {
            check_range(first.offset, in_first)?;
            Ok(Ok(first.size))
        }
        _ => Ok(Err(DropReason::Malformed)),
    }
}

/// A slot must not extend beyond its page: such a slot would make the whole batch fail on real Xen.
pub(crate) fn check_range(offset: u16, size: u32) -> Result<(), TxFault> {
    //= netif.h:slot-in-page
    let end = u32::from(offset) + size;
    if usize::try_from(end).is_ok_and(|end| end <= PAGE_SIZE) {
        return Ok(());
    }
    let size = u16::try_from(size).unwrap_or(u16::MAX);
    Err(TxFault::CrossesPage { offset, size })
}

fn check_extra(extra: &ExtraInfo) -> Result<(), TxFault> {
    //= netif.h:extra-types
    if extra.kind == EXTRA_TYPE_NONE || extra.kind >= EXTRA_TYPE_MAX {
        return Err(TxFault::BadExtra { kind: extra.kind });
    }
    Ok(())
}

fn gso_of(extra: &ExtraInfo) -> Result<Gso, TxFault> {
    let (size, kind) = extra.gso();
    //= netif.h:gso-extra
    Gso::from_extra(extra).ok_or(TxFault::BadGso { kind, size })
}

pub(crate) fn checksum_of(flags: u16) -> Checksum {
    if flags & NETTXF_CSUM_BLANK != 0 {
        Checksum::Blank
    } else if flags & NETTXF_DATA_VALIDATED != 0 {
        Checksum::Validated
    } else {
        Checksum::Unverified
    }
}
