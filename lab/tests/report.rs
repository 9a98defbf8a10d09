//! The files of a report on records of a model are complete and consistent, and render well in a
//! browser.

mod model;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringway_e2e::browser::{Browser, Scheme};
use ringway_e2e::say;
use ringway_lab::analysis::{Analysis, forecast};
use ringway_lab::plan::Plan;
use ringway_lab::record::{Disturbance, Records};
use ringway_lab::study::{Study, Subject, ids, shipped};
use ringway_lab::value::Cell;
use ringway_lab::{assert, compare, report};
use ringway_model::fit::Fit;
use serde_json::{Value, json};

/// A shipped study with fewer repeats.
fn short(id: &str, repeats: u32) -> Study {
    let mut study = shipped(id).expect("it is shipped");
    study.load.repeats = repeats;
    study.load.max_repeats = repeats;
    study
}

/// Records of the model with all files of their report. They stay if `RINGWAY_LAB_KEEP` names a
/// directory for them.
fn reported(study: &Study, cpus: u32) -> (tempfile::TempDir, PathBuf, Records) {
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = match std::env::var_os("RINGWAY_LAB_KEEP") {
        Some(keep) => Path::new(&keep).join(&study.id),
        None => temporary.path().to_owned(),
    };
    model::fill(&dir, study, &model::host(cpus), 1, 1.0);
    let records = Records::read(&dir).expect("good records");
    report::write(&dir, &records).expect("it has room");
    (temporary, dir, records)
}

#[test]
fn cells_with_many_queues_are_predicted_from_those_with_few() {
    let study = short("transmit", 10);
    let (_temporary, dir, records) = reported(&study, 64);
    let analysis = Analysis::of(&records);
    let of = |label: &str| {
        let cell = analysis.of_primary().find(|cell| cell.label == label).expect(label);
        (cell.predicted.expect("one and two queues calibrate it"), cell.values["throughput-bps"])
    };
    let (one, measured) = of("q1.s8");
    let value = one.estimate.value.expect("it was measured");
    assert!(one.is_calibration && (value / measured.mean - 1.0).abs() < 0.02, "{one:?}");
    for label in ["q4.s8", "q8.s8"] {
        let (many, measured) = of(label);
        let value = many.estimate.value.expect("two queues identify it");
        assert!(!many.is_calibration, "{label}");
        assert!((value / measured.mean - 1.0).abs() < 0.15, "{label}: {many:?} {measured:?}");
        assert!(many.estimate.low <= value && value <= many.estimate.high);
    }
    let page = fs::read_to_string(dir.join("report.html")).expect("a page");
    assert!(page.contains("Predicted"));
    let error = |label: &str| of(label).0.error.expect("it has a value");
    let (many, measured) = of("q8.s8");
    let value = many.estimate.value.expect("two queues identify it");
    assert!((error("q8.s8") - (value / measured.mean - 1.0)).abs() < 1e-9);
    let errors = analysis.prediction_errors.as_ref().expect("some cells were predicted");
    assert!(errors.cells > 4 && errors.median <= errors.worst.abs(), "{errors:?}");
    assert!((error(&errors.worst_cell) - errors.worst).abs() < 1e-9, "{errors:?}");
    assert!(page.contains(&format!("Over {} cells on which", errors.cells)), "{errors:?}");
    assert!(page.contains(&format!("{:+.1} % at worst, at", errors.worst * 100.0)));
    let data = forecast::of_records(&records, &Cell::default()).expect("good cells");
    let fit = Fit::of(&data).expect("it has one queue");
    let used = |name: &str| {
        let (_, used) = fit.used(1e9).find(|(station, _)| station.name == name).expect(name);
        used
    };
    // The far end's tools share the machine's CPUs.
    let parts = used("netback") + used("guest system") + used("far tools");
    let all = used("all CPUs");
    assert!(all > 0.0 && (all / parts - 1.0).abs() < 1e-9, "{all} {parts}");
    let errors = &data.points[0].cpus_error;
    assert!(["netback", "all CPUs"].iter().all(|name| errors[*name] > 0.0), "{errors:?}");
}

