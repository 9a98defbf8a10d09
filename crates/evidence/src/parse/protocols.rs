//! `/proc/net/snmp` and `/proc/net/netstat`: what protocols counted, a line of names and a line of
//! numbers for each.

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Text};

/// Counters of protocols.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protocols {
    /// By protocol and name, such as `Tcp.RetransSegs`.
    pub counters: BTreeMap<String, u64>,
    /// Of each protocol, in the file: its line of numbers.
    pub lines: BTreeMap<String, usize>,
}

impl Counters for Protocols {
    fn parse(text: &Text) -> Result<Protocols, Gap> {
        let mut read = Protocols::default();
        let mut lines = text.lines();
        while let Some((_, names)) = lines.next() {
            let Some((line, values)) = lines.next() else {
                return Err(text.unreadable(None, "expected a line of numbers below each of names"));
            };
            let refuse = |why: &str| text.unreadable(Some(line), why);
            let (Some((protocol, names)), Some((same, values))) =
                (names.split_once(": "), values.split_once(": "))
            else {
                return Err(refuse("expected a protocol and its numbers"));
            };
            let (names, values): (Vec<&str>, Vec<&str>) =
                (names.split_whitespace().collect(), values.split_whitespace().collect());
            if protocol != same || names.len() != values.len() {
                return Err(refuse("expected a number for each name above"));
            }
            for (name, value) in names.into_iter().zip(values) {
                // -1 stands for no limit, and is no count.
                let count: i64 = value.parse().map_err(|_| refuse("expected numbers"))?;
                if let Ok(count) = u64::try_from(count) {
                    read.counters.insert(format!("{protocol}.{name}"), count);
                }
            }
            read.lines.insert(protocol.to_owned(), line);
        }
        match read.lines.is_empty() {
            true => Err(text.unreadable(None, "expected lines of names and numbers")),
            false => Ok(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_stand_one_above_the_other() {
        let parse = |text: &str| Protocols::parse(&Text::new("snmp", text));
        let read = parse("Tcp: MaxConn InSegs\nTcp: -1 7\nUdp: InErrors\nUdp: 3\n").expect("sound");
        assert_eq!(read.counters.get("Tcp.InSegs"), Some(&7));
        assert_eq!(read.counters.get("Tcp.MaxConn"), None);
        assert_eq!(read.lines["Udp"], 4);
        for torn in ["", "Tcp: A\n", "Tcp: A B\nTcp: 1\n", "Tcp: A\nUdp: 1\n", "Tcp: A\nTcp: x\n"] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }
}
