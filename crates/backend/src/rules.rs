//! The toolstack's rules of what a vif's guest may send.

use std::time::Instant;

use ringway_datapath::{LockingMode, MacAddr, Mirrored, MulticastRouter, PortRules, VlanRules};
use ringway_xenbus::{BadKeys, Keys};

/// The most addresses of an unlocked vif, unless its rules set a number.
const UNLOCKED_ADDRESSES_MAX: u32 = 256;

/// The rules of one vif.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) wanted: PortRules,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) log: RefusalLog,
}

/// When refused frames were last logged.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    /// The number of this connection's frames that had been refused by then.
    pub(crate) seen: u64,
    pub(crate) due: Option<Instant>,
}

impl Rules {
    /// Reads the rules from the toolstack's keys.
    ///
    /// # Errors
    /// A key that cannot be read: what the guest may do is unknown.
    pub(crate) fn read(keys: &Keys) -> Result<Rules, BadKeys> {
        Ok(Rules { wanted: keys.rules()?, mac: keys.mac()?, log: RefusalLog::default() })
    }

    pub(crate) fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    pub(crate) fn mode(&self, default: Option<LockingMode>) -> Option<LockingMode> {
        self.wanted.mode(default)
    }

    /// Whether the rules contain something that only the switch can do.
    pub(crate) fn is_for_switch(&self) -> bool {
        let is_routing = self.wanted.multicast_router != MulticastRouter::Never;
        let is_mirror = !self.wanted.mirror.is_empty();
        !self.wanted.vlan.is_none() || self.wanted.is_private || is_routing || is_mirror
    }

    pub(crate) fn vlan(&self) -> &VlanRules {
        &self.wanted.vlan
    }

    /// The ports whose frames the vif gets, if it is the output of a mirror.
    pub(crate) fn mirror(&self) -> &[Mirrored] {
        &self.wanted.mirror
    }

    pub(crate) fn is_private(&self) -> bool {
        self.wanted.is_private
    }

    pub(crate) fn allowed(&self) -> Vec<String> {
        self.wanted.allowed.iter().map(ToString::to_string).collect()
    }

    /// Ethernet addresses that the guest may have.
    pub(crate) fn addresses_max(&self, default: Option<LockingMode>, of_all: u32) -> u32 {
        let if_unset = match self.mode(default) {
            Some(LockingMode::Unlocked) => of_all.max(UNLOCKED_ADDRESSES_MAX),
            _ => of_all,
        };
        self.wanted.addresses_max.unwrap_or(if_unset)
    }
}
