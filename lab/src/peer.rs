//! A second machine: the far end of a measured path over a real network.
//!
//! The lab starts this same program there over [`ssh`], as its [`agent`], and speaks the
//! [`protocol`] with it; [`remote`] is the lab's side of that connection. What one end counts is a
//! [`sample`]. Nothing on either machine is configured: the path, the interfaces and the queues are
//! what they are, and [`matrix`] leaves out of a study what that does not fit.
//!
//! Everything that the peer says is untrusted: its lines, their number and the time for them have
//! limits, and numbers are checked before they are recorded.

pub mod agent;
pub mod matrix;
pub mod protocol;
pub mod remote;
pub mod sample;
pub mod ssh;

use std::net::Ipv4Addr;

/// How to reach the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The host, as for ssh: a name, an address or an alias, possibly with a user.
    pub host: String,
    /// The ssh command with its own options.
    pub ssh: Vec<String>,
    /// The ringway program on the peer.
    pub program: String,
    /// The peer's address on the measured path; by default that of the ssh host.
    pub address: Option<Ipv4Addr>,
}
