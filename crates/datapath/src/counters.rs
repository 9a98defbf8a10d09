//! Counters: plain values owned by a worker, published once per round.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::TimeCounters;
#[cfg(feature = "std")]
use crate::WaitCell;

macro_rules! reasons {
    ($($(#[$about:meta])* $reason:ident => $name:literal,)*) => {
        /// Why one frame, or a copy of one, was dropped. Becomes a counter, never a log line.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[$about])* $reason,)*
        }

        impl DropReason {
            /// All of them, in the order of their counters.
            pub const ALL: [DropReason; [$($name),*].len()] = [$(DropReason::$reason,)*];

            /// Its name in tables and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(DropReason::$reason => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// Shorter than an Ethernet header, or its slots' lengths are inconsistent.
    Malformed => "malformed",
    /// Longer than the receiver can take.
    TooLong => "too_long",
    /// A grant, or memory that a guest has lent, could not be copied.
    GrantCopy => "grant_copy",
    /// Headers that an offload needs could not be parsed.
    BadOffload => "bad_offload",
    /// The receiver's queue is full and does not drain.
    QueueFull => "queue_full",
    /// The receiver's queue is full because it receives no more than its limit.
    RateLimit => "rate_limit",
    /// The inbox of another worker is full.
    InboxFull => "inbox_full",
    /// No buffer was left.
    NoBuffer => "no_buffer",
    /// No port to send it to (unknown, or down).
    NoRoute => "no_route",
    /// To an address that no bridge forwards (LLDP, LACP, EAPOL), from a port without a partner.
    LinkLocal => "link_local",
    /// Flooding was limited.
    FloodLimit => "flood_limit",
    /// Broadcasts were limited.
    BroadcastLimit => "broadcast_limit",
    /// Multicasts were limited.
    MulticastLimit => "multicast_limit",
    /// Frames to unknown addresses were limited.
    UnknownLimit => "unknown_limit",
    /// Not a frame, but a guest's request for one more multicast address than a vif may have.
    MulticastFull => "multicast_full",
    /// The link of the port that it came from or should leave by is down.
    LinkDown => "link_down",
    /// A copy for a mirror that had no room; the frame itself was forwarded.
    MirrorLost => "mirror_lost",
    /// The source address is not one that the port may use: a group's, all zeros, not the vif's
    /// own, or one beyond the port's maximum.
    BadSource => "bad_source",
    /// The source address is another port's.
    AddressTaken => "address_taken",
    /// The source address of the IP packet is not one that the port may have.
    IpSource => "ip_source",
    /// An ARP packet that claims an address that is not the port's.
    ArpSpoofed => "arp_spoofed",
    /// A neighbor discovery message that claims an address that is not the port's.
    NdSpoofed => "nd_spoofed",
    /// Only routers may send it: router advertisements and redirects.
    RouterOnly => "router_only",
    /// Only DHCP servers may send it.
    DhcpServerOnly => "dhcp_server_only",
    /// The headers that a check needs are cut off, too many, or in another fragment.
    Undetermined => "undetermined",
    /// A protocol that a locked port may not use.
    Protocol => "protocol",
    /// The port is disabled, whether the frame is from it or for it.
    PortDisabled => "port_disabled",
    /// Tagged with a VLAN that the port is not in, or untagged on a port without an untagged VLAN.
    Vlan => "vlan",
    /// To a port that the source port may not reach, because one of them is private.
    Isolated => "isolated",
}

impl DropReason {
    /// Whether a port sent what its rules refuse.
    pub fn is_refusal(self) -> bool {
        use DropReason::*;
        match self {
            Malformed | TooLong | GrantCopy | BadOffload | QueueFull | RateLimit | InboxFull
            | NoBuffer | NoRoute | LinkLocal | FloodLimit | BroadcastLimit | MulticastLimit
            | UnknownLimit | MulticastFull | LinkDown | PortDisabled | MirrorLost => false,
            BadSource | AddressTaken | IpSource | ArpSpoofed | NdSpoofed | RouterOnly
            | DhcpServerOnly | Undetermined | Protocol | Vlan | Isolated => true,
        }
    }

    fn index(self) -> usize {
        DropReason::ALL.iter().position(|&reason| reason == self).unwrap_or(0)
    }
}

/// A counter per reason: written by one worker, readable by any thread.
#[derive(Debug, Default)]
pub struct DropCounters([AtomicU64; DropReason::ALL.len()]);

impl DropCounters {
    /// Counts frames. Only the owning worker calls this, so a load and a store are enough.
    pub fn count(&self, reason: DropReason, frames: u64) {
        bump(&self.0[reason.index()], frames);
    }

    /// Every reason with its count.
    pub fn snapshot(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        DropReason::ALL.into_iter().zip(counts)
    }
}

/// Where a network device is, which determines the guest's `tx` and `rx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In the guest: what is read from it is the guest's tx.
    Guest,
    /// On the host: what is written to it is the guest's tx.
    Host,
}

/// What one queue has moved, in the guest's directions. Written by the owning worker once per
/// batch, readable by any thread.
#[derive(Debug, Default)]
pub struct QueueCounters {
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    /// Events we sent to the peer.
    events_sent: AtomicU64,
    /// Events the peer sent us.
    events_received: AtomicU64,
    tx_long: AtomicU64,
    tx_lent: AtomicU64,
    /// Slots of the tx ring that were consumed and had no response when last counted.
    tx_unanswered: AtomicU64,
    extras_skipped: AtomicU64,
    /// Times from a backend's first sight of a tx slot to its response, sampled for a few slots.
    pub tx_response_times: TimeCounters,
    /// Why no frames come from the peer.
    #[cfg(feature = "std")]
    pub tx_wait: WaitCell,
    /// Why no frames go to the peer.
    #[cfg(feature = "std")]
    pub rx_wait: WaitCell,
    /// Frames dropped in this queue.
    pub dropped: DropCounters,
}

/// A copy of [`QueueCounters`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Frames the guest sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames the guest received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Events we sent.
    pub events_sent: u64,
    /// Events we received.
    pub events_received: u64,
    /// Frames the guest sent that are long enough to leave from its pages.
    pub tx_long: u64,
    /// Those of them whose ends went from its pages to those of another guest.
    pub tx_lent: u64,
    /// Slots of the tx ring that wait for a response: a current value, not a count.
    pub tx_unanswered: u64,
    /// Extras of received packets whose type the frontend does not know.
    pub extras_skipped: u64,
}

impl QueueCounters {
    /// Adds frames that the guest sent.
    pub fn add_tx(&self, packets: u64, bytes: u64) {
        bump(&self.tx_packets, packets);
        bump(&self.tx_bytes, bytes);
    }

    /// Adds frames that the guest received.
    pub fn add_rx(&self, packets: u64, bytes: u64) {
        bump(&self.rx_packets, packets);
        bump(&self.rx_bytes, bytes);
    }

    /// Adds an event sent to the peer.
    pub fn add_event_sent(&self) {
        bump(&self.events_sent, 1);
    }

    /// Adds an event received from the peer.
    pub fn add_event_received(&self) {
        bump(&self.events_received, 1);
    }

    /// Adds frames that are long enough for their ends to stay in the guest's pages.
    pub fn add_tx_long(&self, frames: u64) {
        bump(&self.tx_long, frames);
    }

    /// Adds frames whose ends went from the guest's pages to those of another guest.
    pub fn add_tx_lent(&self, frames: u64) {
        bump(&self.tx_lent, frames);
    }

    /// Sets the number of tx slots that wait for a response.
    pub fn set_tx_unanswered(&self, slots: u64) {
        self.tx_unanswered.store(slots, Ordering::Relaxed);
    }

    /// Adds extras that were passed over.
    pub fn add_extras_skipped(&self, extras: u64) {
        bump(&self.extras_skipped, extras);
    }

    /// The totals now.
    pub fn totals(&self) -> QueueTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Read before those that it is a part of.
        let tx_lent = read(&self.tx_lent);
        QueueTotals {
            tx_packets: read(&self.tx_packets),
            tx_bytes: read(&self.tx_bytes),
            rx_packets: read(&self.rx_packets),
            rx_bytes: read(&self.rx_bytes),
            events_sent: read(&self.events_sent),
            events_received: read(&self.events_received),
            tx_long: read(&self.tx_long),
            tx_lent,
            tx_unanswered: read(&self.tx_unanswered),
            extras_skipped: read(&self.extras_skipped),
        }
    }
}

/// One writer, so no read-modify-write instruction is needed.
fn bump(counter: &AtomicU64, by: u64) {
    if by != 0 {
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }
}
