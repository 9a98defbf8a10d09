//! A report as one page for a ticket: no scripts, nothing to load, evidence folded in.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use ringway_sources::{BySource, by_source};

use super::{How, Report};
use crate::check::{self, CATALOGUE, Group};
use crate::finding::{Advice, Finding, Severity};

const STYLE: &str = include_str!("page.css");
const GROUPS: [Group; 5] =
    [Group::Datapath, Group::Processors, Group::Queues, Group::Links, Group::Tcp];

/// The whole page.
pub fn page(report: &Report) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "ringway doctor: " (report.verdict) }
                // Otherwise browsers ask for one, which is not here.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { "ringway doctor" }
                    (head(report))
                    p.verdict { (report.verdict) }
                    @for remark in &report.remarks { p.remark { "Note: " (remark) "." } }
                    (wrong(report))
                    @for group in GROUPS { (of_group(report, group)) }
                    (guests(report))
                    (skipped(report))
                    (missed(report))
                    (sources(report))
                }
            }
        }
    };
    markup.into_string()
}

fn head(report: &Report) -> Markup {
    let known = [&report.name, &report.time].into_iter().flatten().map(String::as_str);
    let version = format!("ringway doctor {}", report.version);
    let known: Vec<&str> = known.chain([version.as_str()]).collect();
    html! {
        p.aside { (known.join(" · ")) }
        p {
            "This is " (report.host)
            @if let Some(kernel) = &report.kernel { ", Linux " (kernel) }
            @match report.interval_seconds {
                Some(seconds) => { "; two samples, " (format!("{seconds:.1}")) " s apart." },
                None => { "; one sample, so rates are means since the boot." },
            }
        }
    }
}

/// What is wrong, of all groups, above the rest: in the order of the report.
fn wrong(report: &Report) -> Markup {
    let is_wrong = |one: &&Finding| one.follows.is_none() && one.severity >= Severity::Warning;
    listed("What is wrong", report, report.findings.iter().filter(is_wrong).collect())
}

fn of_group(report: &Report, group: Group) -> Markup {
    let is_of = |one: &&Finding| {
        one.follows.is_none()
            && one.severity < Severity::Warning
            && check::find(&one.check).is_some_and(|check| check.group == group)
    };
    listed(group.title(), report, report.findings.iter().filter(is_of).collect())
}

fn listed(title: &str, report: &Report, findings: Vec<&Finding>) -> Markup {
    html! {
        @if !findings.is_empty() {
            h2 { (title) }
            @for finding in findings {
                (of_finding(finding))
                @for effect in following(report, finding) {
                    div.effect { (of_finding(effect)) }
                }
            }
        }
    }
}

/// Findings that another one causes: shown below the first finding of that check.
fn following<'a>(report: &'a Report, finding: &'a Finding) -> impl Iterator<Item = &'a Finding> {
    let is_first = report
        .findings
        .iter()
        .filter(|one| one.check == finding.check && one.follows.is_none())
        .max_by_key(|one| one.severity)
        .is_some_and(|first| first.subject == finding.subject);
    let is_its = |one: &&Finding| one.follows.as_deref() == Some(finding.check.as_str());
    report.findings.iter().filter(is_its).filter(move |_| is_first)
}

fn of_finding(finding: &Finding) -> Markup {
    let is_wrong = finding.severity >= Severity::Warning;
    let title = check::find(&finding.check).map(|check| check.title).unwrap_or_default();
    html! {
        details class=(class(finding.severity)) open[is_wrong] {
            summary {
                span.mark { (word(finding.severity)) } " "
                b { (finding.check) } " " (finding.summary)
            }
            p.aside {
                (title)
                @if let Some(netns) = &finding.netns { "; in the network namespace " (netns) }
            }
            @if !finding.cause.is_empty() { p { (finding.cause) } }
            @for advice in &finding.advice { (of_advice(advice)) }
            @if let Some(gain) = &finding.gain { p { "Gain: " (gain) "." } }
            @if !finding.evidence.is_empty() {
                details.evidence {
                    summary { "Evidence" }
                    @for quote in &finding.evidence {
                        p.aside {
                            (quote.file) @if let Some(line) = quote.line { ":" (line) }
                        }
                        pre { (quote.text) }
                    }
                }
            }
        }
    }
}

