//! Each check reports the problem on its sick hosts and nothing on its healthy ones, and no damage
//! to the files of a host causes a crash or an unfounded diagnosis. A fixture's text is read as it
//! was written.

mod saved;

use std::collections::BTreeSet;

use ringway_doctor::check::{CATALOGUE, Ended};
use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Severity};
use ringway_doctor::report::Report;
use saved::Pieces;
use serde::Deserialize;

/// The beginning of a fixture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    origin: Origin,
    from: String,
    /// Commands that make such a host.
    made: Option<String>,
}

/// Where the files of a fixture are from.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Origin {
    /// Recorded by `ringway doctor record`, and cut down to what the check reads.
    Recorded,
    /// Written by hand, as on such a host.
    Written,
}

/// A saved host, named `CHECK-sick` or `CHECK-healthy`, perhaps with a suffix for its special
/// feature.
struct Fixture {
    name: String,
    check: String,
    is_sick: bool,
    about: String,
    pieces: Pieces,
}

fn fixtures() -> Vec<Fixture> {
    let fixture = |(name, saved): (String, saved::Fixture)| {
        let mut parts = name.split('-');
        let check = parts.next().expect("a check").to_uppercase();
        let is_sick = match parts.next() {
            Some("sick") => true,
            Some("healthy") => false,
            other => panic!("{name}: expected sick or healthy, not {other:?}"),
        };
        let saved::Fixture { about, pieces, .. } = saved;
        Fixture { name, check, is_sick, about, pieces }
    };
    saved::fixtures().into_iter().map(fixture).collect()
}

fn inspect(check: &str, pieces: Pieces) -> Vec<Finding> {
    let check = CATALOGUE.iter().find(|one| one.id == check).expect("a check of that id");
    check.run(&Host::new(Source::Memory(pieces)))
}

fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|one| one.severity).max().unwrap_or(Severity::Ok)
}

#[test]
fn sick_hosts_are_found_and_healthy_ones_left_in_peace() {
    for fixture in fixtures() {
        let findings = inspect(&fixture.check, fixture.pieces);
        let is_wrong = worst(&findings) >= Severity::Warning;
        assert_eq!(is_wrong, fixture.is_sick, "{}: {findings:#?}", fixture.name);
        let unknown = findings.iter().find(|one| one.severity == Severity::Unknown);
        assert!(unknown.is_none(), "{}: {unknown:?}", fixture.name);
        for finding in findings.iter().filter(|one| one.severity >= Severity::Warning) {
            assert!(!finding.evidence.is_empty(), "{}: no evidence: {finding:#?}", fixture.name);
            assert!(!finding.advice.is_empty(), "{}: no advice: {finding:#?}", fixture.name);
            assert!(!finding.cause.is_empty(), "{}: no cause: {finding:#?}", fixture.name);
        }
    }
}

#[test]
fn a_healthy_host_is_looked_at() {
    for fixture in fixtures().into_iter().filter(|fixture| !fixture.is_sick) {
        let findings = inspect(&fixture.check, fixture.pieces);
        assert!(!findings.is_empty(), "{}: does not fit", fixture.name);
    }
}

#[test]
fn every_check_that_looks_has_a_sick_and_a_healthy_host() {
    let fixtures = fixtures();
    let has = |is_sick| -> BTreeSet<&str> {
        let of = fixtures.iter().filter(|fixture| fixture.is_sick == is_sick);
        of.map(|fixture| fixture.check.as_str()).collect()
    };
    let (sick, healthy) = (has(true), has(false));
    for check in CATALOGUE {
        assert!(sick.contains(check.id) && healthy.contains(check.id), "{}", check.id);
    }
}

#[test]
fn every_fixture_says_where_it_is_from() {
    for fixture in fixtures() {
        let about: About = toml::from_str(&fixture.about).expect(&fixture.name);
        assert!(!about.from.is_empty(), "{} is {:?}", fixture.name, about.origin);
        assert!(about.made.is_none() || about.origin == Origin::Recorded, "{}", fixture.name);
    }
}

#[test]
fn checks_that_place_interrupts_agree() {
    for (name, pieces) in saved::hosts() {
        let report = Report::of(&Host::new(Source::Memory(pieces)), &[]);
        let other = report.findings.iter().find(|one| one.summary.contains("conflict over"));
        assert_eq!(other, None, "{name}");
    }
}

