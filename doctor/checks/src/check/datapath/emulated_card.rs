//! D01: a guest that uses an emulated card where a paravirtual one could be, or whose paravirtual
//! card ringway does not serve.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::{
    Guests, HostKind, Interfaces, Kind, NicRole, Span, Tried, VifStore, XapiGuests, XenDomains,
    float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::domains::Domains;
use ringway_evidence::parse::libvirt::Guest;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::ringway::{CONNECTED as SERVED, Vif, Vifs};
use ringway_evidence::parse::xapi::Records;
use ringway_evidence::parse::xenstore::Nodes;
use ringway_evidence::{Gap, Quote, Text, squeezed};

pub(crate) const CHECK: Check = Check {
    id: "D01",
    slug: "emulated-card",
    title: "no paravirtual driver, or a vif that is not served",
    group: Group::Datapath,
    sources: &["throughput-guide:applies-to", "throughput-guide:no-pv-drivers"],
    explanation: include_str!("emulated_card.txt"),
    absent: "no interface with a driver",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        nics: Interfaces,
        moved: Tried<Span<NicCounters>>,
        guests: Guests,
        store: Tried<VifStore>,
        domains: Tried<XenDomains>,
        xapi: Tried<XapiGuests>,
        vifs: Tried<Span<Vifs>>,
    }
}

const CAUSE: &str = "Each access to a register of an emulated card exits to the hypervisor, and a \
                     process of the host emulates the card: slower by an order of magnitude.";
const GAIN: &str = "an order of magnitude (throughput guide)";

/// Drivers of cards that hypervisors emulate.
const EMULATED: [&str; 7] =
    ["8139cp", "8139too", "e1000", "e1000e", "ne2k-pci", "pcnet32", "tulip"];
/// What QEMU and libvirt call the models of such cards.
const EMULATED_MODELS: [&str; 6] = ["e1000", "e1000e", "i82551", "ne2k_pci", "pcnet", "rtl8139"];
/// Packets per second from which it matters.
const PACKETS_MIN: f64 = 10.0;
/// The state of a vif whose guest has connected.
const CONNECTED: &str = "4";
const STORE: &str = "/local/domain/0/backend/vif";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let cards = Verdicts::part(CHECK.absent, |out| emulated(facts, out));
    let vifs = Verdicts::part("no vif of ringway has a fault", |out| {
        let span = facts.vifs.get()?;
        out.add(span.after.all.iter().filter_map(|vif| unserved(span, vif)));
        out.add(refused(span));
        Ok(())
    });
    out.both(cards, vifs, "interfaces of guests")
}

/// A vif that ringway does not serve as it should. Whether its guest wants it, ringway cannot know,
/// so this is no problem yet; a vif that waits for a machine is fine, and its line says so.
fn unserved(span: &Span<Vifs>, vif: &Vif) -> Option<Finding> {
    let Vif { name, state, .. } = vif;
    let error = squeezed(vif.error.as_ref().filter(|_| !vif.lacks_guest())?);
    let summary = match state.as_str() {
        "" | SERVED => format!("the vif {name} has a fault: {error}"),
        state => format!("the guest of {name} is not served ({state}): {error}"),
    };
    let text = format!("{name}: {state}: {error}");
    let quote = Quote { file: span.text.origin().to_owned(), line: None, text };
    let finding = Finding::new(Severity::Warning, name.clone(), summary)
        .cause("Frames to and from it get lost until its guest connects again.")
        .quote([quote])
        .advise(Advice::by_hand(
            "Correct what ringway names. Then let the guest connect again: load its driver again, \
             or restart its machine.",
            &[&format!("ringway vif show {}", shell_word(name))],
        ));
    Some(finding)
}

/// A host of ringway whose description in the file is wrong.
fn refused(span: &Span<Vifs>) -> Option<Finding> {
    // Each vif has it.
    let notice = squeezed(span.after.all.iter().find_map(Vif::refusal)?);
    let summary = format!("ringway is {notice}");
    let quote = Quote { file: span.text.origin().to_owned(), line: None, text: notice };
    let finding = Finding::new(Severity::Warning, "ringway", summary)
        .cause("The one in the file has faults, so what was changed there is not in force.")
        .quote([quote])
        .advise(Advice::by_hand(
            "Correct what `ringway run --check FILE` prints, and have the host read it again.",
            &[],
        ));
    Some(finding)
}

