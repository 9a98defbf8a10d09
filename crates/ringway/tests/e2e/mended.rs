//! Sick set-ups of two network namespaces: the doctor says what is wrong, mends it, and it is
//! faster by a factor. And what it mends is taken back unless somebody wants it.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringway_sys::tun::{QueueMode, TunFile};
use ringway_wire::vnet::VirtioNetHdr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tempfile::TempDir;

use crate::turn;

const TOOLS: [&str; 6] = ["ip", "tc", "ethtool", "iperf3", "ping", "ss"];
/// The host's end, which is called as a guest's backend is: the doctor takes it for one.
const VIF: &str = "vif1.0";
const GUEST: &str = "10.98.0.2";
/// How long a change may take to be taken back after its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host and a guest, each a namespace, with a link between them and a server in the guest.
struct Pair {
    host: String,
    guest: String,
    server: Option<Child>,
    journal: TempDir,
    /// A long way between them.
    relays: Vec<Relay>,
}

/// One way of a wire that takes [`DELAY`]: in user space, because not every kernel has netem.
struct Relay {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const DELAY: Duration = Duration::from_millis(10);
/// Frames under way; more are lost.
const FRAMES_MAX: usize = 20_000;

impl Relay {
    fn start(from: Arc<TunFile>, to: Arc<TunFile>) -> Relay {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
            while !ends.load(Ordering::Relaxed) {
                carry(&from, &to, &mut under_way);
            }
        });
        Relay { is_over, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for a frame, or until the next one has arrived.
fn carry(from: &TunFile, to: &TunFile, under_way: &mut VecDeque<(Instant, Vec<u8>)>) {
    let now = Instant::now();
    let next = under_way.front().map_or(DELAY, |(at, _)| at.saturating_duration_since(now));
    let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(next.min(DELAY).subsec_nanos()) };
    let _ = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&wait));
    let (mut header, mut frame) = (VirtioNetHdr::default(), vec![0; 16 << 10]);
    let now = Instant::now();
    while let Ok(Some(len)) = from.read_frame(&mut header, &mut frame) {
        if under_way.len() < FRAMES_MAX {
            under_way.push_back((now + DELAY, frame[..len].to_vec()));
        }
    }
    while let Some((_, frame)) = arrived(under_way) {
        let _ = to.write_frame(&VirtioNetHdr::default(), &frame);
    }
}

fn arrived(under_way: &mut VecDeque<(Instant, Vec<u8>)>) -> Option<(Instant, Vec<u8>)> {
    let is_due = under_way.front().is_some_and(|(at, _)| *at <= Instant::now());
    if is_due { under_way.pop_front() } else { None }
}

impl Pair {
    /// With a veth. None, and a line that says so, without the rights.
    fn new(name: &str) -> Option<Pair> {
        let pair = Pair::apart(name)?;
        let Pair { host, guest, .. } = &pair;
        ok(inside(host, &format!("ip link add {VIF} type veth peer name eth0 netns {guest}")));
        pair.address_guest();
        Some(pair)
    }

    fn address_guest(&self) {
        ok(inside(&self.guest, &format!("ip addr add {GUEST}/24 dev eth0")));
        ok(inside(&self.guest, "ip link set eth0 up"));
    }

    /// As [`linked`](Pair::linked), over a long way.
    fn far(name: &str) -> Option<Pair> {
        let mut pair = Pair::apart(name)?;
        let end = |letter: char, netns: &str, name: &str| {
            let first = format!("rw{letter}{}", std::process::id());
            let file = TunFile::open(&first, QueueMode::Single).expect("a TAP device");
            ok(Command::new("ip").args(["link", "set", &first, "netns", netns, "name", name]));
            Arc::new(file)
        };
        let (host, guest) = (end('h', &pair.host, VIF), end('g', &pair.guest, "eth0"));
        pair.relays.push(Relay::start(Arc::clone(&host), Arc::clone(&guest)));
        pair.relays.push(Relay::start(guest, host));
        pair.address_guest();
        Some(pair.with_host())
    }

