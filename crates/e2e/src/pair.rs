//! A host and a guest, two network namespaces, whose link can be impaired and restored.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringway_sys::poll::wait_readable;
use ringway_sys::tun::{QueueMode, TunFile};
use ringway_wire::vnet::VirtioNetHdr;
use serde_json::Value;
use tempfile::TempDir;

use crate::program;

/// What a pair with traffic needs.
pub const TOOLS: [&str; 6] = ["ip", "tc", "ethtool", "iperf3", "ping", "ss"];
/// The host's end, named like a guest's backend, so that the doctor treats it as one.
pub const VIF: &str = "vif1.0";
/// The guest's address.
pub const GUEST: &str = "10.98.0.2";
/// A limit for what takes seconds on an idle machine, such as the doctor's looks.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A host and a guest, each a namespace, with a link between them and a server in the guest.
pub struct Pair {
    /// The host's namespace.
    pub host: String,
    /// The guest's namespace.
    pub guest: String,
    server: Option<Traffic>,
    /// A directory of its own, with the journal of the doctor.
    pub journal: TempDir,
    /// A link with a long delay.
    relays: Vec<Relay>,
}

/// One direction of a wire with a delay of [`DELAY`]: in user space, because not every kernel has
/// netem.
struct Relay {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const DELAY: Duration = Duration::from_millis(10);
/// Frames in flight; further ones are lost.
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
    // waits: for the delay that the wire has.
    let _ = wait_readable(from, Some(next.min(DELAY)));
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
    /// A pair linked by veth. Without the privileges, prints that and returns `None`.
    pub fn new(name: &str) -> Option<Pair> {
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

    /// As [`linked`](Pair::linked), with a long delay.
    pub fn far(name: &str) -> Option<Pair> {
        let mut pair = Pair::apart(name)?;
        let end = |letter: char, netns: &str, name: &str| {
            // Each test has a thread of its own.
            let first = format!("rw{letter}{}", rustix::thread::gettid().as_raw_nonzero());
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

    /// Both namespaces, without a link.
    pub fn apart(name: &str) -> Option<Pair> {
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
    pub fn linked(name: &str) -> Option<Pair> {
        Pair::new(name).map(Pair::with_host)
    }

    fn with_host(mut self) -> Pair {
        ok(&mut self.on_host(&format!("ip addr add 10.98.0.1/24 dev {VIF}")));
        ok(&mut self.on_host(&format!("ip link set {VIF} up")));
        // The kernel notes up to a second later that a link has come up, and until then the doctor
        // leaves it out.
        let shown = || text(&ok(&mut self.on_host(&format!("ip -o link show {VIF}"))).stdout);
        until("the link is up", || !shown().contains("state DOWN"));
        self.server = Some(self.serve(5201));
        self
    }

    /// A server of iperf3 in the guest, which listens.
    fn serve(&self, port: u16) -> Traffic {
        let server = silent(inside(&self.guest, &format!("iperf3 -s -p {port}")));
        let filter = format!("ss -Htln sport = :{port}");
        let listens = || text(&ok(inside(&self.guest, &filter)).stdout);
        until("the server listens", || !listens().is_empty());
        server
    }

    /// A command in the namespace of the host.
    pub fn on_host(&self, line: &str) -> Command {
        inside(&self.host, line)
    }

    /// A command of the doctor in a namespace.
    pub fn doctor(&self, netns: &str, line: &str) -> Command {
        let line = format!("{} {line}", program("ringway-doctor").display());
        inside(netns, &line)
    }

    /// A verb that uses the journal.
    pub fn fix(&self, netns: &str, line: &str) -> Command {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let journal = self.journal.path().display();
        self.doctor(netns, &format!("{verb} --journal {journal} {rest}"))
    }

    /// The command of a shell script in a file of this name.
    pub fn script(&self, name: &str, script: &str) -> String {
        let path = self.journal.path().join(name);
        std::fs::write(&path, script).expect("written");
        format!("sh {}", path.display())
    }

    /// A command that measures for this many seconds. It retries while the server is still busy
    /// with the last run.
    pub fn iperf(&self, seconds: u32) -> String {
        self.iperf_by("iperf3", seconds)
    }

    /// A command that measures for this many seconds with a program in place of `iperf3`. It
    /// retries while the server is still busy with the last run.
    pub fn iperf_by(&self, iperf: &str, seconds: u32) -> String {
        let script = format!(
            "for try in $(seq 150); do\n\
             report=$({iperf} -J -c {GUEST} -t {seconds}) || report='\"error\"'\n\
             # waits: the server does not say when it has ended the last run.\n\
             case $report in *'\"error\"'*) sleep 0.2 ;; *) echo \"$report\"; exit ;; esac\n\
             done\nexit 1\n"
        );
        self.script(&format!("iperf-{seconds}"), &script)
    }

    /// A file for `tc -b` with this many rules, which make receiving a packet on `nic` expensive.
    pub fn rules(&self, nic: &str, count: u32) -> PathBuf {
        let rule = |rule: u32| {
            let address = format!("10.200.{}.{}", rule / 250, rule % 250);
            format!(
                "filter add dev {nic} parent ffff: protocol ip prio 1 u32 match ip src {address} \
                 flowid 1:1\n"
            )
        };
        let path = self.journal.path().join("rules");
        std::fs::write(&path, (0..count).map(rule).collect::<String>()).expect("written");
        path
    }

    /// What the guest receives from the host, in bit/s.
    pub fn throughput(&self) -> f64 {
        let output = ok(&mut self.on_host(&self.iperf(2)));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate")
    }

    /// Traffic until both its ends are dropped. Its server is its own: the other one may still be
    /// busy with the last run.
    pub fn traffic(&self) -> [Traffic; 2] {
        let server = self.serve(5202);
        [silent(self.on_host(&format!("iperf3 -c {GUEST} -p 5202 -t 600"))), server]
    }
}

fn silent(mut command: Command) -> Traffic {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Traffic(command.spawn().expect("it starts"))
}

impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.server.take());
        for netns in [&self.host, &self.guest] {
            let _ = Command::new("ip").args(["netns", "del", netns]).output();
        }
    }
}

/// A process that makes traffic until it is dropped.
pub struct Traffic(pub Child);

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command in a namespace, split at spaces.
pub fn inside(netns: &str, line: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns]).args(line.split_whitespace());
    command
}

/// The output of a command, which must succeed.
pub fn ok(mut command: impl std::borrow::BorrowMut<Command>) -> Output {
    let command = command.borrow_mut();
    let output = command.output().expect("it starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    output
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Polls until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        // waits: what is waited for is of other processes.
        std::thread::sleep(Duration::from_millis(20));
    }
}
