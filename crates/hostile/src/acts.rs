//! The attacks of hostile guests: a file for each interface that guests share with others.

pub(crate) mod chains;
pub(crate) mod confined;
pub(crate) mod control;
pub(crate) mod grants;
pub(crate) mod handshake;
pub(crate) mod offloads;
pub(crate) mod rings;
pub(crate) mod shares;
pub(crate) mod staging;
pub(crate) mod traffic;
pub(crate) mod xenstore;
