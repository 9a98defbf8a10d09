//! D22: functions of a card that are given to guests, and the IOMMU that this needs and costs.

use super::{Check, Group, Looked, all_well};
use crate::evidence::Gap;
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Host, Kind, NicRole, Span, float};
use crate::parse::domains::XlInfo;
use crate::parse::nic::NicCounters;

pub(super) const CHECK: Check = Check {
    id: "D22",
    title: "IOMMU and SR-IOV",
    group: Group::Datapath,
    sources: &[
        "throughput-guide:sr-iov-cost",
        "throughput-guide:sr-iov-gain",
        "throughput-guide:iommu",
        "throughput-guide:sr-iov-assign",
        "network-node-blog:alternatives",
    ],
    explanation: include_str!("../../explain/D22.md"),
    look: Some(look),
};

/// Packets a second from which mapping each of them is felt.
const PACKETS_MIN: f64 = 100_000.0;
/// Functions to begin with: one for each guest of a small host.
const FUNCTIONS: u64 = 4;
/// Drivers of virtual functions.
const VF_DRIVERS: [&str; 8] =
    ["bnxt_vf", "cxgb4vf", "hinic_vf", "iavf", "igbvf", "i40evf", "ixgbevf", "qede_vf"];
/// What a guest loses with a function of the card (`throughput-guide:sr-iov-cost`,
/// `network-node-blog:alternatives`).
const PRICE: &str = "A function of the card goes past the host's switch: no filters, no quality of \
                     service, no live migration, no high availability; for that a \
                     network node's makers refused it.";

fn look(host: &Host) -> Looked {
    let mut findings = Vec::new();
    for nic in host.nics().into_iter().filter(|nic| host.role(nic) == NicRole::Physical) {
        if is_virtual_function(host, &nic) {
            findings.push(given(host, &nic));
        } else {
            findings.extend(functions(host, &nic)?);
            findings.extend(mapping(host, &nic)?);
        }
    }
    if !findings.is_empty() {
        return Ok(findings);
    }
    let Some(nic) = host.nics().into_iter().find(|nic| host.role(nic) == NicRole::Physical) else {
        return Err(Gap::NotHere("no card".to_owned()));
    };
    let path = format!("sys/class/net/{nic}/device/iommu_group/type");
    let quote = host.file(&path).ok().map(|text| text.quote(1));
    Ok(vec![all_well("no card is divided, and none pays for an IOMMU that is felt", quote)])
}

/// A guest, or a host, that uses a virtual function itself.
fn is_virtual_function(host: &Host, nic: &str) -> bool {
    host.driver(nic).is_some_and(|driver| VF_DRIVERS.contains(&driver.as_str()))
}

fn given(host: &Host, nic: &str) -> Finding {
    let path = format!("sys/class/net/{nic}/device/uevent");
    let uevent = host.file(&path).ok();
    let quote = uevent.and_then(|text| text.quote_where(|line| line.starts_with("DRIVER=")));
    Finding::new(Severity::Note, nic, format!("{nic} is a virtual function of a card"))
        .cause(PRICE)
        .quote(quote)
        .gain("a guest of one CPU receives nearly 10 Gbit/s (throughput guide)")
        .advise(Advice::by_hand("Weigh it: ringway never changes it.", &[]))
}

