//! Which keys of a device's directory each end reads.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::keys::{
    BACKEND, BACKEND_ID, BIND, BRIDGE, CARRIER, COMPLETION, CONTROL_RING_WANTED, CTRL_RING_REF,
    DISCONNECT, ERROR, EVENT_CHANNEL_CTRL, FEATURE_CTRL_RING, FEATURE_GSO_TCPV4, FEATURE_GSO_TCPV6,
    FEATURE_IPV6_CSUM_OFFLOAD, FEATURE_MULTICAST_CONTROL, FEATURE_NO_CSUM_OFFLOAD, FEATURE_RX_COPY,
    FEATURE_RX_NOTIFY, FEATURE_SG, FEATURE_SPLIT_EVENT_CHANNELS, FEATURE_XDP_HEADROOM,
    HOTPLUG_ERROR, HOTPLUG_STATUS, IFACE_ID, Keys, MAC, MAX_QUEUES_WANTED, MTU,
    MULTI_QUEUE_MAX_QUEUES, MULTI_QUEUE_NUM_QUEUES, MULTICAST_CONTROL_WANTED, ONLINE, QUEUE_KEYS,
    QUEUES_ACCEPTED, RECONNECT, REQUEST_MULTICAST_CONTROL, REQUEST_RX_COPY, RULE_KEYS, SCRIPT,
    SPEED, STAGING_WANTED, STATE, STOPPED, TRUSTED, VIFNAME, XDP_HEADROOM, queue_dir,
};
use crate::limits::LIMITS;

/// The keys that one end reads from a directory, all in one transaction, so that `state` matches
/// the others. It reads no other node of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySet {
    /// What the toolstack and its scripts have written to a backend's directory, and how many
    /// queues an earlier backend has offered.
    BackendDevice,
    /// What the toolstack has written to a frontend's directory.
    FrontendDevice,
    /// A backend's offer, as its frontend reads it.
    Offer,
    /// A frontend's state, and whether it reconnects by itself.
    FrontendState,
    /// Whether a frontend wants only the multicast frames that it orders, as it says at any time.
    MulticastRequest,
    /// A frontend's state, and the headroom that it wants.
    Headroom,
    /// A frontend's keys, as its backend reads them: those of at most this many queues.
    FrontendKeys {
        /// The most queues that the frontend may have.
        queues_max: u16,
    },
}

/// What a backend reads of its own directory, besides limits and rules.
const BACKEND_DEVICE: [&str; 23] = [
    STATE,
    ONLINE,
    MAC,
    MTU,
    BRIDGE,
    SCRIPT,
    VIFNAME,
    IFACE_ID,
    BIND,
    HOTPLUG_STATUS,
    HOTPLUG_ERROR,
    MAX_QUEUES_WANTED,
    COMPLETION,
    CONTROL_RING_WANTED,
    MULTICAST_CONTROL_WANTED,
    STAGING_WANTED,
    FEATURE_CTRL_RING,
    FEATURE_MULTICAST_CONTROL,
    FEATURE_XDP_HEADROOM,
    FEATURE_SPLIT_EVENT_CHANNELS,
    MULTI_QUEUE_MAX_QUEUES,
    QUEUES_ACCEPTED,
    STOPPED,
];

/// What a frontend reads of its backend.
const OFFER: [&str; 14] = [
    STATE,
    ERROR,
    CARRIER,
    FEATURE_RX_COPY,
    FEATURE_SPLIT_EVENT_CHANNELS,
    FEATURE_CTRL_RING,
    FEATURE_MULTICAST_CONTROL,
    FEATURE_XDP_HEADROOM,
    MULTI_QUEUE_MAX_QUEUES,
    FEATURE_SG,
    FEATURE_GSO_TCPV4,
    FEATURE_GSO_TCPV6,
    FEATURE_NO_CSUM_OFFLOAD,
    FEATURE_IPV6_CSUM_OFFLOAD,
];

/// What a backend reads of its frontend, besides the keys of queues.
const FRONTEND: [&str; 13] = [
    STATE,
    MULTI_QUEUE_NUM_QUEUES,
    RECONNECT,
    REQUEST_RX_COPY,
    FEATURE_RX_NOTIFY,
    CTRL_RING_REF,
    REQUEST_MULTICAST_CONTROL,
    XDP_HEADROOM,
    FEATURE_SG,
    FEATURE_GSO_TCPV4,
    FEATURE_GSO_TCPV6,
    FEATURE_NO_CSUM_OFFLOAD,
    FEATURE_IPV6_CSUM_OFFLOAD,
];

impl KeySet {
    /// The names of the keys, without those of queues.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let own: &[&str] = match self {
            KeySet::BackendDevice => &BACKEND_DEVICE,
            KeySet::FrontendDevice => {
                &[STATE, BACKEND, BACKEND_ID, MAC, MTU, DISCONNECT, SPEED, TRUSTED]
            }
            KeySet::FrontendState => &[STATE, RECONNECT],
            KeySet::MulticastRequest => &[REQUEST_MULTICAST_CONTROL],
            KeySet::Headroom => &[STATE, XDP_HEADROOM],
            KeySet::Offer => &OFFER,
            KeySet::FrontendKeys { .. } => &FRONTEND,
        };
        let limits = LIMITS.iter().map(|limit| limit.key);
        let of_vif = (self == KeySet::BackendDevice).then(|| limits.chain(RULE_KEYS));
        own.iter().copied().chain(of_vif.into_iter().flatten())
    }

    /// The names of the keys that depend on those already read: those of so many queues as there
    /// are, none for a number that will be refused anyway, and that of a control ring's event.
    pub fn queue_keys(self, read: &Keys) -> Vec<String> {
        let KeySet::FrontendKeys { queues_max } = self else { return Vec::new() };
        let count = read.number(MULTI_QUEUE_NUM_QUEUES).map(|count| count.unwrap_or(1));
        let mut keys = match count {
            Ok(1) => QUEUE_KEYS.map(str::to_owned).to_vec(),
            Ok(count) if count <= queues_max.into() => (0..)
                .take(usize::try_from(count).unwrap_or(0))
                .flat_map(|index| QUEUE_KEYS.map(|key| format!("{}/{key}", queue_dir(index))))
                .collect(),
            _ => Vec::new(),
        };
        keys.extend(read.has(CTRL_RING_REF).then(|| EVENT_CHANNEL_CTRL.to_owned()));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_keys(count: Option<&str>) -> Vec<String> {
        let count = count.map(|count| (MULTI_QUEUE_NUM_QUEUES.to_owned(), count.to_owned()));
        KeySet::FrontendKeys { queues_max: 3 }.queue_keys(&Keys::new("/f", count))
    }

    #[test]
    fn keys_of_all_possible_queues_are_read() {
        assert_eq!(queue_keys(None), QUEUE_KEYS);
        assert_eq!(queue_keys(Some("1")), QUEUE_KEYS);
        assert_eq!(queue_keys(Some("3")).len(), 3 * QUEUE_KEYS.len());
        assert_eq!(queue_keys(Some("2"))[5], "queue-1/tx-ring-ref");
        for refused in ["0", "4", "65536", "4294967295", "many", "-1"] {
            assert_eq!(queue_keys(Some(refused)), [""; 0], "{refused}");
        }
    }
}
