//! The names of keys, and the validation of their values.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::line_vlans;
use crate::rate::Rate;
use crate::state::XenbusState;
use ringway_datapath::{IpNetwork, MacAddr, Mirrored, MulticastRouter, PortRules, Vid, VlanRules};

pub(crate) const STATE: &str = "state";
pub(crate) const ONLINE: &str = "online";
pub(crate) const FRONTEND: &str = "frontend";
pub(crate) const FRONTEND_ID: &str = "frontend-id";
pub(crate) const BACKEND: &str = "backend";
pub(crate) const BACKEND_ID: &str = "backend-id";
pub(crate) const HANDLE: &str = "handle";
pub(crate) const MAC: &str = "mac";
pub(crate) const MTU: &str = "mtu";
pub(crate) const ERROR: &str = "error";
pub(crate) const TYPE: &str = "type";
pub(crate) const BRIDGE: &str = "bridge";
pub(crate) const SCRIPT: &str = "script";
/// The id of the vif in a network behind Open vSwitch, such as OVN; in the backend's directory.
pub(crate) const IFACE_ID: &str = "iface-id";
/// When the vif has a port there; in the backend's directory.
pub const BIND: &str = "ringway-bind";
pub(crate) const VIFNAME: &str = "vifname";
/// Whether the link is up: in the backend's directory, where both ends read it.
pub(crate) const CARRIER: &str = "carrier";
/// Beside `carrier`, if that says only that no backend serves the vif; in the backend's directory.
pub(crate) const STOPPED: &str = "ringway-stopped";
/// Whether the toolstack has unplugged the vif; in the frontend's directory.
pub(crate) const DISCONNECT: &str = "disconnect";
/// The speed that the vif's device is to show; in the frontend's directory.
pub(crate) const SPEED: &str = "speed";
/// Whether the toolstack trusts the backend with the guest's memory; in the frontend's directory.
pub(crate) const TRUSTED: &str = "trusted";
pub(crate) const RATE: &str = "rate";
pub(crate) const IP: &str = "ip";
pub(crate) const LOCKING_MODE: &str = "locking-mode";
pub(crate) const IPV4_ALLOWED: &str = "ipv4-allowed";
pub(crate) const IPV6_ALLOWED: &str = "ipv6-allowed";
pub(crate) const ADDRESSES_MAX: &str = "ringway-addresses-per-vif";
pub(crate) const ALLOWED_MACS: &str = "ringway-allowed-macs";
pub(crate) const SHARED_MACS: &str = "ringway-shared-macs";
pub(crate) const IS_ROUTER: &str = "ringway-router";
pub(crate) const IS_DHCP_SERVER: &str = "ringway-dhcp-server";
pub(crate) const IS_ANNOUNCED: &str = "ringway-announce";
pub(crate) const VLAN: &str = "ringway-vlan";
/// `vlan` of a vif line, which xl writes since Xen 4.20.
pub(crate) const LINE_VLAN: &str = "vlan";
pub(crate) const TRUNK: &str = "ringway-trunk";
pub(crate) const IS_PRIVATE: &str = "ringway-private";
pub(crate) const MULTICAST_ROUTER: &str = "ringway-multicast-router";
/// The ports whose frames are copied to a vif, and the only frames that it gets; in the backend's
/// directory.
pub const MIRROR: &str = "ringway-mirror";
pub(crate) const LINK_LOCAL_TO: &str = "ringway-link-local-to";
pub(crate) const HOTPLUG_STATUS: &str = "hotplug-status";
pub(crate) const HOTPLUG_ERROR: &str = "hotplug-error";
/// The most queues to offer for a vif; in the backend's directory.
pub const MAX_QUEUES_WANTED: &str = "ringway-max-queues";
/// Whether to offer a control ring; in the backend's directory.
pub(crate) const CONTROL_RING_WANTED: &str = "ringway-control-ring";
/// Whether to let the guest choose its multicast frames; in the backend's directory.
pub(crate) const MULTICAST_CONTROL_WANTED: &str = "ringway-multicast-control";
/// Whether to keep pages mapped that the guest asks for; in the backend's directory.
pub(crate) const STAGING_WANTED: &str = "ringway-staging";
/// Of an earlier version, without effect; in the backend's directory.
pub(crate) const COMPLETION: &str = "ringway-completion";
pub(crate) const TENANT: &str = "ringway-tenant";

