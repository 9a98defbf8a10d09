//! Findings that want the same setting to be different things.

use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};

/// Values that are wanted of a setting, each with the finding that wants it.
struct Wish<'a> {
    knob: &'a Knob,
    of: Vec<(&'a Finding, &'a Change)>,
}

/// A finding for each setting that others want to be different things: only one of them can be
/// right, and applying both would undo the first. It stands with the first of the checks.
///
/// Advice of one finding may well offer a setting two values; those are alternatives.
pub fn contradictions(findings: &[Finding]) -> Vec<Finding> {
    wishes(findings).iter().filter_map(contradiction).collect()
}

fn wishes(findings: &[Finding]) -> Vec<Wish<'_>> {
    let mut wishes: Vec<Wish<'_>> = Vec::new();
    for finding in findings {
        for change in finding.advice.iter().flat_map(|advice| &advice.changes) {
            let known = wishes.iter_mut().find(|wish| *wish.knob == change.knob);
            match known {
                Some(wish) => wish.of.push((finding, change)),
                None => wishes.push(Wish { knob: &change.knob, of: vec![(finding, change)] }),
            }
        }
    }
    wishes
}

fn contradiction(wish: &Wish<'_>) -> Option<Finding> {
    let (first, change) = wish.of.first()?;
    let differs = |(other, its): &&(&Finding, &Change)| {
        !std::ptr::eq(*other, *first) && its.proposed != change.proposed
    };
    // An alternative of the first finding may be what the other one wants.
    let agrees = |value: &str| {
        let of_first = wish.of.iter().filter(|(one, _)| std::ptr::eq(*one, *first));
        of_first.clone().any(|(_, its)| its.proposed == value)
    };
    let (other, its) = wish.of.iter().filter(differs).find(|(_, its)| !agrees(&its.proposed))?;
    let subject = wish.knob.subject();
    let summary = format!(
        "{} and {} contradict each other about {subject}: {} or {}",
        first.check, other.check, change.proposed, its.proposed
    );
    let quotes = [first, other].into_iter().filter_map(|one| one.evidence.first().cloned());
    let mut finding = Finding::new(Severity::Warning, subject, summary)
        .cause(format!(
            "{} says: {}. {} says: {}. Both look at the same setting and want it for another \
             reason.",
            first.check, first.summary, other.check, other.summary
        ))
        .quote(quotes)
        .confidence(Confidence::High)
        .advise(Advice::by_hand(
            "Choose one of them, by which of both costs more here; do not apply both.",
            &[&change.command(), &its.command()],
        ));
    finding.check.clone_from(&first.check);
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(check: &str, irq: u32, cpus: &[&str]) -> Finding {
        let change = |cpu: &&str| Change::new(Knob::IrqAffinity { irq }, None, cpu);
        let advice = Advice::by_change("x", cpus.iter().map(change).collect());
        let mut finding = Finding::new(Severity::Warning, "a", "slow").advise(advice);
        finding.check = check.to_owned();
        finding
    }

    #[test]
    fn two_checks_that_want_different_values_contradict_each_other() {
        let findings = [finding("D03", 41, &["0"]), finding("D16", 41, &["1"])];
        let found = contradictions(&findings);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].check, "D03");
        assert_eq!(found[0].summary, "D03 and D16 contradict each other about irq 41: 0 or 1");
        let commands = &found[0].advice[0].commands;
        assert_eq!(commands[1], "echo 1 > /proc/irq/41/smp_affinity_list");
    }

    #[test]
    fn agreement_other_settings_and_alternatives_are_none() {
        let agree = [finding("D03", 41, &["0"]), finding("D16", 41, &["0"])];
        let other = [finding("D03", 41, &["0"]), finding("D16", 42, &["1"])];
        let alternatives = [finding("D03", 41, &["0", "1"]), finding("D16", 41, &["1"])];
        for findings in [agree, other, alternatives] {
            assert_eq!(contradictions(&findings), []);
        }
        assert_eq!(contradictions(&[]), []);
    }
}
