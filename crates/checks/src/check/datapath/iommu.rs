//! D22: functions of a card that are given to guests, and the IOMMU that this needs and costs.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::text::iommu as text;
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
    explanation: text::EXPLANATION,
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
        .cause(text::price())
        .quote(quote)
        .gain(text::given_gain())
        .advise(Advice::by_hand(text::given_advice(), &[]))
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
        Finding::new(severity, nic, summary).cause(text::price()).quote(quotes)
    };
    if total == 0 || made == 0 {
        let summary = format!("{nic} can be divided into {total} functions (SR-IOV)");
        return Ok((total > 0).then(|| {
            finding(Severity::Note, summary).gain(text::divide_gain()).advise(Advice::by_change(
                text::divide_advice(),
                Change::raise(functions, made, total.min(FUNCTIONS)),
            ))
        }));
    }
    if has_iommu(facts)? {
        let summary = format!("{nic} is divided into {made} of {total} functions");
        return Ok(Some(finding(Severity::Note, summary)));
    }
    let summary = format!("{nic} is divided into {made} functions, but there is no IOMMU");
    Ok(Some(
        finding(Severity::Warning, summary)
            .confidence(Confidence::Medium)
            .advise(Advice::by_change(text::no_iommu_advice(), Change::lower(functions, made, 0))),
    ))
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
        .cause(text::mapping_cause())
        .quote([text.quote(1), span.text.quote(moved.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            text::mapping_advice(),
            &["grubby --update-kernel=ALL --args=iommu.passthrough=1"],
        ));
    Ok(Some(finding))
}
