//! `tc -s filter show dev X ...`: policing filters, and what they dropped.
//!
//! It is parsed as text, because tc leaves the rate out of its JSON (`print_police` in iproute2's
//! `m_police.c`).

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Text};

/// The prefixes that tc writes before `bit`, each a thousand times the previous one.
const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];

/// All policers of one hook of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policers {
    /// By the index of the action, which filters may share.
    pub all: BTreeMap<u32, Policer>,
}

/// One action that limits a rate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policer {
    /// The rate in bit/s; `None` if it limits the length or number of packets.
    pub bits_per_second: Option<u64>,
    /// The words that identify its filter for `tc filter del`; `None` if they are not understood.
    pub filter: Option<String>,
    /// Its counters; `None` if tc does not print them.
    pub counts: Option<PolicerCounts>,
    /// The line of the action.
    pub line: usize,
}

/// Counters since it was installed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicerCounts {
    /// Bytes that arrived, including dropped ones.
    pub bytes: u64,
    /// Packets that arrived.
    pub packets: u64,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Its line in the output.
    pub line: usize,
}

impl Counters for Policers {
    fn parse(text: &Text) -> Result<Policers, Gap> {
        let mut all = BTreeMap::new();
        let (mut filter, mut open) = (None, None);
        for (line, row) in text.lines() {
            let words: Vec<&str> = row.split_whitespace().collect();
            if words.first() == Some(&"filter") {
                (filter, open) = (name_of(&words), None);
            } else if line == 1 {
                return Err(text.unreadable(Some(1), "expected a filter"));
            }
            if words.starts_with(&["action", "order"]) {
                open = None;
            }
            if let Some(at) = words.iter().position(|word| *word == "police") {
                let (index, policer) = policer(&words[at..], line, filter.clone())
                    .ok_or_else(|| text.unreadable(Some(line), "expected police, index, rate"))?;
                all.insert(index, policer);
                open = Some(index);
            }
            if words.first() == Some(&"Sent") {
                let read = counts(&words, line)
                    .ok_or_else(|| text.unreadable(Some(line), "expected bytes, packets, drops"))?;
                if let Some(policer) = open.take().and_then(|index| all.get_mut(&index)) {
                    policer.counts = Some(read);
                }
            }
        }
        Ok(Policers { all })
    }
}

/// Parses `police 0x1 rate 100Mbit burst 100Kb mtu 2Kb action drop overhead 0b`, perhaps with
/// `avrate`.
fn policer(words: &[&str], line: usize, filter: Option<String>) -> Option<(u32, Policer)> {
    let index = u32::from_str_radix(words.get(1)?.strip_prefix("0x")?, 16).ok()?;
    let value =
        |name: &str| words.iter().position(|word| *word == name).map(|at| words.get(at + 1));
    // A policer without a rate limit prints the rate 0.
    let rates = [bits(value("rate")??)?, value("avrate").map_or(Some(0), |rate| bits(rate?))?];
    let bits_per_second = rates.into_iter().find(|rate| *rate > 0);
    Some((index, Policer { bits_per_second, filter, counts: None, line }))
}

/// Parses `100Mbit`, or `100Mibit` if tc was asked for binary prefixes.
fn bits(word: &str) -> Option<u64> {
    let word = word.strip_suffix("bit")?;
    let (word, kilo) = word.strip_suffix('i').map_or((word, 1000), |word| (word, 1024_u64));
    let end = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    let power = UNITS.iter().position(|letter| *letter == unit)?;
    number.parse::<u64>().ok()?.checked_mul(kilo.checked_pow(u32::try_from(power).ok()?)?)
}

/// Parses `Sent 5 bytes 1 pkt (dropped 0, overlimits 0 requeues 0)`.
fn counts(words: &[&str], line: usize) -> Option<PolicerCounts> {
    let ["Sent", bytes, "bytes", packets, _, "(dropped", dropped, ..] = words else { return None };
    let bytes = bytes.parse().ok()?;
    let packets = packets.parse().ok()?;
    let dropped = dropped.trim_end_matches(',').parse().ok()?;
    Some(PolicerCounts { bytes, packets, dropped, line })
}

