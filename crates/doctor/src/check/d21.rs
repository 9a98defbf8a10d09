//! D21: Open vSwitch asks user space about too many packets.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{Host, Span, float, share};
use crate::parse::ovs::Lookups;

pub(super) const CHECK: Check = Check {
    id: "D21",
    title: "the switch is the limit",
    group: Group::Datapath,
    rows: &["G39", "G68", "W2"],
    explanation: include_str!("../../explain/D21.md"),
    look: Some(look),
};

/// Share of packets that are asked about, from which the cache is of no use.
const MISSED: f64 = 0.05;
/// Fewer packets a second than this are no load.
const RATE_MIN: f64 = 1000.0;

fn look(host: &Host) -> Looked {
    let span: Span<Lookups> = match host.command_span(&["ovs-dpctl", "show"]) {
        // The last: the tool is there, and what it asks is not loaded.
        Err(Gap::Missing { why, .. })
            if ["not installed", "not there", "'ovs_datapath' does not exist"]
                .iter()
                .any(|absent| why.contains(absent)) =>
        {
            return Err(Gap::NotHere("no Open vSwitch".to_owned()));
        }
        other => other?,
    };
    let since = |after: u64, before: u64| after.saturating_sub(before);
    let hit = since(span.after.hit, span.before.hit);
    let missed = since(span.after.missed, span.before.missed);
    let lost = since(span.after.lost, span.before.lost);
    let total = hit.saturating_add(missed);
    let part = share(missed, total);
    let quote = span.text.quote(span.after.line);
    let is_loaded = float(total) / span.seconds >= RATE_MIN;
    if lost == 0 && (part <= MISSED || !is_loaded) {
        let summary =
            format!("Open vSwitch asks user space about {:.1} % of packets", part * 100.0);
        return Ok(vec![all_well(summary, Some(quote))]);
    }
    let severity = if lost > 0 { Severity::Problem } else { Severity::Warning };
    let summary = format!(
        "Open vSwitch asks user space about {:.1} % of packets, and lost {lost}",
        part * 100.0
    );
    let finding = Finding::new(severity, "Open vSwitch", summary)
        .cause(
            "Its cache in the kernel holds what it has seen. Short flows, and rules that look at \
             ports, make each packet new: it goes to a daemon and back instead of through a table.",
        )
        .quote([quote])
        .quote(backend(host))
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "See which flows they are, and whether rules need what they match on. More threads: \
             other_config:n-handler-threads.",
            &["ovs-dpctl dump-flows | sort -t: -k3 | head"],
        ));
    if backend(host).is_none() {
        return Ok(vec![finding]);
    }
    let finding = finding.advise(Advice::by_hand(
        "The bridge has no such cache. To change to it interrupts every guest's network, and takes \
         a restart (row G68).",
        &["xe-switch-network-backend bridge"],
    ));
    Ok(vec![finding])
}

/// Which switch XAPI uses, where there is one to choose.
fn backend(host: &Host) -> Option<Quote> {
    let text = host.file("etc/xensource/network.conf").ok()?;
    text.quote_where(|line| line.trim() == "openvswitch")
}