pub(crate) const FEATURE_SG: &str = "feature-sg";
pub(crate) const FEATURE_GSO_TCPV4: &str = "feature-gso-tcpv4";
pub(crate) const FEATURE_GSO_TCPV6: &str = "feature-gso-tcpv6";
pub(crate) const FEATURE_NO_CSUM_OFFLOAD: &str = "feature-no-csum-offload";
pub(crate) const FEATURE_IPV6_CSUM_OFFLOAD: &str = "feature-ipv6-csum-offload";

pub(crate) const FEATURE_RX_COPY: &str = "feature-rx-copy";
pub(crate) const FEATURE_RX_FLIP: &str = "feature-rx-flip";
pub(crate) const FEATURE_SPLIT_EVENT_CHANNELS: &str = "feature-split-event-channels";
pub(crate) const FEATURE_CTRL_RING: &str = "feature-ctrl-ring";
pub(crate) const FEATURE_MULTICAST_CONTROL: &str = "feature-multicast-control";
pub(crate) const FEATURE_DYNAMIC_MULTICAST_CONTROL: &str = "feature-dynamic-multicast-control";
pub(crate) const FEATURE_XDP_HEADROOM: &str = "feature-xdp-headroom";
pub(crate) const MULTI_QUEUE_MAX_QUEUES: &str = "multi-queue-max-queues";

pub(crate) const QUEUES_ACCEPTED: &str = "ringway-queues-accepted";
pub(crate) const RECONNECT: &str = "ringway-reconnect";
pub(crate) const REQUEST_RX_COPY: &str = "request-rx-copy";
pub(crate) const REQUEST_MULTICAST_CONTROL: &str = "request-multicast-control";
pub(crate) const XDP_HEADROOM: &str = "xdp-headroom";
pub(crate) const FEATURE_RX_NOTIFY: &str = "feature-rx-notify";
pub(crate) const MULTI_QUEUE_NUM_QUEUES: &str = "multi-queue-num-queues";
pub(crate) const TX_RING_REF: &str = "tx-ring-ref";
pub(crate) const RX_RING_REF: &str = "rx-ring-ref";
pub(crate) const EVENT_CHANNEL: &str = "event-channel";
pub(crate) const EVENT_CHANNEL_TX: &str = "event-channel-tx";
pub(crate) const EVENT_CHANNEL_RX: &str = "event-channel-rx";
pub(crate) const CTRL_RING_REF: &str = "ctrl-ring-ref";
pub(crate) const EVENT_CHANNEL_CTRL: &str = "event-channel-ctrl";

/// The keys with the rules for what a vif's guest may send ([`Keys::rules`]).
pub(crate) const RULE_KEYS: [&str; 17] = [
    IP,
    LOCKING_MODE,
    IPV4_ALLOWED,
    IPV6_ALLOWED,
    ADDRESSES_MAX,
    ALLOWED_MACS,
    SHARED_MACS,
    IS_ROUTER,
    IS_DHCP_SERVER,
    IS_ANNOUNCED,
    VLAN,
    LINE_VLAN,
    TRUNK,
    IS_PRIVATE,
    MULTICAST_ROUTER,
    LINK_LOCAL_TO,
    MIRROR,
];

/// The keys of one queue. With several queues, each has its own directory; a single queue has them
/// beside the other keys ("flat"), as in the protocol without multi-queue.
pub(crate) const QUEUE_KEYS: [&str; 5] =
    [TX_RING_REF, RX_RING_REF, EVENT_CHANNEL, EVENT_CHANNEL_TX, EVENT_CHANNEL_RX];

/// The directory of queue `index` (from 0), when there are several.
pub(crate) fn queue_dir(index: usize) -> String {
    format!("queue-{index}")
}

/// Characters of a peer's value that an error message repeats.
const FOUND_MAX: usize = 40;
/// Characters of a peer's error report that are shown.
const ERROR_MAX: usize = 300;

/// The largest MTU: netif counts the bytes of a whole frame, including its 14 of Ethernet, in 16
/// bits.
const MTU_MAX: u16 = u16::MAX - 14; // not a limit: the protocol's

/// The longest name of a port, in bytes.
const PORT_NAME_MAX: usize = 64;

/// The default MTU of a vif, in bytes.
const MTU_DEFAULT: u16 = 1500;

/// The keys that a shell has read from a device's directory: values by their path relative to it
/// (`state`, `queue-0/tx-ring-ref`). A [`KeySet`](crate::KeySet) says which to read.
///
/// Read them in one transaction, so that `state` matches the other keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    dir: String,
    values: BTreeMap<String, String>,
}

