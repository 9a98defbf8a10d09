//! D06: one queue, or one backend thread, does the work of all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    Basis, Connections, Interfaces, NicRole, QueueCounters, Span, Tried, float, sum,
};
use ringway_evidence::facts;
use ringway_evidence::parse::ethtool::{Statistics, queue_counter};
use ringway_evidence::parse::qdisc::Qdiscs;
use ringway_evidence::parse::ringway::{Queue, Vif, Vifs};
use ringway_evidence::parse::sockets::{Socket, Sockets};
use ringway_evidence::parse::threads::Threads;
use ringway_evidence::{Gap, Quote};
use ringway_model::contention::gain;
use ringway_model::placement::fullest_mean;

pub(crate) const CHECK: Check = Check {
    id: "D06",
    slug: "uneven-load",
    title: "queues or threads are loaded unevenly",
    group: Group::Queues,
    sources: &[
        "throughput-guide:spread-vifs",
        "throughput-guide:spread-cards",
        "multi-queue-study:placement",
        "multi-queue-study:more-queues",
        "multi-queue-series:conditions",
        "multi-queue-series:hash",
    ],
    explanation: include_str!("uneven_load.txt"),
    absent: "no queues with their own counters",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        counters: QueueCounters,
        qdiscs: Tried<Span<Qdiscs>>,
        threads: Tried<Span<Threads>>,
        connections: Tried<Connections>,
        sampled: Tried<Span<Sockets>>,
        vifs: Tried<Span<Vifs>>,
    }
}

/// The fullest queue over the mean, from which it matters.
const UNEVEN: f64 = 1.5;
/// How much worse than by chance it must be.
const OVER_CHANCE: f64 = 1.2;
/// Flows for each queue that the advice asks for.
const FLOWS_PER_QUEUE: usize = 4;
/// Bytes per second below which an uneven spread costs nothing.
pub const BYTES_PER_SECOND_MIN: f64 = 1_000_000.0;
/// Ticks of CPU time a second of a thread that is worth spreading; 100 are a whole CPU.
const TICKS_PER_SECOND_MIN: f64 = 50.0;

/// What each queue of one interface moved in one direction.
struct Loads {
    direction: &'static str,
    bytes: BTreeMap<usize, u64>,
    seconds: f64,
    quotes: Vec<Quote>,
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let mut judged = BTreeSet::new();
    for nic in facts.nics.names() {
        let role = facts.nics.role(&nic);
        if role == NicRole::Software {
            continue;
        }
        for loads in loads(facts, &nic)? {
            judged.insert(nic.clone());
            out.add(uneven(facts, &nic, role, &loads));
        }
    }
    if let Some(span) = out.tried(&facts.vifs, "vifs of ringway") {
        let mut own = Vec::new();
        // One on a bridge may have an interface of its name, with the same queues.
        for vif in span.after.all.iter().filter(|vif| !judged.contains(&vif.name)) {
            for loads in by_ringway(span, vif) {
                own.push(vif.name.clone());
                out.add(uneven(facts, &vif.name, NicRole::Backend, &loads));
            }
        }
        judged.extend(own);
    }
    let found = threads(facts)?;
    if !judged.is_empty() || found.is_some() {
        out.well("queues are loaded evenly or very little", None);
    }
    out.add(found);
    Ok(())
}

/// Both directions of an interface, as far as its queues are counted: by the driver, or by `mq`.
fn loads(facts: &Facts, nic: &str) -> Result<Vec<Loads>, Gap> {
    let mut found = match facts.counters.of_queues(nic) {
        Ok(span) => {
            let is_same = span.before.counters.keys().eq(span.after.counters.keys());
            if span.basis == Basis::Samples && !is_same {
                return Err(span.text.unreadable(None, "other counters than in the first sample"));
            }
            by_driver(&span)
        }
        // Many drivers have no statistics; then there may be others that count.
        Err(Gap::Missing { .. } | Gap::NotHere(_)) => Vec::new(),
        Err(gap) => return Err(gap),
    };
    if found.iter().all(|loads| loads.direction != "transmit") {
        match facts.qdiscs.get() {
            Ok(span) => found.extend(by_mq(span, nic)),
            Err(Gap::Missing { .. } | Gap::NotHere(_)) => {}
            Err(gap) => return Err(gap),
        }
    }
    found.retain(|loads| loads.bytes.len() > 1);
    Ok(found)
}

