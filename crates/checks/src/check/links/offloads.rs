//! D13: offloads that are off, and the one that must not be on.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::text::offloads as text;
use ringway_evidence::fact::{Interfaces, LinkStates, LinkTypes, NicRole, Offloads};
use ringway_evidence::facts;
use ringway_evidence::parse::ethtool::{Feature, Features, long_name};
use ringway_evidence::{Gap, Text};

pub(crate) const CHECK: Check = Check {
    id: "D13",
    slug: "offloads",
    title: "offloads are off",
    group: Group::Links,
    sources: &[
        "throughput-guide:guest-cpu-advice",
        "throughput-guide:spread-vifs",
        "throughput-guide:offloads-unsupported",
        "throughput-guide:gro-lro",
        "throughput-guide:gro-on",
        "throughput-guide:gso-on",
        "multi-queue-study:rx",
        "multi-queue-study:rx-limits",
    ],
    explanation: text::EXPLANATION,
    absent: "no interface with a driver",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        offloads: Offloads,
        types: LinkTypes,
        states: LinkStates,
    }
}

/// Offloads that must be on, by their names for `ethtool -K`, in the order of their dependencies.
const WANTED: [&str; 6] = ["rx", "tx", "sg", "tso", "gso", "gro"];
/// `ARPHRD_ETHER` of `linux/if_arp.h`.
const ETHERNET: &str = "1";
/// Offloads that are off by default on a veth.
const OFF_IN_VETH: [&str; 2] = ["rx-checksumming", "generic-receive-offload"];
const LRO: &str = "large-receive-offload";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let mut sound = Vec::new();
    for nic in facts.nics.names() {
        let role = facts.nics.role(&nic);
        let is_passed = role == NicRole::Software && !is_plain_ethernet(facts, &nic);
        if is_passed || is_down(facts, &nic) {
            continue;
        }
        match inspect(facts, &nic, role) {
            Ok(found) if found.is_empty() => sound.push(nic),
            Ok(found) => out.add(found),
            Err(gap) => out.unread(nic, &gap),
        }
    }
    if !sound.is_empty() {
        out.well(format!("offloads are on: {}", sound.join(", ")), None);
    }
    Ok(())
}

/// An end of a veth or a similar interface: it passes frames on unchanged, so that disabled
/// offloads needlessly make every frame small and checksummed.
fn is_plain_ethernet(facts: &Facts, nic: &str) -> bool {
    let kind = facts.types.of(nic);
    kind.is_ok_and(|kind| kind.value() == ETHERNET) && facts.nics.device_type(nic).is_none()
}

fn is_down(facts: &Facts, nic: &str) -> bool {
    facts.states.of(nic).is_ok_and(|text| text.value() == "down")
}

fn inspect(facts: &Facts, nic: &str, role: NicRole) -> Result<Vec<Finding>, Gap> {
    let text = facts.offloads.of(nic)?;
    let features = Features::parse(&text)?;
    // A veth may have a vif's name.
    let is_virtual = role == NicRole::Software || facts.nics.is_without_device(nic);
    let mut off = Vec::new();
    for short in WANTED {
        let name = long_name(short);
        let feature = features.get(name);
        let Some(feature) = feature else {
            return Err(text.unreadable(None, format!("expected a line with {name}")));
        };
        // The host's end of a guest's interface receives only through memory.
        let is_moot = role == NicRole::Backend && name == "rx-checksumming"
            || role == NicRole::Software && feature.is_fixed
            // A veth receives only what the other end has just sent; off by default.
            || is_virtual && OFF_IN_VETH.contains(&name);
        if !feature.is_on && !is_moot {
            off.push((name, short, feature));
        }
    }
    let (mut stuck, loose): (Vec<_>, Vec<_>) = off.into_iter().partition(|(_, _, f)| f.is_fixed);
    // A requested offload becomes active together with those that it depends on.
    stuck.retain(|(_, _, feature)| loose.is_empty() || !feature.is_requested);
    let mut findings = Vec::new();
    if !loose.is_empty() {
        findings.push(turned_off(nic, &text, &loose));
    }
    if !stuck.is_empty() && facts.nics.has_offload_headers(nic) == Some(false) {
        let summary = format!("the program behind {nic} takes no offloads: {}", names(&stuck));
        let quotes = stuck.iter().map(|(_, _, feature)| text.quote(feature.line));
        let finding = Finding::new(Severity::Note, nic, summary).cause(text::plain_tap_cause());
        findings.push(finding.quote(quotes));
    } else if !stuck.is_empty() {
        findings.push(not_offered(nic, role, &text, &stuck));
    }
    if let Some(lro) = features.get(LRO).filter(|lro| lro.is_on && facts.nics.is_forwarding(nic)) {
        findings.push(lro_on(nic, &text, lro));
    }
    Ok(findings)
}

type Off = (&'static str, &'static str, Feature);

fn names(off: &[Off]) -> String {
    off.iter().map(|(name, _, _)| *name).collect::<Vec<_>>().join(", ")
}

fn turned_off(nic: &str, text: &Text, off: &[Off]) -> Finding {
    let change = |(_, short, _): &Off| {
        let knob = Knob::Offload { nic: nic.to_owned(), feature: (*short).to_owned() };
        Change::raise(knob, "off", "on")
    };
    Finding::new(Severity::Warning, nic, format!("turned off on {nic}: {}", names(off)))
        .cause(text::off_cause())
        .quote(off.iter().map(|(_, _, feature)| text.quote(feature.line)))
        .advise(Advice::by_change(text::off_advice(), off.iter().filter_map(change)))
        .gain(text::off_gain())
}

fn not_offered(nic: &str, role: NicRole, text: &Text, off: &[Off]) -> Finding {
    let names = names(off);
    let (severity, summary, cause) = match role {
        NicRole::Backend => (
            Severity::Warning,
            format!("the guest of {nic} does not accept: {names}"),
            text::guest_side_cause(),
        ),
        NicRole::Frontend => (
            Severity::Warning,
            format!("the host of {nic} does not offer: {names}"),
            text::host_side_cause(),
        ),
        NicRole::Physical | NicRole::Software => {
            (Severity::Note, format!("{nic} does not support: {names}"), text::card_cause())
        }
    };
    let finding = Finding::new(severity, nic, summary)
        .cause(cause)
        .quote(off.iter().map(|(_, _, feature)| text.quote(feature.line)))
        .confidence(Confidence::Medium);
    match role {
        NicRole::Backend => finding.advise(Advice::by_hand(text::guest_side_advice(), &[])),
        NicRole::Frontend => finding.advise(Advice::by_hand(text::host_side_advice(), &[])),
        NicRole::Physical | NicRole::Software => finding,
    }
}

fn lro_on(nic: &str, text: &Text, lro: Feature) -> Finding {
    let knob = Knob::Offload { nic: nic.to_owned(), feature: "lro".to_owned() };
    Finding::new(
        Severity::Problem,
        nic,
        format!("{nic} forwards, and merges packets irreversibly (LRO)"),
    )
    .cause(text::lro_cause())
    .quote([text.quote(lro.line)])
    .advise(Advice::by_change(text::lro_advice(), Change::lower(knob, "on", "off")))
}
