//! Reports of studies with a router say what its figures do not show.

mod model;

use std::fs;
use std::path::Path;

use ringway_lab::analysis::{Analysis, Warning};
use ringway_lab::record::Records;
use ringway_lab::report;
use ringway_lab::study::{Study, Subject, shipped};
use serde_json::Value;

/// The study of a router with two runs of each cell.
fn study() -> Study {
    let mut study = shipped("network-node").expect("it is shipped");
    (study.load.repeats, study.load.max_repeats) = (2, 2);
    study
}

/// Records of the model.
fn filled(dir: &Path, study: &Study) -> Records {
    model::fill(dir, study, &model::host(64), 1, 1.0);
    Records::read(dir).expect("good records")
}

/// The page and the summary of a report.
fn reported(dir: &Path, records: &Records) -> (String, Value) {
    let files = report::write(dir, records).expect("it has room");
    let page = fs::read_to_string(&files[0]).expect("it was written");
    let summary = fs::read(dir.join("summary.json")).expect("it was written");
    (page, serde_json::from_slice(&summary).expect("JSON"))
}

#[test]
fn each_cell_with_an_emulated_router_has_a_warning() {
    let dir = tempfile::tempdir().expect("a directory");
    let records = filled(dir.path(), &study());
    let analysis = Analysis::of(&records);
    for cell in &analysis.cells {
        let is_machine = cell.subject == Subject::Ringway && cell.label.ends_with(".ethtool");
        assert_eq!(cell.warnings.contains(&Warning::Emulated), is_machine, "{}", cell.label);
    }
    assert!(analysis.verdict.contains(" 8 with an emulated router"), "{}", analysis.verdict);
    let (page, summary) = reported(dir.path(), &records);
    assert_eq!(page.matches("emulated router: this is not real speed").count(), 8, "{page}");
    let cells = "t6.q1.ethtool, t6.q2.ethtool, t6.q4.ethtool, t6.q8.ethtool";
    assert!(page.contains(&format!("<li>Emulated router, so this is not real speed: {cells}")));
    let figure = fs::read_to_string(dir.path().join("figures/scenarios.svg")).expect("drawn");
    assert!(figure.contains("emulated router, so this is not real speed: t6.q1.ethtool"));
    for cell in summary["cells"].as_array().expect("cells") {
        let is_machine = cell["label"].as_str().expect("a name").ends_with(".ethtool");
        let warnings = cell["warnings"].to_string();
        assert_eq!(warnings.contains(r#"{"kind":"emulated"}"#), is_machine, "{cell}");
    }
}
