//! `ovs-dpctl show`: how often the datapath knew what to do with a packet.

use super::Counters;
use crate::evidence::{Gap, Text};

/// Sums over all datapaths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Found in the kernel.
    pub hit: u64,
    /// Asked in user space.
    pub missed: u64,
    /// Dropped, because user space was too slow.
    pub lost: u64,
    /// Of the last datapath, in the output.
    pub line: usize,
}

impl Counters for Lookups {
    fn parse(text: &Text) -> Result<Lookups, Gap> {
        let mut sum = Lookups::default();
        for (line, row) in text.lines() {
            let Some(row) = row.trim().strip_prefix("lookups:") else { continue };
            let value = |key: &str| {
                let word = row.split_whitespace().find_map(|word| word.strip_prefix(key));
                let value = word.and_then(|word| word.parse::<u64>().ok());
                value.ok_or_else(|| text.unreadable(Some(line), format!("expected {key}NUMBER")))
            };
            sum.hit = sum.hit.saturating_add(value("hit:")?);
            sum.missed = sum.missed.saturating_add(value("missed:")?);
            sum.lost = sum.lost.saturating_add(value("lost:")?);
            sum.line = line;
        }
        if sum.line == 0 {
            return Err(text.unreadable(None, "expected a line of lookups"));
        }
        Ok(sum)
    }
}
