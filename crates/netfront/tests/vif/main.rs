//! The frontend's queue: what it puts into its rings, how it handles a backend that follows no
//! rules, and traffic between it and our backend.

mod backend;
mod chains;
mod control;
#[path = "../../../netback/tests/vif/frames.rs"]
mod frames;
mod headroom;
mod hostile;
mod joined;
#[path = "../../../netback/tests/vif/machine.rs"]
mod machine;
mod multicast;
#[path = "../../../netback/tests/vif/packet.rs"]
mod packet;
mod pair;
mod staging;
mod transmit;
