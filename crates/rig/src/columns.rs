//! Columns for people, as all commands print them.

use comfy_table::{CellAlignment, Table, presets};

/// Rows under a head, as text of whole lines. Columns whose head begins with `>` are numbers.
pub fn render(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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
