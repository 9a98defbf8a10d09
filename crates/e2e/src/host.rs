//! A host that runs for one test, and queries to it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use ringway_control::{
    BackendRequest, BackendStatus, GuestRequest, GuestStatus, ReplyLimits, RunDir, VifStatus,
    open_with_limits,
};
use ringway_xenstore::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::program;

/// Patience for anything that takes a fraction of a second on an idle machine.
pub const SOON: Duration = Duration::from_secs(30);
/// Pause between two checks of an awaited condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until there is a result or the time has elapsed.
pub fn wait_for<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    wait_or(limit, look, || format!("waited {limit:?} for {what}"))
}

/// As [`wait_for`], with words of the caller's own if the time has elapsed.
pub(crate) fn wait_or<T>(
    limit: Duration,
    mut look: impl FnMut() -> Option<T>,
    complaint: impl FnOnce() -> String,
) -> T {
    // waits: this limit only ends a test that hangs.
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{}", complaint());
        // waits: what is waited for is of other processes.
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// A command that runs the program under test, also where there is no Landlock.
pub fn ringway() -> Command {
    let mut command = Command::new(program("ringway"));
    for variable in ["RINGWAY_DIR", "RINGWAY_LOG", "NOTIFY_SOCKET", "STATE_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.env("RINGWAY_CONFINE", "without-landlock");
    command.stdin(Stdio::null());
    command
}

/// Sends a signal to a process that runs.
pub fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has a number");
    kill_process(pid, signal).expect("the process runs");
}

/// Stops a process, and returns when none of its threads runs.
pub fn stop_threads(pid: u32) {
    send(pid, Signal::STOP);
    let has_stopped = |thread: &Path| {
        let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    wait_for("all threads to stop", SOON, || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
        let mut threads = threads.map(|thread| thread.expect("the process runs").path());
        threads.all(|thread| has_stopped(&thread)).then_some(())
    });
}

/// The start time of a process, which distinguishes it from a later one with the same PID; `None`
/// if it has ended.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.nth(22 - 4)?.parse().ok()
}

