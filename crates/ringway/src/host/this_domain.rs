//! The domain of real Xen that this program runs in.

use std::io;

use anyhow::{Context, Result};
use ringway_xen::XenHypervisor;
use ringway_xenstore::{Client, DomId};

/// The hypervisor and XenStore connections that a backend needs.
pub(crate) fn connect_backend() -> Result<(XenHypervisor, Client)> {
    let mut store = Client::of_this_domain()?;
    let domid = own_domid(&mut store)?;
    Ok((XenHypervisor::backend(domid)?, store))
}

/// The number of this domain.
pub(super) fn own_domid(store: &mut Client) -> Result<DomId> {
    let domid = store.read("domid").context("XenStore: read the number of this domain")?;
    let domid = domid.and_then(|domid| domid.parse().ok()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "XenStore has no node `domid` for this domain; in a domain 0 `xen-init-dom0` writes it",
        )
    })?;
    Ok(DomId(domid))
}
