//! What the model makes of figures that identify little or contradict each other, and of records
//! that do not belong together.

mod model;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use ringway_lab::study::shipped;

/// A table with these queues, flows and rates.
fn table(head: &str, points: &[(usize, usize, &str)]) -> String {
    points.iter().fold(head.to_owned(), |mut text, (queues, flows, rate)| {
        writeln!(text, "[[point]]\nqueues = {queues}\nflows = {flows}\nthroughput = '{rate}'")
            .expect("it has room");
        text
    })
}

/// What `ringway model` prints for these words and paths, and whether it succeeds.
fn says(words: &[&str], paths: &[&Path]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-lab"));
    let output = command.arg("model").args(words).args(paths).output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn records_that_do_not_belong_together_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let fill = |name: &str, id: &str, cpus: u32| {
        let path = dir.path().join(name);
        let study = shipped(id).expect("it is shipped").quick();
        model::fill(&path, &study, &model::host(cpus), 1, 1.0);
        path
    };
    let transmit = fill("transmit", "transmit", 64);
    let other = fill("receive", "receive", 64);
    let machine = fill("machine", "transmit", 8);
    for (second, why) in [
        (&other, "another study or machine"),
        (&machine, "another study or machine"),
        (&transmit, "its runs are also in"),
    ] {
        let (is_good, text) = says(&["fit"], &[&transmit, second]);
        assert!(!is_good && text.contains(why), "{text}");
    }
    let (is_good, text) = says(&["fit", "--where", "offlods=all"], &[&other]);
    assert!(!is_good && text.contains("`offlods` is no axis"), "{text}");
    let table_file = dir.path().join("table.toml");
    std::fs::write(&table_file, table("", &[(1, 8, "3Gbit/s")])).expect("it has room");
    let (is_good, text) = says(&["fit", "--where", "offloads=all"], &[&table_file]);
    assert!(!is_good && text.contains("--where"), "{text}");
}

#[test]
fn counts_of_other_paths_are_not_compared() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |path: &str| {
        let series = [1, 64].map(|batch| {
            let name = format!("{path}, 64 B, batch {batch}");
            let case =
                serde_json::json!({ "section": "icount", "name": name, "unit": "instr/frame" });
            let value = 200.0 + 64.0 / f64::from(batch);
            serde_json::json!({ "case": case, "runs": [{ "value": value }] })
        });
        let file = dir.path().join(path);
        let text = serde_json::json!({ "series": series }).to_string();
        std::fs::write(&file, text).expect("it has room");
        file
    };
    let (before, after) = (write("ingress"), write("egress"));
    let (is_good, text) = says(&["cost"], &[&before, &after]);
    assert!(!is_good && text.contains("egress: none of its paths is in"), "{text}");
}
