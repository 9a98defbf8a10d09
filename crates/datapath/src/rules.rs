//! What the station behind a port may send, as configured in descriptions and by toolstacks.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;

use crate::{MacAddr, Vid};

/// How strictly a port's addresses are checked. The names are XenServer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockingMode {
    /// Nothing is checked, and the port may have many Ethernet addresses.
    Unlocked,
    /// Only ARP, IPv4 and IPv6 may be sent, from the addresses that are listed.
    Locked,
    /// No frame enters or leaves.
    Disabled,
}

crate::words! {
    LockingMode { Unlocked = "unlocked", Locked = "locked", Disabled = "disabled" }
    else |text| format!("{text:?} is not a locking mode: expected unlocked, locked or disabled")
}

/// Whether a multicast router may be behind a port. The names are those of Linux's bridge
/// (`mcast_router`, which writes them as 0, 1 and 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MulticastRouter {
    /// There is no router: messages that claim to be from one are refused.
    #[default]
    Never,
    /// For as long as router messages arrive.
    Learn,
    /// There is one.
    Always,
}

crate::words! {
    MulticastRouter { Never = "never", Learn = "learn", Always = "always" }
    else |text| format!("{text:?} is not a mode: expected never, learn or always")
}

/// A port whose frames a mirror copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// Its name; [`Mirrored::ALL`] for every port of the switch.
    pub port: String,
    /// Which of its frames.
    pub passage: MirroredPassage,
}

/// Which frames of a port are copied, in the directions of the station behind it.
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
    /// The name that means every port.
    pub const ALL: &'static str = "all";
    /// Ports that one mirror may name.
    pub const LIST_MAX: usize = 64;

    /// Names with separators between them, each with `:tx` or `:rx` if only that direction is
    /// copied.
    ///
    /// # Errors
    /// The invalid name, or that there are too many.
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
                "`{text}` is not a port: expected one such as vif1.0, vif1.0:tx or all"
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

/// Addresses with the same prefix: `10.77.0.0/24`, or a single address, `10.77.0.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_len: u8,
}

impl IpNetwork {
    /// The network of an address with a prefix of this length; `None` if the prefix is longer than
    /// the address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<IpNetwork> {
        let is_good = prefix_len <= bits(address);
        is_good.then_some(IpNetwork { address, prefix_len })
    }

    /// One address.
    pub fn host(address: IpAddr) -> IpNetwork {
        IpNetwork { address, prefix_len: bits(address) }
    }

    /// One of its addresses.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The address, if it is the only one.
    pub fn host_address(self) -> Option<IpAddr> {
        (self.prefix_len == bits(self.address)).then_some(self.address)
    }

    /// Number of leading bits that all its addresses share.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// Addresses with separators between them: commas as XenServer writes them, spaces as in Xen's
    /// `ip` key.
    ///
    /// # Errors
    /// The invalid address, or that there are more than [`IpNetwork::LIST_MAX`].
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
                "`{text}` is not an address: expected one such as 10.77.0.1, 10.77.0.0/24 or \
                 fd77::1"
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
        match self.host_address() {
            Some(address) => address.fmt(f),
            None => write!(f, "{}/{}", self.address, self.prefix_len),
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The rules of a port from a description or a toolstack. The host decides what they leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortRules {
    /// How strictly addresses are checked.
    pub locking: Option<LockingMode>,
    /// The IP addresses that the port may have.
    pub allowed: Vec<IpNetwork>,
    /// The most Ethernet addresses that the port may have: more than one if a bridge is behind it.
    pub addresses_max: Option<u32>,
    /// Further Ethernet addresses that the port has, besides these.
    pub allowed_macs: Vec<MacAddr>,
    /// Ethernet addresses that it shares with other ports, which take them from each other.
    pub shared_macs: Vec<MacAddr>,
    /// Whether it may send router advertisements and redirects.
    pub is_router: bool,
    /// Whether it may send messages that only DHCP servers send.
    pub is_dhcp_server: bool,
    /// Whether a host does not announce its station when that arrives.
    pub is_unannounced: bool,
    /// Whether a multicast router may be behind it, where multicast is snooped.
    pub multicast_router: MulticastRouter,
    /// The VLANs that it is in.
    pub vlan: VlanRules,
    /// Whether it may reach uplinks only, and no other port.
    pub is_private: bool,
    /// The port that is at the other end of its link, to which frames go that no bridge forwards,
    /// if that port names this one as well.
    pub link_local_to: Option<String>,
    /// The ports whose frames are copied to it; it then gets nothing else. Empty for an ordinary
    /// port.
    pub mirror: Vec<Mirrored>,
}

/// The VLANs that a port is in. Frames of a port in no VLAN are carried unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VlanRules {
    /// The VLAN of its untagged frames, if any.
    pub untagged: Option<Vid>,
    /// The VLANs of its tagged frames.
    pub tagged: Vec<Vid>,
}

