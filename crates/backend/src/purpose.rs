//! How network devices of a host are recognized: by a note (`ifalias`) with their owner and what
//! they are for.

use std::fmt;

use ringway_control::TenantVif;
use ringway_host::vif_name;
use ringway_net::Link;
use ringway_wire::DomId;
use ringway_xenbus::Vif;

/// What a network device is for; with its owner, its note.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A Xen vif.
    Xen(Vif),
    /// The virtio vif of this name.
    Virtio(String),
    /// The uplink of the switch.
    Uplink,
}

const VIRTIO: &str = "virtio/";
const UPLINK: &str = "uplink";

impl Purpose {
    /// How a note names it.
    pub(crate) fn path(&self) -> String {
        match self {
            Purpose::Xen(vif) => vif.backend_dir(),
            Purpose::Virtio(name) => format!("{VIRTIO}{name}"),
            Purpose::Uplink => UPLINK.to_owned(),
        }
    }

    fn parse(path: &str) -> Option<Purpose> {
        if path == UPLINK {
            return Some(Purpose::Uplink);
        }
        if let Some(name) = path.strip_prefix(VIRTIO) {
            return Some(Purpose::Virtio(name.to_owned()));
        }
        let vif = Vif::from_backend_path(path).filter(|vif| vif.backend_dir() == path);
        vif.map(Purpose::Xen)
    }

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
    pub fn for_tenant(&self) -> Option<TenantVif> {
        match self {
            Purpose::Xen(vif) => Some(TenantVif::Xen { domid: vif.frontend.0, handle: vif.handle }),
            Purpose::Virtio(name) => Some(TenantVif::Virtio(name.clone())),
            Purpose::Uplink => None,
        }
    }

    /// The note on its device.
    pub(crate) fn note(&self, owner: &str) -> String {
        format!("ringway {owner} {}", self.path())
    }

    /// Whether a link is the device of this owner for it.
    pub(crate) fn is_of(&self, link: &Link, owner: &str) -> bool {
        is_ours(link, &self.note(owner))
    }

    /// The purpose in a note of this owner.
    pub(crate) fn of_note(owner: &str, note: &str) -> Option<Purpose> {
        let path = note.strip_prefix("ringway ")?.strip_prefix(owner)?.strip_prefix(' ')?;
        Purpose::parse(path)
    }
}

impl fmt::Display for Purpose {
    /// The name by which people know it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::Xen(vif) => f.write_str(&vif_name(*vif)),
            Purpose::Virtio(name) => f.write_str(name),
            Purpose::Uplink => f.write_str("the uplink"),
        }
    }
}

pub(crate) fn is_tap(link: &Link) -> bool {
    link.kind.as_deref() == Some("tun")
}

pub(crate) fn is_ours(link: &Link, note: &str) -> bool {
    is_tap(link) && link.alias.as_deref() == Some(note)
}
