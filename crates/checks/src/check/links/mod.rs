//! Cards, offloads, links.

pub(super) mod full_wire;
pub(super) mod limits;
pub(super) mod offloads;
pub(super) mod packet_length;
pub(super) mod rings;
