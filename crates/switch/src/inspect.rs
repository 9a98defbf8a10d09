//! What a frame claims: the addresses of its sender, and whether the sender acts as a router or a
//! DHCP server.
//!
//! The frame is in private memory, so it cannot change while it is read. Each header is read once,
//! every loop has a bound, and frames that hide headers from a check are refused
//! ([`DropReason::Undetermined`]): RFC 7113 and RFC 7610 give the reasons for IPv6. Sources of the
//! rules: RFC 6105 (router advertisements), RFC 7610 (DHCPv6), RFC 6980 (no neighbor discovery in
//! fragments), RFC 5227 (ARP probes), RFC 4862 (duplicate address detection).

use ringway_datapath::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EXT_AUTHENTICATION, EXT_DESTINATION,
    EXT_FRAGMENT, EXT_HIP, EXT_HOP_BY_HOP, EXT_MOBILITY, EXT_ROUTING, EXT_SHIM6, EXTENSIONS_MAX,
    PROTO_ICMP, PROTO_ICMPV6, PROTO_UDP, TPID_CUSTOMER, TPID_SERVICE, VLAN_TAG_LEN, VLAN_TAGS_MAX,
    chunk, macs,
};
use ringway_datapath::{DropReason, MacAddr, link_local_of};

use crate::policy::{Checks, DHCP_CLIENT, DHCP_SERVER, DHCPV6_CLIENT, DHCPV6_SERVER, PortPolicy};

type CheckResult = Result<(), DropReason>;

impl PortPolicy {
    /// Inspects a frame fully.
    #[inline(never)]
    pub(crate) fn inspect(&self, frame: &[u8]) -> CheckResult {
        if self.checks == Checks::Disabled {
            return Err(DropReason::PortDisabled);
        }
        let (_, src) = macs(frame).ok_or(DropReason::Malformed)?;
        let (ethertype, l3) = behind_tags(frame)?;
        match ethertype {
            ETHERTYPE_IPV4 => self.inspect_v4(frame, l3),
            ETHERTYPE_IPV6 => self.inspect_v6(frame, l3, src),
            _ if self.checks != Checks::Addresses => Ok(()),
            ETHERTYPE_ARP => self.inspect_arp(frame, l3, src),
            _ => Err(DropReason::Protocol),
        }
    }

    fn is_locked(&self) -> bool {
        self.checks == Checks::Addresses
    }

