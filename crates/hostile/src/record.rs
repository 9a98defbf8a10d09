//! The measurements of a scenario, and its verdict.

use std::collections::BTreeMap;
use std::time::Duration;

use ringway_stats::average::{Spread, float};
use serde::Serialize;

use crate::acts::traffic::OVERHEARD;
use crate::measure::backend::Seen;
use crate::measure::ping::Replies;
use crate::measure::tcp::Arrived;
use crate::scenario::{Own, Scenario};
use crate::stage::Account;

/// Memory that the backend may use for frames, according to the host's description.
pub(crate) const FRAME_MEMORY_MIB: u64 = 128;
/// Memory that it may use besides, whatever guests do: rings, tables, captures.
const OTHER_MEMORY_MIB: u64 = 64;
/// The part of its fair share that an honest guest should keep. Not a bound: a busy machine takes
/// more.
pub(crate) const GOAL: f64 = 0.8;

/// The measurements of honest guests in a part of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    pub(crate) tcp: Arrived,
    /// Pings from one honest guest to the other.
    pub(crate) to_guest: Replies,
    /// Pings from one honest guest to the host.
    pub(crate) to_host: Replies,
}

/// One run of a scenario.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    pub(crate) before: Window,
    pub(crate) during: Window,
    pub(crate) control: Option<Window>,
    pub(crate) after: Window,
    /// CPUs that the hostile guests used.
    pub(crate) cpus: f64,
    pub(crate) seen: Seen,
    pub(crate) accounts: Vec<Account>,
    /// Errors of the hostile guests that should not have occurred.
    pub(crate) failures: Vec<String>,
    pub(crate) memory_before_kib: u64,
    pub(crate) memory_after_kib: u64,
    /// Whether the backend replies and TCP makes progress afterwards.
    pub(crate) has_recovered: bool,
}

/// The result of a scenario's runs, for people and programs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    /// Its name.
    pub(crate) scenario: &'static str,
    /// What the guest does.
    pub(crate) what: &'static str,
    /// The source of the attack.
    pub(crate) source: &'static str,
    /// The bounds.
    pub(crate) promise: String,
    /// TCP between honest guests, in bits per second: the median of the runs.
    pub(crate) tcp_before: f64,
    /// During the attack.
    pub(crate) tcp_during: f64,
    /// Beside a process that burns as much CPU.
    pub(crate) tcp_control: Option<f64>,
    /// After the attack.
    pub(crate) tcp_after: f64,
    /// The throughput of honest guests during the attack, as a fraction of that beside a process
    /// that only burns CPU if that was measured, otherwise of that before.
    pub(crate) share: f64,
    /// The fraction that they are entitled to: less than 1 beside a guest that keeps the backend
    /// busy with legal traffic, and so is entitled to its own share.
    pub(crate) fair_share: f64,
    /// Pings between honest guests that were lost during the attack, in percent: the worst run.
    pub(crate) loss_percent: f64,
    /// Pings from an honest guest to the host that were lost, in percent.
    pub(crate) host_loss_percent: f64,
    /// The longest time without a byte of TCP, in milliseconds.
    pub(crate) longest_pause_ms: f64,
    /// The slowest reply to a ping, in milliseconds.
    pub(crate) slowest_ping_ms: f64,
    /// The slowest reply of the backend to the command line, in milliseconds.
    #[serde(rename = "slowest_answer_ms")] // as scripts know it
    pub(crate) slowest_reply_ms: f64,
    /// Memory of the backend before, at its peak, and after, in MiB.
    pub(crate) memory_mib: [f64; 3],
    /// How often the backend was restarted.
    pub(crate) restarts: usize,
    /// CPUs that the hostile guests used.
    pub(crate) cpus: f64,
    /// What the hostile guests counted.
    pub(crate) counts: BTreeMap<String, u64>,
    /// Reasons for which the backend closed a hostile guest's vif, each once.
    pub(crate) closed: Vec<String>,
    /// Further notes.
    pub(crate) notes: Vec<String>,
    /// Why it was not run, if it was not.
    pub(crate) skipped: Option<String>,
    /// Broken bounds.
    pub(crate) broken: Vec<String>,
    /// The bound that is known to be broken, if any.
    pub(crate) known: Option<&'static str>,
}

