//! `tc -s -j qdisc show`: what each queue of an interface sent, and what waits or was dropped.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Counters;
use crate::evidence::{Gap, Text};

/// All queueing disciplines of one network namespace.
#[derive(Debug, Clone, Default)]
pub struct Qdiscs {
    /// In the order that the tool prints.
    pub all: Vec<Qdisc>,
}

/// One of them, as far as checks look.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Qdisc {
    /// Such as `mq`, `fq_codel`, `tbf`.
    pub kind: String,
    /// The interface.
    pub dev: String,
    /// Its parent: `:1` for the first queue of `mq`. None at the root.
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
    /// Times that it had to hold back.
    #[serde(default)]
    pub overlimits: u64,
    /// Its parameters.
    #[serde(default)]
    pub options: serde_json::Value,
}

impl Counters for Qdiscs {
    fn parse(text: &Text) -> Result<Qdiscs, Gap> {
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Qdiscs { all })
    }
}

impl Qdiscs {
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
