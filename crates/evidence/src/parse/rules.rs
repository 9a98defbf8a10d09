//! Packet filter rules with their counters, as `nft -a list ruleset` and `iptables-save -c` print
//! them.

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Text};

/// All rules of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// By table and chain.
    pub chains: BTreeMap<String, Chain>,
    /// Rules and policies that drop and count, by their text.
    pub dropping: BTreeMap<String, Dropping>,
}

/// A list of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// How many it has.
    pub rules: u64,
    /// Where the kernel calls it, such as `input`; `None` if only rules of other chains do.
    pub hook: Option<String>,
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
    /// Its line in the output.
    pub line: usize,
}

const VERDICTS: [&str; 2] = ["drop", "reject"];
const JUMPS: [&str; 2] = ["jump", "goto"];

impl Counters for Rules {
    fn parse(text: &Text) -> Result<Rules, Gap> {
        let mut rules = Rules::default();
        let is_saved = text.lines().any(|(_, row)| row.starts_with('*'));
        if is_saved {
            rules.saved(text)?;
        } else {
            rules.listed(text)?;
        }
        Ok(rules)
    }
}

impl Rules {
    /// Parses the output of `nft`: tables contain chains, which contain rules; sets are skipped.
    fn listed(&mut self, text: &Text) -> Result<(), Gap> {
        let (mut table, mut chain, mut depth) = (String::new(), None::<String>, 0_usize);
        for (line, row) in text.lines() {
            let row = row.split(" # handle ").next().unwrap_or(row).trim();
            let words: Vec<&str> = row.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                ["table", family, name, "{"] if depth == 0 => table = format!("{family} {name}"),
                ["chain", name, "{"] if depth == 1 => {
                    let name = format!("{table} {name}");
                    self.chains.entry(name.clone()).or_default();
                    chain = Some(name);
                }
                ["}"] if depth <= 2 => chain = None,
                words => {
                    if let Some(chain) = chain.as_ref().filter(|_| depth == 2) {
                        self.line_of_chain(&table, chain, words, line);
                    }
                }
            }
            let count = |brace: char| row.matches(brace).count();
            depth = (depth + count('{'))
                .checked_sub(count('}'))
                .ok_or_else(|| text.unreadable(Some(line), "a brace too many"))?;
        }
        if depth > 0 {
            return Err(text.unreadable(None, "expected the end of a table"));
        }
        Ok(())
    }

    fn line_of_chain(&mut self, table: &str, chain: &str, words: &[&str], line: usize) {
        let own = self.chains.entry(chain.to_owned()).or_default();
        if let ["type", _, "hook", hook, ..] = words {
            own.hook = Some((*hook).to_owned());
            return;
        }
        if words.first() == Some(&"type") {
            return;
        }
        own.rules += 1;
        let at = words.windows(2).position(|two| two == ["counter", "packets"]);
        let packets = at.and_then(|at| words.get(at + 2)?.parse().ok());
        for two in words.windows(2).filter(|two| JUMPS.contains(&two[0])) {
            let name = two[1].trim_end_matches(',');
            // A counter in front of a map counts all its packets.
            let counted = packets.filter(|_| !words.contains(&"vmap"));
            self.jump(format!("{table} {name}"), counted);
        }
        self.rule(chain, words, line, at.zip(packets));
    }

    fn jump(&mut self, to: String, counted: Option<u64>) {
        let chain = self.chains.entry(to).or_default();
        chain.jumps += 1;
        match counted {
            Some(packets) => chain.jumped = chain.jumped.saturating_add(packets),
            None => chain.uncounted += 1,
        }
    }

    fn rule(&mut self, chain: &str, words: &[&str], line: usize, counted: Option<(usize, u64)>) {
        if !words.iter().any(|word| VERDICTS.contains(word)) {
            return;
        }
        let Some((at, packets)) = counted else { return };
        let plain = [words.get(..at).unwrap_or_default(), words.get(at + 5..).unwrap_or_default()];
        let rule = format!("{chain}: {}", plain.concat().join(" "));
        self.add(rule, packets, line);
    }

    /// Parses the output of `iptables-save -c`.
    fn saved(&mut self, text: &Text) -> Result<(), Gap> {
        let mut table = "";
        let mut is_open = false;
        for (line, row) in text.lines() {
            let counted = |word: &str| -> Option<u64> {
                word.strip_prefix('[')?.split_once(':')?.0.parse().ok()
            };
            let words: Vec<&str> = row.split_whitespace().collect();
            match words.as_slice() {
                ["COMMIT"] => is_open = false,
                [name] if name.starts_with('*') => (table, is_open) = (&name[1..], true),
                [name, policy, count] if name.starts_with(':') => {
                    let chain = format!("{table} {}", &name[1..]);
                    if *policy == "DROP" {
                        let packets = counted(count).unwrap_or(0);
                        self.add(format!("{chain}: policy drop"), packets, line);
                    }
                    // The kernel calls those that have a policy.
                    let hook = (*policy != "-").then(|| name[1..].to_lowercase());
                    self.chains.entry(chain).or_default().hook = hook;
                }
                [count, "-A", name, rest @ ..] => {
                    let chain = format!("{table} {name}");
                    self.chains.entry(chain.clone()).or_default().rules += 1;
                    for two in rest.windows(2).filter(|two| ["-j", "-g"].contains(&two[0])) {
                        let to = format!("{table} {}", two[1]);
                        if self.chains.contains_key(&to) {
                            self.jump(to, counted(count));
                        }
                    }
                    let is_dropping = rest.windows(2).any(|two| two[0] == "-j" && drops(two[1]));
                    if let Some(packets) = counted(count).filter(|_| is_dropping) {
                        self.add(format!("{chain}: {}", rest.join(" ")), packets, line);
                    }
                }
                _ => {}
            }
        }
        if is_open { Err(text.unreadable(None, "expected COMMIT")) } else { Ok(()) }
    }

    /// Adds a rule; rules with the same text are counted together.
    fn add(&mut self, rule: String, packets: u64, line: usize) {
        let one = self.dropping.entry(rule).or_insert(Dropping { packets: 0, line });
        one.packets = one.packets.saturating_add(packets);
    }

    /// The number of all rules.
    pub fn count(&self) -> u64 {
        self.chains.values().fold(0, |sum: u64, chain| sum.saturating_add(chain.rules))
    }
}

