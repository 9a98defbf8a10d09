//! Studies and their records, from the command line.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use ringway_lab::record::{Cpu, Host, Journal, Run};
use ringway_lab::study::{Subject, shipped};
use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("lab").args(arguments).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records of two cells and a baseline with made-up figures, in bit/s.
fn write_records(dir: &Path, bps: f64) {
    let study = shipped("transmit").expect("it is shipped");
    let mut journal = Journal::open(dir, &study, &Host::default()).expect("it is empty");
    for (subject, label, factor) in [
        (Subject::Ringway, "q1.s1", 1.0),
        (Subject::Ringway, "q4.s8", 2.0),
        (Subject::VethBridge, "s8", 4.0),
    ] {
        for repeat in 0..5 {
            let value = bps * factor * (1.0 + 0.01 * f64::from(repeat));
            let run = Run {
                study: study.id.clone(),
                cell: study.cell_of_label(label).expect("a cell"),
                repeat,
                seed: 1,
                started: "2024-01-01T00:00:00Z".to_owned(),
                seconds: 1.0,
                warmup_seconds: 0.0,
                subject,
                tools: Vec::new(),
                values: BTreeMap::from([("throughput-bps".to_owned(), value)]),
                streams: Vec::new(),
                queues: Vec::new(),
                cpu: Cpu::default(),
                notes: Vec::new(),
            };
            journal.append(run).expect("it has room");
        }
    }
}

#[test]
fn studies_are_listed_and_shown_as_they_are_run() {
    let output = lab(&["list", "--json"]);
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(list.len() >= 13, "{list:?}");
    for entry in &list {
        let id = entry["id"].as_str().expect("a name");
        assert!(entry["title"].is_string() && !entry["rows"].as_array().expect(id).is_empty());
        let shown = lab(&["show", id]);
        assert!(shown.status.success() && text(&shown.stdout).contains(&format!("id = \"{id}\"")));
    }
    let refused = lab(&["show", "transmitt"]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("there are transmit,"), "{refused:?}");
}

#[test]
fn records_are_reported_checked_and_compared() {
    let (before, after) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
    write_records(before.path(), 1e9);
    write_records(after.path(), 2e9);
    let dirs = [&before, &after].map(|dir| dir.path().to_str().expect("a plain name"));

    let report = lab(&["report", dirs[0]]);
    assert!(report.status.success(), "{report:?}");
    for file in ["report.html", "runs.csv", "summary.json", "figures/throughput.svg"] {
        assert!(before.path().join(file).is_file(), "{file}");
    }

    let check = |rule| lab(&["check", dirs[0], "--assert", rule]);
    assert_eq!(check("transmit.q4.s8 >= 0.4*baseline").status.code(), Some(0));
    let failed = check("transmit.q4.s8 >= 0.9*baseline");
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stdout).starts_with("FAILS"), "{failed:?}");
    assert!(text(&check("q2.s8 >= 1G").stderr).contains("no throughput-bps of q2.s8"));
    assert!(text(&check("q4.s8 = 1").stderr).contains("no rule"));

    let compared = lab(&["compare", dirs[0], dirs[1], "--json"]);
    let changes: Value = serde_json::from_slice(&compared.stdout).expect("JSON");
    let verdicts = changes["cells"].as_array().expect("cells").iter().map(|cell| &cell["verdict"]);
    assert!(verdicts.eq(["better"; 3].iter()), "{changes}");
}

#[test]
fn a_directory_without_records_is_refused_in_a_sentence() {
    let empty = tempfile::tempdir().expect("a directory");
    let refused = lab(&["report", empty.path().to_str().expect("a plain name")]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("holds no records of a study"), "{refused:?}");
}