#[test]
fn every_study_has_a_complete_report() {
    for id in ids() {
        let study = short(id, 3);
        let (_temporary, dir, records) = reported(&study, 2);
        let page = fs::read_to_string(dir.join("report.html")).expect(id);
        for figure in &study.figure {
            let svg = fs::read_to_string(dir.join(format!("figures/{}.svg", figure.id)));
            let svg = svg.unwrap_or_else(|error| panic!("{id}, {}: {error}", figure.id));
            assert!(svg.contains("too few CPUs") && svg.contains("aria-label"), "{id}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{id}: {}", figure.id);
            assert!(page.contains(&format!("id=\"figure-{}\"", figure.id)), "{id}");
        }
        let runs = records.runs.iter().filter(|run| !run.courses.is_empty()).count();
        // Two pictures of each metric of a run.
        assert_eq!(page.matches("<title>run ").count(), 2 * runs, "{id}");
        if ["transmit", "receive", "network-node"].contains(&id) {
            assert!(page.contains("◇") && page.contains("published ("), "{id}");
        }
        // The page fetches nothing: the only link is the empty icon.
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("@import"));
        assert_eq!(page.matches("href=").count(), 1);
        for id in &study.sources {
            let cited = ringway_sources::find(id).expect(id);
            assert!(page.contains(&format!("<li>{}</li>", cited.source.title)), "{id}");
            assert!(page.contains(cited.source.address.as_deref().expect(id)), "{id}");
            assert!(!page.contains(id), "{id} is for programs");
        }
        let csv = fs::read_to_string(dir.join("runs.csv")).expect(id);
        assert_eq!(csv.lines().count(), records.runs.len() + 1);
        let summary: Value =
            serde_json::from_slice(&fs::read(dir.join("summary.json")).expect(id)).expect(id);
        assert_eq!(summary["runs"], records.runs.len());
        assert!(!summary["verdict"].as_str().expect("a paragraph").is_empty());
    }
}

#[test]
fn the_same_records_give_the_same_files() {
    let study = short("transmit", 3);
    let (_temporary, dir, records) = reported(&study, 2);
    let read = |name: &str| fs::read(dir.join(name)).expect(name);
    let names = ["report.html", "runs.csv", "summary.json", "metrics.prom"];
    let before = names.map(read);
    report::write(&dir, &records).expect("it has room");
    assert_eq!(names.map(read), before);
}

#[test]
fn the_verdict_says_what_the_machine_cannot_show() {
    let (_temporary, _, records) = reported(&short("transmit", 12), 2);
    let few = Analysis::of(&records).verdict;
    assert!(few.contains("This machine has 2 CPUs, fewer than every cell"), "{few}");
    let (_temporary, _, records) = reported(&short("transmit", 12), 64);
    let many = Analysis::of(&records).verdict;
    assert!(!many.contains("fewer than"), "{many}");
    assert!(many.contains("8 queues against 1, with a single stream: no difference"), "{many}");
    assert!(many.contains("4 queues against 1, with 8 streams: throughput is 3."), "{many}");
    assert!(many.contains("times what veth + bridge does there"), "{many}");
}

#[test]
fn a_single_run_concludes_nothing_and_no_run_says_so() {
    let (_temporary, _, mut records) = reported(&short("transmit", 1), 64);
    let single = Analysis::of(&records).verdict;
    assert!(single.contains("from too few runs to conclude anything"), "{single}");
    assert!(single.contains("24 of fewer than 5 runs"), "{single}");
    records.runs.clear();
    assert!(Analysis::of(&records).verdict.starts_with("ringway was not measured yet"));
    assert_eq!(Analysis::of(&records).missing.len(), 24);
}

