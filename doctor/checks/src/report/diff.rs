//! What is different between two reports: of one host at two times, or of two hosts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Report;
use crate::finding::{Finding, Severity};

/// The differences between two reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Diff {
    /// The verdicts of the first and the second report.
    pub verdicts: [String; 2],
    /// Found by the second only.
    pub new: Vec<Finding>,
    /// Found by the first only.
    pub gone: Vec<Finding>,
    /// Found by both, with different severity.
    pub changed: Vec<Changed>,
    /// Found by both, with the same severity.
    pub same: usize,
    /// Checks that ran in one report only: their findings are not changes.
    #[serde(rename = "looked-once")] // as scripts know it
    pub ran_once: Vec<RanOnce>,
}

/// A finding that became worse or better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Changed {
    /// Its severity in the first report.
    pub was: Severity,
    /// Its severity in the second report.
    pub now: Finding,
}

/// A check that ran in one of two reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RanOnce {
    /// Such as `D18`.
    pub check: String,
    /// The report that it ran in: 1 or 2.
    pub report: u8,
}

impl Diff {
    /// Compares two reports. Omits findings without a problem and evidence that could not be read;
    /// if only one report could read it, the check is in `ran_once`.
    pub fn of(before: &Report, after: &Report) -> Diff {
        let shown = |report: &Report| -> Vec<Finding> {
            let is_shown = |one: &&Finding| one.severity >= Severity::Note;
            report.findings.iter().filter(is_shown).cloned().collect()
        };
        let (mut gone, now) = (shown(before), shown(after));
        let (mut new, mut changed, mut same) = (Vec::new(), Vec::new(), 0);
        for finding in now {
            let Some(at) = gone.iter().position(|one| is_same(one, &finding)) else {
                new.push(finding);
                continue;
            };
            let was = gone.remove(at).severity;
            if was == finding.severity {
                same += 1;
            } else {
                changed.push(Changed { was, now: finding });
            }
        }
        let ran = |report: &Report, check: &str| {
            let all = &report.scope.checks;
            all.iter().any(|one| one.check == check && one.ended == super::How::Ran)
        };
        let ran_once = before.scope.checks.iter().filter_map(|one| {
            let (first, second) = (ran(before, &one.check), ran(after, &one.check));
            let report = if first { 1 } else { 2 };
            (first != second).then(|| RanOnce { check: one.check.clone(), report })
        });
        Diff {
            verdicts: [before.verdict.clone(), after.verdict.clone()],
            new,
            gone,
            changed,
            same,
            ran_once: ran_once.collect(),
        }
    }

    /// The highest severity of findings that are new or became worse, if any.
    pub fn worst(&self) -> Option<Severity> {
        let worse = self.changed.iter().filter(|one| one.now.severity > one.was);
        let worse = worse.map(|one| one.now.severity);
        self.new.iter().map(|one| one.severity).chain(worse).max()
    }
}

/// Whether two findings have the same subject and text, apart from numbers.
fn is_same(one: &Finding, other: &Finding) -> bool {
    let kind = |text: &str| -> String {
        text.chars().filter(|letter| !letter.is_ascii_digit() && *letter != '.').collect()
    };
    (&one.check, &one.subject) == (&other.check, &other.subject)
        && (one.cause == other.cause || kind(&one.summary) == kind(&other.summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::Source;
    use ringway_evidence::fact::Host;

    fn report(findings: &[(&str, Severity, &str)]) -> Report {
        let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D19".to_owned()]);
        report.findings = findings
            .iter()
            .map(|(subject, severity, said)| {
                let mut one = Finding::new(*severity, *subject, *said);
                one.check = "D19".to_owned();
                one
            })
            .collect();
        report
    }

    #[test]
    fn new_gone_and_worse_findings_are_distinguished() {
        let before = report(&[
            ("a", Severity::Warning, "a drops 7.1 a second"),
            ("b", Severity::Note, "b"),
            ("c", Severity::Warning, "c"),
            ("d", Severity::Ok, "d"),
        ]);
        let after = report(&[
            ("a", Severity::Warning, "a drops 900.0 a second"),
            ("b", Severity::Problem, "b"),
            ("e", Severity::Warning, "e"),
        ]);
        let diff = Diff::of(&before, &after);
        let subjects = |all: &[Finding]| -> Vec<String> {
            all.iter().map(|one| one.subject.clone()).collect()
        };
        assert_eq!(subjects(&diff.new), ["e"]);
        assert_eq!(subjects(&diff.gone), ["c"]);
        assert_eq!((diff.changed.len(), diff.changed[0].was, diff.same), (1, Severity::Note, 1));
        assert_eq!(diff.worst(), Some(Severity::Problem));
        let other = Diff::of(&after, &after);
        assert_eq!((other.same, other.worst()), (3, None));
    }
}
