//! The log: lines on standard error, each with the name of its process.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::PanicHookInfo;
use std::{env, panic, thread};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Starts the log of this process. The command line itself has an empty name.
///
/// In the journal, lines have the priority of their level, and no time, as each entry has one.
pub fn start(level: LevelFilter, process: &str) {
    let process = if process.is_empty() { String::new() } else { format!("{process}: ") };
    let is_journal = is_journal(&io::stderr());
    if is_journal {
        let process = process.clone();
        panic::set_hook(Box::new(move |panic| report_panic(&process, panic)));
    }
    let log = Log { process, is_journal };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(log);
    if is_journal { lines.without_time().init() } else { lines.init() }
}

/// Reports on standard error why a program ends. All programs of ringway use the name of the one
/// that users start.
pub(crate) fn report(error: &anyhow::Error) {
    eprintln!("{}ringway: {error:#}", beginning(&io::stderr(), Level::ERROR));
}

/// Writes into the journal what Rust's own hook writes, with the priority of an error. An event
/// would not do: the log may be off, or where the panic is.
fn report_panic(process: &str, panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text += &format!("stack backtrace:\n{backtrace}\n");
    }
    let line = Line { priority: priority(Level::ERROR), process };
    let _ = io::stderr().write_all(&line.with(text.as_bytes()));
}

/// What a line of this level begins with: its priority if `output` leads to the journal, else
/// nothing.
pub fn beginning(output: &impl AsFd, level: Level) -> &'static str {
    if is_journal(output) { priority(level) } else { "" }
}

/// Whether `output` leads to the journal: systemd.exec(5), `JOURNAL_STREAM`. A process that has
/// inherited the variable may have another output.
fn is_journal(output: &impl AsFd) -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let found = output.as_fd().try_clone_to_owned().map(File::from);
    let found = found.and_then(|output| output.metadata());
    found.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// What a line begins with to have this priority in the journal: sd-daemon(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Where the events of this process go.
struct Log {
    process: String,
    is_journal: bool,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { priority: "", process: &self.process }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Line<'a> {
        let priority = if self.is_journal { priority(*event.level()) } else { "" };
        Line { priority, process: &self.process }
    }
}

/// Writes an event as one piece, so that lines of several processes do not mix.
struct Line<'a> {
    priority: &'static str,
    process: &'a str,
}

impl Line<'_> {
    /// An event with the name of its process. Each of its lines has a priority, since each is an
    /// entry of the journal.
    fn with(&self, event: &[u8]) -> Vec<u8> {
        let (mut text, mut process) = (Vec::new(), self.process);
        for line in event.split_inclusive(|byte| *byte == b'\n') {
            text.extend([self.priority.as_bytes(), process.as_bytes(), line].concat());
            process = "";
        }
        text
    }
}

impl Write for Line<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        // If standard error is closed, no one wants the log.
        let _ = io::stderr().write_all(&self.with(event));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_an_event_has_a_priority_in_the_journal() {
        let line = Line { priority: priority(Level::WARN), process: "backend: " };
        assert_eq!(line.with(b"two\nlines\n"), b"<4>backend: two\n<4>lines\n");
        let line = Line { priority: "", process: "" };
        assert_eq!(line.with(b"two\nlines\n"), b"two\nlines\n");
    }
}
