//! What the thread of an engine does between rounds.

use std::time::Instant;

/// What a round that finds no work does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfIdle {
    /// Nothing: the thread starts another round at once.
    Poll,
    /// It asks every queue for an event, so that the thread may sleep.
    Sleep,
}

/// How long the thread may wait before the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: there was work, or there is more.
    Now,
    /// There was no work, and the thread wanted to poll.
    Poll,
    /// Until an event comes, or until this time.
    Until(Instant),
    /// Until an event comes.
    Event,
}
