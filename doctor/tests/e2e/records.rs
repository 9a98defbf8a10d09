//! Records sick set-ups and the same ones after the fix; `doctor/fixtures` has the parts
//! that checks read. Each check reports the problem in the former and nothing in the latter:
//!
//! ```text
//! RINGWAY_E2E_RECORDS=/some/directory cargo test -p ringway --test e2e records -- --ignored
//! cargo run -p ringway-doctor --example fixture -- /some/directory doctor/fixtures
//! ```
//!
//! `RINGWAY_E2E_RECORDS_OF=d09,d21` makes some of them. That of d10 is of a machine whose
//! CPUs have time: where other programs fill them, the doctor says so instead.

mod causes;
mod networks;
mod programs;
mod scenarios;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringway_e2e::pair::{Pair, TOOLS, Traffic, VIF, inside, ok, text, until};
use ringway_e2e::turn;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::knobs::{Guest, skipped};

/// Where records are written.
const RECORDS: &str = "RINGWAY_E2E_RECORDS";
/// Of which checks, with commas between them; of all without it.
const RECORDS_OF: &str = "RINGWAY_E2E_RECORDS_OF";

/// States of one set-up, one after another.
struct Scenario {
    check: &'static str,
    make: fn(&str) -> Option<Pair>,
    place: Place,
    states: Vec<State>,
}

/// The end that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Guest,
    /// The machine that both are on, where its own network namespace is.
    Machine,
    /// Where the driver of the guest's end is called so.
    Disguised(&'static str),
}

/// Of a set-up.
struct State {
    /// `sick` or `healthy`, and what tells it from other records.
    name: &'static str,
    from: &'static str,
    /// What makes traffic in the host's namespace while it is recorded.
    load: Vec<Step>,
    /// What makes it of the state before.
    steps: Vec<Step>,
}

/// An end of the link, or the machine that both are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Host,
    Guest,
    Machine,
}

/// Something that is done to a set-up.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A line of a shell in the namespace of an end; `$HOST` and `$GUEST` are their names, `$DIR`
    /// is a directory, and the [`programs`] have their names.
    Shell(End, &'static str),
    /// Filters of tc for all that comes in, so that each packet takes time.
    Rules(End),
    /// Open vSwitch takes the host's end of the link.
    OpenVswitch,
    /// A packet from the host to each of many ports.
    Scan,
}

/// Of all files.
fn all() -> Vec<Scenario> {
    [scenarios::all(), networks::all(), causes::all()].into_iter().flatten().collect()
}

fn scenario<const N: usize>(
    check: &'static str,
    make: fn(&str) -> Option<Pair>,
    place: Place,
    states: [State; N],
) -> Scenario {
    Scenario { check, make, place, states: states.into() }
}

fn state(name: &'static str, from: &'static str, load: &[Step], steps: &[Step]) -> State {
    State { name, from, load: load.to_vec(), steps: steps.to_vec() }
}

const fn host(line: &'static str) -> Step {
    Step::Shell(End::Host, line)
}

const fn guest(line: &'static str) -> Step {
    Step::Shell(End::Guest, line)
}

const fn machine(line: &'static str) -> Step {
    Step::Shell(End::Machine, line)
}

/// Where a set-up may make control groups, of the name of its host.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"];
/// How long a load runs before it is recorded.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Of a scan: enough to fill four fifths of a table of 262144, the kernel's default for 1 GiB.
const SCANNED: u32 = 225_000;

