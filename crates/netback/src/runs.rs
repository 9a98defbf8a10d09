//! Slots of one kind, which have their responses together: packets of one slot, and the data slots
//! of longer ones.

use ringway_datapath::{DropReason, Result};
use ringway_wire::netif::{
    ExtraInfo, NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY, TxRequest, TxResponse,
};
use zerocopy::{FromBytes, IntoBytes};

/// A packet as its slots describe it, or a run of packets of one slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxPacket {
    /// Packets of the run; 1 if it has several slots.
    pub(crate) packets: usize,
    /// Slots from the first to the last, including extras.
    pub(crate) slots: usize,
    /// Extras, which are the slots after the first.
    pub(crate) extras: usize,
    /// The status of the responses to the data slots.
    pub(crate) verdict: Result<(), DropReason>,
    /// Copies planned.
    pub(crate) copies: usize,
}

impl TxPacket {
    /// The packets of a run.
    pub(crate) fn split(self) -> impl Iterator<Item = TxPacket> {
        let (slots, copies) = (self.slots / self.packets, self.copies / self.packets);
        std::iter::repeat_n(TxPacket { packets: 1, slots, copies, ..self }, self.packets)
    }
}

/// The responses to a run of slots.
#[derive(Clone, Copy)]
pub(crate) enum RunResponse {
    /// With this status.
    Status(i16),
    /// To extras.
    Null,
}

impl RunResponse {
    #[inline]
    pub(crate) fn to(self, slot: &TxRequest) -> TxResponse {
        match self {
            //= netif.h:id-echo
            RunResponse::Status(status) => TxResponse { id: slot.id, status },
            RunResponse::Null => null_response(slot),
        }
    }
}

/// The response to a data slot of a packet that is forwarded.
#[inline]
pub(crate) fn good_response(slot: &TxRequest) -> TxResponse {
    TxResponse { id: slot.id, status: NETIF_RSP_OKAY }
}

/// Calls `respond` with each run of slots that have the same kind of responses. `packets` have the
/// first of `slots`.
#[inline]
pub(crate) fn for_each_run(
    slots: &[TxRequest],
    packets: &[TxPacket],
    mut respond: impl FnMut(&[TxRequest], RunResponse),
) {
    let mut slots = slots;
    for packet in packets {
        let (own, others) = slots.split_at(packet.slots);
        slots = others;
        let is_good = packet.verdict.is_ok();
        let status = RunResponse::Status(if is_good { NETIF_RSP_OKAY } else { NETIF_RSP_ERROR });
        if packet.extras == 0 {
            respond(own, status);
            continue;
        }
        let (first, others) = own.split_at(1);
        let (extras, further) = others.split_at(packet.extras);
        respond(first, status);
        respond(extras, RunResponse::Null);
        respond(further, status);
    }
}

/// The response to an extra. It leaves the extra's kind and flags in their place, as Linux does, so
/// that the shape of a packet stays readable while its responses are not published.
pub(crate) fn null_response(slot: &TxRequest) -> TxResponse {
    let extra = extra_of(slot);
    //= netif.h:extra-null
    TxResponse { id: u16::from_ne_bytes([extra.kind, extra.flags]), status: NETIF_RSP_NULL }
}

pub(crate) fn extra_of(slot: &TxRequest) -> ExtraInfo {
    let (extra, _) = ExtraInfo::read_from_prefix(slot.as_bytes()).expect("an extra fits a slot");
    extra
}
