//! A report for people: grouped, terse, the verdict last.

use std::fmt::Write;

use super::{CheckOutcome, How, Report};
use crate::check::{self, CATALOGUE, Check, Group};
use crate::finding::{Finding, Severity};
use ringway_evidence::one_line;

/// How much detail a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Problems with their evidence and advice; other findings in one line each.
    Terse,
    /// Evidence for everything.
    Full,
}

const GROUPS: [Group; 5] =
    [Group::Datapath, Group::Processors, Group::Queues, Group::Links, Group::Tcp];

/// Formats the whole report.
pub fn render(report: &Report, detail: Detail) -> String {
    let mut text = head(report, detail);
    for group in GROUPS {
        let body: String = CATALOGUE
            .iter()
            .filter(|check| check.group == group)
            .map(|check| of_check(check, report, detail))
            .collect();
        if !body.is_empty() {
            let _ = write!(text, "\n{}\n{body}", group.title());
        }
    }
    text += &guests(report);
    text += &skipped(report);
    text += &missed(report, detail);
    let _ = write!(text, "\n{}\n", report.verdict);
    text.lines().map(|line| one_line(line) + "\n").collect()
}

/// Guests that the text lists.
const GUESTS_MAX: usize = 16;

/// A line for each guest's interface.
fn guests(report: &Report) -> String {
    let mut text = String::new();
    for guest in report.guests.iter().take(GUESTS_MAX) {
        if text.is_empty() {
            text += "\nGuests\n";
        }
        let _ = writeln!(text, "  {} {}", mark(guest.worst), guest.line());
    }
    let more = report.guests.len().saturating_sub(GUESTS_MAX);
    if more > 0 {
        let _ = writeln!(text, "      and {more} more, see --json");
    }
    text
}

/// Findings that do not count, each with the reason.
fn skipped(report: &Report) -> String {
    let mut text = String::new();
    for one in &report.skipped {
        if text.is_empty() {
            text += "\nSkipped\n";
        }
        let finding = &one.finding;
        wrapped(&mut text, &format!("{} {} ({})", finding.check, finding.summary, one.reason));
    }
    text
}

/// Checks that are not listed above: those whose subject this host lacks, and those that could not
/// determine whether it has it.
fn missed(report: &Report, detail: Detail) -> String {
    let is_silent =
        |one: &&CheckOutcome| !report.findings.iter().any(|found| found.check == one.check);
    let mut text = String::new();
    for (how, head) in [
        (How::NotHere, "Not checked: not present on this host"),
        (How::Unread, "Not checked: unknown whether present on this host"),
    ] {
        let silent: Vec<&CheckOutcome> = report.scope.missed(how).filter(is_silent).collect();
        if silent.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{head}");
        if detail == Detail::Full {
            let why = |one: &&CheckOutcome| {
                format!("{}: {}", one.check, one.why.as_deref().unwrap_or_default())
            };
            wrapped(&mut text, &silent.iter().map(why).collect::<Vec<_>>().join("; "));
        } else {
            let ids: Vec<&str> = silent.iter().map(|one| one.check.as_str()).collect();
            wrapped(&mut text, &format!("{}; see -v", ids.join(" ")));
        }
    }
    text
}

fn head(report: &Report, detail: Detail) -> String {
    let mut text = format!("This is {}", report.host);
    if let Some(kernel) = &report.kernel {
        let _ = write!(text, ", Linux {kernel}");
    }
    match report.interval_seconds {
        Some(seconds) => {
            let _ = writeln!(text, "; two samples, {seconds:.1} s apart.");
        }
        None => text += "; one sample, so rates are means since the boot.\n",
    }
    for remark in &report.remarks {
        wrapped(&mut text, &format!("Note: {remark}."));
    }
    if detail == Detail::Full || report.host.evidence.is_empty() {
        for quote in &report.host.evidence {
            let _ = writeln!(text, "      {}", quoted(quote));
        }
    } else if let Some(quote) = report.host.evidence.first() {
        let _ = writeln!(text, "  by {}", quoted(quote));
    }
    text
}

