//! D13: offloads that are off, and the one that must not be on.

#[path = "offloads/userspace.rs"]
mod userspace;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Interfaces, LinkStates, LinkTypes, NicRole, Offloads, RingwayVifs, SwitchDatabase,
    SwitchSettings, Tried,
};
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
        "ovs-issue-273:offloads",
    ],
    explanation: include_str!("offloads.txt"),
    absent: "no interface with a driver",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        offloads: Offloads,
        types: LinkTypes,
        states: LinkStates,
        database: Tried<SwitchDatabase>,
        settings: Tried<SwitchSettings>,
        vifs: Tried<RingwayVifs>,
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
    let userspace = userspace::ports(facts)?;
    let (mut sound, mut whole) = (Vec::new(), Vec::new());
    for nic in facts.nics.names() {
        let role = facts.nics.role(&nic);
        let is_passed = role == NicRole::Software && !is_plain_ethernet(facts, &nic);
        if is_passed || is_down(facts, &nic) {
            continue;
        }
        if let Some(port) = userspace.get(nic.as_str()) {
            match userspace::inspect(facts, port) {
                Ok(Some(found)) => out.add([found]),
                Ok(None) => whole.push(nic),
                Err(gap) => out.unread(nic, &gap),
            }
            continue;
        }
        match inspect(facts, &nic, role) {
            Ok(found) if found.is_empty() => sound.push(nic),
            Ok(found) => out.add(found),
            Err(gap) => out.unread(nic, &gap),
        }
    }
    if !whole.is_empty() {
        let names = whole.join(", ");
        let said = format!("the userspace datapath of Open vSwitch gets whole checksums: {names}");
        out.well(said, None);
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
        let finding = Finding::new(Severity::Note, nic, summary).cause(
            "It opened the TAP device without headers for offloads (IFF_VNET_HDR), as VPNs and \
             emulated cards do. The kernel cuts and sums every packet for it, and no setting \
             changes that.",
        );
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
        .cause(
            "Without it the CPU handles packets of 1500 bytes one by one instead of up to 64 KiB \
             at once.",
        )
        .quote(off.iter().map(|(_, _, feature)| text.quote(feature.line)))
        .advise(Advice::by_change(
            "Turn it on, unless this card and driver have a known bug. The setting is lost at a \
             restart. On XCP: xe pif-param-set uuid=... other-config:ethtool-gro=on",
            off.iter().filter_map(change),
        ))
        .gain("several times the throughput if a CPU is full, otherwise nothing")
}

fn not_offered(nic: &str, role: NicRole, text: &Text, off: &[Off]) -> Finding {
    let names = names(off);
    let (severity, summary, cause) = match role {
        NicRole::Backend => (
            Severity::Warning,
            format!("the guest of {nic} does not accept: {names}"),
            "Its frontend did not offer it, so the host cuts and sums every packet for this guest.",
        ),
        NicRole::Frontend => (
            Severity::Warning,
            format!("the host of {nic} does not offer: {names}"),
            "The backend did not offer it, or it is turned off on its device.",
        ),
        NicRole::Physical | NicRole::Software => (
            Severity::Note,
            format!("{nic} does not support: {names}"),
            "The card or its driver has no such offload.",
        ),
    };
    let finding = Finding::new(severity, nic, summary)
        .cause(cause)
        .quote(off.iter().map(|(_, _, feature)| text.quote(feature.line)))
        .confidence(Confidence::Medium);
    match role {
        NicRole::Backend => finding.advise(Advice::by_hand(
            "Check the guest's side: ethtool -k in the guest, the age of its driver, and its \
             configuration.",
            &[],
        )),
        NicRole::Frontend => finding.advise(Advice::by_hand(
            "Check the host's side: ethtool -k of the vif or TAP device there; in libvirt XML, \
             <host csum='on' gso='on' tso4='on' tso6='on'/> and <guest .../> of <driver>.",
            &[],
        )),
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
    .cause(
        "LRO loses the boundaries of packets. What a bridge forwards is then too long or has \
         changed headers, and is dropped or slow. GRO keeps these boundaries.",
    )
    .quote([text.quote(lro.line)])
    .advise(Advice::by_change("Turn LRO off and leave GRO on.", Change::lower(knob, "on", "off")))
}
