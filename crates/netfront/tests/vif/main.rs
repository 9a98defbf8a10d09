//! The frontend's queue: what it puts into its rings, what it makes of a backend that keeps to
//! nothing, and what passes between it and ours.

mod backend;
#[path = "../../../netback/tests/vif/domain.rs"]
#[allow(dead_code, reason = "each suite uses the faults that it needs")]
mod domain;
#[path = "../../../netback/tests/vif/frames.rs"]
mod frames;
mod hostile;
mod joined;
mod pair;
mod transmit;
