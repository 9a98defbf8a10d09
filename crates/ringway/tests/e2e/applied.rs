//! Sick set-ups of two network namespaces: the doctor finds the problem and fixes it, and the
//! set-up becomes faster by a factor. Unconfirmed changes are reverted.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::knobs::is_inconclusive;
use crate::pair::{GUEST, Load, Pair, TOOLS, Traffic, VIF, inside, ok, text, until};
use crate::{shared_turn, turn};

#[test]
fn offloads_that_are_off_are_turned_on() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("offload") else { return };
    ok(&mut pair.on_host(&format!("ethtool -K {VIF} tso off gso off sg off tx off gro off")));
    // The gain is only printed: with both ends busy on few CPUs, it is a factor of 1.4 or less.
    pair.diagnose_fix_and_race(&pair.host, "D13", Load::Idle, 0.0);
    let features = text(&ok(&mut pair.on_host(&format!("ethtool -k {VIF}"))).stdout);
    assert!(features.contains("tcp-segmentation-offload: off"), "{features}");
}

#[test]
fn windows_are_scaled_again_on_a_long_link() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::far("window") else { return };
    ok(inside(&pair.guest, "sysctl -qw net.ipv4.tcp_window_scaling=0"));
    pair.diagnose_fix_and_race(&pair.guest, "D19", Load::Idle, 2.0);
}

#[test]
fn send_buffers_grow_to_the_capacity_of_the_path() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::far("buffer") else { return };
    // What the doctor reports about the path.
    ok(&mut pair.on_host(&format!("ethtool -s {VIF} speed 10000 duplex full autoneg off")));
    ok(pair.on_host("sysctl -qw").arg("net.ipv4.tcp_wmem=4096 16384 65536"));
    pair.diagnose_fix_and_race(&pair.host, "D11", Load::Busy, 1.5);
}

#[test]
fn a_limit_that_is_reached_is_removed() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("limit") else { return };
    let tbf = "root tbf rate 50mbit burst 64kb latency 50ms";
    ok(&mut pair.on_host(&format!("tc qdisc add dev {VIF} {tbf}")));
    pair.diagnose_fix_and_race(&pair.host, "D30", Load::Busy, 3.0);
    let shown = text(&ok(&mut pair.on_host(&format!("tc qdisc show dev {VIF} root"))).stdout);
    assert!(shown.contains("tbf") && shown.contains("rate 50Mbit"), "{shown}");
}

/// How many of five long packets get a reply.
fn long_replies(pair: &Pair) -> usize {
    let mut ping = pair.on_host(&format!("ping -c 5 -i 0.2 -W 1 -M do -s 8000 {GUEST}"));
    let output = ping.output().expect("it starts");
    text(&output.stdout).lines().filter(|line| line.contains("bytes from")).count()
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
    assert_eq!(long_replies(&pair), 0);
    let found = pair.doctor(&pair.host, "--check D08 --interval 1").output().expect("it starts");
    assert!(text(&found.stdout).contains("joins own-port of MTU 9000"), "{}", text(&found.stdout));
    let refused = pair.fix(&pair.host, "apply D08 --interval 1").output().expect("it starts");
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(text(&refused.stdout).contains("--allow-disruptive"), "{}", text(&refused.stdout));
    assert_eq!(long_replies(&pair), 0);
    ok(&mut pair.fix(&pair.host, "apply D08 --interval 1 --allow-disruptive"));
    assert_eq!(long_replies(&pair), 5);
    ok(&mut pair.fix(&pair.host, "undo"));
    assert_eq!(long_replies(&pair), 0);
}

fn sack(pair: &Pair) -> String {
    text(&ok(&mut pair.on_host("cat /proc/sys/net/ipv4/tcp_sack")).stdout).trim().to_owned()
}

#[test]
fn an_unconfirmed_change_is_undone_even_if_the_terminal_closed() {
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("revert") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    ok(&mut pair.fix(&pair.host, "apply D19 --interval 1 --dry-run"));
    assert_eq!(sack(&pair), "0");
    let mut apply = pair.fix(&pair.host, "apply D19 --interval 1 --confirm-within 4");
    let mut apply = apply.process_group(0).stdout(Stdio::null()).spawn().expect("it starts");
    let group = rustix::process::Pid::from_child(&apply);
    assert!(apply.wait().expect("it ends").success());
    assert_eq!(sack(&pair), "1");
    // As the kernel does when the terminal closes. The group may have no process left.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::HUP);
    until("it is undone", || sack(&pair) == "0");
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
    let Some(_turn) = turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("trial") else { return };
    let off = format!("ethtool -K {VIF} tso off gso off sg off tx off gro off");
    ok(&mut pair.on_host(&off));
    let iperf = pair.iperf(1);
    // A number of which more is worse.
    let number = "\"bits_per_second\":\\s*([0-9.e+]+)";
    let line =
        format!("try D13 --runs 4 --interval 1 --number {number} --lower-is-better -- {iperf}");
    let worse = pair.fix(&pair.host, &line).output().expect("it starts");
    let printed = text(&worse.stdout) + &text(&worse.stderr);
    let is_refused = worse.status.code() == Some(3) && printed.contains("worse");
    if !is_refused && is_inconclusive("a trial of what is worse", &printed) {
        return;
    }
    assert!(is_refused, "{printed}");
    let is_on = || {
        let features = text(&ok(&mut pair.on_host(&format!("ethtool -k {VIF}"))).stdout);
        features.contains("tcp-segmentation-offload: on")
    };
    assert!(!is_on());
    let line = format!("try D13 --runs 4 --interval 1 --iperf3 -- {iperf}");
    let kept = pair.fix(&pair.host, &line).output().expect("it starts");
    let printed = text(&kept.stdout) + &text(&kept.stderr);
    if kept.status.code() == Some(3) && is_inconclusive("a trial of what helps", &printed) {
        return assert!(!is_on(), "what is not kept is undone: {printed}");
    }
    assert!(kept.status.success() && printed.contains("is kept"), "{printed}");
    assert!(is_on());
}

#[test]
fn a_trial_keeps_larger_receive_buffers_on_a_long_link() {
    let Some(_turn) = turn(&TOOLS) else { return };
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
    let mut trial = pair.fix(&pair.host, "try D19 --interval 1 --runs 50 -- sleep 0.05");
    let trial = trial.stdout(Stdio::null()).spawn().expect("it starts");
    let trial = Traffic(trial);
    until("it is applied", || sack(&pair) == "1");
    drop(trial);
    until("it is undone", || sack(&pair) == "0");
}
