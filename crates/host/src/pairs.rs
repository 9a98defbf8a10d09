//! Pairs of vifs between which frames pass that no bridge forwards (LLDP, LACP, EAPOL).
//!
//! Each of the two must name the other. Vifs are added and removed: the pairs are determined again
//! after every change.

use ringway_switch::{PortId, Switch};

use crate::vif_state::VifState;
use crate::world::World;

/// Updates the switch's pairs to the present ports.
pub(crate) fn update_pairs<'a, W: World + 'a>(
    switch: &Switch,
    states: impl Iterator<Item = &'a VifState<W>> + Clone,
) {
    let is_wanted = states.clone().any(|state| partner_of(state).is_some());
    if !is_wanted && !switch.has_links() {
        return;
    }
    let paired: Vec<(&str, &str, PortId)> = states
        .filter_map(|state| {
            let connection = state.connection.as_ref()?;
            let port = connection.device_port.is_none().then_some(connection.port)?;
            Some((state.name.as_str(), partner_of(state)?, port))
        })
        .collect();
    let pairs: Vec<(PortId, PortId)> = paired
        .iter()
        .filter_map(|(name, partner, port)| {
            let is_partner = |it: &&(&str, &str, PortId)| it.0 == *partner && it.1 == *name;
            let (.., other) = paired.iter().find(is_partner)?;
            // Each pair once.
            (port < other).then_some((*port, *other))
        })
        .collect();
    switch.set_links(&pairs);
}

/// Why a new vif cannot have `wanted` as its partner.
pub(crate) fn refuse_pair<'a, W: World + 'a>(
    mut states: impl Iterator<Item = &'a VifState<W>>,
    name: &str,
    wanted: Option<&str>,
) -> Option<String> {
    let wanted = wanted?;
    if wanted == name {
        return Some(itself(name));
    }
    let partner = states.find(|state| state.name == wanted)?;
    if partner_of(partner) == Some(name) {
        return None;
    }
    Some(format!(
        "link-local-to is {wanted}, which does not name {name}: each of the two must name the other"
    ))
}

/// Why a vif cannot be its own partner.
pub(crate) fn itself(name: &str) -> String {
    format!("link-local-to is {name} itself: expected another vif")
}

fn partner_of<W: World>(state: &VifState<W>) -> Option<&str> {
    state.rules.wanted.link_local_to.as_deref()
}
