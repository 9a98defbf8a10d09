//! What the doctor says of a host, for programs; [`text`] shows the same to people.

mod diff;
mod guests;
mod html;
mod rank;
mod scope;
mod skip;
pub mod text;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use diff::{Changed, Diff, RanOnce};
pub use guests::Guest;
pub use html::page;
pub use scope::{CheckOutcome, How, Scope};
pub use skip::{Skipped, Skips};

use self::rank::settle;
use crate::check::contradiction::contradictions;
use crate::check::{self, CATALOGUE, Check};
use crate::finding::{Finding, Severity};
use ringway_evidence::fact::{Host, HostKind, HostName, KernelRelease, Namespace, Remarks, Taken};
use ringway_evidence::{Netns, one_line};

/// The command whose output is about the vifs of ringway, in whatever network namespace it runs.
const RINGWAY: &str = "ringway vif list --json";
/// The version of the JSON output. It increases when a field changes its meaning or is removed.
pub const FORMAT: u32 = 1;

/// The diagnosis of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// The version of this format.
    pub format: u32,
    /// The kind of host.
    pub host: HostKind,
    /// The kernel's release, if known.
    pub kernel: Option<String>,
    /// The name of the host, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When the evidence was collected, as the host's clock said, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The version of the doctor.
    #[serde(default)]
    pub version: String,
    /// Seconds between the two samples; none if there was only one.
    pub interval_seconds: Option<f64>,
    /// The highest severity of all findings.
    pub worst: Severity,
    /// Whether enough evidence could be read to exclude other problems. If not, and there is no
    /// warning or problem, there is no verdict.
    pub is_conclusive: bool,
    /// The result in one line.
    pub verdict: String,
    /// How much was checked.
    pub scope: Scope,
    /// Limits of the evidence as a whole: a truncated archive, a network namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// The most serious first, and causes before what follows from them. A check that does not
    /// apply to this host has none.
    pub findings: Vec<Finding>,
    /// The interfaces of guests, if all checks ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<Guest>,
    /// Known findings from a skip list. They do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
}

impl Report {
    /// Checks a host with all checks, or with those of `only`.
    pub fn of(host: &Host, only: &[String]) -> Report {
        let is_wanted =
            |check: &&Check| only.is_empty() || only.iter().any(|name| check.is_called(name));
        let checks = CATALOGUE.iter().filter(is_wanted);
        let (mut findings, mut scope) = (Vec::new(), Scope::default());
        for check in checks {
            let (found, ended) = check.outcome(host);
            findings.extend(found);
            scope.add(check, ended);
        }
        findings.extend(contradictions(&findings));
        settle(&mut findings);
        let kernel = host.fact::<KernelRelease>().ok();
        Report {
            format: FORMAT,
            host: host.fact().unwrap_or_else(|_| HostKind::unknown()),
            kernel: kernel.map(|release| release.value().to_owned()),
            name: host.fact::<HostName>().ok().map(|name| name.value().to_owned()),
            time: host.fact::<Taken>().ok().map(|Taken(time)| time.value().to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            interval_seconds: host.interval().map(|interval| interval.as_secs_f64()),
            worst: worst(&findings),
            is_conclusive: scope.is_enough(),
            verdict: verdict(&findings, &scope),
            scope,
            remarks: remarks(host),
            guests: if only.is_empty() { guests::guests(host, &findings) } else { Vec::new() },
            findings,
            skipped: Vec::new(),
        }
    }

    /// Marks the report as that of another network namespace: its findings name it, and `enter`
    /// makes the commands of its advice run there. Findings about the whole machine, such as its
    /// CPUs and the vifs of ringway, are removed.
    #[must_use]
    pub fn within(mut self, netns: &str, enter: impl Fn(&str) -> String) -> Report {
        let is_of_machine = |check: &str| check::find(check).is_some_and(Check::is_of_machine);
        let is_of_ringway = |one: &Finding| one.evidence.iter().any(|it| it.file == RINGWAY);
        self.findings.retain(|one| !is_of_machine(&one.check) && !is_of_ringway(one));
        self.guests.retain(|guest| guest.restarts.is_none());
        for finding in &mut self.findings {
            finding.netns = Some(netns.to_owned());
            let advice = finding.advice.iter_mut().flat_map(|advice| &mut advice.commands);
            advice.for_each(|command| *command = enter(command));
        }
        self.worst = worst(&self.findings);
        self.verdict = verdict(&self.findings, &self.scope);
        self
    }

    /// The exit code: 0 if nothing is wrong, 3 for warnings, 4 for problems, 5 if too little
    /// evidence could be read for a verdict. 1 and 2 are the doctor's own failures.
    pub fn exit_code(&self) -> u8 {
        match self.worst {
            Severity::Warning => 3,
            Severity::Problem => 4,
            Severity::Ok | Severity::Note | Severity::Unknown if self.is_conclusive => 0,
            Severity::Ok | Severity::Note | Severity::Unknown => 5,
        }
    }
}

fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|one| one.severity).max().unwrap_or(Severity::Unknown)
}

