//! Linux's frontend (`drivers/net/xen-netfront.c`, `drivers/xen/xenbus/xenbus_probe_frontend.c`).
//!
//! It connects only from `Initialising`. It follows a backend that closes to `Closed`, and stays
//! there until its driver is bound again. To unbind the driver it goes through `Closing` and
//! `Closed`, and each time waits until it finds the backend in the matching state; states in
//! between that it did not see do not count. It does not remove the keys of an earlier connection.
//!
//! A kernel that replaces a crashed one finds both ends connected. It leads the backend back to an
//! offer by writing `Closing`, `Closed` and `Initialising`, and waits at most five seconds for it
//! to follow each time.

use ringway_xenbus::XenbusState::{Closed, Closing, Connected, InitWait, Initialising, Unknown};

use super::Side;

/// The state of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linux {
    Bound,
    /// It waits for the backend to leave `Closed`, and gets no notification before that.
    Binding,
    /// To be bound again.
    Unbinding(Unbinding),
    /// A new kernel that has written this state, and waits for the backend to follow.
    Resetting(Reset),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unbinding {
    /// It has written `Closing`, and waits for the backend to reach at least that state.
    Closing,
    /// It has written `Closed`, and waits for the backend to reach that state.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reset {
    Closing,
    Closed,
    Initialising,
}

impl Linux {
    pub(crate) fn step(self, side: &mut Side<'_>) -> Linux {
        let (own, other) = (side.own(), side.other());
        match self {
            Linux::Bound => {
                match other {
                    InitWait if own == Initialising => {
                        side.write_keys();
                        side.set(Connected);
                    }
                    // It may have missed `Closing`.
                    Closing | Closed if own != Closed => side.set(Closed),
                    _ => {}
                }
                Linux::Bound
            }
            Linux::Binding if matches!(other, Closed | Unknown) => self,
            Linux::Binding => {
                side.poll_again();
                Linux::Bound
            }
            Linux::Unbinding(stage) => match (other, stage) {
                (Closed | Unknown, _) => bind(side),
                (Closing, Unbinding::Closing) => {
                    side.set(Closed);
                    side.poll_again();
                    Linux::Unbinding(Unbinding::Closed)
                }
                _ => self,
            },
            Linux::Resetting(stage) => match (stage, other) {
                (Reset::Closing, Closing)
                | (Reset::Closed, Closed)
                | (Reset::Initialising, InitWait) => self.time_out(side),
                _ => self,
            },
        }
    }

    pub(crate) fn rebind(self, side: &mut Side<'_>) -> Linux {
        match self {
            Linux::Bound if side.other() == Closed => bind(side),
            Linux::Bound => {
                side.set(Closing);
                side.poll_again();
                Linux::Unbinding(Unbinding::Closing)
            }
            // It is already doing so.
            _ => self,
        }
    }

    /// A kernel starts after a boot loader that has closed the device properly.
    pub(crate) fn boot(side: &mut Side<'_>) -> Linux {
        side.poll_again();
        Linux::Bound
    }

    /// Another kernel takes over, if this one had a network: in between, no Linux connects.
    pub(crate) fn crash(self, side: &mut Side<'_>) -> Linux {
        if self != Linux::Bound || (side.own(), side.other()) != (Connected, Connected) {
            return self;
        }
        side.forget_queues();
        side.set(Closing);
        side.poll_again();
        Linux::Resetting(Reset::Closing)
    }

    /// Whether it continues after a while.
    pub(crate) fn waits_for_time(self) -> bool {
        matches!(self, Linux::Resetting(_))
    }

    pub(crate) fn time_out(self, side: &mut Side<'_>) -> Linux {
        let Linux::Resetting(stage) = self else { return self };
        side.poll_again();
        match stage {
            Reset::Closing => {
                side.set(Closed);
                Linux::Resetting(Reset::Closed)
            }
            Reset::Closed => {
                side.set(Initialising);
                Linux::Resetting(Reset::Initialising)
            }
            Reset::Initialising => Linux::Binding,
        }
    }
}

/// The driver's device is removed, and probed again.
fn bind(side: &mut Side<'_>) -> Linux {
    side.forget_queues();
    side.set(Closed);
    side.set(Initialising);
    side.poll_again();
    Linux::Binding
}