impl VlanRules {
    /// VLANs that one port may be in with tags.
    pub const TAGGED_MAX: usize = 64;

    /// Whether the port is in no VLAN.
    pub fn is_none(&self) -> bool {
        self.untagged.is_none() && self.tagged.is_empty()
    }
}

impl PortRules {
    /// The mode in effect, given the host's `default`: if addresses are listed, they are checked. A
    /// default must not open what the toolstack has closed for one vif.
    /// With `None`, only the Ethernet address and messages of routers and servers are checked.
    pub fn mode(&self, default: Option<LockingMode>) -> Option<LockingMode> {
        let listed = (!self.allowed.is_empty()).then_some(LockingMode::Locked);
        self.locking.or(listed).or(default)
    }
}

/// The address that a station derives from its Ethernet address (RFC 4291, appendix A).
pub fn link_local_of(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vif_is_locked_to_listed_addresses_whatever_the_default_of_its_host_is() {
        let listed = vec!["10.77.0.5".parse().expect("an address")];
        let all = [LockingMode::Locked, LockingMode::Unlocked, LockingMode::Disabled].map(Some);
        for default in all.into_iter().chain([None]) {
            let mode = |locking, allowed: &[IpNetwork]| {
                let rules =
                    PortRules { locking, allowed: allowed.to_vec(), ..PortRules::default() };
                rules.mode(default)
            };
            assert_eq!(mode(None, &listed), Some(LockingMode::Locked));
            assert_eq!(mode(None, &[]), default);
            for own in all {
                assert_eq!((mode(own, &listed), mode(own, &[])), (own, own));
            }
        }
    }

    #[test]
    fn networks_are_parsed_as_they_are_printed() {
        for text in ["10.77.0.1", "10.77.0.0/24", "fd77::1", "fd77::/64", "0.0.0.0/0", "::/0"] {
            assert_eq!(text.parse::<IpNetwork>().map(|it| it.to_string()), Ok(text.to_owned()));
        }
        for bad in ["", "10.77.0", "10.77.0.1/33", "fd77::/129", "10.0.0.1/", "10.0.0.1/+8", "a"] {
            let refusal = bad.parse::<IpNetwork>().expect_err(bad);
            assert!(refusal.contains("expected"), "{refusal}");
        }
    }

    #[test]
    fn mirrored_ports_are_parsed_as_they_are_printed() {
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
    fn lists_of_ethernet_addresses_have_only_those_of_stations() {
        let list = MacAddr::parse_list("00:00:5e:00:01:07, 02:00:00:00:00:01 ").expect("good");
        assert_eq!(list, [MacAddr([0, 0, 0x5e, 0, 1, 7]), MacAddr([2, 0, 0, 0, 0, 1])]);
        assert_eq!(MacAddr::parse_list(""), Ok(Vec::new()));
        for bad in ["01:00:5e:00:00:01", "00:00:00:00:00:00", "vrrp"] {
            assert!(MacAddr::parse_list(bad).expect_err(bad).contains(bad), "{bad}");
        }
        assert!(MacAddr::parse_list(&"02:00:00:00:00:01 ".repeat(65)).is_err());
    }

    #[test]
    fn lists_are_parsed_as_toolstacks_write_them() {
        let count = |text| IpNetwork::parse_list(text).map(|list| list.len());
        assert_eq!(count(""), Ok(0));
        assert_eq!(count("10.0.0.1,10.0.0.2"), Ok(2));
        assert_eq!(count("10.0.0.1 10.0.0.2 fd77::1"), Ok(3));
        assert!(count("10.0.0.1,any").is_err());
        assert!(count(&"10.0.0.1 ".repeat(65)).is_err());
    }
}
