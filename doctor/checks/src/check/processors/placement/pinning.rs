//! Guests whose virtual CPUs are pinned in a harmful way.

use std::collections::{BTreeMap, BTreeSet};

use super::{Facts, node_of, nodes};
use crate::check::{Judged, Verdicts, not_here};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::Kind;
use ringway_evidence::parse::Counters;
use ringway_evidence::parse::cpus::cpu_ranges as list;
use ringway_evidence::parse::domains::{Vcpu, VcpuTimes};
use ringway_evidence::parse::libvirt::Guest;
use ringway_evidence::parse::xapi::Records;
use ringway_evidence::{Gap, Quote, Text};

const PINNED: &str =
    "Pinning helps to find out which CPUs each part needs, and easily makes performance worse.";

/// Lines that a finding quotes of a guest.
const QUOTES_MAX: usize = 3;

pub(super) fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    match facts.kind.kind {
        Kind::XenDom0 => xen(facts, out),
        Kind::KvmHost => kvm(facts, out),
        _ => Ok(()),
    }
}

fn xen(facts: &Facts, out: &mut Verdicts) -> Judged {
    let text = match facts.vcpus.get() {
        Err(Gap::Missing { file, .. }) => return not_here(file),
        other => other?,
    };
    let times = VcpuTimes::parse(text)?;
    let own = held(times.domain(0));
    let domains: BTreeSet<u32> = times.vcpus.keys().map(|(domain, _)| *domain).collect();
    for domain in domains.into_iter().filter(|domain| *domain != 0) {
        let Some(cpus) = held(times.domain(domain)) else { continue };
        let online: Vec<&Vcpu> = times.domain(domain).filter(|vcpu| vcpu.is_online).collect();
        let name = online.first().map(|vcpu| vcpu.domain.clone()).unwrap_or_default();
        let found = if online.len() > 1 && cpus.len() == 1 {
            one_cpu(&name, online.len(), &cpus)
        } else if own.as_ref().is_some_and(|own| cpus.is_subset(own)) {
            with_domain_0(&name, &cpus)
        } else {
            continue;
        };
        let first = times.domain(0).filter(|_| cpus.len() > 1).take(1);
        let lines = online.iter().copied().take(QUOTES_MAX).chain(first).map(|vcpu| vcpu.line);
        let mut commands = vec![format!("xl vcpu-pin {domain} all all")];
        commands.extend(unmask(facts, domain, &name));
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let advice = format!(
            "Let it run everywhere, or on other CPUs than domain 0 (xl vcpu-pin ID all 2-5). For \
             its next start: cpus= in its configuration, or VCPUs-params:mask in XAPI. {PINNED}"
        );
        out.add([found
            .quote(lines.map(|line| text.quote(line)))
            .advise(Advice::by_hand(advice, &commands))]);
    }
    out.well("no guest is pinned to too few CPUs or to domain 0's", None);
    Ok(())
}

/// The command that removes the pinning in XAPI.
fn unmask(facts: &Facts, domain: u32, name: &str) -> Option<String> {
    let guests = Records::parse(facts.xapi.ok()?).ok()?;
    let uuid = guests.guest(domain, name)?;
    let uuid = shell_word(uuid);
    Some(format!("xe vm-param-remove uuid={uuid} param-name=VCPUs-params param-key=mask"))
}

/// The physical CPUs that all of these are pinned to; `None` if one of them may run anywhere.
fn held<'a>(vcpus: impl Iterator<Item = &'a Vcpu>) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for vcpu in vcpus.filter(|vcpu| vcpu.is_online) {
        cpus.extend(vcpu.pinned.as_ref()?);
    }
    (!cpus.is_empty()).then_some(cpus)
}

fn one_cpu(name: &str, vcpus: usize, cpus: &BTreeSet<usize>) -> Finding {
    let summary = format!("all {vcpus} virtual CPUs of {name} take turns on CPU {}", list(cpus));
    warning(name, summary).cause(
        "They all run on one physical CPU, so more virtual CPUs or queues do not help, and each \
         waits while another one runs.",
    )
}

fn with_domain_0(name: &str, cpus: &BTreeSet<usize>) -> Finding {
    let summary = format!("{name} is pinned to CPUs of domain 0: {}", list(cpus));
    warning(name, summary).cause(
        "Domain 0 must move what the guest sends and receives, and waits until the guest leaves \
         its CPU.",
    )
}

