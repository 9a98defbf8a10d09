//! What the model says of records of a model of a machine, at the command line and in reports.

mod model;

use std::path::Path;
use std::process::Command;

use ringway_lab::study::{Study, shipped};
use serde_json::Value;

/// A shipped study with few cells.
fn quick(id: &str) -> Study {
    shipped(id).expect("it is shipped").quick()
}

/// What `ringway model` prints for these words and the records in a directory.
fn said(words: &[&str], dir: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-lab"));
    let output = command.arg("model").args(words).arg(dir).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_plan_selects_offloads_and_counts_the_cpus_of_a_guest() {
    let dir = tempfile::tempdir().expect("a directory");
    model::fill(dir.path(), &quick("receive"), &model::host(64), 1, 1.0);
    let words = ["plan", "--target", "4Gbit/s", "--streams", "8"];
    let text = said(&words, dir.path());
    // One queue carries 2.4 Gbit/s, and 0.7 of that without GRO.
    assert!(text.contains("offloads all\n"), "{text}");
    assert!(text.contains("with offloads no-gro: ") && text.contains("guest    "), "{text}");
    let plan: Value =
        serde_json::from_str(&said(&[&words[..], &["--json"]].concat(), dir.path())).expect("JSON");
    let queues = |plan: &Value| plan["queues"].as_u64().expect("some number suffices");
    let other = &plan["other-offloads"][0];
    assert_eq!((&plan["offloads"], &other["offloads"]), (&"all".into(), &"no-gro".into()));
    assert!(queues(&plan["plan"]) < queues(other), "{plan}");
    assert!(plan["plan"]["guest-cpus"].as_u64().expect("they were measured") > 1, "{plan}");
    let selected = said(&[&words[..], &["--where", "offloads=no-gro"]].concat(), dir.path());
    assert!(selected.contains("offloads no-gro\n") && !selected.contains("with offloads"));
}
