//! Evidence about a host, live or saved, and the facts that are derived from it.
//!
//! A live host is first saved in memory and then read, so there is a single way to diagnose, and
//! `record` writes exactly what a diagnosis reads. [`collect`] saves the [`Piece`]s that a caller
//! names, [`archive`] opens a record of another host, and [`probe`] adds the paths to other hosts.
//! [`parse`] contains the readers, and [`fact`] the typed facts about a host; each names its
//! pieces.
//!
//! This crate changes nothing and judges nothing: judging is up to `ringway-checks`.
//!
//! Read first: `fact/mod.rs`.

mod access;
pub mod archive;
mod bugtool;
mod changed;
pub mod fact;
mod links;
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
pub use text::{Gap, Quote, Text, one_line, squeezed};
pub use tool::output as tool;
