//! Evidence: what a host says of itself, live or saved, and the facts that follow from it.
//!
//! A live host is first saved, in memory, and then read: there is one way to diagnose, and what
//! `record` writes is what a diagnosis reads. [`collect`] saves the [`Piece`]s that a caller names,
//! [`archive`] opens what another host saved, [`probe`] adds the ways to other hosts. [`parse`] has
//! the readers, and [`fact`] what is known of a host, typed: each fact names its pieces.
//!
//! It changes nothing, and judges nothing: that is for `ringway-checks`.
//!
//! Read first: `fact/mod.rs`.

mod access;
pub mod archive;
mod changed;
pub mod fact;
mod live;
mod manifest;
pub mod namespaces;
pub(crate) mod netlink;
mod number;
pub mod parse;
mod piece;
pub mod probe;
mod source;
mod text;
mod tool;

pub use access::Netns;
pub use changed::{Changed, changed};
pub use live::collect;
pub(crate) use manifest::{NETNS, PROFILE};
pub use netlink::{NicSettings, nic_settings};
pub use piece::Piece;
pub(crate) use source::REMARKS_FILE;
pub use source::{Source, command_path};
pub use text::{Gap, Quote, Text};
pub use tool::output as tool;
