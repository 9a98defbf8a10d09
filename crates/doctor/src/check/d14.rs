//! D14: queues that are there and not used.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, NicSettings, Quote, Text};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use crate::host::{Host, NicRole};
use crate::parse::ethtool::Settings;
use crate::parse::xenstore::Nodes;

pub(super) const CHECK: Check = Check {
    id: "D14",
    title: "queues are not used",
    group: Group::Queues,
    rows: &["L8", "W4", "W6", "W7", "W8", "W9", "W12", "W13", "W14", "W17"],
    explanation: include_str!("../../explain/D14.md"),
    look: Some(look),
};

fn look(host: &Host) -> Looked {
    let cpus = host.online_cpus()?;
    if cpus < 2 {
        return Err(Gap::NotHere("one CPU".to_owned()));
    }
    let mut findings = Vec::new();
    let mut is_any_seen = false;
    for nic in host.nics() {
        let found = match host.role(&nic) {
            NicRole::Software => continue,
            NicRole::Backend => look_at_vif(host, &nic),
            role => look_at_channels(host, &nic, role, cpus),
        };
        match found {
            Ok(found) => findings.extend(found),
            Err(Gap::NotHere(_)) => continue,
            Err(gap) => findings.push(Finding::gap(nic, &gap)),
        }
        is_any_seen = true;
    }
    if !is_any_seen {
        return Err(Gap::NotHere("no interface with queues".to_owned()));
    }
    if findings.is_empty() {
        findings.push(all_well(format!("queues enough for {cpus} CPUs"), None));
    }
    Ok(findings)
}

fn look_at_channels(
    host: &Host,
    nic: &str,
    role: NicRole,
    cpus: u64,
) -> Result<Option<Finding>, Gap> {
    let text = host.settings(nic, NicSettings::Channels).map_err(|gap| match gap {
        // A driver with one queue has nothing to be set.
        Gap::Missing { why, .. } if why.contains("not supported") => Gap::NotHere(why),
        other => other,
    })?;
    let channels = Settings::parse(&text)?;
    let which = "combined";
    let (Some(current), Some(maximum)) = (channels.current.get(which), channels.maximum.get(which))
    else {
        return Err(Gap::NotHere("it has no combined channels".to_owned()));
    };
    if current.value > maximum.value || current.value == 0 {
        return Err(text.unreadable(Some(current.line), "more channels than there can be, or none"));
    }
    let quotes = [text.quote(maximum.line), text.quote(current.line)];
    let proposed = cpus.min(maximum.value);
    if current.value < proposed {
        let severity = match role {
            NicRole::Physical if current.value > 1 => Severity::Note,
            _ => Severity::Warning,
        };
        return Ok(Some(unused(nic, severity, current.value, proposed, quotes)));
    }
    let is_single = maximum.value == 1 && role == NicRole::Frontend;
    Ok(is_single.then(|| single(host, nic, cpus, quotes)))
}

fn unused(
    nic: &str,
    severity: Severity,
    current: u64,
    proposed: u64,
    quotes: [Quote; 2],
) -> Finding {
    let knob = Knob::Channels { nic: nic.to_owned(), which: "combined".to_owned() };
    let summary = format!("{nic} uses {current} of {proposed} queues that it could");
    Finding::new(severity, nic, summary)
        .cause("Each queue is served by one CPU at a time; CPUs without a queue do not help.")
        .quote(quotes)
        .advise(Advice::by_change(
            "Use a queue for each CPU (rows W8, W9). It can be done while traffic flows, though \
             some drivers interrupt it for a moment; put it into the interface's configuration.",
            vec![Change::new(knob, Some(current.to_string()), proposed)],
        ))
        .gain("1 to 8 queues: 3.23 to 8.42 Gbit/s through a network node (row W14)")
}

fn single(host: &Host, nic: &str, cpus: u64, quotes: [Quote; 2]) -> Finding {
    let advice = match host.driver(nic).as_deref() {
        Some("virtio_net") => Advice::by_hand(
            format!(
                "On the host: <driver name='vhost' queues='{cpus}'/> in the interface's libvirt \
                 XML, or queues={cpus} and mq=on for QEMU; then start the guest anew. In OpenStack \
                 since Liberty: hw_vif_multiqueue_enabled=true of the image."
            ),
            &[],
        ),
        _ => Advice::by_hand(
            "On the host: max_queues of xen_netback, or max-queues of ringway; in the guest: \
             max_queues of xen_netfront.",
            &[],
        ),
    };
    Finding::new(Severity::Note, nic, format!("the host of {nic} offers one queue for {cpus} CPUs"))
        .cause("Each queue is served by one CPU at a time.")
        .quote(quotes)
        .advise(advice)
        .gain("1 to 8 queues: 3.23 to 8.42 Gbit/s through a network node (row W14)")
}

/// A vif's queues, as the host sees them, beside what the host offers and the guest could use.
fn look_at_vif(host: &Host, vif: &str) -> Result<Option<Finding>, Gap> {
    let (domain, handle) = vif
        .strip_prefix("vif")
        .and_then(|rest| rest.split_once('.'))
        .ok_or_else(|| Gap::NotHere("no vif".to_owned()))?;
    let store = host.command(&["xenstore-ls", "-f", "/local/domain/0/backend/vif"])?;
    let nodes = Nodes::parse(&store)?;
    let node = format!("/local/domain/0/backend/vif/{domain}/{handle}/multi-queue-max-queues");
    let offered: u64 = match nodes.get(&node).map(str::parse) {
        Some(Ok(offered)) => offered,
        Some(Err(_)) => return Err(store.unreadable(nodes.line(&node), "expected a number")),
        None => 1,
    };
    let queues = host.list(&format!("sys/class/net/{vif}/queues"));
    let used = u64::try_from(queues.iter().filter(|queue| queue.starts_with("tx-")).count());
    let used = used.unwrap_or(0);
    if used == 0 {
        return Err(Gap::NotHere("no queues are seen".to_owned()));
    }
    let domains = host.command(&["xl", "list"])?;
    let Some((vcpus, line)) = vcpus_of(&domains, domain)? else {
        return Err(domains.unreadable(None, format!("expected a line with domain {domain}")));
    };
    let possible = vcpus.min(offered);
    let summary =
        format!("{vif} uses {used} queues; its guest has {vcpus} CPUs, the host offers {offered}");
    Ok((used < possible).then(|| {
        Finding::new(Severity::Warning, vif, summary)
            .cause("The guest asked for fewer queues than it has CPUs: an old or limited frontend.")
            .quote(nodes.line(&node).map(|line| store.quote(line)))
            .quote([domains.quote(line)])
            .advise(Advice::by_hand(
                "In the guest: raise max_queues of xen_netfront (8 by default), \
                 or use a kernel of 3.16 or later, and connect anew.",
                &[],
            ))
            .gain("one to eight queues: 6.25 to 9.4 Gbit/s out of a guest (rows P10, P11)")
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
