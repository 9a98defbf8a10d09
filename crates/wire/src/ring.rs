//! Layout of a shared ring page (`ring.h`): four indices, then a power of two of slots.

use crate::PAGE_SIZE;

/// Byte offset of `req_prod` in the ring page.
pub const REQ_PROD: usize = 0;
/// Byte offset of `req_event`.
pub const REQ_EVENT: usize = 4;
/// Byte offset of `rsp_prod`.
pub const RSP_PROD: usize = 8;
/// Byte offset of `rsp_event`.
pub const RSP_EVENT: usize = 12;
/// Byte offset of the first slot.
pub const SLOTS: usize = 64;
/// Byte offset of the last four bytes of the page. The slots end before them, and neither side uses
/// them for the protocol.
pub const PAGE_END: usize = PAGE_SIZE - 4;

/// The number of slots of `slot_len` bytes in a ring of one page (`__CONST_RING_SIZE`): the largest
/// power of two that fits after the indices.
pub const fn slot_count(slot_len: usize) -> usize {
    let fits = (PAGE_SIZE - SLOTS) / slot_len;
    1 << fits.ilog2()
}
