//! `ringway doctor expire`: reverts a transaction that is not confirmed in time.
//!
//! A process in a session of its own, started before the first change: a terminal that closes, a
//! lost link or a killed `apply` does not end it. It reads the journal once a second and ends when
//! the transaction is confirmed or reverted.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_doctor::changes::journal::{self, State};
use ringway_sys::poll::wait_readable;

use super::transaction::give_up;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The run directory of a ringway; it may be relative to the current directory.
const RINGWAY_DIR: &str = "RINGWAY_DIR";
/// What it prints once a terminal can no longer stop it.
const READY: &str = "ready";

#[derive(Debug, Args)]
pub(super) struct Expire {
    id: u64,
    #[arg(long)]
    journal: PathBuf,
    #[arg(long)]
    after: u64,
    /// Also at once when standard input ends
    #[arg(long)]
    with_input: bool,
}

/// Starts one that waits for a given time.
pub(super) fn start(dir: &Path, id: u64, after: Duration) -> Result<()> {
    spawn(dir, id, after, Stdio::null(), &[]).map(drop)
}

/// Starts one that waits until the returned value is dropped, however this process ends.
pub(super) fn start_tied_to_us(dir: &Path, id: u64, after: Duration) -> Result<ChildStdin> {
    let mut child = spawn(dir, id, after, Stdio::piped(), &["--with-input"])?;
    child.stdin.take().context("it has an input")
}

fn spawn(dir: &Path, id: u64, after: Duration, input: Stdio, more: &[&str]) -> Result<Child> {
    // The process changes to `/`, so that it keeps no mount busy.
    let dir = dir.canonicalize()?;
    let mut command = Command::new("/proc/self/exe");
    if let Some(ringway) = std::env::var_os(RINGWAY_DIR) {
        command.env(RINGWAY_DIR, std::path::absolute(ringway)?);
    }
    let mut child = command
        .args(["expire", &id.to_string(), "--after", &after.as_secs().to_string()])
        .arg("--journal")
        .arg(dir)
        .args(more)
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start the process that undoes changes")?;
    let mut line = String::new();
    let output = child.stdout.take().context("it has an output")?;
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() != READY {
        bail!("the process that undoes changes did not start: {}", child.wait()?);
    }
    Ok(child)
}

pub(super) fn run(args: &Expire) -> Result<()> {
    rustix::process::setsid().context("a session of its own")?;
    writeln!(io::stdout(), "{READY}")?;
    let deadline = Instant::now() + Duration::from_secs(args.after);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_over = wait(args, left.min(LOOK_EVERY))? || left.is_zero();
        let state = journal::read(&args.journal, args.id)?.state;
        if matches!(state, State::Confirmed | State::Undone) {
            return Ok(());
        }
        if is_over {
            give_up(&args.journal, args.id)?;
            return Ok(());
        }
    }
}

/// Whether our parent is gone, which shows as the end of our input.
fn wait(args: &Expire, time: Duration) -> Result<bool> {
    if args.with_input {
        return Ok(wait_readable(&io::stdin(), Some(time))?);
    }
    std::thread::sleep(time);
    Ok(false)
}
