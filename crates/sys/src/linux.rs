//! What only Linux has.

pub mod descriptor;
pub mod eventfd;
pub(crate) mod guard;
pub mod guest_memory;
pub mod hangup;
mod interrupt;
pub mod namespace;
pub mod poll;
pub mod process;
mod share;
pub mod tun;
pub mod wake;
pub mod xen;

use std::fmt::Display;
use std::io;

/// An error of the system, with what was attempted and, if there is one, the remedy.
fn explain(error: impl Into<io::Error>, what: impl Display) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
