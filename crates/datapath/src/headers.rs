//! Where a frame's headers are: Ethernet with up to two VLAN tags, IPv4, IPv6 with extension
//! headers, TCP and UDP.
//!
//! [`parse`] accepts any bytes, reads each header once, in bounded time, and never panics. It
//! checks only what the returned offsets depend on; it does not check checksums, addresses or
//! flags.

use crate::MacAddr;

/// Destination and source of a frame, or `None` if it is shorter than an Ethernet header.
#[inline]
pub fn macs(frame: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, _, _] = frame.first_chunk()?;
    Some((MacAddr([d0, d1, d2, d3, d4, d5]), MacAddr([s0, s1, s2, s3, s4, s5])))
}

/// Which internet protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A transport protocol whose header [`parse`] knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Its IP protocol number.
    pub const fn protocol(self) -> u8 {
        match self {
            Transport::Tcp => PROTO_TCP,
            Transport::Udp => PROTO_UDP,
        }
    }

    /// Where its checksum is, from the start of its header.
    pub const fn checksum_offset(self) -> usize {
        match self {
            Transport::Tcp => 16,
            Transport::Udp => 6,
        }
    }
}

/// Offsets of a frame's headers, in bytes from the start of the frame, and the headers' protocols.
///
/// All offsets are within the parsed frame: `l3 < l4 <= payload <= end <= frame.len()`. If only the
/// frame's head was parsed, `end` may be beyond the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Version of the IP header.
    pub version: IpVersion,
    /// IP protocol number of what is at `l4`.
    pub protocol: u8,
    /// The packet is one of several fragments, so `transport` is `None`.
    pub is_fragment: bool,
    /// The transport header at `l4`: `None` for other protocols, for fragments, for a header that
    /// is cut off, and after an IPv6 routing header with segments left (the checksum then covers an
    /// address that is not in the IP header).
    pub transport: Option<Transport>,
    /// Start of the IP header.
    pub l3: usize,
    /// Start of what the IP packet carries, after options and extension headers.
    pub l4: usize,
    /// Start of the data after the transport header; `l4` if it has no transport header.
    pub payload: usize,
    /// End of the IP packet; what follows is padding.
    pub end: usize,
}

impl Headers {
    /// Source and destination address together, as in the IP header: 8 or 32 bytes. Empty if
    /// `frame` is not the one that was parsed.
    #[inline]
    pub fn addresses<'frame>(&self, frame: &'frame [u8]) -> &'frame [u8] {
        let (start, end) = match self.version {
            IpVersion::V4 => (self.l3 + 12, self.l3 + IPV4_LEN_MIN),
            IpVersion::V6 => (self.l3 + 8, self.l3 + IPV6_LEN),
        };
        frame.get(start..end).unwrap_or_default()
    }

    /// Source and destination port together: the 4 bytes that start a TCP or UDP header.
    #[inline]
    pub fn ports(&self, frame: &[u8]) -> Option<[u8; 4]> {
        self.transport?;
        chunk(frame, self.l4)
    }

    /// Whether the packet is for a DHCP client: UDP over IPv4 to port 68.
    #[inline]
    pub fn is_for_dhcp_client(&self, frame: &[u8]) -> bool {
        let is_udp_v4 = self.version == IpVersion::V4 && self.transport == Some(Transport::Udp);
        is_udp_v4 && self.ports(frame).is_some_and(|[_, _, to @ ..]| to == DHCP_CLIENT)
    }
}

/// Whether the packet in a frame may be for a DHCP client; [`Headers::is_for_dhcp_client`] says
/// whether it is. It costs one comparison for short frames, and four at most, so it suits every
/// frame.
#[inline]
pub(crate) fn may_be_for_dhcp_client(frame: &[u8]) -> bool {
    if frame.len() < DHCP_LEN_MIN {
        return false;
    }
    // Of a header without options, which servers do not send, behind up to two VLAN tags.
    let port_at = |tags: usize| ETH_LEN + IPV4_LEN_MIN + 2 + VLAN_TAG_LEN * tags;
    (0..=VLAN_TAGS_MAX).any(|tags| chunk(frame, port_at(tags)) == Some(DHCP_CLIENT))
}