#[test]
fn a_study_goes_on_where_it_stopped() {
    let whole = tempfile::tempdir().expect("a directory");
    let study = short("placement", 4);
    model::fill(whole.path(), &study, &model::host(2), 1, 1.0);
    let text = fs::read_to_string(whole.path().join("runs.jsonl")).expect("records");
    for keep in [0, 1, text.len() / 3, text.len() - 5] {
        let dir = tempfile::tempdir().expect("a directory");
        for file in ["study.toml", "host.json"] {
            fs::copy(whole.path().join(file), dir.path().join(file)).expect(file);
        }
        fs::write(dir.path().join("runs.jsonl"), &text[..keep]).expect("it has room");
        model::fill(dir.path(), &study, &model::host(2), 1, 1.0);
        let again = fs::read_to_string(dir.path().join("runs.jsonl")).expect("records");
        assert!(again == text, "cut at {keep}");
    }
}

#[test]
fn a_report_says_what_changed_between_runs_and_where_time_was_short() {
    let mut study = short("placement", 3);
    study.load.budget_seconds = Some(105.0);
    let (_temporary, dir, mut records) = reported(&study, 2);
    assert!(Analysis::of(&records).notices.is_empty());
    let last = records.runs.pop().expect("there are some");
    records.runs[0].differences = vec!["ringway: 0.1.0 a → 0.1.0 b".to_owned()];
    records.runs.retain(|run| run.subject != last.subject || run.cell != last.cell);
    report::write(&dir, &records).expect("it has room");
    let page = fs::read_to_string(dir.join("report.html")).expect("it is there");
    let count = records.runs.len();
    let changed = format!("1 of {count} runs were made after something changed: ringway: 0.1.0 a");
    assert!(page.contains(&changed) && page.contains("Cells with fewer than 3 runs: 1."), "{page}");
}

#[test]
fn a_run_that_its_own_counters_contradict_is_left_out_and_made_again() {
    let study = short("placement", 3);
    let (_temporary, dir, mut records) = reported(&study, 2);
    let whole = Analysis::of(&records);
    // Streams that ran one after another, each as fast as if it were alone.
    let odd = records.runs.iter_mut().find(|run| run.subject == Subject::Ringway);
    let odd = odd.expect("there are some");
    for stream in &mut odd.streams {
        stream.bps = stream.bps.map(|bps| 3.0 * bps);
    }
    odd.values.insert("throughput-bps".to_owned(), 1e12);
    let (subject, cell, repeats) = (odd.subject, odd.cell.clone(), 3);
    let analysis = Analysis::of(&records);
    let summary = analysis.cell(subject, &cell).expect("two of its runs hold");
    assert_eq!(summary.values["throughput-bps"].count, repeats - 1);
    assert!(summary.values["throughput-bps"].mean < 1e11);
    let said: Vec<String> = summary.warnings.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|line| line.starts_with("left out: 1 run,")), "{said:?}");
    let [notice] = &analysis.notices[whole.notices.len()..] else { panic!("one more notice") };
    assert!(notice.starts_with("Runs whose streams report more"), "{notice}");
    report::write(&dir, &records).expect("it has room");
    let page = fs::read_to_string(dir.join("report.html")).expect("it was written");
    assert!(page.contains(notice.as_str()));
    let mut longer = study.clone();
    longer.load.max_repeats = 4;
    let again = Plan::new(&longer, 1000.0, 2).next(&records.runs).expect("one is missing");
    assert_eq!((again.subject, &again.cell), (subject, &cell));
}

#[test]
fn a_report_says_what_disturbed_the_runs() {
    let (_temporary, dir, mut records) = reported(&short("placement", 3), 2);
    records.runs[1].notes.push("it rained".to_owned());
    report::write(&dir, &records).expect("it has room");
    let page = fs::read_to_string(dir.join("report.html")).expect("it is there");
    let all = records.runs.len();
    for line in [
        // One run of the model is disturbed.
        format!("Runs with more than 2.0 % steal or 10.0 % of others: 1 of {all}."),
        format!("In 1 of {all} runs others had a part"),
        format!("it rained (1 of {all} runs)"),
        "<td class=\"n\">25.0 %</td>".to_owned(),
        "<td class=\"n\">2400 MHz</td>".to_owned(),
    ] {
        assert!(page.contains(&line), "{line}");
    }
    let csv = fs::read_to_string(dir.join("runs.csv")).expect("it is there");
    assert!(csv.lines().next().is_some_and(|head| head.contains("foreign-share")));
    records.runs.iter_mut().for_each(|run| run.disturbance = Disturbance::default());
    report::write(&dir, &records).expect("it has room");
    let page = fs::read_to_string(dir.join("report.html")).expect("it is there");
    assert_eq!(page.matches("not known").count(), 3);
}

