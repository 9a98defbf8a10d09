//! The kernel's data on threads of this process: `/proc/self/task`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ringway_sys::process::SchedulerTime;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::detector::{Sample, State};

/// More bytes than either file has.
const TEXT_MAX: usize = 1024;

/// The directory of this process's threads. It stays open, so that Landlock rules that refer to it
/// continue to apply.
#[derive(Debug)]
pub(crate) struct Threads(OwnedFd);

/// The files of one thread.
#[derive(Debug)]
pub(crate) struct Thread {
    stat: OwnedFd,
    schedstat: OwnedFd,
}

impl Threads {
    pub(crate) fn open() -> io::Result<Threads> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Threads(openat(CWD, "/proc/self/task", flags, Mode::empty())?))
    }

    pub(crate) fn thread(&self, id: i32) -> io::Result<Thread> {
        let file = |name: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            openat(&self.0, format!("{id}/{name}"), flags, Mode::empty())
        };
        Ok(Thread { stat: file("stat")?, schedstat: file("schedstat")? })
    }
}

impl Thread {
    pub(crate) fn sample(&self) -> io::Result<Sample> {
        let [stat, schedstat] = [read(&self.stat)?, read(&self.schedstat)?];
        parse(&stat, &schedstat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn read(file: impl AsFd) -> io::Result<String> {
    let mut text = [0; TEXT_MAX];
    let len = rustix::io::pread(file, &mut text, 0)?;
    Ok(String::from_utf8_lossy(text.get(..len).unwrap_or_default()).into_owned())
}

/// Parses `proc_pid_stat(5)` and `schedstat`.
fn parse(stat: &str, schedstat: &str) -> Option<Sample> {
    // The name is in parentheses, and anything may occur in it.
    let state = match stat.rsplit_once(')')?.1.trim_start().chars().next()? {
        'R' => State::Runs,
        'T' | 't' => State::Stopped,
        _ => State::Sleeps,
    };
    let SchedulerTime { cpu, delayed } = SchedulerTime::parse(schedstat)?;
    Some(Sample { cpu, delayed, state })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_files_of_a_thread_are_read_whatever_its_name() {
        let [cpu, delayed] = [1_500_000, 250].map(Duration::from_nanos);
        for (letter, state) in [('R', State::Runs), ('D', State::Sleeps), ('t', State::Stopped)] {
            let stat = format!("42 (a) R (b) {letter} 1 1 1 0 -1");
            let expected = Sample { cpu, delayed, state };
            assert_eq!(parse(&stat, "1500000 250 7\n"), Some(expected));
        }
        for (stat, schedstat) in
            [("", "1 2 3"), ("1 (a) S", ""), ("1 (a) S", "1 x 3"), ("1 (a", "1 2 3")]
        {
            assert_eq!(parse(stat, schedstat), None, "{stat:?} {schedstat:?}");
        }
    }

    #[test]
    fn a_thread_finds_itself_running() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let thread = Threads::open().and_then(|threads| threads.thread(own)).expect("it is there");
        let before = thread.sample().expect("read");
        assert_eq!(before.state, State::Runs);
        while thread.sample().expect("read").cpu == before.cpu {}
        assert!(Threads::open().expect("opened").thread(i32::MAX).is_err());
    }
}
