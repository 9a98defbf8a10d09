//! D30: somebody set a limit, and traffic is at it.

mod police;

use std::ops::RangeInclusive;

use super::{Check, Group, Looked, all_well};
use crate::evidence::manifest::{OVS_LIMITS, QDISCS};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity, shell_word};
use crate::host::{Basis, Host, Span, float};
use crate::parse::Counters;
use crate::parse::nic::{Moved, NicCounters};
use crate::parse::ovs::Policing;
use crate::parse::qdisc::Qdiscs;
use crate::parse::xenstore::Nodes;

pub(super) const CHECK: Check = Check {
    id: "D30",
    title: "a limit is set",
    group: Group::Links,
    rows: &["G17"],
    explanation: include_str!("../../explain/D30.md"),
    look: Some(look),
};

/// How near to a limit traffic is when the limit is what holds it.
const AT_LIMIT: RangeInclusive<f64> = 0.9..=1.1;
/// The same where what is above it is dropped: TCP stays well below, and what does not listen to
/// losses is counted before it is dropped.
const AT_POLICE: RangeInclusive<f64> = 0.7..=f64::INFINITY;
const STORE: &str = "/local/domain/0/backend/vif";

/// What was set for one direction of an interface.
struct Limit {
    nic: String,
    bytes_per_second: f64,
    /// From the host's side.
    is_sent: bool,
    quote: Quote,
    /// How near to it traffic is held.
    held: RangeInclusive<f64>,
    /// Parts of the interface that have the whole of it each.
    parts: u64,
    /// What takes it away, if that is one setting of this host.
    remedy: Remedy,
}

/// What takes a limit away.
enum Remedy {
    Change(Change),
    Command(String),
    /// It is somewhere in a toolstack.
    Elsewhere,
}

fn look(host: &Host) -> Looked {
    let span: Span<NicCounters> = host.span("proc/net/dev")?;
    let mut limits = shaped(host)?;
    limits.extend(rates(host)?);
    let switched = switched(host)?;
    let known: Vec<String> = switched.iter().map(|limit| limit.nic.clone()).collect();
    limits.extend(switched);
    let policed = police::look(host, &span, &known)?;
    let count = limits.len() + policed.count;
    let mut findings = policed.findings;
    for limit in &limits {
        let Some(after) = span.after.nics.get(&limit.nic) else { continue };
        let Some(before) = span.past(span.before.nics.get(&limit.nic)) else { continue };
        let moved = after.since(&before);
        findings.extend(judge(limit, &moved, &span));
    }
    if findings.is_empty() && count == 0 {
        findings.push(all_well("no limit is set that the doctor knows of", None));
    } else if findings.is_empty() {
        let quote = limits.first().map(|limit| limit.quote.clone()).or(policed.quote);
        findings.push(all_well(format!("{count} limits are set, and none is reached"), quote));
    }
    Ok(findings)
}

fn judge(limit: &Limit, moved: &Moved, span: &Span<NicCounters>) -> Option<Finding> {
    let bytes = if limit.is_sent { moved.tx_bytes } else { moved.rx_bytes };
    let rate = float(bytes) / span.seconds;
    let is_held =
        |parts: &u64| limit.held.contains(&(rate / (limit.bytes_per_second * float(*parts))));
    let parts = [1, limit.parts].into_iter().find(is_held)?;
    if span.basis == Basis::SinceBoot {
        return None;
    }
    let Limit { nic, .. } = limit;
    let mbit = limit.bytes_per_second * 8.0 / 1e6;
    let way = if limit.is_sent { "to" } else { "from" };
    let mut summary =
        format!("traffic {way} {nic} is at the {mbit:.0} Mbit/s that were set for it");
    let mut cause =
        "A limit that is reached holds the same throughput whatever else is changed.".to_owned();
    if parts > 1 {
        summary += &format!(", {parts} times");
        cause += &format!(
            " Linux' netback grants it to each queue, so {parts} queues have {parts} times as much."
        );
    }
    let finding = Finding::new(Severity::Warning, nic.clone(), summary)
        .cause(cause)
        .quote([limit.quote.clone(), span.text.quote(moved.line)])
        .confidence(Confidence::Medium);
    let text = "If it is not meant: remove it where it was set, in the toolstack (the vif's rate), \
                in libvirt (<bandwidth>), with tc, or in Open vSwitch.";
    let finding = finding.advise(match &limit.remedy {
        Remedy::Change(change) => Advice::by_change(text, [change.clone()]),
        Remedy::Command(command) => Advice::by_hand(text, &[command]),
        Remedy::Elsewhere => Advice::by_hand(text, &[]),
    });
    Some(finding)
}

