//! `/proc/net/stat/nf_conntrack`: failures to track connections. Ports that a NAT uses.

use super::{Counters, of_cpus, reply_lines};
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
        let rows = of_cpus(text, ["insert_failed", "drop", "early_drop"])?;
        let mut sums = [0_u32; 3];
        for row in &rows {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum = sum.wrapping_add(*value);
            }
        }
        let lines = rows.len();
        let [insert_failed, drop, early_drop] = sums;
        Ok(Conntrack { insert_failed, drop, early_drop, lines })
    }
}

/// The destinations to which a NAT uses the most ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Translations {
    /// The most used first.
    pub all: Vec<Translation>,
}

/// The ports that one address uses for one destination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Translation {
    /// The number of the protocol.
    pub protocol: u64,
    /// The address in place of the source.
    pub source: String,
    /// The destination, address and port.
    pub destination: String,
    /// How many ports are used.
    pub count: u64,
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for Translations {
    fn parse(text: &Text) -> Result<Translations, Gap> {
        let rows = reply_lines(text, "translations")?
            .ok_or_else(|| text.unreadable(Some(1), "expected translations and a number"))?;
        let one = |(line, row): (usize, &str)| {
            let refuse = || text.unreadable(Some(line), "expected two ends and numbers");
            let words: Vec<&str> = row.split_whitespace().collect();
            let [protocol, source, destination, count, first, last] = words.as_slice() else {
                return Err(refuse());
            };
            let number = |word: &str| word.parse().map_err(|_| refuse());
            Ok(Translation {
                protocol: number(protocol)?,
                source: (*source).to_owned(),
                destination: (*destination).to_owned(),
                count: number(count)?,
                first: number(first)?,
                last: number(last)?,
                line,
            })
        };
        Ok(Translations { all: rows.into_iter().map(one).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_nat_are_read() {
        let parse = |text: &str| Translations::parse(&Text::new("t", text));
        let read = parse("translations: 1\n6 10.0.0.1 10.0.0.2:80 50 1024 1073\n").expect("sound");
        let Translation { count, first, last, line, .. } = read.all[0];
        assert_eq!((count, first, last, line), (50, 1024, 1073, 2));
        for torn in ["", "translations: 1\n", "translations: 1\n6 a b 1 2\n"] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }
}
