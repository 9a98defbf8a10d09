//! The default hash of a flow.
//!
//! Each end of a flow is mixed separately, and the two results are added: the sum is the same
//! whichever end sends, but unlike an exclusive-or of the ends it distinguishes flows whose ends
//! differ by the same bits. A last mixing spreads the sum over all bits. That makes three
//! multiplications of 64 by 64 bits for IPv4, five for IPv6.
//!
//! The hash has no secret: a guest can choose flows that share a queue, and slows itself down.
//! Its values are stable; a test pins them, because the lab's records rely on placement.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringway_datapath::headers::{Headers, IpVersion, PROTO_ICMP, PROTO_ICMPV6, Transport, parse};

/// The hash of the flow that a frame belongs to; `None` for a frame without a flow, which goes to
/// queue 0.
///
/// - TCP and UDP, over IPv4 or IPv6: addresses, ports and protocol;
/// - fragments, of which only the first has ports, and all other protocols over IP: addresses;
/// - ICMP, ICMPv6, and protocols other than IP, such as ARP: `None`.
///
/// Whether a frame is still to be segmented makes no difference.
#[inline]
pub fn flow_hash(frame: &[u8]) -> Option<u32> {
    flow_hash_parsed(frame, &parse(frame)?)
}

/// [`flow_hash`] of a frame whose headers are known.
#[inline]
pub fn flow_hash_parsed(frame: &[u8], headers: &Headers) -> Option<u32> {
    if matches!(headers.protocol, PROTO_ICMP | PROTO_ICMPV6) {
        return None;
    }
    let (ports, seed) = match headers.ports(frame) {
        Some([s0, s1, d0, d1]) => (
            (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])),
            u64::from(headers.protocol),
        ),
        None => ((0, 0), ADDRESSES_ONLY),
    };
    let addresses = headers.addresses(frame);
    let (src, dst) = match headers.version {
        IpVersion::V4 => {
            let &[a, b, c, d, e, f, g, h] = addresses.first_chunk()?;
            (
                mix_v4(u32::from_be_bytes([a, b, c, d]), ports.0),
                mix_v4(u32::from_be_bytes([e, f, g, h]), ports.1),
            )
        }
        IpVersion::V6 => {
            let (src, rest) = addresses.split_first_chunk::<16>()?;
            let dst = rest.first_chunk::<16>()?;
            (mix_v6(u128::from_be_bytes(*src), ports.0), mix_v6(u128::from_be_bytes(*dst), ports.1))
        }
    };
    Some(combine(src, dst, seed))
}

/// Both ends of a TCP or UDP flow, for callers without a frame of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowTuple {
    /// The address and port of the sender.
    pub src: SocketAddr,
    /// The address and port of the receiver; of the same IP version as `src`.
    pub dst: SocketAddr,
    /// TCP or UDP.
    pub transport: Transport,
}

impl FlowTuple {
    /// The result of [`flow_hash`] for every unfragmented frame of this flow, in either direction.
    ///
    /// An address of IPv4 that is mapped into IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address
    /// that it represents, because sockets send it as that.
    pub fn hash(&self) -> u32 {
        let end = |end: SocketAddr| match end.ip().to_canonical() {
            IpAddr::V4(address) => mix_v4(Ipv4Addr::to_bits(address), end.port()),
            IpAddr::V6(address) => mix_v6(Ipv6Addr::to_bits(address), end.port()),
        };
        combine(end(self.src), end(self.dst), u64::from(self.transport.protocol()))
    }

    /// This flow, seen from its other end.
    #[must_use]
    pub fn reversed(&self) -> FlowTuple {
        FlowTuple { src: self.dst, dst: self.src, transport: self.transport }
    }
}

#[inline]
fn mix_v4(address: u32, port: u16) -> u64 {
    mix(u64::from(address) << 16 | u64::from(port), KEYS[0])
}

#[inline]
fn mix_v6(address: u128, port: u16) -> u64 {
    let [network, interface] = halves(address);
    // The port goes into the second step, where every bit of the address has been mixed already.
    mix(mix(network, interface ^ KEYS[1]) ^ u64::from(port), KEYS[0])
}

#[inline]
fn combine(src: u64, dst: u64, seed: u64) -> u32 {
    u32::try_from(mix(src.wrapping_add(dst) ^ seed, KEYS[3]) >> 32).unwrap_or_default()
}

/// Multiplies to 128 bits and folds them: every bit of the inputs reaches every part of the
/// result, the middle ones best.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let [high, low] = halves(u128::from(a ^ KEYS[2]) * u128::from(b));
    high ^ low
}

#[inline]
fn halves(number: u128) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = number.to_be_bytes();
    [u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes([i, j, k, l, m, n, o, p])]
}

/// Distinct from every protocol number.
const ADDRESSES_ONLY: u64 = 0x100;
/// The fractional part of pi in hexadecimal: digits that hide nothing, made odd.
const KEYS: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_values_are_stable() {
        let tuple = |src: &str, dst: &str, transport| FlowTuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            transport,
        };
        let v4 = ("10.0.0.1:40000", "10.0.0.2:5201");
        let v6 = ("[fd00::1]:40000", "[fd00::2]:5201");
        assert_eq!(tuple(v4.0, v4.1, Transport::Tcp).hash(), 0xb77d_75ee);
        assert_eq!(tuple(v4.0, v4.1, Transport::Udp).hash(), 0x6cd2_440f);
        assert_eq!(tuple(v6.0, v6.1, Transport::Tcp).hash(), 0x3dbe_5692);
        assert_eq!(tuple(v6.0, v6.1, Transport::Udp).hash(), 0xb099_ad4b);
    }
}
