//! Hosts whose files come from different hosts, or are swapped between samples, truncated or
//! altered: every check reads them without a crash, and its findings can be shown.

mod saved;

use std::sync::LazyLock;

use proptest::prelude::*;
use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::Severity;
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, render};
use saved::Pieces;

/// All fixtures, in the order of their names.
static HOSTS: LazyLock<Vec<Pieces>> =
    LazyLock::new(|| saved::hosts().into_iter().map(|(_, pieces)| pieces).collect());

/// Runs every check, and verifies that findings follow the rules.
fn inspect(pieces: Pieces) -> Result<(), TestCaseError> {
    let report = Report::of(&Host::new(Source::Memory(pieces)), &[]);
    let _ = render(&report, Detail::Full);
    for finding in &report.findings {
        let is_wrong = finding.severity >= Severity::Warning;
        prop_assert!(!is_wrong || !finding.evidence.is_empty(), "no evidence: {finding:?}");
        prop_assert!(!is_wrong || !finding.advice.is_empty(), "no advice: {finding:?}");
        prop_assert!(!finding.summary.contains("NaN"), "{finding:?}");
        prop_assert!(!finding.summary.contains("inf "), "{finding:?}");
    }
    Ok(())
}

fn nth(pieces: &Pieces, index: usize) -> String {
    pieces.keys().nth(index % pieces.len()).expect("a host has files").clone()
}

#[test]
fn every_whole_host_is_reported_by_the_rules() {
    for pieces in HOSTS.iter() {
        inspect(pieces.clone()).expect("a whole host");
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

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn files_of_two_hosts_are_no_crash(
        one in 0..HOSTS.len(),
        other in 0..HOSTS.len(),
        kept in any::<u64>(),
    ) {
        let mut pieces = HOSTS[one].clone();
        for (index, (path, text)) in HOSTS[other].iter().enumerate() {
            if kept >> (index % 64) & 1 == 1 {
                pieces.insert(path.clone(), text.clone());
            }
        }
        inspect(pieces)?;
    }

    #[test]
    fn samples_in_each_others_place_are_no_crash(host in 0..HOSTS.len(), which in any::<u64>()) {
        let mut pieces = HOSTS[host].clone();
        for (index, (path, text)) in HOSTS[host].iter().enumerate() {
            let Some(rest) = path.strip_prefix("sample-2/") else { continue };
            if which >> (index % 64) & 1 == 1 {
                let first = format!("sample-1/{rest}");
                let before = pieces.insert(first, text.clone()).unwrap_or_default();
                pieces.insert(path.clone(), before);
            }
        }
        inspect(pieces)?;
    }

    #[test]
    fn a_foreign_or_altered_file_is_no_crash(
        host in 0..HOSTS.len(),
        file in any::<usize>(),
        from in 0..HOSTS.len(),
        its in any::<usize>(),
        at in any::<usize>(),
        with in "[ -~\n\t]{0,6}",
    ) {
        let mut pieces = HOSTS[host].clone();
        let foreign = HOSTS[from][&nth(&HOSTS[from], its)].clone();
        pieces.insert(nth(&HOSTS[host], file), foreign);
        let altered = nth(&HOSTS[host], its);
        let letters: Vec<char> = pieces[&altered].chars().collect();
        let (start, end) = letters.split_at(at % (letters.len() + 1));
        let start: String = start.iter().collect();
        let end: String = end.iter().collect();
        pieces.insert(altered, start + &with + &end);
        inspect(pieces)?;
    }
}
