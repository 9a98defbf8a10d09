//! Rules as the programs of `iptables` print them.

use super::Rules;
use super::rule::{Does, Rule, Takes, are_of_many, are_of_new, are_of_old, of_target, words};
use crate::{Gap, Text};

impl Rules {
    /// Parses the output of `iptables-save -c`.
    pub(super) fn saved(&mut self, text: &Text) -> Result<(), Gap> {
        let mut table = "";
        let mut is_open = false;
        for (line, row) in text.lines() {
            let counted = |word: &str| -> Option<u64> {
                word.strip_prefix('[')?.split_once(':')?.0.parse().ok()
            };
            match words(row).as_slice() {
                ["COMMIT"] => is_open = false,
                [name] if name.starts_with('*') => (table, is_open) = (&name[1..], true),
                [name, policy, count] if name.starts_with(':') => {
                    let chain = format!("{table} {}", &name[1..]);
                    let has_drop_policy = *policy == "DROP";
                    if has_drop_policy {
                        self.add_policy(&chain, counted(count).unwrap_or(0), line);
                    }
                    // The kernel calls those that have a policy.
                    let hook = (*policy != "-").then(|| name[1..].to_lowercase());
                    let chain = self.chains.entry(chain).or_default();
                    (chain.hook, chain.has_drop_policy) = (hook, has_drop_policy);
                    chain.drops_rest = has_drop_policy.then_some(line);
                }
                [count, "-A", name, rest @ ..] => {
                    let (takes, does) = saved_rule(table, rest);
                    let (text, packets) = (rest.join(" "), counted(count));
                    self.push(
                        &format!("{table} {name}"),
                        Rule { text, line, packets, takes, does },
                    );
                }
                _ => {}
            }
        }
        if is_open { Err(text.unreadable(None, "expected COMMIT")) } else { Ok(()) }
    }

    /// Parses the output of `iptables -vnL`, which has only the table `filter`.
    pub(super) fn shown(&mut self, text: &Text) -> Result<(), Gap> {
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
                            self.add_policy(&full, number(packets)?, line);
                        }
                    }
                    chain = Some(full);
                }
                [packets, _, rest @ ..] => {
                    let chain = chain.as_ref().ok_or_else(|| {
                        text.unreadable(Some(line), "expected the name of a chain above it")
                    })?;
                    let packets = Some(number(packets)?);
                    let (takes, does) = shown_rule(rest);
                    self.push(chain, Rule { text: rest.join(" "), line, packets, takes, does });
                }
                _ => return Err(text.unreadable(Some(line), "expected a chain or a rule")),
            }
        }
        Ok(())
    }
}

/// What stands behind the name of the chain in a rule of `iptables-save`.
fn saved_rule(table: &str, rule: &[&str]) -> (Takes, Does) {
    let (mut takes, mut rest) = (Takes::All, rule);
    loop {
        let (of_words, more) = match rest {
            [] => return (takes, Does::Nothing),
            [way @ ("-j" | "-g"), name, ..] => {
                let to = format!("{table} {name}");
                let sends = || if *way == "-g" { Does::Goto(to) } else { Does::Jump(to) };
                return (takes, of_target(name).unwrap_or_else(sends));
            }
            // The options of a module say what it takes.
            ["-m" | "--comment", _, more @ ..] => (Takes::All, more),
            ["-i" | "-o", _, more @ ..] | ["!", "-i" | "-o", _, more @ ..] => {
                (Takes::AllOfKind, more)
            }
            ["--ctstate" | "--state", states, more @ ..] if are_of_new(states) => {
                (Takes::AllOfKind, more)
            }
            ["!", "--ctstate" | "--state", states, more @ ..] if are_of_old(states) => {
                (Takes::AllOfKind, more)
            }
            ["--dst-type" | "--pkt-type", kinds, more @ ..] if are_of_many(kinds) => {
                (Takes::AllOfKind, more)
            }
            [_, more @ ..] => (Takes::Some, more),
        };
        (takes, rest) = (takes.max(of_words), more);
    }
}

/// What stands behind the counters in a rule of `iptables -vnL`.
fn shown_rule(rule: &[&str]) -> (Takes, Does) {
    // A rule without a target has one column less.
    let is_option = |word: &&str| ["--", "-f", "!f"].contains(word);
    let Some(name) = rule.first().filter(|_| rule.get(2).is_some_and(is_option)) else {
        return (Takes::Some, Does::Nothing);
    };
    let [_, protocol, option, from_nic, to_nic, from, to, more @ ..] = rule else {
        return (Takes::Some, Does::Nothing);
    };
    let is_any = |address: &str| ["0.0.0.0/0", "::/0"].contains(&address);
    let is_plain = ["all", "0"].contains(protocol) && *option == "--" && is_any(from) && is_any(to);
    let mut takes = match [*from_nic, *to_nic] {
        _ if !is_plain => Takes::Some,
        ["*", "*"] => Takes::All,
        _ => Takes::AllOfKind,
    };
    let (mut is_goto, mut rest) = (false, more);
    while let [word, more @ ..] = rest {
        let (of_words, more) = match (*word, more) {
            ("/*", _) => {
                let end =
                    more.iter().position(|word| *word == "*/").map_or(more.len(), |at| at + 1);
                (Takes::All, &more[end..])
            }
            ("reject-with", [_, more @ ..]) => (Takes::All, more),
            ("ctstate" | "state", [states, more @ ..]) if are_of_new(states) => {
                (Takes::AllOfKind, more)
            }
            ("ADDRTYPE", ["match", "dst-type", kinds, more @ ..]) if are_of_many(kinds) => {
                (Takes::AllOfKind, more)
            }
            ("PKTTYPE", ["=", kinds, more @ ..]) if are_of_many(kinds) => (Takes::AllOfKind, more),
            ("[goto]", more) => {
                is_goto = true;
                (Takes::All, more)
            }
            (_, more) => (Takes::Some, more),
        };
        (takes, rest) = (takes.max(of_words), more);
    }
    let to = format!("filter {name}");
    let sends = || if is_goto { Does::Goto(to) } else { Does::Jump(to) };
    (takes, of_target(name).unwrap_or_else(sends))
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
