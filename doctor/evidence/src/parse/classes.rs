//! `tc -s class show dev NIC`: what the classes of HTB and HFSC may send, and what they sent.

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Text};

/// Those that have a limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Classes {
    /// By their handles, such as `1:10`.
    pub all: BTreeMap<String, Class>,
}

/// One of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Class {
    /// The rate limit in bit/s: `ceil` of HTB, the upper limit of HFSC.
    pub bits: f64,
    /// Its counters.
    pub sent: Sent,
    /// Its line in the output.
    pub line: usize,
}

/// The counters of a class or a discipline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes that were sent.
    pub bytes: u64,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Times that the limit delayed it.
    pub overlimits: u64,
    /// Bytes in the backlog.
    pub backlog: u64,
}

impl Sent {
    /// The growth of the counters; the backlog is the current one.
    #[must_use]
    pub fn since(&self, before: &Sent) -> Sent {
        Sent {
            bytes: self.bytes.saturating_sub(before.bytes),
            dropped: self.dropped.saturating_sub(before.dropped),
            overlimits: self.overlimits.saturating_sub(before.overlimits),
            backlog: self.backlog,
        }
    }

    /// Whether more arrived than the limit allows: the limit took effect, and packets waited or
    /// were dropped.
    pub fn is_over_limit(&self) -> bool {
        self.overlimits > 0 && (self.dropped > 0 || self.backlog > 0)
    }
}

impl Counters for Classes {
    fn parse(text: &Text) -> Result<Classes, Gap> {
        let mut classes = Classes::default();
        let mut current: Option<String> = None;
        for (line, row) in text.lines() {
            let words: Vec<&str> = row.split_whitespace().collect();
            let refuse = |what: &str| text.unreadable(Some(line), format!("expected {what}"));
            match words.as_slice() {
                ["class", kind, handle, rest @ ..] => {
                    current = None;
                    if let Some(word) = limit(kind, rest) {
                        let bits = rate(word).ok_or_else(|| refuse("a rate"))?;
                        let class = Class { bits, line, ..Class::default() };
                        classes.all.insert((*handle).to_owned(), class);
                        current = Some((*handle).to_owned());
                    }
                }
                [
                    "Sent",
                    bytes,
                    "bytes",
                    _,
                    _,
                    "(dropped",
                    dropped,
                    "overlimits",
                    overlimits,
                    ..,
                ] => {
                    let Some(class) = current.as_ref().and_then(|one| classes.all.get_mut(one))
                    else {
                        continue;
                    };
                    let number = |word: &str| word.trim_end_matches(',').parse().ok();
                    let numbers = (number(bytes), number(dropped), number(overlimits));
                    let (Some(bytes), Some(dropped), Some(overlimits)) = numbers else {
                        return Err(refuse("numbers"));
                    };
                    class.sent = Sent { bytes, dropped, overlimits, backlog: 0 };
                }
                ["backlog", bytes, ..] => {
                    if let Some(class) = current.as_ref().and_then(|one| classes.all.get_mut(one)) {
                        class.sent.backlog = size(bytes).ok_or_else(|| refuse("a size"))?;
                    }
                }
                _ => {}
            }
        }
        Ok(classes)
    }
}

/// The word with the rate limit of a class.
fn limit<'a>(kind: &str, words: &[&'a str]) -> Option<&'a str> {
    let behind = |from: &str, words: &[&'a str]| {
        let at = words.iter().position(|word| *word == from)?;
        words.get(at + 1..).map(<[&str]>::to_vec)
    };
    match kind {
        "htb" => behind("ceil", words)?.first().copied(),
        "hfsc" => behind("m2", &behind("ul", words)?)?.first().copied(),
        _ => None,
    }
}

/// A rate in bit/s, as tc prints it: `10Mbit`, `1500Kbit`, `9bit`.
pub(super) fn rate(word: &str) -> Option<f64> {
    let number = word.strip_suffix("bit")?;
    let (number, factor) = match number.chars().last()? {
        'K' => (number.strip_suffix('K')?, 1e3),
        'M' => (number.strip_suffix('M')?, 1e6),
        'G' => (number.strip_suffix('G')?, 1e9),
        'T' => (number.strip_suffix('T')?, 1e12),
        _ => (number, 1.0),
    };
    number.parse::<f64>().ok().map(|number| number * factor).filter(|bits| bits.is_finite())
}

/// Bytes, as tc prints them: `0b`, `12Kb`, `3Mb`.
pub(super) fn size(word: &str) -> Option<u64> {
    let number = word.strip_suffix('b')?;
    let (number, factor) = match number.chars().last()? {
        'K' => (number.strip_suffix('K')?, 1 << 10),
        'M' => (number.strip_suffix('M')?, 1 << 20),
        _ => (number, 1_u64),
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_with_a_limit_are_read_as_tc_prints_them() {
        let text = [
            "class htb 1:1 root prio 0 rate 10Mbit ceil 20Mbit burst 1600b cburst 1600b ",
            " Sent 700 bytes 5 pkt (dropped 3, overlimits 9 requeues 0) ",
            " backlog 2Kb 4p requeues 0",
            "class hfsc 2:1 parent 2: sc m1 0bit d 0us m2 1Gbit ul m1 0bit d 0us m2 1500Kbit ",
            " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) ",
            "class hfsc 2: root ",
            " Sent 9 bytes 9 pkt (dropped 9, overlimits 9 requeues 0) ",
            "class fq_codel 8001:2 parent 8001: ",
            "",
        ]
        .join("\n");
        let read = Classes::parse(&Text::new("tc", text)).expect("sound").all;
        assert_eq!(read.len(), 2);
        let htb = read["1:1"];
        assert_eq!((htb.bits, htb.line), (2e7, 1));
        assert_eq!(htb.sent, Sent { bytes: 700, dropped: 3, overlimits: 9, backlog: 2048 });
        assert!(htb.sent.is_over_limit());
        assert_eq!(read["2:1"].bits, 1.5e6);
        assert!(Classes::parse(&Text::new("tc", "class htb 1:1 root ceil fast\n")).is_err());
    }
}
