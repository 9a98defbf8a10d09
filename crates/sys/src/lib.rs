//! The one crate that may use `unsafe`.
//!
//! It wraps only what safe libraries do not offer: memory shared with an untrusted process
//! ([`SharedPages`], [`guest_memory`]), and a few ioctls and system calls of Linux. Every function
//! here is safe to call with any argument; each `unsafe` block states the reasons.
//!
//! Without the feature `std` there is only [`SharedPages`], and nothing of Linux.
//!
//! # Example
//!
//! Two ends of the same memory:
//!
//! ```
//! use ringway_sys::SharedPages;
//!
//! let ours = SharedPages::zeroed(4096)?;
//! let theirs = ours.clone();
//! theirs.write(8, 7_u32);
//! assert_eq!(ours.read::<u32>(8), 7);
//! # Ok::<(), ringway_sys::OutOfMemory>(())
//! ```

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

#[cfg(feature = "std")]
mod linux;
mod prefetch;
mod shared;
mod string_copy;

#[cfg(feature = "std")]
pub use linux::{
    descriptor, eventfd, guest_memory, hangup, namespace, poll, process, tun, wake, xen,
};
pub use prefetch::Intent;
pub use shared::{OutOfMemory, SharedPages, SharedWords};
