//! D14: queues that exist but are not used.

mod machines;
mod vifs;

use crate::check::{Check, Group, Judged, Verdicts, all_well, not_here, rule};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Channels, Interfaces, Machines, Namespace, NetfrontQueues, NicRole, OnlineCpus, RingwayVifs,
    Tried, VifStore, XenDomains, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::Counters;
use ringway_evidence::parse::ethtool::{Setting, Settings};
use ringway_evidence::parse::ringway::Vifs;
use ringway_evidence::parse::xenstore::Nodes;
use ringway_evidence::{Gap, Netns, Quote, Text};
use ringway_model::contention::gain;

/// Queues of the kernel's tap and macvtap devices: `MAX_TAP_QUEUES` of both drivers.
const TAP_QUEUES_MAX: u64 = 256;

pub(crate) const CHECK: Check = Check {
    id: "D14",
    slug: "unused-queues",
    title: "queues are not used",
    group: Group::Queues,
    sources: &[
        "multi-queue-series:keys",
        "network-node-blog:one-core",
        "network-node-blog:three-things",
        "network-node-blog:libvirt",
        "network-node-blog:queues-per-cpu",
        "network-node-blog:ethtool",
        "network-node-blog:setup",
        "network-node-blog:old-kernel",
        "network-node-blog:new-kernel",
        "network-node-blog:nova",
    ],
    explanation: include_str!("unused_queues.txt"),
    absent: "no interface with queues",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        cpus: OnlineCpus,
        nics: Interfaces,
        channels: Channels,
        machines: Machines,
        namespace: Namespace,
        vifs: Tried<RingwayVifs>,
        netfront: Tried<NetfrontQueues>,
        store: Tried<VifStore>,
        domains: Tried<XenDomains>,
    }
}

const GAIN: &str = "1 to 8 queues: 3.23 to 8.42 Gbit/s through a network node (SWITCH, 2016)";
const SINGLE_CAUSE: &str = "One CPU at a time serves a queue.";
const UNUSED_CAUSE: &str = "One CPU at a time serves a queue; CPUs without a queue do not help.";
const VIF_GAIN: &str = "one to eight queues: 6.25 to 9.4 Gbit/s out of a guest (multi-queue study)";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let OnlineCpus(cpus) = facts.cpus;
    if cpus < 2 {
        return not_here("one CPU");
    }
    let mut is_any_seen = false;
    for nic in facts.nics.names() {
        let found = match facts.nics.role(&nic) {
            NicRole::Software => continue,
            NicRole::Backend => check_vif(facts, &nic),
            NicRole::Frontend if facts.nics.driver(&nic).as_deref() == Some("vif") => {
                check_netfront(facts, &nic, cpus)
            }
            role => inspect_channels(facts, &nic, role, cpus),
        };
        match found {
            Ok(found) => out.add(found),
            Err(Gap::NotHere(_)) => continue,
            Err(gap) => out.unread(nic, &gap),
        }
        is_any_seen = true;
    }
    let vifs = facts.vifs.get().and_then(|text| Ok((Vifs::parse(text)?.all, &**text)));
    let listed = vifs.as_ref().ok().map(|(all, text)| (all.as_slice(), *text));
    // Definitions are the machine's: other network namespaces would repeat what its own one says.
    let machines = match facts.namespace {
        Namespace(Some(Netns::Other)) => machines::Outcome::default(),
        Namespace(Some(Netns::Initial) | None) => machines::judge(facts, listed, out),
    };
    let mut is_any_own = is_any_seen;
    is_any_seen |= machines.is_any;
    match &vifs {
        Ok((all, text)) => {
            is_any_seen |= !all.is_empty();
            let others = all.iter().filter(|vif| !machines.vifs.contains(vif.name.as_str()));
            for vif in others {
                is_any_own = true;
                out.add(vifs::judge(vif, cpus, text));
            }
        }
        // No ringway runs here, or we may not query it.
        Err(Gap::Missing { .. }) => {}
        Err(gap) => {
            is_any_seen = true;
            out.unread("ringway", gap);
        }
    }
    say_well(cpus, &machines, is_any_own, &mut is_any_seen, out);
    if !is_any_seen {
        return not_here(CHECK.absent);
    }
    Ok(())
}

