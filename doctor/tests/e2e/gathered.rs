//! What the doctor collects of a live host for the causes that it names: in namespaces that have
//! them.

use std::process::Stdio;

use ringway_doctor::finding::Severity;
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, render};
use ringway_e2e::pair::{Pair, TOOLS, Traffic, inside, ok, text, until};
use ringway_e2e::shared_turn;
use serde_json::Value;

use crate::knobs::skipped;

/// A packet socket that is not read.
const CAPTURE: &str = "\
import socket,time\n\
s=socket.socket(17,3,socket.htons(3))\n\
s.bind(('vif1.0',0))\n\
time.sleep(600) # waits: it reads nothing\n\
";
/// Datagrams for a port without a program.
const FLOOD: &str = "\
import socket\n\
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
while 1:\n\
\x20try: s.sendto(b'x'*900,('10.98.0.1',9))\n\
\x20except OSError: pass\n\
";
/// Sixteen connections through a NAT that has as many ports for twice as many.
const OPEN: &str = "\
import socket\n\
k=[]\n\
for i in range(16):\n\
\x20s=socket.socket()\n\
\x20s.setblocking(False)\n\
\x20try: s.connect(('10.98.0.2',5201))\n\
\x20except OSError: pass\n\
\x20k.append(s)\n\
__import__('time').sleep(600) # waits: they stay\n\
";

fn python(netns: &str, script: &str) -> Traffic {
    let mut python = inside(netns, "python3");
    let quiet = python.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null());
    Traffic(quiet.spawn().expect("it starts"))
}

/// What the doctor says in the host's namespace: of each finding its check, severity and summary.
fn found(pair: &Pair) -> Vec<(String, String, String)> {
    let checks = "--check D31 --check D40 --check D43 --check D47";
    let line = format!("{checks} --interval 2 --json");
    let output = pair.doctor(&pair.host, &line).output().expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("a list").iter();
    let of = |one: &Value| (word(&one["check"]), word(&one["severity"]), word(&one["summary"]));
    findings.map(of).collect()
}

#[test]
fn causes_are_seen_on_a_live_host() {
    let Some(_turn) = shared_turn(&[&TOOLS[..], &["nft", "python3"]].concat()) else { return };
    let Some(pair) = Pair::linked("gth") else { return };
    for line in [
        "ip route add blackhole 10.97.0.0/16",
        "nft add table inet t",
        "nft add chain inet t in { type filter hook input priority 0 ; }",
        "nft add rule inet t in udp dport 9 counter drop",
        "nft add rule inet t in udp dport 7 drop",
        "nft add chain inet t out { type nat hook postrouting priority 100 ; }",
        "nft add rule inet t out tcp dport 5201 masquerade to :61000-61015",
    ] {
        ok(&mut pair.on_host(line));
    }
    let _capture = python(&pair.host, CAPTURE);
    let _flood = python(&pair.guest, FLOOD);
    let has = |all: &[(String, String, String)], check: &str, severity: &str, part: &str| {
        all.iter().any(|one| one.0 == check && one.1 == severity && one.2.contains(part))
    };
    until("each of them is seen", || {
        // Their first packets come while the doctor looks.
        let _open = [python(&pair.host, OPEN), python(&pair.host, OPEN)];
        let all = found(&pair);
        has(&all, "D31", "problem", "uses all 16 ports from 61000 to 61015")
            && has(&all, "D40", "note", "10.97.0.0/16")
            && has(&all, "D43", "warning", "udp dport 9 drop")
            && has(&all, "D43", "unknown", "udp dport 7 drop")
            && has(&all, "D47", "warning", "python3 (process")
    });
}

#[test]
fn frames_that_the_forward_policy_drops_are_in_the_verdict() {
    let Some(_turn) = shared_turn(&[&TOOLS[..], &["nft", "python3"]].concat()) else { return };
    let Some(pair) = Pair::new("fwd") else { return };
    let switch = "net.bridge.bridge-nf-call-iptables";
    if !pair.on_host(&format!("sysctl -qw {switch}=1")).status().is_ok_and(|one| one.success()) {
        return skipped("no br_netfilter");
    }
    // Its guest is the second one on the bridge.
    let Some(other) = Pair::apart("oth") else { return };
    for line in [
        "ip link add br0 type bridge".to_owned(),
        format!("ip link add vif2.0 type veth peer name eth0 netns {}", other.guest),
        "ip link set vif1.0 master br0".to_owned(),
        "ip link set vif2.0 master br0".to_owned(),
        "ip link set vif1.0 up".to_owned(),
        "ip link set vif2.0 up".to_owned(),
        "ip link set br0 up".to_owned(),
        "nft add table ip filter".to_owned(),
        "nft add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }"
            .to_owned(),
    ] {
        ok(&mut pair.on_host(&line));
    }
    ok(inside(&other.guest, "ip addr add 10.98.0.1/24 dev eth0"));
    ok(inside(&other.guest, "ip link set eth0 up"));
    let _flood = python(&pair.guest, FLOOD);
    until("the verdict says it", || {
        let output = pair.doctor(&pair.host, "--check D42 --interval 2").output();
        let output = output.expect("it starts");
        let said = text(&output.stdout);
        output.status.success() && said.contains("die in the policy of ip filter FORWARD")
    });
}

#[test]
fn the_full_report_of_a_live_host_can_be_read() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("full") else { return };
    let output = pair.doctor(&pair.host, "--interval 1 --json").output().expect("it starts");
    let mut report: Report = serde_json::from_slice(&output.stdout).expect("a report");
    // The host is sound; what other programs do to the machine meanwhile is not part of it.
    report.findings.retain(|one| one.severity < Severity::Warning);
    assert!(report.scope.ran >= 15, "it is no whole host: {:?}", report.scope);
    let said = render(&report, Detail::Full);
    let lines = said.lines().count();
    assert!(lines <= 100, "{lines} lines:\n{said}");
}