impl Scenario {
    /// Records it, and gives what its check says where that is not what the set-up is.
    fn record(&self, dir: &Path) -> Vec<String> {
        let Some(pair) = (self.make)(self.check) else { return Vec::new() };
        let (mut daemons, mut wrong) = (Vec::new(), Vec::new());
        for state in &self.states {
            for one in &state.steps {
                daemons.extend(step(&pair, *one));
            }
            let _traffic = start(&pair, &state.load);
            let name = format!("{}-{}-recorded", self.check, state.name);
            let tar = dir.join(format!("{name}.tar"));
            let line = format!("record --interval 3 {}", tar.display());
            let mut doctor = match self.place {
                Place::Host => pair.doctor(&pair.host, &line),
                Place::Guest => pair.doctor(&pair.guest, &line),
                Place::Machine => {
                    let mut doctor = Command::new(env!("CARGO_BIN_EXE_ringway-doctor"));
                    doctor.args(line.split(' '));
                    doctor
                }
                Place::Disguised(driver) => Guest::called(&pair, driver).doctor(&line),
            };
            ok(doctor.env("OVS_RUNDIR", pair.journal.path()));
            fs::write(dir.join(format!("{name}.txt")), state.from).expect("written");
            wrong.extend(self.misjudged(&name, &tar));
        }
        for group in GROUPS {
            let _ = fs::remove_dir(Path::new(group).join(&pair.host));
        }
        wrong
    }

    /// Prints all that the doctor finds in a record. Gives it if the check does not find what the
    /// set-up is. A set-up may have problems of other checks too: a card that a driver's name makes
    /// an emulated one, a machine without CPU time.
    fn misjudged(&self, name: &str, tar: &Path) -> Option<String> {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_ringway-doctor"));
        let output = doctor.args(["--json", "--root"]).arg(tar).output();
        let report: Value =
            serde_json::from_slice(&output.expect("it starts").stdout).expect("JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let findings = report["findings"].as_array().expect("a list");
        let said = |one: &Value| {
            let check = text(&one["check"]).to_lowercase();
            let follows = one["follows"].as_str().map(|cause| format!(", follows {cause}"));
            let (subject, summary) = (text(&one["subject"]), text(&one["summary"]));
            format!("{check} {subject}: {summary}{}", follows.unwrap_or_default())
        };
        let found: Vec<String> = findings
            .iter()
            .filter(|one| matches!(one["severity"].as_str(), Some("warning" | "problem")))
            .map(said)
            .collect();
        println!("{name}: {found:#?}");
        let is_found = found.iter().any(|one| one.starts_with(self.check));
        (is_found != name.contains("-sick")).then(|| format!("{name}: {found:#?}"))
    }
}

/// Makes a change, and gives what has to run as long as the set-up.
fn step(pair: &Pair, step: Step) -> Vec<Traffic> {
    match step {
        Step::Shell(end, line) => drop(ok(&mut shell(pair, end, line))),
        Step::Rules(End::Host) => {
            let rules = pair.rules(VIF, 30_000);
            ok(&mut pair.on_host(&format!("tc -b {}", rules.display())));
        }
        Step::Rules(End::Guest | End::Machine) => {
            let rules = pair.rules("eth0", 3000);
            ok(inside(&pair.guest, &format!("tc -b {}", rules.display())));
        }
        Step::OpenVswitch => return open_vswitch(pair).into(),
        Step::Scan => drop(ok(&mut scan(pair, SCANNED))),
    }
    Vec::new()
}

/// A line of a shell at an end. It becomes its last command, so that ending it ends that.
fn shell(pair: &Pair, end: End, line: &str) -> Command {
    let mut command = match end {
        End::Host => inside(&pair.host, "bash"),
        End::Guest => inside(&pair.guest, "bash"),
        End::Machine => Command::new("bash"),
    };
    command.args(["-c", line]).envs(programs::ALL);
    command.env("OVS_RUNDIR", pair.journal.path()).env("DIR", pair.journal.path());
    command.env("HOST", &pair.host).env("GUEST", &pair.guest);
    command
}

/// What runs while a set-up is recorded, with all that it starts.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.0.wait();
    }
}

/// A packet to each of many ports, from as many.
fn scan(pair: &Pair, packets: u32) -> Command {
    let script = format!(
        "for ((i = 0; i < {packets}; i++)); do \
         echo > /dev/udp/10.98.0.2/$((i % 60000 + 1)); done 2>/dev/null; true"
    );
    let mut bash = Command::new("ip");
    bash.args(["netns", "exec", &pair.host, "bash", "-c", &script]);
    bash
}