/// A node to write or to remove, relative to the device's own directory. Make related changes in
/// one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// Write the node.
    Set(String, String),
    /// Remove the node and all below it, if it exists.
    Remove(String),
}

/// Invalid keys of a peer. The text goes to the `error` node, so it names the path, the value found
/// and the value expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A required key is missing.
    #[error("{path} is missing")]
    Missing {
        /// The key.
        path: String,
    },
    /// An invalid value.
    #[error("{path} is \"{found}\", expected {expected}")]
    Unreadable {
        /// The key.
        path: String,
        /// Its value, cut and escaped.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// More queues than are offered, or none.
    #[error("{path} asks for {requested} queues, expected 1 to {max}")]
    QueueCount {
        /// The key.
        path: String,
        /// What the frontend requests.
        requested: u32,
        /// What the backend offers.
        max: u16,
    },
    /// Two rings in one page, or two queues on one event channel.
    #[error("{path} is {value}, as is {first}; expected each to be different")]
    Duplicate {
        /// The second key with the value.
        path: String,
        /// The first.
        first: String,
        /// The value of both.
        value: u32,
    },
    /// The peer lacks a feature that every vif needs.
    #[error("{path} is not 1, expected a peer that receives by copy")]
    NoCopy {
        /// The key.
        path: String,
    },
}

impl Keys {
    /// What was found in `dir`.
    pub fn new(dir: &str, values: impl IntoIterator<Item = (String, String)>) -> Keys {
        Keys { dir: dir.to_owned(), values: values.into_iter().collect() }
    }

    /// The state of the end whose directory this is.
    pub fn state(&self) -> XenbusState {
        XenbusState::parse(self.text(STATE))
    }

    /// Whether the toolstack wants to keep the device. Absent means no.
    pub fn is_online(&self) -> bool {
        self.text(ONLINE) == Some("1")
    }

    /// The vif's Ethernet address, if the toolstack has set one.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is not an address, or not one that a station can have.
    pub fn mac(&self) -> Result<Option<MacAddr>, BadKeys> {
        let parse = |text| {
            let mac = MacAddr::parse(text);
            let mac = mac.filter(|mac| !mac.is_multicast() && *mac != MacAddr([0; 6]));
            mac.ok_or_else(|| self.unreadable(MAC, text, "the Ethernet address of a station"))
        };
        self.text(MAC).map(parse).transpose()
    }

    /// The vif's MTU in bytes, 1500 if the toolstack has set none.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is not an MTU that IPv4 over netif can have (68 to 65521).
    pub fn mtu(&self) -> Result<u16, BadKeys> {
        Ok(self.mtu_configured()?.unwrap_or(MTU_DEFAULT))
    }

    /// The vif's MTU in bytes, if the toolstack has set one.
    ///
    /// # Errors
    /// As [`mtu`](Keys::mtu).
    pub fn mtu_configured(&self) -> Result<Option<u16>, BadKeys> {
        let parse = |text: &str| {
            let mtu = text.parse().ok().filter(|mtu| (68..=MTU_MAX).contains(mtu));
            mtu.ok_or_else(|| self.unreadable(MTU, text, "an MTU from 68 to 65521"))
        };
        self.text(MTU).map(parse).transpose()
    }

    /// The limit of what the guest may transmit, if the toolstack sets one.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is not a rate. Linux' backend treats that as no limit.
    pub fn rate(&self) -> Result<Option<Rate>, BadKeys> {
        self.rate_of(RATE)
    }

    pub(crate) fn rate_of(&self, key: &str) -> Result<Option<Rate>, BadKeys> {
        let parse = |text: &str| {
            Rate::parse(text).ok_or_else(|| {
                self.unreadable(key, text, "bytes and microseconds with a comma between them")
            })
        };
        Ok(self.text(key).map(parse).transpose()?.flatten())
    }

