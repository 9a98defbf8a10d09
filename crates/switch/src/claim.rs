//! Addresses that a station has: how it shows them, and how they are announced in its name.
//!
//! A [`Claim`] is announced by one broadcast. For an Ethernet address that is a reverse ARP request
//! (RFC 903), as QEMU and other hosts send it for a guest that has moved; for an IPv4 address an
//! ARP announcement (RFC 5227, in the format of RFC 826), and for an IPv6 address an unsolicited
//! neighbor advertisement (RFC 4861, 7.2.6).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_datapath::MacAddr;
use ringway_datapath::checksum::Sum;
use ringway_datapath::headers::{
    ETH_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV6, PROTO_ICMPV6, TPID_CUSTOMER, TPID_SERVICE, chunk, macs,
};

use crate::inspect::{
    ARP_REQUEST, NEIGHBOR_ADVERTISEMENT, NEIGHBOR_SOLICITATION, SOURCE_LINK_ADDRESS,
    TARGET_LINK_ADDRESS,
};

/// An address of a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// The IP address that it has with this Ethernet address, or `None` for the latter alone.
    pub ip: Option<IpAddr>,
}

impl Claim {
    /// What a frame without tags shows of the addresses of its sender; `None` for one that shows
    /// nothing.
    ///
    /// The IP address is read only where a station asks for another one's Ethernet address. A
    /// packet may be forwarded for another station, a reply may be a proxy's, and a probe is for an
    /// address that its sender does not have yet.
    pub fn of(frame: &[u8]) -> Option<Claim> {
        let (_, mac) = macs(frame)?;
        let ip = match u16::from_be_bytes(chunk(frame, 12)?) {
            TPID_CUSTOMER | TPID_SERVICE => return None,
            ETHERTYPE_ARP => asking_v4(frame, mac).map(IpAddr::V4),
            ETHERTYPE_IPV6 => asking_v6(frame, mac).map(IpAddr::V6),
            _ => None,
        };
        Some(Claim { mac, ip })
    }

    /// The frame that announces it. `may_route` says that the station may be a router: one that is
    /// announced as a host is no default router any more (RFC 4861, 7.2.5).
    pub fn announcement(self, may_route: bool) -> Vec<u8> {
        match self.ip {
            None => {
                let reverse = [ETHERTYPE_RARP, REVERSE_REQUEST];
                arp(reverse, (self.mac, Ipv4Addr::UNSPECIFIED), self.mac)
            }
            Some(IpAddr::V4(ip)) => {
                let request = [ETHERTYPE_ARP, u16::from(ARP_REQUEST)];
                arp(request, (self.mac, ip), MacAddr([0; 6]))
            }
            Some(IpAddr::V6(ip)) => advertisement(self.mac, ip, may_route),
        }
    }
}

/// The sender of an ARP request, if it has an address.
fn asking_v4(frame: &[u8], mac: MacAddr) -> Option<Ipv4Addr> {
    let arp: [u8; 28] = chunk(frame, ETH_LEN)?;
    let is_request = arp[..6] == ARP_OVER_ETHERNET && arp[6..8] == [0, ARP_REQUEST];
    let sender: Ipv4Addr = chunk::<4>(&arp, 14)?.into();
    let is_station = !sender.is_unspecified() && !sender.is_multicast() && !sender.is_broadcast();
    (is_request && is_station && chunk(&arp, 8) == Some(mac.0)).then_some(sender)
}

/// The sender of a neighbor solicitation, if it has an address.
fn asking_v6(frame: &[u8], mac: MacAddr) -> Option<Ipv6Addr> {
    let ip: [u8; 40] = chunk(frame, ETH_LEN)?;
    let [kind, code] = chunk(frame, ETH_LEN + ip.len())?;
    let [option, units, address @ ..]: [u8; 8] = chunk(frame, ETH_LEN + ip.len() + 24)?;
    let is_solicitation = ip[0] >> 4 == 6
        && [ip[6], ip[7]] == [PROTO_ICMPV6, ND_HOP_LIMIT]
        && [kind, code] == [NEIGHBOR_SOLICITATION, 0]
        && [option, units] == [SOURCE_LINK_ADDRESS, 1];
    let sender: Ipv6Addr = chunk::<16>(&ip, 8)?.into();
    let is_station = !sender.is_unspecified() && !sender.is_multicast();
    (is_solicitation && is_station && address == mac.0).then_some(sender)
}

/// A broadcast of this protocol and operation, from a station about an address of its own.
fn arp(
    [ethertype, operation]: [u16; 2],
    (mac, ip): (MacAddr, Ipv4Addr),
    target: MacAddr,
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_LEN_MIN);
    frame.extend(MacAddr::BROADCAST.0);
    frame.extend(mac.0);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(ARP_OVER_ETHERNET);
    frame.extend(operation.to_be_bytes());
    frame.extend(mac.0);
    frame.extend(ip.octets());
    frame.extend(target.0);
    frame.extend(ip.octets());
    frame.resize(FRAME_LEN_MIN, 0);
    frame
}