#[test]
fn repeats_stop_when_the_mean_is_known_well_enough() {
    let mut study = short("placement", 10);
    study.load.max_repeats = 60;
    let (_temporary, _, records) = reported(&study, 2);
    let count = |name: &str| {
        let is_it = |run: &&ringway_lab::record::Run| run.cell.text("placement") == Some(name);
        records.runs.iter().filter(is_it).count()
    };
    // Evenly spread streams vary only by the model's noise of 2 %; others also by their splits.
    assert_eq!(count("ideal"), 10);
    assert!(count("random") > 15 && count("random") <= 60, "{}", count("random"));
    for cell in Analysis::of(&records).cells {
        let summary = cell.values["throughput-bps"];
        assert!(summary.precision().expect("many runs") <= 0.05, "{}", cell.label);
    }
}

#[test]
fn cells_are_interleaved_in_an_order_of_the_seed() {
    let (_temporary, _, records) = reported(&short("transmit", 3), 2);
    let cells: Vec<_> = records.runs.iter().map(|run| (run.subject, &run.cell)).collect();
    let rounds: Vec<_> = cells.chunks(24).collect();
    assert_eq!(rounds.len(), 3);
    for round in &rounds {
        let mut once = round.to_vec();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), 24, "every cell once before any twice");
    }
    assert!(rounds[0] != rounds[1] && rounds[1] != rounds[2]);
}

#[test]
fn compare_finds_what_changed_and_nothing_else() {
    let study = short("transmit", 10);
    let filled = |seed, speed| {
        let dir = tempfile::tempdir().expect("a directory");
        model::fill(dir.path(), &study, &model::host(64), seed, speed);
        Records::read(dir.path()).expect("good records")
    };
    let before = filled(1, 1.0);
    let same = compare::compare(&before, &filled(2, 1.0)).expect("one study");
    let wrong = same.cells.iter().filter(|cell| cell.verdict != compare::Verdict::Unclear);
    assert_eq!(wrong.count(), 0, "{same:?}");
    assert!(same.differences.is_empty());
    let slower = compare::compare(&before, &filled(3, 0.8)).expect("one study");
    let single = slower.cells.iter().find(|cell| cell.cell == "q1.s1").expect("it is there");
    assert_eq!(single.verdict, compare::Verdict::Worse);
    let ratio = single.ratio.expect("both are there").interval.expect("many runs");
    assert!(ratio.has(0.8), "{ratio:?}");
    let other = shipped("receive").expect("it is shipped");
    let other = Records { study: other, ..before.clone() };
    assert!(compare::compare(&before, &other).is_err());
}

