//! Ctrl-C and SIGTERM as something that can be polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Readable once the process was asked to end. Such signals do nothing else from then on.
pub(crate) struct Stop(UnixStream);

impl Stop {
    /// Takes the signals over.
    pub(crate) fn on_signals() -> io::Result<Stop> {
        let (ours, theirs) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, theirs.try_clone()?)?;
        }
        Ok(Stop(ours))
    }

    /// Whether it was asked within this time.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(&[self.as_fd()], Some(timeout)).map(|ready| ready.contains(&true))
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of some descriptors is readable or closed, and tells which are. None is after
/// the time has passed, or a signal came.
pub(crate) fn wait_readable(
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}