    fn inspect_v4(&self, frame: &[u8], l3: usize) -> CheckResult {
        let ip: [u8; 20] = chunk(frame, l3).ok_or(DropReason::Undetermined)?;
        let header_len = usize::from(ip[0] & 0x0f) * 4;
        if ip[0] >> 4 != 4 || header_len < ip.len() {
            return Err(DropReason::Undetermined);
        }
        let (l4, protocol) = (l3 + header_len, ip[9]);
        // The first fragment has at least 8 bytes of the datagram, and shows the ports.
        let is_first = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0;
        let upper = match protocol {
            PROTO_UDP if is_first => Upper::Udp(ports(frame, l4)?),
            PROTO_ICMP if is_first => Upper::Icmp(kind(frame, l4)?),
            PROTO_IGMP => Upper::Igmp,
            _ => Upper::Other,
        };
        if self.is_locked() {
            let source = u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]);
            // A station without an address requests one, and joins groups (RFC 3376, 4.2.13).
            let has_none = matches!(upper, Upper::Udp([DHCP_CLIENT, DHCP_SERVER]) | Upper::Igmp);
            let is_own = self.allows_v4(source) || (source == 0 && has_none);
            if !is_own {
                return Err(DropReason::IpSource);
            }
        }
        match upper {
            // To a client's port, or from the server's: clients accept either.
            Upper::Udp([from, to]) if from == DHCP_SERVER || to == DHCP_CLIENT => {
                self.as_dhcp_server()
            }
            Upper::Icmp(ICMP_REDIRECT | ICMP_ROUTER_ADVERTISEMENT) => self.as_router(),
            _ => Ok(()),
        }
    }

    fn inspect_v6(&self, frame: &[u8], l3: usize, src: MacAddr) -> CheckResult {
        let ip: [u8; 40] = chunk(frame, l3).ok_or(DropReason::Undetermined)?;
        if ip[0] >> 4 != 6 {
            return Err(DropReason::Undetermined);
        }
        let l4 = l3 + ip.len();
        let payload_len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        let end = match payload_len {
            // Pending segmentation, or a jumbogram.
            0 => frame.len(),
            len => frame.len().min(l4 + len),
        };
        let packet = &frame[..end];
        let source = u128::from_be_bytes(chunk(&ip, 8).unwrap_or_default());
        let chain = walk(packet, l4, ip[6])?;
        let upper = match chain.protocol {
            _ if chain.fragment == Fragment::Later => Upper::Other,
            PROTO_UDP => Upper::Udp(ports(packet, chain.at)?),
            PROTO_ICMPV6 => Upper::Icmp(kind(packet, chain.at)?),
            _ => Upper::Other,
        };
        if self.is_locked() {
            let has_none = matches!(
                upper,
                Upper::Icmp(
                    ROUTER_SOLICITATION
                        | NEIGHBOR_SOLICITATION
                        | MLD_REPORT
                        | MLD_DONE
                        | MLDV2_REPORT
                )
            );
            let is_own = self.is_own_v6(source, src) || (source == 0 && has_none);
            if !is_own {
                return Err(DropReason::IpSource);
            }
        }
        match upper {
            Upper::Udp([from, to]) if from == DHCPV6_SERVER || to == DHCPV6_CLIENT => {
                self.as_dhcp_server()
            }
            // Receivers ignore it, or should (RFC 6980).
            Upper::Icmp(ROUTER_SOLICITATION..=REDIRECT) if chain.fragment != Fragment::None => {
                Err(DropReason::Undetermined)
            }
            Upper::Icmp(
                ROUTER_ADVERTISEMENT
                | REDIRECT
                | PREFIX_ADVERTISEMENT
                | MULTICAST_ROUTER
                | MULTICAST_ROUTER_ENDS,
            ) => self.as_router(),
            Upper::Icmp(kind @ ROUTER_SOLICITATION..=REDIRECT) if self.is_locked() => {
                let message = packet.get(chain.at..).unwrap_or_default();
                self.inspect_nd(kind, message, source, src)
            }
            _ => Ok(()),
        }
    }

    /// Checks neighbor discovery (RFC 4861): the IP address that a message claims, and the Ethernet
    /// address in it.
    fn inspect_nd(&self, kind: u8, message: &[u8], source: u128, src: MacAddr) -> CheckResult {
        let options_at = if kind == ROUTER_SOLICITATION { 8 } else { 24 };
        let options = message.get(options_at..).ok_or(DropReason::Undetermined)?;
        // A solicitation without a source claims its target (duplicate address detection).
        if kind == NEIGHBOR_ADVERTISEMENT || (kind == NEIGHBOR_SOLICITATION && source == 0) {
            let target = chunk(message, 8).map(u128::from_be_bytes);
            if !target.is_some_and(|target| self.is_own_v6(target, src)) {
                return Err(DropReason::NdSpoofed);
            }
        }
        let mut options = options;
        for _ in 0..ND_OPTIONS_MAX {
            let Some([kind, len]) = chunk(options, 0) else { return Ok(()) };
            // Zero is an invalid length; the receiver stops reading there.
            let len = usize::from(len) * 8;
            let option = options.get(..len).filter(|option| !option.is_empty());
            let option = option.ok_or(DropReason::Undetermined)?;
            if matches!(kind, SOURCE_LINK_ADDRESS | TARGET_LINK_ADDRESS)
                && chunk(option, 2) != Some(src.0)
            {
                return Err(DropReason::NdSpoofed);
            }
            options = &options[len..];
        }
        if options.is_empty() { Ok(()) } else { Err(DropReason::Undetermined) }
    }

    fn inspect_arp(&self, frame: &[u8], l3: usize, src: MacAddr) -> CheckResult {
        let arp: [u8; 28] = chunk(frame, l3).ok_or(DropReason::Undetermined)?;
        let is_ipv4 = arp[..6] == [0, 1, 0x08, 0x00, 6, 4];
        let is_arp = matches!(arp[6..8], [0, ARP_REQUEST | ARP_REPLY]);
        let address = |at: usize| chunk(&arp, at).map_or(0, u32::from_be_bytes);
        let (sender, target) = (address(14), address(24));
        let is_own = match sender {
            // A probe claims its target (RFC 5227).
            0 => arp[7] == ARP_REQUEST && self.allows_v4(target),
            sender => self.allows_v4(sender),
        };
        if is_ipv4 && is_arp && is_own && chunk(&arp, 8) == Some(src.0) {
            Ok(())
        } else {
            Err(DropReason::ArpSpoofed)
        }
    }

    fn is_own_v6(&self, address: u128, src: MacAddr) -> bool {
        self.allows_v6(address) || address == link_local_of(src).to_bits()
    }

    fn as_router(&self) -> CheckResult {
        if self.is_router { Ok(()) } else { Err(DropReason::RouterOnly) }
    }

    fn as_dhcp_server(&self) -> CheckResult {
        if self.is_dhcp_server { Ok(()) } else { Err(DropReason::DhcpServerOnly) }
    }
}

