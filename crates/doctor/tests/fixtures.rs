//! Each check reports the problem on its sick hosts and nothing on its healthy ones, and no damage
//! to the files of a host causes a crash or an unfounded diagnosis.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ringway_doctor::check::{CATALOGUE, Ended};
use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Severity};
use serde::Deserialize;

/// `fixture.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    origin: Origin,
    from: String,
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
    path: PathBuf,
}

fn fixtures() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries = fs::read_dir(root).expect("there are fixtures");
    let mut fixtures: Vec<Fixture> = entries
        .map(|entry| {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            let mut parts = name.split('-');
            let check = parts.next().expect("a check").to_uppercase();
            let is_sick = match parts.next() {
                Some("sick") => true,
                Some("healthy") => false,
                other => panic!("{name}: expected sick or healthy, not {other:?}"),
            };
            Fixture { name, check, is_sick, path }
        })
        .collect();
    fixtures.sort_by(|a, b| a.name.cmp(&b.name));
    fixtures
}

fn inspect(check: &str, source: Source) -> Vec<Finding> {
    let check = CATALOGUE.iter().find(|one| one.id == check).expect("a check of that id");
    check.run(&Host::new(source))
}

fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|one| one.severity).max().unwrap_or(Severity::Ok)
}

#[test]
fn sick_hosts_are_found_and_healthy_ones_left_in_peace() {
    for fixture in fixtures() {
        let source = Source::directory(&fixture.path).expect("a saved host");
        let findings = inspect(&fixture.check, source);
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
    for fixture in fixtures().iter().filter(|fixture| !fixture.is_sick) {
        let source = Source::directory(&fixture.path).expect("a saved host");
        assert!(!inspect(&fixture.check, source).is_empty(), "{}: does not fit", fixture.name);
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
        let text = fs::read_to_string(fixture.path.join("fixture.toml")).expect("fixture.toml");
        let about: About = toml::from_str(&text).expect(&fixture.name);
        assert!(!about.from.is_empty(), "{} is {:?}", fixture.name, about.origin);
    }
}

#[test]
fn garbage_is_no_diagnosis() {
    for fixture in fixtures() {
        for garbage in ["", "\n\n", "\u{1b}[2J 7 : = \"\n{]", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"]
        {
            let mut pieces = pieces(&fixture.path);
            let is_evidence = |path: &str| !path.ends_with("monotonic");
            for (path, text) in &mut pieces {
                if is_evidence(path) {
                    garbage.clone_into(text);
                }
            }
            let findings = inspect(&fixture.check, Source::Memory(pieces));
            let wrong = worst(&findings) >= Severity::Warning;
            assert!(!wrong, "{} of {garbage:?}: {findings:#?}", fixture.name);
        }
    }
}

#[test]
fn a_healthy_host_with_a_torn_file_is_not_sick() {
    for fixture in fixtures().iter().filter(|fixture| !fixture.is_sick) {
        let whole = pieces(&fixture.path);
        for (path, text) in whole.iter().filter(|(path, _)| !path.ends_with("monotonic")) {
            for part in 0..8 {
                let mut pieces = whole.clone();
                let torn: String = text.chars().take(text.chars().count() * part / 8).collect();
                pieces.insert(path.clone(), torn);
                let findings = inspect(&fixture.check, Source::Memory(pieces));
                let wrong = worst(&findings) >= Severity::Warning;
                assert!(!wrong, "{}, {path} to {part}/8: {findings:#?}", fixture.name);
            }
        }
    }
}

/// All files of a saved host.
fn pieces(root: &Path) -> BTreeMap<String, String> {
    let mut pieces = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below it").to_str().expect("text");
                pieces.insert(name.to_owned(), fs::read_to_string(&path).expect("text"));
            }
        }
    }
    pieces
}

#[test]
fn interrupts_of_netfront_are_known_though_they_are_named_after_the_vif() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/d03-healthy-recorded");
    let findings = inspect("D03", Source::directory(&path).expect("a saved host"));
    assert!(findings.iter().any(|one| one.severity == Severity::Ok), "{findings:#?}");
}

#[test]
fn a_policer_of_a_part_of_the_traffic_is_noted_and_no_more() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/d30-healthy-police-icmp-more");
    let findings = inspect("D30", Source::directory(&path).expect("a saved host"));
    assert_eq!(worst(&findings), Severity::Note, "{findings:#?}");
    assert!(findings[0].summary.contains("180 of 180 packets"), "{findings:#?}");
}

#[test]
fn how_near_bbr_is_says_the_shortest_round_trip_to_another_host() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let path = fixtures.join("d26-healthy-queued-rig-recorded");
    let findings = inspect("D26", Source::directory(&path).expect("a saved host"));
    let quoted: Vec<&str> =
        findings.iter().flat_map(|one| &one.evidence).map(|quote| quote.text.as_str()).collect();
    // Its smoothed round trip was 71 ms under load; those of local connections were shorter.
    assert_eq!(quoted.len(), 1, "{findings:#?}");
    assert!(quoted[0].starts_with("10.77.0.1:48576 10.77.0.2:5201 bbr "), "{quoted:?}");
}

#[test]
fn queues_are_judged_by_what_the_kernel_reports_where_the_tool_lacks_them() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/d06-healthy-guest-qstats-recorded");
    let mut pieces = pieces(&path);
    let findings = inspect("D06", Source::Memory(pieces.clone()));
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
