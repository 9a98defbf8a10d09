//! Names of the parts of a guest that routes, and its settings.

/// Its interfaces: this one is on the sender's side, and the next one on the targets' side.
pub(super) const OUTER_DEVICE: &str = "eth0";
pub(super) const INNER_DEVICE: &str = "eth1";
/// The names of its vifs and their sockets, if it has virtio.
pub(super) const VIFS: [&str; 2] = ["node0", "node1"];

/// Both interfaces are on one Ethernet, so each must reply to ARP for its own address only.
pub(super) const SETTINGS: [(&str, &str); 4] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv4.conf.all.arp_ignore", "1"),
    ("net.ipv4.conf.all.arp_announce", "2"),
    ("net.ipv4.conf.all.rp_filter", "0"),
];
