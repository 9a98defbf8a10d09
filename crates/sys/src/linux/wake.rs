//! A descriptor with which one thread wakes another of the same process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor (`eventfd(2)`) that is readable from a wake-up until it is cleared.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// Creates a descriptor.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<WakeFd> {
        Ok(WakeFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn ring(&self) {
        // If its counter is full, it is already readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Empties it, if it is not empty.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Wake for WakeFd {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
