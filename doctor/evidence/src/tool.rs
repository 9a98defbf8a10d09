//! Runs the tools whose output is evidence, each with a limit on time and bytes.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::source::{PIECE_BYTES_MAX, text_of};

/// How long a tool may take: one that waits for a missing daemon must not block us.
pub(super) const TOOL_SECONDS_MAX: u64 = 10;

/// The output of a tool, in the C locale.
pub fn output(words: &[&str]) -> io::Result<String> {
    output_of(words, Stdio::null())
}

/// The output of the second tool, which reads the output of the first.
pub(super) fn piped(first: &[&str], second: &[&str]) -> io::Result<String> {
    let (tool, rest) = first.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(tool)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pipe = child.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let text = output_of(second, pipe);
    // The tool has ended, or its output has no reader any more.
    let _ = child.kill();
    child.wait()?;
    text
}

fn output_of(words: &[&str], stdin: Stdio) -> io::Result<String> {
    let (tool, rest) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program(tool))
        .args(rest)
        .env("LC_ALL", "C")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = thread::spawn(move || drain(out));
    let err = thread::spawn(move || drain(err));
    let deadline = Instant::now() + Duration::from_secs(TOOL_SECONDS_MAX);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(late());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let join = |thread: thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let (out, err) = (join(out), join(err));
    if !status.success() {
        let said = String::from_utf8_lossy(&err);
        let said = said.lines().next().unwrap_or("it failed and printed nothing");
        return Err(io::Error::other(said.to_owned()));
    }
    text_of(out).map_err(io::Error::other)
}

/// The path of a tool: `ringway` is the program beside this one, wherever both are installed.
fn program(tool: &str) -> PathBuf {
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(tool));
    let ours = beside.filter(|path| tool == "ringway" && path.is_file());
    ours.unwrap_or_else(|| PathBuf::from(tool))
}

/// The error for a tool that took longer.
pub(super) fn late() -> io::Error {
    io::Error::other(format!("no reply in {TOOL_SECONDS_MAX} s"))
}

fn drain(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before a failure is still useful.
        let _ = pipe.take(PIECE_BYTES_MAX + 1).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_reads_what_another_prints() {
        assert_eq!(piped(&["echo", "a"], &["cat"]).expect("both end"), "a\n");
        assert!(piped(&["ringway-no-such-tool"], &["cat"]).is_err());
    }

    #[test]
    fn a_tool_that_fails_says_why() {
        let error = output(&["ls", "no-such-file"]).expect_err("it fails").to_string();
        assert!(error.contains("no-such-file"), "{error}");
        let absent = output(&["ringway-no-such-tool"]).expect_err("it is not there");
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
