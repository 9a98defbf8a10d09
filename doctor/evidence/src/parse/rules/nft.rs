//! Rules as `nft` prints them.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Does, Rule, Takes, are_of_many, are_of_new, are_of_old, of_target, words};
use super::{Rules, policy_of};
use crate::{Gap, Text};

/// What a line is part of.
#[derive(Debug, Default, PartialEq, Eq)]
enum Block {
    #[default]
    Other,
    Chain(String),
    Counter(String),
    Map(String),
}

/// Objects of a table that rules name, which are printed before these.
#[derive(Debug, Default)]
struct Objects {
    /// Packets of each counter.
    counters: BTreeMap<String, u64>,
    /// Maps with entries that drop.
    dropping: BTreeSet<String>,
    /// Chains that maps send packets to.
    chains: BTreeMap<String, Vec<String>>,
}

impl Rules {
    /// Parses the output of `nft`: tables contain chains, which contain rules, and objects that
    /// rules name; sets are skipped.
    pub(super) fn listed(&mut self, text: &Text) -> Result<(), Gap> {
        let (mut table, mut block, mut depth) = (String::new(), Block::Other, 0_usize);
        let mut objects = Objects::default();
        for (line, row) in text.lines() {
            let words = words(without_handle(row));
            match words.as_slice() {
                [] => {}
                ["table", family, name, "{"] if depth == 0 => table = format!("{family} {name}"),
                [kind, name, "{"] if depth == 1 => {
                    let name = format!("{table} {name}");
                    if *kind == "chain" {
                        self.chains.entry(name.clone()).or_default();
                    }
                    block = Block::of(kind, name);
                }
                ["}"] if depth <= 2 => block = Block::Other,
                words => match &block {
                    Block::Chain(chain) if depth == 2 => {
                        self.line_of_chain((&table, chain), words, line, &objects);
                    }
                    Block::Chain(_) | Block::Other => {}
                    Block::Counter(name) => objects.counter(name, words),
                    Block::Map(name) => objects.entries((&table, name), words),
                },
            }
            let count = |brace: char| {
                let plain = words.iter().filter(|word| !word.contains('"'));
                plain.map(|word| word.matches(brace).count()).sum::<usize>()
            };
            depth = (depth + count('{'))
                .checked_sub(count('}'))
                .ok_or_else(|| text.unreadable(Some(line), "a brace too many"))?;
        }
        if depth > 0 {
            return Err(text.unreadable(None, "expected the end of a table"));
        }
        Ok(())
    }

    fn line_of_chain(
        &mut self,
        (table, chain): (&str, &str),
        words: &[&str],
        line: usize,
        objects: &Objects,
    ) {
        match words {
            ["type", _, "hook", hook, ..] => {
                let own = self.chains.entry(chain.to_owned()).or_default();
                own.hook = Some((*hook).to_owned());
                own.has_drop_policy = words.windows(2).any(|two| two == ["policy", "drop;"]);
                if own.has_drop_policy {
                    own.drops_rest = Some(line);
                    self.uncounted.insert(policy_of(chain), line);
                }
            }
            ["type" | "comment", ..] => {}
            words => {
                let (packets, plain) = objects.counted(table, words);
                let (takes, does) = rule(table, &plain, objects);
                // A counter in front of a map counts all its packets, not only those that it drops.
                let (packets, text) = match &does {
                    Does::Map { .. } => (None, words.join(" ")),
                    _ => (packets, plain.join(" ")),
                };
                self.push(chain, Rule { text, line, packets, takes, does });
            }
        }
    }
}

impl Block {
    fn of(kind: &str, name: String) -> Block {
        match kind {
            "chain" => Block::Chain(name),
            "counter" => Block::Counter(name),
            "map" => Block::Map(name),
            _ => Block::Other,
        }
    }
}

impl Objects {
    fn counter(&mut self, name: &str, words: &[&str]) {
        let packets = match words {
            ["packets", packets, ..] => packets.parse().ok(),
            _ => None,
        };
        self.counters.extend(packets.map(|packets| (name.to_owned(), packets)));
    }

    fn entries(&mut self, (table, name): (&str, &str), words: &[&str]) {
        let (has_drops, chains) = entries(table, words);
        if has_drops {
            self.dropping.insert(name.to_owned());
        }
        self.chains.entry(name.to_owned()).or_default().extend(chains);
    }

    /// What a rule has counted, and its words without the counter.
    fn counted<'a>(&self, table: &str, words: &[&'a str]) -> (Option<u64>, Vec<&'a str>) {
        let is_it = |two: &[&str]| two[0] == "counter" && ["name", "packets"].contains(&two[1]);
        let Some(at) = words.windows(2).position(is_it) else { return (None, words.to_vec()) };
        let (packets, len) = match &words[at + 1..] {
            ["packets", packets, ..] => (packets.parse().ok(), 5),
            [_, name, ..] => {
                let name = format!("{table} {}", name.trim_matches('"'));
                (self.counters.get(&name).copied(), 3)
            }
            _ => (None, 2),
        };
        let rest = words.get(at + len..).unwrap_or_default();
        (packets, [&words[..at], rest].concat())
    }
}