/// Finds the headers of a frame. `None` if it is not IP, or if a header or the length in it
/// contradicts the length of the frame.
///
/// An IP length of 0 means "to the end of the frame": some senders write it into a frame with
/// pending segmentation.
#[inline]
pub fn parse(frame: &[u8]) -> Option<Headers> {
    parse_head(frame, frame.len())
}

/// Parses the headers of a frame of `len` bytes of which `frame` has only the first. A transport
/// header that is not among these counts as cut off.
#[inline]
pub fn parse_head(frame: &[u8], len: usize) -> Option<Headers> {
    let ethertype = u16::from_be_bytes(chunk(frame, ETHERTYPE_AT)?);
    match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(frame, len, ETH_LEN),
        ETHERTYPE_IPV6 => parse_ipv6(frame, len, ETH_LEN),
        TPID_CUSTOMER | TPID_SERVICE => parse_tagged(frame, len),
        _ => None,
    }
}

#[cold]
fn parse_tagged(frame: &[u8], len: usize) -> Option<Headers> {
    let mut ethertype_at = ETHERTYPE_AT;
    for _ in 0..VLAN_TAGS_MAX {
        ethertype_at += VLAN_TAG_LEN;
        match u16::from_be_bytes(chunk(frame, ethertype_at)?) {
            ETHERTYPE_IPV4 => return parse_ipv4(frame, len, ethertype_at + 2),
            ETHERTYPE_IPV6 => return parse_ipv6(frame, len, ethertype_at + 2),
            TPID_CUSTOMER | TPID_SERVICE => {}
            _ => return None,
        }
    }
    None
}

#[inline]
fn parse_ipv4(frame: &[u8], len: usize, l3: usize) -> Option<Headers> {
    let ip: [u8; IPV4_LEN_MIN] = chunk(frame, l3)?;
    let header_len = usize::from(ip[0] & 0x0f) * 4;
    if ip[0] >> 4 != 4 || header_len < IPV4_LEN_MIN {
        return None;
    }
    let l4 = l3 + header_len;
    let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let end = if total_len == 0 { len } else { l3 + total_len };
    if l4 > end || end > len || l4 > frame.len() {
        return None;
    }
    // The fragment's offset and "more fragments"; the bit above them is "don't fragment".
    let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    let network = Headers {
        version: IpVersion::V4,
        protocol: ip[9],
        is_fragment,
        transport: None,
        l3,
        l4,
        payload: l4,
        end,
    };
    Some(if is_fragment { network } else { with_transport(frame, network) })
}

#[inline]
fn parse_ipv6(frame: &[u8], len: usize, l3: usize) -> Option<Headers> {
    let ip: [u8; IPV6_LEN] = chunk(frame, l3)?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let l4 = l3 + IPV6_LEN;
    let payload_len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let end = if payload_len == 0 { len } else { l4 + payload_len };
    if end > len {
        return None;
    }
    let network = Headers {
        version: IpVersion::V6,
        protocol: ip[6],
        is_fragment: false,
        transport: None,
        l3,
        l4,
        payload: l4,
        end,
    };
    if matches!(network.protocol, PROTO_TCP | PROTO_UDP) {
        return Some(with_transport(frame, network));
    }
    Some(parse_extensions(frame, network))
}

/// Walks the extension headers (RFC 8200, section 4). A header that is cut off, or one more than
/// [`EXTENSIONS_MAX`], ends the walk: the addresses are valid, but there is no transport.
#[cold]
fn parse_extensions(frame: &[u8], mut at: Headers) -> Headers {
    let packet = frame.get(..at.end).unwrap_or(frame);
    let mut is_rerouted = false;
    for _ in 0..EXTENSIONS_MAX {
        let Some([next, len, b2, b3]) = chunk(packet, at.l4) else { return at };
        let extension_len = match at.protocol {
            EXT_HOP_BY_HOP | EXT_DESTINATION | EXT_MOBILITY | EXT_HIP | EXT_SHIM6 => {
                8 + usize::from(len) * 8
            }
            EXT_ROUTING => {
                // Segments left: the final destination is in the routing header.
                is_rerouted |= b3 != 0;
                8 + usize::from(len) * 8
            }
            EXT_AUTHENTICATION => 8 + usize::from(len) * 4,
            EXT_FRAGMENT => {
                // A first fragment without a second one ("atomic", RFC 6946) is a whole packet.
                at.is_fragment |= u16::from_be_bytes([b2, b3]) & 0xfff9 != 0;
                8
            }
            _ => break,
        };
        if at.l4 + extension_len > at.end {
            return at;
        }
        at.protocol = next;
        at.l4 += extension_len;
        at.payload = at.l4;
        if at.is_fragment {
            // Only the first fragment contains what follows.
            return at;
        }
    }
    if is_rerouted { at } else { with_transport(frame, at) }
}

