//! Limits, rules and queues of vifs without their own, when a description that was read again has
//! others.

use std::time::Instant;

use ringway_xenbus::Vif;
use ringway_xenbus::backend::{Input, Reconnect};
use ringway_xenstore::Lost;

use crate::host::Host;
use crate::shared::Defaults;
use crate::vif_state::VifState;
use crate::world::{Hosting, Parts, World};
use crate::xen::XenVif;

impl<W: World> Host<W> {
    /// Takes over other defaults, for vifs that are served, too. One that has its own is as before.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn set_defaults(
        &mut self,
        wanted: Defaults,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let before = self.shared.defaults();
        if wanted == before {
            return Ok(());
        }
        let Defaults { flood, storm, locking, addresses_max, queues_max } = wanted;
        let config = &mut self.shared.config;
        config.max_queues = queues_max;
        config.locking = locking;
        (config.switch.flood, config.switch.storm) = (flood, storm);
        config.switch.addresses_per_port_max = addresses_max;
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        let virtio = self.virtio.iter_mut().map(|it| &mut it.state);
        for state in self.vifs.values_mut().map(|it| &mut it.state).chain(virtio) {
            state.follow_defaults(&before, &wanted, &mut hosting);
        }
        match queues_max == before.queues_max {
            true => Ok(()),
            false => self.offer_queues(queues_max, now, parts),
        }
    }

    /// Offers so many queues to the guests of Xen, for when they connect the next time.
    fn offer_queues(
        &mut self,
        queues_max: u16,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let following = self.vifs.iter_mut().filter(|(_, xen)| !xen.has_own_queues);
        let offers: Vec<(Vif, u16)> = following
            .map(|(vif, XenVif { state, .. })| {
                // A network device has the queues with which it was made.
                let made = state.device.as_ref().map_or(u16::MAX, |device| device.queues_made);
                state.offer.queues_max = queues_max.clamp(1, made.max(1));
                (*vif, state.offer.queues_max)
            })
            .collect();
        offers.into_iter().try_for_each(|(vif, queues_max)| {
            let reconnect = Reconnect::Later;
            self.feed(vif, Input::OfferChanged { queues_max, reconnect }, now, parts)
        })
    }
}

impl<W: World> VifState<W> {
    fn follow_defaults(
        &mut self,
        before: &Defaults,
        wanted: &Defaults,
        hosting: &mut Hosting<'_, W>,
    ) {
        self.limited.follow((wanted.flood, wanted.storm));
        let of_rules = |defaults: &Defaults| {
            let Defaults { locking, addresses_max, .. } = *defaults;
            (self.rules.mode(locking), self.rules.addresses_max(locking, addresses_max))
        };
        if of_rules(before) == of_rules(wanted) {
            return;
        }
        if let Err(error) = self.enforce(hosting) {
            tracing::warn!(vif = self.name, "{error}: rules are unchanged");
        }
    }
}
