//! Which finding follows from which, and which one comes first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::check;
use crate::finding::{Finding, Severity};

/// Findings that another check's finding explains.
struct Effect {
    check: &'static str,
    /// Beginnings of their subjects, or parts of their summaries; all of the check if empty.
    which: &'static [&'static str],
    /// The checks that explain them, the likeliest first.
    causes: &'static [&'static str],
}

const EFFECTS: [Effect; 10] = [
    Effect { check: "D11", which: &[], causes: &["D40"] },
    // BBR with data that waits looks the same, whatever holds it.
    Effect {
        check: "D26",
        which: &[],
        causes: &["D30", "D40", "D34", "D38", "D43", "D37", "D44", "D35", "D33", "D45", "D11"],
    },
    Effect {
        check: "D33",
        which: &["Tcp.RetransSegs"],
        causes: &["D30", "D38", "D43", "D37", "D44", "D18", "D29"],
    },
    Effect {
        check: "D33",
        which: &["Udp.SndbufErrors", "Udp6.SndbufErrors"],
        causes: &["D30", "D38"],
    },
    Effect { check: "D33", which: &["TcpExt.IPReversePathFilter"], causes: &["D41"] },
    Effect {
        check: "D33",
        which: &["TcpExt.ListenOverflows", "Udp.RcvbufErrors", "Udp6.RcvbufErrors"],
        causes: &["D47"],
    },
    Effect {
        check: "D33",
        which: &["TcpExt.TCPSynRetrans"],
        causes: &["D39", "D41", "D47", "D31"],
    },
    // A queue below a limit is full because of that; what ringway drops by a limit is D30's.
    Effect {
        check: "D38",
        which: &["the queue of", "outgoing packets", "emulates"],
        causes: &["D30"],
    },
    Effect { check: "D45", which: &[], causes: &["D30"] },
    Effect { check: "D46", which: &["sends segments of", "gets segments of"], causes: &["D40"] },
];
/// Checks that say how something shows rather than what it is: after all others of their group.
const SYMPTOMS: [&str; 5] = ["D11", "D12", "D26", "D33", "D45"];
/// The check whose finding is only a guess when something else explains it.
const GUESS: &str = "D26";

/// Puts each finding behind its cause, and the worst first, of those the most certain.
pub(super) fn settle(findings: &mut [Finding]) {
    let wrong = |findings: &[Finding]| -> BTreeSet<String> {
        let wrong = findings.iter().filter(|one| one.severity >= Severity::Warning);
        wrong.filter(|one| one.follows.is_none()).map(|one| one.check.clone()).collect()
    };
    // The last first, so that what became an effect is no cause of an earlier one.
    for effect in EFFECTS.iter().rev() {
        let causes = wrong(findings);
        for finding in findings.iter_mut().filter(|one| effect.covers(one)) {
            if let Some(cause) = effect.causes.iter().find(|cause| causes.contains(**cause)) {
                finding.follow(cause);
            }
        }
    }
    let causes: BTreeSet<String> = findings
        .iter()
        .filter(|one| one.severity >= Severity::Warning)
        .map(|one| one.check.clone())
        .collect();
    for finding in findings.iter_mut() {
        finding.follows.take_if(|check| !causes.contains(check));
    }
    findings.sort_by_key(|one| {
        let is_effect = one.follows.is_some();
        (Reverse(one.severity), is_effect, Reverse(one.confidence), place(&one.check))
    });
}

impl Effect {
    fn covers(&self, finding: &Finding) -> bool {
        let is_it =
            |start: &&str| finding.subject.starts_with(start) || finding.summary.contains(start);
        finding.check == self.check
            && finding.severity >= Severity::Warning
            && finding.follows.is_none()
            && (self.which.is_empty() || self.which.iter().any(is_it))
    }
}

impl Finding {
    fn follow(&mut self, cause: &str) {
        self.follows = Some(cause.to_owned());
        if self.check == GUESS {
            self.severity = Severity::Note;
            self.cause = check::limited_by_another(cause);
            self.advice.clear();
        }
    }
}

/// The place of a check: by its group, causes before symptoms.
fn place(id: &str) -> (Option<check::Group>, bool, Option<usize>) {
    let group = check::find(id).map(|check| check.group);
    let index = check::CATALOGUE.iter().position(|check| check.id == id);
    (group, SYMPTOMS.contains(&id), index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Confidence;

    fn finding(check: &str, severity: Severity, subject: &str) -> Finding {
        let mut finding = Finding::new(severity, subject, format!("{check} of {subject}"));
        finding.check = check.to_owned();
        finding
    }

    fn settled(all: &[(&str, Severity, &str)]) -> Vec<(String, Option<String>, Severity)> {
        let mut findings: Vec<Finding> = all
            .iter()
            .map(|(check, severity, subject)| finding(check, *severity, subject))
            .collect();
        settle(&mut findings);
        findings.into_iter().map(|one| (one.check, one.follows, one.severity)).collect()
    }

    #[test]
    fn a_limit_comes_before_what_it_causes() {
        let found = settled(&[
            ("D26", Severity::Warning, "bbr"),
            ("D30", Severity::Warning, "eth0"),
            ("D33", Severity::Warning, "Tcp.RetransSegs"),
            ("D33", Severity::Warning, "Tcp.InCsumErrors"),
        ]);
        let after = |cause: &str| Some(cause.to_owned());
        assert_eq!(found[0].0, "D30");
        assert!(found.contains(&("D33".to_owned(), after("D30"), Severity::Warning)), "{found:?}");
        assert!(found.contains(&("D33".to_owned(), None, Severity::Warning)), "{found:?}");
        assert_eq!(found[3], ("D26".to_owned(), after("D30"), Severity::Note));
    }

    #[test]
    fn symptoms_come_after_settings_of_their_group() {
        let found = settled(&[
            ("D11", Severity::Warning, "peer"),
            ("D13", Severity::Warning, "eth0"),
            ("D19", Severity::Warning, "net.ipv4.tcp_rmem"),
            ("D47", Severity::Problem, "port"),
        ]);
        let checks: Vec<&str> = found.iter().map(|one| one.0.as_str()).collect();
        assert_eq!(checks, ["D47", "D13", "D19", "D11"]);
        assert!(found.iter().all(|one| one.1.is_none()), "{found:?}");
    }

    #[test]
    fn what_is_certain_comes_before_what_only_fits() {
        let mut offloads = finding("D13", Severity::Warning, "vif1.0");
        offloads.confidence = Confidence::Medium;
        let buffer = finding("D11", Severity::Warning, "10.98.0.2:5201");
        let mut findings = [offloads, buffer];
        settle(&mut findings);
        assert_eq!(findings[0].check, "D11");
    }

    #[test]
    fn the_lists_name_checks_and_no_cause_is_a_plain_effect() {
        for effect in &EFFECTS {
            let all = effect.causes.iter().chain([&effect.check]);
            assert!(all.clone().all(|id| check::find(id).is_some()), "{}", effect.check);
            assert!(!effect.causes.contains(&effect.check));
        }
    }
}
