//! D30: somebody set a limit, and traffic is at it.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Basis, Host, Span, float};
use crate::parse::Counters;
use crate::parse::nic::{Moved, NicCounters};
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
const AT_LIMIT: std::ops::RangeInclusive<f64> = 0.9..=1.1;
const STORE: &str = "/local/domain/0/backend/vif";

/// What was set for one direction of an interface.
struct Limit {
    nic: String,
    bytes_per_second: f64,
    /// From the host's side.
    is_sent: bool,
    quote: Quote,
    /// What takes it away, if that is one setting of this host.
    change: Option<Change>,
}

fn look(host: &Host) -> Looked {
    let span: Span<NicCounters> = host.span("proc/net/dev")?;
    let mut limits = shaped(host)?;
    limits.extend(rates(host)?);
    if limits.is_empty() {
        return Ok(vec![all_well("no limit is set that the doctor knows of", None)]);
    }
    let mut findings = Vec::new();
    for limit in &limits {
        let Some(after) = span.after.nics.get(&limit.nic) else { continue };
        let Some(before) = span.past(span.before.nics.get(&limit.nic)) else { continue };
        let moved = after.since(&before);
        findings.extend(judge(limit, &moved, &span));
    }
    if findings.is_empty() {
        let quote = limits.first().map(|limit| limit.quote.clone());
        let summary = format!("{} limits are set, and none is reached", limits.len());
        findings.push(all_well(summary, quote));
    }
    Ok(findings)
}

fn judge(limit: &Limit, moved: &Moved, span: &Span<NicCounters>) -> Option<Finding> {
    let bytes = if limit.is_sent { moved.tx_bytes } else { moved.rx_bytes };
    let rate = float(bytes) / span.seconds;
    if span.basis == Basis::SinceBoot || !AT_LIMIT.contains(&(rate / limit.bytes_per_second)) {
        return None;
    }
    let Limit { nic, .. } = limit;
    let mbit = limit.bytes_per_second * 8.0 / 1e6;
    let way = if limit.is_sent { "to" } else { "from" };
    let summary = format!("traffic {way} {nic} is at the {mbit:.0} Mbit/s that were set for it");
    let finding = Finding::new(Severity::Warning, nic.clone(), summary)
        .cause("A limit that is reached holds the same throughput whatever else is changed.")
        .quote([limit.quote.clone(), span.text.quote(moved.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_change(
            "If it is not meant: remove it where it was set, in the toolstack (rate of the vif), \
             in libvirt (<bandwidth>), or with tc.",
            limit.change.iter().cloned().collect(),
        ));
    Some(finding)
}

/// Token buckets at the root of an interface.
fn shaped(host: &Host) -> Result<Vec<Limit>, Gap> {
    let text = match host.command(&["tc", "-s", "-j", "qdisc", "show"]) {
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
        let change = Change::new(Knob::Qdisc { nic: qdisc.dev.clone() }, None, &default);
        let bytes_per_second = float(rate);
        Some(Limit { nic: qdisc.dev, bytes_per_second, is_sent: true, quote, change: Some(change) })
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
            limits.push(Limit { nic, bytes_per_second, is_sent: false, quote, change: None });
        }
    }
    Ok(limits)
}
