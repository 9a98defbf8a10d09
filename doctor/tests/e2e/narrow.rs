//! A path of three links: the doctor finds the longest packet that passes and what stops longer
//! ones, and limits the length of what this host sends.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use ringway_e2e::pair::{Traffic, inside, ok, text, until};
use ringway_e2e::shared_turn;
use serde_json::Value;
use tempfile::TempDir;

const FAR: &str = "10.97.3.2";
const FAR_V6: &str = "fd97:3::2";
/// The MTU of the links at both ends; the link between the routers has its own.
const LONG: u32 = 9000;
/// Bytes over TCP.
const SENT: u64 = 1 << 20;

/// Two hosts and two routers between them, each a namespace.
struct RoutedPath {
    near: String,
    first: String,
    second: String,
    far: String,
    journal: TempDir,
}

impl RoutedPath {
    /// Without the privileges, prints that and returns `None`.
    fn new(name: &str, middle: u32) -> Option<RoutedPath> {
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: named network namespaces need root");
            return None;
        }
        let netns = |part: char| format!("rw-{name}-{part}{}", std::process::id());
        let path = RoutedPath {
            near: netns('a'),
            first: netns('r'),
            second: netns('s'),
            far: netns('b'),
            journal: tempfile::tempdir().expect("a directory"),
        };
        for netns in path.all() {
            ok(Command::new("ip").args(["netns", "add", netns]));
            ok(inside(netns, "ip link set lo up"));
            // No address waits for duplicate detection.
            ok(inside(netns, "sysctl -qw net.ipv6.conf.default.accept_dad=0"));
        }
        path.link([(&path.near, "eth0"), (&path.first, "near")], 1, LONG);
        path.link([(&path.first, "far"), (&path.second, "near")], 2, middle);
        path.link([(&path.second, "far"), (&path.far, "eth0")], 3, LONG);
        for router in [&path.first, &path.second] {
            ok(inside(router, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"));
        }
        for (netns, net, host) in
            [(&path.near, 1, 2), (&path.first, 2, 2), (&path.second, 2, 1), (&path.far, 3, 1)]
        {
            ok(inside(netns, &format!("ip route add default via 10.97.{net}.{host}")));
            ok(inside(netns, &format!("ip route add default via fd97:{net}::{host}")));
        }
        Some(path)
    }

    fn all(&self) -> [&String; 4] {
        [&self.near, &self.first, &self.second, &self.far]
    }

    /// A link of a number, with the addresses 1 and 2 of its networks.
    fn link(&self, ends: [(&String, &str); 2], net: u32, mtu: u32) {
        let [(one, its), (other, others)] = ends;
        let peer = format!("peer name {others} mtu {mtu} netns {other}");
        ok(inside(one, &format!("ip link add {its} mtu {mtu} type veth {peer}")));
        for (host, (netns, nic)) in (1..).zip(ends) {
            ok(inside(netns, &format!("ip addr add 10.97.{net}.{host}/24 dev {nic}")));
            ok(inside(netns, &format!("ip addr add fd97:{net}::{host}/64 dev {nic} nodad")));
            ok(inside(netns, &format!("ip link set {nic} up")));
        }
    }

    /// Makes the first router send no ICMP errors to the near host, while it still forwards.
    fn silence(&self) {
        ok(inside(&self.first, "ip rule add iif lo to 10.97.1.1 blackhole"));
        ok(inside(&self.first, "ip -6 rule add iif lo to fd97:1::1 blackhole"));
    }

    fn doctor(&self, line: &str) -> Command {
        inside(&self.near, &format!("{} {line}", env!("CARGO_BIN_EXE_ringway-doctor")))
    }

    /// The findings of D08.
    fn findings(&self, line: &str) -> Vec<Value> {
        let output = self.doctor(&format!("--check D08 --interval 1 --json {line}")).output();
        let output = output.expect("it starts");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["findings"].as_array().expect("findings").clone()
    }

    fn change(&self, line: &str) -> Command {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let journal = self.journal.path().display();
        self.doctor(&format!("{verb} --journal {journal} {rest}"))
    }

    /// Sends some data over TCP into a file, for as long as both ends run.
    fn send(&self, arrived: &Path) -> [Traffic; 2] {
        let run =
            |netns: &str, line: String| Traffic(inside(netns, &line).spawn().expect("it starts"));
        let listen = "socat -u TCP-LISTEN:9,reuseaddr";
        let server = run(&self.far, format!("{listen} OPEN:{},creat", arrived.display()));
        let listens = || text(&ok(inside(&self.far, "ss -Htln sport = :9")).stdout);
        until("the server listens", || !listens().is_empty());
        let file = self.journal.path().join("sent");
        fs::write(&file, vec![0; usize::try_from(SENT).expect("short")]).expect("written");
        [server, run(&self.near, format!("socat -u OPEN:{} TCP:{FAR}:9", file.display()))]
    }

    /// Packets that the first router has refused because of their length.
    fn refused(&self) -> u64 {
        let table = text(&ok(inside(&self.first, "cat /proc/net/snmp")).stdout);
        let mut lines = table.lines().filter(|line| line.starts_with("Ip: "));
        let [names, values] = [lines.next(), lines.next()].map(|line| line.expect("two lines"));
        let mut columns = names.split(' ').zip(values.split(' '));
        let (_, count) = columns.find(|(name, _)| *name == "FragFails").expect("it counts them");
        count.parse().expect("a number")
    }
}

impl Drop for RoutedPath {
    fn drop(&mut self) {
        for netns in self.all() {
            let _ = Command::new("ip").args(["netns", "del", netns]).output();
        }
    }
}

fn text_of<'a>(finding: &'a Value, field: &str) -> &'a str {
    finding[field].as_str().unwrap_or_default()
}

