//! What the station behind a port may send, in the words of descriptions and toolstacks.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;

use crate::Vid;

/// How strictly a port's addresses are checked. The words are XenServer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockingMode {
    /// Nothing is checked, and the port may have many Ethernet addresses.
    Unlocked,
    /// Only ARP, IPv4 and IPv6 may be sent, from the addresses that are listed.
    Locked,
    /// No frame enters or leaves.
    Disabled,
}

impl fmt::Display for LockingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockingMode::Unlocked => "unlocked",
            LockingMode::Locked => "locked",
            LockingMode::Disabled => "disabled",
        })
    }
}

impl FromStr for LockingMode {
    type Err = String;

    fn from_str(text: &str) -> Result<LockingMode, String> {
        match text {
            "unlocked" => Ok(LockingMode::Unlocked),
            "locked" => Ok(LockingMode::Locked),
            "disabled" => Ok(LockingMode::Disabled),
            _ => Err(format!("{text:?} is no locking mode: expected unlocked, locked or disabled")),
        }
    }
}

/// Whether a multicast router may be behind a port. The words are Linux' bridge's (`mcast_router`,
/// which writes them 0, 1 and 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MulticastRouter {
    /// None is: what says so is refused.
    #[default]
    Never,
    /// As long as one shows itself.
    Learn,
    /// There is one.
    Always,
}

impl fmt::Display for MulticastRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MulticastRouter::Never => "never",
            MulticastRouter::Learn => "learn",
            MulticastRouter::Always => "always",
        })
    }
}

impl FromStr for MulticastRouter {
    type Err = String;

    fn from_str(text: &str) -> Result<MulticastRouter, String> {
        match text {
            "never" => Ok(MulticastRouter::Never),
            "learn" => Ok(MulticastRouter::Learn),
            "always" => Ok(MulticastRouter::Always),
            _ => Err(format!("{text:?} is no such mode: expected never, learn or always")),
        }
    }
}

/// A port of which a mirror has copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// Its name; [`Mirrored::ALL`] for every port of the switch.
    pub port: String,
    /// What of it.
    pub passage: MirroredPassage,
}

/// What of a port is copied, in the directions of what is behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirroredPassage {
    /// What its station transmits.
    Tx,
    /// What it receives.
    Rx,
    /// Both.
    Both,
}

impl Mirrored {
    /// The name that stands for every port.
    pub const ALL: &'static str = "all";
    /// Ports that one mirror may name.
    pub const LIST_MAX: usize = 64;

    /// Names with separators between them, each with `:tx` or `:rx` where only that is copied.
    ///
    /// # Errors
    /// Which of them is no such name, or that there are too many.
    pub fn parse_list(text: &str) -> Result<Vec<Mirrored>, String> {
        let items = text.split([',', ' ']).filter(|item| !item.is_empty());
        let ports: Vec<Mirrored> =
            items.take(Mirrored::LIST_MAX + 1).map(str::parse).collect::<Result<_, _>>()?;
        match ports.len() <= Mirrored::LIST_MAX {
            true => Ok(ports),
            false => Err(format!("has more than {} ports", Mirrored::LIST_MAX)),
        }
    }
}

impl FromStr for Mirrored {
    type Err = String;

    fn from_str(text: &str) -> Result<Mirrored, String> {
        let (port, passage) = match text.split_once(':') {
            None => (text, MirroredPassage::Both),
            Some((port, "tx")) => (port, MirroredPassage::Tx),
            Some((port, "rx")) => (port, MirroredPassage::Rx),
            Some(_) => ("", MirroredPassage::Both),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if port.is_empty() || port.len() > 15 || !port.bytes().all(is_name) {
            let text: String = text.escape_debug().take(40).collect();
            return Err(format!(
                "`{text}` is no port: expected one such as vif1.0, vif1.0:tx or all"
            ));
        }
        Ok(Mirrored { port: port.to_owned(), passage })
    }
}

impl fmt::Display for Mirrored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.port)?;
        match self.passage {
            MirroredPassage::Tx => f.write_str(":tx"),
            MirroredPassage::Rx => f.write_str(":rx"),
            MirroredPassage::Both => Ok(()),
        }
    }
}

/// Addresses with the same first bits: `10.77.0.0/24`, or one alone, `10.77.0.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_len: u8,
}

impl IpNetwork {
    /// The network that an address is in, by the length of its prefix; `None` if that is longer
    /// than the address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<IpNetwork> {
        let is_good = prefix_len <= bits(address);
        is_good.then_some(IpNetwork { address, prefix_len })
    }

    /// One address.
    pub fn host(address: IpAddr) -> IpNetwork {
        IpNetwork { address, prefix_len: bits(address) }
    }

    /// Some address of it.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Bits that all its addresses share.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// Addresses with separators between them: commas as XenServer writes them, spaces as Xen's
    /// `ip` key has them.
    ///
    /// # Errors
    /// Which of them is no address, or that there are more than [`IpNetwork::LIST_MAX`].
    pub fn parse_list(text: &str) -> Result<Vec<IpNetwork>, String> {
        let items = text.split([',', ' ', '\n', '\t']).filter(|item| !item.is_empty());
        let networks: Vec<IpNetwork> =
            items.take(IpNetwork::LIST_MAX + 1).map(str::parse).collect::<Result<_, _>>()?;
        if networks.len() > IpNetwork::LIST_MAX {
            return Err(format!("has more than {} addresses", IpNetwork::LIST_MAX));
        }
        Ok(networks)
    }

    /// Addresses that one port may have: each frame of a locked port is compared with them.
    pub const LIST_MAX: usize = 64;
}

