//! The relay on one io_uring, in one thread: the ceiling of a program that makes one system call
//! for many frames, as `tap relay` is that of one call for each. Devices and offloads are the same.
//!
//! Frames of a flow keep their order; `ringway_sys::uring` says how.

use std::ffi::OsString;

use anyhow::Result;
use ringway_sys::uring::UringRelay;

/// The part of this program that is the relay.
pub(crate) const PART: &str = "uring-relay";

/// Relays until this process is killed.
pub(crate) fn run(words: &[OsString]) -> Result<()> {
    ringway_lab::part::relay(words, |devices| {
        let mut relay = UringRelay::new(devices)?;
        loop {
            relay.round()?;
        }
    })?;
    Ok(())
}
