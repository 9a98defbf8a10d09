//! What a backend, the process that opens sockets for it, and the command line say to each other.
//!
//! A backend that has been taken over must not reach other programs of its host, so it may neither
//! make sockets nor connect to any. Those of virtio's vifs come and go with virtual machines;
//! another process, the *opener*, dials them and listens for them, and passes connections on. Which
//! sockets there are it learns from the description of the host and from the command line, never
//! from the backend.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// From the opener to the backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum OpenerNews {
    /// There is a vif to serve.
    Added {
        /// What it is called.
        name: String,
        /// Its `[[vhost]]`, as the description has it.
        vhost: Value,
        /// Whether it was added while the host ran.
        at_run_time: bool,
    },
    /// There is no such vif any more.
    Removed {
        /// What it was called.
        name: String,
    },
    /// There is a connection. Its descriptor comes with the message.
    Connected {
        /// Of which vif.
        name: String,
    },
    /// A vif waits for a connection, and why.
    Waits {
        /// Of which vif.
        name: String,
        /// For people.
        reason: String,
    },
    /// A front-end got the area that it asked for, or did not.
    AreaSent {
        /// Of which vif.
        name: String,
        /// Why not.
        error: Option<String>,
    },
    /// All vifs of the description have been added.
    Ready,
}

/// Memory in which a front-end has noted what is under way.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct AreaWanted {
    /// Rings that it is for.
    pub rings: u16,
    /// Entries of each ring at most.
    pub size: u16,
    /// Its bytes.
    pub len: u64,
}

/// From the backend to the opener.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum OpenerOrder {
    /// A vif was added or removed.
    Done {
        /// Which.
        name: String,
        /// Why not, if it was not.
        error: Option<String>,
    },
    /// A connection has ended: another is wanted.
    Again {
        /// Of which vif.
        name: String,
        /// Whether frames could flow over it: then the next one need not wait.
        was_good: bool,
    },
    /// A front-end is to get an area, in reply to the request that it sent last.
    Area {
        /// Of which vif.
        name: String,
        /// What it asked for.
        wanted: AreaWanted,
    },
}

/// What the opener can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum OpenerRequest {
    /// Serve a vif of virtio, until it is removed or the host ends.
    Add {
        /// A `[[vhost]]`, as TOML.
        section: String,
    },
    /// Serve a vif no more that was added so.
    Remove {
        /// Its name.
        name: String,
    },
}