    /// Both namespaces, with nothing between them.
    fn apart(name: &str) -> Option<Pair> {
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: named network namespaces need root");
            return None;
        }
        let id = std::process::id();
        let pair = Pair {
            host: format!("rw-{name}-h{id}"),
            guest: format!("rw-{name}-g{id}"),
            server: None,
            journal: tempfile::tempdir().expect("a directory"),
            relays: Vec::new(),
        };
        for netns in [&pair.host, &pair.guest] {
            ok(Command::new("ip").args(["netns", "add", netns]));
            ok(inside(netns, "ip link set lo up"));
        }
        Some(pair)
    }

    /// With a veth, the host's address on the link itself, and a server.
    fn linked(name: &str) -> Option<Pair> {
        Pair::new(name).map(Pair::with_host)
    }

    fn with_host(mut self) -> Pair {
        ok(&mut self.on_host(&format!("ip addr add 10.98.0.1/24 dev {VIF}")));
        ok(&mut self.on_host(&format!("ip link set {VIF} up")));
        self.serve();
        self
    }

    fn serve(&mut self) {
        let mut server = inside(&self.guest, "iperf3 -s");
        let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(server.spawn().expect("it starts"));
        let listens = || text(&ok(inside(&self.guest, "ss -Htln sport = :5201")).stdout);
        until("the server listens", || !listens().is_empty());
    }

    fn on_host(&self, line: &str) -> Command {
        inside(&self.host, line)
    }

    fn doctor(&self, netns: &str, line: &str) -> Command {
        let line = format!("{} doctor {line}", env!("CARGO_BIN_EXE_ringway"));
        inside(netns, &line)
    }

    /// A verb that uses the journal.
    fn mend(&self, netns: &str, line: &str) -> Command {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let journal = self.journal.path().display();
        self.doctor(netns, &format!("{verb} --journal {journal} {rest}"))
    }

    /// A command that measures for so many seconds. It asks again if the server is busy with the
    /// end of the last run.
    fn iperf(&self, seconds: u32) -> String {
        let path = self.journal.path().join(format!("iperf-{seconds}"));
        let script = format!(
            "for try in 1 2 3 4 5 6 7 8 9; do\n\
             report=$(iperf3 -J -c {GUEST} -t {seconds}) || report='\"error\"'\n\
             case $report in *'\"error\"'*) sleep 0.2 ;; *) echo \"$report\"; exit ;; esac\n\
             done\nexit 1\n"
        );
        std::fs::write(&path, script).expect("written");
        format!("sh {}", path.display())
    }

    /// What the guest receives of the host in bit/s.
    fn throughput(&self) -> f64 {
        let output = ok(&mut self.on_host(&self.iperf(2)));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate")
    }

    /// Traffic until it is dropped.
    fn traffic(&self) -> Traffic {
        let mut command = self.on_host(&format!("iperf3 -c {GUEST} -t 60"));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Traffic(child.expect("it starts"))
    }

    /// That the check finds something, and its change; then that the change makes it so many
    /// times as fast.
    fn diagnose_mend_and_race(&self, netns: &str, check: &str, load: Load, factor: f64) {
        let before = self.throughput();
        {
            let _traffic = (load == Load::Busy).then(|| self.traffic());
            let line = format!("--check {check} --interval 2 --json");
            let output = self.doctor(netns, &line).output().expect("it starts");
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let worst = report["worst"].as_str().expect("a severity");
            assert!(["warning", "problem"].contains(&worst), "{check}: {report:#}");
            let applied = ok(&mut self.mend(netns, &format!("apply {check} --interval 2")));
            assert!(text(&applied.stdout).contains("read back"), "{}", text(&applied.stdout));
            ok(&mut self.mend(netns, "confirm"));
        }
        let after = self.throughput();
        let _ = writeln!(
            std::io::stderr(),
            "{check}: {:.0} -> {:.0} Mbit/s, {:.1} times",
            before / 1e6,
            after / 1e6,
            after / before
        );
        assert!(after > factor * before, "{check}: {before} -> {after} bit/s");
        ok(&mut self.mend(netns, "undo"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Idle,
    Busy,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        for netns in [&self.host, &self.guest] {
            let _ = Command::new("ip").args(["netns", "del", netns]).output();
        }
    }
}

pub(crate) struct Traffic(pub(crate) Child);

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn inside(netns: &str, line: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns]).args(line.split_whitespace());
    command
}

