//! Evidence: files and outputs of tools, from a live host or a saved one.
//!
//! A live host is first saved, in memory, and then looked at: there is one way to diagnose, and
//! what `record` writes is what a diagnosis reads.

mod access;
pub mod archive;
mod live;
mod manifest;
pub(crate) mod netlink;
mod piece;
mod source;
mod text;
mod tool;

pub use access::Netns;
pub use live::collect;
pub(crate) use manifest::{NETNS, PROFILE};
pub use netlink::NicSettings;
pub use piece::Piece;
pub(crate) use source::REMARKS_FILE;
pub use source::{Source, command_path};
pub use text::{Gap, Quote, Text};
pub(crate) use tool::output as tool;
