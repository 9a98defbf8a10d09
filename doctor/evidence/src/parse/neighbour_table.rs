//! `/proc/net/stat/arp_cache` and `ndisc_cache`: the tables of neighbours of the whole machine.

use super::{Counters, of_cpus};
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
        let mut table = NeighbourTable::default();
        for [entries, full] in of_cpus(text, ["entries", "table_fulls"])? {
            // Each line has the number of all CPUs.
            table.entries = u64::from(entries);
            table.full = table.full.wrapping_add(full);
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
