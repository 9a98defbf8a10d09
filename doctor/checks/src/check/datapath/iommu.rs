//! D22: functions of a card that are given to guests, and the IOMMU that this needs and costs.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    FunctionsMade, FunctionsMax, HostKind, Interfaces, IommuGroups, IommuTypes, Kind, NicRole,
    Span, Tried, XenInfo, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::domains::XlInfo;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::{Gap, Text};

pub(crate) const CHECK: Check = Check {
    id: "D22",
    slug: "iommu",
    title: "IOMMU and SR-IOV",
    group: Group::Datapath,
    sources: &[
        "throughput-guide:sr-iov-cost",
        "throughput-guide:sr-iov-gain",
        "throughput-guide:iommu",
        "throughput-guide:sr-iov-assign",
        "network-node-blog:alternatives",
    ],
    explanation: include_str!("iommu.txt"),
    absent: "no card",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        kind: HostKind,
        made: FunctionsMade,
        total: FunctionsMax,
        iommu: IommuTypes,
        groups: Tried<IommuGroups>,
        xen: Tried<XenInfo>,
        moved: Tried<Span<NicCounters>>,
    }
}

const PRICE: &str = "A function of the card bypasses the host's switch: no filters, no quality of \
                     service, no live migration, no high availability. The makers of a network \
                     node rejected it for that reason.";

/// Packets per second from which mapping each of them is noticeable.
const PACKETS_MIN: f64 = 100_000.0;
/// Functions to begin with: one for each guest of a small host.
const FUNCTIONS: u64 = 4;
/// Drivers of virtual functions.
const VF_DRIVERS: [&str; 8] =
    ["bnxt_vf", "cxgb4vf", "hinic_vf", "iavf", "igbvf", "i40evf", "ixgbevf", "qede_vf"];

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    for nic in
        facts.nics.names().into_iter().filter(|nic| facts.nics.role(nic) == NicRole::Physical)
    {
        if is_virtual_function(facts, &nic) {
            out.add([given(facts, &nic)]);
        } else {
            out.add(functions(facts, &nic)?);
            out.add(mapping(facts, &nic)?);
        }
    }
    let is_card = |nic: &String| facts.nics.role(nic) == NicRole::Physical;
    if let Some(nic) = facts.nics.names().into_iter().find(is_card) {
        let quote = facts.iommu.of(&nic).ok().map(|text| text.quote(1));
        out.well("no card is divided, and the IOMMU slows none", quote);
    }
    Ok(())
}

/// A guest, or a host, that uses a virtual function itself.
fn is_virtual_function(facts: &Facts, nic: &str) -> bool {
    facts.nics.driver(nic).is_some_and(|driver| VF_DRIVERS.contains(&driver.as_str()))
}

fn given(facts: &Facts, nic: &str) -> Finding {
    let quote = facts.nics.driver_line(nic);
    Finding::new(Severity::Note, nic, format!("{nic} is a virtual function of a card"))
        .cause(PRICE)
        .quote(quote)
        .gain("a guest of one CPU receives nearly 10 Gbit/s (throughput guide)")
        .advise(Advice::by_hand("Weigh this; ringway never changes it.", &[]))
}

/// Functions of a card that cannot be assigned to a guest without an IOMMU, or that could be
/// created.
fn functions(facts: &Facts, nic: &str) -> Result<Option<Finding>, Gap> {
    let read = |text: Result<Text, Gap>| match text {
        Err(Gap::Missing { .. }) => Ok(None),
        Ok(text) => Ok(Some((text.number()?, text.quote(1)))),
        Err(gap) => Err(gap),
    };
    let (Some((made, made_quote)), Some((total, total_quote))) =
        (read(facts.made.of(nic))?, read(facts.total.of(nic))?)
    else {
        return Ok(None);
    };
    let functions = Knob::VirtualFunctions { nic: nic.to_owned() };
    let finding = |severity, summary| {
        let quotes = [made_quote.clone(), total_quote.clone()];
        Finding::new(severity, nic, summary).cause(PRICE).quote(quotes)
    };
    if total == 0 || made == 0 {
        let summary = format!("{nic} can be divided into {total} functions (SR-IOV)");
        return Ok((total > 0).then(|| {
            finding(Severity::Note, summary)
                .gain(
                    "nearly 10 Gbit/s to a guest of one CPU, with hardly any work on this host \
                     (throughput guide)",
                )
                .advise(Advice::by_change(
                    "Weigh this first; ringway never does it. Then, with an IOMMU, create the \
                     functions, list them with lspci, and give each to one guest; on XCP: xe \
                     vm-param-set other-config:pci=0/0000:07:10.0 uuid=UUID.",
                    Change::raise(functions, made, total.min(FUNCTIONS)),
                ))
        }));
    }
    if has_iommu(facts)? {
        let summary = format!("{nic} is divided into {made} of {total} functions");
        return Ok(Some(finding(Severity::Note, summary)));
    }
    let summary = format!("{nic} is divided into {made} functions, but there is no IOMMU");
    Ok(Some(finding(Severity::Warning, summary).confidence(Confidence::Medium).advise(
        Advice::by_change(
            "Without an IOMMU no guest can use a function. Turn it on in the firmware and, with a \
             restart, on the kernel's command line: intel_iommu=on or amd_iommu=on; on Xen \
             iommu=1 on the hypervisor's command line (in 2011 in /boot/extlinux.conf before the \
             first ---, today GRUB_CMDLINE_XEN_DEFAULT). Or remove the functions:",
            Change::lower(functions, made, 0),
        ),
    )))
}

/// From the hypervisor if there is one, else from the kernel.
fn has_iommu(facts: &Facts) -> Result<bool, Gap> {
    if matches!(facts.kind.kind, Kind::XenDom0) {
        let text = facts.xen.get()?;
        let info = XlInfo::parse(text)?;
        let (capabilities, _) = info
            .get("virt_caps")
            .ok_or_else(|| text.unreadable(None, "expected a line with virt_caps"))?;
        return Ok(capabilities.contains("directio"));
    }
    let IommuGroups(groups) = match facts.groups.get() {
        Err(Gap::Missing { .. }) => return Ok(false),
        other => other?,
    };
    if groups.value().is_empty() {
        return Err(groups.unreadable(None, "expected a name for each group"));
    }
    Ok(true)
}

/// A busy card whose packets are mapped and unmapped one by one.
fn mapping(facts: &Facts, nic: &str) -> Result<Option<Finding>, Gap> {
    let text = match facts.iommu.of(nic) {
        Err(Gap::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let is_strict = match text.value() {
        "DMA" => true,
        "DMA-FQ" => false,
        "identity" => return Ok(None),
        _ => return Err(text.unreadable(Some(1), "expected DMA, DMA-FQ or identity")),
    };
    let span = facts.moved.get()?;
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
            "A card that is not passed through to a guest needs no mapping. With mapping, each \
             packet costs table entries, and in strict mode also a flush.",
        )
        .quote([text.quote(1), span.text.quote(moved.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Leave the IOMMU on for guests, and let this kernel's own cards bypass it: \
             iommu.passthrough=1 on its command line, with a restart (in 2011 iommu=pt, and \
             iommu=0 in extlinux.conf turned it off for everything). The cards can then access \
             all memory. On Debian: GRUB_CMDLINE_LINUX in /etc/default/grub, and update-grub; \
             elsewhere:",
            &["grubby --update-kernel=ALL --args=iommu.passthrough=1"],
        ));
    Ok(Some(finding))
}
