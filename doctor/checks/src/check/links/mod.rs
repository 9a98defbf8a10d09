//! Cards, offloads, links.

pub(super) mod bonds;
pub(super) mod duplicates;
pub(super) mod full_wire;
pub(super) mod limits;
pub(super) mod link_errors;
pub(super) mod next_hops;
pub(super) mod offloads;
pub(super) mod packet_length;
pub(super) mod pauses;
pub(super) mod queue_drops;
pub(super) mod rings;
pub(super) mod route_limits;
pub(super) mod same_subnet;