#[inline]
fn with_transport(frame: &[u8], network: Headers) -> Headers {
    let (transport, header_len) = match network.protocol {
        PROTO_TCP => {
            // The data offset, in the upper half of byte 12, counts words of 4 bytes.
            let header_len = match chunk(frame, network.l4 + 12) {
                Some([offset]) => usize::from(offset >> 4) * 4,
                None => return network,
            };
            if header_len < TCP_LEN_MIN {
                return network;
            }
            (Transport::Tcp, header_len)
        }
        PROTO_UDP => (Transport::Udp, UDP_LEN),
        _ => return network,
    };
    let payload = network.l4 + header_len;
    if payload > network.end || payload > frame.len() {
        return network;
    }
    Headers { transport: Some(transport), payload, ..network }
}

/// `N` bytes of a frame, by value.
#[inline]
pub fn chunk<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..)?.first_chunk().copied()
}

/// Bytes of an Ethernet header without tags.
pub const ETH_LEN: usize = 14;
/// IP protocol number of ICMP.
pub const PROTO_ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const PROTO_ICMPV6: u8 = 58;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

const ETHERTYPE_AT: usize = 12;
/// EtherType of a VLAN tag (IEEE 802.1Q).
pub const TPID_CUSTOMER: u16 = 0x8100;
/// EtherType of an outer VLAN tag (IEEE 802.1ad).
pub const TPID_SERVICE: u16 = 0x88a8;
/// Bytes of a VLAN tag.
pub const VLAN_TAG_LEN: usize = 4;
/// VLAN tags that are skipped.
pub const VLAN_TAGS_MAX: usize = 2;

/// Bytes of the shortest frame with a DHCP message: its fixed fields (RFC 2131, section 2).
const DHCP_LEN_MIN: usize = ETH_LEN + IPV4_LEN_MIN + UDP_LEN + 236;
/// UDP port of DHCP clients, in network order.
const DHCP_CLIENT: [u8; 2] = [0, 68];

const IPV4_LEN_MIN: usize = 20;
/// Bytes of an IPv6 header without its extensions.
pub(crate) const IPV6_LEN: usize = 40;
const TCP_LEN_MIN: usize = 20;
const UDP_LEN: usize = 8;

