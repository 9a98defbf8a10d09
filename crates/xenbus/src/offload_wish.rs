//! What is wanted of the offloads of a vif.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The work that a guest and its network may leave to each other: checksums and segmentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OffloadWish {
    /// What suits the network.
    #[default]
    Auto,
    /// Everything.
    All,
    /// Nothing.
    None,
}

impl fmt::Display for OffloadWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OffloadWish::Auto => "auto",
            OffloadWish::All => "all",
            OffloadWish::None => "none",
        })
    }
}

impl FromStr for OffloadWish {
    type Err = String;

    fn from_str(text: &str) -> Result<OffloadWish, String> {
        match text {
            "auto" => Ok(OffloadWish::Auto),
            "all" => Ok(OffloadWish::All),
            "none" => Ok(OffloadWish::None),
            _ => Err(format!("`{text}` says nothing of offloads: expected {OFFLOAD_WISHES}")),
        }
    }
}

/// The values of its key, for people.
pub(crate) const OFFLOAD_WISHES: &str = "auto, all or none";