fn by_driver(span: &Span<Statistics>) -> Vec<Loads> {
    let mut found = Vec::new();
    for (is_tx, direction) in [(true, "transmit"), (false, "receive")] {
        let mut bytes = BTreeMap::new();
        let mut quotes = Vec::new();
        for (name, (count, line)) in &span.after.counters {
            let Some((counter, queue)) = queue_counter(name) else { continue };
            if counter.is_tx == is_tx && counter.is_bytes {
                let Some((before, _)) = span.past(span.before.counters.get(name)) else { continue };
                bytes.insert(queue, count.saturating_sub(before));
                quotes.push(span.text.quote(*line));
            }
        }
        found.push(Loads { direction, bytes, seconds: span.seconds, quotes });
    }
    found.retain(|loads| !loads.bytes.is_empty());
    found
}

fn by_mq(span: &Span<Qdiscs>, nic: &str) -> Option<Loads> {
    let before = span.before.queue_bytes(nic);
    let after = span.after.queue_bytes(nic);
    let since = |(queue, bytes): (&usize, &u64)| {
        Some((*queue, bytes.saturating_sub(span.past(before.get(queue))?)))
    };
    let bytes: BTreeMap<usize, u64> = after.iter().filter_map(since).collect();
    (!bytes.is_empty()).then(|| listed(span, "transmit", bytes, ""))
}

/// Both directions of a vif of ringway, by the guest's names, if it has several queues.
fn by_ringway(span: &Span<Vifs>, vif: &Vif) -> Vec<Loads> {
    let name = format!("{}: ", vif.name);
    let loads = |direction, count: fn(&Queue) -> u64| {
        let since = |queue: &Queue| {
            let before = span.before.queue(&vif.name, queue.index).map(count);
            Some((queue.index, count(queue).saturating_sub(span.past(before.as_ref())?)))
        };
        listed(span, direction, vif.queues.iter().filter_map(since).collect(), &name)
    };
    let mut both = vec![
        loads("guest transmits", |queue| queue.tx_bytes),
        loads("guest receives", |queue| queue.rx_bytes),
    ];
    both.retain(|loads| loads.bytes.len() > 1);
    both
}

/// Loads of queues that a tool prints with much else.
fn listed<T>(
    span: &Span<T>,
    direction: &'static str,
    bytes: BTreeMap<usize, u64>,
    of: &str,
) -> Loads {
    let list = |(queue, bytes): (&usize, &u64)| format!("queue {queue}: {bytes} bytes");
    let text = of.to_owned() + &bytes.iter().map(list).collect::<Vec<_>>().join(", ");
    let quote = Quote { file: span.text.origin().to_owned(), line: None, text };
    Loads { direction, bytes, seconds: span.seconds, quotes: vec![quote] }
}

fn uneven(facts: &Facts, nic: &str, role: NicRole, loads: &Loads) -> Option<Finding> {
    let queues = loads.bytes.len();
    let total = sum(loads.bytes.values());
    if float(total) / loads.seconds < BYTES_PER_SECOND_MIN {
        return None;
    }
    let (fullest, most) = loads.bytes.iter().max_by_key(|(_, bytes)| **bytes)?;
    let uneven = float(*most) * count(queues) / float(total);
    if uneven <= UNEVEN {
        return None;
    }
    // Only an endpoint of the connections knows their number.
    let is_end = role != NicRole::Backend && !facts.nics.is_forwarding(nic);
    let direction = loads.direction;
    let flows = if is_end { flows(facts, direction) } else { None };
    let chance = flows.map(|flows| flows.expected(queues));
    let mut summary = format!(
        "queue {fullest} of {nic} carries {uneven:.1} times the mean of {queues} ({direction})"
    );
    if let (Some(flows), Some(chance)) = (flows, chance) {
        summary += &format!("; {flows} give {chance:.1} by chance");
    }
    // Without the number of connections, chance and fault cannot be distinguished.
    let is_chance = chance.map_or(is_end, |chance| uneven <= chance * OVER_CHANCE);
    let severity = if is_chance { Severity::Note } else { Severity::Warning };
    let is_of_host =
        direction == "receive" && facts.nics.driver(nic).as_deref() == Some("virtio_net");
    let (cause, advice) = match is_of_host {
        true => (
            "The host chooses the receive queue of a virtio guest: by a hash of the flow, or, \
             with a TAP device of Linux, the one on which the guest last transmitted the flow. \
             Then the receive queues may be as uneven as the transmit queues.",
            "Use more flows than queues: with four flows a queue, chance alone keeps the fullest \
             below twice the mean. If there are many already, compare the transmit queues (`tc -s \
             qdisc show dev NIC`) and let programs transmit on several CPUs, or find out what the \
             flows have in common: one tunnel, fragments.",
        ),
        false => (
            "A flow stays on the queue that its hash chooses, so few flows fall unevenly. Frames \
             without ports (other protocols, some tunnels) all use the same queue.",
            "Use more flows than queues: with four flows a queue, chance alone keeps the fullest \
             below twice the mean. If there are many already, find out what they have in common: \
             one tunnel, one pair of addresses, fragments.",
        ),
    };
    let finding = Finding::new(severity, nic, summary)
        .cause(cause)
        .quote(loads.quotes.iter().cloned())
        .confidence(if flows.is_some() { Confidence::Medium } else { Confidence::Low })
        .advise(Advice::by_hand(advice, &[]));
    Some(with_more_flows(finding, uneven, queues))
}

