//! What the doctor says of each fixture, which the fixture has at its end: word for word what users
//! read of the check that the fixture is for, and other checks where they find something.
//!
//! After an intended change of output, write it again, and read the diff:
//!
//! ```text
//! RINGWAY_VERDICTS=write cargo test -p ringway-doctor --test verdicts
//! ```

mod saved;

use std::fmt::Write;
use std::fs;

use ringway_doctor::check::CATALOGUE;
use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::Severity;
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, render};
use saved::Fixture;

/// Set to `write` to replace what is expected.
const WRITE: &str = "RINGWAY_VERDICTS";

#[test]
fn every_fixture_has_the_verdict_it_had() {
    let is_written = std::env::var(WRITE).is_ok_and(|word| word == "write");
    let mut changed = Vec::new();
    for (name, fixture) in saved::fixtures() {
        let said = verdict(&name, &fixture);
        if said == fixture.expected {
            continue;
        }
        if is_written {
            // The host above it stays as it is, in the order that its author chose.
            let text = fs::read_to_string(saved::path(&name)).expect("readable");
            let host = text.strip_suffix(&fixture.expected).expect("it ends with it");
            fs::write(saved::path(&name), host.to_owned() + &said).expect("written");
        } else {
            changed.push(format!("{name}:\n{}", difference(&fixture.expected, &said)));
        }
    }
    let (count, all) = (changed.len(), changed.join("\n"));
    assert!(changed.is_empty(), "{count} verdicts differ; if rightly, {WRITE}=write\n{all}");
}

fn host(fixture: &Fixture) -> Host {
    Host::new(Source::Memory(fixture.pieces.clone()))
}

/// The id of the check that a fixture is for.
fn id(name: &str) -> String {
    name.split('-').next().expect("a check").to_uppercase()
}

/// What the check of a fixture says, and what others find.
fn verdict(name: &str, fixture: &Fixture) -> String {
    let (host, id) = (host(fixture), id(name));
    let report = Report::of(&host, std::slice::from_ref(&id));
    let text = render(&report, Detail::Full);
    let end = format!("\n{}\n", report.verdict);
    let text = text.strip_suffix(&end).expect("the verdict is last");
    let mut said = format!("{text}\n{}\nexit code {}\n", report.verdict, report.exit_code());
    for one in report.findings.iter().filter(|one| one.severity >= Severity::Note) {
        let _ = writeln!(said, "{} of {}: confidence {:?}", one.check, one.subject, one.confidence);
    }
    let others = CATALOGUE.iter().filter(|check| check.id != id);
    for one in others.flat_map(|check| check.run(&host)) {
        if one.severity >= Severity::Note {
            let _ = writeln!(said, "{} {:?}: {}", one.check, one.severity, one.summary);
        }
    }
    said
}

/// The lines that differ, between those that both begin and end with.
fn difference(known: &str, said: &str) -> String {
    let (mut known, mut said): (Vec<&str>, Vec<&str>) =
        (known.lines().collect(), said.lines().collect());
    while known.last().is_some_and(|last| said.last() == Some(last)) {
        known.pop();
        said.pop();
    }
    let same = known.iter().zip(&said).take_while(|(known, said)| known == said).count();
    let lines = |mark, of: &[&str]| of.iter().map(|line| format!("{mark}{line}\n")).collect();
    let (was, now): (String, String) = (lines("- ", &known[same..]), lines("+ ", &said[same..]));
    was + &now
}

#[test]
fn the_full_report_of_a_sound_host_can_be_read() {
    for (name, fixture) in saved::fixtures() {
        let report = Report::of(&host(&fixture), &[]);
        if report.exit_code() == 0 {
            let lines = render(&report, Detail::Full).lines().count();
            assert!(lines <= 100, "{name}: {lines} lines");
        }
    }
}

#[test]
fn a_short_report_is_a_part_of_the_full_one() {
    for (name, fixture) in saved::fixtures() {
        let report = Report::of(&host(&fixture), &[id(&name)]);
        let (short, full) = (render(&report, Detail::Terse), render(&report, Detail::Full));
        // Only the sign by which the kind of host is known stands differently there.
        let mut lines = short.lines().filter(|line| !line.starts_with("  by "));
        let other = lines.find(|line| !full.contains(line));
        assert_eq!(other, None, "{name}");
        for one in report.findings.iter().filter(|one| one.severity >= Severity::Warning) {
            let mut commands = one.advice.iter().flat_map(|advice| &advice.commands);
            let missing = commands.find(|command| !short.contains(*command));
            assert_eq!(missing, None, "{name}");
            assert!(short.contains(&one.summary), "{name}: {}", one.summary);
        }
    }
}
