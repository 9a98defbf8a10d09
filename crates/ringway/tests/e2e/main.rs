//! The program itself, from its command line: hosts, guests, real traffic, and what happens when
//! any of them is killed.
//!
//! Each test has a run directory and a network of its own. A test takes a [`shared_turn`] and runs
//! beside another such test, if it uses nothing that two tests would share. All other tests take a
//! [`turn`], and run alone:
//!
//! - those with limits for a time, a rate, a loss or a load, in which a neighbour would show;
//! - those that use or inspect the whole machine: its namespaces, processes, CPUs or trace buffers.
//!
//! If in doubt, a new test takes a `turn`.

mod applied;
mod backend;
mod completion;
mod confinement;
mod demo;
mod discovered;
mod dpdk;
mod everywhere;
mod gathered;
mod greedy;
mod guests;
mod host;
mod hostile;
mod isolated;
mod knobs;
mod lab;
mod libvirt;
mod lifetime;
mod limits;
mod machine;
mod migration;
mod mirrors;
mod multicast;
mod narrow;
mod pair;
mod panics;
mod paths;
mod peer;
mod permitted;
mod persisted;
mod records;
mod refusals;
mod reported;
mod reverted;
mod rogues;
mod rules;
mod segment;
mod service;
mod services;
mod shared_sockets;
mod store;
mod toolstack;
mod toolstacks;
mod traffic;
mod turns;
mod unikernel;
mod vhost;
mod virtio;
mod virtio_vifs;
mod watched;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use turns::{Kind, Turn, Turns};

static TURNS: Turns = Turns::new();

/// Waits for the turn of a test that runs alone. It ends when the result is dropped. If this
/// machine lacks what the test needs, programs or permission to create networks, prints that and
/// returns `None`.
fn turn(programs: &[&str]) -> Option<Turn<'static>> {
    turn_of(Kind::Alone, programs)
}

/// The same for a test that may run beside other shared ones.
fn shared_turn(programs: &[&str]) -> Option<Turn<'static>> {
    turn_of(Kind::Shared, programs)
}

fn turn_of(kind: Kind, programs: &[&str]) -> Option<Turn<'static>> {
    let turn = TURNS.wait(kind);
    match missing(programs) {
        None => Some(turn),
        Some(reason) => {
            // It bypasses the test harness's capture, so that it is visible.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
            None
        }
    }
}

fn missing(programs: &[&str]) -> Option<String> {
    if let Err(error) = std::fs::OpenOptions::new().write(true).open("/dev/net/tun") {
        return Some(format!("/dev/net/tun: {error}"));
    }
    let mut command = Command::new("unshare");
    match quiet(command.args(["--user", "--map-root-user", "--net", "true"])) {
        Ok(status) if status.success() => {}
        _ if rustix::process::geteuid().is_root() => {}
        _ => return Some("neither root nor allowed to make a user namespace".to_owned()),
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> = std::env::split_paths(&path).collect();
    let is_there = |program: &Path| places.iter().any(|place| place.join(program).is_file());
    let program = programs.iter().find(|program| !is_there(Path::new(program)))?;
    Some(format!("{program} is not installed"))
}

fn quiet(command: &mut Command) -> std::io::Result<std::process::ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
}
