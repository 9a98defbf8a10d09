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
//!
//! Its program of XDP takes every frame to be behind 256 bytes of headroom. To load or remove one
//! it goes to `Reconfiguring`, writes the key, waits until the backend is `Reconfigured`, which it
//! may find at once, changes the program, and goes back to `Connected`.

use ringway_xenbus::XenbusState::{
    Closed, Closing, Connected, InitWait, Initialising, Reconfigured, Reconfiguring, Unknown,
};
use ringway_xenbus::{KeyChange, Offer};

use super::Side;
use crate::store::{self, Store, VIF};

/// The headroom of a program (`XDP_PACKET_HEADROOM`).
pub(crate) const HEADROOM: u16 = 256;

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
    /// It loads a program, or removes it.
    Loading(bool, Loading),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loading {
    /// It has written its state.
    Reconfiguring,
    /// It has written its key, and waits.
    Waiting,
    /// The program is loaded, or removed.
    Done,
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
                        side.write_headroom(0);
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
            // It follows the backend, although the change that it waits for is never accepted.
            Linux::Loading(..) if matches!(other, Closing | Closed) => {
                side.set(Closed);
                Linux::Bound
            }
            Linux::Loading(has_program, Loading::Reconfiguring) => {
                side.write_headroom(if has_program { HEADROOM } else { 0 });
                side.poll_again();
                Linux::Loading(has_program, Loading::Waiting)
            }
            Linux::Loading(has_program, Loading::Waiting) if other == Reconfigured => {
                *side.has_program = has_program;
                side.poll_again();
                Linux::Loading(has_program, Loading::Done)
            }
            Linux::Loading(_, Loading::Waiting) => self,
            Linux::Loading(_, Loading::Done) => {
                side.set(Connected);
                side.poll_again();
                Linux::Bound
            }
        }
    }

    /// A program is loaded, or removed, if its backend has offered headroom.
    pub(crate) fn load(self, has_program: bool, side: &mut Side<'_>) -> Linux {
        let is_known = side.store.contains_key(&headroom_key());
        let is_possible = is_known && side.offers_headroom() && side.own() == Connected;
        if self != Linux::Bound || !is_possible {
            return self;
        }
        side.set(Reconfiguring);
        side.poll_again();
        Linux::Loading(has_program, Loading::Reconfiguring)
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

impl Side<'_> {
    fn offers_headroom(&self) -> bool {
        let offer = Offer::read(&store::keys(self.store, &VIF.backend_dir()));
        offer.is_ok_and(|offer| offer.xdp_headroom)
    }

    /// Writes the headroom that it wants, if the backend offers some.
    fn write_headroom(&mut self, headroom: u16) {
        if self.offers_headroom() {
            let change = KeyChange::Set("xdp-headroom".to_owned(), headroom.to_string());
            store::change(self.store, &VIF.frontend_dir(), vec![change]);
        }
    }
}

fn headroom_key() -> String {
    format!("{}/xdp-headroom", VIF.frontend_dir())
}

/// The headroom that its key asks for.
pub(super) fn headroom(store: &Store) -> u16 {
    let value = store.get(&headroom_key()).map_or("0", String::as_str);
    value.parse().expect("models write numbers")
}

/// The driver's device is removed, and probed again.
fn bind(side: &mut Side<'_>) -> Linux {
    side.forget_queues();
    side.set(Closed);
    side.set(Initialising);
    side.poll_again();
    Linux::Binding
}