impl Record {
    /// Judges the runs of a scenario.
    pub(crate) fn new(scenario: &Scenario, rounds: &[Round]) -> Record {
        let median = |of: &dyn Fn(&Round) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().filter_map(of).collect();
            Spread::of(&values).map(|spread| spread.median)
        };
        let worst = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
        let bits = |window: &Window| window.tcp.bits_per_second;
        let before = median(&|round| Some(bits(&round.before))).unwrap_or(0.0);
        let during = median(&|round| Some(bits(&round.during))).unwrap_or(0.0);
        let control = median(&|round| round.control.as_ref().map(bits));
        let mib = |kib: u64| float(kib) / 1024.0;
        let accounts: Vec<&Account> = rounds.iter().flat_map(|round| &round.accounts).collect();
        let mut counts = BTreeMap::new();
        let (mut closed, mut notes) = (Vec::new(), Vec::new());
        for account in &accounts {
            for (what, count) in &account.counts {
                *counts.entry(what.clone()).or_default() += count;
            }
            closed.extend(account.closed.iter().cloned());
            notes.extend(account.notes.iter().cloned());
        }
        closed.sort();
        closed.dedup();
        notes.sort();
        notes.dedup();
        let restarts = rounds.iter().map(|round| round.seen.pids.len().saturating_sub(1)).sum();
        Record {
            scenario: scenario.name,
            what: scenario.what,
            source: scenario.source,
            promise: scenario.promise(),
            tcp_before: before,
            tcp_during: during,
            tcp_control: control,
            tcp_after: median(&|round| Some(bits(&round.after))).unwrap_or(0.0),
            share: during / control.unwrap_or(before).max(1.0),
            fair_share: f64::from(scenario.fair_percent) / 100.0,
            loss_percent: worst(&|round| round.during.to_guest.loss_percent()),
            host_loss_percent: worst(&|round| round.during.to_host.loss_percent()),
            longest_pause_ms: worst(&|round| milliseconds(round.during.tcp.longest_pause)),
            slowest_ping_ms: worst(&|round| {
                round.during.to_guest.and(round.during.to_host).slowest_ms
            }),
            slowest_reply_ms: worst(&|round| round.seen.slowest_reply_ms),
            memory_mib: [
                mib(rounds.first().map_or(0, |round| round.memory_before_kib)),
                mib(rounds.iter().map(|round| round.seen.peak_kib).max().unwrap_or(0)),
                mib(rounds.last().map_or(0, |round| round.memory_after_kib)),
            ],
            restarts,
            cpus: median(&|round| Some(round.cpus)).unwrap_or(0.0),
            counts,
            closed,
            notes,
            skipped: accounts.iter().find_map(|account| account.skipped.clone()),
            broken: broken(scenario, rounds),
            known: scenario.known,
        }
    }

    /// Whether a bound is broken that is not known to be.
    pub(crate) fn is_failure(&self) -> bool {
        !self.broken.is_empty() && self.known.is_none()
    }

    /// One word.
    pub(crate) fn verdict(&self) -> &'static str {
        match (&self.skipped, self.broken.is_empty(), self.known) {
            (Some(_), true, _) => "skipped",
            (_, true, None) => "held",
            (_, true, Some(_)) => "unexpectedly held",
            (_, false, Some(_)) => "known",
            (_, false, None) => "BROKEN",
        }
    }
}

