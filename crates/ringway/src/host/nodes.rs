//! What a toolstack writes to XenStore: domains and their vifs, as `xl` does.

use ringway_ovs::Bind;
use ringway_vif_shell::device;
use ringway_xenbus::{Device, Vif, VifLimits, XenbusState};
use ringway_xenstore::{Client, DomId, Transaction, XsError, domain_path};

use crate::description::{Guest, GuestVif};

/// The domain that serves all vifs.
pub(crate) const BACKEND: DomId = DomId(0);

/// A guest's vif.
pub(crate) fn vif(guest: DomId, handle: u32) -> Vif {
    Vif { backend: BACKEND, frontend: guest, handle }
}

/// Creates the nodes that every host has.
pub(crate) fn make_host(store: &mut Client) -> Result<(), XsError> {
    let home = domain_path(BACKEND);
    store.transaction(|tx| {
        tx.write(&format!("{home}/name"), "Domain-0")?;
        tx.write(&format!("{home}/domid"), "0")?;
        tx.mkdir(&Vif::backend_root(BACKEND))
    })
}

/// The MTU of a vif for which none is configured.
const MTU_DEFAULT: u16 = 1500;

/// Creates the nodes of a guest and its vifs in one transaction.
pub(crate) fn make_guest(store: &mut Client, domid: DomId, guest: &Guest) -> Result<(), XsError> {
    store.transaction(|tx| {
        device::make_domain(tx, BACKEND, domid, &guest.name.0)?;
        if let Some(uuid) = &guest.vm_uuid {
            tx.write(&format!("{}/vm", domain_path(domid)), format!("/vm/{uuid}"))?;
        }
        // The frontend reports errors here. On a stock host only root may create this directory.
        device::make_own(tx, domid, "error")?;
        for (handle, described) in (0..).zip(&guest.vifs) {
            make_vif(tx, vif(domid, handle), described)?;
        }
        Ok(())
    })
}

fn make_vif(tx: &mut Transaction<'_>, vif: Vif, described: &GuestVif) -> Result<(), XsError> {
    let made = Device {
        vif,
        mac: described.mac.0,
        mtu: described.mtu.unwrap_or(MTU_DEFAULT),
        bridge: described.bridge.as_ref().map(ToString::to_string),
        iface_id: described.iface_id.as_ref().map(ToString::to_string),
        bind: (described.bind != Bind::default()).then(|| described.bind.to_string()),
        max_queues: described.max_queues,
        staging: described.staging,
        rules: described.rules(),
    };
    device::make(tx, &made)?;
    if let Some(tenant) = &described.tenant {
        tx.write(&vif.tenant(), &tenant.0)?;
    }
    device::apply(tx, &vif.backend_dir(), &limits(described).changes())
}

/// The limits of a vif.
pub(crate) fn limits(described: &GuestVif) -> VifLimits {
    VifLimits { mtu: Some(described.mtu.unwrap_or(MTU_DEFAULT)), ..described.limits }
}

/// Asks the backend to release all vifs of a guest.
pub(crate) fn request_release(store: &mut Client, domid: DomId, vifs: u32) -> Result<(), XsError> {
    for handle in 0..vifs {
        let dir = vif(domid, handle).backend_dir();
        device::change(store, &dir, &Device::removal_changes())?;
    }
    Ok(())
}

/// Whether the backend has released all of them.
pub(crate) fn is_released(store: &mut Client, domid: DomId, vifs: u32) -> Result<bool, XsError> {
    for handle in 0..vifs {
        let state = device::state(store, &vif(domid, handle).backend_state())?;
        if !matches!(state, XenbusState::Closed | XenbusState::Unknown) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes all nodes of a guest.
pub(crate) fn remove_guest(store: &mut Client, domid: DomId) -> Result<(), XsError> {
    store.transaction(|tx| device::remove_domain(tx, BACKEND, domid))
}
