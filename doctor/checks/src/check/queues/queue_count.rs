//! D15: the requested number of queues is not in effect.

use crate::check::{Check, Group, Judged, Verdicts, fewer_queues, more_queues, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    CommandLine, FrontendStores, HostKind, Interfaces, Kind, ModuleOptions, ModuleQueues, NicRole,
    OnlineCpus, Release, Tried, VifStore, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::xenstore::Nodes;
use ringway_evidence::{Gap, Quote, Text};
use ringway_model::contention::gain;

pub(crate) const CHECK: Check = Check {
    id: "D15",
    slug: "queue-count",
    title: "the number of queues is not the one requested",
    group: Group::Queues,
    sources: &["multi-queue-series:maximum"],
    explanation: include_str!("queue_count.txt"),
    absent: "no Xen",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        release: Tried<Release>,
        modules: ModuleQueues,
        options: ModuleOptions,
        cmdline: Tried<CommandLine>,
        store: Tried<VifStore>,
        frontends: FrontendStores,
        nics: Interfaces,
        cpus: Tried<OnlineCpus>,
    }
}

/// The first kernel whose Xen drivers have queues.
const QUEUES_SINCE: (u32, u32) = (3, 16);
/// The first kernel that keeps the number that its modules were loaded with.
const KEPT_SINCE: (u32, u32) = (4, 3);
/// A number of queues, with its line.
type Number = (u64, Quote);
const STORE: &str = "/local/domain/0/backend/vif";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let module = match facts.kind.kind {
        Kind::XenDom0 | Kind::XenDriverDomain => "xen_netback",
        Kind::XenGuest => "xen_netfront",
        _ => return Err(Gap::NotHere("no Xen".to_owned())),
    };
    let kernel = facts.release.ok().and_then(Release::version);
    let in_force = match facts.modules.of(module) {
        Ok(text) => Some((text.number()?, text.quote(1))),
        Err(Gap::Missing { .. }) => None,
        Err(gap) => return Err(gap),
    };
    let asked = asked(facts, module)?;
    out.add(judge_module(facts, module, kernel, (asked.as_ref(), in_force.as_ref())));
    if module == "xen_netback" {
        vifs(facts, in_force.as_ref(), out)?;
    } else if let Some((queues, quote)) = &in_force {
        frontends(facts, *queues, quote, out)?;
    }
    match in_force {
        Some((queues, quote)) => out.well(format!("{module} allows {queues} queues"), Some(quote)),
        None => out.well(format!("{module} has no setting for the number of queues"), None),
    }
    Ok(())
}

/// The number that an administrator set for a module: on the kernel's command line, or for
/// `modprobe`.
fn asked(facts: &Facts, module: &str) -> Result<Option<(u64, Quote)>, Gap> {
    let key = format!("{module}.max_queues=");
    let dashed = key.replace('_', "-").replace("max-queues", "max_queues");
    let mut found = None;
    for text in facts.options.all() {
        let is_of = |word: &str| word.replace('-', "_") == module;
        for (line, row) in text.lines() {
            let mut words = row.split_whitespace();
            if words.next() == Some("options") && words.next().is_some_and(is_of) {
                let value = words.find_map(|word| word.strip_prefix("max_queues="));
                found = number(&text, line, value)?.or(found);
            }
        }
    }
    if let Some(text) = facts.cmdline.ok() {
        let value = text
            .body()
            .split_whitespace()
            .find_map(|word| word.strip_prefix(&key).or_else(|| word.strip_prefix(&dashed)));
        found = number(text, 1, value)?.or(found);
    }
    Ok(found)
}

fn number(text: &Text, line: usize, value: Option<&str>) -> Result<Option<(u64, Quote)>, Gap> {
    let Some(value) = value else { return Ok(None) };
    let refuse = |_| text.unreadable(Some(line), "expected a number after max_queues=");
    Ok(Some((value.parse().map_err(refuse)?, text.quote(line))))
}

fn judge_module(
    facts: &Facts,
    module: &str,
    kernel: Option<(u32, u32)>,
    (asked, in_force): (Option<&Number>, Option<&Number>),
) -> Option<Finding> {
    let (asked, asked_quote) = asked?;
    let version = kernel.map(|(major, minor)| format!("Linux {major}.{minor}")).unwrap_or_default();
    let Some((queues, quote)) = in_force else {
        // Without the parameter the module may be absent; only the version tells.
        if kernel.is_none_or(|kernel| kernel >= QUEUES_SINCE) {
            return None;
        }
        let summary = format!("{asked} queues were requested from {module}, but {version} has one");
        let finding = Finding::new(Severity::Warning, module, summary);
        return Some(
            finding
                .cause("Xen's network drivers have queues since Linux 3.16.")
                .quote([asked_quote.clone()])
                .advise(Advice::by_hand("Use a kernel of 3.16 or later on this side.", &[])),
        );
    };
    if queues == asked {
        return None;
    }
    let summary = format!("{asked} queues were requested from {module}, but {queues} are in use");
    let cause = if kernel.is_some_and(|kernel| kernel < KEPT_SINCE) {
        format!("{version} replaces the setting by the number of CPUs when it loads the module.")
    } else {
        "The value was changed later, or the module was loaded before the setting was made."
            .to_owned()
    };
    let finding = Finding::new(Severity::Warning, module, summary)
        .cause(cause)
        .quote([asked_quote.clone(), quote.clone()])
        .advise(Advice::by_change(
            "Set it while the module runs. The change takes effect when a vif reconnects.",
            // Also if that is fewer: it is the requested number.
            more_queues(&facts.modules, module, *asked)
                .or_else(|| fewer_queues(&facts.modules, module, *asked)),
        ));
    let cpus = facts.cpus.ok().map(|OnlineCpus(cpus)| *cpus);
    Some(more(finding, *queues, cpus.map_or(*asked, |cpus| cpus.min(*asked))))
}

