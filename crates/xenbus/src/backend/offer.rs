//! What a backend offers, to a frontend that may have read an earlier offer.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use super::{Action, Attachment, Handshake, Phase, Reconnect, Reoffer};
use crate::config::{Offer, Reconnects};
use crate::features::Features;
use crate::keys::{KeyChange, QUEUES_ACCEPTED};
use crate::state::XenbusState::{Closed, InitWait};

impl Handshake {
    /// The offers that the frontend's keys may refer to.
    pub(super) fn accepted_offer(&self, attachment: Attachment) -> Offer {
        let split_event_channels = match attachment {
            Attachment::Reattach => self.offered.split_event_channels,
            Attachment::Fresh => self.offer.split_event_channels,
        };
        Offer { queues_max: self.accepted_max, split_event_channels, ..self.visible_offer() }
    }

    /// The newest offer, with what stays of an earlier one.
    fn visible_offer(&self) -> Offer {
        let Handshake { control_ring, multicast_control, xdp_headroom, .. } = *self;
        Offer { control_ring, multicast_control, xdp_headroom, ..self.offer }
    }

    pub(super) fn offer_changed(&mut self, queues_max: u16, reconnect: Reconnect) {
        self.offer.queues_max = queues_max.max(1);
        let may_return = self.reconnects == Reconnects::Automatically;
        match self.phase {
            // It may have been refused because of its number of queues.
            Phase::Closed if may_return => self.make_offer(),
            Phase::Waiting => {
                // It may have read the previous offer.
                self.accepted_max = self.accepted_max.max(self.offer.queues_max);
                let changes = self.offered();
                self.actions.push(Action::Write(changes, None));
            }
            Phase::Serving(_) if reconnect == Reconnect::Now && may_return => {
                self.reoffer = Reoffer::Always;
                self.close();
            }
            // Every connection begins with the newest offer.
            _ => {}
        }
        let is_underway =
            matches!(self.phase, Phase::Waiting | Phase::Reading(_) | Phase::Attaching(..));
        if reconnect == Reconnect::Now && (is_underway || self.phase == Phase::Closing) {
            self.reoffer = Reoffer::Always;
        }
    }

    /// A frontend that has read another offer by now is served by that.
    pub(super) fn features_changed(&mut self, features: Features) {
        self.offer.features = features;
        if self.phase == Phase::Waiting {
            let changes = self.offered();
            self.actions.push(Action::Write(changes, None));
        }
    }

    /// Writes the offer and waits for the frontend's keys.
    pub(super) fn make_offer(&mut self) {
        self.control_ring = self.offer.control_ring;
        self.multicast_control = self.offer.multicast_control;
        self.xdp_headroom = self.offer.xdp_headroom;
        self.offer_up_to(self.offer.queues_max);
    }

    /// Writes the offer and waits for the frontend's keys, which may refer to an older offer of up
    /// to `accepted_max` queues.
    pub(super) fn offer_up_to(&mut self, accepted_max: u16) {
        self.reoffer = Reoffer::No;
        self.accepted_max = accepted_max;
        if self.has_script_failed() {
            // That has been reported already, and another attempt of the guest is no news.
            self.phase = Phase::Closed;
            if self.own != Closed {
                self.set_state(Closed);
            }
            return;
        }
        self.phase = Phase::Waiting;
        let changes = self.offered();
        self.set_state_with(changes, InitWait);
    }

    /// The newest offer and, for the next backend, how many queues the frontend's keys may have.
    fn offered(&self) -> Vec<KeyChange> {
        let mut changes = self.visible_offer().changes();
        changes.push(match self.accepted_max > self.offer.queues_max {
            true => KeyChange::number(QUEUES_ACCEPTED, self.accepted_max),
            false => KeyChange::Remove(QUEUES_ACCEPTED.to_owned()),
        });
        changes
    }
}
