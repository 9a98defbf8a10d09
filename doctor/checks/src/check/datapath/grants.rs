//! D23: a guest's grant table is too small for its queues.

use std::collections::BTreeMap;

use crate::check::{Check, Group, Judged, Verdicts, fewer_queues, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    HostKind, Interfaces, KernelMessages, Kind, ModuleQueues, NicRole, Tried, XenInfo, XenVersion,
    float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::domains::XlInfo;
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D23",
    slug: "grants",
    title: "grants are used up",
    group: Group::Datapath,
    sources: &["throughput-guide:tx-path", "throughput-guide:rx-path"],
    explanation: include_str!("grants.txt"),
    absent: "no interface with grants",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        nics: Interfaces,
        xen: Tried<XenInfo>,
        version: XenVersion,
        messages: Tried<KernelMessages>,
        modules: ModuleQueues,
    }
}

/// Grants that Linux' frontend reserves for a queue: 256 packets to send, 256 buffers to receive,
/// and the pages of both rings.
const GRANTS_PER_QUEUE: u64 = 2 * 256 + 2;
/// Grants in a frame of the table, in its first version: a page over eight bytes.
const GRANTS_PER_FRAME: u64 = 512;
/// Share of the table from which disks and other users of grants may find no room.
const NEARLY: f64 = 0.9;
/// The kernel's message when it has happened.
const REACHED: &str = "max_grant_frames reached";

/// The limit of frames of a guest's table, and its evidence.
struct Limit {
    frames: u64,
    quote: Quote,
    is_default: bool,
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let queues = match facts.kind.kind {
        Kind::XenDom0 | Kind::XenDriverDomain => queues_by_domain(facts),
        Kind::XenGuest => own_queues(facts),
        _ => return not_here("no Xen"),
    };
    if queues.is_empty() {
        return Ok(());
    }
    let limit = limit(facts)?;
    let said = said(facts);
    for (whose, queues) in &queues {
        out.add(crowded(facts, whose, *queues, &limit, said.as_ref()));
    }
    let most = queues.values().max().copied().unwrap_or(0) * GRANTS_PER_QUEUE;
    let table = limit.frames * GRANTS_PER_FRAME;
    out.well(format!("queues need at most {most} of {table} grants"), Some(limit.quote));
    Ok(())
}

/// Queues of each guest's vifs.
fn queues_by_domain(facts: &Facts) -> BTreeMap<String, u64> {
    let mut queues = BTreeMap::new();
    for vif in facts.nics.names() {
        let domain = vif.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
        if let Some((domain, _)) = domain.filter(|_| facts.nics.role(&vif) == NicRole::Backend) {
            *queues.entry(format!("domain {domain}")).or_insert(0) +=
                facts.nics.tx_queues(&vif).map_or(0, |(queues, _)| queues);
        }
    }
    queues.retain(|_, queues| *queues > 0);
    queues
}

fn own_queues(facts: &Facts) -> BTreeMap<String, u64> {
    let nics =
        facts.nics.names().into_iter().filter(|nic| facts.nics.role(nic) == NicRole::Frontend);
    let queues: u64 =
        nics.map(|nic| facts.nics.tx_queues(&nic).map_or(0, |(queues, _)| queues)).sum();
    BTreeMap::from_iter((queues > 0).then(|| ("this guest".to_owned(), queues)))
}

/// From the hypervisor's command line, or the default of its version.
fn limit(facts: &Facts) -> Result<Limit, Gap> {
    if let Some(text) = facts.xen.ok() {
        let info = XlInfo::parse(text)?;
        if let Some((options, line)) = info.get("xen_commandline") {
            let value =
                options.split_whitespace().find_map(|o| o.strip_prefix("gnttab_max_frames="));
            if let Some(value) = value {
                let frames = value.parse().ok().filter(|frames| *frames > 0);
                let frames: u64 = frames
                    .ok_or_else(|| text.unreadable(Some(line), "expected a number of frames"))?;
                return Ok(Limit { frames, quote: text.quote(line), is_default: false });
            }
        }
    }
    let ((major, mut quote), (minor, _)) = (facts.version.major()?, facts.version.minor()?);
    let frames = if (major, minor) >= (4, 10) { 64 } else { 32 };
    quote.text = format!("Xen {major}.{minor}, where a guest may have {frames} frames by default");
    Ok(Limit { frames, quote, is_default: true })
}

/// The message of a guest's kernel; only sos reports contain it.
fn said(facts: &Facts) -> Option<Quote> {
    let KernelMessages(text) = facts.messages.ok()?;
    text.quote_where(|line| line.contains(REACHED))
}

fn crowded(
    facts: &Facts,
    whose: &str,
    queues: u64,
    limit: &Limit,
    said: Option<&Quote>,
) -> Option<Finding> {
    let need = queues.saturating_mul(GRANTS_PER_QUEUE);
    let table = limit.frames.saturating_mul(GRANTS_PER_FRAME);
    let is_over = need > table || said.is_some();
    if !is_over && float(need) <= float(table) * NEARLY {
        return None;
    }
    let severity = if is_over { Severity::Problem } else { Severity::Warning };
    let summary = format!("{queues} queues of {whose} need {need} of its {table} grants");
    // Twice what is needed, so that disks fit as well, and no less than now.
    let wanted = need.div_ceil(GRANTS_PER_FRAME).max(limit.frames).min(u64::from(u32::MAX));
    let frames = wanted.saturating_mul(2).next_power_of_two();
    let finding = Finding::new(severity, whose, summary)
        .cause(
            "Every packet in flight uses a grant, from which the host reads it or into which it \
             writes, and disks use the same table. A device that gets no grants does not connect, \
             or waits.",
        )
        .quote([limit.quote.clone()])
        .quote(said.cloned())
        .confidence(if limit.is_default { Confidence::Medium } else { Confidence::High })
        .advise(Advice::by_hand(
            format!(
                "In the guest's configuration (Xen 4.10 or later): max_grant_frames={frames}, \
                 then restart the guest; or for all guests gnttab_max_frames={frames} on Xen's \
                 command line, with a restart of the host. The doctor cannot see whether a \
                 configuration has this already."
            ),
            &["grep max_grant_frames /etc/xen/*.cfg"],
        ))
        .advise(Advice::by_change(
            "Or use fewer queues for guests with many interfaces. The change takes effect when \
             they reconnect.",
            fewer_queues(&facts.modules, "xen_netback", 2),
        ));
    Some(finding)
}
