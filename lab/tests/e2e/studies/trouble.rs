//! Studies that cannot run, or cannot finish.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use ringway_e2e::{nightly_turn, shared_turn};
use serde_json::Value;

use super::{
    TINY, TINY_RUNS, assert_measured, assert_nothing_is_left, kept, lab, placed, text, tiny,
};

#[test]
fn what_cannot_be_run_is_said_before_anything_starts() {
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().join("out");
    let out = out.to_str().expect("a plain name");
    let cases: [(&[&str], &str); 9] = [
        (&["nothing"], "there is no study `nothing`"),
        (&["nothing.toml"], "cannot read the study nothing.toml: No such file"),
        (&["transmit", "--max-hours", "0"], "expected a number above 0, or a time"),
        (&["transmit", "--quick", "--max-hours", "1"], "cannot be used with"),
        (&["guest-to-guest", "--line-rate", "10G"], "has no wire"),
        (&["transmit", "--line-rate", "fast"], "not a rate"),
        (&["transmit", "--assert", "q3.s8 > 1"], "is no cell"),
        (&["transmit", "--precision", "0"], "--precision 0"),
        (&["transmit", "--max-repeats", "0"], "--max-repeats"),
    ];
    for (words, sentence) in cases {
        let refused = lab(&[&["run", "--out", out], words].concat());
        assert!(!refused.status.success(), "{words:?}");
        let said = text(&refused.stderr);
        assert!(said.contains(sentence), "{words:?}: {said}");
    }
    assert!(!Path::new(out).exists(), "nothing was begun");
}

#[test]
fn a_matrix_that_cannot_be_is_refused() {
    for (from, to, sentence) in [
        ("values = [1, 2]", "values = [1, 99]", "queues = 99: expected a number from 1 to 64"),
        ("values = [1, 2]", "values = []", "the axis `queues` has no values"),
        ("name = \"queues\"", "name = \"quues\"", "there is no parameter `quues`"),
        ("max-repeats = 2", "max-repeats = 1", "repeats = 2 is more than max-repeats = 1"),
        ("kind = \"guests\"", "kind = \"ring\"", "is not a study"),
        ("kind = \"lines\"", "kind = \"placement\"", "say of how many `queues` it shows"),
    ] {
        assert!(TINY.contains(from), "{from}");
        let (place, mut command) = placed(&TINY.replacen(from, to, 1));
        let refused = command.output().expect("it starts");
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(sentence), "{to}: {said}");
        assert!(!place.path().join("out").exists(), "{to}");
    }
}

#[test]
fn a_directory_without_records_is_refused_in_a_sentence() {
    let empty = tempfile::tempdir().expect("a directory");
    let refused = lab(&["report", empty.path().to_str().expect("a plain name")]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("holds no records of a study"), "{refused:?}");
}

#[test]
fn a_program_that_is_missing_is_named_with_its_package() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let (place, mut command) = tiny();
    let refused = command.env("PATH", "/nowhere").output().expect("it starts");
    assert_eq!(text(&refused.stderr), "ringway: iperf3 is not installed: apt-get install iperf3\n");
    assert!(!refused.status.success() && !place.path().join("out").exists());
}

/// Runs a shell command as root in its own user and mount namespaces, and then the tiny study with
/// these changes.
fn behind(shell: &str, changes: &[(&str, &str)]) -> (tempfile::TempDir, Output) {
    let study = changes.iter().fold(TINY.to_owned(), |study, (from, to)| {
        assert!(study.contains(from), "{from}");
        study.replacen(from, to, 1)
    });
    let (place, study) = placed(&study);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c"]);
    command.arg(format!("{shell} && exec \"$@\"")).arg("sh");
    command.arg(study.get_program()).args(study.get_args()).arg("--quick");
    command.env("PLACE", place.path()).env("TMPDIR", place.path());
    let output = command.output().expect("it starts");
    (place, output)
}

/// The subject and the cell of each run.
fn measured(place: &Path) -> BTreeSet<String> {
    let of_run = |run: &String| {
        let run: Value = serde_json::from_str(run).expect("JSON");
        format!("{} {}", run["cell"], run["subject"])
    };
    kept(place).iter().map(of_run).collect()
}

