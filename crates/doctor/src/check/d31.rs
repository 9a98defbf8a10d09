//! D31: the table of tracked connections is full, or nearly.

use super::{Check, Group, Looked, all_well};
use crate::evidence::Gap;
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use crate::host::{Basis, Host, Span, share};
use crate::parse::conntrack::Conntrack;

pub(super) const CHECK: Check = Check {
    id: "D31",
    title: "connection tracking is full",
    group: Group::Tcp,
    rows: &["W2"],
    explanation: include_str!("../../explain/D31.md"),
    look: Some(look),
};

/// Share of the table from which it soon is full.
const NEARLY: f64 = 0.8;
const COUNT: &str = "proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "proc/sys/net/netfilter/nf_conntrack_max";
const KNOB: &str = "net.netfilter.nf_conntrack_max";

fn look(host: &Host) -> Looked {
    let max_text = match host.file(MAX) {
        Err(Gap::Missing { why, .. }) if why == "not there" => {
            return Err(Gap::NotHere("no connections are tracked".to_owned()));
        }
        other => other?,
    };
    let count_text = host.latest(COUNT)?;
    let (count, max) = (count_text.number()?, max_text.number()?);
    if max == 0 {
        // 0 means no limit.
        return Ok(vec![all_well("tracked connections have no limit", Some(max_text.quote(1)))]);
    }
    let dropped = dropped(host)?;
    let full = share(count, max);
    if full <= NEARLY && dropped == 0 {
        let summary = format!("{count} of {max} connections are tracked");
        return Ok(vec![all_well(summary, Some(count_text.quote(1)))]);
    }
    let (severity, summary) = if dropped > 0 {
        let summary =
            format!("{dropped} packets were dropped for want of an entry; {count} of {max}");
        (Severity::Problem, summary)
    } else {
        (Severity::Warning, format!("{count} of {max} connections are tracked"))
    };
    let knob = Knob::Sysctl { name: KNOB.to_owned() };
    let proposed = max.saturating_mul(2);
    let finding = Finding::new(severity, "conntrack", summary)
        .cause("Packets of new connections are dropped when the table is full; old ones go on.")
        .quote([count_text.quote(1), max_text.quote(1)])
        .advise(Advice::by_change(
            "Make it larger; an entry takes about 320 bytes. Raise hashsize of nf_conntrack with \
             it, or lookups get slow; do not track what needs no tracking (notrack).",
            vec![Change::new(knob, Some(max.to_string()), proposed)],
        ));
    Ok(vec![finding])
}

/// Packets that were lost between the samples.
fn dropped(host: &Host) -> Result<u32, Gap> {
    let span: Span<Conntrack> = match host.span("proc/net/stat/nf_conntrack") {
        // Kernels may be built without this file.
        Err(Gap::Missing { .. }) => return Ok(0),
        other => other?,
    };
    // What was lost since the boot may be long over.
    if span.basis == Basis::SinceBoot {
        return Ok(0);
    }
    if span.before.lines != span.after.lines {
        return Err(span.text.unreadable(None, "other CPUs than in the first sample"));
    }
    let of = |stat: &Conntrack| stat.drop.wrapping_add(stat.early_drop);
    Ok(of(&span.after).wrapping_sub(of(&span.before)))
}
