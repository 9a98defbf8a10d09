//! What the doctor says of a host, for programs; [`text`] shows the same to people.

pub mod text;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::CATALOGUE;
use crate::check::contradiction::contradictions;
use crate::finding::{Finding, Severity};
use crate::host::{Host, HostKind};

/// The version of the JSON output: raised when a field changes its meaning or goes.
pub const FORMAT: u32 = 1;

/// A whole diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// The version of this format.
    pub format: u32,
    /// What kind of host it is.
    pub host: HostKind,
    /// Its kernel's release, if it is known.
    pub kernel: Option<String>,
    /// Seconds between the two samples; none if there was one.
    pub interval_seconds: Option<f64>,
    /// The worst of all findings.
    pub worst: Severity,
    /// In one line.
    pub verdict: String,
    /// By check, the worst of each first. A check that does not fit this host has none.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Looks at a host with all checks, or with those of `only`.
    pub fn of(host: &Host, only: &[String]) -> Report {
        let is_wanted =
            |id: &str| only.is_empty() || only.iter().any(|one| one.eq_ignore_ascii_case(id));
        let checks = CATALOGUE.iter().filter(|check| is_wanted(check.id));
        let mut findings: Vec<Finding> = checks.flat_map(|check| check.run(host)).collect();
        findings.extend(contradictions(&findings));
        let kernel = host.file("proc/sys/kernel/osrelease").ok();
        Report {
            format: FORMAT,
            host: host.kind(),
            kernel: kernel.map(|release| release.value().to_owned()),
            interval_seconds: host.interval().map(|interval| interval.as_secs_f64()),
            worst: findings.iter().map(|one| one.severity).max().unwrap_or(Severity::Unknown),
            verdict: verdict(&findings),
            findings,
        }
    }

    /// What a program exits with: 0 if nothing is wrong, 3 for warnings, 4 for problems. 1 and 2
    /// are the doctor's own failures, and 5 that nothing could be told.
    pub fn exit_code(&self) -> u8 {
        match self.worst {
            Severity::Ok | Severity::Note => 0,
            Severity::Warning => 3,
            Severity::Problem => 4,
            Severity::Unknown if self.findings.iter().any(|one| one.severity == Severity::Ok) => 0,
            Severity::Unknown => 5,
        }
    }
}

/// The schema of [`Report`], as it is published.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Report);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}

fn verdict(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|one| one.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    let unknown = count(Severity::Unknown);
    let mut verdict = match (problems, warnings) {
        (0, 0) if findings.len() == unknown => "Nothing could be told".to_owned(),
        (0, 0) => "Nothing wrong was found".to_owned(),
        _ => {
            // The first of the worst: checks are in the order in which one should look.
            let worst = findings.iter().rev().max_by_key(|one| one.severity);
            let worst = worst.map(|one| format!(": {}", one.summary)).unwrap_or_default();
            let problems = number(problems, "problem");
            let parts: Vec<String> =
                problems.into_iter().chain(number(warnings, "warning")).collect();
            parts.join(" and ") + &worst
        }
    };
    if let Some(unread) = number(unknown, "thing") {
        verdict += &format!("; {unread} could not be read");
    }
    verdict + "."
}

/// "2 warnings"; none for 0.
fn number(count: usize, of: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {of}")),
        _ => Some(format!("{count} {of}s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_schema_is_that_of_the_output() {
        let published = include_str!("../../../../docs/doctor-schema.json");
        assert_eq!(published, schema(), "write `ringway doctor schema` to docs/doctor-schema.json");
    }

    #[test]
    fn a_verdict_is_one_line_with_the_worst() {
        let warning = Finding::new(Severity::Warning, "a", "slow");
        let problem = Finding::new(Severity::Problem, "b", "broken");
        let unknown = Finding::new(Severity::Unknown, "c", "x");
        assert_eq!(verdict(&[]), "Nothing could be told.");
        assert_eq!(
            verdict(&[warning, problem, unknown]),
            "1 problem and 1 warning: broken; 1 thing could not be read."
        );
        assert_eq!(verdict(&[Finding::new(Severity::Ok, "", "")]), "Nothing wrong was found.");
    }
}
