//! What the service manager is told: sd_notify(3), which systemd speaks and others have taken up.
//! Where there is none, nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

/// The service manager that looks after this process, or none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Service {
    pub(crate) watchdog: Option<Duration>,
}

impl Service {
    /// The one that the environment names: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` if it wants signs
    /// of life, of which it gets one each half of that time. Two seconds are the least that works:
    /// the control thread looks every half second.
    pub fn from_env() -> Service {
        Service { watchdog: sd_notify::watchdog_enabled() }
    }

    pub(crate) fn tell(states: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(states) {
            tracing::debug!("the service manager: {error}");
        }
    }
}