/// Adds what four flows a queue gain, if the fullest queue carries more than these put on it.
fn with_more_flows(finding: Finding, uneven: f64, queues: usize) -> Finding {
    let even = fullest_mean(queues.saturating_mul(FLOWS_PER_QUEUE), queues);
    match uneven > even {
        true => finding.forecast(
            gain(even, uneven),
            "with four flows a queue, if the fullest queue is the limit",
        ),
        false => finding,
    }
}

/// The kernel's backend of before 3.12: fixed groups of vifs, a thread each.
fn threads(facts: &Facts) -> Result<Option<Finding>, Gap> {
    let span = match facts.threads.get() {
        Err(Gap::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let mut spent = Vec::new();
    for (id, thread) in &span.after.threads {
        if thread.name.starts_with("netback/") {
            let before = span.before.threads.get(id).map(|thread| thread.ticks);
            let Some(before) = span.past(before.as_ref()) else { continue };
            spent.push((thread, thread.ticks.saturating_sub(before)));
        }
    }
    let total = sum(spent.iter().map(|(_, ticks)| ticks));
    let Some((busiest, most)) = spent.iter().max_by_key(|(_, ticks)| *ticks) else {
        return Ok(None);
    };
    let uneven = if total == 0 { 0.0 } else { float(*most) * count(spent.len()) / float(total) };
    if uneven <= UNEVEN || float(*most) / span.seconds < TICKS_PER_SECOND_MIN {
        return Ok(None);
    }
    let summary =
        format!("{} does {uneven:.1} times the mean of {} threads", busiest.name, spent.len());
    let finding = Finding::new(Severity::Warning, busiest.name.clone(), summary)
        .cause("A vif is bound to a thread when it is created, whatever its load will be.")
        .quote(spent.iter().map(|(thread, ticks)| thread.quote(*ticks, span.seconds)))
        .advise(Advice::by_hand(
            "Recreate the vifs with the most traffic, one after the other, so that they get \
             different threads; or use a kernel of 3.12 or later, with a thread for each queue.",
            &[],
        ))
        .forecast(gain(1.0, uneven), "if that thread is the limit and the others get even loads");
    Ok(Some(finding))
}

/// TCP connections that are established and leave this host. Most of them wait for something.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Flows {
    all: usize,
    /// How many of equal size would have the same variance.
    equal: usize,
    /// The fraction that the largest has of all bytes.
    largest: f64,
}

impl Flows {
    /// Of the sizes of flows; if none has any bytes, all count.
    fn of(sizes: &[f64]) -> Option<Flows> {
        let all = sizes.len();
        let sum: f64 = sizes.iter().sum();
        if sum <= 0.0 {
            return (all > 0).then(|| Flows { all, equal: all, largest: 1.0 / count(all) });
        }
        let squares: f64 = sizes.iter().map(|size| size * size).sum();
        let most = sum * sum / squares;
        let equal = (1..all).find(|flows| count(*flows) + 0.5 > most).unwrap_or(all);
        let largest = sizes.iter().copied().fold(0.0, f64::max) / sum;
        Some(Flows { all, equal, largest })
    }

    /// What the fullest of `queues` carries over the mean by chance. It carries the largest flow,
    /// and its part of the others.
    fn expected(&self, queues: usize) -> f64 {
        let with_largest = 1.0 + self.largest * (count(queues) - 1.0);
        fullest_mean(self.equal, queues).max(with_largest)
    }
}

impl fmt::Display for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = if self.equal * 2 <= self.all { " of such unequal sizes" } else { "" };
        write!(f, "{} flows{sizes}", self.all)
    }
}

