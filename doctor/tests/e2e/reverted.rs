//! Changes for findings about routes, ports and connections: a host is made as a fixture says, the
//! problem is found, changed, and reverted by `undo`; and by its time limit if `apply` is killed
//! right after the change.

use std::process::{Command, Stdio};

use ringway_e2e::pair::{Pair, TOOLS, Traffic, inside, ok, text, until};
use ringway_e2e::shared_turn;

use crate::saved;

/// Programs that the commands in fixtures name.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/saved/programs.sh");

#[test]
fn changes_of_next_hops_are_reverted() {
    assert_reverted("d39", "/proc/sys/net/ipv4/fib_multipath_use_neigh", "0", &[]);
}

#[test]
fn changes_of_mtu_probing_are_reverted() {
    assert_reverted("d44", "/proc/sys/net/ipv4/tcp_mtu_probing", "0", &["nft"]);
}

#[test]
fn changes_of_the_port_range_are_reverted() {
    assert_reverted("d48", "/proc/sys/net/ipv4/ip_local_port_range", "60000\t60049", &["python3"]);
}

/// `before` is the setting's value on that host, which needs `programs` besides the usual ones.
fn assert_reverted(check: &str, setting: &str, before: &str, programs: &[&str]) {
    let Some(_turn) = shared_turn(&[&TOOLS, programs].concat()) else { return };
    let Some(pair) = Pair::linked(check) else { return };
    let _traffic = make(&format!("{check}-sick-recorded"), &pair);
    let value = || {
        let read = inside(&pair.host, &format!("cat {setting}")).output().expect("it starts");
        text(&read.stdout).trim().to_owned()
    };
    until("it is as sick as it is to be", || value() == before);
    let apply = |seconds: u32| {
        pair.fix(&pair.host, &format!("apply {check} --interval 1 --confirm-within {seconds}"))
    };
    // The symptoms take a while to appear, and longer on a busy machine.
    until("it is found and set", || {
        let _ = apply(120).output().expect("it starts");
        value() != before
    });
    eprintln!("{check}: {setting}: {before} -> {}", value());
    ok(&mut pair.fix(&pair.host, "undo"));
    assert_eq!(value(), before, "{setting}");
    until("it is set, and apply killed", || killed(&pair, &mut apply(3), || value() != before));
    until("it is undone all the same", || value() == before);
}

/// Makes the host of a fixture by the commands in its `made`. Its traffic ends with the result.
fn make(name: &str, pair: &Pair) -> Vec<Traffic> {
    let about: toml::Table = saved::fixture(name).about.parse().expect("TOML");
    let mut traffic = Vec::new();
    for line in about["made"].as_str().expect("text").lines() {
        let (end, command) = line.split_once(' ').expect("an end and a command");
        let netns = if end.starts_with("host") { &pair.host } else { &pair.guest };
        let mut bash = inside(netns, "bash -c");
        let bash = bash.arg(command).env("BASH_ENV", PROGRAMS).stdin(Stdio::null());
        if end.ends_with('$') {
            ok(bash);
        } else {
            let quiet = bash.stdout(Stdio::null()).stderr(Stdio::null());
            traffic.push(Traffic(quiet.spawn().expect("it starts")));
        }
    }
    traffic
}

/// Kills `apply` as soon as its change is visible; returns whether it was.
fn killed(pair: &Pair, apply: &mut Command, mut is_set: impl FnMut() -> bool) -> bool {
    let quiet = apply.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut apply = quiet.spawn().expect("it starts");
    loop {
        let is_over = apply.try_wait().expect("ours").is_some();
        if is_set() {
            let _ = apply.kill();
            let _ = apply.wait();
            let journal = text(&ok(&mut pair.fix(&pair.host, "journal")).stdout);
            assert!(!journal.is_empty(), "it is written before anything is set");
            return true;
        }
        if is_over {
            return false;
        }
    }
}
