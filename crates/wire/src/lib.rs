//! ABI layouts: the structures and constants of shared memory and sockets between domains.
//!
//! Nothing here does I/O, keeps state or reads a clock. Constants keep the spelling of the C
//! headers without their prefix, so that you can search for them there. Read [`netif`] first: it is
//! the protocol that this project is for.
//!
//! The crate needs neither the standard library nor a heap.
//!
//! # Example
//!
//! A slot of a tx ring in memory; all machines that Xen runs on are little-endian:
//!
//! ```
//! use ringway_wire::netif::{NETTXF_MORE_DATA, TX_RING_SLOTS, TX_SLOT_LEN, TxRequest};
//! use zerocopy::{FromBytes, IntoBytes};
//!
//! let request = TxRequest { gref: 8, offset: 64, flags: NETTXF_MORE_DATA, id: 3, size: 1514 };
//! assert_eq!(request.as_bytes(), [8, 0, 0, 0, 64, 0, 4, 0, 3, 0, 0xea, 5]);
//! assert_eq!(TxRequest::read_from_bytes(request.as_bytes()), Ok(request));
//! assert_eq!((TX_RING_SLOTS, TX_SLOT_LEN), (256, 12));
//! ```

#![cfg_attr(not(test), no_std)]

pub mod grant;
pub mod netif;
mod operations;
pub mod ring;
pub mod vhost_user;
pub mod virtio;
pub mod vnet;
pub mod xenstore;

use core::fmt;

/// Bytes in a page, which is also the unit of a grant (`XC_PAGE_SIZE`).
pub const PAGE_SIZE: usize = 4096;

/// The number of a domain (`domid_t`). Domain 0 is the first, privileged one.
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
