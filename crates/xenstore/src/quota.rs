//! Limits per domain. The numbers are those of the stock daemon where it has them.

use ringway_wire::DomId;
use ringway_wire::xenstore::XENSTORE_PAYLOAD_MAX;

/// The limits of one domain, over all its connections unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Nodes it may own.
    pub nodes: usize,
    /// Bytes of one node: value, names of children and permissions together.
    pub node_len: usize,
    /// Entries in the permissions of one node.
    pub permission_entries: usize,
    /// Watches.
    pub watches: usize,
    /// Transactions open at a time.
    pub transactions: usize,
    /// Nodes that one transaction may touch, and changes that it may make.
    pub transaction_nodes: usize,
    /// Bytes of the paths and values that one transaction keeps until it ends.
    pub transaction_bytes: usize,
    /// Watch events that wait for one connection (XSA-349). Of those that one watch causes beyond
    /// its share, a single one is kept, for the watched node itself.
    pub events: usize,
    /// Connections open at a time.
    pub connections: usize,
    /// Requests per second, over all connections. Further requests wait.
    pub requests_per_second: u32,
}

impl Quota {
    /// Limits of domain 0: they bound our memory, and no toolstack comes near them.
    pub const PRIVILEGED: Quota = Quota {
        nodes: 1 << 20,
        node_len: 1 << 20,
        permission_entries: XENSTORE_PAYLOAD_MAX,
        watches: 1 << 16,
        transactions: 1 << 8,
        transaction_nodes: 1 << 14,
        transaction_bytes: 1 << 26,
        events: 1 << 14,
        connections: 1 << 10,
        requests_per_second: u32::MAX,
    };

    /// The limits of `domain`, if those of guests are `self`.
    pub(crate) fn of(&self, domain: DomId) -> &Quota {
        if domain == DomId(0) { &Quota::PRIVILEGED } else { self }
    }
}

impl Default for Quota {
    fn default() -> Quota {
        Quota {
            nodes: 1000,
            node_len: 2048,
            permission_entries: 5,
            watches: 128,
            transactions: 10,
            transaction_nodes: 1024,
            transaction_bytes: 1 << 17,
            events: 1024,
            connections: 16,
            requests_per_second: 2000,
        }
    }
}
