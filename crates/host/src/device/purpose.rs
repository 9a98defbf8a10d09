//! How network devices of a host are recognized: by a note (`ifalias`) with their owner and what
//! they are for.

use std::fmt;

use ringway_xenbus::Vif;

use super::kernel::{Link, LinkKind};
use crate::quarantine::{Charged, vif_name};

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
    /// The vif that panics are charged to.
    pub(crate) fn of(vif: &Charged) -> Purpose {
        match vif {
            Charged::Xen(vif) => Purpose::Xen(*vif),
            Charged::Virtio(name) => Purpose::Virtio(name.clone()),
        }
    }

    /// How a note names it.
    pub fn path(&self) -> String {
        match self {
            Purpose::Xen(vif) => vif.backend_dir(),
            Purpose::Virtio(name) => format!("{VIRTIO}{name}"),
            Purpose::Uplink => UPLINK.to_owned(),
        }
    }

    /// Reads such a name.
    pub fn parse(path: &str) -> Option<Purpose> {
        if path == UPLINK {
            return Some(Purpose::Uplink);
        }
        if let Some(name) = path.strip_prefix(VIRTIO) {
            return Some(Purpose::Virtio(name.to_owned()));
        }
        let vif = Vif::from_backend_path(path).filter(|vif| vif.backend_dir() == path);
        vif.map(Purpose::Xen)
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
    link.kind == LinkKind::Tap
}

pub(crate) fn is_ours(link: &Link, note: &str) -> bool {
    is_tap(link) && link.alias.as_deref() == Some(note)
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;

    #[test]
    fn a_note_is_recognized_only_by_its_owner() {
        let vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 1 };
        for purpose in [Purpose::Xen(vif), Purpose::Virtio("vm1".to_owned()), Purpose::Uplink] {
            let text = purpose.note("/run/ringway/a b");
            assert_eq!(Purpose::of_note("/run/ringway/a b", &text), Some(purpose.clone()));
            for owner in ["/run/ringway/a", "/run/ringway/b", "/run/ringway/a b uplink"] {
                assert_eq!(Purpose::of_note(owner, &text), None, "{owner} {text}");
            }
            // The kernel keeps 255 bytes; a run directory is shorter, for the address of a socket.
            assert!(purpose.note(&"x".repeat(108)).len() <= 255);
        }
        let text = Purpose::Xen(vif).note("/run/a");
        for text in [
            "ringway /run/a",
            "ringway /run/a /local/domain/0/backend/vif/7",
            &format!("{text}/state"),
            "",
        ] {
            assert_eq!(Purpose::of_note("/run/a", text), None, "{text}");
        }
    }
}
