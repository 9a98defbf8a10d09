//! What is wanted of the offloads of a vif.

use alloc::format;
use alloc::string::String;

use ringway_datapath::words;

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

words! {
    OffloadWish { Auto = "auto", All = "all", None = "none" }
    else |text| format!("`{text}` says nothing of offloads: expected {OFFLOAD_WISHES}")
}

/// The values of its key, for people.
pub(crate) const OFFLOAD_WISHES: &str = "auto, all or none";
