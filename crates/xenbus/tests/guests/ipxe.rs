//! iPXE's frontend (`src/drivers/net/netfront.c`, `src/interface/xen/xenbus.c`), and the Linux that
//! it loads.
//!
//! It has one queue, one event channel and flat keys. Whenever it probes, opens or closes the
//! device, it leads the backend to an offer: unless it finds one, it writes `Closed`, waits for
//! exactly that state, then writes `Initialising`, and waits for exactly an offer. It gives up each
//! wait after five seconds. It sets no watch but polls states, so it misses short-lived ones. When
//! it closes, it leads the backend to an offer before it removes its keys.

use ringway_xenbus::XenbusState::{self, Closed, Connected, InitWait, Initialising};

use super::Side;

/// The state of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ipxe {
    /// It must lead the backend to an offer, for this purpose.
    Resetting(Then),
    /// It has written the first state, and waits for the backend to reach the second.
    Waiting(XenbusState, XenbusState, Then),
    Opening,
    Up,
    GaveUp,
    /// It has closed; Linux may take the vif.
    Done,
}

/// The purpose of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Probe,
    Open,
    Close,
}

impl Ipxe {
    pub(crate) fn step(self, side: &mut Side<'_>) -> Ipxe {
        let other = side.other();
        match self {
            Ipxe::Resetting(then) if other == InitWait => initialise(then, side),
            Ipxe::Resetting(then) => {
                side.set(Closed);
                side.poll_again();
                Ipxe::Waiting(Closed, Closed, then)
            }
            Ipxe::Waiting(_, awaited, _) if other != awaited => self,
            Ipxe::Waiting(Closed, _, then) => initialise(then, side),
            Ipxe::Waiting(_, _, then) => {
                side.poll_again();
                match then {
                    Then::Probe => Ipxe::Resetting(Then::Open),
                    Then::Open => {
                        side.write_keys();
                        side.set(Connected);
                        Ipxe::Opening
                    }
                    Then::Close => clean_up(side),
                }
            }
            Ipxe::Opening if other == Connected => Ipxe::Up,
            _ => self,
        }
    }

    /// It closes the device because it starts what it has loaded.
    pub(crate) fn boot(self, side: &mut Side<'_>) -> Ipxe {
        match self {
            Ipxe::Up => {
                side.poll_again();
                Ipxe::Resetting(Then::Close)
            }
            _ => self,
        }
    }

    pub(crate) fn waits_for_time(self) -> bool {
        matches!(self, Ipxe::Waiting(..) | Ipxe::Opening)
    }

    pub(crate) fn time_out(self, side: &mut Side<'_>) -> Ipxe {
        side.poll_again();
        match self {
            Ipxe::Waiting(_, _, Then::Probe) => Ipxe::Resetting(Then::Open),
            Ipxe::Waiting(_, _, Then::Close) => clean_up(side),
            _ => Ipxe::GaveUp,
        }
    }
}

fn clean_up(side: &mut Side<'_>) -> Ipxe {
    side.remove_keys();
    side.forget_queues();
    Ipxe::Done
}

fn initialise(then: Then, side: &mut Side<'_>) -> Ipxe {
    side.set(Initialising);
    side.poll_again();
    Ipxe::Waiting(Initialising, InitWait, then)
}