/// What more queues gain, no more of them than there are CPUs: others only take turns (D24).
fn more(finding: Finding, used: u64, wanted: u64) -> Finding {
    if wanted <= used || used == 0 {
        return finding;
    }
    finding.forecast(gain(float(used), float(wanted)), "if queues are the limit")
}

/// Vifs that were offered another number, and guests that request more than they are offered.
fn vifs(facts: &Facts, in_force: Option<&(u64, Quote)>, out: &mut Verdicts) -> Judged {
    let store = match facts.store.get() {
        Err(Gap::Missing { .. }) => return Ok(()),
        other => other?,
    };
    let nodes = Nodes::parse(store)?;
    for path in nodes.paths() {
        let Some(vif) = path.strip_prefix(STORE) else { continue };
        let Some(vif) = vif.strip_suffix("/multi-queue-max-queues") else { continue };
        let Some((domain, handle)) = vif.trim_matches('/').split_once('/') else { continue };
        let line = nodes.line(path).unwrap_or(1);
        let offered: u64 = nodes
            .get(path)
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| store.unreadable(Some(line), "expected a number"))?;
        let offer = store.quote(line);
        let name = format!("vif{domain}.{handle}");
        if let Some((wanted, quote)) = requested(facts, domain, handle)? {
            if wanted > offered {
                out.add([refused(facts, &name, (wanted, offered), [offer, quote])]);
                continue;
            }
        }
        // A vif that the kernel does not show is served by another backend, with its own number.
        let is_kernels = facts.nics.names().contains(&name);
        let other = in_force.filter(|(queues, _)| *queues != offered && is_kernels);
        out.add(
            other.map(|(queues, quote)| stale(&name, offered, *queues, [offer, quote.clone()])),
        );
    }
    Ok(())
}

/// What a guest asks for, as far as its part of the store was read.
fn requested(facts: &Facts, domain: &str, handle: &str) -> Result<Option<(u64, Quote)>, Gap> {
    let store = match facts.frontends.of(domain) {
        Err(Gap::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let nodes = Nodes::parse(&store)?;
    let node = format!("/local/domain/{domain}/device/vif/{handle}/multi-queue-num-queues");
    let (Some(value), Some(line)) = (nodes.get(&node), nodes.line(&node)) else { return Ok(None) };
    let wanted = value.parse().map_err(|_| store.unreadable(Some(line), "expected a number"))?;
    Ok(Some((wanted, store.quote(line))))
}

fn refused(facts: &Facts, vif: &str, (wanted, offered): (u64, u64), quotes: [Quote; 2]) -> Finding {
    let summary = format!("the guest of {vif} asks for {wanted} queues, but {offered} are offered");
    Finding::new(Severity::Problem, vif, summary)
        .cause(
            "The host rejects a request for more than its maximum, and the vif does not connect.",
        )
        .quote(quotes)
        .advise(Advice::by_change(
            "Let the guest ask for no more than the host offers, or offer more, and reconnect.",
            more_queues(&facts.modules, "xen_netback", wanted),
        ))
}

fn stale(vif: &str, offered: u64, queues: u64, quotes: [Quote; 2]) -> Finding {
    let summary = format!("{vif} was offered {offered} queues, but new vifs get {queues}");
    let domain = vif.trim_start_matches("vif").split('.').next().unwrap_or_default();
    Finding::new(Severity::Warning, vif, summary)
        .cause("A vif keeps the number that it was offered when it was created.")
        .quote(quotes)
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Detach the vif and attach it again, which interrupts it, or restart its guest.",
            &[&format!("xl reboot {domain}")],
        ))
}

/// A guest's own interfaces with fewer queues than its driver may use.
fn frontends(facts: &Facts, allowed: u64, quote: &Quote, out: &mut Verdicts) -> Judged {
    let OnlineCpus(cpus) = *facts.cpus.get()?;
    for nic in
        facts.nics.names().into_iter().filter(|nic| facts.nics.role(nic) == NicRole::Frontend)
    {
        let Some((used, seen)) = facts.nics.tx_queues(&nic) else { continue };
        if used >= allowed.min(cpus) {
            continue;
        }
        let summary =
            format!("{nic} has {used} queues; it may ask for {allowed}, and there are {cpus} CPUs");
        let finding = Finding::new(Severity::Warning, nic.clone(), summary)
            .cause("The host offers no more: a frontend uses the lesser of both numbers.")
            .quote([quote.clone(), seen])
            .advise(Advice::by_hand(
                format!(
                    "On the host, if it has fewer: {allowed} for max_queues of xen_netback, or \
                     max-queues of ringway. Then reconnect."
                ),
                &[],
            ));
        out.add([more(finding, used, allowed.min(cpus))]);
    }
    Ok(())
}