/// Open vSwitch that forwards in its own process, with the host's end of the link as a port and an
/// interface `ovs0` for the host. It is alone in its directory, and touches no other's datapath.
fn open_vswitch(pair: &Pair) -> [Traffic; 2] {
    let file = |name: &str| pair.journal.path().join(name).display().to_string();
    let schema = "/usr/share/openvswitch/vswitch.ovsschema";
    ok(Command::new("ovsdb-tool").args(["create", &file("conf.db"), schema]));
    let quiet = "-vconsole:err -vsyslog:off";
    let run = |line: String| {
        let mut command = pair.on_host(&line);
        command.env("OVS_RUNDIR", pair.journal.path()).stdin(Stdio::null());
        command
    };
    let start = |line| Traffic(run(line).spawn().expect("it starts"));
    let control = file("ovsdb.ctl");
    let database = start(format!(
        "ovsdb-server {} --remote=punix:{} --unixctl={control} {quiet}",
        file("conf.db"),
        file("db.sock")
    ));
    until("the database is there", || Path::new(&file("db.sock")).exists());
    ok(&mut run("ovs-vsctl --timeout=20 --no-wait init".to_owned()));
    let pid = file("ovs-vswitchd.pid");
    let switch = start(format!(
        "ovs-vswitchd unix:{} --pidfile={pid} --disable-system {quiet}",
        file("db.sock")
    ));
    ok(&mut run(format!(
        "ovs-vsctl --timeout=20 add-br ovs0 -- set bridge ovs0 datapath_type=netdev \
         -- add-port ovs0 {VIF}"
    )));
    [switch, database]
}

fn start(pair: &Pair, load: &[Step]) -> Vec<Load> {
    let begin = |step: &Step| {
        let mut command = match step {
            // Its server may still be busy with the client of the state before.
            Step::Shell(end, line) if line.starts_with("iperf3") => {
                // waits: the server does not say when it has ended the last run.
                shell(pair, *end, &format!("until {line}; do sleep 0.2; done"))
            }
            Step::Shell(end, line) => shell(pair, *end, line),
            Step::Scan => scan(pair, u32::MAX),
            Step::Rules(_) | Step::OpenVswitch => panic!("{step:?} makes no traffic"),
        };
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Load(quiet.process_group(0).spawn().expect("it starts"))
    };
    let traffic: Vec<Load> = load.iter().map(begin).collect();
    let is_iperf = |step: &Step| matches!(step, Step::Shell(_, line) if line.contains("iperf3"));
    if load.iter().any(is_iperf) {
        until("the connections are there", || {
            let all = text(&ok(&mut pair.on_host("ss -Htun state established")).stdout);
            all.lines().count() > 1
        });
    }
    if !load.is_empty() {
        // waits: what it does to the set-up takes a while, and the doctor looks for a while.
        std::thread::sleep(WARM_UP);
    }
    traffic
}

#[test]
#[ignore = "it writes records for a person who asks for them"]
fn records_of_sick_and_healthy_hosts() {
    let tools = [
        "nft",
        "iptables-legacy-restore",
        "taskset",
        "bash",
        "ovs-vswitchd",
        "ovsdb-server",
        "ovs-vsctl",
    ];
    // Alone: it loads all CPUs, and some set-ups are of the whole machine.
    let Some(_turn) = turn(&[&TOOLS[..], &tools].concat()) else { return };
    let Some(dir) = std::env::var_os(RECORDS) else {
        return skipped(&format!("records: {RECORDS} names no directory"));
    };
    let wanted = std::env::var(RECORDS_OF).ok();
    let is_wanted = |check: &str| {
        wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|one| one == check))
    };
    assert_eq!(VIF, "vif1.0");
    let scenarios = all();
    let wanted = scenarios.iter().filter(|scenario| is_wanted(scenario.check));
    let wrong: Vec<String> = wanted.flat_map(|scenario| scenario.record(Path::new(&dir))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