#[test]
fn rules_are_checked_against_the_means() {
    let (_temporary, _, records) = reported(&short("transmit", 10), 64);
    let check = |rule: &str| rule.parse::<assert::Rule>().expect(rule).check(&records);
    for (rule, holds) in [
        ("transmit.q1.s1 >= 1.8G", true),
        ("q1.s1 >= 2.5G", false),
        ("transmit.q4.s8 >= 0.9*baseline", false),
        ("q8.s8 >= 0.9*baseline-tap-relay", true),
        ("q4.s8 > 1.5*q1.s8", true),
        ("transmit.q4.s8[fairness] <= 1", true),
    ] {
        let outcome = check(rule).expect(rule);
        assert_eq!(outcome.holds, holds, "{outcome}");
        assert!(outcome.is_certain, "{outcome}");
    }
    let said = check("q1.s1 >= 99G").expect("it can be checked").to_string();
    assert!(said.starts_with("FAILS: q1.s1 >= 99G (1.") && said.contains("99.0 Gbit/s"), "{said}");
    // With the same cell on both sides the rule holds, but not with certainty.
    assert!(!check("q1.s1 >= q1.s1").expect("it can be checked").is_certain);
    for (rule, word) in [
        ("q3.s1 >= 1", "no cell"),
        ("receive.q1.s1 >= 1", "no cell"),
        ("q1.s1[rtt-p99-us] <= 5", "there is no rtt-p99-us"),
        ("q1.s1[speed] <= 5", "no metric"),
    ] {
        let error = check(rule).expect_err(rule).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn the_export_is_what_prometheus_reads() {
    let (_temporary, dir, _) = reported(&short("transmit", 3), 2);
    let text = fs::read_to_string(dir.join("metrics.prom")).expect("it is there");
    let line = text.lines().find(|line| {
        line.starts_with("ringway_lab_mean{")
            && line.contains("cell=\"q4.s8\"")
            && line.contains("metric=\"throughput-bps\"")
    });
    let line = line.expect("a sample of the cell");
    assert!(line.contains("queues=\"4\",streams=\"8\"}"), "{line}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once("} ").expect(line);
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
}

#[test]
fn what_records_say_is_escaped() {
    let mut study = short("transmit", 1);
    study.title = "<script>alert(1)</script> & \"more\"".to_owned();
    let (_temporary, dir, _) = reported(&study, 2);
    let page = fs::read_to_string(dir.join("report.html")).expect("it is there");
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
}

#[test]
fn a_browser_shows_the_page_without_complaint() {
    let Some(browser) = Browser::find() else { return };
    for id in ["transmit", "latency", "placement", "workers", "network-node", "scenarios"] {
        let (_temporary, dir, _) = reported(&short(id, 10), 2);
        let page = fs::read_to_string(dir.join("report.html")).expect(id);
        for (width, scheme) in [(1200, Scheme::Light), (390, Scheme::Dark), (360, Scheme::Light)] {
            let found = browser.look(&page, width, scheme);
            assert_eq!(found, Ok(sound(scheme)), "{id} at {width}");
        }
    }
}

/// What a browser finds of a page without a fault.
fn sound(scheme: Scheme) -> Value {
    let dark = scheme == Scheme::Dark;
    json!({ "dark": dark, "missing": 0, "hidden": 0, "overflow": 0, "faint": [] })
}

#[test]
fn a_report_is_whole_in_print() {
    let (Some(browser), true) = (Browser::find(), has_poppler()) else { return };
    for id in ["transmit", "latency", "network-node"] {
        let (_temporary, dir, records) = reported(&short(id, 5), 2);
        let page = dir.join("report.html");
        let html = fs::read_to_string(&page).expect(id);
        assert!(!html.contains("<details"), "{id}: what is folded is not printed");
        let printed = print(&browser, &page);
        let squeezed = printed.text.split_whitespace().collect::<Vec<_>>().join(" ");
        for figure in &records.study.figure {
            assert!(squeezed.contains(&figure.title), "{id}: no {}", figure.title);
        }
        let tables = squeezed.matches("The data of this figure").count();
        assert_eq!(tables, records.study.figure.len(), "{id}");
        for heading in ["Figures", "Every cell", "What disturbed the runs", "How it was measured"] {
            assert!(squeezed.contains(heading), "{id}: no {heading}");
        }
        for cell in Analysis::of(&records).cells {
            assert!(squeezed.contains(&cell.label), "{id}: no {}", cell.label);
        }
        assert!(printed.pages > 2 && printed.is_a4, "{id}");
        assert_eq!(printed.outside, Vec::<String>::new(), "{id}");
    }
}

#[test]
fn what_is_cut_off_in_print_is_found() {
    let (Some(browser), true) = (Browser::find(), has_poppler()) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let html =
        "<style>@page { size: A4 }</style><p style='position: absolute; left: 205mm'>cut</p>";
    fs::write(&page, html).expect("it has room");
    assert_eq!(print(&browser, &page).outside, ["cut"]);
}

/// A page on paper.
struct Printed {
    text: String,
    pages: usize,
    is_a4: bool,
    /// Words outside the margins.
    outside: Vec<String>,
}

/// The width of the unprintable margin in points: 10 mm.
const MARGIN: f64 = 28.3;

fn print(browser: &Browser, page: &Path) -> Printed {
    let dir = tempfile::tempdir().expect("a directory");
    let pdf = dir.path().join("report.pdf");
    browser.print(page, &pdf);
    let printed = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).arg(&pdf).arg("-").output();
        String::from_utf8_lossy(&output.expect("it is installed").stdout).into_owned()
    };
    let boxes = printed("pdftotext", &["-bbox"]);
    let number = |line: &str, name: &str| -> Option<f64> {
        line.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse().ok()
    };
    let sheets: Vec<[f64; 2]> = boxes
        .lines()
        .filter(|line| line.contains("<page "))
        .filter_map(|line| Some([number(line, "width")?, number(line, "height")?]))
        .collect();
    let width = sheets.first().expect("a page")[0];
    let is_outside = |line: &&str| {
        let ends = [number(line, "xMin"), number(line, "xMax")].map(|end| end.expect("a box"));
        ends[0] < MARGIN || ends[1] > width - MARGIN
    };
    let words = boxes.lines().filter(|line| line.contains("<word ")).filter(is_outside);
    let word = |line: &str| Some(line.split_once('>')?.1.split_once('<')?.0.to_owned());
    Printed {
        text: printed("pdftotext", &["-layout"]),
        pages: sheets.len(),
        is_a4: sheets.iter().all(|[x, y]| (x - 595.3).abs() < 2.0 && (y - 841.9).abs() < 2.0),
        outside: words.filter_map(word).collect(),
    }
}

