//! All lies, by what they are about.

use anyhow::Result;

use crate::backend::Liar;
use crate::backend::lies::{control, events, keys, received, sent, states};
use crate::scenario::Own;

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

/// A lie after which the vif may be served or not.
const fn new(
    name: &'static str,
    what: &'static str,
    source: &'static str,
    act: fn(&mut Liar<'_>) -> Result<()>,
) -> Lie {
    Lie { name, what, source, act, own: Own::Any }
}

impl Lie {
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
pub const ALL: &[Lie] = &[
    // Responses to what the frontend sends.
    new(
        "sent-producer-jump",
        "responds in tx beyond the requests: one too many, far off, half around",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW",
        sent::producer_jump,
    )
    .closes(),
    new(
        "sent-producer-backwards",
        "takes a response in tx back",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW",
        sent::producer_backwards,
    )
    .closes(),
    new(
        "sent-ids-unknown",
        "responds in tx with ids that no request has",
        "netif.h: netif_tx_response.id",
        sent::ids_unknown,
    )
    .closes(),
    new(
        "sent-ids-twice",
        "responds twice with the same id in tx",
        "netif.h: netif_tx_response.id",
        sent::ids_twice,
    )
    .closes(),
    new(
        "sent-statuses-odd",
        "responds in tx with undefined statuses",
        "netif.h: XEN_NETIF_RSP_*",
        sent::statuses_odd,
    )
    .serves(),
    new(
        "sent-null-responses",
        "responds to everything in tx as if it were an extra",
        "netif.h: XEN_NETIF_RSP_NULL",
        sent::null_responses,
    )
    .serves(),
    // Responses that are frames.
    new(
        "received-producer-jump",
        "responds in rx beyond the requests",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW",
        received::producer_jump,
    )
    .closes(),
    new(
        "received-producer-backwards",
        "takes a response in rx back",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW",
        received::producer_backwards,
    )
    .closes(),
    new(
        "received-beyond-page",
        "reports bytes beyond the end of a page",
        "netif.h: netif_rx_response.offset, status",
        received::beyond_page,
    )
    .closes(),
    new(
        "received-statuses-negative",
        "reports negative lengths, alone and in the middle of a frame",
        "netif.h: XEN_NETIF_RSP_*",
        received::statuses_negative,
    )
    .serves(),
    new(
        "received-empty",
        "sends frames without bytes, in one slot and in many, or with too few for a header",
        "netif.h: netif_rx_response.status",
        received::empty_slots,
    )
    .serves(),
    new(
        "received-too-long",
        "sends a frame of 84 KiB",
        "netif.h: XEN_NETIF_MAX_TX_SIZE",
        received::frame_too_long,
    )
    .serves(),
    new(
        "received-chain-endless",
        "sends frames that never end",
        "XSA-39, from the other side",
        received::chain_endless,
    )
    .closes(),
    new(
        "received-chain-cut-off",
        "announces a slot or an extra that does not follow",
        "netif.h: XEN_NETRXF_more_data, XEN_NETRXF_extra_info",
        received::chain_cut_off,
    ),
    new(
        "received-extras-unknown",
        "sends extras of unknown types",
        "netif.h: XEN_NETIF_EXTRA_TYPE_MAX",
        received::extras_unknown,
    )
    .serves(),
    new(
        "received-extras-endless",
        "sends extras endlessly",
        "netif.h: XEN_NETIF_EXTRA_FLAG_MORE",
        received::extras_endless,
    )
    .closes(),
    new(
        "received-gso-invalid",
        "sends frames in empty segments, or in segments of unknown kinds",
        "netif.h: XEN_NETIF_GSO_TYPE_*",
        received::gso_invalid,
    )
    .closes(),
    new(
        "received-gso-absurd",
        "sends frames in segments of a byte, or longer than the frame, two kinds at once",
        "netif.h: netif_extra_info.gso",
        received::gso_absurd,
    ),
    new(
        "received-hash-malformed",
        "sends extras with unknown types and algorithms of a hash",
        "netif.h: netif_extra_info.hash",
        received::hash_malformed,
    )
    .serves(),
    new(
        "received-headroom-absurd",
        "claims headroom that is longer than the frame, or leaves its page",
        "Linux' netif.h: netif_extra_info.xdp",
        received::headroom_absurd,
    )
    .serves(),
    new(
        "received-ids-odd",
        "responds in rx with odd ids, and sets each undefined flag",
        "netif.h: netif_rx_response.id, XEN_NETRXF_*",
        received::ids_and_flags_odd,
    ),
    new(
        "received-random",
        "sends random frames",
        "netif.h: netif_rx_response",
        received::random_responses,
    ),
    // Events, and memory that both ends write.
    new("event-storm", "sends endless events without work", "legal", events::storm).serves(),
    new(
        "event-wishes-absurd",
        "wants events for requests that are far off, or past",
        "ring.h: RING_PUSH_REQUESTS_AND_CHECK_NOTIFY",
        events::wishes_absurd,
    )
    .serves(),
    new(
        "foreign-indices",
        "overwrites the indices that belong to the frontend",
        "XSA-155, from the other side",
        events::foreign_indices,
    ),
    new(
        "pages-overwritten",
        "overwrites both ring pages with random bytes",
        "XSA-155, from the other side",
        events::pages_overwritten,
    ),
    // The control ring.
    new(
        "control-producer-jump",
        "responds to control messages that were not sent",
        "ring.h: RING_RESPONSE_PROD_OVERFLOW",
        control::producer_jump,
    )
    .closes(),
    new(
        "control-ids-unknown",
        "responds to a control message with another id, or another type",
        "netif.h: netif_ctrl_response.id, type",
        control::ids_unknown,
    )
    .closes(),
    new(
        "control-twice",
        "responds twice to a control message",
        "netif.h: netif_ctrl_response",
        control::twice,
    )
    .closes(),
    new(
        "control-statuses-odd",
        "refuses control messages, also with undefined statuses",
        "netif.h: XEN_NETIF_CTRL_STATUS_*",
        control::statuses_odd,
    )
    .serves(),
    new(
        "control-data-absurd",
        "responds with the largest number to each control message",
        "netif.h: netif_ctrl_response.data",
        control::data_absurd,
    )
    .serves(),
    new(
        "control-silence",
        "never responds to a control message",
        "netif.h: netif_ctrl_response",
        control::silence,
    )
    .serves(),
    // Keys.
    new(
        "keys-queues-absurd",
        "offers no queue, 2^32 of them, or words",
        "netif.h: multi-queue-max-queues",
        keys::queues_absurd,
    ),
    new(
        "keys-features-half",
        "offers features without a value, or with a value that is not a number",
        "netif.h: feature-*",
        keys::features_half,
    ),
    new(
        "keys-after-connect",
        "changes and removes its keys while the frontend is connected",
        "netif.h; xenbus",
        keys::changed_after_connect,
    )
    .serves(),
    new(
        "carrier-flaps",
        "says of the link that it is up, and down, and up",
        "netif.h: carrier",
        keys::carrier_flaps,
    )
    .serves(),
    // States.
    new(
        "states-jump",
        "goes from Connected to states that do not follow it, and to what is no state",
        "xenbus.h: xenbus_state",
        states::jump,
    ),
    new(
        "closed-in-handshake",
        "closes at any step of the handshake",
        "XSA-465",
        states::closed_in_handshake,
    ),
    new(
        "connected-at-once",
        "is connected before the frontend has made rings",
        "xenbus.h: xenbus_state",
        states::connected_at_once,
    ),
    new("never-connects", "makes an offer, and nothing else", "legal", states::never_connects),
    new(
        "never-attaches",
        "is connected, and serves nothing",
        "xenbus.h: xenbus_state",
        states::never_attaches,
    )
    .serves(),
    new(
        "states-flap",
        "writes states in any order, endlessly",
        "xenbus.h: xenbus_state",
        states::flap,
    ),
    new(
        "pages-kept",
        "never unmaps the pages of connections that have ended",
        "XSA-396",
        states::pages_kept,
    ),
];