#[test]
fn garbage_is_no_diagnosis() {
    for fixture in fixtures() {
        for garbage in ["", "\n\n", "\u{1b}[2J 7 : = \"\n{]", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"]
        {
            let mut pieces = fixture.pieces.clone();
            let is_evidence = |path: &str| !path.ends_with("monotonic");
            for (path, text) in &mut pieces {
                if is_evidence(path) {
                    garbage.clone_into(text);
                }
            }
            let findings = inspect(&fixture.check, pieces);
            let wrong = worst(&findings) >= Severity::Warning;
            assert!(!wrong, "{} of {garbage:?}: {findings:#?}", fixture.name);
        }
    }
}

#[test]
fn a_healthy_host_with_a_torn_file_is_not_sick() {
    for fixture in fixtures().iter().filter(|fixture| !fixture.is_sick) {
        let whole = &fixture.pieces;
        for (path, text) in whole.iter().filter(|(path, _)| !path.ends_with("monotonic")) {
            for part in 0..8 {
                let mut pieces = whole.clone();
                let torn: String = text.chars().take(text.chars().count() * part / 8).collect();
                pieces.insert(path.clone(), torn);
                let findings = inspect(&fixture.check, pieces);
                let wrong = worst(&findings) >= Severity::Warning;
                assert!(!wrong, "{}, {path} to {part}/8: {findings:#?}", fixture.name);
            }
        }
    }
}

#[test]
fn interrupts_of_netfront_are_known_though_they_are_named_after_the_vif() {
    let findings = inspect("D03", saved::host("d03-healthy-recorded"));
    assert!(findings.iter().any(|one| one.severity == Severity::Ok), "{findings:#?}");
}

#[test]
fn a_policer_of_a_part_of_the_traffic_is_noted_and_no_more() {
    let findings = inspect("D30", saved::host("d30-healthy-police-icmp-more"));
    assert_eq!(worst(&findings), Severity::Note, "{findings:#?}");
    assert!(findings[0].summary.contains("180 of 180 packets"), "{findings:#?}");
}

#[test]
fn how_near_bbr_is_says_the_shortest_round_trip_to_another_host() {
    let findings = inspect("D26", saved::host("d26-healthy-queued-rig-recorded"));
    let quoted: Vec<&str> =
        findings.iter().flat_map(|one| &one.evidence).map(|quote| quote.text.as_str()).collect();
    // Its smoothed round trip was 71 ms under load; those of local connections were shorter.
    assert_eq!(quoted.len(), 1, "{findings:#?}");
    assert!(quoted[0].starts_with("10.77.0.1:48576 10.77.0.2:5201 bbr "), "{quoted:?}");
}

#[test]
fn queues_are_judged_by_what_the_kernel_reports_where_the_tool_lacks_them() {
    let mut pieces = saved::host("d06-healthy-guest-qstats-recorded");
    let findings = inspect("D06", pieces.clone());
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let found = &findings[0];
    // One of its 33 connections has nearly all bytes.
    assert_eq!(found.severity, Severity::Note, "{found:#?}");
    assert!(found.summary.contains("queue 0 of eth0") && found.summary.contains("receive"));
    assert!(found.summary.contains("33 flows of such unequal sizes give 4.0"), "{found:#?}");
    assert!(found.evidence.iter().all(|quote| quote.file == "netlink/eth0/qstats"), "{found:#?}");
    assert!(found.evidence.iter().any(|quote| quote.text == "rx-0 bytes: 170521094"), "{found:#?}");

    // With neither, nothing is concluded, as on a kernel that reports no queues.
    pieces.retain(|path, _| !path.contains("netlink/"));
    let refused = "netlink/eth0/qstats\tOperation not supported (os error 95)\n".to_owned();
    pieces.insert("refused".to_owned(), refused);
    let check = CATALOGUE.iter().find(|one| one.id == "D06").expect("it is there");
    let (findings, ended) = check.outcome(&Host::new(Source::Memory(pieces)));
    assert!(findings.is_empty() && matches!(ended, Ended::NotHere(_)), "{ended:?} {findings:#?}");
}

#[test]
fn a_fixture_is_read_as_it_was_written() {
    let files = [
        ("empty", ""),
        ("one empty line", "\n"),
        ("no end", "one\ntwo"),
        ("only an unended backslash", "\\"),
        ("a line of a backslash", "one\n\\\n"),
        ("like a block", "-- proc/stat --\n-- \n--\n"),
        ("like the end", "== expected ==\n== expected =="),
        ("backslashes", "\\\\ two\n\\-- a\n a \\\n"),
        ("spaces", " \n\t\r\n\u{1b}[2J"),
        ("path -- with the mark --", "x\n"),
    ];
    let pieces = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let about = "origin = \"written\"\n".to_owned();
    let fixture = saved::Fixture { about, pieces: pieces.into(), expected: "-- a --\n".to_owned() };
    let text = fixture.to_string();
    assert_eq!(saved::Fixture::read(&text).as_ref(), Ok(&fixture), "{text}");
    for (name, fixture) in saved::fixtures() {
        assert_eq!(saved::Fixture::read(&fixture.to_string()), Ok(fixture), "{name}");
    }
}

#[test]
fn a_text_that_is_no_fixture_is_refused() {
    let read = |text: &str| saved::Fixture::read(text).expect_err("no fixture");
    assert_eq!(read("-- a --\n1\n"), "expected a line == expected ==");
    assert_eq!(read("-- a --\n-- a --\n"), "a is there twice");
    assert_eq!(read("-- a\n1\n"), "expected a path: -- a\n");
}
