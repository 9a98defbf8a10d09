//! Whatever part of the file was cut off, reading returns the runs that are whole, and nothing
//! else.

use super::*;
use crate::record::{Cpu, Disturbance, Interface, Stream};
use crate::study::shipped;

fn study() -> Study {
    shipped("transmit").expect("it is shipped")
}

fn host() -> Host {
    Host { cpu_model: "A CPU".to_owned(), cpus: 2, ..Host::default() }
}

pub(crate) fn run(repeat: u32) -> Run {
    Run {
        study: "transmit".to_owned(),
        cell: Cell::default().with("queues", 4).with("streams", 8),
        repeat,
        seed: 7,
        flow_key: Some("6d5a56da255b0ec24167253d43a38fb0".to_owned()),
        started: "2024-01-02T03:04:05Z".to_owned(),
        seconds: 1.0,
        warmup_seconds: 0.5,
        subject: Subject::Ringway,
        tools: vec![],
        values: BTreeMap::from([("throughput-bps".to_owned(), 1e9)]),
        courses: BTreeMap::new(),
        streams: vec![Stream {
            index: 0,
            guest: 0,
            source_port: 1,
            queue: Some(3),
            bps: Some(1e9),
        }],
        queues: vec![],
        cpu: Cpu { netback: Some(0.5), ..Cpu::default() },
        disturbance: Disturbance { steal_share: Some(0.01), ..Disturbance::default() },
        ends: None,
        notes: vec![],
        differences: vec![],
    }
}

/// A directory with three runs, and its path to `runs.jsonl`.
fn three_runs() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::open(dir.path(), &study(), &host()).expect("it is empty");
    (0..3).for_each(|repeat| journal.append(run(repeat)).expect("it has room"));
    let path = dir.path().join(RUNS_FILE);
    (dir, path)
}

#[test]
fn what_was_written_is_read() {
    let (dir, _) = three_runs();
    let records = Records::read(dir.path()).expect("good records");
    assert_eq!(records.runs, [run(0), run(1), run(2)]);
    assert_eq!((records.study, records.host), (study(), host()));
    assert!(records.notices.is_empty());
}

#[test]
fn a_line_cut_anywhere_costs_that_run_only() {
    let (dir, path) = three_runs();
    let text = fs::read_to_string(&path).unwrap();
    let start = text.trim_end().rfind('\n').unwrap() + 1;
    for len in start..text.len() {
        fs::write(&path, &text[..len]).unwrap();
        let records = Records::read(dir.path()).expect("it is only cut");
        // Cut right after the closing brace, the last run is whole.
        let whole = 2 + usize::from(len == text.len() - 1);
        assert_eq!(records.runs.len(), whole, "{len}");
        assert_eq!(records.notices.is_empty(), len == start || whole == 3);
        let mut journal = Journal::open(dir.path(), &study(), &host()).expect("it goes on");
        journal.append(run(9)).expect("it has room");
        let records = Records::read(dir.path()).expect("good records");
        assert_eq!(records.runs.len(), whole + 1, "{len}");
        assert!(records.notices.is_empty());
    }
}

#[test]
fn failures_are_reported_and_are_no_runs() {
    let (dir, _) = three_runs();
    let mut journal = Journal::open(dir.path(), &study(), &host()).expect("the same");
    for reason in ["no route", "it crashed"] {
        let failure = Failure {
            subject: Subject::Ringway,
            cell: run(0).cell,
            repeat: 3,
            started: String::new(),
            reason: reason.to_owned(),
        };
        journal.append_failure(&failure).expect("it has room");
    }
    let records = Records::read(dir.path()).expect("good records");
    assert_eq!(records.runs.len(), 3);
    let [notice] = &records.notices[..] else { panic!("{:?}", records.notices) };
    assert!(notice.contains("2 runs of ringway q4.s8") && notice.ends_with("it crashed"));
}

