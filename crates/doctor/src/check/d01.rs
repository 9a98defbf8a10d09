//! D01: a guest that uses an emulated card where a paravirtual one could be.

use super::{Check, Group, Looked, all_well};
use crate::evidence::manifest::XE_VMS;
use crate::evidence::{Gap, Quote, Text};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use crate::host::{Host, Kind, NicRole, Span, float};
use crate::parse::domains::Domains;
use crate::parse::libvirt::Guest;
use crate::parse::nic::NicCounters;
use crate::parse::xapi::Records;
use crate::parse::xenstore::Nodes;

pub(super) const CHECK: Check = Check {
    id: "D01",
    title: "no paravirtual driver",
    group: Group::Datapath,
    sources: &["throughput-guide:applies-to", "throughput-guide:no-pv-drivers"],
    explanation: include_str!("../../explain/D01.md"),
    look: Some(look),
};

/// Drivers of cards that hypervisors emulate.
const EMULATED: [&str; 7] =
    ["8139cp", "8139too", "e1000", "e1000e", "ne2k-pci", "pcnet32", "tulip"];
/// The same as QEMU's and libvirt's models.
const EMULATED_MODELS: [&str; 6] = ["e1000", "e1000e", "i82551", "ne2k_pci", "pcnet", "rtl8139"];
/// Packets a second from which it matters.
const PACKETS_MIN: f64 = 10.0;
/// The state of a vif whose guest has connected.
const CONNECTED: &str = "4";
const STORE: &str = "/local/domain/0/backend/vif";
const CAUSE: &str = "Each access to a register of an emulated card leaves the guest, and a process \
                     of the host plays the card: slower by an order of magnitude.";
const GAIN: &str = "an order of magnitude (throughput guide)";

fn look(host: &Host) -> Looked {
    match host.kind().kind {
        Kind::KvmGuest | Kind::XenGuest | Kind::OtherGuest => inside(host),
        Kind::KvmHost => kvm(host),
        Kind::XenDom0 => xen(host),
        Kind::Bare | Kind::XenDriverDomain => Err(Gap::NotHere("no guest's card".to_owned())),
    }
}

fn inside(host: &Host) -> Looked {
    let mut findings = Vec::new();
    let mut sound = None;
    for nic in host.nics().into_iter().filter(|nic| host.role(nic) != NicRole::Software) {
        let Some(driver) = host.driver(&nic) else { continue };
        let quote = driver_quote(host, &nic, &driver);
        if !EMULATED.contains(&driver.as_str()) {
            sound = Some(quote);
            continue;
        }
        let finding = Finding::new(
            severity(host, &nic)?,
            nic.clone(),
            format!("{nic} is an emulated card ({driver})"),
        );
        findings.push(
            finding
                .cause(CAUSE)
                .quote([quote])
                .confidence(if driver == "e1000e" { Confidence::Medium } else { Confidence::High })
                .gain(GAIN)
                .advise(Advice::by_hand(
                    "On the host, give the guest a paravirtual card: for libvirt <model \
                     type='virtio'/> in the interface's XML, and start the guest anew. On Xen it \
                     has one already: load its driver. Windows: virtio-win, or the Xen project's \
                     drivers.",
                    &["modprobe xen-netfront || modprobe virtio_net"],
                )),
        );
    }
    match (findings.is_empty(), sound) {
        (true, None) => Err(Gap::NotHere("no interface with a driver".to_owned())),
        (true, sound) => Ok(vec![all_well("interfaces have paravirtual or real drivers", sound)]),
        (false, _) => Ok(findings),
    }
}

fn driver_quote(host: &Host, nic: &str, driver: &str) -> Quote {
    let path = format!("sys/class/net/{nic}/device/uevent");
    let uevent = host.file(&path).ok();
    let line = uevent.and_then(|text| text.quote_where(|line| line.starts_with("DRIVER=")));
    let info = || host.command(&["ethtool", "-i", nic]).ok()?.quote_where(is_driver);
    let file = format!("/sys/class/net/{nic}/device/driver");
    line.or_else(info).unwrap_or(Quote { file, line: None, text: driver.to_owned() })
}

fn is_driver(line: &str) -> bool {
    line.starts_with("driver:")
}

/// A card without traffic is no problem yet.
fn severity(host: &Host, nic: &str) -> Result<Severity, Gap> {
    let span: Span<NicCounters> = match host.span("proc/net/dev") {
        Err(Gap::Missing { .. }) => return Ok(Severity::Warning),
        other => other?,
    };
    let before = span.past(span.before.nics.get(nic));
    let (Some(after), Some(before)) = (span.after.nics.get(nic), before) else {
        return Ok(Severity::Note);
    };
    let rate = float(after.since(&before).packets()) / span.seconds;
    Ok(if rate >= PACKETS_MIN { Severity::Problem } else { Severity::Note })
}

