//! Packets that the kernel dropped, by reason: a file of the record with a line for each.

use std::fmt;

use super::{Counters, reply_lines};
use crate::{Gap, Text};

/// Its name in a record, and the first word of its head.
pub const FILE: &str = "drops";

/// The drops during the watch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drops {
    /// The most frequent first.
    pub all: Vec<Drop>,
    /// Duration of the watch in seconds; above 0.
    pub seconds: f64,
    /// Events that did not fit into the buffer.
    pub lost: u64,
}

/// The number of packets dropped at one place for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drop {
    /// Why and where.
    pub reason: Reason,
    /// How often.
    pub count: u64,
    /// Its line in the file.
    pub line: usize,
}

/// Why and where packets were dropped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// A value of `enum skb_drop_reason`, without its prefix; `-` if the kernel does not report it.
    pub name: String,
    /// The function that dropped them.
    pub place: String,
}

impl Reason {
    /// Parses a line of a trace buffer; `None` if it is another event.
    pub fn of_event(line: &str) -> Option<Reason> {
        // A program may have any name, so the kernel's text is searched from the end of the line.
        let (_, event) = line.rsplit_once(" kfree_skb: ")?;
        let (_, place) = event.split_once("location=")?;
        let place = place.split([' ', '+']).next().filter(|place| !place.is_empty())?;
        let reason = event.split_once("reason: ").map(|(_, rest)| rest);
        let name = reason.and_then(|rest| rest.split_whitespace().next());
        Some(Reason { name: name.unwrap_or("-").to_owned(), place: place.to_owned() })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.place)
    }
}

impl Counters for Drops {
    fn parse(text: &Text) -> Result<Drops, Gap> {
        let rows = reply_lines(text, FILE)?
            .ok_or_else(|| text.unreadable(Some(1), "expected drops and a number"))?;
        let head = text.lines().next().map_or("", |(_, head)| head);
        let value = |name: &str| head.split(' ').find_map(|word| word.strip_prefix(name));
        let seconds: Option<f64> = value("seconds=").and_then(|word| word.parse().ok());
        let seconds = seconds
            .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
            .ok_or_else(|| text.unreadable(Some(1), "expected a number of seconds"))?;
        let lost = value("lost=")
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| text.unreadable(Some(1), "expected how many were lost"))?;
        let row = |(line, row): (usize, &str)| {
            let words: Vec<&str> = row.split_whitespace().collect();
            let [count, name, place] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected a number, a reason and a place"));
            };
            let count =
                count.parse().map_err(|_| text.unreadable(Some(line), "expected a number"))?;
            let reason = Reason { name: (*name).to_owned(), place: (*place).to_owned() };
            Ok(Drop { reason, count, line })
        };
        let all = rows.into_iter().map(row).collect::<Result<_, _>>()?;
        Ok(Drops { all, seconds, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_reasons_name_the_place() {
        let of = |line: &str| Reason::of_event(line).map(|reason| reason.to_string());
        let old = "x-1 [0] 1.0: kfree_skb: skbaddr=0 protocol=2048 location=0000000012345678";
        assert_eq!(of(old).as_deref(), Some("- 0000000012345678"));
        let new = "a kfree_skb: -1 [0] 1.0: kfree_skb: skbaddr=0 location=tcp_v4_rcv+0x1 reason: X";
        assert_eq!(of(new).as_deref(), Some("X tcp_v4_rcv"));
        for other in ["", "x: consume_skb: skbaddr=0", "a kfree_skb: location=", "kfree_skb:"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_torn_is_a_gap() {
        let parse = |text: &str| Drops::parse(&Text::new(FILE, text));
        assert!(parse("drops: 1 seconds=1.0 lost=0\n7 NO_SOCKET udp_rcv\n").is_ok());
        for torn in [
            "",
            "drops: 1 seconds=1 lost=0\n",
            "drops: 0 lost=0\n",
            "drops: 0 seconds=0 lost=0\n",
            "drops: 0 seconds=1\n",
            "drops: 1 seconds=1 lost=0\nx NO_SOCKET udp_rcv\n",
            "drops: 1 seconds=1 lost=0\n7 NO_SOCKET\n",
        ] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }
}
