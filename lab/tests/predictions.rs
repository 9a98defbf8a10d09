//! What the model says of records of a model of a machine, at the command line and in reports.

mod model;

use std::path::Path;
use std::process::Command;

use ringway_lab::analysis::{Analysis, forecast};
use ringway_lab::record::Records;
use ringway_lab::report;
use ringway_lab::study::{Study, ids, shipped};
use ringway_lab::value::Cell;
use ringway_model::published::figures;
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
    let target = ["plan", "--target", "4Gbit/s", "--streams", "8"];
    let words = [&target[..], &["--where", "layout=free"]].concat();
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

#[test]
fn every_published_figure_of_a_study_stands_beside_the_models() {
    let figures = figures().expect("they do not contradict each other");
    for id in ids() {
        let study = shipped(id).expect("it is shipped");
        let of_cells = study.published.iter().map(|one| one.source.as_str());
        let compared = study.comparison.iter().filter(|one| one.published.is_some());
        let compared = compared.filter_map(|one| one.source.as_deref());
        for source in of_cells.chain(compared) {
            assert!(figures.iter().any(|figure| figure.source == source), "{id}: {source}");
        }
    }
}

#[test]
fn measured_cells_are_compared_with_what_few_queues_predict() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut study = shipped("transmit").expect("it is shipped");
    (study.load.repeats, study.load.max_repeats) = (3, 3);
    model::fill(dir.path(), &study, &model::host(64), 1, 1.0);
    let text = said(&["errors"], dir.path());
    let row = |cell: &str| text.lines().find(|line| line.starts_with(cell)).expect(cell);
    assert!(row("q1.s8").trim_end().ends_with("calibrated on"), "{text}");
    assert!(row("q8.s8").contains("predicted") && row("q8.s8").ends_with('%'), "{text}");
    let all: Value = serde_json::from_str(&said(&["errors", "--json"], dir.path())).expect("JSON");
    let cells = all["cells"].as_array().expect("cells");
    // 1, 2, 4 and 8 queues, as many numbers of streams.
    assert_eq!(cells.len(), 16, "{all}");
    let errors = all["errors"]["cells"].as_u64().expect("a count");
    let is_predicted = |cell: &&Value| {
        let one = &cell["predicted"];
        one["is-calibration"] == false && one["error"].is_f64() && cell["measured"].is_f64()
    };
    assert_eq!(u64::try_from(cells.iter().filter(is_predicted).count()).expect("few"), errors);
    assert!(text.contains(&format!("Over {errors} cells on which")), "{text}");
}

#[test]
fn how_streams_fell_on_queues_is_no_uncertainty() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut study = shipped("transmit").expect("it is shipped");
    (study.load.repeats, study.load.max_repeats) = (10, 10);
    model::fill(dir.path(), &study, &model::host(64), 1, 1.0);
    let records = Records::read(dir.path()).expect("good records");
    let analysis = Analysis::of(&records);
    let cell = analysis.of_primary().find(|cell| cell.label == "q4.s4").expect("it was measured");
    let whole = cell.values["throughput-bps"].interval.expect("ten runs");
    let data = forecast::of_records(&records, &Cell::default()).expect("good cells");
    let point = data.points.iter().find(|point| point.name == "q4.s4").expect("of that cell");
    // From 2.4 to 7.6 Gbit/s by the number of busy queues, and little besides.
    assert!(cell.splits.len() > 1, "{:?}", cell.splits);
    let half = point.half_width_bps;
    assert!(half > 0.0 && half < (whole.high - whole.low) / 4.0, "{half} {whole:?}");
}