/// The bounds, which the noise of a busy machine does not reach.
fn broken(scenario: &Scenario, rounds: &[Round]) -> Vec<String> {
    let mut broken = Vec::new();
    for round in rounds {
        let Round { seen, accounts, .. } = round;
        broken.extend(round.failures.iter().cloned());
        if seen.pids.len() > 1 {
            broken.push(format!("the backend was restarted {} times", seen.pids.len() - 1));
        }
        if !round.has_recovered {
            broken.push("honest guests had no connection for 60 s afterwards".to_owned());
        }
        if !seen.disconnected.is_empty() {
            broken.push(format!("{} was closed as well", seen.disconnected.join(", ")));
        }
        let limit = round.memory_before_kib + ((FRAME_MEMORY_MIB + OTHER_MEMORY_MIB) << 10);
        if seen.peak_kib > limit {
            let (peak, limit) = (seen.peak_kib >> 10, limit >> 10);
            broken.push(format!("the backend took {peak} MiB, expected at most {limit}"));
        }
        for (whose, replies) in
            [("other guest", round.during.to_guest), ("host", round.during.to_host)]
        {
            if replies.loss_percent() > f64::from(scenario.loss_max) {
                let (lost, sent) = (replies.sent - replies.received, replies.sent);
                broken.push(format!("{lost} of {sent} pings to the {whose} were lost"));
            }
        }
        for account in accounts.iter().filter(|account| account.skipped.is_none()) {
            match scenario.own {
                Own::Closed if account.closed.is_empty() => {
                    broken.push("the hostile vif was not closed".to_owned());
                }
                Own::Served if !account.is_served => {
                    broken.push("the hostile vif was closed without a fault".to_owned());
                }
                Own::Closed | Own::Served | Own::Any => {}
            }
            let overheard = account.counts.get(OVERHEARD).copied().unwrap_or(0);
            if scenario.overheard_max.is_some_and(|limit| overheard > limit) {
                broken.push(format!("the hostile guest received {overheard} frames for others"));
            }
        }
    }
    broken.sort();
    broken.dedup();
    broken
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::find;

    fn good() -> Round {
        let replies = Replies { sent: 50, received: 50, slowest_ms: 1.0 };
        let window = Window {
            tcp: Arrived { bits_per_second: 1e9, longest_pause: Duration::from_millis(3) },
            to_guest: replies,
            to_host: replies,
        };
        let account =
            Account { closed: vec!["why".to_owned()], is_served: true, ..Account::default() };
        Round {
            before: window,
            during: window,
            after: window,
            seen: Seen { pids: vec![7], peak_kib: 30 << 10, ..Seen::default() },
            accounts: vec![account],
            memory_before_kib: 20 << 10,
            has_recovered: true,
            ..Round::default()
        }
    }

    /// Whether this defect alone is found.
    fn finds(scenario: &str, what: &str, spoil: impl FnOnce(&mut Round)) -> bool {
        let scenario = find(scenario).expect("there is such a scenario");
        assert!(!Record::new(scenario, &[good()]).is_failure());
        let mut round = good();
        spoil(&mut round);
        let record = Record::new(scenario, &[good(), round]);
        record.is_failure() && record.broken.iter().any(|line| line.contains(what))
    }

    #[test]
    fn each_broken_bound_is_detected() {
        assert!(finds("slots-tiny", "restarted", |round| round.seen.pids.push(8)));
        assert!(finds("slots-tiny", "MiB", |round| round.seen.peak_kib = 300 << 10));
        assert!(finds("slots-tiny", "60 s", |round| round.has_recovered = false));
        assert!(finds("slots-tiny", "the host", |round| round.during.to_host.received = 3));
        assert!(finds("slots-tiny", "other guest", |round| round.during.to_guest.received = 3));
        assert!(finds("slots-tiny", "as well", |round| {
            round.seen.disconnected.push("vif1.0".to_owned());
        }));
        assert!(finds("slots-tiny", "without a fault", |round| {
            round.accounts[0].is_served = false;
        }));
        assert!(finds("chain-cut-off", "not closed", |round| round.accounts[0].closed.clear()));
        assert!(finds("slots-tiny", "panic", |round| round.failures.push("panic".to_owned())));
    }

    #[test]
    fn where_all_pings_may_be_lost_their_loss_breaks_no_bound() {
        let scenario = find("slots-tiny").expect("it");
        let mut round = good();
        round.during.to_host.received = 0;
        assert!(Record::new(scenario, &[round.clone()]).is_failure());
        assert!(!Record::new(&scenario.loses(100), &[round]).is_failure());
    }

    #[test]
    fn a_known_broken_bound_is_reported_but_is_not_a_failure() {
        let scenario = Scenario { known: Some("such a thing"), ..*find("slots-tiny").expect("it") };
        let mut round = good();
        round.has_recovered = false;
        let record = Record::new(&scenario, &[round]);
        assert_eq!((record.is_failure(), record.verdict()), (false, "known"));
        assert_eq!(Record::new(&scenario, &[good()]).verdict(), "unexpectedly held");
    }

    #[test]
    fn a_share_is_of_the_control_where_there_is_one() {
        let scenario = find("greedy-queues").expect("it");
        let mut round = good();
        round.during.tcp.bits_per_second = 4e8;
        assert!((Record::new(scenario, &[round.clone()]).share - 0.4).abs() < 1e-9);
        let mut control = round.before;
        control.tcp.bits_per_second = 5e8;
        round.control = Some(control);
        assert!((Record::new(scenario, &[round]).share - 0.8).abs() < 1e-9);
    }
}