#[test]
fn open_vswitch_that_is_missing_is_left_out_and_that_is_said() {
    let Some(_turn) = shared_turn(&["iperf3", "mount"]) else { return };
    let hidden = "for dir in /sbin /usr/sbin /usr/local/sbin; do mount -t tmpfs none $dir; done";
    let changes = [
        (
            "name = \"queues\"\nshort = \"q\"\nvalues = [1, 2]",
            "name = \"switch\"\nvalues = [\"bridge\", \"ovs\"]",
        ),
        ("x = \"queues\"", "x = \"switch\""),
    ];
    let (place, output) = behind(hidden, &changes);
    let said = text(&output.stderr);
    let (_, is_whole) = assert_measured(&place.path().join("out"));
    assert_eq!(output.status.success(), is_whole, "{said}");
    let notice = "NOTICE: Open vSwitch is left out, because it is not installed: apt-get install \
         openvswitch-switch";
    assert!(said.contains(notice), "{said}");
    let measured = measured(place.path());
    assert_eq!(measured.len(), 2, "ringway on a bridge, and the baseline: {measured:?}");
    assert!(!measured.iter().any(|run| run.contains("ovs")), "{measured:?}");
}

#[test]
fn lro_that_no_device_here_has_is_left_out_and_that_is_said() {
    let Some(_turn) = shared_turn(&["iperf3", "ethtool"]) else { return };
    let study = TINY
        .replace("baselines = [\"baseline-veth-bridge\"]", "baselines = []")
        .replace(
            "name = \"queues\"\nshort = \"q\"\nvalues = [1, 2]",
            "name = \"offloads\"\nvalues = [\"all\", \"lro\"]",
        )
        .replace("x = \"queues\"", "x = \"offloads\"");
    let run = |study: &str| {
        let (place, mut command) = placed(study);
        let output = command.arg("--quick").output().expect("it starts");
        (output.status.success(), text(&output.stderr), place)
    };
    let why = "devices within one machine have no LRO: --peer measures real ones";
    let (is_good, said, place) = run(&study);
    assert!(said.contains(&format!("NOTICE: LRO is left out: {why}")), "{said}");
    assert_eq!(assert_measured(&place.path().join("out")).1, is_good, "{said}");
    assert_eq!(measured(place.path()).len(), 1, "{said}");
    let (is_good, said, place) = run(&study.replace("[\"all\", \"lro\"]", "[\"lro\"]"));
    assert!(!is_good && said.contains(why) && kept(place.path()).is_empty(), "{said}");
}

#[test]
fn a_directory_without_room_or_that_cannot_be_written_is_said_before_anything_starts() {
    let Some(_turn) = shared_turn(&["iperf3", "mount"]) else { return };
    // The mount hides the study as well, so it is written again.
    let mounted = |options: &str| {
        let copy = "study=$(cat \"$PLACE/tiny.toml\")";
        let back = "echo \"$study\" > \"$PLACE/tiny.toml\"";
        format!(
            "{copy} && mount -t tmpfs none \"$PLACE\" && {back} && mount -o {options} \"$PLACE\""
        )
    };
    for (options, sentence) in [
        ("remount,size=1m", "0 MiB free; free 64 MiB or choose another directory"),
        ("remount,ro", "Read-only file system"),
    ] {
        let (place, refused) = behind(&mounted(options), &[]);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(sentence), "{options}: {said}");
        assert!(said.lines().count() == 1 && kept(place.path()).is_empty(), "{said}");
        assert_eq!(said.matches(sentence).count(), 1, "{said}");
    }
}

#[test]
fn who_may_make_no_namespace_learns_which_limit_it_is() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let (place, study) = tiny();
    // In a user namespace without a map every user is the overflow user, which may not create
    // another one.
    let mut command = Command::new("unshare");
    command.arg("--user").arg(study.get_program()).args(study.get_args());
    let refused = command.output().expect("it starts");
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("max_user_namespaces"), "{said}");
    assert!(said.lines().count() == 1 && !place.path().join("out").exists(), "{said}");
}

