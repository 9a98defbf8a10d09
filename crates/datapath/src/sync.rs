//! The atomics that are shared between threads, so that `interleavings.rs` runs the real
//! [`Receipts`](crate::Receipts) in every order that the memory model allows.

#[cfg(not(feature = "loom"))]
pub(crate) use core::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
