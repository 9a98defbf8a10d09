//! The one crate that may use `unsafe`.
//!
//! It wraps what safe libraries do not offer and nothing else: memory shared with a process that
//! is not trusted ([`SharedPages`]), and a few ioctls and system calls of Linux. Every function
//! here is safe to call with any argument; the reasons stand at each `unsafe` block.

mod shared;

pub use shared::SharedPages;
