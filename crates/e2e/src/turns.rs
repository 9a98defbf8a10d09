//! Turns of tests that share a machine: some run alone, others beside each other.
//!
//! Turns begin in the order in which tests ask for them. So no test waits for one that asked
//! later, which the locks of the standard library do not promise. The harness starts tests in the
//! order of their names, on a number of threads that its caller chooses.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Shared tests that run at the same time, at most, even if the harness has more threads. Most of
/// them wait for something most of the time, so there are more of them than CPUs.
const SHARED_MAX: usize = 4;

/// Whether a test needs the machine for itself, or runs beside other shared ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone,
    Shared,
}

/// The tests that wait, and those whose turn it is.
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    next_ticket: u64,
    /// Tickets of tests that wait, the first one in front.
    waiting: VecDeque<u64>,
    is_one_alone: bool,
    shared_count: usize,
}

impl State {
    fn has_room(&self, kind: Kind) -> bool {
        match kind {
            Kind::Alone => !self.is_one_alone && self.shared_count == 0,
            Kind::Shared => !self.is_one_alone && self.shared_count < SHARED_MAX,
        }
    }
}

impl Turns {
    pub(crate) const fn new() -> Turns {
        let waiting = VecDeque::new();
        let state = State { next_ticket: 0, waiting, is_one_alone: false, shared_count: 0 };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for a turn, which ends when the result is dropped.
    pub(crate) fn wait(&self, kind: Kind) -> Turn<'_> {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(ticket);
        let must_wait =
            |state: &mut State| state.waiting.front() != Some(&ticket) || !state.has_room(kind);
        let waited = self.changed.wait_while(state, must_wait);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting.pop_front();
        match kind {
            Kind::Alone => state.is_one_alone = true,
            Kind::Shared => state.shared_count += 1,
        }
        drop(state);
        // There may be room for the next one, too.
        self.changed.notify_all();
        Turn { turns: self, kind }
    }

    /// No code panics while it holds the lock, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of a test, which also ends when the test panics.
pub struct Turn<'a> {
    turns: &'a Turns,
    kind: Kind,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        match self.kind {
            Kind::Alone => state.is_one_alone = false,
            Kind::Shared => state.shared_count -= 1,
        }
        drop(state);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{Scope, scope, yield_now};
    use std::time::Duration;

    use super::{Kind, SHARED_MAX, Turn, Turns};

    /// Asks for a turn in another thread, and returns once it waits or has the turn.
    fn ask<'scope>(
        scope: &'scope Scope<'scope, '_>,
        turns: &'scope Turns,
        kind: Kind,
    ) -> Receiver<Turn<'scope>> {
        let before = turns.lock().next_ticket;
        let (sender, turn) = channel();
        scope.spawn(move || {
            // The test keeps the receiver for as long as it waits for the turn.
            let _ = sender.send(turns.wait(kind));
        });
        while turns.lock().next_ticket == before {
            yield_now();
        }
        turn
    }

    /// Long enough for a thread that need not wait.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// How many tests wait. One that asks waits, or has its turn, before others see its ticket.
    fn waiting(turns: &Turns) -> usize {
        turns.lock().waiting.len()
    }

    #[test]
    fn tests_run_beside_each_other_up_to_a_number_and_never_beside_one_that_is_alone() {
        let turns = Turns::new();
        scope(|scope| {
            let mut shared: Vec<Turn<'_>> =
                (0..SHARED_MAX).map(|_| turns.wait(Kind::Shared)).collect();
            let third = ask(scope, &turns, Kind::Shared);
            assert_eq!(waiting(&turns), 1, "there is no room");
            shared.pop();
            shared.push(third.recv_timeout(PATIENCE).expect("there is room"));
            let alone = ask(scope, &turns, Kind::Alone);
            while let Some(one) = shared.pop() {
                assert!(!turns.lock().has_room(Kind::Alone), "one is left");
                assert_eq!(waiting(&turns), 1);
                drop(one);
            }
            let alone = alone.recv_timeout(PATIENCE).expect("all have ended");
            let next = ask(scope, &turns, Kind::Shared);
            assert_eq!(waiting(&turns), 1, "another is alone");
            drop(alone);
            next.recv_timeout(PATIENCE).expect("it has ended");
        });
    }

    #[test]
    fn turns_begin_in_the_order_of_asking() {
        let turns = Turns::new();
        scope(|scope| {
            let first = turns.wait(Kind::Shared);
            let alone = ask(scope, &turns, Kind::Alone);
            let last = ask(scope, &turns, Kind::Shared);
            assert!(turns.lock().has_room(Kind::Shared));
            assert_eq!(waiting(&turns), 2, "it may not overtake");
            drop(first);
            let alone = alone.recv_timeout(PATIENCE).expect("it is next");
            assert_eq!(waiting(&turns), 1, "it is after that");
            drop(alone);
            last.recv_timeout(PATIENCE).expect("it is the last");
        });
    }

    #[test]
    fn a_panic_ends_a_turn() {
        let turns = &Turns::new();
        scope(|scope| {
            for kind in [Kind::Alone, Kind::Shared] {
                let panics = scope.spawn(move || {
                    let _turn = turns.wait(kind);
                    // No message in the output of a test that passes.
                    std::panic::resume_unwind(Box::new(()));
                });
                assert!(panics.join().is_err());
                drop(turns.wait(Kind::Alone));
            }
        });
    }
}
