//! SIGHUP, which means two things: the terminal of this process is gone, or an administrator wants
//! it to read its description again.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::PollFlags;

use crate::linux::poll::wait;

/// Readable once SIGHUP has come.
#[derive(Debug)]
pub struct Hangup {
    signals: UnixStream,
    /// What ends this process.
    stop: UnixStream,
    /// Whether its standard input was a terminal at its start.
    had_terminal: bool,
}

impl Hangup {
    /// From the end of a pair of sockets to which a handler of the signal writes, and one to write
    /// to when the terminal is gone.
    pub fn new(signals: UnixStream, stop: UnixStream) -> Hangup {
        Hangup { signals, stop, had_terminal: io::stdin().is_terminal() }
    }

    /// Whether the description should be read again: the signal has come since the last call. If it
    /// has come because the terminal is gone, this process is asked to end instead.
    ///
    /// # Errors
    /// What the descriptors report.
    pub fn take(&self) -> io::Result<bool> {
        let has_come =
            !wait(&[(true, self.as_fd(), PollFlags::IN)], Some(Duration::ZERO))?.is_empty();
        // The buffer holds all that is pending: a signal is one byte.
        if !has_come || (&self.signals).read(&mut [0; 64])? == 0 {
            return Ok(false);
        }
        if self.had_terminal && is_closed(&io::stdin())? {
            (&self.stop).write_all(&[0])?;
            return Ok(false);
        }
        Ok(true)
    }
}

/// Whether what was at the other end is gone. Nothing else is asked for.
fn is_closed(descriptor: &impl AsFd) -> io::Result<bool> {
    Ok(!wait(&[(true, descriptor.as_fd(), PollFlags::empty())], Some(Duration::ZERO))?.is_empty())
}

impl AsFd for Hangup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_count_once() {
        let (signals, handler) = UnixStream::pair().expect("descriptors");
        let (_stop, asked) = UnixStream::pair().expect("descriptors");
        let hangup = Hangup { had_terminal: false, ..Hangup::new(signals, asked) };
        assert!(!hangup.take().expect("nothing has come"));
        (&handler).write_all(&[0, 0]).expect("there is room");
        assert!(hangup.take().expect("it has come"));
        assert!(!hangup.take().expect("both were taken"));
    }

    #[test]
    fn the_other_end_is_closed_when_it_is_gone() {
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        (&theirs).write_all(&[0]).expect("there is room");
        assert!(!is_closed(&ours).expect("it is there"));
        drop(theirs);
        // A process that another test is just starting has it, too, until it executes its program.
        while !is_closed(&ours).expect("it is gone") {
            std::thread::yield_now();
        }
    }
}
