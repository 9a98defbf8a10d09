//! ABI layouts only: what is written into memory or onto sockets that another domain reads.
//!
//! Nothing here does I/O, keeps state or reads a clock. Constants keep the spelling of the C
//! headers minus their prefix, so that a reader can search one for the other. Read [`netif`]
//! first: it is the protocol this project exists for.

pub mod grant;
pub mod netif;
pub mod ring;
pub mod vhost_user;
pub mod virtio;
pub mod vnet;
pub mod xenstore;

use std::fmt;

/// Bytes in a page, which is also the unit of a grant (`XC_PAGE_SIZE`).
pub const PAGE_SIZE: usize = 4096;

/// A domain, as Xen numbers it (`domid_t`). Domain 0 is the first and privileged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomId(pub u16);

/// A grant reference: an index into the granting domain's grant table (`grant_ref_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantRef(pub u32);

/// An event channel port of one domain (`evtchn_port_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvtchnPort(pub u32);

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for GrantRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EvtchnPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
