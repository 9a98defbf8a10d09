//! Which vif has which Ethernet address: one only, or several that all share it.

use std::collections::HashMap;

use toml::Spanned;

use super::{Source, start};
use crate::section::VifSection;
use crate::value::Mac;
use crate::{BridgeName, GuestVif};

/// The addresses that vifs have.
pub(super) type Claims = HashMap<Mac, Vec<Claim>>;

/// A vif that lists an address.
pub(super) struct Claim {
    key: &'static str,
    owner: String,
    place: Place,
}

/// What frames that could meet have in common: the bridge and the VLAN.
type Place = (Option<BridgeName>, Option<u16>);

impl Source<'_> {
    /// Notes the addresses of a vif of this owner, in a section of this name, and that others have
    /// one of them. `mac` is its own, and where it is in the description.
    pub(super) fn claim(
        &self,
        claims: &mut Claims,
        section: &VifSection,
        (of, owner): (&str, &str),
        mac: Option<(Mac, usize)>,
        vif: &GuestVif,
    ) {
        let place = (vif.bridge.clone(), vif.vlan);
        let listed = |key, list: &[Spanned<Mac>]| {
            let listed = list.iter().map(move |mac| (key, *mac.get_ref(), start(mac)));
            listed.collect::<Vec<_>>()
        };
        let own = mac.map(|(mac, at)| ("mac", mac, at));
        let further = listed("allowed-macs", &section.allowed_macs);
        let shared = listed(SHARED, &section.shared_macs);
        let all: Vec<_> = own.into_iter().chain(further).chain(shared).collect();
        for (index, (key, mac, at)) in all.iter().enumerate() {
            if let Some((first, ..)) = all[..index].iter().find(|(_, other, _)| other == mac) {
                let message =
                    format!("{of}.{key}: the vif has `{mac}` in its `{first}` already: remove it");
                self.fault(Some(*at), &message);
                continue;
            }
            let others = claims.entry(*mac).or_default();
            // A virtual machine may have one address in several networks.
            let meets = |other: &&Claim| of == "guest.vif" || other.place == place;
            let is_other = |other: &&Claim| !(*key == SHARED && other.key == SHARED);
            if let Some(other) = others.iter().filter(meets).find(is_other) {
                let message = format!(
                    "{of}.{key}: another vif has `{mac}`, in `{}` of {}: choose another, or list \
                     it in `{SHARED}` of both",
                    other.key, other.owner
                );
                self.fault(Some(*at), &message);
            }
            others.push(Claim { key, owner: owner.to_owned(), place: place.clone() });
        }
    }
}

const SHARED: &str = "shared-macs";
