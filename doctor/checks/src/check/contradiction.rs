//! Finds findings that propose different values for the same setting.

use crate::finding::{Advice, Change, Confidence, Finding, Purpose, Severity};

/// A change that a finding proposes.
type Wish<'a> = (&'a Finding, &'a Change);

/// A finding for every two checks that propose different values for a setting: only one of them can
/// be right, and applying both would undo the first. It belongs to the first of the checks.
///
/// One finding may offer two values for a setting; those are alternatives.
pub fn contradictions(findings: &[Finding]) -> Vec<Finding> {
    let mut pairs: Vec<Vec<[Wish<'_>; 2]>> = Vec::new();
    for pair in conflicts(findings) {
        let checks = |[one, other]: &[Wish<'_>; 2]| (one.0.check.clone(), other.0.check.clone());
        match pairs.iter_mut().find(|pairs| checks(&pairs[0]) == checks(&pair)) {
            Some(pairs) => pairs.push(pair),
            None => pairs.push(vec![pair]),
        }
    }
    pairs.iter().map(|pairs| contradiction(pairs)).collect()
}

/// The first two incompatible proposals for each setting.
fn conflicts(findings: &[Finding]) -> Vec<[Wish<'_>; 2]> {
    let mut settings: Vec<Vec<Wish<'_>>> = Vec::new();
    for finding in findings {
        for change in finding.advice.iter().flat_map(|advice| &advice.changes) {
            match settings.iter_mut().find(|wishes| wishes[0].1.knob == change.knob) {
                Some(wishes) => wishes.push((finding, change)),
                None => settings.push(vec![(finding, change)]),
            }
        }
    }
    settings.iter().filter_map(|wishes| conflict(wishes)).collect()
}

fn conflict<'a>(wishes: &[Wish<'a>]) -> Option<[Wish<'a>; 2]> {
    let first = *wishes.first()?;
    let is_of_first = |wish: &&Wish<'a>| std::ptr::eq(wish.0, first.0);
    // An alternative of the first finding may match the other one's proposal.
    let is_met = |value: &str| wishes.iter().filter(is_of_first).any(|own| own.1.proposed == value);
    // Of two that only raise it, the larger has what the other one needs.
    let are_more = |one: &Change, other: &Change| {
        one.purpose == Purpose::Raise && other.purpose == Purpose::Raise
    };
    let other = wishes.iter().find(|wish| {
        !is_of_first(wish) && !is_met(&wish.1.proposed) && !are_more(first.1, wish.1)
    })?;
    Some([first, *other])
}

/// The finding for the settings on which the same two checks differ; there is at least one.
fn contradiction(pairs: &[[Wish<'_>; 2]]) -> Finding {
    let [(one, its), (other, others)] = pairs[0];
    let subject = its.knob.subject();
    let more = match pairs.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let summary = format!(
        "{} and {} conflict over {subject}{more}: {} or {}",
        one.check, other.check, its.proposed, others.proposed
    );
    let quotes = [one, other].into_iter().filter_map(|one| one.evidence.first().cloned());
    let mut finding = Finding::new(Severity::Warning, subject, summary)
        .cause(format!(
            "{} says: {}. {} says: {}. Each needs the same setting for its own reason.",
            one.check, one.summary, other.check, other.summary
        ))
        .quote(quotes)
        .advise(Advice::by_hand(
            "Choose the one that solves the worse problem on this host; do not apply both.",
            &[&its.command(), &others.command()],
        ))
        .confidence(Confidence::High);
    finding.check.clone_from(&one.check);
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Knob;

    fn finding(check: &str, wishes: &[(u32, &str)]) -> Finding {
        let change =
            |(irq, cpu): &(u32, &str)| Change::replace(Knob::IrqAffinity { irq: *irq }, None, cpu);
        let advice = Advice::by_change("x", wishes.iter().filter_map(change));
        let mut finding = Finding::new(Severity::Warning, "a", "slow").advise(advice);
        finding.check = check.to_owned();
        finding
    }

    #[test]
    fn two_checks_that_want_different_values_contradict_each_other() {
        let one = finding("D03", &[(41, "0"), (42, "1"), (43, "2")]);
        let other = finding("D16", &[(41, "1"), (42, "0"), (43, "2")]);
        let found = contradictions(&[one, other]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].check, "D03");
        let said = "D03 and D16 conflict over irq 41 and 1 more: 0 or 1";
        assert_eq!(found[0].summary, said);
        let commands = &found[0].advice[0].commands;
        assert_eq!(commands[1], "echo 1 > /proc/irq/41/smp_affinity_list");
    }

    #[test]
    fn agreement_other_settings_and_alternatives_are_none() {
        let agree = [finding("D03", &[(41, "0")]), finding("D16", &[(41, "0")])];
        let apart = [finding("D03", &[(41, "0")]), finding("D16", &[(42, "1")])];
        let either = [finding("D03", &[(41, "0"), (41, "1")]), finding("D16", &[(41, "1")])];
        let more = ["6291456", "8388608"].map(|most| {
            let knob = Knob::Sysctl { name: "net.ipv4.tcp_rmem".to_owned() };
            let change = Change::raise(knob, "4096 8192 8192", format!("4096 8192 {most}"));
            Finding::new(Severity::Warning, "a", "small").advise(Advice::by_change("x", change))
        });
        for findings in [agree, apart, either, more] {
            assert_eq!(contradictions(&findings), []);
        }
        assert_eq!(contradictions(&[]), []);
    }
}
