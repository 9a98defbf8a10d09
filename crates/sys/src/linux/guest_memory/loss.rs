//! Shows cheaply that no memory of any front-end was lost.

use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

use crate::linux::guard::lost_count;

/// Runs the checks of one user only after a loss: of any front-end, anywhere in this process. A
/// loss is memory that zeros replaced, or a [`DirtyLog`](super::DirtyLog) without room for a page.
#[derive(Debug)]
pub struct LossCheck {
    /// The process's count of losses when the checks last passed.
    seen: Cell<u32>,
}

impl LossCheck {
    /// The first run is not skipped.
    #[expect(clippy::new_without_default, reason = "its state depends on when it is made")]
    pub fn new() -> LossCheck {
        LossCheck { seen: Cell::new(lost_count().wrapping_sub(1)) }
    }

    /// Runs `check` if there was a loss since it last passed. Costs one load otherwise.
    ///
    /// # Errors
    /// That of the check.
    #[inline]
    pub fn run<E>(&self, check: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let count = lost_count();
        if count == self.seen.get() {
            return Ok(());
        }
        // Orders the count before the signs of the losses that it covers; the partner is in
        // `count_loss`.
        fence(Ordering::Acquire);
        check()?;
        self.seen.set(count);
        Ok(())
    }
}
