//! Network devices of a host, over a simulated kernel.

#![allow(clippy::disallowed_methods, reason = "a test may read the clock")]

mod bridged;
mod keeper;
mod ovs;
mod place;
mod refusals;
mod script;
mod uplink;