/// Converts `filter protocol ip pref 7 u32 chain 0 fh 800::800 ...` to the words for `tc filter
/// del`.
fn name_of(words: &[&str]) -> Option<String> {
    let place = |name: &str| words.iter().position(|word| *word == name);
    let value = |name: &str| words.get(place(name)? + 1).copied();
    let pref: u32 = value("pref")?.parse().ok()?;
    let kind = *words.get(place("pref")? + 2)?;
    let handle = value("handle").or_else(|| value("fh"));
    // They become part of a command.
    let is_plain =
        |word: &str| word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b));
    let (protocol, parent) = (value("protocol")?, value("parent"));
    if ![protocol, kind, parent.unwrap_or_default(), handle.unwrap_or_default()]
        .into_iter()
        .all(is_plain)
    {
        return None;
    }
    let parent = parent.map_or_else(String::new, |parent| format!("parent {parent} "));
    let handle = handle.map_or_else(String::new, |handle| format!("handle {handle} "));
    Some(format!("{parent}protocol {protocol} pref {pref} {handle}{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policer_has_a_rate_a_filter_and_counts() {
        let text = "filter protocol all pref 49152 matchall chain 0 \n\
                    filter protocol all pref 49152 matchall chain 0 handle 0x1 \n\
                    \x20 not_in_hw (rule hit 12)\n\
                    \taction order 1:  police 0x1 rate 1500Kbit burst 64Kb mtu 2Kb action drop \
                    overhead 0b \n\tref 1 bind 1  installed 4 sec used 0 sec\n\
                    \tAction statistics:\n\
                    \tSent 900 bytes 9 pkt (dropped 3, overlimits 3 requeues 0) \n\
                    \taction order 2: mirred (Egress Redirect to device ifb0) stolen\n\
                    \tSent 7 bytes 7 pkt (dropped 7, overlimits 7 requeues 0) \n\n\
                    filter protocol ip pref 5 u32 chain 0 fh 800::800 order 2048 key ht 800\n\
                    \x20 match 00000000/00000000 at 0\n\
                    \x20police 0xa rate 0bit burst 0b mtu 2Kb avrate 1Gbit action drop\n";
        let read = Policers::parse(&Text::new("tc", text)).expect("sound");
        let counts = PolicerCounts { bytes: 900, packets: 9, dropped: 3, line: 7 };
        assert_eq!(read.all[&1].counts, Some(counts));
        assert_eq!(read.all[&1].bits_per_second, Some(1_500_000));
        let filter = |index| read.all[&index].filter.as_deref();
        assert_eq!(filter(1), Some("protocol all pref 49152 handle 0x1 matchall"));
        assert_eq!(filter(10), Some("protocol ip pref 5 handle 800::800 u32"));
        assert_eq!(
            (read.all[&10].bits_per_second, read.all[&10].counts),
            (Some(1_000_000_000), None)
        );
    }

    #[test]
    fn rates_are_read_as_tc_writes_them() {
        let read =
            ["50Mbit", "999bit", "1Gibit", "4294967295Tbit", "5", "x", "5Zbit", "-1bit"].map(bits);
        assert_eq!(read[..3], [Some(50_000_000), Some(999), Some(1 << 30)]);
        assert_eq!(read[4..], [None; 4]);
        assert_eq!(bits("99999999999999999Tbit"), None);
    }

    #[test]
    fn what_would_be_more_than_a_name_is_no_part_of_a_command() {
        let filter = |line: &str| name_of(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(filter("filter protocol all pref 1 ;reboot handle 0x1"), None);
        assert_eq!(filter("filter protocol all pref 1 basic handle $(reboot)"), None);
        assert_eq!(filter("filter pref"), None);
        let root = filter("filter parent 1: protocol ip pref 9 u32 chain 0 fh 800::800 order 2048");
        assert_eq!(root.as_deref(), Some("parent 1: protocol ip pref 9 handle 800::800 u32"));
    }
}
