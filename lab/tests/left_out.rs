//! What a machine cannot measure is in the records and the report, with the reason.

mod model;

use std::fs;

use ringway_lab::analysis::Analysis;
use ringway_lab::assert::Rule;
use ringway_lab::record::Records;
use ringway_lab::study::{LeftOut, Study, Subject, shipped};
use ringway_lab::{preflight, report};
use serde_json::Value;

/// A study without its virtual machine, as for a user who names no image.
fn without_machine() -> (Study, String) {
    let mut study = shipped("network-node").expect("it is shipped");
    (study.load.repeats, study.load.max_repeats) = (1, 1);
    let (less, notices) = preflight::without_absent(&study, None);
    let [notice] = &notices[..] else { panic!("one notice: {notices:?}") };
    (less, notice.clone())
}

#[test]
fn cells_that_are_left_out_are_in_the_records_and_in_the_report() {
    let (study, notice) = without_machine();
    assert!(notice.starts_with("the virtual machine is left out"), "{notice}");
    assert_eq!(Study::parse("the copy", &study.to_toml()).expect("it is possible"), study);
    let dir = tempfile::tempdir().expect("a directory");
    model::fill(dir.path(), &study, &model::host(2), 1, 1.0);
    let records = Records::read(dir.path()).expect("good records");
    let files = report::write(dir.path(), &records).expect("it has room");

    let summary = fs::read(dir.path().join("summary.json")).expect("it was written");
    let summary: Value = serde_json::from_slice(&summary).expect("JSON");
    let [left_out] = &summary["left-out"].as_array().expect("a list")[..] else {
        panic!("{summary}")
    };
    assert_eq!(left_out["reason"], notice.as_str());
    // Two numbers of targets and four of queues.
    assert_eq!(left_out["cells"].as_array().expect("cells").len(), 8);
    assert!(summary["verdict"].to_string().contains("8 left out"), "{}", summary["verdict"]);
    assert_eq!(summary["missing"].as_array().map(Vec::len), Some(0));

    let page = fs::read_to_string(&files[0]).expect("it was written");
    assert!(page.contains("<dt>Left out</dt><dd>8 cells</dd>"), "{page}");
    assert!(page.contains("t6.q1.ethtool, t6.q2.ethtool"), "{page}");
    let why = notice.split_once(": ").expect("a reason").1;
    assert!(page.contains(why), "{page}");
}

#[test]
fn a_rule_about_a_cell_that_is_left_out_says_why() {
    let (study, notice) = without_machine();
    for label in ["t6.q4.ethtool", "network-node.ethtool.t6.q4"] {
        let rule: Rule = format!("{label} >= 1G").parse().expect("a rule");
        let error = rule.fits(&study).expect_err(label).to_string();
        assert!(error.contains(&format!("`{label}` was not measured: {notice}")), "{error}");
    }
    for label in ["t7.q4.ethtool", "t6.q4.telnet"] {
        let rule: Rule = format!("{label} >= 1G").parse().expect("a rule");
        let error = rule.fits(&study).expect_err(label).to_string();
        assert!(error.contains("is no cell of"), "{error}");
    }
}

#[test]
fn baselines_are_left_out_with_the_values_that_they_share() {
    let mut study = shipped("network-node").expect("it is shipped");
    let targets = study.axis.iter_mut().find(|axis| axis.name == "targets").expect("an axis");
    targets.values.retain(|value| *value == 6.into());
    let reason = "12 targets are left out: a test".to_owned();
    study.left_out =
        vec![LeftOut { axis: "targets".to_owned(), value: 12.into(), reason: reason.clone() }];
    let left_out = study.left_out_cells();
    let of = |wanted| left_out.iter().filter(|(subject, _, _)| *subject == wanted).count();
    assert_eq!((of(Subject::Ringway), of(Subject::VethBridge)), (24, 1));
    assert_eq!(study.why_left_out("t12.q1.xen"), Some(reason.as_str()));
    assert_eq!(study.why_left_out("t6.q1.xen"), None);
}

#[test]
fn records_continue_when_only_the_reason_has_changed() {
    let (study, _) = without_machine();
    let mut later = study.clone();
    later.left_out[0].reason = "another reason".to_owned();
    assert!(later.goes_on(&study));
    let whole = shipped("network-node").expect("it is shipped");
    assert!(!whole.goes_on(&study), "it has cells that these records lack");
}

#[test]
fn a_report_of_a_whole_study_leaves_nothing_out() {
    let mut study = shipped("placement").expect("it is shipped");
    (study.load.repeats, study.load.max_repeats) = (1, 1);
    assert!(!study.to_toml().contains("left-out"));
    let dir = tempfile::tempdir().expect("a directory");
    model::fill(dir.path(), &study, &model::host(2), 1, 1.0);
    let records = Records::read(dir.path()).expect("good records");
    assert!(Analysis::of(&records).left_out.is_empty());
    let files = report::write(dir.path(), &records).expect("it has room");
    assert!(!fs::read_to_string(&files[0]).expect("it was written").contains("Left out"));
}

#[test]
fn what_is_left_out_cannot_be_in_the_matrix() {
    let (mut study, _) = without_machine();
    study.left_out[0].value = "xen".into();
    let error = Study::parse("mine.toml", &study.to_toml()).expect_err("it is there");
    assert!(error.to_string().contains("scenario = xen is in the matrix"), "{error}");
}

#[test]
fn an_image_that_no_cell_uses_is_named() {
    let study = shipped("network-node").expect("it is shipped");
    let image = Some(std::path::Path::new("nowhere/virtio"));
    let notice = preflight::unused_image(&study.quick(), image).expect("no cell of it boots one");
    assert!(notice.starts_with("--machine nowhere/virtio is not used: "), "{notice}");
    assert_eq!(preflight::unused_image(&study, image), None, "the scenario `ethtool` boots it");
    assert_eq!(preflight::unused_image(&study.quick(), None), None);
}