/// The flows by what they moved in one direction: since the first sample or, where that has no
/// connections, since they were opened.
fn flows(facts: &Facts, direction: &str) -> Option<Flows> {
    let bytes = |socket: &Socket| match direction {
        "receive" => socket.more.bytes_received,
        _ => socket.more.bytes_acked,
    };
    let sampled = facts.sampled.ok();
    let size = |socket: &Socket| {
        let before = sampled.and_then(|span| span.before.same(socket)).map_or(0, bytes);
        float(bytes(socket).saturating_sub(before))
    };
    let sockets = &facts.connections.ok()?.sockets;
    let leaving = sockets.all.iter().filter(|socket| !socket.is_local());
    Flows::of(&leaving.map(size).collect::<Vec<_>>())
}

fn count(number: usize) -> f64 {
    float(u64::try_from(number).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, sampled};

    fn of(sizes: &[f64]) -> Flows {
        Flows::of(sizes).expect("some")
    }

    #[test]
    fn queues_of_a_vif_of_ringway_are_judged() {
        let severity = |second: u64| {
            let found = CHECK.run(&host(sampled(|sample| {
                let queue = |(index, bytes): (u32, u64)| {
                    format!(
                        r#"{{"index":{index},"tx_packets":1,"tx_bytes":{},"rx_packets":1,
                        "rx_bytes":9}}"#,
                        bytes * sample
                    )
                };
                let queues = [(0, 9_000_000), (1, second)].map(queue).join(",");
                let vifs = format!(
                    r#"[{{"name":"vm1","kind":"virtio","max_queues":2,"queues":[{queues}]}}]"#
                );
                [("commands/ringway_vif_list_--json", vifs + "\n")]
            })));
            assert_eq!(found.len(), 1, "{found:#?}");
            (found[0].severity, found[0].summary.clone())
        };
        let (found, said) = severity(90_000);
        assert_eq!(found, Severity::Warning);
        assert_eq!(said, "queue 0 of vm1 carries 2.0 times the mean of 2 (guest transmits)");
        assert_eq!(severity(8_000_000).0, Severity::Ok);
    }

    #[test]
    fn idle_flows_do_not_count() {
        assert_eq!(Flows::of(&[]), None);
        let mut sizes = vec![0.0; 32];
        assert_eq!(of(&sizes).equal, 32, "nothing is known");
        sizes[7] = 282e6;
        assert_eq!(of(&sizes).equal, 1);
        assert!((of(&sizes).expected(4) - 4.0).abs() < 1e-9);
        sizes[8] = 282e6;
        assert_eq!(of(&sizes).equal, 2);
        assert_eq!(of(&sizes).to_string(), "32 flows of such unequal sizes");
        let equal = of(&[5.0; 64]);
        assert_eq!((equal.equal, equal.to_string().as_str()), (64, "64 flows"));
    }

    #[test]
    fn more_flows_have_no_forecast_if_they_are_as_uneven() {
        let of = |uneven| {
            let finding = Finding::new(Severity::Note, "eth0", "uneven");
            with_more_flows(finding, uneven, 8).forecast
        };
        // 32 flows over 8 queues put 1.8 times the mean on the fullest.
        assert_eq!(of(1.6), None);
        assert!(of(3.0).is_some_and(|forecast| forecast.low >= 1.0 && forecast.high > 1.5));
    }

    #[test]
    fn a_large_flow_beside_an_even_rest_is_chance() {
        for queues in [2, 4, 8, 16] {
            for percent in 1..100 {
                let largest = f64::from(percent) / 100.0;
                let mut sizes = vec![(1.0 - largest) / 1000.0; 1000];
                sizes.push(largest);
                let carried = 1.0 + largest * (count(queues) - 1.0);
                assert!(of(&sizes).expected(queues) >= carried - 1e-9, "{queues} {percent}");
            }
        }
    }
}
