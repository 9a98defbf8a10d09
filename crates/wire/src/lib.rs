//! ABI layouts only: what is written into memory or onto sockets that another domain reads.
//!
//! Nothing here does I/O, keeps state or reads a clock. Constants keep the spelling of the C
//! headers minus their prefix, so that a reader can search one for the other. Read [`netif`]
//! first: it is the protocol this project exists for.
//!
//! It needs neither the standard library nor a heap.
//!
//! # Example
//!
//! A slot of a tx ring, as it lies in memory on the machines that Xen runs on, which are
//! little-endian:
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
pub mod ring;
pub mod vhost_user;
pub mod virtio;
pub mod vnet;
pub mod xenstore;

use core::fmt;

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