/// A line without the number by which `nft` knows what it shows.
fn without_handle(row: &str) -> &str {
    let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let found = row.rsplit_once(" # handle ").filter(|(_, number)| is_number(number));
    found.map_or(row, |(row, _)| row)
}

/// What the words of a rule, without its counter, say.
fn rule(table: &str, words: &[&str], objects: &Objects) -> (Takes, Does) {
    let (mut takes, mut rest) = (Takes::All, words);
    loop {
        let (of_words, more) = match rest {
            [] => return (takes, Does::Nothing),
            ["accept", ..] => return (takes, Does::Accept),
            ["drop" | "reject", ..] => return (takes, Does::Drop),
            ["return", ..] => return (takes, Does::Return),
            ["queue", ..] => return (takes, Does::Queue),
            ["jump", name, ..] => return (takes, Does::Jump(format!("{table} {name}"))),
            ["goto", name, ..] => return (takes, Does::Goto(format!("{table} {name}"))),
            ["vmap", map, ..] if map.starts_with('@') => {
                let name = format!("{table} {}", &map[1..]);
                let chains = objects.chains.get(&name).cloned().unwrap_or_default();
                let has_drops = objects.dropping.contains(&name);
                return (takes, Does::Map { has_drops, chains });
            }
            ["vmap", map @ ..] => {
                let (has_drops, chains) = entries(table, map);
                return (takes, Does::Map { has_drops, chains });
            }
            ["xt", "target", name, more @ ..] => match of_target(name.trim_matches('"')) {
                Some(does) => return (takes, does),
                None => (Takes::All, more),
            },
            _ => condition(rest),
        };
        (takes, rest) = (takes.max(of_words), more);
    }
}

/// What the first words of a rule leave of its packets, and the words behind these.
fn condition<'a, 'b>(words: &'b [&'a str]) -> (Takes, &'b [&'a str]) {
    match words {
        // What follows belongs to a map, which decides.
        [_, "vmap", ..] | [_, _, "vmap", ..] | [_, _, _, "vmap", ..] => (Takes::Some, &words[1..]),
        ["iif" | "iifname" | "oif" | "oifname", value @ ..] => {
            (Takes::AllOfKind, behind_value(without_not(value)))
        }
        ["meta", "nfproto", value @ ..] => (Takes::AllOfKind, behind_value(without_not(value))),
        ["ct", "state", "!=", states @ ..] => of_kind(states, are_of_old),
        ["ct", "state", states @ ..] => of_kind(states, are_of_new),
        ["fib", "daddr", "type", kinds @ ..] | ["meta", "pkttype", kinds @ ..] => {
            of_kind(kinds, are_of_many)
        }
        ["add" | "update", set, value @ ..] if set.starts_with('@') => {
            let more = behind_value(value);
            // Such as `limit rate over 9/second`, for each address.
            let limits = ["count", "limit", "quota"];
            let value = &value[..value.len() - more.len()];
            let is_limit = value.iter().any(|word| limits.contains(word));
            (if is_limit { Takes::Some } else { Takes::All }, more)
        }
        ["log", more @ ..] => (Takes::All, behind_log(more)),
        ["meta" | "ct", _, "set", _, more @ ..] => (Takes::All, more),
        ["xt", "match", "\"comment\"", more @ ..] => (Takes::All, more),
        ["comment", _, more @ ..] => (Takes::All, more),
        [_, more @ ..] => (Takes::Some, more),
        [] => (Takes::All, words),
    }
}

/// What a condition on words that say a kind of packets leaves, and the words behind it.
fn of_kind<'a, 'b>(words: &'b [&'a str], is_it: fn(&str) -> bool) -> (Takes, &'b [&'a str]) {
    let more = behind_value(words);
    let kinds = words[..words.len() - more.len()].concat();
    let is_all = is_it(kinds.trim_matches(['{', '}']));
    (if is_all { Takes::AllOfKind } else { Takes::Some }, more)
}

fn without_not<'a, 'b>(words: &'b [&'a str]) -> &'b [&'a str] {
    words.strip_prefix(&["!="]).unwrap_or(words)
}

/// The words behind a value, which is one word or has braces.
fn behind_value<'a, 'b>(words: &'b [&'a str]) -> &'b [&'a str] {
    let len = match words.first() {
        Some(&"{") => words.iter().position(|word| *word == "}").map_or(words.len(), |at| at + 1),
        _ => words.len().min(1),
    };
    &words[len..]
}

/// The words behind the settings of a log.
fn behind_log<'a, 'b>(words: &'b [&'a str]) -> &'b [&'a str] {
    match words {
        ["flags", "ip" | "tcp", _, more @ ..]
        | ["flags" | "group" | "level" | "prefix", _, more @ ..]
        | ["queue-threshold" | "snaplen", _, more @ ..] => behind_log(more),
        _ => words,
    }
}

/// Whether entries of a map drop, and the chains that they send packets to.
fn entries(table: &str, words: &[&str]) -> (bool, Vec<String>) {
    let bare = |word: &str| word.trim_end_matches(',').to_owned();
    let has_drops = words.iter().any(|word| ["drop", "reject"].contains(&bare(word).as_str()));
    let jumps = words.windows(2).filter(|two| ["goto", "jump"].contains(&two[0]));
    (has_drops, jumps.map(|two| format!("{table} {}", bare(two[1]))).collect())
}
