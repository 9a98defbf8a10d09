//! Frames that a guest builds itself: small, and with any addresses.

use std::net::Ipv4Addr;

use ringway_datapath::MacAddr;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const ICMP_V6: u8 = 58;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The IPv6 destination options header, an extension header of any length.
pub const DESTINATION_OPTIONS: u8 = 60;
/// The IPv6 hop-by-hop options header.
pub const HOP_BY_HOP: u8 = 0;
/// The IPv6 fragment header; here for a packet with a single fragment.
pub const FRAGMENT: u8 = 44;
/// The padding option with a length.
const PAD_N: u8 = 1;

/// The addresses of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The source address that the frame claims.
    pub from: (MacAddr, Ipv4Addr),
    /// The receiver.
    pub to: (MacAddr, Ipv4Addr),
}

/// An Ethernet frame.
pub fn ethernet(to: MacAddr, from: MacAddr, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &kind.to_be_bytes(), payload].concat()
}

/// An ARP request, which teaches the receiver the sender's address.
pub fn arp_request(route: Route) -> Vec<u8> {
    let payload = arp(1, route.from, (MacAddr([0; 6]), route.to.1));
    ethernet(MacAddr::BROADCAST, route.from.0, ARP, &payload)
}

/// An unsolicited ARP reply: it claims that an IP address belongs to a MAC address.
pub fn arp_claim(route: Route) -> Vec<u8> {
    ethernet(route.to.0, route.from.0, ARP, &arp(2, route.from, route.to))
}

fn arp(operation: u16, sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4];
    bytes.extend(operation.to_be_bytes());
    for (mac, ip) in [sender, target] {
        bytes.extend(mac.0);
        bytes.extend(ip.octets());
    }
    bytes
}

/// An ICMP echo request, as ping sends it.
pub fn ping(route: Route, sequence: u16, len: usize) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x66, 0x66];
    icmp.extend(sequence.to_be_bytes());
    icmp.resize(8 + len, 0x5a);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ethernet(route.to.0, route.from.0, IPV4, &ipv4(route, ICMP, &icmp))
}

/// A UDP datagram without a checksum, which IPv4 allows.
pub fn udp(route: Route, ports: [u16; 2], len: usize) -> Vec<u8> {
    let mut datagram = ports.map(u16::to_be_bytes).concat();
    datagram.extend(u16::try_from(8 + len).unwrap_or(u16::MAX).to_be_bytes());
    datagram.extend([0; 2]);
    datagram.resize(8 + len, 0x5a);
    ethernet(route.to.0, route.from.0, IPV4, &ipv4(route, UDP, &datagram))
}

/// A TCP segment of any length, to be cut and given checksums on the way.
pub fn tcp(route: Route, ports: [u16; 2], len: usize) -> Vec<u8> {
    ethernet(route.to.0, route.from.0, IPV4, &ipv4(route, TCP, &tcp_segment(ports, len)))
}

/// A TCP segment of any length over IPv6, after `extensions` extension headers of `extension_len`
/// bytes each, to be cut and given checksums on the way.
pub fn tcp_v6(route: Route, extensions: usize, extension_len: usize, len: usize) -> Vec<u8> {
    let segment = tcp_segment([40_000, 9], len);
    let mut payload = Vec::new();
    for extension in 0..extensions {
        let next = if extension + 1 < extensions { DESTINATION_OPTIONS } else { TCP };
        let options = extension_len.max(8) / 8 * 8;
        let start = payload.len();
        payload.extend([next, u8::try_from(options / 8 - 1).unwrap_or(u8::MAX)]);
        // Padding in pieces: the length field of one has one byte.
        let mut left = options - 2;
        while left > 0 {
            let piece = left.min(257);
            if piece == 1 {
                payload.push(0);
            } else {
                payload.extend([PAD_N, u8::try_from(piece - 2).unwrap_or(0)]);
                payload.resize(payload.len() + piece - 2, 0);
            }
            left -= piece;
        }
        debug_assert_eq!(payload.len() - start, options);
    }
    payload.extend(segment);
    let first = if extensions > 0 { DESTINATION_OPTIONS } else { TCP };
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes());
    packet.extend([first, 64]);
    packet.extend(v6_of(route.from.1));
    packet.extend(v6_of(route.to.1));
    packet.extend(payload);
    ethernet(route.to.0, route.from.0, IPV6, &packet)
}

/// A router advertisement (RFC 4861) to all nodes: a default route through this address for a
/// minute, after these extension headers of eight bytes each.
pub fn router_advertisement(mac: MacAddr, extensions: &[u8]) -> Vec<u8> {
    let all_nodes = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    // Type, code, checksum, hop limit, flags, lifetime, times, and the source's address.
    let mut message = vec![134, 0, 0, 0, 64, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    message.extend(mac.0);
    let to = (MacAddr([0x33, 0x33, 0, 0, 0, 1]), all_nodes);
    icmp_v6((mac, link_local(mac)), to, extensions, message)
}

/// An unsolicited neighbor advertisement: the sender's IP address belongs to its MAC address,
/// overriding what was known before.
pub fn neighbor_advertisement(route: Route) -> Vec<u8> {
    let (from, to) = (v6_of(route.from.1), v6_of(route.to.1));
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(from);
    message.extend([2, 1]);
    message.extend(route.from.0.0);
    icmp_v6((route.from.0, from), (route.to.0, to), &[], message)
}

fn icmp_v6(
    from: (MacAddr, [u8; 16]),
    to: (MacAddr, [u8; 16]),
    extensions: &[u8],
    mut message: Vec<u8>,
) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap_or(0);
    let pseudo = [&from.1[..], &to.1, &[0, 0], &len.to_be_bytes(), &[0, 0, 0, ICMP_V6]].concat();
    let sum = checksum(&[pseudo, message.clone()].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut payload = Vec::new();
    for (index, kind) in extensions.iter().enumerate() {
        let next = extensions.get(index + 1).copied().unwrap_or(ICMP_V6);
        payload.extend([next, 0]);
        // Four bytes of padding; for a fragment: its offset, the mark of the last one, and an id.
        payload.extend(if *kind == FRAGMENT { [0, 0, 0, 0, 0, 9] } else { [PAD_N, 4, 0, 0, 0, 0] });
    }
    payload.extend(message);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(payload.len()).unwrap_or(0).to_be_bytes());
    packet.extend([extensions.first().copied().unwrap_or(ICMP_V6), 255]);
    packet.extend(from.1);
    packet.extend(to.1);
    packet.extend(payload);
    ethernet(to.0, from.0, IPV6, &packet)
}

