//! Reports of studies with a router say what its figures do not show.

mod model;

use std::fs;
use std::path::Path;

use ringway_lab::analysis::{Analysis, Warning};
use ringway_lab::record::{AROUND_ROUTER, CROSSED_ROUTER, Records};
use ringway_lab::report;
use ringway_lab::study::{Study, Subject, TopologyKind, shipped};
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

/// Records of streams around a router: its queues are not in the runs.
fn around(dir: &Path) -> Records {
    let mut study = study();
    study.topology.kind = TopologyKind::RouterBypass;
    let mut records = filled(dir, &study);
    for run in &mut records.runs {
        run.queues.clear();
        run.streams.iter_mut().for_each(|stream| stream.queue = None);
        if run.subject == Subject::Ringway {
            run.notes.push(AROUND_ROUTER.to_owned());
        }
    }
    records
}

#[test]
fn a_report_of_streams_around_a_router_claims_nothing_about_the_router() {
    let dir = tempfile::tempdir().expect("a directory");
    let records = around(dir.path());
    let (page, summary) = reported(dir.path(), &records);
    let verdict = summary["verdict"].as_str().expect("a text");
    let first = "Streams went around the router: these figures do not measure it. The number of \
                 its queues and its driver mean nothing here. ";
    assert!(verdict.starts_with(first), "{verdict}");
    assert!(verdict.contains("The best mean throughput around the router is "), "{verdict}");
    for claim in ["times what", "published figures", "the source", "ringway's best", "queues"] {
        let rest = &verdict[first.len()..];
        assert!(!rest.contains(claim), "{claim}: {verdict}");
    }
    for list in ["published", "comparisons"] {
        assert_eq!(summary[list].as_array().map(Vec::len), Some(0), "{list}");
    }
    assert_eq!(summary["question"], "How fast are streams that go around a router?");
    for claim in ["Published, measured here", "Cells against cells", "published (", "◇"] {
        assert!(!page.contains(claim), "{claim}");
    }
    assert!(!page.contains(&study().question) && !page.contains("emulated router:"));
    let figure = fs::read_to_string(dir.path().join("figures/throughput.svg")).expect("drawn");
    assert!(figure.contains("streams went around the router, so this does not measure it"));
}

#[test]
fn a_report_of_a_router_still_compares_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let analysis = Analysis::of(&filled(dir.path(), &study()));
    assert_eq!(analysis.question, study().question);
    assert!(analysis.verdict.starts_with("ringway's best mean"), "{}", analysis.verdict);
    assert!(analysis.verdict.contains("times what veth + bridge does there"));
    assert!(analysis.verdict.contains("published figures"));
    assert_eq!(analysis.comparisons.len(), 2);
}

#[test]
fn a_question_of_ones_own_stays_and_runs_that_crossed_the_router_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut records = around(dir.path());
    records.study.question = "Is the way around faster?".to_owned();
    let run = records.runs.iter_mut().find(|run| run.subject == Subject::Ringway);
    run.expect("there are some").notes = vec![CROSSED_ROUTER.to_owned()];
    let analysis = Analysis::of(&records);
    assert_eq!(analysis.question, "Is the way around faster?");
    let first = "Streams crossed the router in 1 of 96 runs, though they need not: these figures";
    assert!(analysis.verdict.starts_with(first), "{}", analysis.verdict);
}
