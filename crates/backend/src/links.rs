//! Pairs of vifs between which frames pass that no bridge forwards (LLDP, LACP, EAPOL).
//!
//! Each of the two must name the other. Vifs are added and removed: the pairs are determined again
//! after every change.

use ringway_host::{VifState, World};
use ringway_hypervisor::Hypervisor;
use ringway_switch::PortId;

use crate::Backend;
use crate::config::VhostVif as VhostConfig;

impl<H: Hypervisor> Backend<H> {
    /// Updates the switch's pairs to the present ports.
    pub(crate) fn update_links(&mut self) {
        let switch = &self.host.shared.switch;
        let is_wanted = self.all_states().any(|state| partner_of(state).is_some());
        if !is_wanted && !switch.has_links() {
            return;
        }
        let linked: Vec<(&str, &str, PortId)> = self
            .all_states()
            .filter_map(|state| {
                let connection = state.connection.as_ref()?;
                let port = connection.device_port.is_none().then_some(connection.port)?;
                Some((state.name.as_str(), partner_of(state)?, port))
            })
            .collect();
        let pairs: Vec<(PortId, PortId)> = linked
            .iter()
            .filter_map(|(name, partner, port)| {
                let is_partner = |it: &&(&str, &str, PortId)| it.0 == *partner && it.1 == *name;
                let (.., other) = linked.iter().find(is_partner)?;
                // Each pair once.
                (port < other).then_some((*port, *other))
            })
            .collect();
        switch.set_links(&pairs);
    }

    /// Why a new vif cannot be the partner of the one that it names.
    pub(crate) fn refuse_link(&self, config: &VhostConfig) -> Option<String> {
        let wanted = config.rules.link_local_to.as_deref()?;
        let partner = self.all_states().find(|state| state.name == wanted)?;
        if partner_of(partner) == Some(config.name.as_str()) {
            return None;
        }
        Some(format!(
            "link-local-to is {wanted}, which does not name {}: each of the two must name the \
             other",
            config.name
        ))
    }
}

fn partner_of<W: World>(state: &VifState<W>) -> Option<&str> {
    state.rules.wanted.link_local_to.as_deref()
}