fn emulated(facts: &Facts, out: &mut Verdicts) -> Judged {
    match facts.kind.kind {
        Kind::KvmGuest | Kind::XenGuest | Kind::OtherGuest => inside(facts, out),
        Kind::KvmHost => kvm(facts, out),
        Kind::XenDom0 => xen(facts, out),
        Kind::Bare | Kind::XenDriverDomain => not_here("no interface of a guest"),
    }
}

fn inside(facts: &Facts, out: &mut Verdicts) -> Judged {
    for nic in
        facts.nics.names().into_iter().filter(|nic| facts.nics.role(nic) != NicRole::Software)
    {
        let Some(driver) = facts.nics.driver(&nic) else { continue };
        let quote = facts.nics.driver_quote(&nic, &driver);
        if !EMULATED.contains(&driver.as_str()) {
            out.well("interfaces have paravirtual or physical drivers", Some(quote));
            continue;
        }
        let finding = Finding::new(
            severity(facts, &nic)?,
            nic.clone(),
            format!("{nic} is an emulated card ({driver})"),
        );
        out.add([finding
            .cause(CAUSE)
            .quote([quote])
            .confidence(if driver == "e1000e" { Confidence::Medium } else { Confidence::High })
            .gain(GAIN)
            .advise(Advice::by_hand(
                "On the host, give the guest a paravirtual card: for libvirt <model \
                 type='virtio'/> in the interface's XML, and restart the guest. On Xen the guest \
                 already has one: load its driver. Windows: virtio-win, or the Xen project's \
                 drivers.",
                &["modprobe xen-netfront || modprobe virtio_net"],
            ))]);
    }
    Ok(())
}

