//! The messages between an opener and the attacher.
//!
//! Who enters network namespaces can change all of a machine, so neither a process that serves
//! guests nor the opener may. Another process, the *attacher*, makes a network device in each
//! namespace of the host's description, and passes its queues to the opener, which passes them to
//! the backend.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// From the opener to the attacher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum AttacherOrder {
    /// Make a device, or take over that of an earlier process.
    Attach {
        /// The name of its vif.
        name: String,
        /// What it is to be.
        device: DeviceWanted,
    },
    /// The backend has lost the queues of a device: pass them again, or those of the next device.
    Again {
        /// The name of its vif.
        name: String,
    },
    /// Remove a device.
    Detach {
        /// The name of its vif.
        name: String,
    },
}

/// A network device in a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWanted {
    /// The file of the namespace.
    pub netns: PathBuf,
    /// Its name there.
    pub name: String,
    /// Its Ethernet address, if the description has one.
    pub mac: Option<[u8; 6]>,
    /// Its MTU in bytes.
    pub mtu: u16,
    /// Its addresses, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its queues.
    pub queues: u16,
}

/// From the attacher to the opener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum AttacherEvent {
    /// A device was made. Its queues come with the message.
    Made {
        /// The name of its vif.
        name: String,
    },
    /// There is no device, for this reason.
    #[serde(rename = "waits")]
    Waiting {
        /// The name of its vif.
        name: String,
        /// For people.
        reason: String,
        /// Whether nothing is wrong: the namespace does not exist.
        #[serde(default)]
        is_absence: bool,
    },
}