#[test]
fn a_bad_line_is_named() {
    let (dir, path) = three_runs();
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, word) in [
        ("\"repeat\":1", "\"repeet\":1", "repeet"),
        ("\"repeat\":1", "\"repeat\":-1", "line 2"),
        ("\"repeat\":1", "\"repeat\":0", "line 2: the run is in an earlier line"),
        ("\"queues\":4,\"streams\":8},\"repeat\":1", "\"queues\":4},\"repeat\":1", "no cell"),
        ("{\"queues\":4,\"streams\":8},\"repeat\":1", "{},\"repeat\":1", "no cell"),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replace(from, to)).unwrap();
        let error = Records::read(dir.path()).expect_err(to).to_string();
        assert!(error.contains("line 2") && error.contains(word), "{error}");
    }
}

#[test]
fn a_directory_is_of_one_study_one_machine_and_one_writer() {
    let (dir, _) = three_runs();
    let other = shipped("receive").expect("it is shipped");
    let error = Journal::open(dir.path(), &other, &host()).expect_err("another study");
    assert!(matches!(error, RecordError::OtherStudy { .. }), "{error}");
    let error = Journal::open(dir.path(), &study(), &Host { cpus: 3, ..host() });
    assert!(matches!(error.expect_err("another host"), RecordError::OtherHost { .. }));
    let first = Journal::open(dir.path(), &study(), &host()).expect("the same");
    let error = Journal::open(dir.path(), &study(), &host()).expect_err("two at once");
    assert!(matches!(error, RecordError::Busy { .. }), "{error}");
    // A process that is being started has it, too.
    let _copy = first.file.0.try_clone().expect("a descriptor");
    drop(first);
    Journal::open(dir.path(), &study(), &host()).expect("it is no longer written");
}

#[test]
fn records_go_on_with_other_limits_and_the_report_knows_the_last() {
    let (dir, _) = three_runs();
    let mut more = study();
    more.load.max_repeats += 5;
    more.load.budget_seconds = Some(60.0);
    let journal = Journal::open(dir.path(), &more, &host()).expect("it is the same study");
    assert_eq!(journal.records.runs.len(), 3);
    assert_eq!(Records::read(dir.path()).expect("good records").study, more);
}

#[test]
fn what_changed_since_the_first_run_is_known() {
    let (dir, _) = three_runs();
    let newer = Host { git_commit: "2222222".to_owned(), ..host() };
    let journal = Journal::open(dir.path(), &study(), &newer).expect("the same machine");
    assert_eq!(journal.differences, ["ringway:   →  2222222"]);
    assert_eq!(journal.records.host, host(), "the description stays that of the first run");
}

#[test]
fn a_directory_without_records_says_what_is_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = Records::read(dir.path()).expect_err("it is empty").to_string();
    assert!(error.contains("study.toml"), "{error}");
}

#[test]
fn records_with_a_peer_go_on_with_the_same_peer_only() {
    let interface = |name: &str, last| Interface {
        name: name.to_owned(),
        address: [192, 0, 2, last].into(),
        mtu: 1500,
        tx_queues: Some(4),
        rx_queues: None,
        gro: Some(true),
        lro: None,
    };
    let peer = |address, kernel: &str| Peer {
        name: "red".to_owned(),
        interface: interface("eth1", address),
        near_interface: interface("eth0", 1),
        host: Host { kernel: kernel.to_owned(), ..host() },
    };
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Journal::open(dir.path(), &study(), &host()).expect("it is ours");
    let mut journal = open();
    assert_eq!(journal.records.peer, None);
    journal.set_peer(dir.path(), &peer(7, "6.1")).expect("the first");
    journal.append(run(0)).expect("it has room");
    drop(journal);
    let read = Records::read(dir.path()).expect("records").peer.expect("a peer");
    assert_eq!(read, peer(7, "6.1"));
    let mut changed = peer(7, "6.1");
    changed.host.git_commit = "another".to_owned();
    let mut journal = open();
    journal.set_peer(dir.path(), &changed).expect("the same machine");
    assert!(journal.differences[0].starts_with("peer: ringway: "), "{:?}", journal.differences);
    for other in [peer(8, "6.1"), peer(7, "6.2")] {
        let refused = journal.set_peer(dir.path(), &other).expect_err("another").to_string();
        assert!(refused.contains("another peer (red at 192.0.2.7"), "{refused}");
    }
}
