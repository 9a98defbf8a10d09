//! What a supervisor and the process of a tenant call a vif between them.

use ringway_control::TenantVif;
use ringway_host::Purpose;
use ringway_wire::DomId;
use ringway_xenbus::Vif;

/// What the supervisor calls a vif of a tenant; `backend` is the tenant's own domain.
pub(crate) fn of_tenant(vif: TenantVif, backend: DomId) -> Purpose {
    match vif {
        TenantVif::Xen { domid, handle } => {
            Purpose::Xen(Vif { backend, frontend: DomId(domid), handle })
        }
        TenantVif::Virtio(name) => Purpose::Virtio(name),
    }
}

/// What the process of a tenant calls it; `None` if tenants have none such.
pub fn for_tenant(purpose: &Purpose) -> Option<TenantVif> {
    match purpose {
        Purpose::Xen(vif) => Some(TenantVif::Xen { domid: vif.frontend.0, handle: vif.handle }),
        Purpose::Virtio(name) => Some(TenantVif::Virtio(name.clone())),
        Purpose::Uplink => None,
    }
}
