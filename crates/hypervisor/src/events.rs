//! The event channels of one queue, seen the same way from both ends.

use std::io;
use std::os::fd::BorrowedFd;

use crate::EventChannel;

/// Which ring of a queue an event is about. Directions are the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The guest transmits.
    Tx,
    /// The guest receives.
    Rx,
}

/// How the two ends of a queue wake each other: one event channel a direction, or one for both.
#[derive(Debug)]
pub enum QueueEvents<E> {
    /// `event-channel-tx` and `event-channel-rx`.
    Split {
        /// For the tx ring.
        tx: E,
        /// For the rx ring.
        rx: E,
    },
    /// `event-channel`.
    Single(E),
}

impl<E: EventChannel> QueueEvents<E> {
    /// Notifies the other end of work on a ring. A missing other end is not an error: its successor
    /// polls the rings first.
    ///
    /// # Errors
    /// What the event channel reports.
    pub fn notify(&self, direction: Direction) -> io::Result<()> {
        let event = match (self, direction) {
            (QueueEvents::Split { tx, .. }, Direction::Tx) => tx,
            (QueueEvents::Split { rx, .. }, Direction::Rx) => rx,
            (QueueEvents::Single(both), _) => both,
        };
        match event.notify() {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }

    /// Clears pending events; true if there was one.
    ///
    /// # Errors
    /// What the event channel reports.
    pub fn ack(&self) -> io::Result<bool> {
        match self {
            QueueEvents::Split { tx, rx } => Ok(tx.ack()? | rx.ack()?),
            QueueEvents::Single(both) => both.ack(),
        }
    }

    /// Clears a pending event of one channel, counted in the order of [`visit`](Self::visit); true
    /// if there was one, and nothing if there is no such channel.
    ///
    /// # Errors
    /// What the event channel reports.
    pub fn ack_one(&self, index: usize) -> io::Result<Option<bool>> {
        let channel = match (self, index) {
            (QueueEvents::Split { tx, .. }, 0) => tx,
            (QueueEvents::Split { rx, .. }, 1) => rx,
            (QueueEvents::Single(both), 0) => both,
            _ => return Ok(None),
        };
        channel.ack().map(Some)
    }

    /// Shows each descriptor that becomes readable when an event is pending.
    pub fn visit(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        let wakers = match self {
            QueueEvents::Split { tx, rx } => [tx.waker(), rx.waker()],
            QueueEvents::Single(both) => [both.waker(), None],
        };
        wakers.into_iter().flatten().for_each(visit);
    }
}