/// The upper protocol of an IP packet, as far as it matters here.
#[derive(Debug, Clone, Copy)]
enum Upper {
    /// With its ports.
    Udp([u16; 2]),
    /// ICMP or ICMPv6, with its type.
    Icmp(u8),
    Igmp,
    /// Anything else, or not the first fragment.
    Other,
}

/// Whether LLC and SNAP headers precede IP or another tag. Some stations read such a frame as if it
/// had an EtherType, whatever its length field (CVE-2021-27853 to 27862); no honest station sends
/// it.
fn hides_ip(frame: &[u8], llc: usize) -> bool {
    let Some([destination, source, _, _, _, _, high, low]) = chunk(frame, llc) else {
        return false;
    };
    let carried = u16::from_be_bytes([high, low]);
    [destination, source].iter().all(|point| point & !1 == SNAP)
        && matches!(carried, ETHERTYPE_IPV4 | ETHERTYPE_IPV6 | TPID_CUSTOMER | TPID_SERVICE)
}

/// The end of a chain of IPv6 headers.
pub(crate) struct Chain {
    pub(crate) protocol: u8,
    pub(crate) at: usize,
    pub(crate) fragment: Fragment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// No fragment header.
    None,
    First,
    /// A later fragment, without the headers: the first is checked for all.
    Later,
}

/// The EtherType behind VLAN tags, and where its packet begins.
fn behind_tags(frame: &[u8]) -> Result<(u16, usize), DropReason> {
    let mut at = 12;
    for _ in 0..=VLAN_TAGS_MAX {
        let ethertype = chunk(frame, at).map(u16::from_be_bytes).ok_or(DropReason::Malformed)?;
        match ethertype {
            TPID_CUSTOMER | TPID_SERVICE => at += VLAN_TAG_LEN,
            ..=LENGTH_MAX if hides_ip(frame, at + 2) => return Err(DropReason::Undetermined),
            _ => return Ok((ethertype, at + 2)),
        }
    }
    Err(DropReason::Undetermined)
}

/// Walks the extension headers to the upper protocol.
pub(crate) fn walk(packet: &[u8], l4: usize, first: u8) -> Result<Chain, DropReason> {
    let mut chain = Chain { protocol: first, at: l4, fragment: Fragment::None };
    for _ in 0..=EXTENSIONS_MAX {
        let unit = match chain.protocol {
            EXT_HOP_BY_HOP | EXT_DESTINATION | EXT_ROUTING | EXT_MOBILITY | EXT_HIP | EXT_SHIM6 => {
                8
            }
            EXT_AUTHENTICATION => 4,
            EXT_FRAGMENT => 0,
            _ => return Ok(chain),
        };
        let header: [u8; 4] = chunk(packet, chain.at).ok_or(DropReason::Undetermined)?;
        if chain.protocol == EXT_FRAGMENT {
            chain.fragment = match u16::from_be_bytes([header[2], header[3]]) & 0xfff8 {
                0 => Fragment::First,
                _ => Fragment::Later,
            };
        }
        chain.protocol = header[0];
        chain.at += 8 + usize::from(header[1]) * unit;
        if chain.fragment == Fragment::Later {
            return Ok(chain);
        }
    }
    Err(DropReason::Undetermined)
}

/// Source and destination port.
fn ports(packet: &[u8], l4: usize) -> Result<[u16; 2], DropReason> {
    let [a, b, c, d] = chunk(packet, l4).ok_or(DropReason::Undetermined)?;
    Ok([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

/// Type of an ICMP or ICMPv6 message.
fn kind(packet: &[u8], l4: usize) -> Result<u8, DropReason> {
    let [kind] = chunk(packet, l4).ok_or(DropReason::Undetermined)?;
    Ok(kind)
}

const PROTO_IGMP: u8 = 2;

/// Below `0x0600`, the EtherType field is a length (IEEE 802.3, 3.2.6).
const LENGTH_MAX: u16 = 0x05ff; // not a limit: the standard's
/// The service access point of SNAP, without its lowest bit.
const SNAP: u8 = 0xaa;

const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;

const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const NEIGHBOR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const MLDV2_REPORT: u8 = 143;
const PREFIX_ADVERTISEMENT: u8 = 147;
const MULTICAST_ROUTER: u8 = 151;
const MULTICAST_ROUTER_ENDS: u8 = 153;

pub(crate) const SOURCE_LINK_ADDRESS: u8 = 1;
pub(crate) const TARGET_LINK_ADDRESS: u8 = 2;
/// Options of one neighbor discovery message; Linux sends at most three.
const ND_OPTIONS_MAX: usize = 16;

pub(crate) const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
