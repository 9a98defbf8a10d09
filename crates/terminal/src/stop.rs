//! Ctrl-C and SIGTERM as something that can be polled.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Readable once the process was asked to end. While this exists, the signals have no other effect.
pub struct Stop(UnixStream);

impl Stop {
    /// Takes over SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// If the process has no descriptor or handler left.
    pub fn on_signals() -> io::Result<Stop> {
        Stop::on(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// As [`on_signals`](Stop::on_signals), but signals that a terminal sends to all foreground
    /// processes have no effect: a caller that waits for another process there leaves them to that
    /// one.
    ///
    /// # Errors
    /// If the process has no descriptor or handler left.
    pub fn on_signals_ignoring_terminal() -> io::Result<Stop> {
        for signal in [SIGINT, SIGQUIT] {
            // A handler instead of `SIG_IGN`, because programs that we start would inherit the
            // latter.
            signal_hook::flag::register(signal, Arc::default())?;
        }
        Stop::on(&[SIGTERM, SIGHUP])
    }

    fn on(signals: &[i32]) -> io::Result<Stop> {
        let (ours, theirs) = UnixStream::pair()?;
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, theirs.try_clone()?)?;
        }
        Ok(Stop(ours))
    }

    /// Whether the process was asked to end since the last call.
    ///
    /// # Errors
    /// If the kernel cannot wait for the descriptor.
    pub fn take(&self) -> io::Result<bool> {
        let is_asked = self.wait(Duration::ZERO)?;
        // The buffer holds all that is pending: a signal is one byte.
        if is_asked { Ok((&self.0).read(&mut [0; 64])? > 0) } else { Ok(false) }
    }

    /// Whether the process was asked to end within this time.
    ///
    /// # Errors
    /// If the kernel cannot wait for the descriptor.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(&[self.as_fd()], Some(timeout)).map(|ready| ready.contains(&true))
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until at least one of the descriptors is readable or closed, and returns which are. The
/// result is empty only if the time has passed: a signal in between does not end the wait.
///
/// # Errors
/// If the kernel cannot wait for one of the descriptors.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => return Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
            // Signals that matter are read from a descriptor.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
