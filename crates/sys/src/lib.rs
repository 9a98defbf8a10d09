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
pub mod descriptor;
#[cfg(feature = "std")]
pub mod eventfd;
#[cfg(feature = "std")]
mod guard;
#[cfg(feature = "std")]
pub mod guest_memory;
#[cfg(feature = "std")]
mod interrupt;
#[cfg(feature = "std")]
pub mod namespace;
mod prefetch;
#[cfg(feature = "std")]
pub mod process;
#[cfg(feature = "std")]
mod share;
mod shared;
mod string_copy;
#[cfg(feature = "std")]
pub mod tun;
#[cfg(feature = "std")]
pub mod wake;
#[cfg(feature = "std")]
pub mod xen;

#[cfg(feature = "std")]
use std::fmt::Display;
#[cfg(feature = "std")]
use std::io;

pub use prefetch::Intent;
pub use shared::{OutOfMemory, SharedPages};

/// An error of the system, with what was attempted and, if there is one, the remedy.
#[cfg(feature = "std")]
fn explain(error: impl Into<io::Error>, what: impl Display) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
