//! All lies, by what they are about.

use anyhow::Result;

use crate::backend::Liar;
use crate::backend::lies::{control, events, keys, received, sent, states};
use crate::scenario::{Own, rows};

/// A lie of a backend, and what must become of the frontend's vif.
#[derive(Debug, Clone, Copy)]
pub struct Lie {
    /// Its name on the command line.
    pub name: &'static str,
    /// The lie.
    pub what: &'static str,
    /// The source: an advisory, or a rule that the backend breaks.
    pub source: &'static str,
    /// The backend's code.
    pub act: fn(&mut Liar<'_>) -> Result<()>,
    /// What must happen to the vif.
    pub own: Own,
}

/// The lie with this name.
pub fn find(name: &str) -> Option<&'static Lie> {
    ALL.iter().find(|lie| lie.name == name)
}

impl Lie {
    /// The vif may be served or not.
    const fn new(
        name: &'static str,
        what: &'static str,
        source: &'static str,
        act: fn(&mut Liar<'_>) -> Result<()>,
    ) -> Lie {
        Lie { name, what, source, act, own: Own::Any }
    }

    /// The frontend must leave.
    const fn closes(self) -> Lie {
        Lie { own: Own::Closed, ..self }
    }

    /// The frontend must stay.
    const fn serves(self) -> Lie {
        Lie { own: Own::Served, ..self }
    }
}

/// All of them, in the order in which they are tried.
pub const ALL: &[Lie] = rows! {
    Lie:
    // Responses to what the frontend sends.
    "sent-producer-jump", sent::producer_jump, .closes():
        "responds in tx beyond the requests: one too many, far off, half around",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW";
    "sent-producer-backwards", sent::producer_backwards, .closes():
        "takes a response in tx back",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW";
    "sent-ids-unknown", sent::ids_unknown, .closes():
        "responds in tx with ids that no request has",
        "netif.h: netif_tx_response.id";
    "sent-ids-twice", sent::ids_twice, .closes():
        "responds twice with the same id in tx",
        "netif.h: netif_tx_response.id";
    "sent-statuses-odd", sent::statuses_odd, .serves():
        "responds in tx with undefined statuses",
        "netif.h: XEN_NETIF_RSP_*";
    "sent-null-responses", sent::null_responses, .serves():
        "responds to everything in tx as if it were an extra",
        "netif.h: XEN_NETIF_RSP_NULL";
    // Responses that are frames.
    "received-producer-jump", received::producer_jump, .closes():
        "responds in rx beyond the requests",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW";
    "received-producer-backwards", received::producer_backwards, .closes():
        "takes a response in rx back",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW";
    "received-beyond-page", received::beyond_page, .closes():
        "reports bytes beyond the end of a page",
        "netif.h: netif_rx_response.offset, status";
    "received-statuses-negative", received::statuses_negative, .serves():
        "reports negative lengths, alone and in the middle of a frame",
        "netif.h: XEN_NETIF_RSP_*";
    "received-empty", received::empty_slots, .serves():
        "sends frames without bytes, in one slot and in many, or with too few for a header",
        "netif.h: netif_rx_response.status";
    "received-too-long", received::frame_too_long, .serves():
        "sends a frame of 84 KiB",
        "netif.h: XEN_NETIF_MAX_TX_SIZE";
    "received-chain-endless", received::chain_endless, .closes():
        "sends frames that never end",
        "XSA-39, from the other side";
    "received-chain-cut-off", received::chain_cut_off:
        "announces a slot or an extra that does not follow",
        "netif.h: XEN_NETRXF_more_data, XEN_NETRXF_extra_info";
    "received-extras-unknown", received::extras_unknown, .serves():
        "sends extras of unknown types",
        "netif.h: XEN_NETIF_EXTRA_TYPE_MAX";
    "received-extras-endless", received::extras_endless, .closes():
        "sends extras endlessly",
        "netif.h: XEN_NETIF_EXTRA_FLAG_MORE";
    "received-gso-invalid", received::gso_invalid, .closes():
        "sends frames in empty segments, or in segments of unknown kinds",
        "netif.h: XEN_NETIF_GSO_TYPE_*";
    "received-gso-absurd", received::gso_absurd:
        "sends frames in segments of a byte, or longer than the frame, two kinds at once",
        "netif.h: netif_extra_info.gso";
    "received-hash-malformed", received::hash_malformed, .serves():
        "sends extras with unknown types and algorithms of a hash",
        "netif.h: netif_extra_info.hash";
    "received-headroom-absurd", received::headroom_absurd, .serves():
        "claims headroom that is longer than the frame, or leaves its page",
        "Linux' netif.h: netif_extra_info.xdp";
    "received-ids-odd", received::ids_and_flags_odd:
        "responds in rx with odd ids, and sets each undefined flag",
        "netif.h: netif_rx_response.id, XEN_NETRXF_*";
    "received-random", received::random_responses:
        "sends random frames",
        "netif.h: netif_rx_response";
    // Events, and memory that both ends write.
    "event-storm", events::storm, .serves():
        "sends endless events without work",
        "legal";
    "event-wishes-absurd", events::wishes_absurd, .serves():
        "wants events for requests that are far off, or past",
        "ring.h: RING_PUSH_REQUESTS_AND_CHECK_NOTIFY";
    "foreign-indices", events::foreign_indices:
        "overwrites the indices that belong to the frontend",
        "XSA-155, from the other side";
    "pages-overwritten", events::pages_overwritten:
        "overwrites both ring pages with random bytes",
        "XSA-155, from the other side";
    // The control ring.
    "control-producer-jump", control::producer_jump, .closes():
        "responds to control messages that were not sent",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW";
    "control-ids-unknown", control::ids_unknown, .closes():
        "responds to a control message with another id, or another type",
        "netif.h: netif_ctrl_response.id, type";
    "control-twice", control::twice, .closes():
        "responds twice to a control message",
        "netif.h: netif_ctrl_response";
    "control-statuses-odd", control::statuses_odd, .serves():
        "refuses control messages, also with undefined statuses",
        "netif.h: XEN_NETIF_CTRL_STATUS_*";
    "control-data-absurd", control::data_absurd, .serves():
        "responds with the largest number to each control message",
        "netif.h: netif_ctrl_response.data";
    "control-silence", control::silence, .serves():
        "never responds to a control message",
        "netif.h: netif_ctrl_response";
    // Keys.
    "keys-queues-absurd", keys::queues_absurd:
        "offers no queue, 2^32 of them, or words",
        "netif.h: multi-queue-max-queues";
    "keys-features-half", keys::features_half:
        "offers features without a value, or with a value that is not a number",
        "netif.h: feature-*";
    "keys-after-connect", keys::changed_after_connect, .serves():
        "changes and removes its keys while the frontend is connected",
        "netif.h; xenbus";
    "carrier-flaps", keys::carrier_flaps, .serves():
        "says of the link that it is up, and down, and up",
        "netif.h: carrier";
    // States.
    "states-jump", states::jump:
        "goes from Connected to states that do not follow it, and to what is no state",
        "xenbus.h: xenbus_state";
    "closed-in-handshake", states::closed_in_handshake:
        "closes at any step of the handshake",
        "XSA-465";
    "connected-at-once", states::connected_at_once:
        "is connected before the frontend has made rings",
        "xenbus.h: xenbus_state";
    "never-connects", states::never_connects:
        "makes an offer, and nothing else",
        "legal";
    "never-attaches", states::never_attaches, .serves():
        "is connected, and serves nothing",
        "xenbus.h: xenbus_state";
    "states-flap", states::flap:
        "writes states in any order, endlessly",
        "xenbus.h: xenbus_state";
    "pages-kept", states::pages_kept:
        "never unmaps the pages of connections that have ended",
        "XSA-396";
};
