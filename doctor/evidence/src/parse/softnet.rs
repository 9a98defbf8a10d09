//! `/proc/net/softnet_stat`: what each CPU's backlog accepted, dropped and deferred.

use super::Counters;
use crate::{Gap, Text};

/// A line for each CPU that is online.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Softnet {
    /// In the order of the file.
    pub rows: Vec<Row>,
}

/// One CPU's counters. They are 32 bits wide and wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Row {
    /// The CPU; for kernels before 5.10, which do not report it, the position in the file.
    pub cpu: usize,
    /// Frames that were processed.
    pub processed: u32,
    /// Frames that found the backlog full (`netdev_max_backlog`).
    pub dropped: u32,
    /// Times that a round ended with work left (`netdev_budget`, `netdev_budget_usecs`).
    pub squeezed: u32,
    /// Its line in the file.
    pub line: usize,
}

/// The column that names the CPU, from 0.
const CPU_COLUMN: usize = 12;

impl Counters for Softnet {
    fn parse(text: &Text) -> Result<Softnet, Gap> {
        let mut rows = Vec::new();
        for (line, row) in text.lines() {
            let columns: Option<Vec<u32>> = row
                .split_whitespace()
                .map(|word| u32::from_str_radix(word, 16).ok().filter(|_| word.len() == 8))
                .collect();
            let Some([processed, dropped, squeezed, ..]) = columns.as_deref() else {
                let why = "expected columns of eight hexadecimal digits";
                return Err(text.unreadable(Some(line), why));
            };
            let named = columns.as_ref().and_then(|columns| columns.get(CPU_COLUMN).copied());
            let cpu = named.and_then(|cpu| usize::try_from(cpu).ok()).unwrap_or(rows.len());
            let (processed, dropped, squeezed) = (*processed, *dropped, *squeezed);
            rows.push(Row { cpu, processed, dropped, squeezed, line });
        }
        if rows.is_empty() {
            return Err(text.unreadable(None, "empty"));
        }
        Ok(Softnet { rows })
    }
}

impl Row {
    /// The growth since `before`; a counter may have wrapped once.
    pub fn since(&self, before: &Row) -> Row {
        Row {
            processed: self.processed.wrapping_sub(before.processed),
            dropped: self.dropped.wrapping_sub(before.dropped),
            squeezed: self.squeezed.wrapping_sub(before.squeezed),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_kernels_are_read_and_counters_wrap() {
        let old = "ffffffff 00000001 00000002\n00000010 00000000 00000000\n";
        let old = Softnet::parse(&Text::new("s", old)).expect("sound");
        assert_eq!(old.rows[1].cpu, 1);
        let new = "00000001 00000001 00000003 0 0 0 0 0 0 0 0 0 00000005";
        assert!(Softnet::parse(&Text::new("s", new)).is_err(), "columns are eight digits wide");
        let new = format!("{} 00000005", ["00000001"; 12].join(" "));
        let new = Softnet::parse(&Text::new("s", new)).expect("sound");
        assert_eq!(new.rows[0].cpu, 5);
        assert_eq!(new.rows[0].since(&old.rows[0]).processed, 2);
    }
}
