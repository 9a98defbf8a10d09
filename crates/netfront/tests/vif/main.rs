//! The frontend's queue: what it puts into its rings, what it makes of a backend that keeps to
//! nothing, and what passes between it and ours.

mod backend;
mod chains;
#[path = "../../../netback/tests/vif/frames.rs"]
mod frames;
mod hostile;
mod joined;
#[path = "../../../netback/tests/vif/machine.rs"]
mod machine;
mod pair;
mod transmit;
