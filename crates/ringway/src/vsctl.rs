//! Runs `ovs-vsctl`, and `ovs-appctl`, which may hang.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use ringway_sys::poll::wait_readable;
use rustix::fs::{FlockOperation, MemfdFlags, flock, memfd_create};
use rustix::io::retry_on_intr;

use crate::host::{ProcessEnd, as_pid};

/// The program.
const VSCTL: &str = "ovs-vsctl";
/// The program that asks the switch itself.
const APPCTL: &str = "ovs-appctl";
/// How long it may take: it waits until the switch has done what it asks for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a program's output that are read: the interfaces of several thousand vifs.
const OUTPUT_MAX: u64 = 4 << 20;
/// Characters of a program's complaint that are shown.
const COMPLAINT_MAX: usize = 300;

/// Whether this machine has that program.
pub(crate) fn has_vsctl() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(VSCTL).is_file())
}

/// Waits until the process before that has asked these programs, and the program that it ran, have
/// ended. The lock is the file's.
///
/// # Errors
/// What the system reports, such as that there is no such file.
pub(crate) fn wait_for_lock(file: &Path) -> io::Result<File> {
    let lock = OpenOptions::new().write(true).open(file)?;
    retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
    Ok(lock)
}

/// Runs `ovs-vsctl` with these arguments. It has the lock, too, until it ends.
///
/// # Errors
/// One sentence with the reason.
pub(crate) fn vsctl(arguments: &[String], lock: &File) -> Result<String, String> {
    // It ends even if this process is gone by then.
    let timeout = format!("--timeout={}", 2 * PATIENCE.as_secs());
    run(Path::new(VSCTL), &[&[timeout][..], arguments].concat(), PATIENCE, lock)
}

/// What the switch says of its version. It has the lock, too, until it ends.
///
/// # Errors
/// One sentence with the reason, such as that the switch does not run.
pub(crate) fn switch_version(lock: &File) -> Result<String, String> {
    let timeout = format!("--timeout={}", 2 * PATIENCE.as_secs());
    run(Path::new(APPCTL), &[timeout, "version".to_owned()], PATIENCE, lock)
}

/// Runs a program with these arguments and this standard input, which `ovs-vsctl` does not read,
/// and returns its output. It is killed after `patience`.
///
/// # Errors
/// One sentence: the program is missing, hangs, or complains.
pub(crate) fn run(
    program: &Path,
    arguments: &[String],
    patience: Duration,
    stdin: &File,
) -> Result<String, String> {
    let name = program.display();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => {
            format!("{name} was not found: install Open vSwitch, and start ringway again")
        }
        _ => format!("{name}: {error}"),
    };
    // Files, so that a long output does not have to be read while the program runs.
    let file = || memfd_create("output", MemfdFlags::CLOEXEC).map(File::from);
    let [output, complaint] = [file(), file()].map(|file| file.map_err(|it| failed(it.into())));
    let (mut output, mut complaint) = (output?, complaint?);
    let spawned = output.try_clone().and_then(|stdout| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(stdin.try_clone()?).stdout(stdout);
        command.stderr(complaint.try_clone()?).spawn()
    });
    let mut child = spawned.map_err(failed)?;
    let has_ended = has_ended(&child, patience);
    if !matches!(has_ended, Ok(true)) {
        // It may have ended just now.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    if !has_ended.map_err(failed)? {
        let seconds = patience.as_secs();
        return Err(format!(
            "{name} has not ended within {seconds} s and was killed: does ovs-vswitchd run?"
        ));
    }
    let output = text(&mut output).map_err(failed)?;
    if status.success() {
        return Ok(output);
    }
    let complaint = text(&mut complaint).map_err(failed)?;
    let complaint = complaint.trim().lines().collect::<Vec<_>>().join("; ");
    match complaint.is_empty() {
        true => Err(format!("{name}: {status}")),
        false => Err(complaint.chars().take(COMPLAINT_MAX).collect()),
    }
}

/// Waits until the program has ended; false if it has not within this time.
fn has_ended(child: &Child, patience: Duration) -> io::Result<bool> {
    let pid = as_pid(child.id()).ok_or(ErrorKind::NotFound)?;
    wait_readable(&ProcessEnd::of_child(pid)?, Some(patience))
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::process::{Signal, kill_process};

    use super::*;

    fn shell(text: &str, patience: Duration) -> Result<String, String> {
        run(Path::new("sh"), &["-c".to_owned(), text.to_owned()], patience, &nothing())
    }

    fn nothing() -> File {
        File::open("/dev/null").expect("each machine has it")
    }

    const LONG: Duration = Duration::from_secs(600); // not a limit: longer than any test

    #[test]
    fn the_output_or_the_complaint_of_a_program_is_returned() {
        assert_eq!(shell("echo out; echo error >&2", LONG), Ok("out\n".to_owned()));
        let complaint = shell("echo 'sh: no bridge' >&2; exit 1", LONG);
        assert_eq!(complaint, Err("sh: no bridge".to_owned()));
        assert!(shell("exit 3", LONG).is_err_and(|error| error.contains("exit status: 3")));
        let long = shell("yes | head -c 100000 >&2; exit 1", LONG).expect_err("it fails");
        assert!(long.len() < 400, "{long}");
        // More than a pipe would hold.
        let long = shell("yes | head -c 1000000", LONG).expect("it is written");
        assert_eq!(long.len(), 1_000_000);
    }

    #[test]
    fn the_lock_is_free_when_all_that_have_it_have_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || File::open(dir.path()).expect("it is there");
        let lock = open();
        flock(&lock, FlockOperation::LockExclusive).expect("it is free");
        // As a program that is still there when this process was killed.
        let words = ["-c".to_owned(), "exec 3<&0; sleep 100000 <&3 & echo $!".to_owned()];
        let output = run(Path::new("sh"), &words, LONG, &lock).expect("it ends");
        drop(lock);
        let taken = flock(open(), FlockOperation::NonBlockingLockExclusive);
        let program = output.trim().parse().ok().and_then(as_pid).expect("a process");
        kill_process(program, Signal::KILL).expect("it runs");
        assert_eq!(taken, Err(Errno::WOULDBLOCK));
        flock(open(), FlockOperation::LockExclusive).expect("it is free again");
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_one_that_is_missing_named() {
        let hung = shell("exec sleep 100000", Duration::from_millis(10));
        assert!(hung.is_err_and(|error| error.contains("sh has not ended within 0 s")));
        let missing = run(Path::new("ovs-vsctl-missing"), &[], LONG, &nothing());
        assert!(missing.is_err_and(|error| error.contains("install Open vSwitch")));
    }
}
