//! `tc -s -j qdisc show`: what each queue of an interface sent, its backlog and its drops.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::Counters;
use super::classes::{Sent, rate, size};
use crate::{Gap, Text};

/// All queueing disciplines of one network namespace.
#[derive(Debug, Clone, Default)]
pub struct Qdiscs {
    /// In the order that the tool prints.
    pub all: Vec<Qdisc>,
}

/// One of them, with the fields that checks use.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Qdisc {
    /// Such as `mq`, `fq_codel`, `tbf`.
    pub kind: String,
    /// The interface.
    pub dev: String,
    /// Its parent: `:1` for the first queue of `mq`. `None` at the root.
    #[serde(default)]
    pub parent: Option<String>,
    /// Bytes that were sent.
    #[serde(default)]
    pub bytes: u64,
    /// Packets that were sent.
    #[serde(default)]
    pub packets: u64,
    /// Packets that were dropped.
    #[serde(default)]
    pub drops: u64,
    /// Times that a limit delayed it.
    #[serde(default)]
    pub overlimits: u64,
    /// Bytes in the backlog.
    #[serde(default)]
    pub backlog: u64,
    /// Its parameters.
    #[serde(default)]
    pub options: serde_json::Value,
}

/// Hooks at which filters see the traffic of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Incoming packets, before all other processing.
    Ingress,
    /// Outgoing packets, before they are queued.
    Egress,
    /// Outgoing packets, when the root discipline selects their class.
    Root,
}

/// Root disciplines whose filters select a class.
const CLASSFUL: [&str; 8] = ["cbq", "drr", "ets", "hfsc", "htb", "multiq", "prio", "qfq"];

impl Hook {
    /// The command that shows the filters there.
    pub fn command(self, nic: &str) -> Vec<&str> {
        let mut words = vec!["tc", "-s", "filter", "show", "dev", nic];
        words.extend(self.word());
        words
    }

    /// Its name for `tc filter`; `None` for the root.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Hook::Ingress => Some("ingress"),
            Hook::Egress => Some("egress"),
            Hook::Root => None,
        }
    }
}

impl Counters for Qdiscs {
    fn parse(text: &Text) -> Result<Qdiscs, Gap> {
        if text.value().starts_with("qdisc ") {
            return plain(text);
        }
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Qdiscs { all })
    }
}

/// Reads the output without `-j`, as in a sos report. Of the options it has limits, and what netem
/// emulates.
fn plain(text: &Text) -> Result<Qdiscs, Gap> {
    let mut all: Vec<Qdisc> = Vec::new();
    for (line, row) in text.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let refuse = || text.unreadable(Some(line), "expected a discipline and its counters");
        match words.as_slice() {
            ["qdisc", kind, _, "dev", dev, rest @ ..] => all.push(Qdisc {
                kind: (*kind).to_owned(),
                dev: (*dev).to_owned(),
                parent: after("parent", rest).map(str::to_owned),
                options: options(kind, rest),
                ..Qdisc::default()
            }),
            ["Sent", bytes, "bytes", packets, _, "(dropped", drops, "overlimits", over, ..] => {
                let number = |word: &str| word.trim_end_matches(',').parse().map_err(|_| refuse());
                let last = all.last_mut().ok_or_else(refuse)?;
                (last.bytes, last.packets) = (number(bytes)?, number(packets)?);
                (last.drops, last.overlimits) = (number(drops)?, number(over)?);
            }
            ["backlog", bytes, ..] => {
                let last = all.last_mut().ok_or_else(refuse)?;
                last.backlog = size(bytes).ok_or_else(refuse)?;
            }
            _ => {}
        }
    }
    Ok(Qdiscs { all })
}

fn after<'a>(name: &str, words: &[&'a str]) -> Option<&'a str> {
    words.windows(2).find(|two| two[0] == name).map(|two| two[1])
}

/// Options in the form of `-j`: rates in bytes per second.
fn options(kind: &str, words: &[&str]) -> serde_json::Value {
    let bytes = |name: &str| {
        let bits = after(name, words).and_then(rate)?;
        format!("{:.0}", bits / 8.0).parse::<u64>().ok()
    };
    let limit = match kind {
        "tbf" => bytes("rate").map(|rate| ("rate", rate.into())),
        "cake" => bytes("bandwidth").map(|rate| ("bandwidth", rate.into())),
        "fq" => bytes("maxrate").map(|rate| ("maxrate", rate.into())),
        "netem" => bytes("rate").map(|rate| ("rate", serde_json::json!({ "rate": rate }))),
        _ => None,
    };
    let emulated = [
        ("loss", "loss-random"),
        ("delay", "delay"),
        ("corrupt", "corrupt"),
        ("duplicate", "duplicate"),
        ("reorder", "reorder"),
    ];
    let emulated = emulated.into_iter().filter(|(word, _)| kind == "netem" && words.contains(word));
    let emulated = emulated.map(|(_, name)| (name, serde_json::json!({})));
    let all = limit.into_iter().chain(emulated);
    all.map(|(name, value): (&str, serde_json::Value)| (name.to_owned(), value)).collect()
}