/// Functions of a card that nobody can be given without an IOMMU, or that could be made.
fn functions(host: &Host, nic: &str) -> Result<Option<Finding>, Gap> {
    let read = |name: &str| match host.file(&format!("sys/class/net/{nic}/device/{name}")) {
        Err(Gap::Missing { .. }) => Ok(None),
        Ok(text) => Ok(Some((text.number()?, text.quote(1)))),
        Err(gap) => Err(gap),
    };
    let (Some((made, made_quote)), Some((total, total_quote))) =
        (read("sriov_numvfs")?, read("sriov_totalvfs")?)
    else {
        return Ok(None);
    };
    let functions = Knob::VirtualFunctions { nic: nic.to_owned() };
    let finding = |severity, summary| {
        let quotes = [made_quote.clone(), total_quote.clone()];
        Finding::new(severity, nic, summary).cause(PRICE).quote(quotes)
    };
    if total == 0 || made == 0 {
        let summary = format!("{nic} could be divided into {total} functions (SR-IOV)");
        return Ok((total > 0).then(|| {
            finding(Severity::Note, summary)
                .gain(
                    "nearly 10 Gbit/s to a guest of one CPU, at hardly any work here (throughput \
                       guide)",
                )
                .advise(Advice::by_change(
                    "Weigh it first; ringway never does it. Then, with an IOMMU, \
                     functions are made, listed by lspci, and given to guests, each to one; on \
                     XCP: xe vm-param-set other-config:pci=0/0000:07:10.0 uuid=UUID.",
                    Change::raise(functions, made, total.min(FUNCTIONS)),
                ))
        }));
    }
    if has_iommu(host)? {
        let summary = format!("{nic} is divided into {made} of {total} functions");
        return Ok(Some(finding(Severity::Note, summary)));
    }
    let summary = format!("{nic} is divided into {made} functions, and there is no IOMMU for them");
    Ok(Some(finding(Severity::Warning, summary).confidence(Confidence::Medium).advise(
        Advice::by_change(
            "Without it no guest can be given one. Turn it on in the firmware, and with \
             a restart: intel_iommu=on or amd_iommu=on on the kernel's command line; on Xen \
             iommu=1 on the hypervisor's (then /boot/extlinux.conf before the first ---, now \
             GRUB_CMDLINE_XEN_DEFAULT). Or take the functions back:",
            Change::lower(functions, made, 0),
        ),
    )))
}

/// By the hypervisor where there is one, by the kernel elsewhere.
fn has_iommu(host: &Host) -> Result<bool, Gap> {
    if matches!(host.kind().kind, Kind::XenDom0) {
        let text = host.command(&["xl", "info"])?;
        let info = XlInfo::parse(&text)?;
        let (capabilities, _) = info
            .get("virt_caps")
            .ok_or_else(|| text.unreadable(None, "expected a line with virt_caps"))?;
        return Ok(capabilities.contains("directio"));
    }
    let groups = match host.file("sys/kernel/iommu_groups.names") {
        Err(Gap::Missing { .. }) => return Ok(false),
        other => other?,
    };
    if groups.value().is_empty() {
        return Err(groups.unreadable(None, "expected a name for each group"));
    }
    Ok(true)
}

/// A busy card whose packets are mapped and unmapped one by one.
fn mapping(host: &Host, nic: &str) -> Result<Option<Finding>, Gap> {
    let path = format!("sys/class/net/{nic}/device/iommu_group/type");
    let text = match host.file(&path) {
        Err(Gap::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let is_strict = match text.value() {
        "DMA" => true,
        "DMA-FQ" => false,
        "identity" => return Ok(None),
        _ => return Err(text.unreadable(Some(1), "expected DMA, DMA-FQ or identity")),
    };
    let span: Span<NicCounters> = host.span("proc/net/dev")?;
    let before = span.past(span.before.nics.get(nic));
    let (Some(after), Some(before)) = (span.after.nics.get(nic), before) else { return Ok(None) };
    let moved = after.since(&before);
    let rate = float(moved.packets()) / span.seconds;
    if rate < PACKETS_MIN {
        return Ok(None);
    }
    let severity = if is_strict { Severity::Warning } else { Severity::Note };
    let summary = format!("the IOMMU maps each of {rate:.0} packets/s of {nic}");
    let finding = Finding::new(severity, nic, summary)
        .cause(
            "A card that is not given to a guest needs no mapping; with it each packet costs \
             entries, and where it is strict a flush as well.",
        )
        .quote([text.quote(1), span.text.quote(moved.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Leave the IOMMU on for guests, and let this kernel's own cards go past it: iommu.\
             passthrough=1 on its command line (then iommu=pt, and iommu=0 in extlinux.conf turned \
             it off for all); with a restart. A card is then trusted with all memory. On Debian: \
             GRUB_CMDLINE_LINUX in /etc/default/grub, and update-grub; elsewhere:",
            &["grubby --update-kernel=ALL --args=iommu.passthrough=1"],
        ));
    Ok(Some(finding))
}