impl FromStr for IpNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<IpNetwork, String> {
        let refusal = || {
            let text = text.escape_debug().take(40).collect::<String>();
            format!(
                "`{text}` is no address: expected one such as 10.77.0.1, 10.77.0.0/24 or fd77::1"
            )
        };
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| refusal())?;
        let prefix_len = match prefix_len {
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                len.parse().map_err(|_| refusal())?
            }
            Some(_) => return Err(refusal()),
            None => bits(address),
        };
        IpNetwork::new(address, prefix_len).ok_or_else(refusal)
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_len == bits(self.address) {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.prefix_len),
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// What a description or a toolstack says of a port. What it leaves out, the host decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortRules {
    /// How strictly addresses are checked.
    pub locking: Option<LockingMode>,
    /// The IP addresses that the port may have.
    pub allowed: Vec<IpNetwork>,
    /// Ethernet addresses that the port may have: more than one for a bridge behind it.
    pub addresses_max: Option<u32>,
    /// Whether it may send router advertisements and redirects.
    pub is_router: bool,
    /// Whether it may send what only DHCP servers send.
    pub is_dhcp_server: bool,
    /// Whether a multicast router may be behind it, where multicast is snooped.
    pub multicast_router: MulticastRouter,
    /// The VLANs that it is in.
    pub vlan: VlanRules,
    /// Whether it may talk to an uplink only, and to no other port.
    pub is_private: bool,
    /// The ports of which it gets copies, and nothing else; an ordinary port if it is empty.
    pub mirror: Vec<Mirrored>,
}

/// The VLANs that a port is in. In none, its frames are carried as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VlanRules {
    /// Of its frames without a tag, if any.
    pub untagged: Option<Vid>,
    /// Of its frames with one.
    pub tagged: Vec<Vid>,
}

impl VlanRules {
    /// VLANs that one port may be in with tags.
    pub const TAGGED_MAX: usize = 64;

    /// Whether it is in none.
    pub fn is_none(&self) -> bool {
        self.untagged.is_none() && self.tagged.is_empty()
    }
}

impl PortRules {
    /// The mode that holds, where `default` is the host's: addresses that are listed are there to
    /// be checked. `None` checks the Ethernet address, and what only routers and servers send.
    pub fn mode(&self, default: Option<LockingMode>) -> Option<LockingMode> {
        let listed = (!self.allowed.is_empty()).then_some(LockingMode::Locked);
        self.locking.or(listed).or(default)
    }
}

/// The address that a station makes itself from its Ethernet address (RFC 4291, appendix A).
pub fn link_local_of(mac: crate::MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_they_are_shown() {
        for text in ["10.77.0.1", "10.77.0.0/24", "fd77::1", "fd77::/64", "0.0.0.0/0", "::/0"] {
            assert_eq!(text.parse::<IpNetwork>().map(|it| it.to_string()), Ok(text.to_owned()));
        }
        for bad in ["", "10.77.0", "10.77.0.1/33", "fd77::/129", "10.0.0.1/", "10.0.0.1/+8", "a"] {
            let refusal = bad.parse::<IpNetwork>().expect_err(bad);
            assert!(refusal.contains("expected"), "{refusal}");
        }
    }

    #[test]
    fn mirrored_ports_are_read_as_they_are_shown() {
        let list = Mirrored::parse_list("all, vif1.0:tx vif12.3:rx,ringway0").expect("good");
        let shown: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["all", "vif1.0:tx", "vif12.3:rx", "ringway0"]);
        assert_eq!(Mirrored::parse_list(""), Ok(Vec::new()));
        for bad in ["vif1.0:in", ":tx", "a/b", "sixteen-bytes-xx", "vif1.0:tx:rx"] {
            assert!(Mirrored::parse_list(bad).expect_err(bad).contains("expected"), "{bad}");
        }
        assert!(Mirrored::parse_list(&"all ".repeat(65)).is_err());
    }

    #[test]
    fn lists_are_read_as_toolstacks_write_them() {
        let count = |text| IpNetwork::parse_list(text).map(|list| list.len());
        assert_eq!(count(""), Ok(0));
        assert_eq!(count("10.0.0.1,10.0.0.2"), Ok(2));
        assert_eq!(count("10.0.0.1 10.0.0.2 fd77::1"), Ok(3));
        assert!(count("10.0.0.1,any").is_err());
        assert!(count(&"10.0.0.1 ".repeat(65)).is_err());
    }

    #[test]
    fn addresses_that_are_listed_are_checked_unless_a_mode_is_set() {
        let listed = PortRules {
            allowed: vec![IpNetwork::host(IpAddr::from([10, 0, 0, 1]))],
            ..PortRules::default()
        };
        assert_eq!(PortRules::default().mode(None), None);
        let unlocked = Some(LockingMode::Unlocked);
        assert_eq!(PortRules::default().mode(unlocked), unlocked);
        assert_eq!(listed.mode(unlocked), Some(LockingMode::Locked));
        let open = PortRules { locking: unlocked, ..listed };
        assert_eq!(open.mode(None), unlocked);
    }
}
