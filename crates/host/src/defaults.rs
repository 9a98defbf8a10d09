//! Limits and rules of vifs without their own, when a description that was read again has others.

use std::time::Instant;

use crate::host::Host;
use crate::shared::Defaults;
use crate::vif_state::VifState;
use crate::world::{Hosting, Parts, World};

impl<W: World> Host<W> {
    /// Takes over other defaults, for vifs that are served, too. One that has its own is as before.
    pub fn set_defaults(&mut self, wanted: Defaults, now: Instant, parts: &mut Parts<'_, W>) {
        let before = self.shared.defaults();
        if wanted == before {
            return;
        }
        let Defaults { flood, storm, locking, addresses_max } = wanted;
        let config = &mut self.shared.config;
        config.locking = locking;
        (config.switch.flood, config.switch.storm) = (flood, storm);
        config.switch.addresses_per_port_max = addresses_max;
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        let virtio = self.virtio.iter_mut().map(|it| &mut it.state);
        for state in self.vifs.values_mut().map(|it| &mut it.state).chain(virtio) {
            state.follow_defaults(&before, &wanted, &mut hosting);
        }
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