#[test]
fn a_path_with_the_mtu_of_the_interface_is_healthy() {
    let Some(_turn) = shared_turn(&["ip", "sysctl"]) else { return };
    let Some(path) = RoutedPath::new("wide", LONG) else { return };
    // By echo requests, which any user may then send.
    ok(inside(&path.near, "sysctl -qw").arg("net.ipv4.ping_group_range=0 2147483647"));
    let findings = path.findings(&format!("--path {FAR} --path {FAR_V6}"));
    assert_eq!(findings.len(), 2, "{findings:#?}");
    for finding in &findings {
        assert_eq!(text_of(finding, "severity"), "ok", "{finding:#}");
        assert!(
            text_of(finding, "summary").contains("receives packets of 9000 bytes"),
            "{finding:#}"
        );
    }
}

#[test]
fn the_hop_that_refuses_long_packets_is_named() {
    let Some(_turn) = shared_turn(&["ip", "sysctl"]) else { return };
    let Some(path) = RoutedPath::new("narrow", 1400) else { return };
    let findings = path.findings(&format!("--path {FAR} --path {FAR_V6}"));
    assert_eq!(findings.len(), 2, "{findings:#?}");
    for (by, finding) in ["10.97.1.2", "fd97:1::2"].into_iter().zip(&findings) {
        assert_eq!(text_of(finding, "severity"), "warning", "{finding:#}");
        let summary = format!("{by} on the path to");
        assert!(text_of(finding, "summary").starts_with(&summary), "{finding:#}");
        assert!(
            text_of(finding, "summary").ends_with("passes 1400 bytes, not 9000"),
            "{finding:#}"
        );
    }
}

#[test]
fn long_packets_that_vanish_are_measured() {
    let Some(_turn) = shared_turn(&["ip", "sysctl"]) else { return };
    let Some(path) = RoutedPath::new("hole", 1400) else { return };
    path.silence();
    let record = path.journal.path().join("host.tar");
    ok(&mut path.doctor(&format!("record --interval 1 --path {FAR} {}", record.display())));
    let findings = path.findings(&format!("--root {}", record.display()));
    let [finding] = findings.as_slice() else { panic!("{findings:#?}") };
    assert_eq!(text_of(finding, "severity"), "problem", "{finding:#}");
    assert!(text_of(finding, "summary").contains("of more than 1400 bytes vanish"), "{finding:#}");
    assert!(text_of(finding, "summary").contains("before 10.97.2.2"), "{finding:#}");
}

#[test]
fn long_packets_that_would_vanish_are_kept_short() {
    let Some(_turn) = shared_turn(&["ip", "sysctl", "socat"]) else { return };
    let Some(path) = RoutedPath::new("short", 1400) else { return };
    path.silence();
    let arrived = path.journal.path().join("arrived");
    let size = || fs::metadata(&arrived).map_or(0, |file| file.len());
    let before = path.refused();
    let early = path.send(&arrived);
    until("a long packet vanishes", || path.refused() > before);
    assert_eq!(size(), 0);
    drop(early);
    let line = format!("apply D08 --interval 1 --path {FAR} --allow-disruptive");
    let applied = ok(&mut path.change(&line));
    assert!(text(&applied.stdout).contains("MTU of eth0"), "{}", text(&applied.stdout));
    let _late = path.send(&arrived);
    until("packets of 1400 bytes pass", || size() >= SENT);
    ok(&mut path.change("undo"));
}
