//! A log of the steps of a world, in words.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Steps that are kept for the report of a failure.
const STEPS_KEPT: usize = 50;

/// The log. Clones refer to the same one.
#[derive(Debug, Clone)]
pub(crate) struct Journal(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    detail: Detail,
    steps: u64,
    last: VecDeque<String>,
}

/// What to do with steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// They are only counted, which is fast. The world can be run again for the words.
    Counted,
    /// The last ones are kept.
    Kept,
    /// Each is printed to standard output, too.
    Printed,
}

impl Journal {
    pub(crate) fn new(detail: Detail) -> Journal {
        Journal(Rc::new(RefCell::new(State { detail, steps: 0, last: VecDeque::new() })))
    }

    /// Counts the beginning of a step.
    pub(crate) fn count_step(&self) {
        self.0.borrow_mut().steps += 1;
    }

    /// Records what happens in a step.
    pub(crate) fn note(&self, words: impl FnOnce() -> String) {
        let mut state = self.0.borrow_mut();
        if state.detail == Detail::Counted {
            return;
        }
        let line = format!("{:>6}  {}", state.steps, words());
        if state.detail == Detail::Printed {
            println!("{line}");
        }
        if state.last.len() >= STEPS_KEPT {
            state.last.pop_front();
        }
        state.last.push_back(line);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.0.borrow().steps
    }

    /// The last steps, the oldest first.
    pub(crate) fn last(&self) -> Vec<String> {
        self.0.borrow().last.iter().cloned().collect()
    }
}
