//! `/proc/net/snmp` and `/proc/net/netstat`: protocol counters, a line of names and a line of
//! numbers for each protocol. `/proc/net/snmp6`: the same for IPv6, a line for each counter.

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Text};

/// Counters of protocols.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protocols {
    /// By protocol and name, such as `Tcp.RetransSegs`.
    pub counters: BTreeMap<String, u64>,
    /// Lines in the file: the line of numbers of each protocol, and the line of each counter that
    /// has its own.
    pub lines: BTreeMap<String, usize>,
}

impl Counters for Protocols {
    fn parse(text: &Text) -> Result<Protocols, Gap> {
        if text.lines().next().is_some_and(|(_, line)| !line.contains(':')) {
            return parse_lines(text);
        }
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
                // -1 means no limit and is not a count.
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

/// Lines such as `Udp6RcvbufErrors 7`.
fn parse_lines(text: &Text) -> Result<Protocols, Gap> {
    let mut read = Protocols::default();
    for (line, row) in text.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let [name, value] = words.as_slice() else {
            return Err(text.unreadable(Some(line), "expected a name and a number"));
        };
        let value: u64 =
            value.parse().map_err(|_| text.unreadable(Some(line), "expected a number"))?;
        // The protocol ends with the 6.
        let Some((protocol, counter)) = name.split_once('6') else {
            return Err(text.unreadable(Some(line), "expected a protocol of IPv6"));
        };
        let name = format!("{protocol}6.{counter}");
        read.lines.insert(name.clone(), line);
        read.counters.insert(name, value);
    }
    match read.lines.is_empty() {
        true => Err(text.unreadable(None, "expected lines of names and numbers")),
        false => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ipv6_each_counter_has_a_line() {
        let parse = |text: &str| Protocols::parse(&Text::new("snmp6", text));
        let read = parse("Ip6InReceives \t5\nUdp6RcvbufErrors\t7\n").expect("sound");
        assert_eq!(read.counters.get("Udp6.RcvbufErrors"), Some(&7));
        assert_eq!(read.lines["Udp6.RcvbufErrors"], 2);
        for torn in ["Ip6InReceives\n", "Ip6InReceives x\n", "Tcp 5\n"] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }

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
