//! The kernel's netlink replies as text, which a person can read and write and a finding can quote.
//!
//! Each reply is a file of lines below `netlink/` in the record. Its head gives the number of
//! lines, so that a truncated file is not mistaken for a host that lacks something:
//!
//! ```text
//! netlink/eth0/features        netlink/eth0/channels      sample-1/netlink/connections
//! features of eth0: 64         channels of eth0: 2        connections: 1 of 1
//! tx-scatter-gather: on        combined: 2                192.0.2.1:22 192.0.2.9:4711 cubic
//! tx-lockless: off [fixed]     combined max: 8                rtt=321 rttvar=12 snd_cwnd=10 ...
//! ```
//!
//! (A connection is one line.) Features have the kernel's names, followed by the state that
//! `ethtool -k` shows. Numbers of connections have the names and units of `struct tcp_info`.
//! `sample-1/netlink/eth0/qstats` has a line such as `rx-0 bytes: 300` for each counter of a queue.

mod connections;
mod conntrack;
mod ethtool;
mod netdev;
mod sock_diag;

use std::fmt::Display;
use std::io;

pub(super) use connections::{connections, destinations, listeners};
pub(super) use conntrack::translations;
pub(super) use ethtool::Ethtool;
pub(super) use netdev::Qstats;

use super::text::Text;
use super::tool::output;

/// The folder of replies in a record.
const FOLDER: &str = "netlink";
/// The file of TCP connections, below the folder of a sample.
pub(crate) const CONNECTIONS: &str = "netlink/connections";
/// The files of listening sockets, and of the destinations of most connections.
pub(crate) const LISTENERS: &str = "netlink/listeners";
pub(crate) const DESTINATIONS: &str = "netlink/destinations";
/// The file of the ports that a NAT uses.
pub(crate) const TRANSLATIONS: &str = "netlink/translations";
/// The file of the counters of an interface's queues: its name, which also begins its head, and the
/// pattern of its path below the folder of a sample.
pub(crate) const QSTATS: &str = "qstats";
pub(crate) const QSTATS_PATHS: &str = "netlink/*/qstats";
/// The command that printed connections in older records.
pub(crate) const CONNECTIONS_COMMAND: &[&str] = &["ss", "-tinHO", "state", "established"];

/// A group of settings of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicSettings {
    /// Offloads.
    Features,
    /// Queues.
    Channels,
    /// Ring lengths.
    Rings,
    /// Interrupt coalescing.
    Coalescing,
}

impl NicSettings {
    /// All of them.
    pub const ALL: [NicSettings; 4] =
        [NicSettings::Features, NicSettings::Channels, NicSettings::Rings, NicSettings::Coalescing];

    /// The name of its file, which also begins the head of the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            NicSettings::Features => "features",
            NicSettings::Channels => "channels",
            NicSettings::Rings => "rings",
            NicSettings::Coalescing => "coalescing",
        }
    }

    /// Its path in a record.
    pub(crate) fn path(self, nic: &str) -> String {
        format!("{FOLDER}/{nic}/{}", self.name())
    }

    /// The command with the same content: for a sos report, an older record, and a kernel before
    /// 5.6, which lacks this netlink family.
    pub(crate) fn command(self, nic: &str) -> [&str; 3] {
        let option = match self {
            NicSettings::Features => "-k",
            NicSettings::Channels => "-l",
            NicSettings::Rings => "-g",
            NicSettings::Coalescing => "-c",
        };
        ["ethtool", option, nic]
    }
}

/// The path of the counters of an interface's queues, below the folder of a sample.
pub(crate) fn qstats_path(nic: &str) -> String {
    format!("{FOLDER}/{nic}/{QSTATS}")
}

/// Queries this host over netlink or, if its kernel is too old, through the tool.
pub fn nic_settings(nic: &str, settings: NicSettings) -> io::Result<Text> {
    match Ethtool::open() {
        Ok(mut ethtool) => Ok(Text::new(settings.path(nic), ethtool.ask(nic, settings)?)),
        Err(_) => {
            let command = settings.command(nic);
            Ok(Text::new(command.join(" "), output(&command)?))
        }
    }
}

/// A file of the record. The caller ensures that no line contains a line break.
fn file(head: impl Display, lines: &[String]) -> String {
    let mut text = head.to_string();
    text.push('\n');
    for line in lines {
        text += line;
        text.push('\n');
    }
    text
}
