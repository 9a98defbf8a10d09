//! Cells of the tables that more than one verb prints.

use ringway_control::VifStatus;

/// The kind of a vif, `xen` or `virtio`; `-` for other ports.
pub(crate) fn kind(vif: &VifStatus) -> &str {
    if vif.kind.is_empty() { "-" } else { &vif.kind }
}

/// Drops by reason, in one cell.
pub(crate) fn drops<'a>(dropped: impl IntoIterator<Item = (&'a String, &'a u64)>) -> String {
    let parts: Vec<String> =
        dropped.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}
