//! Mini-OS's frontend (`netfront.c`): one queue, one event channel, flat keys, nothing about rx
//! notifications.
//!
//! It writes its keys and `Connected` in one transaction, before it has read the backend, and then
//! waits for that to connect. If the backend goes beyond that state, the frontend gives up. To
//! start over it waits for the backend to reach at least `Closing`, then `Closed`, then an offer,
//! and removes its keys.

use ringway_xenbus::XenbusState::{
    self, Closed, Closing, Connected, InitWait, Initialised, Initialising, Unknown,
};

use super::Side;

/// The state of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MiniOs {
    Starting,
    /// Its keys are written.
    Waiting,
    Up,
    Stopping(XenbusState),
    GaveUp,
}

impl MiniOs {
    pub(crate) fn step(self, side: &mut Side<'_>) -> MiniOs {
        let other = side.other();
        match self {
            MiniOs::Starting => {
                side.write_keys();
                side.set(Connected);
                side.poll_again();
                MiniOs::Waiting
            }
            MiniOs::Waiting => match other {
                Connected => MiniOs::Up,
                Unknown | Initialising | InitWait | Initialised => self,
                _ => MiniOs::GaveUp,
            },
            MiniOs::Stopping(Closing) if matches!(other, Closing | Closed) => {
                side.set(Closed);
                side.poll_again();
                MiniOs::Stopping(Closed)
            }
            MiniOs::Stopping(Closed) if other == Closed => {
                side.set(Initialising);
                side.poll_again();
                MiniOs::Stopping(Initialising)
            }
            MiniOs::Stopping(Initialising) if matches!(other, InitWait | Connected) => {
                side.remove_keys();
                side.poll_again();
                MiniOs::Starting
            }
            _ => self,
        }
    }

    pub(crate) fn restart(self, side: &mut Side<'_>) -> MiniOs {
        match self {
            MiniOs::Up | MiniOs::Waiting => {
                side.set(Closing);
                side.poll_again();
                MiniOs::Stopping(Closing)
            }
            _ => self,
        }
    }
}
