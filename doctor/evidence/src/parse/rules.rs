//! Packet filter rules with their counters, as `nft -a list ruleset`, `iptables-save -c` and, in
//! archives of other tools, `iptables -vnL` print them.

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
    /// Those that drop and do not count, with their lines.
    pub uncounted: BTreeMap<String, usize>,
    /// While a chain is read, its rules behind the last that lets anything pass: all of them drop.
    rows: BTreeMap<String, Vec<String>>,
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
    /// Whether it takes what is left over: a policy, a rule for all packets of its chain or of an
    /// interface, or one of several that drop before these and let nothing pass.
    pub is_default: bool,
    /// Its line in the output.
    pub line: usize,
}

const VERDICTS: [&str; 2] = ["drop", "reject"];
const JUMPS: [&str; 2] = ["jump", "goto"];
/// Words before the name of an interface, in rules of `nft` and of `iptables`.
const INTERFACES: [&str; 6] = ["iif", "iifname", "oif", "oifname", "-i", "-o"];
/// Words by which a rule of `nft` may let a packet pass, or another chain decide.
const PASSES: [&str; 6] = ["accept", "goto", "jump", "queue", "return", "vmap"];
/// Settings of a log of `nft` that have one word each, and targets of `iptables` that only log.
const LOGGED: [&str; 5] = ["flags", "group", "level", "queue-threshold", "snaplen"];
const LOGS: [&str; 2] = ["LOG", "NFLOG"];

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
        // Whatever their rules leave over is dropped.
        for (chain, row) in std::mem::take(&mut rules.rows) {
            if rules.chains.get(&chain).is_some_and(|chain| chain.has_drop_policy) {
                rules.are_default(row);
            }
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
            own.has_drop_policy = words.windows(2).any(|two| two == ["policy", "drop;"]);
            if own.has_drop_policy {
                own.drops_rest = Some(line);
                self.uncounted.insert(format!("{chain}: policy drop"), line);
            }
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
        if words.iter().any(|word| PASSES.contains(word)) {
            self.rows.remove(chain);
        }
        if !is_dropping(words) {
            return;
        }
        // A counter in front of a map counts all its packets, not only those that it drops.
        let Some((at, packets)) = counted.filter(|_| !words.contains(&"vmap")) else {
            self.uncounted.insert(format!("{chain}: {}", words.join(" ")), line);
            if takes_all(words) && !has_interface(words) {
                self.end(chain, line);
            }
            return;
        };
        let plain =
            [words.get(..at).unwrap_or_default(), words.get(at + 5..).unwrap_or_default()].concat();
        let rule = format!("{chain}: {}", plain.join(" "));
        let is_default = takes_all(&plain);
        let is_end = is_default && !has_interface(&plain);
        if is_end {
            // Nothing reaches the policy behind it.
            self.uncounted.remove(&format!("{chain}: policy drop"));
        }
        self.add_to(chain, rule, Dropping { packets, line, is_default }, is_end);
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
                    let has_drop_policy = *policy == "DROP";
                    if has_drop_policy {
                        let packets = counted(count).unwrap_or(0);
                        let policy = Dropping { packets, line, is_default: true };
                        self.add(format!("{chain}: policy drop"), policy);
                    }
                    // The kernel calls those that have a policy.
                    let hook = (*policy != "-").then(|| name[1..].to_lowercase());
                    let chain = self.chains.entry(chain).or_default();
                    (chain.hook, chain.has_drop_policy) = (hook, has_drop_policy);
                    chain.drops_rest = has_drop_policy.then_some(line);
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
                    let target = rest.windows(2).find(|two| ["-j", "-g"].contains(&two[0]));
                    let target = target.map(|two| two[1]);
                    self.passes(&chain, target);
                    let is_dropping = target.is_some_and(drops);
                    if let Some(packets) = counted(count).filter(|_| is_dropping) {
                        let one = Dropping { packets, line, is_default: takes_all(rest) };
                        let rule = format!("{chain}: {}", rest.join(" "));
                        self.add_to(&chain, rule, one, one.is_default && !has_interface(rest));
                    }
                }
                _ => {}
            }
        }
        if is_open { Err(text.unreadable(None, "expected COMMIT")) } else { Ok(()) }
    }

    /// Parses the output of `iptables -vnL`, which has only the table `filter`.
    fn shown(&mut self, text: &Text) -> Result<(), Gap> {
        let mut chain = None;
        for (line, row) in text.lines() {
            let words: Vec<&str> = row.split_whitespace().collect();
            let number = |word: &str| {
                rounded(word).ok_or_else(|| text.unreadable(Some(line), "expected a number"))
            };
            match words.as_slice() {
                [] | ["pkts", "bytes", "target", ..] => {}
                ["Chain", name, rest @ ..] => {
                    let full = format!("filter {name}");
                    let own = self.chains.entry(full.clone()).or_default();
                    if let ["(policy", policy, packets, "packets,", ..] = rest {
                        own.hook = Some(name.to_lowercase());
                        own.has_drop_policy = *policy == "DROP";
                        own.drops_rest = own.has_drop_policy.then_some(line);
                        if own.has_drop_policy {
                            let packets = number(packets)?;
                            let policy = Dropping { packets, line, is_default: true };
                            self.add(format!("{full}: policy drop"), policy);
                        }
                    }
                    chain = Some(full);
                }
                [packets, _, rest @ ..] => {
                    let chain = chain.clone().ok_or_else(|| {
                        text.unreadable(Some(line), "expected the name of a chain above it")
                    })?;
                    let packets: u64 = number(packets)?;
                    self.chains.entry(chain.clone()).or_default().rules += 1;
                    // A rule without a target has one column less.
                    let target = rest.first().filter(|_| rest.get(2).is_some_and(is_option));
                    self.passes(&chain, target.copied());
                    match target {
                        Some(target) if drops(target) => {
                            let one = Dropping { packets, line, is_default: shows_all(rest) };
                            let is_end = one.is_default && rest[3..5] == ["*", "*"];
                            let rule = format!("{chain}: {}", rest.join(" "));
                            self.add_to(&chain, rule, one, is_end);
                        }
                        Some(target) => {
                            let to = format!("filter {target}");
                            // Chains of a user are listed in any order; targets of the kernel are
                            // in capitals and have no chain.
                            if text.lines().any(|(_, row)| is_chain(row, target)) {
                                self.jump(to, Some(packets));
                            }
                        }
                        None => {}
                    }
                }
                _ => return Err(text.unreadable(Some(line), "expected a chain or a rule")),
            }
        }
        Ok(())
    }

    /// Adds a rule of a chain, behind which nothing else decides if it is the end.
    fn add_to(&mut self, chain: &str, rule: String, one: Dropping, is_end: bool) {
        self.rows.entry(chain.to_owned()).or_default().push(rule.clone());
        self.add(rule, one);
        if is_end {
            self.end(chain, one.line);
        }
    }

    /// Ends a row of rules that drop if this target of `iptables` may let a packet pass.
    fn passes(&mut self, chain: &str, target: Option<&str>) {
        if target.is_some_and(|target| !drops(target) && !LOGS.contains(&target)) {
            self.rows.remove(chain);
        }
    }

    /// Ends what a chain allows with a rule for all packets.
    fn end(&mut self, chain: &str, line: usize) {
        self.chains.entry(chain.to_owned()).or_default().drops_rest = Some(line);
        let row = self.rows.remove(chain).unwrap_or_default();
        self.are_default(row);
    }

    /// What these rules drop would be dropped without them, too.
    fn are_default(&mut self, rules: Vec<String>) {
        for rule in rules {
            self.dropping.entry(rule).and_modify(|one| one.is_default = true);
        }
    }

    /// Adds a rule; rules with the same text are counted together.
    fn add(&mut self, rule: String, more: Dropping) {
        let one = self.dropping.entry(rule).or_insert(Dropping { packets: 0, ..more });
        one.packets = one.packets.saturating_add(more.packets);
    }

    /// The number of all rules.
    pub fn count(&self) -> u64 {
        self.chains.values().fold(0, |sum: u64, chain| sum.saturating_add(chain.rules))
    }
}

