//! Columns for people, as all commands print them.

use comfy_table::{CellAlignment, Table, presets};

/// Rows under a head, as text of whole lines. Columns whose head begins with `>` are numbers.
pub fn render(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(head.iter().map(|name| name.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.iter().map(|cell| shown(cell)));
    }
    for (column, name) in table.column_iter_mut().zip(head) {
        column.set_padding((0, 2));
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Text from another process, on one line and without control over the terminal: a guest may have
/// taken over its tenant's process.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        match char.is_control() || is_direction(char) {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}

/// Whether a character changes the order in which a terminal shows what follows.
fn is_direction(char: char) -> bool {
    matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A number with three digits or so, a unit prefix and the unit: `9.17 Gbit/s`. Without a unit
/// only the prefix is left, for a column whose head names the unit.
pub fn scaled(value: f64, unit: &str) -> String {
    let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let text = match prefixes.into_iter().find(|(limit, _)| value >= *limit) {
        Some((limit, prefix)) => format!("{:.2} {prefix}{unit}", value / limit),
        None => format!("{value:.0} {unit}"),
    };
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_cells_are_escaped() {
        let cell = "a\u{1b}[2J\nb\u{9b}1m\u{202e}\u{e9}".to_owned();
        let table = render(&["ERROR"], [vec![cell]]);
        assert_eq!(table.lines().count(), 2, "{table:?}");
        assert!(table.contains("a\\u{1b}[2J\\nb\\u{9b}1m\\u{202e}\u{e9}"), "{table:?}");
    }

    #[test]
    fn a_number_is_shown_with_prefix_and_unit() {
        assert_eq!(scaled(9.17e9, "bit/s"), "9.17 Gbit/s");
        assert_eq!(scaled(512.0, "bit/s"), "512 bit/s");
        assert_eq!(scaled(1500.0, ""), "1.50 k");
        assert_eq!(scaled(0.0, ""), "0");
    }
}
