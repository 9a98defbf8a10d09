//! What the parts of a guest that routes are called, and how it is set.

/// Its interfaces: that on the sender's side, and that on the targets'.
pub(super) const OUTER_DEVICE: &str = "eth0";
pub(super) const INNER_DEVICE: &str = "eth1";
/// Its vifs and their sockets, where it has virtio.
pub(super) const VIFS: [&str; 2] = ["node0", "node1"];

/// Both interfaces are on one Ethernet, so each has to reply for its own address only.
pub(super) const SETTINGS: [(&str, &str); 4] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv4.conf.all.arp_ignore", "1"),
    ("net.ipv4.conf.all.arp_announce", "2"),
    ("net.ipv4.conf.all.rp_filter", "0"),
];
