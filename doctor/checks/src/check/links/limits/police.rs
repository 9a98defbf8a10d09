//! Drops of tc's policing filters. Filters may see only a part of the traffic, so a policer's own
//! counters decide, not those of the interface.

use super::Facts;
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::{Basis, Disciplines, Span, float, share};
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::police::{Policer, Policers};
use ringway_evidence::parse::qdisc::Hook;
use ringway_evidence::{Gap, Quote};

/// Fraction of dropped packets below which a policer hardly affects TCP.
const DROPPED_MIN: f64 = 0.0005;
/// Fraction of an interface's bytes from which a policer limits the whole interface.
const MOST: f64 = 0.5;

/// What was found of policers.
#[derive(Default)]
pub(super) struct Policed {
    /// How many there are.
    pub(super) count: usize,
    /// One of them.
    pub(super) quote: Option<Quote>,
    pub(super) findings: Vec<Finding>,
}

/// Checks all filters except those of interfaces in `known`, whose policer was already found where
/// it was set.
pub(super) fn inspect(facts: &Facts, known: &[String]) -> Result<Policed, Gap> {
    let mut policed = Policed::default();
    let Disciplines { now, .. } = match facts.disciplines.get() {
        Err(Gap::Missing { .. }) => return Ok(policed),
        other => other?,
    };
    for (nic, hook) in now.hooks() {
        if hook == Hook::Ingress && known.iter().any(|known| known == nic) {
            continue;
        }
        let span = match facts.filters.of(hook, nic) {
            Ok(span) => span,
            Err(gap) => {
                policed.findings.push(Finding::gap(nic, &gap));
                continue;
            }
        };
        for (index, policer) in &span.after.all {
            policed.count += 1;
            policed.quote.get_or_insert_with(|| span.text.quote(policer.line));
            let before = span.before.all.get(index);
            let seen = Seen { nic, hook, policer, span: &span };
            policed.findings.extend(seen.judge(before, &facts.moved));
        }
    }
    Ok(policed)
}

/// A policer, and its place.
struct Seen<'a> {
    nic: &'a str,
    hook: Hook,
    policer: &'a Policer,
    span: &'a Span<Policers>,
}

impl Seen<'_> {
    fn judge(&self, before: Option<&Policer>, nics: &Span<NicCounters>) -> Option<Finding> {
        let Seen { nic, policer, span, .. } = self;
        let (before, after) = (before?.counts?, policer.counts?);
        let packets = after.packets.saturating_sub(before.packets);
        let dropped = after.dropped.saturating_sub(before.dropped);
        if span.basis == Basis::SinceBoot || dropped == 0 || share(dropped, packets) < DROPPED_MIN {
            return None;
        }
        let is_all = self.is_all(after.bytes.saturating_sub(before.bytes), nics);
        let way = if self.hook == Hook::Ingress { "from" } else { "to" };
        let limit = match policer.bits_per_second {
            Some(rate) => format!("{} Mbit/s", float(rate) / 1e6),
            None => "a number or length of packets".to_owned(),
        };
        let part = if is_all { "" } else { "a part of the " };
        let summary = format!(
            "{part}traffic {way} {nic} is policed to {limit}: {dropped} of {packets} packets \
             dropped"
        );
        let severity = if is_all { Severity::Warning } else { Severity::Note };
        let finding = Finding::new(severity, *nic, summary)
            .cause(
                "A tc filter drops packets above a rate and queues none, so TCP stays below the \
                 rate, whatever else you change. This may be intended.",
            )
            .quote([span.text.quote(policer.line), span.text.quote(after.line)])
            .confidence(Confidence::High);
        Some(self.advise(finding))
    }

    /// Whether most of the interface's traffic passes this policer.
    fn is_all(&self, bytes: u64, nics: &Span<NicCounters>) -> bool {
        let Some(after) = nics.after.nics.get(self.nic) else { return false };
        let Some(before) = nics.past(nics.before.nics.get(self.nic)) else { return false };
        let moved = after.since(&before);
        let moved = if self.hook == Hook::Ingress { moved.rx_bytes } else { moved.tx_bytes };
        float(bytes) >= float(moved) * MOST
    }

    fn advise(&self, finding: Finding) -> Finding {
        let Seen { nic, hook, policer, .. } = self;
        let finding = finding.advise(Advice::by_hand(
            format!(
                "If it is not intended, remove it where it was set, or it will return: libvirt's \
                 <outbound> (virsh domiftune GUEST {nic} --outbound 0), the QoS of OpenStack, a \
                 script."
            ),
            &[&hook.command(&shell_word(nic)).join(" ")],
        ));
        let Some(filter) = &policer.filter else { return finding };
        // A filter of a classful discipline names its parent itself.
        let place = hook.word().map_or_else(String::new, |word| format!("{word} "));
        finding.advise(Advice::by_hand(
            "Or remove the filter alone. tc prints filters in other words than it accepts, so the \
             doctor could not restore it and does not apply this change. Note how it was set.",
            &[&format!("tc filter del dev {} {place}{filter}", shell_word(nic))],
        ))
    }
}
