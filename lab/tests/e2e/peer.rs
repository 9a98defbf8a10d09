//! A study whose far end is on another machine: two network namespaces, each with an sshd of its
//! own. Traffic stays between the two.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ringway_e2e::host::{Running, SOON, names_in, send, wait_for};
use ringway_e2e::pair::{GUEST, Pair, VIF, inside, ok, text};
use ringway_e2e::{is_nightly, program, shared_turn};
use serde_json::Value;
use tempfile::TempDir;

use crate::studies::assert_measured;

const TOOLS: [&str; 5] = ["ip", "iperf3", "ssh", "ssh-keygen", "sshd"];
const HOST: &str = "10.98.0.1";

/// Both directions, and a load beside the second.
const TINY: &str = r#"
id = "tiny"
title = "Tiny"
question = "Does the lab work over two machines?"
sources = ["multi-queue-study:peer"]
baselines = ["baseline-veth-bridge"]
[topology]
kind = "wire"
about = "One guest, and its peer behind the uplink."
[load]
seconds = 1.0
warmup-seconds = 0.2
repeats = 1
max-repeats = 1
metric = "throughput-bps"
[setup]
tool = "iperf3"
streams = 2
[[axis]]
name = "direction"
values = ["transmit", "receive"]
[[axis]]
name = "load"
short = "l"
values = [0, 1]
[[figure]]
id = "throughput"
kind = "bars"
title = "Tiny"
x = "direction"
lines = "load"
metric = "throughput-bps"
"#;

/// Two machines that know each other's keys, in a directory.
struct Machines {
    pair: Pair,
    place: TempDir,
    _servers: Vec<Running>,
}

impl Machines {
    /// `None`, with a line that says so, without the privileges.
    fn new(name: &str) -> Option<Machines> {
        let pair = Pair::new(name)?;
        ok(&mut pair.on_host(&format!("ip addr add {HOST}/24 dev {VIF}")));
        ok(&mut pair.on_host(&format!("ip link set {VIF} up")));
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path();
        key(&dir.join("user"));
        key(&dir.join("machine"));
        fs::copy(dir.join("user.pub"), dir.join("authorized")).expect("copied");
        let public = fs::read_to_string(dir.join("machine.pub")).expect("a key");
        let known = format!("{HOST} {public}{GUEST} {public}");
        fs::write(dir.join("known"), known).expect("written");
        fs::write(dir.join("empty"), "").expect("written");
        fs::create_dir(dir.join("tmp")).expect("made");
        fs::write(dir.join("tiny.toml"), TINY).expect("written");
        fs::write(dir.join("ssh_config"), ssh_config(dir, "known")).expect("written");
        fs::write(dir.join("stranger"), ssh_config(dir, "empty")).expect("written");
        let servers =
            [&pair.host, &pair.guest].map(|netns| server(dir, netns)).into_iter().collect();
        let machines = Machines { pair, place, _servers: servers };
        for netns in [&machines.pair.host, &machines.pair.guest] {
            wait_for("sshd to listen", SOON, || {
                let table = ok(inside(netns, "cat /proc/self/net/tcp")).stdout;
                text(&table).contains(":0016 00000000:0000 0A").then_some(())
            });
        }
        Some(machines)
    }

    /// `lab run` in a namespace, with a peer by its name in the configuration of ssh.
    fn lab(&self, netns: &str, peer: &str) -> Command {
        self.lab_by(&self.ssh("ssh_config"), netns, peer)
    }

    /// `lab run` in a namespace, with a peer and another ssh command.
    fn lab_by(&self, ssh: &str, netns: &str, peer: &str) -> Command {
        let dir = self.place.path();
        let mut command = inside(netns, env!("CARGO_BIN_EXE_ringway-lab"));
        command.args(["run", "--seed", "7", "--peer", peer, "--peer-ssh", ssh]);
        command.arg(dir.join("tiny.toml")).arg("--out").arg(dir.join(format!("out-{peer}")));
        command.env("TMPDIR", self.tmp()).stdin(Stdio::null());
        command
    }

    /// The ssh command with a configuration.
    fn ssh(&self, config: &str) -> String {
        format!("ssh -F {}", self.place.path().join(config).display())
    }

    /// `lab run` in a namespace, with a peer that has the ringway program at this path.
    fn lab_at(&self, netns: &str, peer: &str, program: &Path) -> Command {
        let mut command = self.lab(netns, peer);
        command.arg("--peer-command").arg(program);
        command
    }