fn warning(name: &str, summary: String) -> Finding {
    Finding::new(Severity::Warning, name, summary).confidence(Confidence::Medium)
}

fn kvm(facts: &Facts, out: &mut Verdicts) -> Judged {
    let names = match facts.guests.names() {
        Err(Gap::Missing { file, .. }) => return not_here(file),
        other => other?,
    };
    let nodes = match nodes(facts) {
        Err(Gap::NotHere(_)) => BTreeMap::new(),
        other => other?,
    };
    for (_, name) in names.lines().filter(|(_, name)| !name.trim().is_empty()) {
        let text = facts.guests.of(name.trim());
        match text.and_then(|text| Ok((Guest::parse(&text)?, text))) {
            Ok((guest, text)) => {
                out.add(of_guest(facts, &guest, &nodes, &text));
            }
            Err(gap) => out.unread(name.trim(), &gap),
        }
    }
    out.well("no guest is pinned to too few CPUs or to distant ones", None);
    Ok(())
}

fn of_guest(
    facts: &Facts,
    guest: &Guest,
    nodes: &BTreeMap<usize, Vec<usize>>,
    text: &Text,
) -> Option<Finding> {
    let quote = guest.pinned_line.map(|line| text.quote(line));
    let Guest { name, vcpus, pinned, .. } = guest;
    let count = usize::try_from(*vcpus).unwrap_or(usize::MAX);
    let cpus: BTreeSet<usize> = pinned.values().flatten().copied().collect();
    if pinned.len() < count || cpus.is_empty() {
        return None;
    }
    if count > 1 && cpus.len() == 1 {
        let all = nodes.values().flatten().copied().collect();
        return Some(one_cpu(name, count, &cpus).quote(quote).advise(move_to(guest, &all)));
    }
    let is_near = |cpus_of: &[usize]| cpus_of.iter().any(|cpu| cpus.contains(cpu));
    let near = nodes.iter().filter(|(_, cpus_of)| is_near(cpus_of));
    let near: BTreeSet<usize> = near.map(|(node, _)| *node).collect();
    let (what, node, more) =
        far_memory(guest, &near, text).or_else(|| far_card(facts, guest, &near))?;
    let summary = format!("{name} runs on NUMA node {}, and {what} is on node {node}", list(&near));
    let cpus_there = nodes.get(&node).into_iter().flatten().copied().collect();
    let finding = warning(name, summary)
        .cause("Every packet crosses from one socket's memory to the other's.")
        .quote(quote)
        .quote([more])
        .advise(move_to(guest, &cpus_there));
    Some(finding)
}

/// A remote device, its node, and the line that shows it.
type Far = (String, usize, Quote);

fn far_memory(guest: &Guest, near: &BTreeSet<usize>, text: &Text) -> Option<Far> {
    let (memory, line) = guest.memory.as_ref()?;
    let is_far = !near.is_empty() && memory.iter().all(|node| !near.contains(node));
    is_far.then_some(("its memory".to_owned(), *memory.first()?, text.quote(*line)))
}

/// A card that the guest's packets go through.
fn far_card(facts: &Facts, guest: &Guest, near: &BTreeSet<usize>) -> Option<Far> {
    let stack = &facts.stack;
    let of_guest = guest.interfaces.iter().filter(|nic| !nic.target.is_empty());
    let cards = of_guest.flat_map(|nic| stack.around(&nic.target));
    let mut known = cards.filter_map(|card| Some((node_of(facts, &card)?, card)));
    let ((node, quote), card) = known.find(|((node, _), _)| !near.contains(node))?;
    (!near.is_empty()).then_some((format!("its card {card}"), node, quote))
}

fn move_to(guest: &Guest, cpus: &BTreeSet<usize>) -> Advice {
    let Guest { name, vcpus, .. } = guest;
    let (name, list) = (shell_word(name), list(cpus));
    let vcpus = (0..*vcpus).take(QUOTES_MAX).filter(|_| !cpus.is_empty());
    let each = vcpus.map(|vcpu| format!("virsh vcpupin {name} {vcpu} {list}"));
    let commands: Vec<String> = each.collect();
    Advice::by_hand(
        format!(
            "Pin each virtual CPU like this, and permanently with <vcpupin> in its XML; use \
             emulatorpin for its other threads. {PINNED}"
        ),
        &commands.iter().map(String::as_str).collect::<Vec<_>>(),
    )
}
