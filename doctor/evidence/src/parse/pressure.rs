//! `/proc/pressure/*`: how long programs waited for a CPU, for memory, for disks.

use super::Counters;
use crate::{Gap, Text};

/// Microseconds since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which some program waited.
    pub some_us: u64,
    /// Time in which all programs with work waited.
    pub full_us: u64,
}

impl Counters for Pressure {
    fn parse(text: &Text) -> Result<Pressure, Gap> {
        let mut read = Pressure::default();
        let mut is_any = false;
        for (line, row) in text.lines() {
            let total = row.rsplit_once(" total=").and_then(|(_, total)| total.parse().ok());
            let total = total.ok_or_else(|| text.unreadable(Some(line), "expected total="))?;
            match row.split(' ').next() {
                Some("some") => (read.some_us, is_any) = (total, true),
                Some("full") => read.full_us = total,
                _ => return Err(text.unreadable(Some(line), "expected some or full")),
            }
        }
        if is_any { Ok(read) } else { Err(text.unreadable(None, "expected a line of some")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        let read = |text: &str| Pressure::parse(&Text::new("memory", text));
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 total=3\n";
        assert_eq!(read(text).expect("sound"), Pressure { some_us: 7, full_us: 3 });
        for torn in ["", "some avg10=0\n", "full total=3\n", "x total=1\n"] {
            assert!(read(torn).is_err(), "{torn:?}");
        }
    }
}