    /// The processes of a study on both ends.
    fn processes(&self) -> Vec<String> {
        let ours = [b"TMPDIR=", self.tmp().as_os_str().as_encoded_bytes(), b"\0"].concat();
        let is_ours = |pid: &String| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(ours.len()).any(|window| window == ours)
        };
        names_in(Path::new("/proc")).into_iter().filter(is_ours).collect()
    }

    fn tmp(&self) -> PathBuf {
        self.place.path().join("tmp")
    }

    /// Neither end keeps a process or a directory.
    fn assert_nothing_is_left(&self) {
        wait_for("both ends to end", SOON, || {
            (self.processes().is_empty() && names_in(&self.tmp()).is_empty()).then_some(())
        });
    }

    fn runs(&self, peer: &str) -> Vec<Value> {
        let path = self.place.path().join(format!("out-{peer}/runs.jsonl"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// The name of a peer in the configuration of ssh, and its address.
const NAMES: [(&str, &str); 2] = [("white", HOST), ("black", GUEST)];

fn ssh_config(dir: &Path, known: &str) -> String {
    let of = |(name, address): (&str, &str)| format!("Host {name}\nHostName {address}\n");
    let hosts: String = NAMES.into_iter().map(of).collect();
    let dir = dir.display();
    format!(
        "{hosts}Host *\nUser root\nIdentityFile {dir}/user\nIdentitiesOnly yes\n\
         UserKnownHostsFile {dir}/{known}\nGlobalKnownHostsFile /dev/null\n\
         StrictHostKeyChecking yes\n"
    )
}

fn key(path: &Path) {
    let mut command = Command::new("ssh-keygen");
    ok(command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path));
}

/// An sshd in a namespace. It has a `/run` of its own there, so that the machine's is unchanged.
fn server(dir: &Path, netns: &str) -> Running {
    let config = dir.join("sshd_config");
    let place = dir.display();
    let text = format!(
        "HostKey {place}/machine\nAuthorizedKeysFile {place}/authorized\nStrictModes no\n\
         UsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n\
         PidFile none\nSetEnv TMPDIR={place}/tmp\n"
    );
    fs::write(&config, text).expect("written");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns, "sh", "-c"]);
    command.arg("mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec \"$0\" \"$@\"");
    command.args(["/usr/sbin/sshd", "-D", "-e", "-f"]).arg(config);
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stderr), text(&output.stdout))
}

#[test]
fn a_study_runs_between_two_machines_and_leaves_nothing_on_either() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(machines) = Machines::new("peer") else { return };
    let pair = &machines.pair;
    // Each takes as long as its runs.
    let count = if is_nightly() { 2 } else { 1 };
    let ways = [(&pair.host, "black", GUEST), (&pair.guest, "white", HOST)];
    for (netns, peer, address) in ways.into_iter().take(count) {
        let output = machines.lab_at(netns, peer, &program("ringway")).output().expect("it starts");
        assert_complete(&output);
        assert!(said(&output).contains("NOTICE: baselines are left out"), "{}", said(&output));
        // Two directions, each without a load and with one.
        let (records, _) = assert_measured(&machines.place.path().join(format!("out-{peer}")));
        assert_eq!(records.study.matrix().count(), 4, "{}", said(&output));
        let runs = machines.runs(peer);
        runs.iter().for_each(assert_run);
        let file = |name: &str| {
            let path = machines.place.path().join(format!("out-{peer}/{name}"));
            fs::read_to_string(path).expect(name)
        };
        let record: Value = serde_json::from_str(&file("peer.json")).expect("JSON");
        assert_eq!(
            (&record["name"], &record["interface"]["address"]),
            (&peer.into(), &address.into())
        );
        assert!(record["host"]["tools"]["iperf3"].is_string(), "{record}");
        assert!(record["host"]["kernel"].is_string(), "{record}");
        let page = file("report.html");
        assert!(page.contains("The two machines"), "a report");
        assert!(page.contains(&format!("The peer {peer}: ")) && page.contains(address), "a report");
        machines.assert_nothing_is_left();
        // The study is complete, so the command measures nothing more.
        let again = machines.lab_at(netns, peer, &program("ringway")).output().expect("it starts");
        assert_complete(&again);
        assert!(machines.runs(peer) == runs, "{}", said(&again));
        machines.assert_nothing_is_left();
    }
}

/// All cells have a run. On a busy machine, the counters of a run may be read so late that they
/// contradict what its streams claim; the lab then uses no figure of it.
fn assert_complete(output: &Output) {
    let said = said(output);
    let is_late = output.status.code() == Some(1) && said.contains("not measured: ");
    assert!(output.status.success() || is_late, "{said}");
    assert!(!said.contains("FAILED"), "{said}");
}

