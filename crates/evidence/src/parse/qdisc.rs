//! `tc -s -j qdisc show`: what each queue of an interface sent, its backlog and its drops.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::Counters;
use super::classes::Sent;
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
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Qdiscs { all })
    }
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

    /// The same one in another sample.
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
