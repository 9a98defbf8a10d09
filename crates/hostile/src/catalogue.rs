//! All scenarios, by what they attack.

mod shared;

use crate::acts::{chains, control, grants, handshake, offloads, rings, xenstore};
use crate::scenario::Scenario;

const fn new(
    name: &'static str,
    what: &'static str,
    source: &'static str,
    act: fn(&mut crate::stage::Stage) -> anyhow::Result<()>,
) -> Scenario {
    Scenario::new(name, what, source, act)
}

/// All of them, in the order in which they run.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    OF_VIFS.iter().chain(shared::OF_OTHERS)
}

/// The scenario with this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    all().find(|scenario| scenario.name == name)
}

/// Attacks on the backend through the interfaces of a vif.
const OF_VIFS: &[Scenario] = &[
    // Indices and events.
    new(
        "tx-producer-jump",
        "moves the producer of tx too far, half around, backwards",
        "XSA-39; ring.h: RING_REQUEST_PROD_OVERFLOW",
        rings::tx_producer_jump,
    )
    .closes(),
    new(
        "rx-producer-jump",
        "moves the producer of rx in the same way",
        "XSA-39; ring.h: RING_REQUEST_PROD_OVERFLOW",
        rings::rx_producer_jump,
    )
    .closes(),
    new(
        "foreign-indices",
        "overwrites the indices that belong to the backend",
        "XSA-155, ring.h",
        rings::foreign_indices,
    ),
    new(
        "pages-overwritten",
        "overwrites both ring pages while they are in use",
        "XSA-155",
        rings::pages_overwritten,
    )
    .slow(),
    new(
        "racing-writes",
        "changes requests while the backend reads them",
        "XSA-155",
        rings::racing_writes,
    ),
    new(
        "random-requests",
        "sends requests of random bytes",
        "netif.h: netif_tx_request",
        rings::random_requests,
    ),
    new(
        "rx-requests-odd",
        "offers pages with odd ids, absent grants and its own rings",
        "netif.h: netif_rx_request",
        rings::rx_requests_odd,
    ),
    new(
        "event-storm",
        "sends endless events without work",
        "XSA-331, XSA-332, XSA-441",
        rings::event_storm,
    )
    .serves()
    .with_share(),
    new(
        "events-while-closing",
        "sends events on channels while the backend closes them",
        "XSA-331, XSA-441",
        rings::events_while_closing,
    ),
    new(
        "ports-exhausted",
        "allocates all event channels that it may have, and uses them",
        "xl.cfg: max_event_channels",
        rings::ports_exhausted,
    )
    .serves()
    .by(4),
    // Chains of requests.
    new(
        "slot-beyond-page",
        "sends from beyond the end of a page",
        "netif.h: offset, size; XSA-448",
        chains::slot_beyond_page,
    )
    .closes(),
    new(
        "chain-cut-off",
        "announces a slot or an extra that does not follow",
        "netif.h: XEN_NETTXF_more_data, XEN_NETTXF_extra_info",
        chains::chain_cut_off,
    )
    .closes(),
    new(
        "chain-too-long",
        "sends frames of 19 to 255 slots",
        "netif.h: XEN_NETIF_NR_SLOTS_MIN; XSA-39",
        chains::chain_too_long,
    ),
    new(
        "slots-tiny",
        "sends frames of many slots with a few bytes each",
        "XSA-432",
        chains::slots_tiny,
    )
    .serves(),
    new(
        "slots-empty",
        "sends empty slots: first, last, in between, all",
        "XSA-448",
        chains::slots_empty,
    ),
    new(
        "sizes-lie",
        "sends frames whose total and parts differ, or overflow 16 bits",
        "netif.h: the first slot's size is the packet's",
        chains::sizes_lie,
    ),
    new(
        "extras-unknown",
        "sends extras of unknown types",
        "netif.h: XEN_NETIF_EXTRA_TYPE_MAX",
        chains::extras_unknown,
    )
    .closes(),
    new(
        "extras-odd",
        "sends extras twice, endlessly, and without having negotiated them",
        "netif.h: netif_extra_info",
        chains::extras_odd,
    ),
    new(
        "multicast-orders",
        "orders more and more multicast addresses as fast as it can",
        "legal",
        chains::multicast_orders,
    )
    .serves()
    .with_share(),
    new(
        "flags-unknown",
        "sets each undefined flag",
        "netif.h: XEN_NETTXF_*",
        chains::flags_unknown,
    ),
    // Grants.
    new(
        "grants-absent",
        "sends from absent grants, among good ones",
        "XSA-361, XSA-365, XSA-367",
        grants::grants_absent,
    ),
    new(
        "ring-page-as-buffer",
        "sends from its ring pages and receives into them",
        "grant_table.h",
        grants::ring_page_as_buffer,
    ),
    new(
        "grants-revoked",
        "ends grants while the backend copies from them",
        "XSA-396, from the other side",
        grants::grants_revoked,
    )
    .emulated(),
    new(
        "pages-read-only",
        "offers read-only pages to receive into",
        "grant_table.h: GTF_readonly",
        grants::pages_read_only,
    ),
    // The control ring.
    new(
        "control-producer-jump",
        "moves the producer of the control ring too far, half around, backwards",
        "XSA-39; ring.h: RING_REQUEST_PROD_OVERFLOW",
        control::producer_jump,
    )
    .closes(),
    new(
        "control-messages-odd",
        "sends control messages that are unknown, out of range or without a grant, many at once",
        "XSA-270; netif.h: xen_netif_ctrl_request",
        control::messages_odd,
    )
    .serves(),
    new(
        "control-racing-writes",
        "changes control messages and mappings while the backend reads them",
        "XSA-155, XSA-270",
        control::racing_writes,
    )
    .serves(),
    new(
        "control-queues-gone",
        "maps all hashes to the last of eight queues, and returns with one",
        "XSA-270; netif.h: XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING",
        control::queues_gone,
    )
    .serves(),
    new(
        "control-flood",
        "sends control messages as fast as it can, each of which changes something",
        "legal",
        control::flood,
    )
    .serves()
    .with_share(),
    // Offloads.
    new(
        "gso-invalid",
        "asks for empty segments, or segments of unknown kinds",
        "netif.h: XEN_NETIF_GSO_TYPE_*",
        offloads::gso_invalid,
    )
    .closes(),
    new(
        "gso-odd",
        "asks for segmentation of a frame without the headers for it",
        "netif.h: netif_extra_info.gso",
        offloads::gso_odd,
    ),
    new(
        "gso-tiny-segments",
        "makes the backend cut 64 KiB into segments of one byte",
        "seen: 90 ms of a worker for a frame; CVE-2018-1000026",
        offloads::gso_tiny_segments,
    )
    .serves()
    .with_share(),
    new(
        "gso-tiny-segments-bridge",
        "makes the host's kernel cut 64 KiB into segments of one byte",
        "seen: neighbours' pings took 2.5 s",
        offloads::gso_tiny_segments,
    )
    .serves()
    .on_bridge()
    .with_share(),
    new(
        "gso-short-segments",
        "makes the backend cut 64 KiB into segments of 48 bytes, as often as it can",
        "legal; the smallest segments of Linux",
        offloads::gso_short_segments,
    )
    .slow()
    .serves()
    .with_half_a_share(),
    new(
        "gso-short-segments-bridge",
        "makes the host's kernel cut 64 KiB into segments of 48 bytes, as often as it can",
        "legal; the smallest segments of Linux",
        offloads::gso_short_segments,
    )
    .slow()
    .serves()
    .on_bridge()
    .with_half_a_share(),
    new(
        "gso-usual-segments-bridge",
        "makes the host's kernel cut 64 KiB into segments of 536 bytes, as often as it can",
        "legal; a sender without knowledge of the path may use it",
        offloads::gso_usual_segments,
    )
    .slow()
    .serves()
    .on_bridge()
    .with_half_a_share(),
    new(
        "header-bloat",
        "makes the backend repeat headers of 20 KiB in each of 1,361 segments",
        "seen: a frame took 85 MiB of buffers",
        offloads::header_bloat,
    )
    .serves()
    .with_share(),
    new(
        "frames-over-mtu",
        "sends frames of 2,049 and 4,096 bytes",
        "seen: each took a buffer of 64 KiB",
        offloads::frames_over_mtu,
    )
    .serves()
    .with_share(),
    new(
        "checksums-blank",
        "leaves checksums blank in frames that have none, or are too short for one",
        "netif.h: XEN_NETTXF_csum_blank; XSA-423",
        offloads::checksums_blank,
    )
    .serves(),
    new(
        "headers-split",
        "spreads headers over slots of a few bytes",
        "XSA-423",
        offloads::headers_split,
    )
    .serves(),
    // The handshake.
    new(
        "keys-absurd",
        "connects with keys that are missing, out of range, or words",
        "netif.h: multi-queue; Linux 6d1dc8014334",
        handshake::keys_absurd,
    )
    .closes(),
    new(
        "keys-long",
        "writes values of 2,000 bytes, and invalid text",
        "xenstored: quota-entry-size",
        handshake::keys_long,
    ),
    new(
        "queues-share-a-ring",
        "uses one ring, or one event channel, for two queues",
        "netif.h: multi-queue",
        handshake::queues_share_a_ring,
    ),
    new(
        "keys-after-connect",
        "changes all its keys while it is connected",
        "netif.h; xenbus",
        handshake::keys_after_connect,
    )
    .serves(),
    new(
        "keys-removed",
        "removes its keys while they are in use",
        "xenbus; XSA-374",
        handshake::keys_removed,
    ),
    new(
        "states-random",
        "writes states in any order, and undefined states",
        "xenbus.h: xenbus_state",
        handshake::states_random,
    ),
    new(
        "reconnect-storm",
        "connects with eight queues again and again",
        "XSA-374, XSA-465",
        handshake::reconnect_storm,
    )
    .with_share(),
    new(
        "death-in-handshake",
        "dies at any step of the handshake, and with full rings",
        "XSA-374, XSA-465; CVE-2026-99286",
        handshake::death_in_handshake,
    )
    .again_and_again(),
    // XenStore.
    new(
        "store-storm",
        "creates and removes names below a node that the backend watches",
        "XSA-349; seen: the backend ended in 3 s",
        xenstore::store_storm,
    )
    .with_share(),
    new(
        "transactions-conflict",
        "fills its directory and changes keys while the backend reads them",
        "seen: no reply from the backend for 17 s",
        xenstore::transactions_conflict,
    )
    .by(6),
    new(
        "paths-deep",
        "commits a thousand writes at once, with the deepest paths allowed",
        "xenstore.txt: XENSTORE_ABS_PATH_MAX; seen: XenStore blocked for a second",
        xenstore::paths_deep,
    ),
    new(
        "events-unread",
        "watches what it changes, and never reads the events",
        "XSA-349",
        xenstore::events_unread,
    ),
    new(
        "transactions-open",
        "starts transactions and never ends them",
        "xenstore.txt: quota of transactions",
        xenstore::transactions_open,
    )
    .emulated(),
    new(
        "store-connections",
        "connects to XenStore as often as it can",
        "xenstored: quota of connections",
        xenstore::store_connections,
    )
    .emulated(),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_scenario_has_a_unique_name_that_can_be_typed() {
        let names: BTreeSet<&str> = all().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all().count());
        let is_plain =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(names.iter().all(|name| is_plain(name)), "{names:?}");
    }

    #[test]
    fn each_scenario_has_a_description_and_a_reason() {
        for scenario in all() {
            assert!(scenario.what.len() > 10 && !scenario.source.is_empty(), "{}", scenario.name);
            assert!(scenario.guests >= 1 && scenario.loss_max < 100, "{}", scenario.name);
        }
    }
}
