//! What the tests of whole programs share: hosts that run for one test, networks, machines, load,
//! and turns.
//!
//! Each test has a run directory and a network of its own, and takes one of four turns:
//!
//! - [`shared_turn`]: runs beside other tests. It asserts an order, a count or a state, which a
//!   busy machine does not change.
//! - [`turn`]: runs alone, because it uses or inspects the whole machine: its namespaces,
//!   processes, CPUs or trace buffers. A comment says what.
//! - [`measured_turn`]: also has bounds on a time, a rate or a load. They hold on a quiet machine
//!   only, so `make nightly` asserts them, and such a test runs alone there. In `make test` it runs
//!   beside others and asserts the rest.
//! - [`nightly_turn`]: only `make nightly` runs it, alone, since it takes minutes.
//!
//! If in doubt, a new test takes a `shared_turn`.

pub mod browser;
pub mod host;
pub mod machine;
pub mod pair;
pub mod stream;
pub mod traffic;
mod turns;
pub mod virtio_guest;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringway_rig::cpu_time::{QUIET_PATIENCE, becomes_quiet};
use turns::{Kind, Turns};

pub use turns::Turn;

static TURNS: Turns = Turns::new();
/// Set by `make nightly`.
const NIGHTLY: &str = "RINGWAY_NIGHTLY";

/// Waits for the turn of a test that runs alone. It ends when the result is dropped. If this
/// machine lacks what the test needs, programs or permission to create networks, prints that and
/// returns `None`.
pub fn turn(programs: &[&str]) -> Option<Turn<'static>> {
    turn_of(Kind::Alone, programs)
}

/// The turn of a test that may run beside other shared ones.
pub fn shared_turn(programs: &[&str]) -> Option<Turn<'static>> {
    turn_of(Kind::Shared, programs)
}

/// The turn of a test that only `make nightly` runs. `why` completes "only make nightly runs it: ".
pub fn nightly_turn(why: &str, programs: &[&str]) -> Option<Turn<'static>> {
    if !is_nightly() {
        say(&format!("NIGHTLY: {}: {why}", test_name()));
        return None;
    }
    turn(programs)
}

/// The turn of a test with bounds on time, and whether it asserts them.
pub struct Measured {
    _turn: Turn<'static>,
    /// Whether bounds on time hold here and now.
    pub is_quiet: bool,
}

/// The turn of a test with bounds on a time, a rate or a load.
pub fn measured_turn(programs: &[&str]) -> Option<Measured> {
    if !is_nightly() {
        let turn = shared_turn(programs)?;
        say(&format!("NIGHTLY: {}: its bounds on time", test_name()));
        return Some(Measured { _turn: turn, is_quiet: false });
    }
    let turn = turn(programs)?;
    let is_quiet = becomes_quiet(QUIET_PATIENCE);
    if !is_quiet {
        say(&format!("SKIPPED: bounds on time of {}: other work uses the CPUs", test_name()));
    }
    Some(Measured { _turn: turn, is_quiet })
}

/// Whether `make nightly` runs this test.
pub fn is_nightly() -> bool {
    std::env::var_os(NIGHTLY).is_some()
}

/// The harness gives each test a thread that is named after it.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Prints a line that is visible although the harness captures the output of tests that pass.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A program of this repository, where cargo puts it when it builds the tests.
///
/// # Panics
/// It was not built.
pub fn program(name: &str) -> PathBuf {
    let ours = std::env::current_exe().expect("a test has a file");
    let path = ours.ancestors().nth(2).expect("a test is in a folder of its profile's").join(name);
    assert!(path.is_file(), "{}: cargo build --package {name}", path.display());
    path
}

fn turn_of(kind: Kind, programs: &[&str]) -> Option<Turn<'static>> {
    let turn = TURNS.wait(kind);
    match missing(programs) {
        None => Some(turn),
        Some(reason) => {
            say(&format!("SKIPPED: {}: {reason}", test_name()));
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

/// Runs a command without input and output.
///
/// # Errors
/// It does not start.
pub fn quiet(command: &mut Command) -> std::io::Result<std::process::ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
}