pub(crate) fn ok(mut command: impl std::borrow::BorrowMut<Command>) -> Output {
    let command = command.borrow_mut();
    let output = command.output().expect("it starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    output
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn offloads_that_are_off_are_turned_on() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("offload") else { return };
    ok(&mut pair.on_host(&format!("ethtool -K {VIF} tso off gso off sg off tx off gro off")));
    pair.diagnose_mend_and_race(&pair.host, "D13", Load::Idle, 1.5);
    let features = text(&ok(&mut pair.on_host(&format!("ethtool -k {VIF}"))).stdout);
    assert!(features.contains("tcp-segmentation-offload: off"), "{features}");
}

#[test]
fn windows_are_scaled_again_on_a_long_link() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::far("window") else { return };
    ok(inside(&pair.guest, "sysctl -qw net.ipv4.tcp_window_scaling=0"));
    pair.diagnose_mend_and_race(&pair.guest, "D19", Load::Idle, 2.0);
}

#[test]
fn send_buffers_grow_to_what_the_path_takes() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::far("buffer") else { return };
    // What the doctor takes the path for.
    ok(&mut pair.on_host(&format!("ethtool -s {VIF} speed 10000 duplex full autoneg off")));
    ok(pair.on_host("sysctl -qw").arg("net.ipv4.tcp_wmem=4096 16384 65536"));
    pair.diagnose_mend_and_race(&pair.host, "D11", Load::Busy, 1.5);
}

#[test]
fn a_limit_that_is_reached_is_taken_away() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("limit") else { return };
    let tbf = "root tbf rate 50mbit burst 64kb latency 50ms";
    ok(&mut pair.on_host(&format!("tc qdisc add dev {VIF} {tbf}")));
    pair.diagnose_mend_and_race(&pair.host, "D30", Load::Busy, 3.0);
    let shown = text(&ok(&mut pair.on_host(&format!("tc qdisc show dev {VIF} root"))).stdout);
    assert!(shown.contains("tbf") && shown.contains("rate 50Mbit"), "{shown}");
}

/// Long packets that come back, of five.
fn long_replies(pair: &Pair) -> usize {
    let mut ping = pair.on_host(&format!("ping -c 5 -i 0.2 -W 1 -M do -s 8000 {GUEST}"));
    let output = ping.output().expect("it starts");
    text(&output.stdout).lines().filter(|line| line.contains("bytes from")).count()
}

#[test]
fn the_hops_of_a_path_take_packets_of_one_length() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("mtu") else { return };
    for line in [
        "ip link add br0 type bridge",
        "ip link add own type veth peer name own-port",
        "ip link set own mtu 9000 up",
        "ip link set own-port mtu 9000 master br0 up",
        &format!("ip link set {VIF} master br0 up"),
        "ip link set br0 up",
        "ip addr add 10.98.0.1/24 dev own",
    ] {
        ok(&mut pair.on_host(line));
    }
    ok(inside(&pair.guest, "ip link set eth0 mtu 9000"));
    assert_eq!(long_replies(&pair), 0);
    let found = pair.doctor(&pair.host, "--check D08 --interval 1").output().expect("it starts");
    assert!(text(&found.stdout).contains("joins own-port of MTU 9000"), "{}", text(&found.stdout));
    let refused = pair.mend(&pair.host, "apply D08 --interval 1").output().expect("it starts");
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(text(&refused.stdout).contains("--allow-disruptive"), "{}", text(&refused.stdout));
    assert_eq!(long_replies(&pair), 0);
    ok(&mut pair.mend(&pair.host, "apply D08 --interval 1 --allow-disruptive"));
    assert_eq!(long_replies(&pair), 5);
    ok(&mut pair.mend(&pair.host, "undo"));
    assert_eq!(long_replies(&pair), 0);
}

fn sack(pair: &Pair) -> String {
    text(&ok(&mut pair.on_host("cat /proc/sys/net/ipv4/tcp_sack")).stdout).trim().to_owned()
}

