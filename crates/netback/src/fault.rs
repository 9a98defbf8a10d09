//! What a guest can do wrong with the slots of its tx ring.

/// A packet that no honest frontend transmits. Each carries the numbers that make it a fault.
///
/// A guest has no way to break the protocol of rx but by its producer index, which is a
/// [`RingFault`](ringway_ring::RingFault): a page that cannot be written costs its own frame only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxFault {
    /// `more_data` or `extra_info` announces a slot that is not there.
    #[error("tx ring: a packet is cut off: slot {slot} announces another one, none was produced")]
    PacketCutOff {
        /// Free-running index of the last slot that is there.
        slot: u32,
    },
    /// More slots than any packet may have.
    #[error("tx ring: a packet of more than {limit} slots")]
    TooManySlots {
        /// The limit.
        limit: usize,
    },
    /// A slot reaches over the end of its page.
    #[error("tx ring: slot at offset {offset} with {size} bytes crosses its page")]
    CrossesPage {
        /// The slot's offset.
        offset: u16,
        /// Bytes in the slot.
        size: u16,
    },
    /// An extra that is not defined.
    #[error("tx ring: extra of type {kind}")]
    BadExtra {
        /// The type as read.
        kind: u8,
    },
    /// A GSO extra that cannot be meant.
    #[error("tx ring: GSO of type {kind} with segments of {size} bytes")]
    BadGso {
        /// The type as read.
        kind: u8,
        /// The size as read.
        size: u16,
    },
}

impl TxFault {
    /// A packet of which `have` slots are there, from `consumer` on, and the last of them announces
    /// another one. Only the producer index tells it from one that is still on its way.
    pub(crate) fn cut_off(consumer: u32, have: usize) -> TxFault {
        let last = u32::try_from(have.saturating_sub(1)).unwrap_or(u32::MAX);
        TxFault::PacketCutOff { slot: consumer.wrapping_add(last) }
    }
}
