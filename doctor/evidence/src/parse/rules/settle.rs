//! What rules of several chains say together: what drops, and what of that only takes what is left
//! over.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Does, Rule, Takes, is_of_invalid};
use super::{Dropping, Rules, policy_of};

type Lists = BTreeMap<String, Vec<Rule>>;

/// Where a rule is: its chain, and its place there.
type Place<'a> = (&'a str, usize);

/// What is known of the chains before their rules are judged. Every step is linear in the rules,
/// whatever these say.
struct Chains<'a> {
    lists: &'a Lists,
    /// Those by which a packet may pass.
    accepting: BTreeSet<&'a str>,
    /// Those that drop whatever rules of other chains send to them.
    sinks: BTreeSet<&'a str>,
    /// Those of them whose packets the sending rules count.
    counted: BTreeSet<&'a str>,
}

impl Rules {
    /// Takes over the rules that were parsed.
    pub(super) fn settle(&mut self) {
        let lists = std::mem::take(&mut self.lists);
        self.count_jumps(&lists);
        let hooked = |name: &str| self.chains.get(name).is_some_and(|it| it.hook.is_some());
        let chains = Chains::of(&lists, hooked);
        let closed = |name: &str| self.chains.get(name).is_some_and(|it| it.has_drop_policy);
        let defaults = chains.defaults(hooked, closed);
        for (name, list) in &lists {
            for (index, rule) in list.iter().enumerate() {
                let is_default = defaults.contains(&(name.as_str(), index));
                self.settle_rule(name, rule, is_default, &chains);
            }
            self.count_policy(name, list);
        }
    }

    fn count_jumps(&mut self, lists: &Lists) {
        for rule in lists.values().flatten() {
            for to in rule.does.chains() {
                let Some(chain) = self.chains.get_mut(to) else { continue };
                chain.jumps += 1;
                match rule.packets {
                    Some(packets) => chain.jumped = chain.jumped.saturating_add(packets),
                    None => chain.uncounted += 1,
                }
            }
        }
    }

    fn settle_rule(&mut self, chain: &str, rule: &Rule, is_default: bool, chains: &Chains<'_>) {
        let Rule { line, packets, takes, does, .. } = rule;
        let text = format!("{chain}: {}", rule.text);
        if *takes == Takes::All && chains.drops(does) {
            self.chains.entry(chain.to_owned()).or_default().drops_rest = Some(*line);
            // Nothing reaches the policy behind it.
            self.uncounted.remove(&policy_of(chain));
        }
        let is_counted_before = chains.counted.contains(chain);
        match does {
            Does::Queue => drop(self.queued.insert(text, *line)),
            Does::Map { has_drops: true, .. } => drop(self.uncounted.insert(text, *line)),
            Does::Drop if is_counted_before => {}
            Does::Jump(to) | Does::Goto(to) if !chains.counted.contains(to.as_str()) => {}
            Does::Drop | Does::Jump(_) | Does::Goto(_) => match *packets {
                Some(packets) => {
                    let (line, is_of_invalid) = (*line, is_of_invalid(&rule.text));
                    self.add(text, Dropping { packets, line, is_default, is_of_invalid });
                }
                None => drop(self.uncounted.insert(text, *line)),
            },
            _ => {}
        }
    }

    /// A counter at the end of a chain counts what a policy of nftables, which has no counter,
    /// drops.
    fn count_policy(&mut self, chain: &str, list: &[Rule]) {
        let policy = policy_of(chain);
        let mut last = list.iter().rev().take_while(|rule| rule.does == Does::Nothing);
        let packets = last.find_map(|rule| rule.packets.filter(|_| rule.takes == Takes::All));
        if let Some((packets, line)) = packets.zip(self.uncounted.get(&policy).copied()) {
            self.uncounted.remove(&policy);
            self.add_policy(chain, packets, line);
        }
    }
}

