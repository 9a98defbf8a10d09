//! The one crate that may use `unsafe`.
//!
//! It wraps only what safe libraries do not offer: memory shared with an untrusted process
//! ([`SharedPages`], [`guest_memory`]), and a few ioctls and system calls of Linux. Every function
//! here is safe to call with any argument; each `unsafe` block states the reasons.
//!
//! Without the feature `std` there is only [`SharedPages`], and nothing of Linux.

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