/// A process that is killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts a program.
    pub fn start(command: &mut Command) -> Running {
        Running(command.spawn().expect("the program can be started"))
    }

    /// Waits until it has ended; `what` is what to call that.
    pub fn wait(&mut self, what: &str, limit: Duration) -> ExitStatus {
        wait_for(what, limit, || self.0.try_wait().expect("our child"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One process of a host.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name in the state of the host.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub start_time: u64,
}

impl Member {
    /// Whether this very process runs.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// `ringway run` in a directory of its own. Dropping it ends it, by force if need be.
pub struct Host {
    supervisor: Running,
    members: Vec<Member>,
    place: TempDir,
}

impl Host {
    /// Starts a host and waits until its guests are connected.
    pub fn start(description: &str) -> Host {
        let place = tempfile::tempdir().expect("a directory can be made");
        Host::start_in(place, description)
    }

    /// Starts a host in a directory that another may have used.
    pub fn start_in(place: TempDir, description: &str) -> Host {
        Host::start_with(place, description, &[])
    }

    /// Starts a host with some variables in its environment.
    pub fn start_with(place: TempDir, description: &str, variables: &[(&str, &OsStr)]) -> Host {
        let config = place.path().join("host.toml");
        fs::write(&config, description).expect("written");
        let mut command = Host::command(&place, &config);
        command.envs(variables.iter().copied());
        Host::launch(place, command)
    }

    /// Starts a host in the network namespace of a process, with some variables in its environment.
    pub fn start_beside(
        pid: u32,
        place: TempDir,
        description: &str,
        variables: &[(&str, &OsStr)],
    ) -> Host {
        let config = place.path().join("host.toml");
        fs::write(&config, description).expect("written");
        let mut run = Host::command(&place, &config);
        run.envs(variables.iter().copied());
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &pid.to_string()]);
        command.arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
        for (name, value) in run.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Host::launch(place, command)
    }

    fn command(place: &TempDir, config: &Path) -> Command {
        let mut command = ringway();
        command.args(["run", "--json", "--config"]).arg(config);
        command.arg("--dir").arg(place.path().join("run"));
        command
    }

    fn launch(place: TempDir, mut command: Command) -> Host {
        let file = |name: &str| File::create(place.path().join(name)).expect("created");
        let (events, log) = (file("events"), file("log"));
        let supervisor = Running::start(command.stdout(events).stderr(log));
        let mut host = Host { supervisor, members: Vec::new(), place };
        host.wait("the guests to connect", 3 * SOON, |host| host.event("ready"));
        host.members = host.members();
        host
    }

    /// The run directory.
    pub fn dir(&self) -> PathBuf {
        self.place.path().join("run")
    }

    /// A file for the test's own use.
    pub fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Waits for a condition of this host; a failure prints its log.
    pub fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&Host) -> Option<T>,
    ) -> T {
        wait_or(
            limit,
            || look(self),
            || {
                let log = self.log();
                let states = self.backend().map(|backend| backend.vifs);
                format!("waited {limit:?} for {what}\nvifs: {states:#?}\nlog:\n{log}")
            },
        )
    }

    /// What all processes have logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// How many lines of the log have this text.
    pub fn log_count(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// The last event of a kind.
    pub fn event(&self, kind: &str) -> Option<Value> {
        let events = fs::read_to_string(self.file("events")).unwrap_or_default();
        let mut values = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.rfind(|value| value["event"] == kind)
    }

    /// The processes of the host now, the supervisor first.
    pub fn members(&self) -> Vec<Member> {
        let state = fs::read(self.dir().join("state.json")).expect("the host keeps its state");
        let state: Value = serde_json::from_slice(&state).expect("JSON");
        let processes = state["processes"].as_array().expect("a list");
        let member = |process: &Value| Member {
            name: process["name"].as_str().expect("a name").to_owned(),
            pid: number(&process["pid"]),
            start_time: process["start_time"].as_u64().expect("a time"),
        };
        processes.iter().map(member).collect()
    }

    /// The process of this name, as soon as there is one that runs: it may just be replaced.
    pub fn pid_of(&self, name: &str) -> u32 {
        self.wait(&format!("the process {name}"), SOON, |host| {
            let members = host.members();
            let member = members.iter().find(|it| it.name == name && it.is_alive());
            member.map(|member| member.pid)
        })
    }

    /// Runs a verb for this host.
    pub fn verb(&self, arguments: &[&str]) -> Output {
        let mut command = ringway();
        command.env("RINGWAY_DIR", self.dir()).args(arguments);
        command.output().expect("the program can be started")
    }

    /// The output of a verb, which must succeed.
    pub fn text(&self, arguments: &[&str]) -> String {
        text_of(self.verb(arguments), &arguments.join(" "))
    }

    /// The status of the backend; `None` while there is no backend.
    pub fn backend(&self) -> Option<BackendStatus> {
        let socket = RunDir::new(self.dir()).backend();
        reply(|limits| Ok(open_with_limits(&socket, &BackendRequest::Status, limits)?.0))
    }

    /// All vifs, as soon as there is a backend and each of its processes has replied: one that is
    /// not among them does not exist.
    pub fn vifs(&self) -> Vec<VifStatus> {
        wait_for("a reply of the backend", 3 * SOON, || {
            let status = self.backend()?;
            let is_whole = status.tenants.iter().all(|tenant| tenant.state != "silent");
            is_whole.then_some(status.vifs)
        })
    }

    /// The vif of this name.
    pub fn vif(&self, name: &str) -> Option<VifStatus> {
        self.vifs().into_iter().find(|vif| vif.name == name)
    }

    /// The status of a guest; `None` while it has none.
    pub fn guest(&self, name: &str) -> Option<GuestStatus> {
        let socket = RunDir::new(self.dir()).guest(name);
        reply(|limits| Ok(open_with_limits(&socket, &GuestRequest::Status, limits)?.0))
    }

    /// Bytes that a vif's guest has sent; the vif exists, or will in a moment.
    pub fn tx_bytes(&self, vif: &str) -> u64 {
        let vif = self.wait(vif, SOON, |host| host.vif(vif));
        vif.queues.iter().map(|queue| queue.tx_bytes).sum()
    }

    /// Bytes that a vif's guest has received; the vif exists, or will in a moment.
    pub fn rx_bytes(&self, vif: &str) -> u64 {
        let vif = self.wait(vif, SOON, |host| host.vif(vif));
        vif.queues.iter().map(|queue| queue.rx_bytes).sum()
    }

    /// A command in a guest; it replaces the process that enters the guest.
    pub fn in_guest(&self, guest: &str, command: &[&str]) -> Command {
        let mut exec = ringway();
        exec.env("RINGWAY_DIR", self.dir()).args(["guest", "exec", guest, "--"]).args(command);
        exec
    }

    /// The output of a command in a guest, which must succeed.
    pub fn guest_text(&self, guest: &str, command: &[&str]) -> String {
        let output = self.in_guest(guest, command).output().expect("it can be started");
        text_of(output, &format!("in {guest}: {command:?}\n{}", self.log()))
    }

    /// Sends one ping from a guest, and expects its reply.
    pub fn ping(&self, guest: &str, address: &str) {
        self.guest_text(guest, &["ping", "-n", "-c", "2", "-i", "0.05", "-w", "30", address]);
    }

    /// Has a guest keep the address of a neighbor that replies. A kernel gives up after three
    /// questions, a second apart, and drops what waits: on a busy machine, that happens.
    pub fn keep_neighbor(&self, guest: &str, address: &str) {
        self.ping(guest, address);
        let keep = ["ip", "neigh", "change", address, "dev", "eth0", "nud", "permanent"];
        self.guest_text(guest, &keep);
    }

    /// Domain 0's XenStore.
    pub fn store(&self) -> Client {
        Client::connect(&self.dir().join("xenstored.sock")).expect("the store is there")
    }

    /// A stock tool for domain 0's XenStore.
    pub fn tool(&self, name: &str, arguments: &[&str]) -> Output {
        self.tool_at("xenstored.sock", name, arguments)
    }

    /// A stock tool for XenStore, from the point of view of another domain.
    pub fn tool_at(&self, socket: &str, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(name);
        command.env("XENSTORED_PATH", self.dir().join(socket)).args(arguments);
        command.stdin(Stdio::null()).output().expect("xenstore-utils are installed")
    }

    /// The output of a stock tool, which must succeed.
    pub fn tool_text(&self, name: &str, arguments: &[&str]) -> String {
        text_of(self.tool(name, arguments), &format!("{name} {arguments:?}"))
    }

    /// The value of a node, from the stock tool; `None` if it does not exist.
    pub fn node(&self, path: &str) -> Option<String> {
        let output = self.tool("xenstore-read", &[path]);
        let value = String::from_utf8(output.stdout).expect("text");
        output.status.success().then(|| value.trim_end_matches('\n').to_owned())
    }

    /// Signals the supervisor.
    pub fn signal(&self, signal: Signal) {
        send(self.supervisor.0.id(), signal);
    }

    /// Waits until the supervisor has ended; its directory stays.
    pub fn ended(mut self) -> (ExitStatus, TempDir, String) {
        let status = self.supervisor.wait("the host to end", 2 * SOON);
        let log = self.log();
        let place = std::mem::replace(&mut self.place, tempfile::tempdir().expect("a directory"));
        (status, place, log)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "the host's log:\n{}", self.log());
        }
        if let (Ok(None), Ok(pid)) =
            (self.supervisor.0.try_wait(), i32::try_from(self.supervisor.0.id()))
        {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::INT);
            }
            // waits: it is killed if it hangs.
            let deadline = Instant::now() + SOON;
            while matches!(self.supervisor.0.try_wait(), Ok(None)) && Instant::now() < deadline {
                // waits: what is waited for is of other processes.
                std::thread::park_timeout(POLL_INTERVAL);
            }
        }
        // Its children die with it; kill any that did not, so that they do not disturb the next
        // test.
        let _ = self.supervisor.0.kill();
        for member in self.members.iter().filter(|member| member.is_alive()) {
            if let Some(pid) = i32::try_from(member.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The reply of a process; `None` if it does not run. A busy one may reply later than users wait,
/// and have no place for a further request.
fn reply<T>(ask: impl Fn(ReplyLimits) -> io::Result<T>) -> Option<T> {
    let limits = ReplyLimits { time: 3 * SOON, bytes: 64 << 20 };
    wait_for("a place for a request", SOON, || match ask(limits) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        reply => Some(reply.ok()),
    })
}

/// A number in JSON that fits.
pub fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|value| u32::try_from(value).ok()).expect("a number")
}