/// Adds what has enough queues if nothing is wrong, and what was not judged.
fn say_well(
    cpus: u64,
    machines: &machines::Outcome<'_>,
    is_any_own: bool,
    is_any_seen: &mut bool,
    out: &mut Verdicts,
) {
    let has_gaps = !out.findings.is_empty();
    let is_well = out.findings.iter().all(|one| one.severity == Severity::Unknown);
    let judged = machines.judged();
    let is_judged = judged.is_some() || *is_any_seen && !has_gaps;
    let mut well = match (&judged, is_any_own && !has_gaps) {
        (Some(judged), true) => {
            format!("enough queues for the host's {cpus} CPUs, and for {judged}")
        }
        (Some(judged), false) => format!("enough queues for {judged}"),
        (None, _) => format!("enough queues for {cpus} CPUs"),
    };
    if let Some((said, quotes)) = machines.unjudged() {
        if is_well && is_judged {
            well += &format!("; {said}");
        } else {
            *is_any_seen = true;
            let finding = Finding::new(Severity::Note, "libvirt", said);
            out.add([finding
                .cause(
                    "This check compares the queues of virtio interfaces that vhost-net or a \
                     vhost-user back-end serves. It does not read how many other interfaces have.",
                )
                .quote(quotes)]);
        }
    }
    if has_gaps && is_well && judged.is_some() {
        out.add([all_well(well, None)]);
    } else {
        out.well(well, None);
    }
}

fn inspect_channels(
    facts: &Facts,
    nic: &str,
    role: NicRole,
    cpus: u64,
) -> Result<Option<Finding>, Gap> {
    let text = facts.channels.of(nic).map_err(|gap| match gap {
        // A driver with one queue has nothing to set.
        Gap::Missing { why, .. } if why.contains("not supported") => Gap::NotHere(why),
        other => other,
    })?;
    let channels = Settings::parse(&text)?;
    let kinds = kinds(&channels);
    if kinds.is_empty() {
        return not_here("it has no channels");
    }
    for (_, current, maximum) in &kinds {
        if current.value > maximum.value || current.value == 0 {
            let why = "an impossible number of channels";
            return Err(text.unreadable(Some(current.line), why));
        }
    }
    let is_single = role == NicRole::Frontend && kinds.iter().all(|(.., max)| max.value == 1);
    let is_few = |(_, current, max): &Kind| current.value < cpus.min(max.value);
    let few: Vec<Kind> = kinds.iter().copied().filter(is_few).collect();
    let lines = |(_, current, max): &Kind| [text.quote(max.line), text.quote(current.line)];
    if few.is_empty() {
        let quotes: Vec<Quote> = kinds.iter().flat_map(lines).collect();
        return Ok(is_single.then(|| single(facts, nic, cpus, quotes)));
    }
    let severity = match role {
        NicRole::Physical if few.iter().all(|(_, current, _)| current.value > 1) => Severity::Note,
        _ => Severity::Warning,
    };
    Ok(Some(unused(nic, severity, &few, cpus).quote(few.iter().flat_map(lines))))
}

/// What a driver calls its queues, how many are used, and how many there can be.
type Kind = (&'static str, Setting, Setting);

/// Pairs of queues, or those of each direction where a driver has no pairs.
fn kinds(channels: &Settings) -> Vec<Kind> {
    let kind = |which: &'static str| {
        let maximum = channels.maximum.get(which).filter(|maximum| maximum.value > 0)?;
        Some((which, *channels.current.get(which)?, *maximum))
    };
    match kind("combined") {
        Some(pairs) => vec![pairs],
        None => ["rx", "tx"].into_iter().filter_map(kind).collect(),
    }
}

fn unused(nic: &str, severity: Severity, few: &[Kind], cpus: u64) -> Finding {
    let said = |(which, current, max): &Kind| {
        let kind = if *which == "combined" { String::new() } else { format!("{which} ") };
        format!("{} of {} {kind}queues", current.value, cpus.min(max.value))
    };
    let said: Vec<String> = few.iter().map(said).collect();
    let change = |(which, current, max): &Kind| {
        let knob = Knob::Channels { nic: nic.to_owned(), which: (*which).to_owned() };
        Change::raise(knob, current.value, cpus.min(max.value))
    };
    // With queues for each direction, one of them gains.
    let ends = |(_, current, max): &Kind| (current.value, cpus.min(max.value));
    let (used, usable) = few.iter().map(ends).min().unwrap_or((1, 1));
    let summary = format!("{nic} uses {} available", said.join(" and "));
    let finding = Finding::new(severity, nic, summary)
        .cause(UNUSED_CAUSE)
        .advise(Advice::by_change(
            "Use a queue for each CPU. You can change this while traffic flows, although some \
             drivers interrupt it for a moment. Also set it in the interface's configuration.",
            few.iter().filter_map(change),
        ))
        .gain(GAIN);
    more(finding, used, usable)
}

/// Adds what more queues gain.
fn more(finding: Finding, used: u64, usable: u64) -> Finding {
    let ends = gain(float(used.max(1)), float(usable.max(1)));
    finding.forecast(ends, "if queues are the limit and there are flows for all")
}