/// IPv6 hop-by-hop options.
pub const EXT_HOP_BY_HOP: u8 = 0;
/// IPv6 routing header.
pub const EXT_ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const EXT_FRAGMENT: u8 = 44;
/// Authentication header.
pub const EXT_AUTHENTICATION: u8 = 51;
/// IPv6 destination options.
pub const EXT_DESTINATION: u8 = 60;
/// IPv6 mobility header.
pub const EXT_MOBILITY: u8 = 135;
/// Host identity protocol.
pub const EXT_HIP: u8 = 139;
/// Shim6 protocol.
pub const EXT_SHIM6: u8 = 140;
/// IPv6 extension headers of a packet: each kind once, and destination options twice, which is what
/// RFC 8200 allows, rounded up.
pub const EXTENSIONS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_not_ip_has_no_headers() {
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(parse(&arp), None);
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0; 13]), None);
    }

    #[test]
    fn the_head_of_a_frame_has_the_headers_within_it() {
        let mut packet = ipv4(PROTO_TCP, &[0x50; 1000]);
        let whole = parse(&packet).expect("it is TCP");
        for len in 0..packet.len() {
            let found = parse_head(&packet[..len], packet.len());
            match found {
                Some(found) if len >= whole.payload => assert_eq!(found, whole),
                Some(found) => assert_eq!(found.transport, None, "{len} bytes"),
                None => assert!(len < whole.l4, "{len} bytes"),
            }
        }
        assert_eq!(parse_head(&packet, packet.len() - 1), None);
        packet.truncate(whole.l4);
        assert_eq!(parse(&packet), None);
    }

    #[test]
    fn padding_is_not_part_of_the_packet() {
        let mut frame = ipv4(PROTO_UDP, &[0; 8]);
        frame.resize(60, 0xaa);
        let headers = parse(&frame).unwrap();
        assert_eq!((headers.l3, headers.l4, headers.payload, headers.end), (14, 34, 42, 42));
        assert_eq!(headers.transport, Some(Transport::Udp));
    }

    #[test]
    fn a_third_vlan_tag_is_refused() {
        let plain = ipv4(PROTO_TCP, &tcp());
        for tags in 0..4 {
            let mut frame = plain.clone();
            for _ in 0..tags {
                frame.splice(12..12, [0x81, 0, 0, 7]);
            }
            let headers = parse(&frame);
            assert_eq!(headers.map(|headers| headers.l3), (tags <= 2).then_some(14 + tags * 4));
        }
    }

    #[test]
    fn contradictory_lengths_give_no_headers() {
        let mut too_long = ipv4(PROTO_TCP, &tcp());
        too_long[17] += 1;
        assert_eq!(parse(&too_long), None);

        let mut shorter_than_its_header = ipv4(PROTO_TCP, &tcp());
        shorter_than_its_header[17] = 19;
        assert_eq!(parse(&shorter_than_its_header), None);

        let mut short_header = ipv4(PROTO_TCP, &tcp());
        short_header[14] = 0x44;
        assert_eq!(parse(&short_header), None);
    }

    #[test]
    fn a_truncated_transport_header_leaves_the_addresses() {
        let frame = ipv4(PROTO_TCP, &tcp()[..19]);
        let headers = parse(&frame).unwrap();
        assert_eq!((headers.protocol, headers.transport), (PROTO_TCP, None));
        assert_eq!(headers.addresses(&frame).len(), 8);
    }

    #[test]
    fn fragments_have_no_transport_except_atomic_ones() {
        let mut frame = ipv4(PROTO_TCP, &tcp());
        for (bits, is_fragment) in [(0x4000, false), (0x2000, true), (0x0001, true)] {
            frame[20..22].copy_from_slice(&u16::to_be_bytes(bits));
            let headers = parse(&frame).unwrap();
            assert_eq!(headers.is_fragment, is_fragment);
            assert_eq!(headers.transport.is_none(), is_fragment);
        }
        for (bits, is_fragment) in [(0u16, false), (6, false), (1, true), (8, true)] {
            let [high, low] = bits.to_be_bytes();
            let mut rest = vec![PROTO_TCP, 0, high, low, 1, 2, 3, 4];
            rest.extend(tcp());
            let frame = ipv6(EXT_FRAGMENT, &rest);
            let headers = parse(&frame).unwrap();
            assert_eq!((headers.is_fragment, headers.protocol), (is_fragment, PROTO_TCP));
            assert_eq!(headers.transport.is_none(), is_fragment);
        }
    }

    #[test]
    fn extension_headers_are_walked_up_to_a_bound() {
        for count in 0..=EXTENSIONS_MAX + 1 {
            let mut rest = Vec::new();
            for left in (0..count).rev() {
                let next = if left == 0 { PROTO_TCP } else { EXT_DESTINATION };
                rest.extend([next, 1].iter().chain(&[0; 14]));
            }
            rest.extend(tcp());
            let frame = ipv6(if count == 0 { PROTO_TCP } else { EXT_DESTINATION }, &rest);
            let headers = parse(&frame).unwrap();
            assert_eq!(headers.transport.is_some(), count <= EXTENSIONS_MAX);
            if count <= EXTENSIONS_MAX {
                assert_eq!((headers.l4, headers.payload), (54 + 16 * count, 74 + 16 * count));
            }
        }
    }

    #[test]
    fn a_routing_header_in_use_hides_the_transport() {
        for (segments_left, is_known) in [(0, true), (1, false)] {
            let mut rest = vec![PROTO_TCP, 0, 4, segments_left, 0, 0, 0, 0];
            rest.extend(tcp());
            let headers = parse(&ipv6(EXT_ROUTING, &rest)).unwrap();
            assert_eq!(headers.transport.is_some(), is_known);
            assert_eq!(headers.protocol, PROTO_TCP);
        }
    }

    #[test]
    fn arbitrary_bytes_give_offsets_within_the_frame_and_no_panic() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0001);
        let seeds = [
            ipv4(PROTO_TCP, &tcp()),
            ipv4(PROTO_UDP, &[0; 30]),
            ipv6(PROTO_TCP, &tcp()),
            ipv6(EXT_HOP_BY_HOP, &[EXT_ROUTING; 80]),
            ipv6(EXT_FRAGMENT, &[EXT_AUTHENTICATION; 80]),
        ];
        for round in 0..if cfg!(miri) { 200 } else { 300_000 } {
            let mut frame = seeds[round % seeds.len()].clone();
            for _ in 0..random.usize(..6) {
                let at = random.usize(..frame.len());
                frame[at] = random.u8(..);
            }
            if random.bool() {
                frame.splice(12..12, [0x88, 0xa8, 0, 1]);
            }
            if random.bool() {
                frame.truncate(random.usize(..=frame.len()));
            }
            if round % 16 == 0 {
                frame.iter_mut().skip(14).for_each(|byte| *byte = random.u8(..));
            }
            let Some(found) = parse(&frame) else { continue };
            assert!(found.l3 < found.l4 && found.l4 <= found.payload);
            assert!(found.payload <= found.end && found.end <= frame.len());
            assert!(!found.addresses(&frame).is_empty());
            assert_eq!(found.ports(&frame).is_some(), found.transport.is_some());
            let checksum_end = found.transport.map(|it| found.l4 + it.checksum_offset() + 2);
            assert!(checksum_end.is_none_or(|end| end <= found.payload));
            assert!(!found.is_fragment || found.transport.is_none());
        }
    }

    #[test]
    fn another_parser_finds_the_same_offsets() {
        use etherparse::PacketBuilder;
        let mut random = fastrand::Rng::with_seed(0x5eed_0002);
        for _ in 0..if cfg!(miri) { 10 } else { 2_000 } {
            let payload = vec![0x5a; random.usize(..100)];
            let start = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let (mut frame, tags) = (Vec::new(), random.usize(..3));
            let is_v4 = random.bool();
            let is_tcp = random.bool();
            macro_rules! finish {
                ($link:expr) => {{
                    let ip = if is_v4 {
                        $link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
                    } else {
                        $link.ipv6([1; 16], [2; 16], 64)
                    };
                    if is_tcp {
                        ip.tcp(1000, 2000, 1, 1000).write(&mut frame, &payload).unwrap();
                    } else {
                        ip.udp(1000, 2000).write(&mut frame, &payload).unwrap();
                    }
                }};
            }
            let vlan = |id| etherparse::VlanId::try_new(id).unwrap();
            match tags {
                0 => finish!(start),
                1 => finish!(start.single_vlan(vlan(5))),
                _ => finish!(start.double_vlan(vlan(5), vlan(6))),
            }
            let found = parse(&frame).unwrap();
            let l3 = 14 + 4 * tags;
            let l4 = l3 + if is_v4 { 20 } else { 40 };
            assert_eq!((found.l3, found.l4, found.end), (l3, l4, frame.len()));
            assert_eq!(found.payload, l4 + if is_tcp { 20 } else { 8 });
            assert_eq!(found.version == IpVersion::V4, is_v4);
            assert_eq!(found.transport == Some(Transport::Tcp), is_tcp);
        }
    }

    fn tcp() -> [u8; 20] {
        let mut header = [0; 20];
        header[12] = 0x50;
        header
    }

    fn ethernet(ethertype: u16) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(ethertype.to_be_bytes());
        frame
    }

    fn ipv4(protocol: u8, rest: &[u8]) -> Vec<u8> {
        let mut frame = ethernet(ETHERTYPE_IPV4);
        let [high, low] = u16::try_from(20 + rest.len()).unwrap().to_be_bytes();
        frame.extend([0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(rest);
        frame
    }

    fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut frame = ethernet(ETHERTYPE_IPV6);
        let [high, low] = u16::try_from(rest.len()).unwrap().to_be_bytes();
        frame.extend([0x60, 0, 0, 0, high, low, next, 64]);
        frame.extend([0xfd; 32]);
        frame.extend(rest);
        frame
    }
}
