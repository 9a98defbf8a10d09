//! D43: filter rules drop packets, or are so many that each packet takes long.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::text::rules as text;
use ringway_evidence::fact::{Basis, Span, Tried, float, share, sum};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::rules::Rules;

pub(crate) const CHECK: Check = Check {
    id: "D43",
    slug: "rules",
    title: "rules drop packets, or there are too many",
    group: Group::Datapath,
    sources: &["man-nft:counter", "man-nft:verdict"],
    explanation: text::EXPLANATION,
    absent: "no filter rules, or no right to see them",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        rules: Tried<Span<Rules>>,
        moved: Span<NicCounters>,
    }
}

/// Drops per second of one rule, and their fraction of all packets, from which they may be the
/// missing ones.
const DROPS_MIN: f64 = 5.0;
const DROPS_PART: f64 = 0.01;
/// Rules in one chain, and packets per second, from which they take much of a CPU's time.
const CHAIN_LONG: u64 = 1000;
const PACKETS_MANY: f64 = 5000.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let Some(span) = facts.rules.ok() else { return not_here(CHECK.absent) };
    if span.after.chains.is_empty() {
        return not_here(CHECK.absent);
    }
    if span.basis == Basis::SinceBoot {
        return not_here("drops by rules are only known since the boot");
    }
    let packets = packets(&facts.moved);
    for (rule, after) in &span.after.dropping {
        let Some(before) = span.before.dropping.get(rule) else { continue };
        let drops = after.packets.saturating_sub(before.packets);
        let rate = float(drops) / span.seconds;
        if rate < DROPS_MIN || share(drops, packets) < DROPS_PART {
            continue;
        }
        let summary = format!("a rule drops {rate:.0} packets a second: {rule}");
        out.add([Finding::new(Severity::Warning, rule.clone(), summary)
            .cause(text::drop_cause())
            .quote([span.text.quote(after.line)])
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(text::drop_advice(), &[]))]);
    }
    let longest = span.after.chains.iter().max_by_key(|(_, count)| **count);
    let rate = float(packets) / facts.moved.seconds;
    if let Some((chain, count)) = longest.filter(|(_, count)| **count >= CHAIN_LONG) {
        if rate >= PACKETS_MANY {
            let summary = format!(
                "chain {chain} has {count} rules, and {rate:.0} packets a second pass through it"
            );
            let name = chain.rsplit(' ').next().unwrap_or(chain);
            let quote =
                span.text.quote_where(|line| line.split_whitespace().any(|one| one == name));
            out.add([Finding::new(Severity::Warning, chain.clone(), summary)
                .cause(text::long_cause())
                .quote(quote)
                .confidence(Confidence::Medium)
                .advise(Advice::by_hand(text::long_advice(), &[]))]);
        }
    }
    out.well(format!("none of {} rules drops many packets", span.after.count()), None);
    Ok(())
}

/// All packets received or sent between the samples.
fn packets(span: &Span<NicCounters>) -> u64 {
    let moved = span.after.nics.iter().filter_map(|(nic, after)| {
        Some(after.since(&span.past(span.before.nics.get(nic))?).packets())
    });
    sum(&moved.collect::<Vec<_>>())
}