fn drops(target: &str) -> bool {
    ["DROP", "REJECT"].contains(&target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_nft_are_counted() {
        let text = "table inet t { # handle 1\n\tset s { # handle 4\n\t\ttype ipv4_addr\n\t\t\
                    elements = { 10.98.0.1, 10.98.0.2 }\n\t}\n\tchain c { # handle 1\n\t\ttype \
                    filter hook input priority filter; policy accept;\n\t\tip protocol icmp \
                    counter packets 3 bytes 200 drop # handle 2\n\t\t\
                    tcp dport { 1, 2 } accept # handle 3\n\
                    \t}\n}\n";
        let read = Rules::parse(&Text::new("nft", text)).expect("sound");
        assert_eq!(read.count(), 2);
        let dropping = &read.dropping["inet t c: ip protocol icmp drop"];
        assert_eq!((dropping.packets, dropping.line), (3, 8));
        assert!(Rules::parse(&Text::new("nft", "table inet t {\n")).is_err());
        assert_eq!(Rules::parse(&Text::new("nft", "")).expect("none").count(), 0);
    }

    #[test]
    fn rules_of_iptables_are_counted() {
        let text = "# x\n*filter\n:INPUT ACCEPT [5:300]\n:FORWARD DROP [7:1]\n[9:1] -A INPUT -p \
                    tcp -j DROP\n[1:1] -A INPUT -j ACCEPT\nCOMMIT\n";
        let read = Rules::parse(&Text::new("iptables-save", text)).expect("sound");
        assert_eq!(read.dropping["filter INPUT: -p tcp -j DROP"].packets, 9);
        assert_eq!(read.dropping["filter FORWARD: policy drop"].packets, 7);
        assert_eq!(read.chains["filter INPUT"].rules, 2);
        assert!(Rules::parse(&Text::new("iptables-save", "*filter\n:A DROP [1:1]\n")).is_err());
    }

    #[test]
    fn the_way_into_a_chain_is_known() {
        let text = "table inet t {\n\tchain in {\n\t\ttype filter hook input priority filter; \
                    policy accept;\n\t\tcounter packets 7 bytes 1 jump a\n\t\ttcp dport vmap { 1 : \
                    jump b, 2 : goto c }\n\t}\n\tchain a {\n\t}\n\tchain b {\n\t}\n\tchain c \
                    {\n\t}\n\tchain d {\n\t}\n}\n";
        let read = Rules::parse(&Text::new("nft", text)).expect("sound");
        let chain = |name: &str| read.chains[&format!("inet t {name}")].clone();
        assert_eq!(chain("in").hook.as_deref(), Some("input"));
        assert_eq!((chain("a").jumps, chain("a").jumped, chain("a").uncounted), (1, 7, 0));
        assert_eq!((chain("b").uncounted, chain("c").uncounted, chain("d").jumps), (1, 1, 0));
        let text = "*filter\n:INPUT ACCEPT [5:300]\n:long - [0:0]\n[9:1] -A INPUT -i eth9 -j long\n\
                    [0:0] -A long -s 10.0.0.1/32 -j DROP\nCOMMIT\n";
        let read = Rules::parse(&Text::new("iptables-save", text)).expect("sound");
        assert_eq!(read.chains["filter INPUT"].hook.as_deref(), Some("input"));
        let long = &read.chains["filter long"];
        assert_eq!((long.rules, long.jumped, long.uncounted, &long.hook), (1, 9, 0, &None));
    }
}
