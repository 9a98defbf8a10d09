//! D42: a bridge floods what it could deliver.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Finding, Severity};
use ringway_evidence::fact::{
    Basis, BridgeSettings, Interfaces, LegacyRules, Span, Stack, Switches, Tried, float, sum,
};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::rules::Rules;

pub(crate) const CHECK: Check = Check {
    id: "D42",
    slug: "bridges",
    title: "a bridge floods frames, or passes them through IP rules",
    group: Group::Datapath,
    sources: &["kernel-bridge:forwarding", "man-ip-link:ageing-time", "man-ip-link:nf-call"],
    explanation: include_str!("bridges.txt"),
    absent: "no bridge",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        bridges: BridgeSettings,
        nics: Interfaces,
        stack: Stack,
        switches: Switches,
        moved: Span<NicCounters>,
        rules: Tried<Span<Rules>>,
        legacy: LegacyRules,
    }
}

/// Packets per second from which flooding matters.
const PACKETS_MIN: f64 = 100.0;
/// Packets per second from which even a small cost per packet matters.
const PACKETS_MANY: f64 = 5000.0;
/// Number of rules from which passing frames through them is worth a note.
const RULES_MIN: u64 = 100;
const SETTING: &str = "net.bridge.bridge-nf-call-iptables";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    let mut is_any = false;
    for nic in facts.nics.names() {
        let Some((ageing, ageing_text)) = facts.bridges.bridge(&nic, "ageing_time") else {
            continue;
        };
        is_any = true;
        let ports: Vec<&String> = facts.stack.below(&nic).collect();
        let moved = |nic: &String| {
            let after = span.after.nics.get(nic)?;
            let before = span.past(span.before.nics.get(nic))?;
            Some(float(after.since(&before).packets()) / span.seconds)
        };
        let rate: f64 = ports.iter().filter_map(|port| moved(port)).sum();
        if span.basis == Basis::SinceBoot {
            continue;
        }
        if ageing == 0 && ports.len() > 2 && rate >= PACKETS_MIN {
            let summary = format!("{nic} sends each frame to all of its {} ports", ports.len());
            let command = format!("cat /sys/class/net/{nic}/bridge/ageing_time");
            out.add([Finding::new(Severity::Warning, nic.clone(), summary)
                .cause(
                    "Its ageing time is 0, so it forgets each address as soon as it has learned \
                     it. It acts as a hub, as one does to capture traffic or for a migration.",
                )
                .quote([ageing_text.quote(1)])
                .advise(Advice::by_hand(
                    "Turn learning on again: set ageing_time with ip link set type bridge. The \
                     default is 30000 (hundredths of a second).",
                    &plain(&nic, &command),
                ))]);
        }
        let busy = ports.iter().filter(|port| moved(port).is_some_and(|rate| rate >= PACKETS_MIN));
        if ports.len() > 2 {
            out.add(busy.filter_map(|port| without_learning(facts, &nic, port)));
        }
        out.add(through_rules(facts, &nic, rate));
    }
    if !is_any {
        return not_here(CHECK.absent);
    }
    out.well("bridges send frames to the right ports", None);
    Ok(())
}

/// A port behind which no addresses are learned, so that their frames go to all ports.
fn without_learning(facts: &Facts, nic: &str, port: &str) -> Option<Finding> {
    let (_, quoted) = facts.bridges.port(port, "learning").filter(|(is_on, _)| *is_on == 0)?;
    facts.bridges.port(port, "unicast_flood").filter(|(is_on, _)| *is_on == 1)?;
    let summary =
        format!("{nic} does not learn addresses behind {port}, and floods frames for them");
    let command = format!("bridge -d link show dev {port}");
    Some(
        Finding::new(Severity::Warning, port, summary)
            .cause(
                "Learning is off on this port, so frames for addresses behind it go to all ports.",
            )
            .quote([quoted.quote(1)])
            .advise(Advice::by_hand(
                "Turn learning on (bridge link set), or add static entries for the addresses \
                 behind the port and turn flooding off, as virtual networks do.",
                &plain(port, &command),
            )),
    )
}

/// The command, if the name has no special meaning in a shell.
fn plain<'a>(nic: &str, command: &'a str) -> Vec<&'a str> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_plain = nic.bytes().all(is_letter) && !nic.starts_with('-');
    if is_plain { vec![command] } else { Vec::new() }
}

fn through_rules(facts: &Facts, nic: &str, rate: f64) -> Option<Finding> {
    let own = facts.bridges.bridge(nic, "nf_call_iptables");
    let all = facts.switches.get(SETTING);
    let is_on = |text: &ringway_evidence::Text| text.number().is_ok_and(|it| it > 0);
    let setting = match (own, all) {
        (_, Some(text)) if is_on(&text) => text,
        (Some((1.., text)), _) => text,
        _ => return None,
    };
    let rules = facts.rules.ok().into_iter().chain(&facts.legacy.0);
    let count = sum(&rules.map(|rules| rules.after.count()).collect::<Vec<_>>());
    if rate < PACKETS_MANY || count == 0 {
        return None;
    }
    let summary = format!("frames of {nic} pass through {count} IP rules: {rate:.0} a second");
    let severity = if count >= RULES_MIN { Severity::Warning } else { Severity::Note };
    let finding = Finding::new(severity, nic, summary)
        .cause(
            "br_netfilter passes bridged frames to the IP rules. Each frame is matched against \
             them and tracked, although it is only forwarded.",
        )
        .quote([setting.quote(1)]);
    // Not an automatic change: containers would lose rules that they need, and no evidence here
    // excludes containers.
    Some(finding.advise(Advice::by_hand(
        "If no container and no rule on this host needs to see bridged frames, turn this off. \
         Kubernetes and Docker need it; leave it on for them.",
        &[],
    )))
}
