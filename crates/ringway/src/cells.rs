//! Cells of the tables that more than one verb prints.

use std::collections::BTreeMap;

use ringway_control::VifStatus;

/// The kind of a vif: `xen`, `virtio` or `namespace`; `-` for other ports.
pub(crate) fn kind(vif: &VifStatus) -> &str {
    if vif.kind.is_empty() { "-" } else { &vif.kind }
}

/// Frames that the queues of a vif have dropped, by reason.
pub(crate) fn dropped(vif: &VifStatus) -> BTreeMap<String, u64> {
    let mut dropped = BTreeMap::new();
    for (reason, count) in vif.queues.iter().flat_map(|queue| &queue.dropped) {
        *dropped.entry(reason.clone()).or_default() += count;
    }
    dropped
}

/// Drops by reason, in one cell.
pub(crate) fn drops<'a>(dropped: impl IntoIterator<Item = (&'a String, &'a u64)>) -> String {
    let parts: Vec<String> =
        dropped.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use ringway_datapath::DropReason;

    #[test]
    fn each_reason_is_documented_with_its_cause_and_remedy() {
        let page = include_str!("../../../docs/xen.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        for reason in DropReason::ALL {
            let name = format!("`{}`", reason.name());
            let of_reason =
                |row: &&&str| row.split('|').nth(1).is_some_and(|it| it.contains(&name));
            let row = rows.iter().find(of_reason);
            let cells = row.map(|row| row.split('|').filter(|cell| cell.trim().len() > 3).count());
            assert_eq!(cells, Some(3), "{name}: {row:?}");
        }
    }
}
