//! An intended defect: the check of a producer index is left out.
//!
//! Only the tests of `ringway-sim` use this switch, to verify that their checkers find the
//! consequences. It requires the feature `canary`, which `cargo xtask tidy` lets no other crate
//! enable, and no crate outside of its tests, and debug assertions, which no release build has.

use core::cell::Cell;
use std::thread_local;

thread_local! {
    static ARE_PRODUCERS_UNCHECKED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` without that check, on this thread.
pub fn without_producer_checks<T>(run: impl FnOnce() -> T) -> T {
    let before = ARE_PRODUCERS_UNCHECKED.replace(true);
    let result = run();
    ARE_PRODUCERS_UNCHECKED.set(before);
    result
}

pub(crate) fn are_producers_unchecked() -> bool {
    ARE_PRODUCERS_UNCHECKED.get()
}