/// An unsolicited advertisement to all nodes, which replaces what they know.
fn advertisement(mac: MacAddr, ip: Ipv6Addr, may_route: bool) -> Vec<u8> {
    let flags = if may_route { ND_OVERRIDE | ND_ROUTER } else { ND_OVERRIDE };
    let mut message = vec![NEIGHBOR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    message.extend(ip.octets());
    message.extend([TARGET_LINK_ADDRESS, 1]);
    message.extend(mac.0);
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let pseudo = Sum::of(&ip.octets()).and(Sum::of(&ALL_NODES.octets())).and_u16(len);
    let sum = pseudo.and_u16(PROTO_ICMPV6.into()).and(Sum::of(&message));
    message[2..4].copy_from_slice(&sum.checksum());

    let mut frame = Vec::with_capacity(ETH_LEN + 40 + message.len());
    frame.extend(ALL_NODES_MAC.0);
    frame.extend(mac.0);
    frame.extend(ETHERTYPE_IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([PROTO_ICMPV6, ND_HOP_LIMIT]);
    frame.extend(ip.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

/// Bytes of the shortest Ethernet frame, without its checksum.
const FRAME_LEN_MIN: usize = 60;
const ETHERTYPE_RARP: u16 = 0x8035;
/// Ethernet and IPv4 addresses, of 6 and 4 bytes.
const ARP_OVER_ETHERNET: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
/// "Request reverse".
const REVERSE_REQUEST: u16 = 3;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
/// The hop limit of neighbor discovery, which no router has forwarded (RFC 4861, 7.1).
const ND_HOP_LIMIT: u8 = 255; // not a limit: a field of the protocol
const ND_ROUTER: u8 = 0x80;
const ND_OVERRIDE: u8 = 0x20;

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn claim(ip: &str) -> Claim {
        Claim { mac: MAC, ip: Some(ip.parse().expect("an address")) }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().filter(char::is_ascii_hexdigit).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
        digits.chunks(2).map(|pair| byte(pair).expect("hexadecimal")).collect()
    }

    #[test]
    fn an_ethernet_address_is_announced_by_a_reverse_arp_request() {
        let mut expected = bytes(
            "ffffffffffff 020000000009 8035
             0001 0800 06 04 0003 020000000009 00000000 020000000009 00000000",
        );
        expected.resize(60, 0);
        assert_eq!(Claim { mac: MAC, ip: None }.announcement(false), expected);
    }

    #[test]
    fn an_ipv4_address_is_announced_by_an_arp_request_for_itself() {
        let mut expected = bytes(
            "ffffffffffff 020000000009 0806
             0001 0800 06 04 0001 020000000009 0a4d0005 000000000000 0a4d0005",
        );
        expected.resize(60, 0);
        assert_eq!(claim("10.77.0.5").announcement(true), expected);
    }

    #[test]
    fn an_ipv6_address_is_announced_by_an_advertisement_to_all_nodes() {
        let expected = |flags: &str, checksum: &str| {
            bytes(&format!(
                "333300000001 020000000009 86dd
                 60000000 0020 3a ff
                 fd770000000000000000000000000005 ff020000000000000000000000000001
                 88 00 {checksum} {flags}000000
                 fd770000000000000000000000000005 02 01 020000000009"
            ))
        };
        assert_eq!(claim("fd77::5").announcement(false), expected("20", "599d"));
        assert_eq!(claim("fd77::5").announcement(true), expected("a0", "d99c"));
    }

    #[test]
    fn a_station_shows_the_address_with_which_it_asks_for_others() {
        let alone = Some(Claim { mac: MAC, ip: None });
        assert_eq!(Claim::of(&claim("10.77.0.5").announcement(false)), Some(claim("10.77.0.5")));
        let solicitation = |change: fn(&mut [u8])| {
            let mut frame = advertisement(MAC, "fd77::5".parse().expect("an address"), false);
            (frame[54], frame[78]) = (NEIGHBOR_SOLICITATION, SOURCE_LINK_ADDRESS);
            change(&mut frame);
            Claim::of(&frame)
        };
        assert_eq!(solicitation(|_| ()), Some(claim("fd77::5")));
        let others: [fn(&mut [u8]); 6] = [
            |frame| frame[54] = NEIGHBOR_ADVERTISEMENT,
            |frame| frame[22..38].fill(0),
            |frame| frame[22] = 0xff,
            |frame| frame[21] = 64,
            |frame| frame[85] = 8,
            |frame| frame[78] = TARGET_LINK_ADDRESS,
        ];
        for change in others {
            assert_eq!(solicitation(change), alone);
        }
        let request = |change: fn(&mut [u8])| {
            let mut frame = claim("10.77.0.5").announcement(false);
            change(&mut frame);
            Claim::of(&frame)
        };
        let others: [fn(&mut [u8]); 5] = [
            |frame| frame[21] = 2,
            |frame| frame[28..32].fill(0),
            |frame| frame[28] = 224,
            |frame| frame[27] = 8,
            |frame| frame[13] = 0,
        ];
        for change in others {
            assert_eq!(request(change), alone);
        }
        assert_eq!(request(|frame| frame[12..14].copy_from_slice(&[0x81, 0])), None);
        assert_eq!(Claim::of(&[2; 13]), None);
        assert_eq!(Claim::of(&claim("10.77.0.5").announcement(false)[..41]), alone);
    }
}