impl Qdisc {
    /// Its counters.
    pub fn sent(&self) -> Sent {
        let Qdisc { bytes, drops, overlimits, backlog, .. } = *self;
        Sent { bytes, dropped: drops, overlimits, backlog }
    }

    /// Its rate limit in bytes per second, for all traffic or, with `fq`, for each connection.
    pub fn rate(&self) -> Option<u64> {
        let rate = match self.kind.as_str() {
            "tbf" => self.options.get("rate"),
            "cake" => self.options.get("bandwidth"),
            "fq" => self.options.get("maxrate"),
            "netem" => self.options.get("rate").and_then(|rate| rate.get("rate")),
            _ => None,
        };
        rate?.as_u64().filter(|rate| *rate > 0)
    }

    /// Whether its classes have limits of their own.
    pub fn has_classes(&self) -> bool {
        ["htb", "hfsc"].contains(&self.kind.as_str())
    }
}

impl Qdiscs {
    /// Interfaces with classes that have limits of their own, in order and each once.
    pub fn with_classes(&self) -> BTreeSet<&str> {
        let of = self.all.iter().filter(|qdisc| qdisc.has_classes());
        of.map(|qdisc| qdisc.dev.as_str()).collect()
    }

    /// This discipline in another sample.
    pub fn same(&self, one: &Qdisc) -> Option<&Qdisc> {
        let is_it = |other: &&Qdisc| {
            (&other.dev, &other.kind, &other.parent) == (&one.dev, &one.kind, &one.parent)
        };
        self.all.iter().find(is_it)
    }

    /// Where interfaces can have filters, in order and each once.
    pub fn hooks(&self) -> BTreeSet<(&str, Hook)> {
        let hooks = |qdisc: &Qdisc| -> &[Hook] {
            match qdisc.kind.as_str() {
                "ingress" => &[Hook::Ingress],
                "clsact" => &[Hook::Ingress, Hook::Egress],
                kind if qdisc.parent.is_none() && CLASSFUL.contains(&kind) => &[Hook::Root],
                _ => &[],
            }
        };
        let of = |qdisc| hooks(qdisc).iter().map(move |hook| (qdisc.dev.as_str(), *hook));
        self.all.iter().flat_map(of).collect()
    }

    /// Bytes by queue of an interface that has `mq` at its root.
    pub fn queue_bytes(&self, nic: &str) -> BTreeMap<usize, u64> {
        let of_nic = |qdisc: &&Qdisc| qdisc.dev == nic;
        let has_mq = self.all.iter().filter(of_nic).any(|qdisc| qdisc.kind == "mq");
        let children = self.all.iter().filter(of_nic).filter(|_| has_mq);
        let queue = |qdisc: &Qdisc| {
            let (_, minor) = qdisc.parent.as_deref()?.split_once(':')?;
            usize::from_str_radix(minor, 16).ok()?.checked_sub(1)
        };
        children.filter_map(|qdisc| Some((queue(qdisc)?, qdisc.bytes))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disciplines_are_read_as_sos_has_them() {
        let text = [
            "qdisc noqueue 0: dev lo root refcnt 2 ",
            " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) ",
            " backlog 0b 0p requeues 0",
            "qdisc tbf 10: dev eth0 parent 1:10 rate 10Mbit burst 5000b lat 50ms ",
            " Sent 700 bytes 5 pkt (dropped 3, overlimits 9 requeues 0) ",
            " backlog 2Kb 4p requeues 0",
            "qdisc netem 8002: dev eth1 root refcnt 2 limit 1000 delay 10ms loss 1%",
            "",
        ];
        let read = Qdiscs::parse(&Text::new("tc", text.join("\n"))).expect("sound").all;
        assert_eq!(read.len(), 3);
        let tbf = &read[1];
        assert_eq!((tbf.rate(), tbf.parent.as_deref()), (Some(1_250_000), Some("1:10")));
        assert_eq!((tbf.bytes, tbf.packets, tbf.drops, tbf.overlimits), (700, 5, 3, 9));
        assert_eq!(tbf.backlog, 2048);
        let emulated = |name: &str| read[2].options.get(name).is_some();
        assert!(emulated("loss-random") && emulated("delay") && !emulated("corrupt"));
        assert!(Qdiscs::parse(&Text::new("tc", "qdisc tbf 1: dev a root\n backlog ?\n")).is_err());
    }

    #[test]
    fn filters_are_where_a_discipline_takes_them() {
        let text = r#"[{"kind":"fq_codel","dev":"a"},
            {"kind":"clsact","dev":"a","parent":"ffff:fff1"},
            {"kind":"ingress","dev":"b","parent":"ffff:fff1"},{"kind":"htb","dev":"c"},
            {"kind":"prio","dev":"d","parent":"1:2"},{"kind":"mq","dev":"e"}]"#;
        let read = Qdiscs::parse(&Text::new("tc", text)).expect("sound");
        let hooks: Vec<_> = read.hooks().into_iter().collect();
        let expected =
            [("a", Hook::Ingress), ("a", Hook::Egress), ("b", Hook::Ingress), ("c", Hook::Root)];
        assert_eq!(hooks, expected);
        assert_eq!(Hook::Egress.command("a").join(" "), "tc -s filter show dev a egress");
    }
}
