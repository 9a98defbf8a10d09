//! All scenarios, by what they attack.

mod shared;

use crate::acts::{chains, control, grants, handshake, offloads, rings, staging, xenstore};
use crate::scenario::{Scenario, rows};

/// All of them, in the order in which they run.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    OF_VIFS.iter().chain(shared::OF_OTHERS)
}

/// The scenario with this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    all().find(|scenario| scenario.name == name)
}

/// Attacks on the backend through the interfaces of a vif.
const OF_VIFS: &[Scenario] = rows! {
    Scenario:
    // Indices and events.
    "tx-producer-jump", rings::tx_producer_jump, .closes():
        "moves the producer of tx too far, half around, backwards",
        "XSA-39; ring.h: RING_REQUEST_PROD_OVERFLOW";
    "rx-producer-jump", rings::rx_producer_jump, .closes():
        "moves the producer of rx in the same way",
        "XSA-39; ring.h: RING_REQUEST_PROD_OVERFLOW";
    "foreign-indices", rings::foreign_indices:
        "overwrites the indices that belong to the backend",
        "XSA-155, ring.h";
    "pages-overwritten", rings::pages_overwritten, .slow():
        "overwrites both ring pages while they are in use",
        "XSA-155";
    "racing-writes", rings::racing_writes:
        "changes requests while the backend reads them",
        "XSA-155";
    "random-requests", rings::random_requests:
        "sends requests of random bytes",
        "netif.h: netif_tx_request";
    "rx-requests-odd", rings::rx_requests_odd:
        "offers pages with odd ids, absent grants and its own rings",
        "netif.h: netif_rx_request";
    "event-storm", rings::event_storm, .serves().with_share():
        "sends endless events without work",
        "XSA-331, XSA-332, XSA-441";
    "events-while-closing", rings::events_while_closing:
        "sends events on channels while the backend closes them",
        "XSA-331, XSA-441";
    "ports-exhausted", rings::ports_exhausted, .serves().by(4):
        "allocates all event channels that it may have, and uses them",
        "xl.cfg: max_event_channels";
    // Chains of requests.
    "slot-beyond-page", chains::slot_beyond_page, .closes():
        "sends from beyond the end of a page",
        "netif.h: offset, size; XSA-448";
    "chain-cut-off", chains::chain_cut_off, .closes():
        "announces a slot or an extra that does not follow",
        "netif.h: XEN_NETTXF_more_data, XEN_NETTXF_extra_info";
    "chain-too-long", chains::chain_too_long:
        "sends frames of 19 to 255 slots",
        "netif.h: XEN_NETIF_NR_SLOTS_MIN; XSA-39";
    "slots-tiny", chains::slots_tiny, .serves():
        "sends frames of many slots with a few bytes each",
        "XSA-432";
    "slots-empty", chains::slots_empty:
        "sends empty slots: first, last, in between, all",
        "XSA-448";
    "sizes-lie", chains::sizes_lie:
        "sends frames whose total and parts differ, or overflow 16 bits",
        "netif.h: the first slot's size is the packet's";
    "extras-unknown", chains::extras_unknown, .closes():
        "sends extras of unknown types",
        "netif.h: XEN_NETIF_EXTRA_TYPE_MAX";
    "extras-odd", chains::extras_odd:
        "sends extras twice, endlessly, and without having negotiated them",
        "netif.h: netif_extra_info";
    "multicast-orders", chains::multicast_orders, .serves().with_share():
        "orders more and more multicast addresses as fast as it can",
        "legal";
    "flags-unknown", chains::flags_unknown:
        "sets each undefined flag",
        "netif.h: XEN_NETTXF_*";
    // Grants.
    "grants-absent", grants::grants_absent:
        "sends from absent grants, among good ones",
        "XSA-361, XSA-365, XSA-367";
    "ring-page-as-buffer", grants::ring_page_as_buffer:
        "sends from its ring pages and receives into them",
        "grant_table.h";
    "grants-revoked", grants::grants_revoked, .emulated():
        "ends grants while the backend copies from them",
        "XSA-396, from the other side";
    "pages-read-only", grants::pages_read_only:
        "offers read-only pages to receive into",
        "grant_table.h: GTF_readonly";
    // The control ring.
    "control-producer-jump", control::producer_jump, .closes():
        "moves the producer of the control ring too far, half around, backwards",
        "XSA-39; ring.h: RING_REQUEST_PROD_OVERFLOW";
    "control-messages-odd", control::messages_odd, .serves():
        "sends control messages that are unknown, out of range or without a grant, many at once",
        "XSA-270; netif.h: xen_netif_ctrl_request";
    "control-racing-writes", control::racing_writes, .serves():
        "changes control messages and mappings while the backend reads them",
        "XSA-155, XSA-270";
    "control-queues-gone", control::queues_gone, .serves():
        "maps all hashes to the last of eight queues, and returns with one",
        "XSA-270; netif.h: XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING";
    "control-flood", control::flood, .serves().with_share():
        "sends control messages as fast as it can, each of which changes something",
        "legal";
    "staging-lists-odd", staging::lists_odd, .serves():
        "has the backend map pages that are absent, read-only or there twice, and lists too long",
        "XSA-361; netif.h: struct xen_netif_gref";
    "staging-racing-writes", staging::racing_writes, .serves():
        "changes lists and frames in pages that the backend maps, unmaps and copies from",
        "XSA-155; netif.h: XEN_NETIF_CTRL_TYPE_ADD_GREF_MAPPING";
    "staging-flood", staging::flood, .serves().with_share():
        "has 512 pages mapped and unmapped as fast as it can",
        "legal";
    // Offloads.
    "gso-invalid", offloads::gso_invalid, .closes():
        "asks for empty segments, or segments of unknown kinds",
        "netif.h: XEN_NETIF_GSO_TYPE_*";
    "gso-odd", offloads::gso_odd:
        "asks for segmentation of a frame without the headers for it",
        "netif.h: netif_extra_info.gso";
    "gso-tiny-segments", offloads::gso_tiny_segments, .serves().with_share():
        "makes the backend cut 64 KiB into segments of one byte",
        "seen: 90 ms of a worker for a frame; CVE-2018-1000026";
    "gso-tiny-segments-bridge", offloads::gso_tiny_segments, .serves().on_bridge().with_share():
        "makes the host's kernel cut 64 KiB into segments of one byte",
        "seen: neighbours' pings took 2.5 s";
    "gso-short-segments", offloads::gso_short_segments, .slow().serves().with_half_a_share():
        "makes the backend cut 64 KiB into segments of 48 bytes, as often as it can",
        "legal; the smallest segments of Linux";
    "gso-short-segments-bridge", offloads::gso_short_segments,
        .slow().serves().on_bridge().with_half_a_share():
        "makes the host's kernel cut 64 KiB into segments of 48 bytes, as often as it can",
        "legal; the smallest segments of Linux";
    "gso-usual-segments-bridge", offloads::gso_usual_segments,
        .slow().serves().on_bridge().with_half_a_share():
        "makes the host's kernel cut 64 KiB into segments of 536 bytes, as often as it can",
        "legal; a sender without knowledge of the path may use it";
    "header-bloat", offloads::header_bloat, .serves().with_share():
        "makes the backend repeat headers of 20 KiB in each of 1,361 segments",
        "seen: a frame took 85 MiB of buffers";
    "frames-over-mtu", offloads::frames_over_mtu, .serves().with_share():
        "sends frames of 2,049 and 4,096 bytes",
        "seen: each took a buffer of 64 KiB";
    "checksums-blank", offloads::checksums_blank, .serves():
        "leaves checksums blank in frames that have none, or are too short for one",
        "netif.h: XEN_NETTXF_csum_blank; XSA-423";
    "headers-split", offloads::headers_split, .serves():
        "spreads headers over slots of a few bytes",
        "XSA-423";
    // The handshake.
    "keys-absurd", handshake::keys_absurd, .closes():
        "connects with keys that are missing, out of range, or words",
        "netif.h: multi-queue; Linux 6d1dc8014334";
    "keys-long", handshake::keys_long:
        "writes values of 2,000 bytes, and invalid text",
        "xenstored: quota-entry-size";
    "queues-share-a-ring", handshake::queues_share_a_ring:
        "uses one ring, or one event channel, for two queues",
        "netif.h: multi-queue";
    "keys-after-connect", handshake::keys_after_connect, .serves():
        "changes all its keys while it is connected",
        "netif.h; xenbus";
    "keys-removed", handshake::keys_removed:
        "removes its keys while they are in use",
        "xenbus; XSA-374";
    "states-random", handshake::states_random:
        "writes states in any order, and undefined states",
        "xenbus.h: xenbus_state";
    "reconnect-storm", handshake::reconnect_storm, .with_share():
        "connects with eight queues again and again",
        "XSA-374, XSA-465";
    "death-in-handshake", handshake::death_in_handshake, .again_and_again():
        "dies at any step of the handshake, and with full rings",
        "XSA-374, XSA-465; CVE-2026-99286";
    // XenStore.
    "store-storm", xenstore::store_storm, .with_share():
        "creates and removes names below a node that the backend watches",
        "XSA-349; seen: the backend ended in 3 s";
    "transactions-conflict", xenstore::transactions_conflict, .by(6):
        "fills its directory and changes keys while the backend reads them",
        "seen: no reply from the backend for 17 s";
    "paths-deep", xenstore::paths_deep:
        "commits a thousand writes at once, with the deepest paths allowed",
        "xenstore.txt: XENSTORE_ABS_PATH_MAX; seen: XenStore blocked for a second";
    "events-unread", xenstore::events_unread:
        "watches what it changes, and never reads the events",
        "XSA-349";
    "transactions-open", xenstore::transactions_open, .emulated():
        "starts transactions and never ends them",
        "xenstore.txt: quota of transactions";
    "store-connections", xenstore::store_connections, .emulated():
        "connects to XenStore as often as it can",
        "xenstored: quota of connections";
};

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
