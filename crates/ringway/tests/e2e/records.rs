//! Records sick set-ups and the same ones put right, of which `crates/doctor/fixtures` has what the
//! checks look at:
//!
//! ```text
//! RINGWAY_E2E_RECORDS=/some/directory cargo test -p ringway --test e2e records -- --ignored
//! cargo run -p ringway-doctor --example fixture -- /some/directory crates/doctor/fixtures
//! ```
//!
//! `RINGWAY_E2E_RECORDS_OF=d09,d21` makes some of them. That of d10 is of a machine whose
//! CPUs have time: where other programs fill them, the doctor says so instead.

mod scenarios;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::knobs::{Guest, skipped};
use crate::pair::{Pair, TOOLS, Traffic, VIF, inside, ok, text, until};
use crate::turn;

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

/// Which end is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Guest,
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

/// An end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Host,
    Guest,
}

/// Something that is done to a set-up.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A line of a shell in the namespace of an end; `$GUEST` is the name of the guest's.
    Shell(End, &'static str),
    /// Filters of tc for all that comes in, so that each packet takes time.
    Rules(End),
    /// Open vSwitch takes the host's end of the link.
    OpenVswitch,
    /// A packet from the host to each of many ports.
    Scan,
}

const fn host(line: &'static str) -> Step {
    Step::Shell(End::Host, line)
}

const fn guest(line: &'static str) -> Step {
    Step::Shell(End::Guest, line)
}

/// Of a scan: enough to fill four fifths of a table of 262144, the kernel's default for 1 GiB.
const SCANNED: u32 = 225_000;

impl Scenario {
    fn record(&self, dir: &Path) {
        let Some(pair) = (self.make)(self.check) else { return };
        let mut daemons = Vec::new();
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
                Place::Disguised(driver) => Guest::called(&pair, driver).doctor(&line),
            };
            ok(doctor.env("OVS_RUNDIR", pair.journal.path()));
            fs::write(dir.join(format!("{name}.txt")), state.from).expect("written");
        }
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
        Step::Rules(End::Guest) => {
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
    let netns = match end {
        End::Host => &pair.host,
        End::Guest => &pair.guest,
    };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns, "bash", "-c", line]);
    command.env("OVS_RUNDIR", pair.journal.path()).env("GUEST", &pair.guest);
    command
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

fn start(pair: &Pair, load: &[Step]) -> Vec<Traffic> {
    let begin = |step: &Step| {
        let mut command = match step {
            Step::Shell(end, line) => shell(pair, *end, line),
            Step::Scan => scan(pair, u32::MAX),
            Step::Rules(_) | Step::OpenVswitch => panic!("{step:?} makes no traffic"),
        };
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Traffic(quiet.spawn().expect("it starts"))
    };
    let traffic = load.iter().map(begin).collect();
    let is_iperf = |step: &Step| matches!(step, Step::Shell(_, line) if line.contains("iperf3"));
    if load.iter().any(is_iperf) {
        until("the connections are there", || {
            let all = text(&ok(&mut pair.on_host("ss -Htun state established")).stdout);
            all.lines().count() > 1
        });
    }
    traffic
}

#[test]
#[ignore = "it writes records for a person who asks for them"]
fn records_of_sick_and_healthy_hosts() {
    let tools = ["nft", "taskset", "bash", "ovs-vswitchd", "ovsdb-server", "ovs-vsctl"];
    let Some(_turn) = turn(&[&TOOLS[..], &tools].concat()) else { return };
    let Some(dir) = std::env::var_os(RECORDS) else {
        return skipped(&format!("records: {RECORDS} names no directory"));
    };
    let wanted = std::env::var(RECORDS_OF).ok();
    let is_wanted = |check: &str| {
        wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|one| one == check))
    };
    assert_eq!(VIF, "vif1.0");
    for scenario in scenarios::all().iter().filter(|scenario| is_wanted(scenario.check)) {
        scenario.record(Path::new(&dir));
    }
}
