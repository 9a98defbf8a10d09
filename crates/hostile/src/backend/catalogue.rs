//! All lies, by what they are about.

use anyhow::Result;

use crate::backend::Liar;
use crate::backend::lies::{received, sent};
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
];
