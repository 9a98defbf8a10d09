//! Columns for people.

use comfy_table::{CellAlignment, Table, presets};

/// Prints rows under a head. Columns whose head begins with `>` are numbers.
pub(crate) fn render(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(head.iter().map(|name| name.trim_start_matches('>')));
    for row in rows {
        table.add_row(row);
    }
    for (column, name) in table.column_iter_mut().zip(head) {
        column.set_padding((0, 2));
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A number with a unit prefix, four characters or so wide.
pub(crate) fn scaled(value: f64) -> String {
    for (limit, unit) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= limit {
            return format!("{:.2}{unit}", value / limit);
        }
    }
    format!("{value:.0}")
}

/// Drops by reason, in one cell.
pub(crate) fn drops<'a>(dropped: impl IntoIterator<Item = (&'a String, &'a u64)>) -> String {
    let parts: Vec<String> =
        dropped.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}