fn of_advice(advice: &Advice) -> Markup {
    html! {
        p { "→ " (advice.text) }
        @if !advice.commands.is_empty() { pre { (advice.commands.join("\n")) } }
    }
}

fn guests(report: &Report) -> Markup {
    html! {
        @if !report.guests.is_empty() {
            h2 { "Guests" }
            @for guest in &report.guests {
                p { span.mark { (word(guest.worst)) } " " (guest.line()) }
            }
        }
    }
}

fn skipped(report: &Report) -> Markup {
    html! {
        @if !report.skipped.is_empty() {
            h2 { "Skipped" }
            @for one in &report.skipped {
                p { b { (one.finding.check) } " " (one.finding.summary) " – " (one.reason) }
            }
        }
    }
}

fn missed(report: &Report) -> Markup {
    html! {
        details.missed {
            summary { "What was not checked" }
            @for how in [How::Unread, How::NotHere] {
                @for one in report.scope.missed(how) {
                    p.aside {
                        (one.check) " "
                        (check::find(&one.check).map(|check| check.title).unwrap_or_default())
                        @if let Some(why) = &one.why { ": " (why) }
                    }
                }
            }
        }
    }
}

fn sources(report: &Report) -> Markup {
    let is_said = |id: &str| report.findings.iter().any(|one| one.check == id);
    let checks = CATALOGUE.iter().filter(|check| is_said(check.id));
    let all: Vec<BySource> = by_source(checks.flat_map(|check| check.sources.iter().copied()));
    html! {
        @if !all.is_empty() {
            details.missed {
                summary { "Sources" }
                @for one in all {
                    p.aside {
                        (one.source.title)
                        @if let Some(address) = &one.source.address { " " (address) }
                    }
                }
            }
        }
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "✓ ok",
        Severity::Unknown => "? not read",
        Severity::Note => "i note",
        Severity::Warning => "! warning",
        Severity::Problem => "✗ problem",
    }
}

fn class(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Unknown => "unknown",
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Problem => "problem",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::fact::Host;
    use ringway_evidence::{Quote, Source};

    #[test]
    fn a_page_loads_nothing_and_escapes_what_hosts_say() {
        let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D19".to_owned()]);
        let text = "<script>alert(1)</script>".to_owned();
        let mut found = Finding::new(Severity::Problem, "a", "slow & <b>bad</b>").quote([Quote {
            file: "/proc/x".to_owned(),
            line: Some(7),
            text,
        }]);
        found.check = "D19".to_owned();
        let mut effect = Finding::new(Severity::Note, "b", "effect").follows("D19");
        effect.check = "D26".to_owned();
        report.findings = vec![found, effect];
        let mut note = Finding::new(Severity::Note, "c", "a note");
        note.check = "D01".to_owned();
        report.findings.insert(0, note);
        report.name = Some("host7".to_owned());
        report.time = Some("2026-11-29 11:20 UTC".to_owned());
        let page = page(&report);
        let head = format!("host7 · 2026-11-29 11:20 UTC · ringway doctor {}", report.version);
        assert!(page.contains(&head) && page.contains("prefers-color-scheme: dark"), "{page}");
        let at = |what: &str| page.find(what).expect("it is there");
        assert!(at("slow &amp;") < at("a note"), "what is wrong comes first: {page}");
        assert!(page.contains("slow &amp; &lt;b&gt;bad") && page.contains("/proc/x:7"), "{page}");
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
        for outside in ["src=", "http-equiv", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("effect</summary>").count(), 1, "{page}");
    }
}