fn single(facts: &Facts, nic: &str, cpus: u64, quotes: Vec<Quote>) -> Finding {
    let advice = match facts.nics.driver(nic).as_deref() {
        Some("virtio_net") => Advice::by_hand(
            format!(
                "On the host: <driver name='vhost' queues='{cpus}'/> in the interface's libvirt \
                 XML, or queues={cpus} and mq=on for QEMU; then restart the guest. In OpenStack \
                 since Liberty: hw_vif_multiqueue_enabled=true of the image.",
                cpus = cpus.min(TAP_QUEUES_MAX)
            ),
            &[],
        ),
        _ => Advice::by_hand(
            "On the host: max_queues of xen_netback, or max-queues of ringway; in the guest: \
             max_queues of xen_netfront.",
            &[],
        ),
    };
    let summary = format!("the host of {nic} offers one queue for {cpus} CPUs");
    let finding = Finding::new(Severity::Note, nic, summary)
        .cause(SINGLE_CAUSE)
        .quote(quotes)
        .advise(advice)
        .gain(GAIN);
    more(finding, 1, cpus)
}

/// A guest's end of a vif, whose driver has no channels to be asked for. If the host is what offers
/// too few, D15 says so.
fn check_netfront(facts: &Facts, nic: &str, cpus: u64) -> Result<Option<Finding>, Gap> {
    let (used, seen) = facts.nics.tx_queues(nic).ok_or_else(no_queues)?;
    let text = facts.netfront.get()?;
    if used >= cpus || used < text.number()? {
        return Ok(None);
    }
    let summary = format!("{nic} uses {used} queues; this guest has {cpus} CPUs");
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause("One CPU at a time serves a queue, and xen_netfront asks for no more.")
        .quote([seen, text.quote(1)])
        .advise(Advice::by_hand(
            "Let it ask for a queue for each CPU, and check that the host offers as many. The \
             interface must reconnect, so restart the guest.",
            &[&format!(
                "echo options xen_netfront max_queues={cpus} >> /etc/modprobe.d/xen-netfront.conf"
            )],
        ))
        .gain(VIF_GAIN);
    Ok(Some(more(finding, used, cpus)))
}

fn no_queues() -> Gap {
    Gap::NotHere("no queues are visible".to_owned())
}

/// A vif's queues, as the host sees them, beside what the host offers and the guest could use.
fn check_vif(facts: &Facts, vif: &str) -> Result<Option<Finding>, Gap> {
    let (domain, handle) = vif
        .strip_prefix("vif")
        .and_then(|rest| rest.split_once('.'))
        .ok_or_else(|| Gap::NotHere("no vif".to_owned()))?;
    let store = facts.store.get()?;
    let nodes = Nodes::parse(store)?;
    let node = format!("/local/domain/0/backend/vif/{domain}/{handle}/multi-queue-max-queues");
    let offered: u64 = match nodes.get(&node).map(str::parse) {
        Some(Ok(offered)) => offered,
        Some(Err(_)) => return Err(store.unreadable(nodes.line(&node), "expected a number")),
        None => 1,
    };
    let (used, _) = facts.nics.tx_queues(vif).ok_or_else(no_queues)?;
    let domains = facts.domains.get()?;
    let Some((vcpus, line)) = vcpus_of(domains, domain)? else {
        return Err(domains.unreadable(None, format!("expected a line with domain {domain}")));
    };
    let possible = vcpus.min(offered);
    let summary =
        format!("{vif} uses {used} queues; its guest has {vcpus} CPUs, the host offers {offered}");
    Ok((used < possible).then(|| {
        let finding = Finding::new(Severity::Warning, vif, summary)
            .cause("The guest asked for fewer queues than it has CPUs: an old or limited frontend.")
            .quote(nodes.line(&node).map(|line| store.quote(line)))
            .quote([domains.quote(line)])
            .advise(Advice::by_hand(
                "In the guest: raise max_queues of xen_netfront (8 by default), or use a kernel \
                 of 3.16 or later, and reconnect.",
                &[],
            ))
            .gain(VIF_GAIN);
        more(finding, used, possible)
    }))
}

/// A domain's CPUs, by `xl list`, whose names may have spaces.
fn vcpus_of(text: &Text, domain: &str) -> Result<Option<(u64, usize)>, Gap> {
    for (line, row) in text.lines().skip(1) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let [_, .., id, _, vcpus, _, _] = words.as_slice() else {
            return Err(
                text.unreadable(Some(line), "expected name, id, memory, VCPUs, state, time")
            );
        };
        if *id == domain {
            let vcpus = vcpus.parse();
            let vcpus = vcpus.map_err(|_| text.unreadable(Some(line), "expected a number"))?;
            return Ok(Some((vcpus, line)));
        }
    }
    Ok(None)
}