impl<'a> Chains<'a> {
    fn of(lists: &'a Lists, is_hooked: impl Fn(&str) -> bool) -> Chains<'a> {
        let mut senders: BTreeMap<&str, Vec<(&str, &Rule)>> = BTreeMap::new();
        for (name, list) in lists {
            for rule in list {
                for to in rule.does.chains() {
                    senders.entry(to).or_default().push((name.as_str(), rule));
                }
            }
        }
        let lets_pass =
            |rule: &Rule| matches!(rule.does, Does::Accept | Does::Queue | Does::Map { .. });
        let direct = lists.iter().filter(|(_, list)| list.iter().any(lets_pass));
        let mut next: Vec<&str> = direct.map(|(name, _)| name.as_str()).collect();
        let mut accepting: BTreeSet<&str> = next.iter().copied().collect();
        while let Some(name) = next.pop() {
            for &(from, _) in senders.get(name).into_iter().flatten() {
                if accepting.insert(from) {
                    next.push(from);
                }
            }
        }
        let is_sink = |name: &str, list: &[Rule]| {
            let drops_all = |rule: &Rule| rule.does == Does::Drop && rule.takes == Takes::All;
            let returns = list.iter().any(|rule| rule.does == Does::Return);
            let is_sent = |(_, rule): &(&str, &Rule)| !matches!(rule.does, Does::Map { .. });
            !accepting.contains(name)
                && !is_hooked(name)
                && !returns
                && list.iter().any(drops_all)
                && senders.get(name).is_some_and(|rules| rules.iter().all(is_sent))
        };
        let sinks = lists.iter().filter(|(name, list)| is_sink(name, list));
        let sinks: BTreeSet<&str> = sinks.map(|(name, _)| name.as_str()).collect();
        let is_counted = |name: &&str| {
            senders.get(name).is_some_and(|all| all.iter().all(|(_, rule)| rule.packets.is_some()))
        };
        let counted = sinks.iter().copied().filter(is_counted).collect();
        Chains { lists, accepting, sinks, counted }
    }

    /// Whether a rule drops all that it takes.
    fn drops(&self, does: &Does) -> bool {
        match does {
            Does::Drop => true,
            Does::Jump(to) | Does::Goto(to) => self.sinks.contains(to.as_str()),
            _ => false,
        }
    }

    /// The rules that drop only what would be dropped without them, too, or what none before them
    /// allows.
    fn defaults(
        &self,
        is_hooked: impl Fn(&str) -> bool,
        is_closed: impl Fn(&str) -> bool,
    ) -> BTreeSet<Place<'a>> {
        let mut found = BTreeSet::new();
        let mut seen: BTreeSet<(&str, bool)> = BTreeSet::new();
        let (hooked, called): (Vec<&str>, Vec<&str>) =
            self.lists.keys().map(String::as_str).partition(|name| is_hooked(name));
        for name in hooked.into_iter().chain(called) {
            // Chains that are called from nowhere else.
            let mut next = vec![(name, is_closed(name))];
            next.retain(|_| ![false, true].iter().any(|it| seen.contains(&(name, *it))));
            while let Some(state) = next.pop() {
                if seen.insert(state) {
                    self.judge(state, &mut found, &mut next);
                }
            }
        }
        found
    }

    /// Judges the rules of a chain from the last one on. It is closed if what comes out of it is
    /// dropped.
    fn judge(
        &self,
        (name, is_closed): (&'a str, bool),
        found: &mut BTreeSet<Place<'a>>,
        next: &mut Vec<(&'a str, bool)>,
    ) {
        let Some(list) = self.lists.get(name) else { return };
        // Whether what a rule leaves over is dropped.
        let mut is_rest_dropped = is_closed;
        for (index, rule) in list.iter().enumerate().rev() {
            if self.drops(&rule.does) {
                // What a chain for drops alone does is judged by the rules that send to it.
                let is_last = rule.takes == Takes::All && !self.sinks.contains(name);
                is_rest_dropped |= is_last;
                let is_default = is_rest_dropped || rule.takes == Takes::AllOfKind;
                if is_default {
                    found.insert((name, index));
                }
                next.extend(rule.does.chains().map(|to| (to, is_default)));
                continue;
            }
            let rest_of_others = match rule.does {
                Does::Goto(_) => is_closed,
                _ => is_rest_dropped,
            };
            next.extend(rule.does.chains().map(|to| (to, rest_of_others)));
            is_rest_dropped &= match &rule.does {
                Does::Accept | Does::Queue | Does::Map { .. } => false,
                Does::Return => is_closed,
                Does::Jump(to) => !self.accepting.contains(to.as_str()),
                Does::Goto(to) => is_closed && !self.accepting.contains(to.as_str()),
                Does::Drop | Does::Nothing => true,
            };
        }
    }
}

impl Does {
    /// The chains that packets are sent to.
    fn chains(&self) -> impl Iterator<Item = &str> {
        let (one, several): (Option<&String>, &[String]) = match self {
            Does::Jump(to) | Does::Goto(to) => (Some(to), &[]),
            Does::Map { chains, .. } => (None, chains.as_slice()),
            _ => (None, &[]),
        };
        one.into_iter().chain(several).map(String::as_str)
    }
}