#[test]
fn what_nobody_confirms_is_taken_back_though_the_terminal_is_gone() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("revert") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    ok(&mut pair.mend(&pair.host, "apply D19 --interval 1 --dry-run"));
    assert_eq!(sack(&pair), "0");
    let mut apply = pair.mend(&pair.host, "apply D19 --interval 1 --confirm-within 4");
    let mut apply = apply.process_group(0).stdout(Stdio::null()).spawn().expect("it starts");
    let group = rustix::process::Pid::from_child(&apply);
    assert!(apply.wait().expect("it ends").success());
    assert_eq!(sack(&pair), "1");
    // As the kernel does when the terminal closes. It may be that nobody is left in the group.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::HUP);
    until("it is taken back", || sack(&pair) == "0");
    let shown = || text(&ok(&mut pair.mend(&pair.host, "journal")).stdout);
    until("the journal knows", || shown().contains("taken back"));
    // Not again, and not what somebody else set.
    ok(&mut pair.mend(&pair.host, "apply D19 --interval 1"));
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=2"));
    let left = pair.mend(&pair.host, "undo").output().expect("it starts");
    assert_eq!(left.status.code(), Some(3));
    assert!(text(&left.stdout).contains("left at 2"), "{}", text(&left.stdout));
    assert_eq!(sack(&pair), "2");
}

#[test]
fn a_trial_keeps_what_helps_and_nothing_else() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("trial") else { return };
    let off = format!("ethtool -K {VIF} tso off gso off sg off tx off gro off");
    ok(&mut pair.on_host(&off));
    let iperf = pair.iperf(1);
    // To whom more is worse.
    let number = "\"bits_per_second\":\\s*([0-9.e+]+)";
    let line = format!("try D13 --runs 4 --interval 1 --number {number} --lower -- {iperf}");
    let worse = pair.mend(&pair.host, &line).output().expect("it starts");
    assert_eq!(worse.status.code(), Some(3), "{}{}", text(&worse.stdout), text(&worse.stderr));
    assert!(text(&worse.stdout).contains("worse"), "{}", text(&worse.stdout));
    let is_on = || {
        let features = text(&ok(&mut pair.on_host(&format!("ethtool -k {VIF}"))).stdout);
        features.contains("tcp-segmentation-offload: on")
    };
    assert!(!is_on());
    let line = format!("try D13 --runs 4 --interval 1 --iperf3 -- {iperf}");
    let kept = ok(&mut pair.mend(&pair.host, &line));
    assert!(text(&kept.stdout).contains("Kept"), "{}", text(&kept.stdout));
    assert!(is_on());
}

#[test]
fn a_trial_that_is_killed_leaves_nothing() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("killed") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    let mut trial = pair.mend(&pair.host, "try D19 --interval 1 --runs 50 -- sleep 0.05");
    let trial = trial.stdout(Stdio::null()).spawn().expect("it starts");
    let trial = Traffic(trial);
    until("it is applied", || sack(&pair) == "1");
    drop(trial);
    until("it is taken back", || sack(&pair) == "0");
}

#[test]
fn a_fleet_is_watched() {
    let Some(_turn) = turn(&["ip"]) else { return };
    let Some(pair) = Pair::new("watch") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    let mut watch = pair.doctor(&pair.host, "watch --listen 127.0.0.1:9819 --interval 1");
    let watch = watch.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
    let watch = Traffic(watch);
    let page = || {
        let script = "exec 3<>/dev/tcp/127.0.0.1/9819 || exit 1; \
                      printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
        let mut bash = Command::new("ip");
        let bash = bash.args(["netns", "exec", &pair.host, "bash", "-c", script]);
        text(&bash.output().expect("it starts").stdout)
    };
    let line = "ringway_doctor_findings{check=\"D19\",severity=\"problem\"} 1";
    until("the finding is a metric", || page().contains(line));
    assert!(page().contains("ringway_doctor_look_seconds "));
    drop(watch);
}

/// Every metric that the shipped rules and the dashboard use is one that is served.
#[test]
fn shipped_rules_and_dashboard_use_metrics_that_there_are() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/doctor");
    let rules = std::fs::read_to_string(packaging.join("alerts.yml")).expect("shipped");
    let dashboard = std::fs::read_to_string(packaging.join("dashboard.json")).expect("shipped");
    let parsed: Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(parsed["panels"].as_array().expect("panels").len() >= 5);
    let known = ringway_doctor::watch::names();
    for text in [&rules, &dashboard] {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words = text.split(|letter| !is_part(letter));
        let used: Vec<&str> = words.filter(|word| word.starts_with("ringway_doctor_")).collect();
        assert!(used.len() >= 5);
        for name in used {
            assert!(known.contains(&name), "{name} is not served");
        }
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "rules"]).arg(packaging.join("alerts.yml"));
    match promtool.output() {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED: promtool: {error}");
        }
    }
}
