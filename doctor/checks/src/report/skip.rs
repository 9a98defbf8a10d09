//! Findings that someone knows of and does not want to see again, each with a reason.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Report, verdict, worst};
use crate::check;
use crate::finding::Finding;

/// A skip list, as in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skips {
    /// Its entries.
    #[serde(default, rename = "skip")]
    all: Vec<Skip>,
}

/// A finding to skip, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    /// The id or slug of a check.
    check: String,
    /// Skips findings about this subject only; without it, all findings of the check.
    subject: Option<String>,
    /// The reason, shown in the report.
    reason: String,
}

/// A finding that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Skipped {
    /// The finding.
    pub finding: Finding,
    /// The reason from the skip list.
    pub reason: String,
}

impl Skips {
    /// Checks that each entry names an existing check and has a reason.
    ///
    /// # Errors
    /// The first invalid entry, and what is wrong with it.
    pub fn verify(&self) -> Result<(), String> {
        for one in &self.all {
            if check::find(&one.check).is_none() {
                return Err(format!("{}: expected the id of a check", one.check));
            }
            if one.reason.trim().is_empty() {
                return Err(format!("{}: expected a reason", one.check));
            }
        }
        Ok(())
    }

    fn reason(&self, finding: &Finding) -> Option<usize> {
        self.all.iter().position(|one| {
            check::find(&one.check).is_some_and(|check| check.id == finding.check)
                && one.subject.as_ref().is_none_or(|subject| *subject == finding.subject)
        })
    }
}

impl Report {
    /// Removes findings that are on a skip list: they do not count, and are shown separately. An
    /// entry without a finding becomes a remark, because its problem may be solved.
    #[must_use]
    pub fn without(mut self, skips: &Skips) -> Report {
        let mut used = vec![false; skips.all.len()];
        for finding in std::mem::take(&mut self.findings) {
            match skips.reason(&finding) {
                Some(at) if finding.severity >= crate::finding::Severity::Note => {
                    used[at] = true;
                    let reason = skips.all[at].reason.clone();
                    self.skipped.push(Skipped { finding, reason });
                }
                _ => self.findings.push(finding),
            }
        }
        let unused = skips.all.iter().zip(used).filter(|(_, used)| !used);
        self.remarks.extend(unused.map(|(skip, _)| {
            let subject = skip.subject.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
            format!("{}{subject} is on the skip list but was not found", skip.check)
        }));
        self.worst = worst(&self.findings);
        self.verdict = verdict(&self.findings, &self.scope);
        if !self.skipped.is_empty() {
            let end = self.verdict.pop().unwrap_or('.');
            self.verdict += &format!(", {} skipped{end}", self.skipped.len());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use ringway_evidence::Source;
    use ringway_evidence::fact::Host;

    fn skip(check: &str, subject: Option<&str>, reason: &str) -> Skip {
        let subject = subject.map(str::to_owned);
        Skip { check: check.to_owned(), subject, reason: reason.to_owned() }
    }

    #[test]
    fn what_is_skipped_counts_no_more_and_is_shown() {
        let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D19".to_owned()]);
        report.findings = ["a", "b"]
            .map(|subject| {
                let mut one = Finding::new(Severity::Problem, subject, "slow");
                one.check = "D19".to_owned();
                one
            })
            .into();
        let skips = Skips {
            all: vec![skip("harmful-settings", Some("a"), "the vendor's"), skip("D18", None, "x")],
        };
        assert_eq!(skips.verify(), Ok(()));
        let some = report.clone().without(&skips);
        assert_eq!((some.findings.len(), some.skipped.len(), some.exit_code()), (1, 1, 4));
        assert!(some.verdict.ends_with(", 1 skipped."), "{}", some.verdict);
        assert!(some.remarks.iter().any(|one| one.contains("D18 is on the skip list")), "{some:?}");
        let all = report.without(&Skips { all: vec![skip("D19", None, "both")] });
        assert!(all.findings.is_empty() && all.exit_code() != 4);
    }

    #[test]
    fn a_list_names_checks_and_has_reasons() {
        let of = |check: &str, reason: &str| {
            let all = vec![skip(check, None, reason)];
            Skips { all }.verify()
        };
        assert!(of("D999", "x").is_err() && of("D19", " ").is_err());
    }
}