/// Both ends have counted what the streams carried.
fn assert_run(run: &Value) {
    let value = |name: &str| run["values"][name].as_f64().unwrap_or_default();
    assert!(value("throughput-bps") > 0.0, "{run}");
    assert_eq!(run["subject"], "machine");
    assert_eq!(run["streams"].as_array().expect("streams").len(), 2);
    let load = run["cell"]["load"].as_u64().expect("a count");
    assert_eq!(value("load-bps") > 0.0, load > 0, "{run}");
    let is_receiving = run["cell"]["direction"] == "receive";
    let ways = if is_receiving { ["rx-bytes", "tx-bytes"] } else { ["tx-bytes", "rx-bytes"] };
    for (end, way) in ["near", "far"].into_iter().zip(ways) {
        let end = &run["ends"][end];
        assert!(end["interface"][way].as_u64().expect("bytes") > 0, "{way}: {run}");
        assert!(end["tools-system"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{run}");
    }
}

#[test]
fn ctrl_c_and_a_lost_connection_end_both_machines() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(machines) = Machines::new("lost") else { return };
    let long = TINY.replace("\nseconds = 1.0", "\nseconds = 600.0");
    fs::write(machines.place.path().join("tiny.toml"), long).expect("written");
    let is_far = |pid: &String| {
        // The agent and its tools have no descriptor of the lab's; their names tell.
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        text(&line).contains("iperf3")
    };
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let mut command = machines.lab_at(&machines.pair.host, "black", &program("ringway"));
        let mut study = Running::start(command.stderr(Stdio::null()).stdout(Stdio::null()));
        wait_for("tools on both ends", 3 * SOON, || {
            (machines.processes().iter().filter(|pid| is_far(pid)).count() >= 4).then_some(())
        });
        send(study.0.id(), signal);
        study.wait("its end", 2 * SOON);
        if signal == rustix::process::Signal::KILL {
            // The next run removes the directory of one that was killed.
            wait_for("both ends to end", SOON, || machines.processes().is_empty().then_some(()));
        } else {
            machines.assert_nothing_is_left();
        }
    }
}

#[test]
fn what_keeps_a_peer_from_being_used_is_said_with_the_remedy() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(machines) = Machines::new("no") else { return };
    let (host, place) = (&machines.pair.host, machines.place.path());
    let old = place.join("old-ringway");
    let greeting = r#"{"is":"hello","version":"0.0.1","commit":"0123456789ab"}"#;
    script(&old, &format!("echo '{greeting}'; cat >/dev/null"));
    let garbage = place.join("garbage");
    script(&garbage, "yes | head -c 3000000; cat >/dev/null");
    let endless = place.join("endless");
    script(&endless, "exec tr '\\0' a </dev/zero");
    let bare = place.join("bare");
    script(&bare, &format!("PATH=/none exec {} \"$@\"", program("ringway").display()));
    let ours = concat!("this is ", env!("CARGO_PKG_VERSION"));
    let mut elsewhere = machines.lab_at(host, "black", &program("ringway"));
    elsewhere.args(["--peer-address", HOST]);
    let none = Path::new("/no/ringway");
    let cases: [(&str, Command, &[&str]); 10] = [
        ("another version", machines.lab_at(host, "black", &old), &["0.0.1", ours, "same build"]),
        ("no program", machines.lab_at(host, "black", none), &["/no/ringway", "--peer-command"]),
        (
            "no tool",
            machines.lab_at(host, "black", &bare),
            &["on black: iperf3 is not installed: apt-get install iperf3"],
        ),
        ("no agent", machines.lab_at(host, "black", &garbage), &["no greeting"]),
        ("no line", machines.lab_at(host, "black", &endless), &["a line of more than"]),
        (
            "a stranger",
            machines.lab_by(&machines.ssh("stranger"), host, "black"),
            &["Host key verification failed", "accept it with `ssh -F "],
        ),
        (
            "no server",
            machines.lab_by(&format!("{} -p 2", machines.ssh("ssh_config")), host, "black"),
            &["Connection refused", "--peer-ssh"],
        ),
        ("no route", machines.lab(host, "192.0.2.1"), &["unreachable", "network leads there"]),
        (
            "another's address",
            elsewhere,
            &["has no interface with the address 10.98.0.1", "--peer-address"],
        ),
        (
            "no ssh",
            machines.lab_by("no-such-ssh", host, "black"),
            &["no-such-ssh is not installed", "openssh-client"],
        ),
    ];
    for (what, mut command, texts) in cases {
        let output = command.output().expect("it starts");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        for text in texts {
            assert!(said.contains(text), "{what}: no `{text}` in {said}");
        }
        machines.assert_nothing_is_left();
    }
}

fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn a_study_within_one_host_is_refused_with_a_peer() {
    let mut command = ringway_e2e::host::ringway();
    command.args(["lab", "run", "guest-to-guest", "--peer", "192.0.2.1", "--out", "/nonexistent"]);
    let said = said(&command.output().expect("it starts"));
    assert!(said.contains("`guest-to-guest` cannot run with a peer"), "{said}");
}
