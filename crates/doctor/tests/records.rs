//! Sick set-ups and the same ones mended, in namespaces that this makes: each check says what is
//! wrong of the first and nothing of the second. The records that it takes are what the fixtures
//! are cut from:
//!
//! ```text
//! RINGWAY_RECORDS=/some/directory cargo test -p ringway-doctor --test records -- --ignored
//! cargo run -p ringway-doctor --example fixture -- /some/directory crates/doctor/fixtures
//! ```
//!
//! `RINGWAY_RECORDS_OF=d37,d39` makes some of them. They need root and the machine for themselves:
//! what other programs do with its CPUs is in the records as well.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringway_doctor::check;
use ringway_doctor::collect;
use ringway_doctor::evidence::archive;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::Severity;

/// Where records are written.
const RECORDS: &str = "RINGWAY_RECORDS";
/// Of which checks, with commas between them; of all without it.
const RECORDS_OF: &str = "RINGWAY_RECORDS_OF";
/// For the process that records within a namespace: the file to write.
const RECORD_TO: &str = "RINGWAY_RECORD_TO";
const SECONDS: u64 = 3;

/// A set-up as scripts. `$H` runs a command in the host's namespace and `$G` in the guest's; both
/// are linked by a veth, `e0` (10.98.0.1) and `p0` (10.98.0.2), with iperf3 and a port that
/// no one reads from in the guest.
struct Scenario {
    check: &'static str,
    states: &'static [State],
}

struct State {
    name: &'static str,
    from: &'static str,
    /// Makes it of the state before.
    make: &'static str,
    /// Runs while it is recorded, and is ended then.
    load: &'static str,
}

const IPERF: &str = "exec $H iperf3 -c 10.98.0.2 -b 20M -t 60";

const fn state(
    name: &'static str,
    from: &'static str,
    make: &'static str,
    load: &'static str,
) -> State {
    State { name, from, make, load }
}

include!("records/scenarios.rs");

struct Netns {
    names: [String; 2],
    server: Option<Child>,
}

impl Netns {
    fn new() -> Netns {
        let id = std::process::id();
        let names = [format!("rwd-h{id}"), format!("rwd-g{id}")];
        let mut netns = Netns { names, server: None };
        netns.run(
            "ip netns add $HN; ip netns add $GN; $H ip link set lo up; $G ip link set lo up; \
             $H ip link add e0 type veth peer name p0; $H ip link set p0 netns $GN; \
             $H ip addr add 10.98.0.1/24 dev e0; $G ip addr add 10.98.0.2/24 dev p0; \
             $H ip link set e0 up; $G ip link set p0 up",
        );
        netns.server = Some(netns.start("exec $G iperf3 -s"));
        std::thread::sleep(Duration::from_millis(300));
        netns
    }

    fn shell(&self, script: &str) -> Command {
        let [host, guest] = &self.names;
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        shell.env("HN", host).env("GN", guest);
        let programs = [
            ("TAP", TAP),
            ("FLOOD", FLOOD),
            ("LISTEN", LISTEN),
            ("CONNECT", CONNECT),
            ("OPEN", OPEN),
        ];
        shell.envs(programs);
        shell.env("H", format!("ip netns exec {host}")).env("G", format!("ip netns exec {guest}"));
        shell
    }

    fn run(&self, script: &str) {
        let done = self.shell(&format!("set -e; {script}")).status().expect("bash");
        assert!(done.success(), "{script}");
    }

    fn start(&self, script: &str) -> Child {
        let mut shell = self.shell(script);
        // A group of its own, so that its end is that of all it starts.
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        shell.stderr(Stdio::null()).spawn().expect("bash")
    }

    fn record(&self, file: &Path) {
        let own = std::env::current_exe().expect("a path");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0]]).arg(own);
        command.args(["--ignored", "--exact", "recorder"]).env(RECORD_TO, file);
        let done = command.stdout(Stdio::null()).status().expect("ip");
        assert!(done.success());
    }
}

fn end(mut child: Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.server.take().into_iter().for_each(end);
        let _ = self.shell("ip netns del $HN; ip netns del $GN").status();
    }
}

#[test]
#[ignore = "it is run by the other test, within a namespace"]
fn recorder() {
    let Some(file) = std::env::var_os(RECORD_TO) else { return };
    let source = collect(Duration::from_secs(SECONDS));
    archive::write(&source, fs::File::create(file).expect("made")).expect("written");
}

#[test]
#[ignore = "it needs root and a quiet machine, and writes records for a person who asks for them"]
fn sick_set_ups_are_found_and_mended_ones_left_in_peace() {
    let Some(folder) = std::env::var_os(RECORDS) else { return };
    let wanted = std::env::var(RECORDS_OF).ok();
    let is_wanted = |check: &str| {
        wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|one| one == check))
    };
    let mut wrong = Vec::new();
    for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(scenario.check)) {
        let netns = Netns::new();
        for state in scenario.states {
            netns.run(state.make);
            let load = netns.start(state.load);
            std::thread::sleep(Duration::from_millis(1500));
            let name = format!("{}-{}-recorded", scenario.check, state.name);
            let file = Path::new(&folder).join(format!("{name}.tar"));
            netns.record(&file);
            end(load);
            fs::write(file.with_extension("txt"), state.from).expect("written");
            let host = Host::new(archive::open(&file).expect("a record"));
            let found = check::find(scenario.check).expect("a check").run(&host);
            let worst = found.iter().map(|one| one.severity).max();
            let is_sick = worst >= Some(Severity::Warning);
            let said: Vec<&str> = found.iter().map(|one| one.summary.as_str()).collect();
            println!("{name}: {}", said.join("; "));
            if is_sick != state.name.starts_with("sick") {
                wrong.push(format!("{name}: {found:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
