//! `/proc/net/stat/arp_cache` and `ndisc_cache`: the tables of neighbours of the whole machine.

use super::Counters;
use crate::{Gap, Text};

/// One of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeighbourTable {
    /// Entries in the table.
    pub entries: u64,
    /// Times that an entry found no room; 32 bits wide for each CPU.
    pub full: u32,
}

impl Counters for NeighbourTable {
    fn parse(text: &Text) -> Result<NeighbourTable, Gap> {
        let head = text.lines().next().map(|(_, line)| line).unwrap_or_default();
        let names: Vec<&str> = head.split_whitespace().collect();
        let column = |name: &str| {
            let index = names.iter().position(|known| *known == name);
            index.ok_or_else(|| text.unreadable(Some(1), format!("expected a column {name}")))
        };
        let (entries, full) = (column("entries")?, column("table_fulls")?);
        let mut table = NeighbourTable::default();
        for (line, row) in text.lines().skip(1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            let number = |at: usize| {
                let word = words.get(at).copied().unwrap_or_default();
                let why = "expected columns of hexadecimal digits";
                u32::from_str_radix(word, 16).map_err(|_| text.unreadable(Some(line), why))
            };
            // Each line has the number of all CPUs.
            table.entries = u64::from(number(entries)?);
            table.full = table.full.wrapping_add(number(full)?);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_count_once_and_refusals_of_each_cpu() {
        let parse = |text: &str| NeighbourTable::parse(&Text::new("arp_cache", text));
        let read = parse("entries  allocs table_fulls\n00000400 1 00000002\n00000400 1 0000000a\n");
        assert_eq!(read, Ok(NeighbourTable { entries: 1024, full: 12 }));
        for torn in ["", "entries\n", "entries table_fulls\n1\n", "entries table_fulls\nx y\n"] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }
}
