//! The backend's queue against a guest that keeps to nothing (`linux-netback`: every check of what
//! a guest writes, and the reaction to it).

mod chains;
mod completion;
mod frames;
mod guest;
mod machine;
mod pages;
mod postings;
mod random;
mod receive;
mod refusals;
mod transmit;
