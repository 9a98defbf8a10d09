//! D21: Open vSwitch finds too few packets among the flows that it has cached.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{SwitchLookups, Tried, XapiBackend, float, share};
use ringway_evidence::facts;

pub(crate) const CHECK: Check = Check {
    id: "D21",
    slug: "switch-misses",
    title: "the switch is the limit",
    group: Group::Datapath,
    sources: &[
        "throughput-guide:ovs-or-bridge",
        "throughput-guide:network-backend",
        "network-node-blog:node",
    ],
    explanation: include_str!("switch_misses.txt"),
    absent: "no Open vSwitch",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        lookups: SwitchLookups,
        backend: Tried<XapiBackend>,
    }
}

/// Share of misses from which the cache is of no use.
const MISSED: f64 = 0.05;
/// Packets per second below which there is no load.
const RATE_MIN: f64 = 1000.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let SwitchLookups(span) = &facts.lookups;
    let since = |after: u64, before: u64| after.saturating_sub(before);
    let hit = since(span.after.hit, span.before.hit);
    let missed = since(span.after.missed, span.before.missed);
    let lost = since(span.after.lost, span.before.lost);
    let total = hit.saturating_add(missed);
    let part = share(missed, total);
    let quote = span.text.quote(span.after.line);
    let is_loaded = float(total) / span.seconds >= RATE_MIN;
    if lost == 0 && (part <= MISSED || !is_loaded) {
        let summary = format!("Open vSwitch has no flow for {:.1} % of packets", part * 100.0);
        out.well(summary, Some(quote));
        return Ok(());
    }
    let severity = if lost > 0 { Severity::Problem } else { Severity::Warning };
    let summary =
        format!("Open vSwitch has no flow for {:.1} % of packets, and lost {lost}", part * 100.0);
    let finding = Finding::new(severity, "Open vSwitch", summary)
        .cause(
            "The flow cache holds flows that it has seen. With short flows, or rules that match \
             ports, most packets are new: each is matched against all rules instead of one table, \
             and a datapath in the kernel passes it to a daemon and back for that.",
        )
        .quote([quote])
        .quote(backend(facts))
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Find out which flows these are, and whether the rules need all the fields that they \
             match. To give the kernel's datapath more handler threads: \
             other_config:n-handler-threads.",
            &["ovs-appctl dpctl/dump-flows | sort -t: -k3 | head"],
        ));
    if backend(facts).is_none() {
        out.add([finding]);
        return Ok(());
    }
    let finding = finding.advise(Advice::by_hand(
        "The bridge has no such cache. Changing to it interrupts every guest's network and needs \
         a restart.",
        &["xe-switch-network-backend bridge"],
    ));
    out.add([finding]);
    Ok(())
}

/// Which switch XAPI uses, where there is one to choose.
fn backend(facts: &Facts) -> Option<Quote> {
    facts.backend.ok()?.quote_where(|line| line.trim() == "openvswitch")
}