/// Token buckets at the root of an interface.
fn shaped(host: &Host) -> Result<Vec<Limit>, Gap> {
    let text = match host.command(QDISCS) {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let limits = Qdiscs::parse(&text)?.all.into_iter().filter(|qdisc| qdisc.kind == "tbf");
    // What was there before the limit is not known. Every kernel has pfifo_fast.
    let default = host.file("proc/sys/net/core/default_qdisc").ok();
    let default = default.map_or_else(|| "pfifo_fast".to_owned(), |text| text.value().to_owned());
    let limit = |qdisc: crate::parse::qdisc::Qdisc| {
        let rate = qdisc.options.get("rate")?.as_u64().filter(|rate| *rate > 0)?;
        let said =
            format!("tbf of {}: rate {rate} bytes/s, {} overlimits", qdisc.dev, qdisc.overlimits);
        let quote = Quote { file: text.origin().to_owned(), line: None, text: said };
        let change = Change::replace(Knob::Qdisc { nic: qdisc.dev.clone() }, None, &default)?;
        let bytes_per_second = float(rate);
        let remedy = Remedy::Change(change);
        let held = AT_LIMIT;
        Some(Limit {
            nic: qdisc.dev,
            bytes_per_second,
            is_sent: true,
            quote,
            held,
            parts: 1,
            remedy,
        })
    };
    Ok(limits.filter_map(limit).collect())
}

/// What a toolstack set for a vif: bytes in so many microseconds, of what the guest sends.
fn rates(host: &Host) -> Result<Vec<Limit>, Gap> {
    let text = match host.command(&["xenstore-ls", "-f", STORE]) {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let nodes = Nodes::parse(&text)?;
    let mut limits = Vec::new();
    for path in nodes.paths() {
        let Some(vif) = path.strip_prefix(STORE).and_then(|path| path.strip_suffix("/rate")) else {
            continue;
        };
        let line = nodes.line(path);
        let refuse = || text.unreadable(line, "expected \"BYTES,MICROSECONDS\"");
        let (bytes, usec) =
            nodes.get(path).and_then(|rate| rate.split_once(',')).ok_or_else(refuse)?;
        let bytes: u64 = bytes.parse().map_err(|_| refuse())?;
        let usec: u64 = usec.parse().map_err(|_| refuse())?;
        // A 0 in either place is no limit.
        if bytes > 0 && usec > 0 {
            let nic = format!("vif{}", vif.trim_matches('/').replace('/', "."));
            let bytes_per_second = float(bytes) * 1e6 / float(usec);
            let quote = text.quote(line.unwrap_or(1));
            limits.push(Limit {
                bytes_per_second,
                is_sent: false,
                quote,
                held: AT_LIMIT,
                parts: credits(host, &nic),
                remedy: Remedy::Elsewhere,
                nic,
            });
        }
    }
    Ok(limits)
}

/// How many queues of a vif have its rate each: all of Linux' netback, whose `connect` sets
/// `credit_bytes` of every queue; of another backend the vif has one.
fn credits(host: &Host, vif: &str) -> u64 {
    let is_linux = host.driver(vif).as_deref() == Some("vif");
    if is_linux { host.tx_queues(vif).map_or(1, |(queues, _)| queues) } else { 1 }
}

/// What Open vSwitch takes in of an interface; the rest it drops.
fn switched(host: &Host) -> Result<Vec<Limit>, Gap> {
    let text = match host.command(OVS_LIMITS) {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let limits = Policing::parse(&text)?.limits.into_iter().map(|(nic, kbit, line)| Limit {
        bytes_per_second: float(kbit) * 1000.0 / 8.0,
        is_sent: false,
        quote: text.quote(line),
        held: AT_POLICE,
        parts: 1,
        remedy: Remedy::Command(format!(
            "ovs-vsctl set interface {} ingress_policing_rate=0",
            shell_word(&nic)
        )),
        nic,
    });
    Ok(limits.collect())
}