    /// The rules for what the guest may send, according to the toolstack: `ip` of the vif's line,
    /// its `vlan` if no hotplug script applies that, the keys of XenServer (`locking-mode`,
    /// `ipv4-allowed`, `ipv6-allowed`), and ours. They are in the backend's own directory, which a
    /// guest cannot write.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if one of them is invalid. The vif is then not served, because its
    /// rules are unknown.
    pub fn rules(&self) -> Result<PortRules, BadKeys> {
        let mut allowed = Vec::new();
        for key in [IP, IPV4_ALLOWED, IPV6_ALLOWED] {
            let text = self.text(key).unwrap_or_default();
            let expected = "at most 64 IP addresses or networks with spaces or commas between them";
            let list = IpNetwork::parse_list(text);
            allowed.extend(list.map_err(|_| self.unreadable(key, text, expected))?);
        }
        let locking = match self.text(LOCKING_MODE) {
            // The host configures XenServer's default.
            None | Some("" | "network_default") => None,
            Some(text) => Some(text.parse().map_err(|_| {
                self.unreadable(LOCKING_MODE, text, "unlocked, locked or disabled")
            })?),
        };
        let addresses_max = self.number(ADDRESSES_MAX)?;
        Ok(PortRules {
            locking,
            allowed,
            addresses_max: addresses_max.filter(|addresses| *addresses > 0),
            allowed_macs: self.macs(ALLOWED_MACS)?,
            shared_macs: self.macs(SHARED_MACS)?,
            is_router: self.flag(IS_ROUTER, Absent::False)?,
            is_dhcp_server: self.flag(IS_DHCP_SERVER, Absent::False)?,
            is_unannounced: !self.flag(IS_ANNOUNCED, Absent::True)?,
            multicast_router: self.multicast_router()?,
            vlan: self.vlan_rules()?,
            is_private: self.flag(IS_PRIVATE, Absent::False)?,
            link_local_to: self.link_local_to()?,
            mirror: self.mirror()?,
        })
    }

    fn macs(&self, key: &str) -> Result<Vec<MacAddr>, BadKeys> {
        let text = self.text(key).unwrap_or_default();
        let expected = "at most 64 Ethernet addresses of stations with commas between them";
        MacAddr::parse_list(text).map_err(|_| self.unreadable(key, text, expected))
    }

