//! Merged writes to a device: whether they help now.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ringway_net::{LinkWatch, Netlink};
use ringway_tap::Tap;

/// Lets devices get TCP frames that continue each other as one, as GRO does, exactly while their
/// frames end in this kernel: another receiver would have to cut them again.
#[derive(Debug)]
pub(crate) struct Gro {
    links: LinkWatch,
    /// The longest frame that this kernel takes.
    len_max: usize,
}

impl Gro {
    /// Watches the network namespace of this thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open() -> io::Result<Gro> {
        let release = ringway_sys::process::kernel_version();
        let len_max = if release >= TAKES_LONG { LEN_MAX } else { LEN_MAX_BEFORE };
        Ok(Gro { links: LinkWatch::of_local_ends()?, len_max })
    }

    /// Whether devices need another [look](Gro::look).
    pub(crate) fn has_changed(&mut self) -> bool {
        self.links.has_changed()
    }

    /// Finds out what happens to a device's frames, and merges writes to it or ceases to.
    pub(crate) fn look(&self, tap: &Tap, netlink: &mut Netlink) {
        // A device that was deleted since, or a list that changes all the time: the next change
        // leads here again.
        let is_local_end = netlink.is_local_end(tap.name()).unwrap_or(false);
        tracing::debug!(device = tap.name(), is_local_end, "GRO");
        tap.merge(if is_local_end { self.len_max } else { 0 });
    }
}

impl AsFd for Gro {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.links.as_fd()
    }
}

/// The first Linux that takes IPv4 packets longer than 64 KiB.
const TAKES_LONG: (u32, u32) = (6, 3);
/// Four frames of 64 KiB.
const LEN_MAX: usize = 256 << 10;
/// The longest packet behind an Ethernet header.
const LEN_MAX_BEFORE: usize = 14 + 65535;