/// A directory with a shell script that takes the place of a program of the same name.
fn wrapped(place: &Path, command: &mut Command, script: &str) {
    let dir = place.join("bin");
    let file = dir.join("iperf3");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |dir: &std::path::PathBuf| dir.join("iperf3").is_file();
    let real = std::env::split_paths(&path).find(is_there).expect("it is installed");
    std::fs::create_dir(&dir).expect("a directory");
    let real = real.join("iperf3").display().to_string();
    std::fs::write(&file, format!("#!/bin/sh\n{}\n", script.replace("REAL", &real))).expect("room");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&file, mode).expect("it is ours");
    let all = std::iter::once(dir).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(all).expect("plain names"));
}

#[test]
fn a_budget_is_kept_by_slow_runs_and_by_tools_that_hang_or_crash() {
    let Some(_turn) = nightly_turn("it runs a study", &["iperf3"]) else { return };
    let budget = ("metric =", "budget-seconds = 5\nmetric =");
    let clients = "case \"$*\" in *--client*) HANG;; esac; exec REAL \"$@\"";
    for (hang, least, reason) in [
        // waits: slow runs are what is tested.
        ("sleep 1.5", 1, ""),
        ("exec sleep 1000", 0, "the time for all runs had passed"),
        ("kill -SEGV $$", 0, "iperf3 ended without output (signal: 11 (SIGSEGV)"),
    ] {
        let (place, mut command) = placed(&TINY.replacen(budget.0, budget.1, 1));
        wrapped(place.path(), &mut command, &clients.replace("HANG", hang));
        let begun = std::time::Instant::now();
        let output = command.output().expect("it starts");
        let seconds = begun.elapsed().as_secs_f64();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{hang}: {said}");
        // waits: nightly only, with time to start, to stop and to draw on a busy machine.
        assert!(seconds < 5.0 + 10.0, "{hang}: {seconds} s: {said}");
        let runs = kept(place.path()).len();
        assert!((least..TINY_RUNS).contains(&runs), "{hang}: {runs} runs: {said}");
        assert!(said.contains(reason), "{said}");
        assert_nothing_is_left(place.path());
    }
}

#[test]
fn seconds_are_measured_once_a_client_that_starts_late_sends() {
    let Some(_turn) = nightly_turn("it runs a study", &["iperf3"]) else { return };
    let (place, mut command) = placed(&TINY.replacen("values = [1, 2]", "values = [1]", 1));
    // waits: a late start is what is tested.
    let script = "case \"$*\" in *--client*) sleep 2;; esac; exec REAL \"$@\"";
    wrapped(place.path(), &mut command, script);
    let output = command.arg("--quick").output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let runs = kept(place.path());
    let runs = runs.iter().map(|run| serde_json::from_str(run).expect("JSON"));
    let carried = runs.filter_map(|run: Value| run["queues"][0]["tx-bytes"].as_f64());
    let carried: Vec<f64> = carried.collect();
    assert!(!carried.is_empty() && carried.iter().all(|bytes| *bytes > 1e5), "{carried:?}");
}

#[test]
fn a_tool_that_does_not_print_its_version_delays_nothing() {
    let Some(_turn) = nightly_turn("it runs a study", &["iperf3"]) else { return };
    // Each question for the version takes some seconds, so this study has one run.
    let study = TINY.replacen("values = [1, 2]", "values = [1]", 1).replacen(
        "baselines = [\"baseline-veth-bridge\"]",
        "baselines = []",
        1,
    );
    let (place, mut command) = placed(&study);
    let script = "case \"$*\" in *--version*) exec sleep 1000;; esac; exec REAL \"$@\"";
    wrapped(place.path(), &mut command, script);
    let output = command.arg("--quick").output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let runs = kept(place.path());
    assert_eq!(measured(place.path()).len(), 1, "{runs:?}");
    assert!(runs[0].contains("\"version\":\"unknown\""), "{runs:?}");
}