#[test]
fn records_in_which_nothing_is_predicted_say_what_to_measure() {
    let dir = tempfile::tempdir().expect("a directory");
    // All of its cells have four queues.
    model::fill(dir.path(), &quick("jumbo"), &model::host(64), 1, 1.0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-lab"));
    let output = command.args(["model", "errors"]).arg(dir.path()).output().expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(why.contains("no cell is predicted: no point has one queue: measure "), "{why}");
    // And some are too fast for the line that they are said to have.
    let dir = tempfile::tempdir().expect("a directory");
    let study = quick("transmit").with_line("1Gb/s").expect("it has a wire");
    model::fill(dir.path(), &study, &model::host(64), 1, 2.0);
    let records = Records::read(dir.path()).expect("good records");
    report::write(dir.path(), &records).expect("it has room");
    let page = std::fs::read_to_string(dir.path().join("report.html")).expect("a page");
    assert!(page.contains("Predicted: nothing, because q1.s"), "{page}");
    assert!(page.contains("check `throughput`, `line` and `mtu`."), "{page}");
}

#[test]
fn unequal_flows_share_queues_and_the_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let records = dir.path().join("table.toml");
    let table = "delay = '50us'\n[[point]]\nqueues = 1\nflows = 8\nthroughput = '3Gbit/s'\n";
    std::fs::write(&records, table).expect("it has room");
    let words = ["share", "--queues", "1", "--json", "--wanted", "5Gbit/s,1Gbit/s"];
    let flows: Value = serde_json::from_str(&said(&words, &records)).expect("JSON");
    let gets = |flow: usize| flows[flow]["gets-bps"]["value"].as_f64().expect("one queue");
    assert!((gets(0) / 2e9 - 1.0).abs() < 0.01 && (gets(1) / 1e9 - 1.0).abs() < 0.01, "{flows}");
    // With two queues, one queue alone leaves a range.
    let text = said(&["share", "--queues", "2", "--wanted", "5Gbit/s,4Gbit/s"], &records);
    assert!(text.contains("WANTS") && text.contains(" to "), "{text}");
}

#[test]
fn a_prediction_is_drawn_by_queues() {
    let dir = tempfile::tempdir().expect("a directory");
    let records = dir.path().join("table.toml");
    let table = "[[point]]\nqueues = 1\nflows = 8\nthroughput = '3Gbit/s'\n";
    let figure = dir.path().join("figure.svg");
    let draw_of = |verb: &str, number: [&str; 2], table: &str| {
        std::fs::write(&records, table).expect("it has room");
        let file = figure.to_str().expect("a plain name");
        let words = [verb, number[0], number[1], "--streams", "8", "--figure", file];
        said(&words, &records);
        std::fs::read_to_string(&figure).expect("a figure")
    };
    let draw = |table: &str| draw_of("predict", ["--queues", "6"], table);
    // With one queue more is a range, which has no mark.
    let svg = draw(table);
    assert!(svg.contains("not identified with 6 queues: ") && !svg.contains("NaN"), "{svg}");
    assert_eq!(svg.matches("<title>predicted ").count(), 1, "{svg}");
    let two = "[[point]]\nqueues = 2\nflows = 8\nthroughput = '5Gbit/s'\n";
    let svg = draw(&format!("{table}{two}"));
    // 1, 2, 4 and 6 queues.
    assert_eq!(svg.matches("<title>predicted ").count(), 4, "{svg}");
    assert_eq!(svg.matches("<title>measured, ").count(), 2, "{svg}");
    // One queue suffices, and twice as many are drawn.
    let svg = draw_of("plan", ["--target", "2Gbit/s"], &format!("{table}{two}"));
    assert_eq!(svg.matches("<title>predicted ").count(), 2, "{svg}");
}

