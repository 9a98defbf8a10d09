//! Attacks on what guests share: the network, the workers, and the host.

use crate::acts::{confined, shares, traffic};
use crate::scenario::{Beside, Scenario, rows};

/// All of them, in the order in which they run.
pub(super) const OF_OTHERS: &[Scenario] = rows! {
    Scenario:
    "spoofed-source", traffic::spoofed_source, .deaf(10):
        "sends with another guest's address",
        "seen: all frames for that guest went to this one";
    "spoofed-host", traffic::spoofed_host, .deaf(10):
        "sends with the host's address",
        "seen: as with another guest's";
    "arp-claims", traffic::arp_claims,
        .given(&[("ip", "10.77.0.253"), ("locking-mode", "locked")]).deaf(10):
        "claims others' IP addresses with ARP",
        "RFC 826 has no protection";
    "rogue-router", traffic::rogue_router, .serves().beside(Beside::Routers):
        "claims to be a router",
        "RFC 6104, RFC 6105: rogue router advertisements";
    "hidden-router", traffic::hidden_router, .serves().beside(Beside::Routers):
        "claims to be a router behind headers, in fragments, behind tags, and in LLC and SNAP",
        "RFC 7113; CVE-2021-27853, CVE-2021-27854, CVE-2021-27861, CVE-2021-27862";
    "rogue-dhcp", traffic::rogue_dhcp, .serves():
        "replies as a DHCP server",
        "RFC 2131, 7: unauthorized DHCP servers";
    "neighbor-claims", traffic::neighbor_claims,
        .given(&[("ip", "10.77.0.253"), ("locking-mode", "locked")]).serves().deaf(10):
        "claims others' IPv6 addresses with neighbor advertisements",
        "RFC 3756, 4.1.1: neighbor advertisement spoofing";
    "foreign-tags", traffic::foreign_tags, .given(&[("ringway-vlan", "7")]).serves().deaf(0):
        "is in its own VLAN, and sends with tags of other VLANs, one behind the other",
        "IEEE 802.1Q; VLAN hopping by two tags";
    "link-frames", traffic::link_frames, .serves():
        "sends frames for switches and cards only, such as pauses",
        "IEEE 802.1D, 7.12.6: reserved addresses; IEEE 802.3, 31B: pauses";
    "flood-broadcast", traffic::flood_broadcast, .loses(95).with_share():
        "sends to all as fast as it can",
        "seen: 55 % of the throughput beside a busy guest were left";
    "flood-unknown", traffic::flood_unknown, .slow().loses(95).with_share():
        "sends to addresses that do not exist",
        "seen: as with broadcasts";
    "flood-addresses", traffic::flood_addresses, .loses(95).with_share():
        "sends each frame from another address",
        "seen: a new guest was not learned";
    "flood-groups", traffic::flood_groups, .serves().loses(95).with_share():
        "reports thousands of multicast groups",
        "RFC 4541, 5: a switch's table of groups is exhausted";
    "rogue-querier", traffic::rogue_querier, .serves():
        "claims to be the querier of multicast groups",
        "RFC 3376, 9.1; RFC 4541, 5: forged queries";
    "flood-reconnect", traffic::flood_reconnect, .loses(95).with_share():
        "floods, and reconnects to be allowed more",
        "seen: 41,600 frames a second under a limit of 1,000";
    "flood-captured", traffic::flood_broadcast, .loses(95).beside(Beside::UnreadCapture):
        "floods while a user of the host captures frames and does not read them",
        "seen: the backend took 386 MiB";
    "slow-receiver", shares::slow_receiver, .loses(60).serves().with_share():
        "receives one frame each 45 ms",
        "XSA-392; seen: the victim's TCP stalled";
    "slow-receiver-host", shares::slow_receiver_of_host, .loses(60).serves().with_share():
        "receives one frame each 45 ms of the host's replies",
        "XSA-392; seen: no guest reached the host";
    "silent-receiver", shares::silent_receiver, .slow().serves().with_share():
        "receives no frame",
        "XSA-392";
    "one-free-slot", shares::one_free_slot, .serves():
        "always has a free slot, but never enough for a frame",
        "XSA-392";
    "greedy-queues", shares::greedy_queues, .serves().with_half_a_share():
        "sends frames of 64 KiB on eight queues",
        "legal; seen: eight shares of the workers";
    "small-frames", shares::small_frames, .slow().serves().with_half_a_share():
        "sends as many small frames as it can on eight queues",
        "legal";
    "small-frames-bridge", shares::small_frames, .slow().serves().on_bridge().with_half_a_share():
        "sends as many small frames as it can on eight queues, for the host's kernel to forward",
        "legal";
    // After a compromise of the backend.
    "foreign-socket", confined::no_guest, .beside(Beside::ConfinedBackend).emulated():
        "has broken into the backend, and connects to another program's socket",
        "seen: Landlock has no rule for sockets";
    "foreign-files", confined::no_guest, .beside(Beside::ConfinedBackend).emulated():
        "has broken into the backend, and writes files that other processes of the host trust",
        "seen: a list of processes that the next start kills";
    "set-uid-program", confined::no_guest, .beside(Beside::ConfinedBackend).emulated():
        "has broken into the backend, and makes a program that runs as its owner",
        "seen: Landlock has no rule for modes";
};