    fn multicast_router(&self) -> Result<MulticastRouter, BadKeys> {
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| self.unreadable(MULTICAST_ROUTER, text, "never, learn or always"))
        };
        Ok(self.text(MULTICAST_ROUTER).map(parse).transpose()?.unwrap_or_default())
    }

    fn link_local_to(&self) -> Result<Option<String>, BadKeys> {
        let Some(text) = self.text(LINK_LOCAL_TO).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.len() <= PORT_NAME_MAX && text.bytes().all(is_name) {
            return Ok(Some(text.to_owned()));
        }
        Err(self.unreadable(LINK_LOCAL_TO, text, "the name of a vif, such as vif1.0"))
    }

    fn mirror(&self) -> Result<Vec<Mirrored>, BadKeys> {
        let text = self.text(MIRROR).unwrap_or_default();
        let expected = "at most 64 names of ports, such as vif1.0, vif1.0:tx, vif1.0:rx, or all";
        Mirrored::parse_list(text).map_err(|_| self.unreadable(MIRROR, text, expected))
    }

    fn vlan_rules(&self) -> Result<VlanRules, BadKeys> {
        let expected = "at most 64 numbers of VLANs, 1 to 4094, with commas between them";
        let parse = |key: &str, text: &str, expected: &'static str| {
            let number = text.trim().parse().ok().and_then(Vid::new);
            number.ok_or_else(|| self.unreadable(key, text, expected))
        };
        let untagged = self.text(VLAN).filter(|text| !text.is_empty());
        let of_one = |text: &str| parse(VLAN, text, "the number of one VLAN, 1 to 4094");
        let untagged = untagged.map(of_one).transpose()?;
        let list = self.text(TRUNK).unwrap_or_default();
        let items = list.split(',').filter(|item| !item.is_empty());
        let tagged = items.take(VlanRules::TAGGED_MAX + 1).map(|item| parse(TRUNK, item, expected));
        let tagged = tagged.collect::<Result<Vec<Vid>, _>>()?;
        if tagged.len() > VlanRules::TAGGED_MAX {
            return Err(self.unreadable(TRUNK, list, expected));
        }
        // Also an empty key of ours replaces it: a user wants no VLAN.
        let has_own = self.has(VLAN) || self.has(TRUNK);
        match self.text(LINE_VLAN) {
            Some(line) if !has_own && self.script().is_none() => line_vlans::parse(line)
                .ok_or_else(|| self.unreadable(LINE_VLAN, line, line_vlans::EXPECTED)),
            _ => Ok(VlanRules { untagged, tagged }),
        }
    }

    /// The most queues that a backend may offer for this vif, if the toolstack limits them
    /// (`ringway-max-queues`, ours: a stock toolstack has no key for it).
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is not a valid number of queues.
    pub fn max_queues_limit(&self) -> Result<Option<u16>, BadKeys> {
        let expected = "a number of queues from 1 to 65535";
        let parse = |text: &str| {
            let number = text.parse().ok().filter(|queues| *queues > 0);
            number.ok_or_else(|| self.unreadable(MAX_QUEUES_WANTED, text, expected))
        };
        self.text(MAX_QUEUES_WANTED).map(parse).transpose()
    }

    /// Whether to offer a control ring (`ringway-control-ring`, ours). Absent means yes.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is no number.
    pub fn wants_control_ring(&self) -> Result<bool, BadKeys> {
        self.flag(CONTROL_RING_WANTED, Absent::True)
    }

    /// Whether to let the guest choose its multicast frames (`ringway-multicast-control`, ours).
    /// Absent means yes.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is no number.
    pub fn wants_multicast_control(&self) -> Result<bool, BadKeys> {
        self.flag(MULTICAST_CONTROL_WANTED, Absent::True)
    }

    /// Whether to keep pages mapped that the guest asks for over its control ring
    /// (`ringway-staging`, ours). Absent means no.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is no number.
    pub fn wants_staging(&self) -> Result<bool, BadKeys> {
        self.flag(STAGING_WANTED, Absent::False)
    }

    /// The most queues that the backend of this directory may have offered; `None` if it offered
    /// nothing. Besides the newest offer there may be an older one (`ringway-queues-accepted`),
    /// which the frontend may have read.
    pub fn queues_offered(&self) -> Option<u16> {
        let offers = [MULTI_QUEUE_MAX_QUEUES, QUEUES_ACCEPTED].map(|key| {
            let offered = self.number(key).ok().flatten();
            offered.and_then(|queues| u16::try_from(queues).ok()).filter(|queues| *queues > 0)
        });
        offers.into_iter().max().flatten()
    }

    /// The key of an earlier version that the toolstack has set, if it has: it has no effect any
    /// more.
    pub fn obsolete(&self) -> Option<&'static str> {
        self.text(COMPLETION).map(|_| COMPLETION)
    }

    /// The error that the end of this directory reports, cut and escaped, because it may contain
    /// anything.
    pub fn error(&self) -> Option<String> {
        self.text(ERROR).map(|text| text.escape_debug().take(ERROR_MAX).collect())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// A number, or `None` if the key is absent.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u32>, BadKeys> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_decimal);
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.unreadable(key, text, "a number from 0 to 4294967295")),
        }
    }

    /// A required number.
    pub(crate) fn required(&self, key: &str) -> Result<u32, BadKeys> {
        self.number(key)?.ok_or_else(|| BadKeys::Missing { path: self.path(key) })
    }

    /// A flag: any number but 0 is true, as Linux reads them.
    pub(crate) fn flag(&self, key: &str, if_absent: Absent) -> Result<bool, BadKeys> {
        let number = self.number(key)?;
        Ok(number.map_or(if_absent == Absent::True, |number| number != 0))
    }

    /// Adds a value that was found.
    pub fn insert(&mut self, key: &str, value: String) {
        self.values.insert(key.to_owned(), value);
    }

    /// The full path of a key.
    pub fn path(&self, key: &str) -> String {
        format!("{}/{key}", self.dir)
    }

    pub(crate) fn unreadable(&self, key: &str, found: &str, expected: &'static str) -> BadKeys {
        BadKeys::Unreadable { path: self.path(key), found: escaped(found), expected }
    }
}

/// Text of a peer, cut and escaped for messages.
pub(crate) fn escaped(text: &str) -> String {
    text.escape_debug().take(FOUND_MAX).collect()
}

/// The value of an absent flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    True,
    False,
}

impl KeyChange {
    pub(crate) fn set(key: &str, value: impl Into<String>) -> KeyChange {
        KeyChange::Set(key.to_owned(), value.into())
    }

    pub(crate) fn number(key: &str, value: impl Into<u64>) -> KeyChange {
        KeyChange::set(key, value.into().to_string())
    }

    pub(crate) fn flag(key: &str, is_set: bool) -> KeyChange {
        KeyChange::number(key, u8::from(is_set))
    }
}

#[cfg(test)]
mod tests;
