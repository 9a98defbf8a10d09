//! D48: no port is left for new connections to one destination.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::fact::{Ports, Span, Tried, share};
use ringway_evidence::facts;
use ringway_evidence::parse::listeners::Listeners;

pub(crate) const CHECK: Check = Check {
    id: "D48",
    slug: "ports",
    title: "ports for new connections are used up",
    group: Group::Tcp,
    sources: &["ip-sysctl:port-range", "ip-sysctl:tcp-tw-reuse", "rfc-9293"],
    explanation: include_str!("ports.txt"),
    absent: "no connections",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        ports: Tried<Ports>,
        listeners: Tried<Span<Listeners>>,
    }
}

/// Fraction of all ports in use from which new connections must search, and then fail.
const NEARLY: f64 = 0.9;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    out.well("connections use few of the available ports", None);
    let Some(ports) = facts.ports.ok() else {
        // Destinations are recorded only where ports may run out, and listeners with them always: a
        // record without either shows nothing.
        facts.listeners.get()?;
        return Ok(());
    };
    let (first, last) = ports.range;
    let all = last.saturating_sub(first).saturating_add(1);
    for (local, peer, count, line) in &ports.destinations.all {
        let part = share(*count, all);
        if part < NEARLY {
            continue;
        }
        let severity = if *count >= all { Severity::Problem } else { Severity::Warning };
        let summary = format!(
            "{count} connections from {local} to {peer} use {:.0} % of the ports {first} to {last}",
            part.min(1.0) * 100.0
        );
        let knob = Knob::Sysctl { name: "net.ipv4.ip_local_port_range".to_owned() };
        let current = format!("{first} {last}");
        let wanted = format!("{} {}", first, last.max(PORT_LAST));
        let finding = Finding::new(severity, peer.clone(), summary)
            .cause(
                "A new connection to that destination finds no free port, or searches long for \
                 one: cannot assign requested address.",
            )
            .quote([ports.text.quote(*line), ports.range_text.quote(1)]);
        out.add([match Change::raise(knob, current, wanted) {
            Some(change) => finding.advise(Advice::by_change(
                "Reuse connections instead of closing them. Until then use a larger range of \
                 ports, and exclude those that servers listen on \
                 (net.ipv4.ip_local_reserved_ports).",
                [change],
            )),
            None => finding.advise(Advice::by_hand(
                "Reuse connections instead of closing them, or use more addresses at either end.",
                &["ss -s"],
            )),
        }]);
    }
    Ok(())
}

/// The last port of all.
const PORT_LAST: u64 = 65_535;
