//! The backend's queue against a guest that follows no rules (`linux-netback`: every check of what
//! a guest writes, and the reaction to it).

mod chains;
mod control;
mod frames;
mod guest;
mod headroom;
mod interrupted;
mod lending;
mod machine;
mod multicast;
mod packet;
mod pages;
mod postings;
mod random;
mod receive;
mod refusals;
mod staging;
mod transmit;
