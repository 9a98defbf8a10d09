//! The toolstack's rules of what a vif's guest may send.

use ringway_datapath::{LockingMode, MacAddr, Mirrored, MulticastRouter, PortRules, VlanRules};
use ringway_switch::fdb::NotBound;
use ringway_xenbus::{BadKeys, Keys};

use crate::drop_log::DropLog;

/// The most addresses of an unlocked vif, unless its rules set a number.
const UNLOCKED_ADDRESSES_MAX: u32 = 256;

/// The rules of one vif.
#[derive(Debug, Default)]
pub struct Rules {
    /// The toolstack's.
    pub wanted: PortRules,
    /// The guest's address.
    pub mac: Option<MacAddr>,
    /// When refused frames were last logged.
    pub log: DropLog,
    /// Addresses that its port did not get, because others have them.
    pub refused: Vec<(MacAddr, NotBound)>,
}

impl Rules {
    /// Reads the rules from the toolstack's keys.
    ///
    /// # Errors
    /// A key that cannot be read: what the guest may do is unknown.
    pub fn read(keys: &Keys) -> Result<Rules, BadKeys> {
        Ok(Rules { wanted: keys.rules()?, mac: keys.mac()?, ..Rules::default() })
    }

    /// The guest's address.
    pub fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    /// An address that cannot be another vif's as well, with its key here and there.
    pub fn conflict(&self, other: &Rules) -> Option<(&'static str, MacAddr, &'static str)> {
        self.macs().find_map(|(mac, is_shared)| {
            let found = other.macs().find(|(of_other, _)| *of_other == mac)?;
            (!(is_shared && found.1)).then(|| (self.key_of(mac), mac, other.key_of(mac)))
        })
    }

    /// All listed addresses, and whether each is shared.
    fn macs(&self) -> impl Iterator<Item = (MacAddr, bool)> + '_ {
        let own = self.mac.iter().chain(&self.wanted.allowed_macs).map(|mac| (*mac, false));
        own.chain(self.wanted.shared_macs.iter().map(|mac| (*mac, true)))
    }

    /// Why the port did not get an address, if so.
    pub fn refusal_of(&self, mac: Option<MacAddr>) -> Option<NotBound> {
        let refused = self.refused.iter().find(|(refused, _)| Some(*refused) == mac);
        refused.map(|(_, reason)| *reason)
    }

    /// The key that has an address.
    pub fn key_of(&self, mac: MacAddr) -> &'static str {
        match self.mac {
            Some(own) if own == mac => "mac",
            _ if self.wanted.allowed_macs.contains(&mac) => "allowed-macs",
            _ => "shared-macs",
        }
    }

    /// The mode in effect, given the host's default.
    pub fn mode(&self, default: Option<LockingMode>) -> Option<LockingMode> {
        self.wanted.mode(default)
    }

    /// Whether the rules contain something that only the switch can do.
    pub fn is_for_switch(&self) -> bool {
        let is_routing = self.wanted.multicast_router != MulticastRouter::Never;
        let is_mirror = !self.wanted.mirror.is_empty();
        let has_link = self.wanted.link_local_to.is_some();
        !self.wanted.vlan.is_none() || self.wanted.is_private || is_routing || is_mirror || has_link
    }

    /// Its VLANs.
    pub fn vlan(&self) -> &VlanRules {
        &self.wanted.vlan
    }

    /// The ports whose frames the vif gets, if it is the output of a mirror.
    pub fn mirror(&self) -> &[Mirrored] {
        &self.wanted.mirror
    }

    /// The IP addresses that its guest may have, as text.
    pub fn allowed(&self) -> Vec<String> {
        self.wanted.allowed.iter().map(ToString::to_string).collect()
    }

    /// Ethernet addresses that the guest may have.
    pub fn addresses_max(&self, default: Option<LockingMode>, of_all: u32) -> u32 {
        let if_unset = match self.mode(default) {
            Some(LockingMode::Unlocked) => of_all.max(UNLOCKED_ADDRESSES_MAX),
            _ => of_all,
        };
        self.wanted.addresses_max.unwrap_or(if_unset)
    }
}

#[cfg(test)]
mod tests {
    use ringway_datapath::Vid;

    use super::*;

    const ONE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const TWO: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn rules(mac: Option<MacAddr>, allowed: &[MacAddr], shared: &[MacAddr]) -> Rules {
        let (allowed_macs, shared_macs) = (allowed.to_vec(), shared.to_vec());
        let wanted = PortRules { allowed_macs, shared_macs, ..PortRules::default() };
        Rules { wanted, mac, ..Rules::default() }
    }

    #[test]
    fn two_vifs_have_an_address_only_if_both_share_it() {
        let own = rules(Some(ONE), &[], &[]);
        let allowed = rules(Some(TWO), &[ONE], &[]);
        let shared = rules(None, &[], &[ONE]);
        assert_eq!(own.conflict(&own), Some(("mac", ONE, "mac")));
        assert_eq!(own.conflict(&allowed), Some(("mac", ONE, "allowed-macs")));
        assert_eq!(allowed.conflict(&shared), Some(("allowed-macs", ONE, "shared-macs")));
        assert_eq!(shared.conflict(&own), Some(("shared-macs", ONE, "mac")));
        assert_eq!(shared.conflict(&shared), None);
        assert_eq!(own.conflict(&rules(Some(TWO), &[], &[])), None);
    }

    #[test]
    fn a_refusal_is_that_of_the_very_address() {
        let refused = vec![(ONE, NotBound::NoRoom)];
        let rules = Rules { refused, ..rules(Some(TWO), &[ONE], &[]) };
        assert_eq!(rules.refusal_of(Some(ONE)), Some(NotBound::NoRoom));
        assert_eq!((rules.refusal_of(Some(TWO)), rules.refusal_of(None)), (None, None));
    }

    #[test]
    fn each_rule_that_only_a_switch_has_is_one_for_the_switch() {
        let is_for_switch = |wanted| Rules { wanted, ..Rules::default() }.is_for_switch();
        let plain = PortRules { is_router: true, is_dhcp_server: true, ..PortRules::default() };
        assert!(!is_for_switch(plain.clone()));
        let vlan = VlanRules { untagged: Vid::new(7), tagged: Vec::new() };
        let mirror = Mirrored::parse_list("all").expect("good");
        for wanted in [
            PortRules { vlan, ..plain.clone() },
            PortRules { is_private: true, ..plain.clone() },
            PortRules { mirror, ..plain.clone() },
            PortRules { multicast_router: MulticastRouter::Always, ..plain.clone() },
            PortRules { link_local_to: Some("vif1.0".to_owned()), ..plain.clone() },
        ] {
            assert!(is_for_switch(wanted.clone()), "{wanted:?}");
        }
    }

    #[test]
    fn an_unlocked_vif_has_many_addresses_unless_a_number_is_set() {
        let rules = |locking, addresses_max| Rules {
            wanted: PortRules { locking, addresses_max, ..PortRules::default() },
            ..Rules::default()
        };
        let unlocked = Some(LockingMode::Unlocked);
        assert_eq!(rules(unlocked, None).addresses_max(None, 8), UNLOCKED_ADDRESSES_MAX);
        assert_eq!(rules(unlocked, None).addresses_max(None, 1000), 1000);
        assert_eq!(rules(None, None).addresses_max(unlocked, 8), UNLOCKED_ADDRESSES_MAX);
        assert_eq!(rules(Some(LockingMode::Locked), None).addresses_max(unlocked, 8), 8);
        assert_eq!(rules(unlocked, Some(3)).addresses_max(None, 8), 3);
    }
}
