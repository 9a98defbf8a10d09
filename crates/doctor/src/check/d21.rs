//! D21: Open vSwitch finds too few packets among the flows that it has cached.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{Host, Span, float, share};
use crate::parse::ovs::Lookups;

pub(super) const CHECK: Check = Check {
    id: "D21",
    title: "the switch is the limit",
    group: Group::Datapath,
    sources: &[
        "throughput-guide:ovs-or-bridge",
        "throughput-guide:network-backend",
        "network-node-blog:node",
    ],
    explanation: include_str!("../../explain/D21.md"),
    look: Some(look),
};

/// Share of packets that are asked about, from which the cache is of no use.
const MISSED: f64 = 0.05;
/// Fewer packets a second than this are no load.
const RATE_MIN: f64 = 1000.0;

fn look(host: &Host) -> Looked {
    let span = lookups(host)?;
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
        return Ok(vec![all_well(summary, Some(quote))]);
    }
    let severity = if lost > 0 { Severity::Problem } else { Severity::Warning };
    let summary =
        format!("Open vSwitch has no flow for {:.1} % of packets, and lost {lost}", part * 100.0);
    let finding = Finding::new(severity, "Open vSwitch", summary)
        .cause(
            "Its cache of flows holds what it has seen. Short flows, and rules that look at ports, \
             make each packet new: it goes through all rules instead of one table, and from a \
             datapath in the kernel to a daemon and back for that.",
        )
        .quote([quote])
        .quote(backend(host))
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "See which flows they are, and whether rules need what they match on. More threads \
             that the kernel's datapath asks: other_config:n-handler-threads.",
            &["ovs-appctl dpctl/dump-flows | sort -t: -k3 | head"],
        ));
    if backend(host).is_none() {
        return Ok(vec![finding]);
    }
    let finding = finding.advise(Advice::by_hand(
        "The bridge has no such cache. To change to it interrupts every guest's network, and takes \
         a restart.",
        &["xe-switch-network-backend bridge"],
    ));
    Ok(vec![finding])
}

/// What the daemon counts, or the kernel where it does not answer: `ovs-dpctl` sees no datapath in
/// user space.
fn lookups(host: &Host) -> Result<Span<Lookups>, Gap> {
    let daemon = match host.command_span(&["ovs-appctl", "dpctl/show"]) {
        Err(gap @ Gap::Missing { .. }) => gap,
        other => return other,
    };
    match host.command_span(&["ovs-dpctl", "show"]) {
        Err(gap) if !is_absent(&gap) => Err(gap),
        // There is one that we may not ask.
        Err(_) if !is_absent(&daemon) => Err(daemon),
        Err(_) => Err(Gap::NotHere("no Open vSwitch".to_owned())),
        sound => sound,
    }
}

/// Whether what it asks is not there: the tool, the kernel's module, or a daemon's file.
fn is_absent(gap: &Gap) -> bool {
    let absent = ["not installed", "not there", "'ovs_datapath' does not exist", "No such file"];
    matches!(gap, Gap::Missing { why, .. } if absent.iter().any(|absent| why.contains(absent)))
}

/// Which switch XAPI uses, where there is one to choose.
fn backend(host: &Host) -> Option<Quote> {
    let text = host.file("etc/xensource/network.conf").ok()?;
    text.quote_where(|line| line.trim() == "openvswitch")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Source;

    const DAEMON: &str = "commands/ovs-appctl_dpctl.show";
    const KERNEL: &str = "commands/ovs-dpctl_show";
    const NO_MODULE: &str = "|INFO|Generic Netlink family 'ovs_datapath' does not exist.";

    fn host(pieces: &[(&str, &str)], refused: &[(&str, &str)]) -> Host {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let refused: String =
            refused.iter().map(|(path, why)| format!("{path}\t{why}\n")).collect();
        let more = [("proc/uptime", "10.0 9\n"), ("refused", refused.as_str())];
        Host::new(Source::Memory(pieces.iter().chain(&more).map(own).collect()))
    }

    #[test]
    fn the_daemon_is_asked_first_and_the_kernel_in_its_place() {
        let netdev = (DAEMON, "netdev@ovs-netdev:\n  lookups: hit:1 missed:20000 lost:0\n");
        let system = (KERNEL, "system@ovs-system:\n  lookups: hit:20000 missed:1 lost:0\n");
        let missed = |host: &Host| lookups(host).expect("sound").after.missed;
        assert_eq!(missed(&host(&[netdev, system], &[])), 20000);
        assert_eq!(missed(&host(&[netdev], &[(KERNEL, NO_MODULE)])), 20000);
        assert_eq!(missed(&host(&[system], &[(DAEMON, "open: No such file or directory")])), 1);
        assert_eq!(missed(&host(&[system], &[(DAEMON, "open: Permission denied")])), 1);
    }

    #[test]
    fn a_daemon_that_may_not_be_asked_is_no_absent_one() {
        let no_module = (KERNEL, NO_MODULE);
        let absent = host(&[], &[no_module, (DAEMON, "open: No such file or directory")]);
        assert!(matches!(look(&absent), Err(Gap::NotHere(_))));
        let locked = host(&[], &[no_module, (DAEMON, "open: Permission denied")]);
        assert!(matches!(look(&locked), Err(Gap::Missing { .. })));
    }
}
