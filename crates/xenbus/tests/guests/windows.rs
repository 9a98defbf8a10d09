//! The frontend of Windows' PV drivers (`xenvif/frontend.c` of the Xen project).
//!
//! It leads the backend to an offer from any state, writes its keys, and then follows the backend
//! until that is connected. From then on it reads only `online`, so a backend that closes by itself
//! stays closed until the device is disabled and enabled, or the guest resumes. It acts on a state
//! only if it differs from the last one, and removes no key.

use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::XenbusState::{
    self, Closed, Closing, Connected, InitWait, Initialised, Initialising, Unknown,
};
use ringway_xenbus::{ControlConfig, KeyChange, Offer};

use super::Side;
use crate::store::{self, VIF};

/// The state of the driver, with the last backend state that it saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    Preparing(XenbusState),
    Connecting(XenbusState),
    Up,
    Leaving(XenbusState),
}

impl Windows {
    pub(crate) fn step(self, side: &mut Side<'_>) -> Windows {
        let other = side.other();
        match self {
            Windows::Up => self,
            Windows::Preparing(seen) | Windows::Connecting(seen) | Windows::Leaving(seen)
                if seen == other =>
            {
                self
            }
            Windows::Preparing(_) => {
                match other {
                    Closed => side.set(Initialising),
                    Connected => side.set(Closing),
                    Closing => side.set(Closed),
                    InitWait => {
                        side.write_keys();
                        side.write_control_keys();
                        side.poll_again();
                        return Windows::Connecting(Unknown);
                    }
                    _ => {}
                }
                side.poll_again();
                Windows::Preparing(other)
            }
            Windows::Connecting(_) => {
                match other {
                    InitWait | Initialised => side.set(Connected),
                    Closing => side.set(Closed),
                    Connected => return Windows::Up,
                    _ => {}
                }
                side.poll_again();
                Windows::Connecting(other)
            }
            Windows::Leaving(_) => {
                match other {
                    Connected | InitWait => side.set(Closing),
                    Closing => side.set(Closed),
                    Closed => {
                        side.forget_queues();
                        side.poll_again();
                        return Windows::Preparing(Unknown);
                    }
                    _ => {}
                }
                side.poll_again();
                Windows::Leaving(other)
            }
        }
    }

    /// The device is disabled and enabled, or the guest suspended and resumed.
    pub(crate) fn restart(self, side: &mut Side<'_>) -> Windows {
        match self {
            Windows::Up => {
                side.poll_again();
                Windows::Leaving(Unknown)
            }
            _ => self,
        }
    }
}

impl Side<'_> {
    /// Creates a control ring and writes its keys, if the backend offers one.
    fn write_control_keys(&mut self) {
        let offer = Offer::read(&store::keys(self.store, &VIF.backend_dir()));
        //= netif.h:ctrl-ring
        let offers_ring = offer.is_ok_and(|offer| offer.control_ring);
        *self.control = offers_ring.then(|| {
            *self.next_ref += 1;
            let number = *self.next_ref + 1;
            ControlConfig { ring_ref: GrantRef(number), event: EvtchnPort(number) }
        });
        let Some(ControlConfig { ring_ref, event }) = *self.control else { return };
        let set = |key: &str, value: u32| KeyChange::Set(key.to_owned(), value.to_string());
        let changes = [set("ctrl-ring-ref", ring_ref.0), set("event-channel-ctrl", event.0)];
        store::change(self.store, &VIF.frontend_dir(), changes.into());
    }
}
