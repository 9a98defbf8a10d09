//! `doctor --all-netns` finds a sick namespace with a name and one that only a process holds, once
//! each, and the shown commands fix them.

use std::process::{Command, Stdio};

use ringway_e2e::pair::{Pair, TOOLS, Traffic, ok, until};
use ringway_e2e::turn;
use serde_json::Value;

const SACK: &str = "net.ipv4.tcp_sack";

#[test]
fn findings_of_all_namespaces_name_their_namespace() {
    // Alone: the doctor looks into all network namespaces of the machine.
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("all") else { return };
    let mut container = Command::new("unshare");
    container.args(["-n", "sh", "-c", "sysctl -qw net.ipv4.tcp_sack=0 && exec sleep 3600"]);
    let container = Traffic(container.stdin(Stdio::null()).spawn().expect("it starts"));
    ok(ringway_e2e::pair::inside(&pair.guest, &format!("sysctl -qw {SACK}=0")));
    let process = format!("(process {})", container.0.id());
    let is_ours = |netns: &str| netns == pair.guest || netns.ends_with(&process);
    // Where a process called `sleep` exists already.
    until("it has made its namespace", || {
        found().iter().filter(|one| is_ours(&one.0)).count() == 2
    });
    for (netns, command) in found().into_iter().filter(|one| is_ours(&one.0)) {
        let way_in = if netns == pair.guest { "ip netns exec " } else { "nsenter --net=" };
        assert!(command.starts_with(way_in), "{netns}: {command}");
        ok(Command::new("sh").args(["-c", &command]));
    }
    assert!(!found().iter().any(|one| is_ours(&one.0)));
}

/// Where selective acknowledgements are off, and the command for it.
fn found() -> Vec<(String, String)> {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_ringway-doctor"));
    doctor.args(["--all-netns", "--check", "d19", "--interval", "1", "--json"]);
    let output = doctor.output().expect("it starts");
    let everywhere: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let places = everywhere["namespaces"].as_array().expect("a list");
    let mut found = Vec::new();
    for place in places {
        let findings = place["report"]["findings"].as_array().expect("a list");
        for finding in findings.iter().filter(|one| one["subject"] == SACK) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            assert_eq!(finding["netns"], place["netns"], "{finding:#}");
            found.push((text(&place["netns"]), text(&finding["advice"][0]["commands"][0])));
        }
    }
    found
}
