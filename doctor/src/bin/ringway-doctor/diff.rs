//! `ringway doctor diff`: the differences between two saved hosts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use ringway_doctor::evidence::{Changed, Source, archive, changed};
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Severity};
use ringway_doctor::report::{self, Report};
use ringway_terminal::output::{print, print_json};
use serde::Serialize;

use super::known_check;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway doctor diff monday.tar friday.tar")]
pub(super) struct Diff {
    /// A tar or directory of `record`, or a sos report
    before: PathBuf,
    /// Another one
    after: PathBuf,
    /// Run only this check; may be repeated
    #[arg(long = "check", value_name = "ID", value_parser = known_check)]
    checks: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Output {
    findings: report::Diff,
    settings: Vec<Changed>,
}

pub(super) fn run(args: &Diff) -> Result<ExitCode> {
    let open = |path: &Path| -> Result<Source> {
        archive::open(path).with_context(|| path.display().to_string())
    };
    let (before, after) = (open(&args.before)?, open(&args.after)?);
    let settings = changed(&before, &after);
    let report = |source| Report::of(&Host::new(source), &args.checks);
    let findings = report::Diff::of(&report(before), &report(after));
    let code = match findings.worst() {
        Some(Severity::Problem) => 4,
        Some(Severity::Warning) => 3,
        _ => 0,
    };
    let output = Output { findings, settings };
    if args.json {
        print_json(&output)?;
    } else {
        print(&output.text())?;
    }
    Ok(ExitCode::from(code))
}

impl Output {
    fn text(&self) -> String {
        let diff = &self.findings;
        let mut text = format!("1: {}\n2: {}\n", diff.verdicts[0], diff.verdicts[1]);
        list(&mut text, "New in 2", &diff.new);
        if !diff.changed.is_empty() {
            text += "\nWorse or better in 2\n";
        }
        for one in &diff.changed {
            let way = if one.now.severity > one.was { "worse" } else { "better" };
            let _ = writeln!(text, "  {way}: {} {}", one.now.check, one.now.summary);
        }
        list(&mut text, "Gone in 2", &diff.gone);
        if !self.settings.is_empty() {
            text += "\nSettings that differ\n";
        }
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "(none)".to_owned());
        for one in &self.settings {
            let _ = writeln!(text, "  {}: {} -> {}", one.name, word(&one.before), word(&one.after));
        }
        if !diff.ran_once.is_empty() {
            let of = |report| -> Vec<&str> {
                let all = diff.ran_once.iter().filter(|one| one.report == report);
                all.map(|one| one.check.as_str()).collect()
            };
            let (first, second) = (of(1), of(2));
            text += "\nChecked in one only, and not compared\n";
            for (number, checks) in [(1, first), (2, second)] {
                if !checks.is_empty() {
                    let _ = writeln!(text, "  in {number}: {}", checks.join(" "));
                }
            }
        }
        let _ = writeln!(
            text,
            "\n{} new, {} gone, {} worse or better, {} the same; {} settings differ.",
            diff.new.len(),
            diff.gone.len(),
            diff.changed.len(),
            diff.same,
            self.settings.len()
        );
        text
    }
}

fn list(text: &mut String, head: &str, findings: &[Finding]) {
    if !findings.is_empty() {
        let _ = writeln!(text, "\n{head}");
    }
    for finding in findings {
        let mark = match finding.severity {
            Severity::Problem => "[✗]",
            Severity::Warning => "[!]",
            _ => "[i]",
        };
        let _ = writeln!(text, "  {mark} {} {}", finding.check, finding.summary);
    }
}
