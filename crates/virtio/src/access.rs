//! The direction of a queue, and what it allows.

use std::fmt;

use ringway_sys::Intent;
use ringway_wire::virtio::VRING_DESC_F_WRITE;

/// Bytes of the longest chain that a device reads: a packet of IP, an Ethernet header with two tags
/// and a virtio-net header.
pub const READABLE_BYTES_MAX: u64 = 65_535 + 22 + 12;
/// Bytes of the longest chain that a device writes (section 2.7.5).
const WRITABLE_BYTES_MAX: u64 = 1 << 32;

/// What the device does with every buffer of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads: the guest transmits.
    Readable,
    /// It writes: the guest receives.
    Writable,
}

impl Access {
    #[inline]
    pub(crate) fn flag(self) -> u16 {
        match self {
            Access::Readable => 0,
            Access::Writable => VRING_DESC_F_WRITE,
        }
    }

    /// The prefetch intent that the device has for a cache line.
    #[inline]
    pub(crate) fn intent(self) -> Intent {
        match self {
            Access::Readable => Intent::Read,
            Access::Writable => Intent::Write,
        }
    }

    #[inline]
    pub(crate) fn bytes_max(self) -> u64 {
        match self {
            Access::Readable => READABLE_BYTES_MAX,
            Access::Writable => WRITABLE_BYTES_MAX,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Readable => "for the device to read",
            Access::Writable => "for the device to write",
        })
    }
}