/// Whether a rule of `nft` drops; what stands in quotes is a comment or a prefix of the log.
fn is_dropping(words: &[&str]) -> bool {
    let mut is_quoted = false;
    words.iter().any(|word| {
        let was_quoted = is_quoted;
        is_quoted ^= word.matches('"').count() % 2 == 1;
        !was_quoted && VERDICTS.contains(&word.trim_end_matches(','))
    })
}

/// A count, which `iptables` without `-x` rounds from 100000 on: 173K, 10M.
fn rounded(word: &str) -> Option<u64> {
    let last = word.chars().next_back()?;
    let Some(power) = "KMGT".chars().position(|letter| letter == last) else {
        return word.parse().ok();
    };
    let times = 1000_u64.checked_pow(u32::try_from(power + 1).ok()?)?;
    word.strip_suffix(last)?.parse::<u64>().ok()?.checked_mul(times)
}

/// Whether nothing but an interface, a log or a comment stands before the verdict of a rule, as
/// `nft` and `iptables-save` print it.
fn takes_all(rule: &[&str]) -> bool {
    let mut words = rule.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "-j" => return true,
            verdict if VERDICTS.contains(&verdict) => return true,
            name if INTERFACES.contains(&name) || LOGGED.contains(&name) => drop(words.next()),
            "log" => {}
            "prefix" => skip_text(&mut words),
            "-m" if words.next() == Some("comment") => skip_text(&mut words),
            _ => return false,
        }
    }
    false
}

/// Skips what stands in quotes, or the only word.
fn skip_text<'a>(words: &mut impl Iterator<Item = &'a str>) {
    let mut text = words.skip_while(|word| *word == "--comment");
    let first = text.next().unwrap_or_default();
    if first.matches('"').count() == 1 {
        text.find(|word| word.ends_with('"'));
    }
}

/// Whether a rule of `nft` or `iptables-save` is for the packets of an interface.
fn has_interface(rule: &[&str]) -> bool {
    rule.iter().any(|word| INTERFACES.contains(word))
}

/// Whether a rule of `iptables -vnL` takes all packets, perhaps of an interface: only a comment,
/// or what it replies, follows the addresses.
fn shows_all(rule: &[&str]) -> bool {
    let [_, protocol, _, _, _, from, to, more @ ..] = rule else { return false };
    let is_any = |address: &&str| ["0.0.0.0/0", "::/0"].contains(address);
    let is_plain = more.first().is_none_or(|word| ["/*", "reject-with"].contains(word));
    ["all", "0"].contains(protocol) && is_any(from) && is_any(to) && is_plain
}

/// Whether a word is in the column `opt`: fragments, `--` for all packets.
fn is_option(word: &&str) -> bool {
    ["--", "-f", "!f"].contains(word)
}

/// Whether a line is the head of a chain.
fn is_chain(row: &str, name: &str) -> bool {
    row.strip_prefix("Chain ").and_then(|rest| rest.split(' ').next()) == Some(name)
}

fn drops(target: &str) -> bool {
    ["DROP", "REJECT"].contains(&target)
}

#[cfg(test)]
mod tests;