fn kvm(host: &Host) -> Looked {
    let list = host.command(&["virsh", "-r", "list", "--name"])?;
    let mut findings = Vec::new();
    let mut sound = None;
    for (_, name) in list.lines().filter(|(_, name)| !name.trim().is_empty()) {
        let name = name.trim();
        let found = host.command(&["virsh", "-r", "dumpxml", name]);
        match found.and_then(|text| Ok((Guest::parse(&text)?, text))) {
            Ok((guest, text)) => match of_guest(host, &guest, &text)? {
                found if found.is_empty() => sound = text.quote_where(|l| l.contains("<model")),
                found => findings.extend(found),
            },
            Err(gap) => findings.push(Finding::gap(name, &gap)),
        }
    }
    if findings.is_empty() {
        if sound.is_none() {
            return Err(Gap::NotHere("no guest with an interface".to_owned()));
        }
        findings.push(all_well("no guest has an emulated card", sound));
    }
    Ok(findings)
}

fn of_guest(host: &Host, guest: &Guest, text: &Text) -> Looked {
    let mut findings = Vec::new();
    for nic in &guest.interfaces {
        if !EMULATED_MODELS.contains(&nic.model.as_str()) {
            continue;
        }
        let Guest { name, .. } = guest;
        let summary = format!("guest {name} has an emulated card ({}, {})", nic.model, nic.target);
        let finding = Finding::new(severity(host, &nic.target)?, name.clone(), summary)
            .cause(CAUSE)
            .quote([text.quote(nic.line)])
            .gain(GAIN)
            .advise(Advice::by_hand(
                "Make it <model type='virtio'/>, once the guest has the driver, and start the \
                 guest anew.",
                &[&format!("virsh edit {}", shell_word(name))],
            ));
        findings.push(finding);
    }
    Ok(findings)
}

/// A guest whose vif nobody connected to, and whose emulated card (`vifX.Y-emu`) is at work.
fn xen(host: &Host) -> Looked {
    let store = host.command(&["xenstore-ls", "-f", STORE])?;
    let nodes = Nodes::parse(&store)?;
    let span: Span<NicCounters> = host.span("proc/net/dev")?;
    let mut findings = Vec::new();
    let mut sound = None;
    for path in nodes.paths() {
        let vif = path.strip_prefix(STORE).and_then(|rest| rest.strip_suffix("/state"));
        let Some((domain, handle)) = vif.and_then(|vif| vif.trim_matches('/').split_once('/'))
        else {
            continue;
        };
        let quote = store.quote(nodes.line(path).unwrap_or(1));
        if nodes.get(path) == Some(CONNECTED) {
            sound = Some(quote);
            continue;
        }
        let emulated = format!("vif{domain}.{handle}-emu");
        let before = span.past(span.before.nics.get(&emulated));
        let (Some(after), Some(before)) = (span.after.nics.get(&emulated), before) else {
            continue;
        };
        if float(after.since(&before).packets()) / span.seconds >= PACKETS_MIN {
            let finding = unconnected(host, domain, handle);
            findings.push(finding.quote([quote, span.text.quote(after.line)]));
        }
    }
    if findings.is_empty() {
        if sound.is_none() {
            return Err(Gap::NotHere("no vif of a guest".to_owned()));
        }
        findings.push(all_well("guests with traffic have connected to their vifs", sound));
    }
    Ok(findings)
}

fn unconnected(host: &Host, domain: &str, handle: &str) -> Finding {
    let summary = format!("domain {domain} uses the emulated card beside vif{domain}.{handle}");
    let finding = Finding::new(Severity::Problem, format!("vif{domain}.{handle}"), summary)
        .cause(format!("Its vif waits for a driver. {CAUSE}"))
        .quote(name_of(host, domain))
        .quote(tools_of(host, domain))
        .gain(GAIN);
    finding.advise(Advice::by_hand(
        "In the guest: Linux has xen_netfront; Windows needs the Xen project's drivers or the \
         tools of XenServer or XCP-ng. Then start the guest anew, and see that the state is 4.",
        &[&format!("xenstore-read {STORE}/{domain}/{handle}/state")],
    ))
}

fn name_of(host: &Host, domain: &str) -> Option<Quote> {
    let list = host.command(&["xl", "list"]).ok()?;
    let line = Domains::parse(&list).ok()?.domains.get(&domain.parse().ok()?)?.line;
    Some(list.quote(line))
}

/// What XAPI knows of the guest's drivers.
fn tools_of(host: &Host, domain: &str) -> Option<Quote> {
    let text = host.command(XE_VMS).ok()?;
    let records = Records::parse(&text).ok()?;
    let is_it = |record: &&std::collections::BTreeMap<String, (String, usize)>| {
        record.get("dom-id").is_some_and(|(id, _)| id == domain)
    };
    let (_, line) = records.all.iter().find(is_it)?.get("PV-drivers-version")?;
    Some(text.quote(*line))
}
