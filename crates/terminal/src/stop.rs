//! Ctrl-C and SIGTERM as something that can be polled.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ringway_sys::hangup::Hangup;
use ringway_sys::poll::{readable, wait, wait_readable};
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

    /// As [`on_signals`](Stop::on_signals), for a process that SIGHUP has read its description
    /// again, unless its terminal is gone.
    ///
    /// # Errors
    /// If the process has no descriptor or handler left.
    pub fn on_signals_and_hangup() -> io::Result<(Stop, Hangup)> {
        let (ours, theirs) = UnixStream::pair()?;
        let stop = Stop::on_signals_with(&[SIGINT, SIGTERM], ours, &theirs)?;
        let (signals, handler) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGHUP, handler)?;
        Ok((stop, Hangup::new(signals, theirs)))
    }

    /// As [`on_signals`](Stop::on_signals), for a process that ends with the one that started it.
    /// SIGHUP has no effect: it may be sent to all processes of a host, as by `systemctl kill`, and
    /// only that one has a description to read again.
    ///
    /// # Errors
    /// If the process has no descriptor or handler left.
    pub fn on_signals_of_child() -> io::Result<Stop> {
        signal_hook::flag::register(SIGHUP, Arc::default())?;
        Stop::on(&[SIGINT, SIGTERM])
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
        Stop::on_signals_with(signals, ours, &theirs)
    }

    fn on_signals_with(signals: &[i32], ours: UnixStream, theirs: &UnixStream) -> io::Result<Stop> {
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
        wait_readable(self, Some(timeout))
    }

    /// Waits until one of these descriptors is readable or closed, the process was asked to end, or
    /// the time has passed. Returns whether it was asked to end.
    ///
    /// # Errors
    /// If the kernel cannot wait for one of the descriptors.
    pub fn wait_beside(
        &self,
        others: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        let is_stop = [readable(true, self)];
        let sources = others.iter().map(|other| readable(false, other)).chain(is_stop);
        Ok(wait(&sources.collect::<Vec<_>>(), timeout)?.contains(&true))
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