/// The published schema of [`Report`].
pub fn schema() -> String {
    let schema = schemars::schema_for!(Report);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}

fn verdict(findings: &[Finding], scope: &Scope) -> String {
    let count = |severity| findings.iter().filter(|one| one.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    let verdict = match (problems, warnings) {
        (0, 0) if !scope.is_enough() => "No verdict: too little evidence could be read".to_owned(),
        (0, 0) => well(findings),
        _ => {
            // The first of the worst that is no effect of another one.
            let key = |one: &&Finding| (one.severity, one.follows.is_none());
            let worst = findings.iter().rev().max_by_key(key);
            let worst = worst.map(|one| format!(": {}", one.summary)).unwrap_or_default();
            let problems = number(problems, "problem");
            let parts: Vec<String> =
                problems.into_iter().chain(number(warnings, "warning")).collect();
            parts.join(" and ") + &worst
        }
    };
    one_line(&format!("{verdict}; {}.", scope.summary()))
}

/// The verdict where nothing is wrong: what is lost all the same stands in it, because it may be
/// what someone misses.
fn well(findings: &[Finding]) -> String {
    let all: Vec<&Finding> = findings.iter().filter(|one| one.loss.is_some()).collect();
    // What the kernel says of the same packets adds nothing where a check names the place.
    let is_traced = |one: &&&Finding| check::find(&one.check).is_some_and(Check::is_of_trace);
    let traced = all.iter().filter(is_traced).count();
    let named = all.iter().filter(|one| traced == all.len() || !is_traced(one));
    let losses: Vec<&str> = named.filter_map(|one| one.loss.as_deref()).collect();
    match losses.as_slice() {
        [] => "No problems found".to_owned(),
        [one] => format!("Nothing set wrong, but {one}"),
        [one, more @ ..] => {
            format!("Nothing set wrong, but {one}, and {} more notes of loss", more.len())
        }
    }
}

fn remarks(host: &Host) -> Vec<String> {
    let mut remarks = host.fact().map_or_else(|_| Vec::new(), |Remarks(remarks)| remarks);
    if matches!(host.fact(), Ok(Namespace(Some(Netns::Other)))) {
        remarks.push(
            "this is a network namespace other than the machine's own: the machine's cards and \
             global settings were not checked"
                .to_owned(),
        );
    }
    remarks
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
    use crate::check::Ended;
    use crate::hosts::{host, net_dev, sampled};
    use ringway_evidence::{Quote, Source};

    #[test]
    fn the_published_schema_is_that_of_the_output() {
        let published = include_str!("../../../../docs/doctor-schema.json");
        assert_eq!(published, schema(), "write `ringway doctor schema` to docs/doctor-schema.json");
    }

    #[test]
    fn what_follows_stands_below_its_cause() {
        let mut found = Finding::new(Severity::Problem, "peer", "stuck");
        found.check = "D44".to_owned();
        let mut effect = Finding::new(Severity::Note, "bbr", "slow").follows("D44");
        effect.check = "D26".to_owned();
        let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D26".to_owned()]);
        report.findings = vec![effect, found];
        settle(&mut report.findings);
        let shown = text::render(&report, text::Detail::Terse);
        let at = |what: &str| shown.find(what).expect("it is shown");
        assert!(at("  [✗] D44 stuck") < at("      [i] D26 slow"), "{shown}");
        assert_eq!(shown.matches("D26 slow").count(), 1, "{shown}");
        // Without the cause it stands for itself.
        report.findings.truncate(1);
        settle(&mut report.findings);
        assert_eq!(report.findings[0].follows, None);
    }

    #[test]
    fn findings_of_another_namespace_say_so_and_their_commands_go_there() {
        let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D19".to_owned()]);
        let advice = crate::finding::Advice::by_hand("do", &["tc qdisc show"]);
        let mut found = Finding::new(Severity::Warning, "a", "slow").advise(advice);
        found.check = "D19".to_owned();
        let mut of_machine = Finding::new(Severity::Problem, "cpu0", "full");
        of_machine.check = "D35".to_owned();
        let quote = Quote { file: RINGWAY.to_owned(), line: None, text: "vm1".to_owned() };
        let mut of_vif = Finding::new(Severity::Problem, "vm1", "drops").quote([quote]);
        of_vif.check = "D38".to_owned();
        report.findings = vec![found, of_machine, of_vif];
        let report = report.within("router", |command| format!("ip netns exec router {command}"));
        assert_eq!((report.findings.len(), report.worst), (1, Severity::Warning));
        let found = &report.findings[0];
        assert_eq!(found.netns.as_deref(), Some("router"));
        assert_eq!(found.advice[0].commands, ["ip netns exec router tc qdisc show"]);
        assert!(report.verdict.starts_with("1 warning: slow"), "{}", report.verdict);
    }

    fn scope(ran: usize, unread: usize, not_here: usize) -> Scope {
        let checks = CATALOGUE.iter();
        let ends = std::iter::repeat_n(Ended::Ran, ran)
            .chain(std::iter::repeat_n(Ended::Unread("x".to_owned()), unread))
            .chain(std::iter::repeat_n(Ended::NotHere("y".to_owned()), not_here));
        let mut scope = Scope::default();
        checks.zip(ends).for_each(|(check, ended)| scope.add(check, ended));
        scope
    }

    #[test]
    fn a_verdict_is_one_line_with_the_worst_and_how_much_was_checked() {
        let warning = Finding::new(Severity::Warning, "a", "slow");
        let problem = Finding::new(Severity::Problem, "b", "broken");
        let unknown = Finding::new(Severity::Unknown, "c", "x");
        let some = scope(23, 2, 7);
        assert_eq!(
            verdict(&[warning.clone(), problem, unknown.clone()], &some),
            "1 problem and 1 warning: broken; 23 of 32 checks ran, 2 could not read their \
             evidence, 7 do not apply to this host."
        );
        assert_eq!(verdict(&[], &scope(1, 0, 0)), "No problems found; 1 of 1 checks ran.");
        let little = scope(2, 19, 11);
        let said = verdict(&[unknown], &little);
        assert!(
            said.starts_with("No verdict: too little evidence could be read; 2 of 32 "),
            "{said}"
        );
        // Where packets end is said even if it is meant.
        let lossy = Finding::new(Severity::Note, "d", "x").loses("9 packets a second die");
        let said = verdict(std::slice::from_ref(&lossy), &scope(1, 0, 0));
        assert_eq!(said, "Nothing set wrong, but 9 packets a second die; 1 of 1 checks ran.");
        assert!(verdict(&[lossy, warning.clone()], &some).starts_with("1 warning: slow"));
        // What was found is said, however little was checked.
        assert!(verdict(&[warning], &little).starts_with("1 warning: slow"));
        assert!(verdict(&[], &scope(0, 0, 3)).starts_with("No verdict"));
    }

    #[test]
    fn frames_that_ringway_drops_are_no_all_clear() {
        let host = host(sampled(|sample| {
            let vifs = format!(
                r#"[{{"name":"vm1","kind":"virtio","state":"Connected","max_queues":1,"queues":
                [{{"index":0,"tx_packets":0,"tx_bytes":0,"rx_packets":0,"rx_bytes":0,
                "dropped":{{"no_route":{}}}}}]}}]"#,
                sample * 50
            );
            [("proc/net/dev", net_dev("")), ("commands/ringway_vif_list_--json", vifs + "\n")]
        }));
        let report = Report::of(&host, &["D38".to_owned()]);
        let said = "Nothing set wrong, but 50.0 frames a second die in ringway at vm1: no_route; ";
        assert!(report.verdict.starts_with(said), "{}", report.verdict);
        assert_eq!(report.exit_code(), 0);
        let guests = Report::of(&host, &[]).guests;
        assert_eq!((guests[0].interface.as_str(), guests[0].worst), ("vm1", Severity::Note));
    }

    #[test]
    fn checks_that_could_not_run_are_no_all_clear() {
        let report = |pieces: &[(&str, &str)]| Report::of(&host(pieces.iter().copied()), &[]);
        // Little of a host: what is not said to be there is not known to be absent.
        let little = report(&[("proc/uptime", "9.0 1\n"), ("proc/loadavg", "0\n")]);
        assert_eq!((little.exit_code(), little.is_conclusive), (5, false), "{little:#?}");
        assert_eq!(little.scope.not_here, 0, "{little:#?}");
        let namespace = report(&[
            ("netns", "other\n"),
            ("proc/uptime", "9.0 1\n"),
            ("proc/net/dev", "a\nb\n  lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"),
        ]);
        assert!(namespace.remarks[0].contains("network namespace"), "{namespace:#?}");
        assert!(namespace.scope.missed(How::NotHere).all(|one| one.why.is_some()));
        assert!(namespace.scope.not_here > 0, "{namespace:#?}");
    }
}
