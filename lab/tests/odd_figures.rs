//! What the model makes of figures that identify little or contradict each other, and of records
//! that do not belong together.

mod model;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use ringway_lab::analysis::forecast;
use ringway_lab::record::{Disturbance, EndUse, Ends, Interface, InterfaceUse, Peer, Records};
use ringway_lab::study::shipped;
use ringway_lab::value::Cell;
use ringway_model::fit::{Fit, FitError};
use ringway_model::predict::Placed;

/// A table with these queues, flows and rates.
fn table(head: &str, points: &[(usize, usize, &str)]) -> String {
    points.iter().fold(head.to_owned(), |mut text, (queues, flows, rate)| {
        writeln!(text, "[[point]]\nqueues = {queues}\nflows = {flows}\nthroughput = '{rate}'")
            .expect("it has room");
        text
    })
}

fn fit(head: &str, points: &[(usize, usize, &str)]) -> Result<Fit, FitError> {
    Fit::of(&forecast::of_table("odd.toml", &table(head, points)).expect("a table"))
}

/// What `ringway model` prints for these words and paths, and whether it succeeds.
fn says(words: &[&str], paths: &[&Path]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-lab"));
    let output = command.arg("model").args(words).args(paths).output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn what_keeps_no_two_queues_busy_says_nothing_about_contention() {
    // One flow over two queues is on one of them.
    let one = fit("", &[(1, 8, "3Gbit/s"), (2, 1, "2Gbit/s")]).expect("one queue is enough");
    let serial = &one.parameters[1];
    assert_eq!((serial.estimate.low, serial.estimate.high), (0.0, 1.0), "{serial:?}");
    // Two flows over eight queues are on two at most, which two queues show as well.
    let points = [(1, 8, "3Gbit/s"), (2, 8, "5.5Gbit/s"), (8, 2, "5Gbit/s")];
    let form = fit("", &points).expect("one queue is enough");
    assert!(form.parameters[2].missing.is_some(), "{form:?}");
}

#[test]
fn the_run_that_is_asked_for_would_say_something() {
    let one = fit("", &[(1, 1, "3Gbit/s")]).expect("one queue is enough");
    let missing: Vec<_> = one.parameters.iter().filter_map(|it| it.missing.as_deref()).collect();
    assert!(missing[0].starts_with("2 queues with 4 flows"), "{missing:?}");
    assert_eq!(missing[2], "1 queue with 8 flows");
    let none = fit("point = []", &[]).expect_err("nothing").to_string();
    assert!(none.contains("measure 8 flows over 1 queue"), "{none}");
}

#[test]
fn what_nothing_explains_widens_predictions_and_is_named() {
    // More than twice as fast as one queue.
    let points = [(1, 8, "3Gbit/s"), (2, 8, "9Gbit/s")];
    let fast = fit("", &points).expect("one queue is enough");
    let predicted = fast.predict(2, 8, Placed::Random).throughput;
    assert!(predicted.high > 8.99e9, "{predicted:?}");
    assert_eq!(fast.unexplained().first().map(|(name, _)| name.as_str()), Some("q2.s8"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("odd.toml");
    std::fs::write(&file, table("", &points)).expect("it has room");
    for words in [
        &["fit"][..],
        &["predict", "--queues", "2", "--streams", "8"],
        &["plan", "--target", "5Gbit/s", "--streams", "8"],
    ] {
        let (is_good, text) = says(words, &[&file]);
        assert!(is_good && text.contains("q2.s8 was measured +5"), "{text}");
    }
    let window = fit("window = '1B'\n", &points).expect_err("no flow carries so much");
    let window = window.to_string();
    assert!(window.starts_with("q1.s8") && window.contains("`window`"), "{window}");
}

#[test]
fn what_is_not_identified_is_a_range_everywhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("one.toml");
    std::fs::write(&file, table("", &[(1, 8, "3Gbit/s")])).expect("it has room");
    let (_, text) = says(&["predict", "--queues", "4", "--streams", "8"], &[&file]);
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).expect(start);
    for start in ["throughput", "by placement", "round trip"] {
        assert!(line(start).contains(" to "), "{text}");
    }
    let (_, text) = says(&["plan", "--target", "5Gbit/s", "--streams", "8"], &[&file]);
    assert!(text.contains("or more with 0 to 9"), "{text}");
    let (_, text) = says(&["plan", "--target", "500Gbit/s", "--streams", "8"], &[&file]);
    assert!(text.contains("or more with 0 % of placements"), "{text}");
    assert!(text.contains("MTU      not known: --line names the wire"), "{text}");
    // A quota may give half a CPU.
    let quota = table("cpus.guest = 1.5\n", &[(1, 8, "3Gbit/s")]) + "cpus-used.guest = 1.2\n";
    std::fs::write(&file, quota).expect("it has room");
    let (_, text) = says(&["predict", "--queues", "4", "--streams", "8"], &[&file]);
    assert!(text.contains(" of 1.5 CPUs\n"), "{text}");
    let figures = table("line = '10Gbit/s'\nmtu = '9000B'\n", &[(1, 8, "3Gbit/s")]);
    std::fs::write(&file, figures).expect("it has room");
    let (_, text) = says(&["plan", "--target", "5Gbit/s", "--streams", "8"], &[&file]);
    assert!(text.contains("MTU      9000 B leaves so much payload"), "{text}");
}

#[test]
fn json_has_what_the_text_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("one.toml");
    let json = |words: &[&str]| {
        let (is_good, text) = says(&[words, &["--streams", "8", "--json"]].concat(), &[&file]);
        assert!(is_good, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    std::fs::write(&file, table("", &[(1, 8, "3Gbit/s")])).expect("it has room");
    let found = json(&["predict", "--queues", "4"]);
    assert!(found["window-known"] == false && found["throughput-bps"]["value"].is_null());
    assert_eq!(found["not-identified"], "serial part of the work");
    // Without an MTU: because no wire is known, or because no frame is large enough.
    let plan = json(&["plan", "--target", "50Gbit/s"]);
    assert!(plan["mtu-bytes"].is_null() && plan["line-payload-bps"].is_null(), "{plan}");
    let plan = json(&["plan", "--target", "50Gbit/s", "--line", "10Gbit/s"]);
    assert!(plan["mtu-bytes"].is_null(), "{plan}");
    assert!(plan["line-payload-bps"].as_f64().is_some_and(|bps| bps > 9.4e9), "{plan}");
    let quota = table("cpus.guest = 1.5\n", &[(1, 8, "3Gbit/s")]) + "cpus-used.guest = 1.2\n";
    std::fs::write(&file, quota).expect("it has room");
    let station = json(&["predict", "--queues", "1"])["stations"][0].clone();
    assert!(station["name"] == "guest" && station["cpus"] == 1.5, "{station}");
}

#[test]
fn tables_add_up_in_any_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let [one, other] = ["one.toml", "other.toml"].map(|name| dir.path().join(name));
    let points = [(1, 8, "3Gbit/s"), (2, 8, "5.5Gbit/s")];
    std::fs::write(&one, table("", &points)).expect("it has room");
    // Its window is the usual one, and its point was placed otherwise.
    let ideal = table("window = '256KiB'\ncpus.guest = 4\n", &[(2, 8, "5.9Gbit/s")]);
    let ideal = ideal + "placement = 'ideal'\ncpus-used.guest = 2\n";
    std::fs::write(&other, ideal).expect("it has room");
    let of = |paths: &[&Path]| says(&["predict", "--queues", "2", "--streams", "8"], paths);
    let (is_good, text) = of(&[&one, &other]);
    assert!(is_good && text.contains(" of 4 CPUs") && !text.contains("not known"), "{text}");
    assert_eq!(of(&[&other, &one]).1, text);
}

#[test]
fn another_rate_of_the_wire_keeps_its_tunnel() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("node.toml");
    let head = "line = '10Gbit/s'\ntunnel = 'vxlan'\nboth-sides = true\n";
    std::fs::write(&file, table(head, &[(1, 6, "3.23Gbit/s"), (2, 6, "6Gbit/s")])).expect("room");
    let words = ["predict", "--queues", "8", "--streams", "12"];
    let (_, as_known) = says(&words, &[&file]);
    let with = |more: &[&str]| says(&[&words[..], more].concat(), &[&file]).1;
    assert_eq!(with(&["--line", "10Gbit/s"]), as_known);
    assert_ne!(with(&["--line", "10Gbit/s", "--tunnel", "none"]), as_known);
    assert!(with(&["--line", "10Gbit/s", "--tunnel", "ipip"]).contains("none, vxlan, gre"));
    // A table without points says which one is missing, and of which file.
    std::fs::write(&file, head).expect("room");
    let (is_good, text) = says(&words, &[&file]);
    assert!(!is_good && text.contains("node.toml") && text.contains("over 1 queue"), "{text}");
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

/// Records between two machines, of which each used CPUs.
fn between_machines(dir: &Path) -> Records {
    let study = shipped("transmit").expect("it is shipped").quick();
    model::fill(dir, &study, &model::host(64), 1, 1.0);
    let mut records = Records::read(dir).expect("good records");
    let interface = Interface {
        name: "eth0".to_owned(),
        address: [192, 0, 2, 1].into(),
        mtu: 1500,
        tx_queues: None,
        rx_queues: None,
        gro: None,
        lro: None,
    };
    let (name, near_interface) = ("red".to_owned(), interface.clone());
    records.peer = Some(Peer { name, interface, near_interface, host: model::host(64) });
    let carried = InterfaceUse {
        name: "eth0".to_owned(),
        tx_packets: 1 << 40,
        tx_bytes: 1 << 50,
        rx_packets: 0,
        rx_bytes: 0,
    };
    let end = EndUse {
        interface: carried,
        tools_user: 0.1,
        tools_system: 0.4,
        host_softirq: 0.2,
        steal: 0.3,
        disturbance: Disturbance::default(),
    };
    for run in &mut records.runs {
        run.ends = Some(Ends { near: end.clone(), far: end.clone() });
    }
    records
}

#[test]
fn what_two_machines_use_is_not_one_station_and_steal_is_none_of_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let records = between_machines(dir.path());
    let data = forecast::of_records(&records, &Cell::default()).expect("good cells");
    for point in &data.points {
        let names: Vec<&str> = point.cpus_used.keys().map(String::as_str).collect();
        assert!(names.contains(&"tools on the peer"), "{names:?}");
        assert!(!names.iter().any(|it| it.contains("steal") || *it == "all CPUs"), "{names:?}");
    }
}

#[test]
fn cpus_of_which_a_part_was_not_measured_are_not_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let study = shipped("transmit").expect("it is shipped").quick();
    model::fill(dir.path(), &study, &model::host(64), 1, 1.0);
    let mut records = Records::read(dir.path()).expect("good records");
    let is_alone = |cell: &Cell| cell.number("queues") == Some(1);
    records.runs.iter_mut().filter(|run| is_alone(&run.cell)).for_each(|run| {
        run.cpu.netback = None;
    });
    let data = forecast::of_records(&records, &Cell::default()).expect("good cells");
    for point in &data.points {
        assert_eq!(point.cpus_used.contains_key("all CPUs"), point.queues > 1, "{point:?}");
    }
    let fit = Fit::of(&data).expect("it has one queue");
    let (_, used) = fit.used(1e9).find(|(it, _)| it.name == "all CPUs").expect("of more queues");
    let (_, part) = fit.used(1e9).find(|(it, _)| it.name == "guest system").expect("of all");
    assert!(used > 0.0 && part > 0.0);
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