/// Whether tools to read printed pages are installed; prints a note if not.
fn has_poppler() -> bool {
    let found = Command::new("pdftotext").arg("-v").stderr(Stdio::null()).status().is_ok();
    if !found {
        say("SKIPPED: no pdftotext: install poppler-utils");
    }
    found
}

#[test]
fn one_queue_is_red_in_the_figures_of_queues() {
    for id in ["transmit", "receive", "guest-to-guest"] {
        let (_temporary, dir, records) = reported(&short(id, 1), 2);
        let by_queue =
            |figure: &&ringway_lab::study::Figure| figure.lines.as_deref() == Some("queues");
        let mut figures = records.study.figure.iter().filter(by_queue).peekable();
        assert!(figures.peek().is_some(), "{id}");
        for figure in figures {
            let svg = fs::read_to_string(dir.join(format!("figures/{}.svg", figure.id)));
            let svg = svg.expect(&figure.id);
            // In the legend, the mark directly precedes its name.
            let (before, _) = svg.split_once(">1 queue<").expect("a legend");
            let red = before.rfind("#cc2936").expect("red");
            assert!(
                !OTHER_COLOURS.iter().any(|c| before[red..].contains(c)),
                "{id}, {}",
                figure.id
            );
        }
    }
}

/// The colours for more than one queue.
const OTHER_COLOURS: [&str; 4] = ["#1f6fb2", "#3aa76d", "#5e2a84", "#e39a23"];

#[test]
fn a_browser_complains_about_a_page_that_is_broken() {
    let Some(browser) = Browser::find() else { return };
    let seen = |page: &str| browser.look(page, 390, Scheme::Light);
    let found = |page: &str, what: &str| seen(page).expect("it is shown")[what].clone();
    assert_eq!(found("<img src='file:///missing.png'>", "missing"), 1);
    assert_eq!(found("<figure></figure>", "hidden"), 1);
    let wide = found("<div style='width: 900px'>.</div>", "overflow");
    assert!(wide.as_u64().is_some_and(|pixels| pixels >= 510), "{wide}");
    let grey = "<p style='background: #888; color: #999'>a<p style='color: #767676'>b";
    assert_eq!(found(grey, "faint"), json!(["1.2 a"]));
    let drawn = "<svg><rect fill='#888'/><text fill='#999'>a</text></svg>";
    assert_eq!(found(drawn, "faint"), json!(["1.2 a"]));
    assert!(seen("<script>nothing.here()</script>").is_err());
}