/// A card without traffic is no problem yet.
fn severity(facts: &Facts, nic: &str) -> Result<Severity, Gap> {
    let span = match facts.moved.get() {
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

fn kvm(facts: &Facts, out: &mut Verdicts) -> Judged {
    let list = facts.guests.names()?;
    let mut is_any = false;
    for (_, name) in list.lines().filter(|(_, name)| !name.trim().is_empty()) {
        let name = name.trim();
        match facts.guests.of(name).and_then(|text| Ok((Guest::parse(&text)?, text))) {
            Ok((guest, text)) => {
                let found = of_guest(facts, &guest, &text)?;
                let model = text.quote_where(|line| line.contains("<model"));
                is_any |= !found.is_empty() || model.is_some();
                if found.is_empty() {
                    out.well("no guest has an emulated card", model);
                }
                out.add(found);
            }
            Err(gap) => {
                is_any = true;
                out.unread(name, &gap);
            }
        }
    }
    if is_any { Ok(()) } else { not_here("no guest with an interface") }
}

fn of_guest(facts: &Facts, guest: &Guest, text: &Text) -> Result<Vec<Finding>, Gap> {
    let mut findings = Vec::new();
    for nic in &guest.interfaces {
        if !EMULATED_MODELS.contains(&nic.model.as_str()) {
            continue;
        }
        let Guest { name, .. } = guest;
        let summary = format!("guest {name} has an emulated card ({}, {})", nic.model, nic.target);
        let finding = Finding::new(severity(facts, &nic.target)?, name.clone(), summary)
            .cause(CAUSE)
            .quote([text.quote(nic.line)])
            .gain(GAIN)
            .advise(Advice::by_hand(
                "Change it to <model type='virtio'/> once the guest has the driver, and restart \
                 the guest.",
                &[&format!("virsh edit {}", shell_word(name))],
            ));
        findings.push(finding);
    }
    Ok(findings)
}

/// A guest whose vif has no frontend, and whose emulated card (`vifX.Y-emu`) carries traffic.
fn xen(facts: &Facts, out: &mut Verdicts) -> Judged {
    let store = facts.store.get()?;
    let nodes = Nodes::parse(store)?;
    let span = facts.moved.get()?;
    let mut is_any = false;
    for path in nodes.paths() {
        let vif = path.strip_prefix(STORE).and_then(|rest| rest.strip_suffix("/state"));
        let Some((domain, handle)) = vif.and_then(|vif| vif.trim_matches('/').split_once('/'))
        else {
            continue;
        };
        let quote = store.quote(nodes.line(path).unwrap_or(1));
        if nodes.get(path) == Some(CONNECTED) {
            is_any = true;
            out.well("guests with traffic have connected to their vifs", Some(quote));
            continue;
        }
        let emulated = format!("vif{domain}.{handle}-emu");
        let before = span.past(span.before.nics.get(&emulated));
        let (Some(after), Some(before)) = (span.after.nics.get(&emulated), before) else {
            continue;
        };
        if float(after.since(&before).packets()) / span.seconds >= PACKETS_MIN {
            let finding = unconnected(facts, domain, handle);
            is_any = true;
            out.add([finding.quote([quote, span.text.quote(after.line)])]);
        }
    }
    if is_any { Ok(()) } else { not_here("no vif of a guest") }
}

fn unconnected(facts: &Facts, domain: &str, handle: &str) -> Finding {
    let summary = format!("domain {domain} uses the emulated card beside vif{domain}.{handle}");
    let finding = Finding::new(Severity::Problem, format!("vif{domain}.{handle}"), summary)
        .cause(format!("Its vif waits for a driver. {CAUSE}"))
        .quote(name_of(facts, domain))
        .quote(tools_of(facts, domain))
        .gain(GAIN);
    finding.advise(Advice::by_hand(
        "In the guest: Linux has xen_netfront; Windows needs the Xen project's drivers or the \
         tools of XenServer or XCP-ng. Then restart the guest, and check that the state is 4.",
        &[&format!("xenstore-read {STORE}/{domain}/{handle}/state")],
    ))
}

fn name_of(facts: &Facts, domain: &str) -> Option<Quote> {
    let list = facts.domains.ok()?;
    let line = Domains::parse(list).ok()?.domains.get(&domain.parse().ok()?)?.line;
    Some(list.quote(line))
}

/// XAPI's information about the guest's drivers.
fn tools_of(facts: &Facts, domain: &str) -> Option<Quote> {
    let text = facts.xapi.ok()?;
    let records = Records::parse(text).ok()?;
    let is_it = |record: &&std::collections::BTreeMap<String, (String, usize)>| {
        record.get("dom-id").is_some_and(|(id, _)| id == domain)
    };
    let (_, line) = records.all.iter().find(is_it)?.get("PV-drivers-version")?;
    Some(text.quote(*line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    /// What is found of a vif in this state, with further keys.
    fn found(state: &str, keys: &str) -> Vec<Finding> {
        let vifs = format!(
            r#"[{{"name":"vm1","kind":"virtio","state":"{state}",{keys}"max_queues":1,
            "queues":[]}}]"#
        );
        let pieces = [
            ("sample-1/monotonic", "1.0"),
            ("sample-2/monotonic", "2.0"),
            ("sample-1/commands/ringway_vif_list_--json", vifs.as_str()),
            ("sample-2/commands/ringway_vif_list_--json", vifs.as_str()),
            ("sample-2/proc/net/dev", "Inter-|\n face |bytes"),
        ];
        CHECK.outcome(&host(pieces.map(|(path, text)| (path, format!("{text}\n"))))).0
    }

    #[test]
    fn a_wrong_description_is_said_and_other_notices_are_no_fault() {
        let said = "serving the last accepted description, not /etc/ringway/host.toml, line 3: x";
        let refused = found("Connected", &format!(r#""notice":"{said}","#));
        assert_eq!((refused.len(), refused[0].severity), (1, Severity::Warning), "{refused:#?}");
        assert_eq!(refused[0].summary, format!("ringway is {said}"));
        let notice = r#""notice":"without Landlock: files are not confined","#;
        assert_eq!(found("Connected", notice), vec![]);
    }

    #[test]
    fn a_vif_that_is_closed_with_an_error_is_found_on_any_host() {
        let closed = found("Closed", r#""error":"slot 7 has 70000 bytes","#);
        assert_eq!((closed.len(), closed[0].severity), (1, Severity::Warning), "{closed:#?}");
        let said = "the guest of vm1 is not served (Closed): slot 7 has 70000 bytes";
        assert_eq!(closed[0].summary, said);
        assert_eq!((found("Waiting", ""), found("Connected", "")), (vec![], vec![]));
        for (state, kind, is_found) in [
            ("Waiting", r#","error_kind":"no_guest""#, false),
            ("Initialising", r#","error_kind":"no_guest""#, false),
            ("Waiting", r#","error_kind":"fault""#, true),
            ("Connected", r#","error_kind":"fault""#, true),
            // Records of older versions.
            ("Waiting", "", false),
            ("Initialising", "", false),
            ("Connected", "", true),
        ] {
            let error = format!(r#""error":"whatever it says"{kind},"#);
            assert_eq!(found(state, &error).len(), usize::from(is_found), "{state} {kind}");
        }
    }
}
