//! The quick scenarios, beside honest guests on one of ringway's hosts.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The exit code of the tool on a machine that cannot run guests.
const CANNOT_RUN: i32 = 77;

#[test]
fn hostile_guests_disconnect_no_honest_guest() {
    let tool = env!("CARGO_BIN_EXE_ringway-hostile");
    // Another package's program: `cargo test --workspace` builds it before any test runs.
    let ringway = Path::new(tool).with_file_name("ringway");
    if !ringway.is_file() {
        skip("there is no program ringway: cargo build --package ringway");
        return;
    }
    let mut command = Command::new(tool);
    command.args(["run", "all", "--quick", "--ringway"]).arg(&ringway);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(CANNOT_RUN) {
        skip(err.trim().trim_start_matches("SKIPPED: "));
        return;
    }
    println!("{out}");
    // The step "hostile guests" of `make nightly` has them.
    if std::env::var_os("RINGWAY_NIGHTLY").is_none() {
        say("NIGHTLY: hostile_guests_disconnect_no_honest_guest: its bounds on lost pings");
    }
    assert!(output.status.success(), "{}\n{err}\n{out}", output.status);
}

fn skip(reason: &str) {
    say(&format!("SKIPPED: {reason}"));
}

/// Past the capture of the test harness, so that it is seen.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