/// The standard output of a command, which must have succeeded.
pub fn text_of(output: Output, what: &str) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{what}: {}\n{complaint}{text}", output.status);
    text
}

/// A description: keys of the host, and guests with their names, keys of their own, and keys of
/// their one vif. Guest 1 is 10.77.0.1 and fd77::1, and so on.
pub fn describe(host: &str, guests: &[(&str, &str, &str)]) -> String {
    let mut text = format!("[host]\nnetwork = \"private\"\n{host}\n");
    for (number, (name, guest, vif)) in (1..).zip(guests) {
        text += &format!(
            "[[guest]]\nname = \"{name}\"\n{guest}\n[[guest.vif]]\n\
             addresses = [\"10.77.0.{number}/24\", \"fd77::{number}/64\"]\n{vif}\n"
        );
    }
    text
}

/// Two guests, `a` and `b`, with as many queues as offered, up to four.
pub fn pair() -> String {
    describe("max-queues = 4", &[("a", "", "queues = 4"), ("b", "", "queues = 4")])
}

/// The names of all visible network interfaces of the machine.
pub fn links() -> Vec<String> {
    let output = Command::new("ip").args(["-br", "link"]).output().expect("iproute2");
    let text = text_of(output, "ip -br link");
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The content of a directory; empty if it does not exist.
pub fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