fn of_check(check: &Check, report: &Report, detail: Detail) -> String {
    let is_own = |one: &&Finding| one.check == check.id && one.follows.is_none();
    let findings: Vec<&Finding> = report.findings.iter().filter(is_own).collect();
    let is_unknown = |one: &&&Finding| one.severity == Severity::Unknown;
    let unknown = findings.iter().filter(is_unknown).count();
    let mut text = String::new();
    let mut is_first = true;
    let mut said = "";
    for finding in findings {
        // Many interfaces cannot be read for the same reason.
        if finding.severity == Severity::Unknown && detail == Detail::Terse {
            if !std::mem::take(&mut is_first) {
                continue;
            }
            text += &of_finding(check, finding, detail, "");
            if unknown > 1 {
                let _ = writeln!(text, "      and {} more like it, see -v", unknown - 1);
            }
        } else {
            text += &of_finding(check, finding, detail, said);
            said = &finding.cause;
        }
    }
    text + &following(check, report, detail)
}

/// Findings that are caused by those of a check, to be shown below them.
fn following(check: &Check, report: &Report, detail: Detail) -> String {
    let is_its = |one: &&Finding| one.follows.as_deref() == Some(check.id);
    let of_one = |one: &Finding| {
        Some(of_finding(check::find(&one.check)?, one, detail, "").replace("\n", "\n    "))
    };
    let texts = report.findings.iter().filter(is_its).filter_map(of_one);
    texts.map(|text| format!("    {}\n", text.trim_end())).collect()
}

/// A finding; `said` is the cause of the one above it, which is not said again.
fn of_finding(check: &Check, finding: &Finding, detail: Detail, said: &str) -> String {
    let mut text = format!("  {} {} {}\n", mark(finding.severity), check.id, finding.summary);
    let is_wrong = finding.severity >= Severity::Warning;
    if is_wrong || detail == Detail::Full {
        for quote in &finding.evidence {
            let _ = writeln!(text, "      {}", quoted(quote));
        }
        if finding.cause != said {
            wrapped(&mut text, &finding.cause);
        }
    }
    if is_wrong || detail == Detail::Full {
        for advice in &finding.advice {
            wrapped(&mut text, &format!("-> {}", advice.text));
            for command in &advice.commands {
                let _ = writeln!(text, "         {command}");
            }
        }
    }
    if detail == Detail::Full {
        if let Some(gain) = &finding.gain {
            wrapped(&mut text, &format!("Gain: {gain}."));
        }
    }
    text
}

/// The sign of a severity, at the beginning of a line.
pub fn mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "[✓]",
        Severity::Unknown => "[?]",
        Severity::Note => "[i]",
        Severity::Warning => "[!]",
        Severity::Problem => "[✗]",
    }
}

fn quoted(quote: &ringway_evidence::Quote) -> String {
    let line = quote.line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("{}{line}: {}", quote.file, quote.text)
}

/// The width of running text, in columns.
const COLUMNS: usize = 96;

/// Adds indented text, wrapped between words.
fn wrapped(into: &mut String, text: &str) {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + word.chars().count() + 7 > COLUMNS {
            let _ = writeln!(into, "      {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    if !line.is_empty() {
        let _ = writeln!(into, "      {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Advice;
    use ringway_evidence::Source;
    use ringway_evidence::fact::Host;

    #[test]
    fn names_of_others_have_no_control_over_the_terminal() {
        let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D19".to_owned()]);
        let (name, command) = ("vm\u{1b}[2J\nx\u{202e}", "ringway vif show 'vm\u{1b}[2J'");
        let mut found = Finding::new(Severity::Warning, name, format!("{name} is slow"))
            .cause(format!("{name} is to blame."))
            .advise(Advice::by_hand("Look.", &[command]));
        found.check = "D19".to_owned();
        report.findings = vec![found];
        let text = render(&report, Detail::Full);
        assert!(text.contains("[!] D19 vm?[2J?x? is slow\n"), "{text}");
        assert!(text.contains("show 'vm?[2J'") && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }
}
