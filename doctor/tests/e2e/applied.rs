//! Sick set-ups of two network namespaces: the doctor finds the problem and fixes it, and the
//! set-up becomes faster by a factor. Unconfirmed changes are reverted.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use ringway_e2e::pair::{GUEST, Pair, TOOLS, Traffic, VIF, inside, ok, text, until};
use ringway_e2e::{measured_turn, nightly_turn, shared_turn};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::knobs::{is_inconclusive, output_of, read};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Idle,
    Busy,
}

/// Asserts that the check has a finding with a change, which is applied and undone; and with a
/// factor that the change makes the traffic faster by it.
fn diagnose_and_fix(pair: &Pair, netns: &str, check: &str, load: Load, factor: Option<f64>) {
    let before = factor.map(|_| pair.throughput());
    {
        let _traffic = (load == Load::Busy).then(|| pair.traffic());
        // Traffic that gets no CPU time reaches no limit.
        let until_found = |is_found: &mut dyn FnMut() -> bool| match load {
            Load::Idle => assert!(is_found(), "{check} finds nothing"),
            Load::Busy => until(check, is_found),
        };
        until_found(&mut || {
            let line = format!("--check {check} --interval 1 --json");
            let output = pair.doctor(netns, &line).output().expect("it starts");
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            ["warning", "problem"].contains(&report["worst"].as_str().expect("a severity"))
        });
        until_found(&mut || {
            let (code, printed) =
                output_of(pair.fix(netns, &format!("apply {check} --interval 1")));
            let is_applied = printed.contains("applied and verified");
            let is_idle = printed.contains("These checks found nothing");
            assert!(is_idle || (is_applied && code == Some(0)), "{code:?} {printed}");
            is_applied
        });
        ok(&mut pair.fix(netns, "confirm"));
    }
    if let (Some(factor), Some(before)) = (factor, before) {
        let after = pair.throughput();
        let [old, new] = [before, after].map(|bps| bps / 1e6);
        let printed = format!("{check}: {old:.0} -> {new:.0} Mbit/s, {:.1} times", new / old);
        println!("{printed}");
        assert!(after > factor * before, "{printed}, not {factor}");
    }
    ok(&mut pair.fix(netns, "undo"));
}

#[test]
fn offloads_that_are_off_are_turned_on() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("offload") else { return };
    ok(&mut pair.on_host(&format!("ethtool -K {VIF} tso off gso off sg off tx off gro off")));
    // With both ends busy on few CPUs, the gain is a factor of 1.4 or less.
    diagnose_and_fix(&pair, &pair.host, "D13", Load::Idle, None);
    let features = text(&ok(&mut pair.on_host(&format!("ethtool -k {VIF}"))).stdout);
    assert!(features.contains("tcp-segmentation-offload: off"), "{features}");
}

#[test]
fn windows_are_scaled_again_on_a_long_link() {
    let Some(turn) = measured_turn(&TOOLS) else { return };
    let Some(pair) = Pair::far("window") else { return };
    ok(inside(&pair.guest, "sysctl -qw net.ipv4.tcp_window_scaling=0"));
    let factor = turn.is_quiet.then_some(2.0);
    diagnose_and_fix(&pair, &pair.guest, "D19", Load::Idle, factor);
}

#[test]
fn send_buffers_grow_to_the_capacity_of_the_path() {
    let Some(turn) = measured_turn(&TOOLS) else { return };
    let Some(pair) = Pair::far("buffer") else { return };
    // What the doctor reports about the path.
    ok(&mut pair.on_host(&format!("ethtool -s {VIF} speed 10000 duplex full autoneg off")));
    ok(pair.on_host("sysctl -qw").arg("net.ipv4.tcp_wmem=4096 16384 65536"));
    let factor = turn.is_quiet.then_some(1.5);
    diagnose_and_fix(&pair, &pair.host, "D11", Load::Busy, factor);
}

#[test]
fn a_limit_that_is_reached_is_removed() {
    let Some(turn) = measured_turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("limit") else { return };
    let tbf = "root tbf rate 50mbit burst 64kb latency 50ms";
    ok(&mut pair.on_host(&format!("tc qdisc add dev {VIF} {tbf}")));
    let factor = turn.is_quiet.then_some(3.0);
    diagnose_and_fix(&pair, &pair.host, "D30", Load::Busy, factor);
    let shown = text(&ok(&mut pair.on_host(&format!("tc qdisc show dev {VIF} root"))).stdout);
    assert!(shown.contains("tbf") && shown.contains("rate 50Mbit"), "{shown}");
}

/// Echo requests that the guest has received.
fn echoes(pair: &Pair) -> u32 {
    let shown = text(&ok(inside(&pair.guest, "nstat -asz IcmpInEchos")).stdout);
    let line = shown.lines().find(|line| line.starts_with("IcmpInEchos")).expect("it is counted");
    line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a number")
}

/// Whether long packets arrive, of which a short one that follows on the same path is proof.
fn do_long_arrive(pair: &Pair) -> bool {
    let before = echoes(pair);
    // waits: for none of them.
    let long = format!("ping -n -c 3 -i 0.05 -W 0.01 -M do -s 8000 {GUEST}");
    pair.on_host(&long).output().expect("it starts");
    // waits: with `-w` it sends one request more each second until a reply comes.
    ok(&mut pair.on_host(&format!("ping -n -c 1 -W 30 {GUEST}")));
    match echoes(pair) - before {
        1 => false,
        4 => true,
        count => panic!("{count} of four packets arrived"),
    }
}

