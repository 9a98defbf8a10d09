//! The studies that come with ringway.

use super::{Study, StudyError};

/// Name and text.
const SHIPPED: &[(&str, &str)] = &[
    ("transmit", include_str!("../../studies/transmit.toml")),
    ("receive", include_str!("../../studies/receive.toml")),
    ("guest-to-guest", include_str!("../../studies/guest-to-guest.toml")),
    ("latency", include_str!("../../studies/latency.toml")),
    ("latency-under-load", include_str!("../../studies/latency-under-load.toml")),
    ("aggregate", include_str!("../../studies/aggregate.toml")),
    ("network-node", include_str!("../../studies/network-node.toml")),
    ("network-node-vxlan", include_str!("../../studies/network-node-vxlan.toml")),
    ("offloads", include_str!("../../studies/offloads.toml")),
    ("jumbo", include_str!("../../studies/jumbo.toml")),
    ("tcp-settings", include_str!("../../studies/tcp-settings.toml")),
    ("bridge-or-ovs", include_str!("../../studies/bridge-or-ovs.toml")),
    ("workers", include_str!("../../studies/workers.toml")),
    ("scenarios", include_str!("../../studies/scenarios.toml")),
    ("placement", include_str!("../../studies/placement.toml")),
    ("placement-receive", include_str!("../../studies/placement-receive.toml")),
];

/// Names of the shipped studies.
pub fn ids() -> Vec<&'static str> {
    SHIPPED.iter().map(|(id, _)| *id).collect()
}

/// The text of a shipped study, to be shown or edited.
pub fn shipped_text(id: &str) -> Result<&'static str, StudyError> {
    let found = SHIPPED.iter().find(|(name, _)| *name == id);
    found.map(|(_, text)| *text).ok_or_else(|| StudyError::Unknown { name: id.to_owned() })
}

/// A shipped study.
pub fn shipped(id: &str) -> Result<Study, StudyError> {
    Study::parse(id, shipped_text(id)?)
}
