//! Where the other end of a vif is that no toolstack makes: a virtual machine behind a socket, or a
//! network namespace.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value::{Cidr, InterfaceName, SocketMode, SocketPath, as_text, text};

/// Where `ip netns` has the network namespaces that it names.
const NETNS_DIR: &str = "/run/netns";
/// Longest path of a file (`PATH_MAX`, less the zero byte).
const PATH_LEN_MAX: usize = 4095; // not a limit: the kernel's

/// Where the other end of a vif is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Place {
    /// A virtual machine behind a socket.
    Socket {
        /// Its path.
        socket: SocketPath,
        /// Which end creates it.
        mode: SocketMode,
    },
    /// A network device in a network namespace.
    Namespace(NamespaceDevice),
}

/// A network device in a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceDevice {
    /// The namespace.
    pub netns: NetnsName,
    /// The name of the device there.
    pub device: InterfaceName,
    /// Its addresses.
    pub addresses: Vec<Cidr>,
}

impl Place {
    /// Whether both cannot be served at a time: they have one socket, or one device.
    pub fn is_same(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Socket { socket, .. }, Place::Socket { socket: of_other, .. }) => {
                socket == of_other
            }
            (Place::Namespace(own), Place::Namespace(of_other)) => {
                own.netns.path() == of_other.netns.path() && own.device == of_other.device
            }
            _ => false,
        }
    }

    /// The socket, if it is behind one.
    pub fn socket(&self) -> Option<&SocketPath> {
        match self {
            Place::Socket { socket, .. } => Some(socket),
            Place::Namespace(_) => None,
        }
    }

    /// The device, if it is in a network namespace.
    pub fn namespace(&self) -> Option<&NamespaceDevice> {
        match self {
            Place::Socket { .. } => None,
            Place::Namespace(device) => Some(device),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket { socket, .. } => write!(f, "the socket {socket}"),
            Place::Namespace(NamespaceDevice { netns, device, .. }) => {
                write!(f, "the device {device} in the namespace {netns}")
            }
        }
    }
}

/// A network namespace: its name, as `ip netns` has it, or the path of its file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetnsName(pub String);

impl NetnsName {
    /// Its file.
    pub fn path(&self) -> PathBuf {
        // A path that is joined replaces the directory.
        Path::new(NETNS_DIR).join(&self.0)
    }
}

impl FromStr for NetnsName {
    type Err = String;

    fn from_str(text: &str) -> Result<NetnsName, String> {
        let is_name = !text.contains('/') && !["", ".", ".."].contains(&text);
        let is_good = (is_name || text.starts_with('/'))
            && text.len() + NETNS_DIR.len() < PATH_LEN_MAX
            && !text.contains('\0');
        if !is_good {
            return Err(format!(
                "`{text}` is not a network namespace: expected its name in {NETNS_DIR}, or a path \
                 that begins with `/`"
            ));
        }
        Ok(NetnsName(text.to_owned()))
    }
}

impl fmt::Display for NetnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(NetnsName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_named_as_ip_netns_has_it_or_by_its_file() {
        let path = |text: &str| text.parse::<NetnsName>().map(|name| name.path());
        assert_eq!(path("web"), Ok(PathBuf::from("/run/netns/web")));
        assert_eq!(path("/run/docker/netns/1"), Ok(PathBuf::from("/run/docker/netns/1")));
        for bad in ["", ".", "..", "a/b", "../web", "a\0b", &"/x".repeat(PATH_LEN_MAX)] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_place_is_read_from_what_an_earlier_version_has_saved() {
        let read = |text: &str| serde_json::from_str::<Place>(text).expect(text);
        let socket = read(r#"{"socket":"/run/vm1.sock","mode":"server"}"#);
        assert_eq!(socket.to_string(), "the socket /run/vm1.sock");
        assert!(!socket.is_same(&read(r#"{"socket":"/run/vm2.sock","mode":"server"}"#)));
        assert!(socket.is_same(&read(r#"{"socket":"/run/vm1.sock","mode":"client"}"#)));
        let device = read(r#"{"netns":"web","device":"eth0","addresses":["10.0.0.1/24"]}"#);
        assert_eq!(device.to_string(), "the device eth0 in the namespace web");
        let same = read(r#"{"netns":"/run/netns/web","device":"eth0","addresses":[]}"#);
        assert!(device.is_same(&same) && !device.is_same(&socket));
    }
}
