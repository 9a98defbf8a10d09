//! The backend's queue against a guest that keeps to nothing (netif b2: every check of what a guest
//! writes, and the reaction to it).

mod completion;
#[allow(dead_code, reason = "each suite uses the faults that it needs")]
mod domain;
mod frames;
mod guest;
mod random;
mod receive;
mod refusals;
mod transmit;
