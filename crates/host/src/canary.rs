//! An intended defect: what was done for a vif that could not be attached is not undone.
//!
//! Only the tests of `ringway-sim` use this switch, to verify that their checkers find the
//! consequences. It requires the feature `canary`, which `cargo xtask tidy` lets no other crate
//! enable, and no crate outside of its tests, and debug assertions, which no release build has.

use std::cell::Cell;

thread_local! {
    static IS_NOTHING_UNDONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` without undoing anything, on this thread.
pub fn without_undo<T>(run: impl FnOnce() -> T) -> T {
    let before = IS_NOTHING_UNDONE.replace(true);
    let result = run();
    IS_NOTHING_UNDONE.set(before);
    result
}

pub(crate) fn is_nothing_undone() -> bool {
    IS_NOTHING_UNDONE.get()
}
