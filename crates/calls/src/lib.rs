//! What the command line asks of ringway's processes, and the state that it is shown.
//!
//! The types here define the lines of a control socket, and the output of `--json`. They are apart
//! from the socket, so that a control plane without one can reply.

mod status;
mod times;

use serde::{Deserialize, Serialize};

pub use status::*;
pub use times::{Bucket, Times};

/// Names that there are, for an error about one that there is not: never nothing.
pub fn listed<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> String {
    let names: Vec<N> = names.into_iter().collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The end of the refusal to take a vif out of quarantine.
pub const NOT_QUARANTINED: &str = "is not quarantined, and no panic is charged to it";

/// Requests to the backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum BackendRequest {
    /// The response is [`BackendStatus`].
    Status,
    /// Offer another number of queues to a vif.
    SetMaxQueues {
        /// Name of the vif, such as `vif1.0`.
        vif: String,
        /// At least 1.
        max_queues: u16,
        /// When it takes effect.
        reconnect: Reconnect,
    },
    /// Set a limit or a rule of a vif, until the vif is removed.
    SetLimit {
        /// Name of the vif.
        vif: String,
        /// Its name in `ringway vif set`.
        limit: String,
        /// The value, in the format of its XenStore key.
        value: String,
    },
    /// Serve a quarantined vif again.
    Release {
        /// Name of the vif.
        vif: String,
    },
    /// Make the worker of a vif panic: for tests, and refused in any other process.
    #[doc(hidden)]
    Panic {
        /// Name of the vif.
        vif: String,
    },
    /// Make the worker of a vif get stuck: for tests, and refused in any other process.
    #[doc(hidden)]
    Stall {
        /// Name of the vif.
        vif: String,
        /// Asleep; otherwise in a loop.
        asleep: bool,
    },
    /// Copy a vif's frames to this connection as pcapng.
    Capture {
        /// Name of the vif.
        vif: String,
        /// The most bytes to keep of each frame.
        snap_len: u32,
    },
}

/// When another number of queues takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reconnect {
    /// From the guest's next connection on, whenever it makes one.
    Later,
    /// At once: the guest has to reconnect. Refused for a guest that would not.
    Now,
}

/// Requests to a guest process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum GuestRequest {
    /// The response is [`GuestStatus`].
    Status,
    /// Reconnect a vif with another number of queues (`ethtool -L`:
    /// `network-node-blog:ethtool`).
    SetQueues {
        /// The vif's number in the guest.
        handle: u32,
        /// Refused, and nothing changes, unless the backend offers so many now.
        queues: u16,
    },
    /// Reconnect a vif and have the backend hash its frames in another way (`ethtool -X`).
    SetHash {
        /// The vif's number in the guest.
        handle: u32,
        /// Key and mapping of a Toeplitz hash over addresses and ports of TCP; `None` if the
        /// backend may hash as it likes.
        hash: Option<(Vec<u8>, Vec<u16>)>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_lists_names_says_so_if_there_are_none() {
        assert_eq!(listed(["vif1.0", "vm1"]), "vif1.0, vm1");
        assert_eq!(listed([""; 0]), "none");
    }
}
