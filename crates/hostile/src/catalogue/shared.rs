//! Attacks on what guests share: the network, the workers, and the host.

use crate::acts::{confined, shares, traffic};
use crate::scenario::{Beside, Scenario};

use super::new;

/// All of them, in the order in which they run.
pub(super) const OF_OTHERS: &[Scenario] = &[
    new(
        "spoofed-source",
        "sends with another guest's address",
        "seen: all frames for that guest went to this one",
        traffic::spoofed_source,
    )
    .deaf(10),
    new(
        "spoofed-host",
        "sends with the host's address",
        "seen: as with another guest's",
        traffic::spoofed_host,
    )
    .deaf(10),
    new(
        "arp-claims",
        "claims others' IP addresses with ARP",
        "RFC 826 has no protection",
        traffic::arp_claims,
    )
    .given(&[("ip", "10.77.0.253"), ("locking-mode", "locked")])
    .deaf(10),
    new(
        "rogue-router",
        "claims to be a router",
        "RFC 6104, RFC 6105: rogue router advertisements",
        traffic::rogue_router,
    )
    .serves()
    .beside(Beside::Routers),
    new(
        "hidden-router",
        "claims to be a router behind headers, in fragments, behind tags, and in LLC and SNAP",
        "RFC 7113; CVE-2021-27853, CVE-2021-27854, CVE-2021-27861, CVE-2021-27862",
        traffic::hidden_router,
    )
    .serves()
    .beside(Beside::Routers),
    new(
        "rogue-dhcp",
        "replies as a DHCP server",
        "RFC 2131, 7: unauthorized DHCP servers",
        traffic::rogue_dhcp,
    )
    .serves(),
    new(
        "neighbor-claims",
        "claims others' IPv6 addresses with neighbor advertisements",
        "RFC 3756, 4.1.1: neighbor advertisement spoofing",
        traffic::neighbor_claims,
    )
    .given(&[("ip", "10.77.0.253"), ("locking-mode", "locked")])
    .serves()
    .deaf(10),
    new(
        "foreign-tags",
        "is in its own VLAN, and sends with tags of other VLANs, one behind the other",
        "IEEE 802.1Q; VLAN hopping by two tags",
        traffic::foreign_tags,
    )
    .given(&[("ringway-vlan", "7")])
    .serves()
    .deaf(0),
    new(
        "link-frames",
        "sends frames for switches and cards only, such as pauses",
        "IEEE 802.1D, 7.12.6: reserved addresses; IEEE 802.3, 31B: pauses",
        traffic::link_frames,
    )
    .serves(),
    new(
        "flood-broadcast",
        "sends to all as fast as it can",
        "seen: 55 % of the throughput beside a busy guest were left",
        traffic::flood_broadcast,
    )
    .loses(95)
    .with_share(),
    new(
        "flood-unknown",
        "sends to addresses that do not exist",
        "seen: as with broadcasts",
        traffic::flood_unknown,
    )
    .slow()
    .loses(95)
    .with_share(),
    new(
        "flood-addresses",
        "sends each frame from another address",
        "seen: a new guest was not learned",
        traffic::flood_addresses,
    )
    .loses(95)
    .with_share(),
    new(
        "flood-groups",
        "reports thousands of multicast groups",
        "RFC 4541, 5: a switch's table of groups is exhausted",
        traffic::flood_groups,
    )
    .serves()
    .loses(95)
    .with_share(),
    new(
        "rogue-querier",
        "claims to be the querier of multicast groups",
        "RFC 3376, 9.1; RFC 4541, 5: forged queries",
        traffic::rogue_querier,
    )
    .serves(),
    new(
        "flood-reconnect",
        "floods, and reconnects to be allowed more",
        "seen: 41,600 frames a second under a limit of 1,000",
        traffic::flood_reconnect,
    )
    .loses(95)
    .with_share(),
    new(
        "flood-captured",
        "floods while a user of the host captures frames and does not read them",
        "seen: the backend took 386 MiB",
        traffic::flood_broadcast,
    )
    .loses(95)
    .beside(Beside::UnreadCapture),
    new(
        "slow-receiver",
        "receives one frame each 45 ms",
        "XSA-392; seen: the victim's TCP stalled",
        shares::slow_receiver,
    )
    .loses(60)
    .serves()
    .with_share(),
    new(
        "slow-receiver-host",
        "receives one frame each 45 ms of the host's replies",
        "XSA-392; seen: no guest reached the host",
        shares::slow_receiver_of_host,
    )
    .loses(60)
    .serves()
    .with_share(),
    new("silent-receiver", "receives no frame", "XSA-392", shares::silent_receiver)
        .slow()
        .serves()
        .with_share(),
    new(
        "one-free-slot",
        "always has a free slot, but never enough for a frame",
        "XSA-392",
        shares::one_free_slot,
    )
    .serves(),
    new(
        "greedy-queues",
        "sends frames of 64 KiB on eight queues",
        "legal; seen: eight shares of the workers",
        shares::greedy_queues,
    )
    .serves()
    .with_half_a_share(),
    new(
        "small-frames",
        "sends as many small frames as it can on eight queues",
        "legal",
        shares::small_frames,
    )
    .slow()
    .serves()
    .with_half_a_share(),
    new(
        "small-frames-bridge",
        "sends as many small frames as it can on eight queues, for the host's kernel to forward",
        "legal",
        shares::small_frames,
    )
    .slow()
    .serves()
    .on_bridge()
    .with_half_a_share(),
    // After a compromise of the backend.
    new(
        "foreign-socket",
        "has broken into the backend, and connects to another program's socket",
        "seen: Landlock has no rule for sockets",
        confined::no_guest,
    )
    .beside(Beside::ConfinedBackend)
    .emulated(),
    new(
        "foreign-files",
        "has broken into the backend, and writes files that other processes of the host trust",
        "seen: a list of processes that the next start kills",
        confined::no_guest,
    )
    .beside(Beside::ConfinedBackend)
    .emulated(),
    new(
        "set-uid-program",
        "has broken into the backend, and makes a program that runs as its owner",
        "seen: Landlock has no rule for modes",
        confined::no_guest,
    )
    .beside(Beside::ConfinedBackend)
    .emulated(),
];