#[test]
fn the_hops_of_a_path_take_packets_of_one_length() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
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
    assert!(!do_long_arrive(&pair));
    let found = pair.doctor(&pair.host, "--check D08 --interval 1").output().expect("it starts");
    assert!(text(&found.stdout).contains("joins own-port of MTU 9000"), "{}", text(&found.stdout));
    let refused = pair.fix(&pair.host, "apply D08 --interval 1").output().expect("it starts");
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(text(&refused.stdout).contains("--allow-disruptive"), "{}", text(&refused.stdout));
    assert!(!do_long_arrive(&pair));
    ok(&mut pair.fix(&pair.host, "apply D08 --interval 1 --allow-disruptive"));
    assert!(do_long_arrive(&pair));
    ok(&mut pair.fix(&pair.host, "undo"));
    assert!(!do_long_arrive(&pair));
}

fn sack(pair: &Pair) -> String {
    read(&pair.host, "/proc/sys/net/ipv4/tcp_sack")
}

#[test]
fn an_unconfirmed_change_is_undone_even_if_the_terminal_closed() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("revert") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    ok(&mut pair.fix(&pair.host, "apply D19 --interval 1 --dry-run"));
    assert_eq!(sack(&pair), "0");
    // On a busy machine, it may be undone before the terminal closes: then there is more time.
    let is_early = |seconds: &u32| {
        let line = format!("apply D19 --interval 1 --confirm-within {seconds}");
        let mut apply = pair.fix(&pair.host, &line);
        let mut apply = apply.process_group(0).stdout(Stdio::null()).spawn().expect("it starts");
        let group = Pid::from_child(&apply);
        assert!(apply.wait().expect("it ends").success());
        // As the kernel does when the terminal closes. The group may have no process left.
        let _ = kill_process_group(group, Signal::HUP);
        let is_early = sack(&pair) == "1";
        until("it is undone", || sack(&pair) == "0");
        is_early
    };
    assert!([2, 10, 30, 60].iter().any(is_early));
    let shown = || text(&ok(&mut pair.fix(&pair.host, "journal")).stdout);
    until("the journal knows", || shown().contains("undone"));
    // Neither a second time, nor what was set since.
    ok(&mut pair.fix(&pair.host, "apply D19 --interval 1"));
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=2"));
    let left = pair.fix(&pair.host, "undo").output().expect("it starts");
    assert_eq!(left.status.code(), Some(3));
    assert!(text(&left.stdout).contains("kept at 2"), "{}", text(&left.stdout));
    assert_eq!(sack(&pair), "2");
}

#[test]
fn a_trial_keeps_only_changes_that_help() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("trial") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    let measure = pair.script("measure", "echo result $((1 + $(sysctl -n net.ipv4.tcp_sack)))");
    let trial = |more: &str| {
        let number = "--number result.([0-9])";
        let line = format!("try D19 --runs 2 --interval 1 {number} {more} -- {measure}");
        output_of(pair.fix(&pair.host, &line))
    };
    let (code, printed) = trial("--lower-is-better");
    assert!(code == Some(3) && printed.contains("; worse"), "{code:?} {printed}");
    assert_eq!(sack(&pair), "0", "{printed}");
    let (code, printed) = trial("");
    assert!(code == Some(0) && printed.contains("is kept"), "{code:?} {printed}");
    assert_eq!(sack(&pair), "1", "{printed}");
}

#[test]
fn a_trial_keeps_larger_receive_buffers_on_a_long_link() {
    let why = "iperf3 measures whether a change helps";
    let Some(_turn) = nightly_turn(why, &TOOLS) else { return };
    let Some(pair) = Pair::far("receive") else { return };
    let name = "net.ipv4.tcp_rmem";
    ok(inside(&pair.guest, "sysctl -qw").arg(format!("{name}=4096 16384 16384")));
    let now = || text(&ok(inside(&pair.guest, "sysctl -n net.ipv4.tcp_rmem")).stdout);
    let before = now();
    // The guest receives; it has the setting.
    let line = format!(
        "try D19 --subject {name} --runs 4 --interval 1 --iperf3 -- ip netns exec {} {}",
        pair.host,
        pair.iperf(1)
    );
    let tried = pair.fix(&pair.guest, &line).output().expect("it starts");
    let printed = text(&tried.stdout) + &text(&tried.stderr);
    if tried.status.code() == Some(3) && is_inconclusive("a trial of D19", &printed) {
        return assert_eq!(now(), before, "what is not kept is undone: {printed}");
    }
    assert!(tried.status.success() && printed.contains("is kept"), "{printed}");
    let _ = writeln!(std::io::stderr(), "{printed}");
    assert!(now().ends_with("6291456\n"), "{}", now());
    ok(&mut pair.fix(&pair.guest, "undo"));
    assert_eq!(now(), before);
}

#[test]
fn a_killed_trial_leaves_no_changes() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("killed") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    // Once it is applied, a run lasts as long as the trial.
    let run = "[ $(sysctl -n net.ipv4.tcp_sack) = 0 ] || exec tail --pid=$PPID -f /dev/null";
    let line = format!("try D19 --interval 1 --runs 2 -- {}", pair.script("run", run));
    let trial = pair.fix(&pair.host, &line).stdout(Stdio::null()).spawn().expect("it starts");
    let trial = Traffic(trial);
    until("it is applied", || sack(&pair) == "1");
    drop(trial);
    until("it is undone", || sack(&pair) == "0");
}
