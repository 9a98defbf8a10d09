//! `/proc/net/stat/nf_conntrack`: failures to track connections.

use super::Counters;
use crate::{Gap, Text};

/// Sums over all CPUs. They are 32 bits wide and wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries that could not be inserted.
    pub insert_failed: u32,
    /// Packets that were dropped because there was no entry for them.
    pub drop: u32,
    /// Entries that were removed early to make room.
    pub early_drop: u32,
    /// Lines that were summed, one for each CPU.
    pub lines: usize,
}

impl Counters for Conntrack {
    fn parse(text: &Text) -> Result<Conntrack, Gap> {
        let head = text.lines().next().map(|(_, line)| line).unwrap_or_default();
        let names: Vec<&str> = head.split_whitespace().collect();
        let column = |name: &str| {
            let index = names.iter().position(|known| *known == name);
            index.ok_or_else(|| text.unreadable(Some(1), format!("expected a column {name}")))
        };
        let columns = [column("insert_failed")?, column("drop")?, column("early_drop")?];
        let mut sums = [0_u32; 3];
        let mut lines = 0;
        for (line, row) in text.lines().skip(1) {
            lines += 1;
            let words: Vec<&str> = row.split_whitespace().collect();
            for (sum, index) in sums.iter_mut().zip(columns) {
                let word = words.get(index).copied().unwrap_or_default();
                let value = u32::from_str_radix(word, 16);
                let value = value.map_err(|_| {
                    text.unreadable(Some(line), "expected columns of hexadecimal digits")
                })?;
                *sum = sum.wrapping_add(value);
            }
        }
        let [insert_failed, drop, early_drop] = sums;
        Ok(Conntrack { insert_failed, drop, early_drop, lines })
    }
}
