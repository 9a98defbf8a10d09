//! D23: a guest's grant table is too small for its queues.

use std::collections::BTreeMap;

use super::{Check, Group, Looked, all_well, fewer_queues};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{Host, Kind, NicRole, float};
use crate::parse::domains::XlInfo;

pub(super) const CHECK: Check = Check {
    id: "D23",
    title: "grants run out",
    group: Group::Datapath,
    sources: &["throughput-guide:tx-path", "throughput-guide:rx-path"],
    explanation: include_str!("../../explain/D23.md"),
    look: Some(look),
};

/// Grants that Linux' frontend reserves for a queue: 256 packets to send, 256 buffers to receive,
/// and the pages of both rings.
const GRANTS_PER_QUEUE: u64 = 2 * 256 + 2;
/// Grants in a frame of the table, in its first version: a page over eight bytes.
const GRANTS_PER_FRAME: u64 = 512;
/// Share of the table from which disks and what else grants may find no room.
const NEARLY: f64 = 0.9;
/// What the kernel says when it has happened.
const REACHED: &str = "max_grant_frames reached";

/// How many frames a guest's table may have, and what says so.
struct Limit {
    frames: u64,
    quote: Quote,
    is_default: bool,
}

fn look(host: &Host) -> Looked {
    let queues = match host.kind().kind {
        Kind::XenDom0 | Kind::XenDriverDomain => queues_by_domain(host),
        Kind::XenGuest => own_queues(host),
        _ => return Err(Gap::NotHere("no Xen".to_owned())),
    };
    if queues.is_empty() {
        return Err(Gap::NotHere("no interface with grants".to_owned()));
    }
    let limit = limit(host)?;
    let said = said(host);
    let mut findings = Vec::new();
    for (whose, queues) in &queues {
        findings.extend(judge(host, whose, *queues, &limit, said.as_ref()));
    }
    if findings.is_empty() {
        let most = queues.values().max().copied().unwrap_or(0) * GRANTS_PER_QUEUE;
        let summary =
            format!("queues need at most {most} of {} grants", limit.frames * GRANTS_PER_FRAME);
        findings.push(all_well(summary, Some(limit.quote)));
    }
    Ok(findings)
}

/// Queues of each guest's vifs.
fn queues_by_domain(host: &Host) -> BTreeMap<String, u64> {
    let mut queues = BTreeMap::new();
    for vif in host.nics() {
        let domain = vif.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
        if let Some((domain, _)) = domain.filter(|_| host.role(&vif) == NicRole::Backend) {
            *queues.entry(format!("domain {domain}")).or_insert(0) +=
                host.tx_queues(&vif).map_or(0, |(queues, _)| queues);
        }
    }
    queues.retain(|_, queues| *queues > 0);
    queues
}

fn own_queues(host: &Host) -> BTreeMap<String, u64> {
    let nics = host.nics().into_iter().filter(|nic| host.role(nic) == NicRole::Frontend);
    let queues: u64 = nics.map(|nic| host.tx_queues(&nic).map_or(0, |(queues, _)| queues)).sum();
    BTreeMap::from_iter((queues > 0).then(|| ("this guest".to_owned(), queues)))
}

/// By the hypervisor's command line, or by what its version has.
fn limit(host: &Host) -> Result<Limit, Gap> {
    if let Ok(text) = host.command(&["xl", "info"]) {
        let info = XlInfo::parse(&text)?;
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
    let number = |name: &str| {
        let text = host.file(&format!("sys/hypervisor/version/{name}"))?;
        Ok((text.number()?, text.quote(1)))
    };
    let ((major, mut quote), (minor, _)) = (number("major")?, number("minor")?);
    let frames = if (major, minor) >= (4, 10) { 64 } else { 32 };
    quote.text = format!("Xen {major}.{minor}, where a guest may have {frames} frames by default");
    Ok(Limit { frames, quote, is_default: true })
}

/// A guest's kernel that complained already; its messages are only in a sos report.
fn said(host: &Host) -> Option<Quote> {
    let text = host.command(&["dmesg"]).or_else(|_| host.command(&["dmesg", "-T"])).ok()?;
    text.quote_where(|line| line.contains(REACHED))
}

fn judge(
    host: &Host,
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
    // Twice what is needed, so that disks fit as well; and more than there are.
    let wanted = need.div_ceil(GRANTS_PER_FRAME).max(limit.frames).min(u64::from(u32::MAX));
    let frames = wanted.saturating_mul(2).next_power_of_two();
    let finding = Finding::new(severity, whose, summary)
        .cause(
            "Every packet in flight is a grant, to the host that fetches it or fills it, and disks \
             take from the same table. A device that gets no grants does not connect, or waits.",
        )
        .quote([limit.quote.clone()])
        .quote(said.cloned())
        .confidence(if limit.is_default { Confidence::Medium } else { Confidence::High })
        .advise(Advice::by_hand(
            format!(
                "In the guest's configuration (Xen 4.10 or later): max_grant_frames={frames}, then \
                 start it anew; or for all guests gnttab_max_frames={frames} on Xen's command \
                 line, with a restart of the host. A configuration that has it is not seen here."
            ),
            &["grep max_grant_frames /etc/xen/*.cfg"],
        ))
        .advise(Advice::by_change(
            "Or fewer queues for guests with many interfaces; they take it when they connect anew.",
            fewer_queues(host, "xen_netback", 2),
        ));
    Some(finding)
}
