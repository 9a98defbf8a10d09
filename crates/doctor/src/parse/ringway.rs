//! `ringway vif list --json`: what guests of a running ringway may ask for, and what they use.

use serde::Deserialize;

use crate::evidence::{Gap, Text};

/// One vif, as far as checks look.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Vif {
    /// Such as `vif1.0`.
    pub name: String,
    /// Queues that its guest may ask for; 0 of the uplink, which has no guest.
    pub max_queues: u64,
    /// Those in use.
    pub queues: Vec<serde::de::IgnoredAny>,
}

/// Reads all of them.
pub fn vifs(text: &Text) -> Result<Vec<Vif>, Gap> {
    serde_json::from_str(text.value())
        .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))
}
