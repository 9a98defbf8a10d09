//! When to stop: as soon as the user requests it, or when the time is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Checked wherever something waits. The default never ends.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Stop {
    /// Ends once `asked` is set.
    pub fn when(asked: Arc<AtomicBool>) -> Stop {
        Stop { asked, deadline: None }
    }

    /// Also ends this many seconds from now; never, if the number is too large.
    #[must_use]
    pub fn after(&self, seconds: f64) -> Stop {
        let time = Duration::try_from_secs_f64(seconds).ok();
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        Stop { asked: Arc::clone(&self.asked), deadline }
    }

    /// Whether the user has asked to end.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether to end, for either reason.
    pub fn is_due(&self) -> bool {
        self.is_asked() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_due_when_it_is_asked_for_or_the_time_is_up() {
        let asked = Arc::new(AtomicBool::new(false));
        let stop = Stop::when(Arc::clone(&asked));
        assert!(!stop.is_due() && !stop.after(60.0).is_due() && !stop.after(1e300).is_due());
        assert!(stop.after(0.0).is_due() && !stop.after(0.0).is_asked());
        asked.store(true, Ordering::Relaxed);
        assert!(stop.is_due() && stop.after(60.0).is_asked());
    }
}
