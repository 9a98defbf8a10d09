//! Announces a guest that has been migrated here and cannot announce itself.
//!
//! After a migration the network still sends a guest's frames to the old host. A guest with
//! `VIRTIO_NET_F_GUEST_ANNOUNCE` sends a gratuitous ARP; for one without it the front-end asks the
//! back-end to send a frame in the guest's name (`VHOST_USER_SEND_RARP`). The frame enters the
//! switch through the guest's own queue, so that all rules for the guest apply to it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The next announcement of a pair. Several requests before it is sent become one.
#[derive(Debug, Default)]
pub(crate) struct Announcement(AtomicU64);

/// Bytes of the shortest Ethernet frame, without its checksum.
pub(crate) const RARP_LEN: usize = 60;

/// Set if there is an address, which may be all zeros.
const IS_THERE: u64 = 1 << 48;
const ETHERTYPE_RARP: u16 = 0x8035;

impl Announcement {
    pub(crate) fn ask(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let number = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.0.store(number | IS_THERE, Ordering::Relaxed);
    }

    /// Takes the pending request.
    #[inline]
    pub(crate) fn take(&self) -> Option<[u8; 6]> {
        // Nearly always there is nothing to take, and a load is enough.
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let [_, _, mac @ ..] = self.0.swap(0, Ordering::Relaxed).to_be_bytes();
        Some(mac)
    }
}

/// A reverse ARP request of a host for its own address, as a broadcast.
pub(crate) fn rarp(mac: [u8; 6]) -> [u8; RARP_LEN] {
    let mut frame = [0; RARP_LEN];
    let [high, low] = ETHERTYPE_RARP.to_be_bytes();
    // Ethernet, IPv4 addresses, their lengths, "request reverse".
    let head = [high, low, 0, 1, 0x08, 0x00, 6, 4, 0, 3];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..22].copy_from_slice(&head);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}
