//! The backend's queue against a guest that keeps to nothing (netif b2: every check of what a guest
//! writes, and the reaction to it).

mod chains;
mod completion;
mod frames;
mod guest;
mod machine;
mod random;
mod receive;
mod refusals;
mod transmit;
