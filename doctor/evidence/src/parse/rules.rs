//! Packet filter rules with their counters, as `nft -a list ruleset`, `iptables-save -c` and, in
//! archives of other tools, `iptables -vnL` print them.

mod iptables;
mod nft;
mod rule;
mod settle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rule::Rule;

use super::Counters;
use crate::{Gap, Text};

/// All rules of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// By table and chain.
    pub chains: BTreeMap<String, Chain>,
    /// Rules and policies that drop and count, by their text. Where a chain drops whatever is sent
    /// to it, they are the rules that send, if all of these count.
    pub dropping: BTreeMap<String, Dropping>,
    /// Those that drop and do not count, with their lines.
    pub uncounted: BTreeMap<String, usize>,
    /// Those that leave it to a program, with their lines.
    pub queued: BTreeMap<String, usize>,
    /// While it is parsed, the rules of each chain.
    lists: BTreeMap<String, Vec<Rule>>,
}

/// A list of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// How many it has.
    pub rules: u64,
    /// Where the kernel calls it, such as `input`; `None` if only rules of other chains do.
    pub hook: Option<String>,
    /// Whether it drops what none of its rules decides.
    pub has_drop_policy: bool,
    /// The line of what drops all that no rule before it allows: that policy, or a rule for all
    /// packets.
    pub drops_rest: Option<usize>,
    /// Rules that send packets to it.
    pub jumps: u64,
    /// Packets that those with a counter have sent.
    pub jumped: u64,
    /// How many of them have no counter.
    pub uncounted: u64,
}

/// Something that drops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropping {
    /// Packets so far.
    pub packets: u64,
    /// Whether it takes what is left over: a policy, a rule for all packets of its chain, of an
    /// interface or of new connections, or one of several that drop before these and let nothing
    /// pass.
    pub is_default: bool,
    /// Whether it takes only packets that fit no tracked connection and begin none.
    pub is_of_invalid: bool,
    /// Its line in the output.
    pub line: usize,
}

impl Counters for Rules {
    fn parse(text: &Text) -> Result<Rules, Gap> {
        let mut rules = Rules::default();
        let has_line = |start: &str| text.lines().any(|(_, row)| row.starts_with(start));
        if has_line("*") {
            rules.saved(text)?;
        } else if has_line("Chain ") {
            rules.shown(text)?;
        } else {
            rules.listed(text)?;
        }
        rules.settle();
        Ok(rules)
    }
}

impl Rules {
    /// The number of all rules.
    pub fn count(&self) -> u64 {
        self.chains.values().fold(0, |sum: u64, chain| sum.saturating_add(chain.rules))
    }

    /// Adds a rule at the end of a chain.
    fn push(&mut self, chain: &str, rule: Rule) {
        self.chains.entry(chain.to_owned()).or_default().rules += 1;
        self.lists.entry(chain.to_owned()).or_default().push(rule);
    }

    /// Adds what drops; rules with the same text are counted together.
    fn add(&mut self, text: String, more: Dropping) {
        let one = self.dropping.entry(text).or_insert(Dropping { packets: 0, ..more });
        one.packets = one.packets.saturating_add(more.packets);
        one.is_default |= more.is_default;
        one.is_of_invalid |= more.is_of_invalid;
    }

    /// Adds a policy that drops, and counts.
    fn add_policy(&mut self, chain: &str, packets: u64, line: usize) {
        let policy = Dropping { packets, line, is_default: true, is_of_invalid: false };
        self.add(policy_of(chain), policy);
    }
}

/// The text of a policy that drops.
fn policy_of(chain: &str) -> String {
    format!("{chain}: policy drop")
}