#[test]
fn a_change_of_code_is_shown_by_its_counts_of_instructions() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, packet: f64, rates: usize| {
        let case = |batch: f64| {
            let name = format!("backend ingress, 64 B, batch {batch}, 1 queue(s)");
            let case =
                serde_json::json!({ "section": "icount", "name": name, "unit": "instr/frame" });
            serde_json::json!({ "case": case, "runs": [{ "value": packet + 400.0 / batch }] })
        };
        let runs = [14_000.0 / packet, 13_900.0 / packet, 14_100.0 / packet]
            .map(|value| serde_json::json!({ "value": value }));
        let runs = &runs[..rates];
        let rate = serde_json::json!({
            "case": {
                "section": "ring", "name": "guest->host, 64 B, 1 queue(s)", "unit": "Mpps",
            },
            "subject": "ringway+bare",
            "runs": runs,
        });
        let file = serde_json::json!({ "series": [case(1.0), case(64.0), rate] });
        std::fs::write(dir.path().join(name), file.to_string()).expect("it has room");
    };
    write("before.json", 350.0, 3);
    write("after.json", 250.0, 3);
    write("once.json", 250.0, 1);
    let before = dir.path().join("before.json");
    let words = ["cost", before.to_str().expect("a plain name")];
    // 400 to 300 instructions in a batch of 8.
    let text = said(&words, &dir.path().join("after.json"));
    assert!(text.contains("backend ingress, 1 queue(s)"), "{text}");
    assert!(text.contains("400 to 300") && text.contains("+0.0 % to +33.3 %"), "{text}");
    // These counts do not say what an interrupt costs.
    let of_sleeper = said(&["cost", "--interrupts", words[1]], &dir.path().join("after.json"));
    assert!(!of_sleeper.contains(" to 300"), "{of_sleeper}");
    // The rates were 40 and 56: more than fewer instructions explain.
    assert!(text.contains("+40.0 % (") && text.contains("more than predicted"), "{text}");
    // One rate alone does not say how certain it is.
    let once = said(&words, &dir.path().join("once.json"));
    assert!(once.contains("+40.0 %") && !once.contains("predicted"), "{once}");
    let json = said(&[words[0], "--json"], &before);
    let rows: Value = serde_json::from_str(&json).expect("JSON");
    let missing = ["change", "measured", "says"].map(|name| rows[0][name].is_null());
    assert!(missing == [true; 3] && rows[0]["before"]["byte"].is_null(), "{rows}");
}

#[test]
fn round_trips_under_load_are_predicted_from_the_throughput_of_the_load() {
    let dir = tempfile::tempdir().expect("a directory");
    model::fill(dir.path(), &quick("latency-under-load"), &model::host(64), 1, 1.0);
    let records = Records::read(dir.path()).expect("good records");
    let analysis = Analysis::of(&records);
    let of = |label: &str| {
        let cell = analysis.of_primary().find(|cell| cell.label == label).expect(label);
        let one = cell.predicted.expect("the cells calibrate it");
        assert_eq!(one.metric, "rtt-median-us");
        (one, cell.values["rtt-median-us"].mean)
    };
    for label in ["q1.l0", "q1.l1"] {
        assert!(of(label).0.is_calibration, "{label}");
    }
    for label in ["q1.l4", "q2.l4", "q4.l1", "q4.l4"] {
        let (one, measured) = of(label);
        let value = one.estimate.value.expect("two queues identify it");
        assert!(!one.is_calibration && measured > 100.0, "{label}: {measured}");
        assert!((value / measured - 1.0).abs() < 0.15, "{label}: {one:?} {measured}");
    }
    report::write(dir.path(), &records).expect("it has room");
    let page = std::fs::read_to_string(dir.path().join("report.html")).expect("a page");
    assert!(page.contains("It predicts the mean of round trips"), "{page}");
    let svg = std::fs::read_to_string(dir.path().join("figures/median.svg")).expect("a figure");
    let drawn = svg.matches("<title>predicted ").count();
    // All cells but the two of the calibration.
    assert_eq!(drawn, 7, "{svg}");
    assert!(svg.contains("dash and dots: predicted") && !svg.contains("NaN"), "{svg}");
    let other = std::fs::read_to_string(dir.path().join("figures/p99.svg")).expect("a figure");
    assert!(!other.contains("predicted"), "the model says nothing of this metric");
}
