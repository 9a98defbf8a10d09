//! How the doctor reports its findings: a diff of two records, a skip list, a page for a ticket,
//! files for other tools. Recording drops leaves nothing behind.

use std::fs;
use std::process::{Command, Output, Stdio};

use ringway_e2e::pair::{Pair, TOOLS, inside, ok, text, until};
use ringway_e2e::shared_turn;
use rustix::process::{Pid, Signal, kill_process};

use crate::knobs::skipped;

const SACK: &str = "net.ipv4.tcp_sack";

fn doctor(line: &[&str]) -> Output {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_ringway-doctor"));
    doctor.args(line).output().expect("it starts")
}

#[test]
fn two_records_are_compared_skipped_and_shown_as_a_page() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("rep") else { return };
    let at = |name: &str| pair.journal.path().join(name).display().to_string();
    let (healthy, sick) = (at("healthy.tar"), at("sick.tar"));
    ok(&mut pair.doctor(&pair.host, &format!("record --interval 1 {healthy}")));
    ok(inside(&pair.host, &format!("sysctl -qw {SACK}=0")));
    ok(&mut pair.doctor(&pair.host, &format!("record --interval 1 {sick}")));

    let diff = doctor(&["diff", "--check", "D19", &healthy, &sick]);
    let said = text(&diff.stdout);
    assert_eq!(diff.status.code(), Some(4), "{said}");
    assert!(said.contains(&format!("D19 {SACK} is off")), "{said}");
    assert!(said.contains("/proc/sys/net/ipv4/tcp_sack: 1 -> 0"), "{said}");
    let back = doctor(&["diff", "--check", "D19", &sick, &healthy]);
    assert_eq!(back.status.code(), Some(0), "{}", text(&back.stdout));
    assert!(text(&back.stdout).contains("Gone in 2"), "{}", text(&back.stdout));

    let list = at("skip.toml");
    let entry = format!("[[skip]]\ncheck = \"D19\"\nsubject = \"{SACK}\"\nreason = \"a trial\"\n");
    fs::write(&list, &entry).expect("written");
    let page = at("page.html");
    let skipped = doctor(&["--root", &sick, "--check", "D19", "--skip", &list, "--html", &page]);
    let said = text(&skipped.stdout);
    assert!(said.contains("(a trial)") && said.contains("1 skipped."), "{said}");
    assert_eq!(skipped.status.code(), Some(0), "{said}");
    let page = fs::read_to_string(page).expect("written");
    assert!(page.contains("a trial") && !page.contains("<script"), "{page}");
    fs::write(&list, entry.replace("a trial", "")).expect("written");
    let refused = doctor(&["--root", &sick, "--skip", &list]);
    assert!(text(&refused.stderr).contains("expected a reason"), "{}", text(&refused.stderr));
}

/// Instances of the doctor that remain in the trace buffers, seen through the test's own mount.
fn instances() -> Option<Vec<String>> {
    let script = "mount -t tracefs tracefs /sys/kernel/tracing && ls /sys/kernel/tracing/instances";
    let output = Command::new("unshare").args(["-m", "sh", "-c", script]).output().ok()?;
    let names = text(&output.stdout);
    let ours = names.lines().filter(|name| name.starts_with("ringway-doctor-"));
    output.status.success().then(|| ours.map(str::to_owned).collect())
}

#[test]
fn a_killed_doctor_leaves_the_trace_buffers_unchanged() {
    let Some(_turn) = shared_turn(&["unshare"]) else { return };
    if instances().is_none() {
        return skipped("no tracefs that may be mounted here");
    }
    for signal in [Signal::INT, Signal::KILL] {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_ringway-doctor"));
        doctor.args(["--check", "D49", "--interval", "30"]);
        let mut doctor = doctor.stdout(Stdio::null()).spawn().expect("it starts");
        let name = format!("ringway-doctor-{}", doctor.id());
        let has = |name: &String| instances().is_some_and(|all| all.contains(name));
        until("it watches", || has(&name));
        let pid = i32::try_from(doctor.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("it runs");
        doctor.wait().expect("it ends");
        until("its instance is gone", || !has(&name));
    }
}

#[test]
fn drops_are_reported_with_their_reason() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    if instances().is_none() {
        return skipped("no tracefs that may be mounted here");
    }
    let Some(pair) = Pair::linked("drp") else { return };
    // A neighbour that does not reply, and packets for it.
    // waits: the rate of the packets does not matter.
    let flood = "while sleep 0.05; do \
                 for i in 1 2 3 4 5 6 7 8; do echo x > /dev/udp/10.98.0.9/9; done; done";
    let mut flooding = Command::new("ip");
    flooding.args(["netns", "exec", &pair.host, "bash", "-c", flood]);
    let _flood = ringway_e2e::pair::Traffic(
        flooding.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"),
    );
    until("drops are found with their reason", || {
        let said = text(&doctor(&["--check", "D49", "--interval", "3", "--json"]).stdout);
        said.contains("NEIGH_") || said.contains("neigh_invalidate")
    });
    // In a network namespace it is a note, because the drops may be in another namespace.
    until("they are a note there", || {
        let there = pair.doctor(&pair.host, "--check D49 --interval 3 --json").output();
        let there = text(&there.expect("it starts").stdout);
        assert!(!there.contains("\"worst\": \"problem\""), "{there}");
        there.contains("\"worst\": \"note\"")
    });
}
