//! The messages between a backend, the opener and the command line.
//!
//! A compromised backend must not reach other programs of its host, so it may neither create nor
//! connect sockets. But the sockets of virtio vifs come and go with virtual machines. Another
//! process, the *opener*, connects to them or listens on them, and passes the connections to the
//! backend. It learns the paths of sockets from the host's description and from the command line,
//! never from the backend.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// From the opener to the backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum OpenerEvent {
    /// There is a vif to serve.
    Added {
        /// The name of the vif.
        name: String,
        /// Its `[[vhost]]` section, as in the description.
        vhost: Value,
        /// Whether it was added while the host ran.
        at_run_time: bool,
    },
    /// A vif was removed.
    Removed {
        /// The name of the vif.
        name: String,
    },
    /// A front-end has connected. The socket comes with the message.
    Connected {
        /// The name of the vif.
        name: String,
    },
    /// A vif waits for a connection, for this reason.
    #[serde(rename = "waits")]
    Waiting {
        /// The name of the vif.
        name: String,
        /// For people.
        reason: String,
        /// Whether its socket could not be opened.
        #[serde(default)]
        is_failure: bool,
        /// Whether nothing is wrong: its guest is not there.
        #[serde(default)]
        is_absence: bool,
    },
    /// The outcome of sending a front-end the area that it requested.
    AreaSent {
        /// The name of the vif.
        name: String,
        /// Why not.
        error: Option<String>,
    },
    /// All vifs of the description have been added.
    Ready,
    /// A vif of the description, which was read again. [`Reload`](OpenerEvent::Reload) follows the
    /// last one.
    Described {
        /// Its `[[vhost]]` section.
        vhost: Value,
    },
    /// Take over the description whose vifs were sent.
    Reload {
        /// What it says of the switch and the uplink.
        common: Value,
        /// The keys of these, with their sections, that have other values than before.
        changed: Vec<String>,
    },
    /// The description that was read again is wrong: nothing changes.
    Refused,
}

/// An inflight area that a front-end requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaWanted {
    /// The number of rings.
    pub rings: u16,
    /// The most entries of each ring.
    pub size: u16,
    /// Its bytes.
    pub len: u64,
}

/// From the backend to the opener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum OpenerOrder {
    /// A vif was added or removed.
    Done {
        /// Which.
        name: String,
        /// The reason, if it failed.
        error: Option<String>,
    },
    /// A connection has ended: the next one is wanted.
    #[serde(rename = "again")]
    Disconnected {
        /// The name of the vif.
        name: String,
        /// Whether frames could flow over it, so that the next one need not wait.
        #[serde(rename = "was_good")]
        has_worked: bool,
    },
    /// Send a front-end an area, in reply to its last request.
    Area {
        /// The name of the vif.
        name: String,
        /// The area that it requested.
        wanted: AreaWanted,
    },
    /// Read the description again.
    Reload,
    /// The description whose vifs were sent is in force, or nothing has changed.
    Reloaded {
        /// Names of vifs that are new: add them.
        added: Vec<String>,
        /// Names of vifs that have ended.
        removed: Vec<String>,
        /// Why nothing has changed, if so.
        error: Option<String>,
    },
    /// The backend ends because it was asked to: remove the sockets. Without this order, they stay
    /// for its successor.
    Leave,
}

/// Requests to the opener, and to the supervisor of tenants, which passes them on to the openers of
/// these.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum OpenerRequest {
    /// Serve a virtio vif, until it is removed or the host ends.
    Add {
        /// A `[[vhost]]` section in TOML.
        section: String,
    },
    /// Stop serving a vif that was added like this.
    Remove {
        /// Its name.
        name: String,
    },
    /// Serve what another description of the host says, as far as it can change while the host
    /// runs. It is refused as a whole, or in force.
    Reload {
        /// The description, in TOML.
        text: String,
    },
    /// As [`Reload`](OpenerRequest::Reload), for the vifs of one tenant: the supervisor of tenants
    /// has read the description.
    Describe {
        /// The tenant's vifs, and no others of the description.
        vhosts: Vec<Value>,
    },
}
