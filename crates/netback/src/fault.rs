//! Protocol violations by a guest in the slots of its tx ring.

/// A packet that no honest frontend transmits. Each variant contains the numbers that prove the
/// fault.
///
/// On rx, a guest can break the protocol only by its producer index, which is a
/// [`RingFault`](ringway_ring::RingFault): a page that cannot be written costs only that frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxFault {
    /// `more_data` or `extra_info` announces a slot that does not exist.
    #[error(
        "tx ring: a packet is incomplete: slot {slot} announces another one, but none was \
         produced"
    )]
    PacketCutOff {
        /// Free-running index of the last slot that exists.
        slot: u32,
    },
    /// More slots than any packet may have.
    #[error("tx ring: a packet of more than {limit} slots")]
    TooManySlots {
        /// The limit.
        limit: usize,
    },
    /// A slot extends beyond the end of its page.
    #[error("tx ring: slot at offset {offset} with {size} bytes crosses its page")]
    CrossesPage {
        /// The slot's offset.
        offset: u16,
        /// Bytes in the slot.
        size: u16,
    },
    /// An extra of an undefined type.
    #[error("tx ring: extra of type {kind}")]
    BadExtra {
        /// The type as read.
        kind: u8,
    },
    /// An invalid GSO extra.
    #[error("tx ring: GSO of type {kind} with segments of {size} bytes")]
    BadGso {
        /// The type as read.
        kind: u8,
        /// The size as read.
        size: u16,
    },
}

impl TxFault {
    /// A packet with `have` slots from `consumer` on, the last of which announces another one. Only
    /// the producer index distinguishes it from a packet that is still being produced.
    pub(crate) fn cut_off(consumer: u32, have: usize) -> TxFault {
        let last = u32::try_from(have.saturating_sub(1)).unwrap_or(u32::MAX);
        TxFault::PacketCutOff { slot: consumer.wrapping_add(last) }
    }
}
