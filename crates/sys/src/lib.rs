//! The one crate that may use `unsafe`.
//!
//! It wraps what safe libraries do not offer and nothing else: memory shared with a process that
//! is not trusted ([`SharedPages`], [`guest_memory`]), and a few ioctls and system calls of Linux.
//! Every function here is safe to call with any argument; the reasons stand at each `unsafe` block.

pub mod bell;
mod guard;
pub mod guest_memory;
pub mod namespace;
pub mod process;
mod share;
mod shared;
pub mod tun;
pub mod xen;

use std::fmt::Display;
use std::io;

pub use shared::SharedPages;

/// An error of the system together with what was attempted, and the remedy where there is one.
fn explain(error: impl Into<io::Error>, what: impl Display) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