fn link_local(mac: MacAddr) -> [u8; 16] {
    let [a, b, c, d, e, f] = mac.0;
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// The frame with another VLAN tag in front.
pub fn with_tag(frame: &[u8], number: u16) -> Vec<u8> {
    let tag = [0x8100, number].map(u16::to_be_bytes).concat();
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// The frame with LLC and SNAP headers before its EtherType.
pub fn in_snap(frame: &[u8]) -> Vec<u8> {
    let len = u16::try_from(frame.len() - 6).unwrap_or(0).to_be_bytes();
    [&frame[..12], &len, &[0xaa, 0xaa, 3, 0, 0, 0], &frame[12..]].concat()
}

/// Kinds of IGMP (RFC 2236).
pub const IGMP_QUERY: u8 = 0x11;
/// A station joins a group.
pub const IGMP_REPORT: u8 = 0x16;
/// A station leaves a group.
pub const IGMP_LEAVE: u8 = 0x17;

/// An IGMP version 2 message about a group, without a source IP address; a query is about all
/// groups.
pub fn igmp(mac: MacAddr, kind: u8, group: Ipv4Addr) -> Vec<u8> {
    let mut message = vec![kind, if kind == IGMP_QUERY { 10 } else { 0 }, 0, 0];
    message.extend(group.octets());
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let to = if kind == IGMP_QUERY { Ipv4Addr::new(224, 0, 0, 1) } else { group };
    let [_, b, c, d] = to.octets();
    let to_mac = MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]);
    let route = Route { from: (mac, Ipv4Addr::UNSPECIFIED), to: (to_mac, to) };
    ethernet(to_mac, mac, IPV4, &ipv4(route, IGMP, &message))
}

/// `fd77::N` for the IPv4 address that ends with N: the addresses of guests on the emulated host.
fn v6_of(ip: Ipv4Addr) -> [u8; 16] {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfd, 0x77]);
    octets[15] = ip.octets()[3];
    octets
}

fn tcp_segment(ports: [u16; 2], len: usize) -> Vec<u8> {
    let mut segment = ports.map(u16::to_be_bytes).concat();
    // Sequence, acknowledgement, 20 bytes of header, ACK, window, checksum, urgent pointer.
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    segment.resize(20 + len, 0x5a);
    segment
}

fn ipv4(route: Route, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap_or(u16::MAX);
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend(route.from.1.octets());
    packet.extend(route.to.1.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use ringway_datapath::headers::parse;

    use super::*;

    fn route() -> Route {
        Route {
            from: (MacAddr([2; 6]), Ipv4Addr::new(10, 77, 0, 66)),
            to: (MacAddr([4; 6]), Ipv4Addr::new(10, 77, 0, 1)),
        }
    }

    #[test]
    fn headers_are_where_the_backend_expects_them() {
        let headers = parse(&tcp(route(), [1, 2], 1000)).expect("it can be read");
        assert_eq!((headers.l4, headers.payload), (34, 54));
        let plain = parse(&tcp_v6(route(), 0, 0, 1000)).expect("it can be read");
        assert_eq!((plain.l4, plain.payload), (54, 74));
        let bloated = parse(&tcp_v6(route(), 10, 2048, 1000)).expect("it can be read");
        assert_eq!(bloated.l4, 54 + 10 * 2048);
    }

    #[test]
    fn hiding_a_message_leaves_it_unchanged() {
        let mac = MacAddr([2; 6]);
        let plain = router_advertisement(mac, &[]);
        let behind = router_advertisement(mac, &[HOP_BY_HOP, FRAGMENT]);
        assert_eq!((plain[20], plain[54], behind[20], behind[54]), (58, 134, 0, FRAGMENT));
        assert_eq!(behind[54 + 8], ICMP_V6);
        assert_eq!(plain[54..], behind[54 + 16..]);
        assert_eq!(with_tag(&plain, 7)[12..16], [0x81, 0, 0, 7]);
        assert_eq!(with_tag(&plain, 7)[16..], plain[12..]);
        let snap = in_snap(&plain);
        assert_eq!(snap[14..20], [0xaa, 0xaa, 3, 0, 0, 0]);
        assert_eq!((usize::from(snap[13]), &snap[20..]), (snap.len() - 14, &plain[12..]));
    }

    #[test]
    fn the_checksum_of_a_header_with_its_checksum_is_zero() {
        let frame = ping(route(), 7, 56);
        assert_eq!(checksum(&frame[14..34]), 0);
        assert_eq!(checksum(&frame[34..]), 0);
    }
}
