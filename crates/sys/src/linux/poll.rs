//! Waiting for several descriptors with poll(2), and the loop of a control thread around it.
//!
//! All ready sources are reported together, so one that is always ready delays no other. A thread
//! lists its sources again before each wait: what it has removed is never reported.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

pub use rustix::event::PollFlags;
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// A descriptor that is ready when one of these events happens, or an error. The token names it.
pub type Source<'fd, T> = (T, BorrowedFd<'fd>, PollFlags);

/// A descriptor that is ready when it is readable or closed.
pub fn readable<T>(token: T, source: &impl AsFd) -> Source<'_, T> {
    (token, source.as_fd(), PollFlags::IN)
}

/// Waits until a source is ready, and returns the tokens of all that are, in the order of the
/// sources: no token if `limit` has passed, which a signal does not shorten.
///
/// # Errors
/// What poll(2) reports, such as too many descriptors.
pub fn wait<T: Copy>(sources: &[Source<'_, T>], limit: Option<Duration>) -> io::Result<Vec<T>> {
    let polled = sources.iter().map(|(_, fd, events)| PollFd::from_borrowed_fd(*fd, *events));
    let mut polled: Vec<PollFd<'_>> = polled.collect();
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, left.as_ref()) {
            // Signals that matter are read from a descriptor.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let ready = sources.iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
    Ok(ready.map(|((token, ..), _)| *token).collect())
}

/// Waits until a descriptor is readable or closed; false if `limit` has passed before.
///
/// # Errors
/// As [`wait`].
pub fn wait_readable(source: &impl AsFd, limit: Option<Duration>) -> io::Result<bool> {
    wait(&[readable((), source)], limit).map(|ready| !ready.is_empty())
}

/// What a control thread does: turns, with waits between them.
pub trait Turns {
    /// Names the sources of its events.
    type Token: Copy + PartialEq;

    /// The token of the source that ends the loop.
    const STOP: Self::Token;

    /// Does what there is to do, in bounded steps, and returns how long the next turn may wait if
    /// no source is ready. `ready` has the sources that were ready after the last wait; one that
    /// still is will be so in the next turn.
    ///
    /// # Errors
    /// Why the thread cannot continue.
    fn turn(&mut self, ready: &[Self::Token]) -> io::Result<Option<Duration>>;

    /// The sources that exist now.
    fn sources(&self) -> Vec<Source<'_, Self::Token>>;

    /// Waits for the next turn.
    ///
    /// # Errors
    /// As [`wait`].
    fn wait(
        &self,
        sources: &[Source<'_, Self::Token>],
        pause: Option<Duration>,
    ) -> io::Result<Vec<Self::Token>> {
        wait(sources, pause)
    }
}

/// Gives a control thread its turns, until `stop` is readable.
///
/// # Errors
/// Those of its turns and waits.
pub fn take_turns<T: Turns>(thread: &mut T, stop: &impl AsFd) -> io::Result<()> {
    let mut ready = Vec::new();
    while !ready.contains(&T::STOP) {
        let pause = thread.turn(&ready)?;
        let mut sources = thread.sources();
        sources.push(readable(T::STOP, stop));
        ready = thread.wait(&sources, pause)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
