//! The default hash of a flow.
//!
//! It has a key, so that no sender who does not know it can choose flows that meet one queue. The
//! key is a factor of each multiplication: which flows collide depends on it. Were it only added to
//! the input or to the result of a linear hash, the same flows would collide whatever the key.
//!
//! Both directions of a flow have one hash, because the ends are ordered by value before they are
//! mixed. That makes two multiplications of 64 by 64 bits for IPv4, four for IPv6.
//!
//! It is not a cryptographic hash: a guest that observes for long which of its flows meet which of
//! its own queues might compute the key. Others observe no queue.

use core::cmp::{max, min};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use ringway_datapath::headers::{Headers, IpVersion, PROTO_ICMP, PROTO_ICMPV6, Transport, parse};

/// The secret key of the default hash: 128 bits, of which random ones are unpredictable.
///
/// Its text is 32 hexadecimal digits. Both ends of a vif may have different keys; if they have the
/// same one and equally many queues, a flow has the same queue in both directions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FlowKey([u64; 2]);

impl FlowKey {
    /// The key with these bits.
    pub const fn new(words: [u64; 2]) -> FlowKey {
        FlowKey(words)
    }
}

/// Does not show the key, which no log should have.
impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowKey(_)")
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.0;
        write!(f, "{first:016x}{second:016x}")
    }
}

/// A text that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {KEY_DIGITS} hexadecimal digits")]
pub struct BadFlowKey;

impl FromStr for FlowKey {
    type Err = BadFlowKey;

    fn from_str(text: &str) -> Result<FlowKey, BadFlowKey> {
        // The length of numbers is not checked when they are parsed, and signs are taken.
        let is_text = text.len() == KEY_DIGITS && text.bytes().all(|it| it.is_ascii_hexdigit());
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_text);
        bits.map(|bits| FlowKey(halves(bits))).ok_or(BadFlowKey)
    }
}

/// The hash of the flow that a frame belongs to; `None` for a frame without a flow, which goes to
/// queue 0.
///
/// - TCP and UDP, over IPv4 or IPv6: addresses, ports and protocol;
/// - fragments, of which only the first has ports, and all other protocols over IP: addresses;
/// - ICMP, ICMPv6, and protocols other than IP, such as ARP: `None`.
///
/// Whether a frame is still to be segmented makes no difference.
#[inline]
pub fn flow_hash(frame: &[u8], key: FlowKey) -> Option<u32> {
    flow_hash_parsed(frame, &parse(frame)?, key)
}

/// [`flow_hash`] of a frame whose headers are known.
#[inline]
pub fn flow_hash_parsed(frame: &[u8], headers: &Headers, key: FlowKey) -> Option<u32> {
    if matches!(headers.protocol, PROTO_ICMP | PROTO_ICMPV6) {
        return None;
    }
    let (ports, kind) = match headers.ports(frame) {
        Some([s0, s1, d0, d1]) => (
            (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])),
            u16::from(headers.protocol),
        ),
        None => ((0, 0), ADDRESSES_ONLY),
    };
    let addresses = headers.addresses(frame);
    let ends = match headers.version {
        IpVersion::V4 => {
            let &[a, b, c, d, e, f, g, h] = addresses.first_chunk()?;
            [
                end_v4(u32::from_be_bytes([a, b, c, d]), ports.0),
                end_v4(u32::from_be_bytes([e, f, g, h]), ports.1),
            ]
        }
        IpVersion::V6 => {
            let (src, rest) = addresses.split_first_chunk::<16>()?;
            let dst = rest.first_chunk::<16>()?;
            [
                end_v6(u128::from_be_bytes(*src), ports.0, key),
                end_v6(u128::from_be_bytes(*dst), ports.1, key),
            ]
        }
    };
    Some(combine(ends, kind, key))
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
    pub fn hash(&self, key: FlowKey) -> u32 {
        let end = |end: SocketAddr| match end.ip().to_canonical() {
            IpAddr::V4(address) => end_v4(Ipv4Addr::to_bits(address), end.port()),
            IpAddr::V6(address) => end_v6(Ipv6Addr::to_bits(address), end.port(), key),
        };
        combine([end(self.src), end(self.dst)], self.transport.protocol().into(), key)
    }

    /// This flow, seen from its other end.
    #[must_use]
    pub fn reversed(&self) -> FlowTuple {
        FlowTuple { src: self.dst, dst: self.src, transport: self.transport }
    }
}

/// An end of a flow over IPv4: each has another number.
#[inline]
fn end_v4(address: u32, port: u16) -> u64 {
    u64::from(address) << 16 | u64::from(port)
}

/// An end of a flow over IPv6: the address is mixed, and each port then has another number.
#[inline]
fn end_v6(address: u128, port: u16, FlowKey([first, second]): FlowKey) -> u64 {
    let [network, interface] = halves(address);
    mix(network ^ first, interface ^ second) ^ u64::from(port)
}

/// Mixes both ends, in the order of their values. The last mixing spreads the result over all
/// bits; by then the bits of any two flows differ in a way that depends on the key.
#[inline]
fn combine([src, dst]: [u64; 2], kind: u16, FlowKey([first, second]): FlowKey) -> u32 {
    // Ends of IPv4 leave the upper bits free.
    let kind = u64::from(kind) << 48;
    let mixed = mix(min(src, dst) ^ first, max(src, dst) ^ second ^ kind);
    u32::try_from(mix(mixed, FACTOR) >> 32).unwrap_or_default()
}

/// Multiplies to 128 bits and folds them: every bit of the inputs reaches every part of the
/// result, the middle ones best.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let [high, low] = halves(u128::from(a) * u128::from(b));
    high ^ low
}

#[inline]
fn halves(number: u128) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = number.to_be_bytes();
    [u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes([i, j, k, l, m, n, o, p])]
}

/// Distinct from every protocol number.
const ADDRESSES_ONLY: u16 = 0x100;
/// Bits of the fractional part of pi: they hide nothing.
const FACTOR: u64 = 0xa409_3822_299f_31d1;
/// Digits of the text of a key.
const KEY_DIGITS: usize = 32; // not a limit: of all keys

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_same_values_in_each_version() {
        let key: FlowKey = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        let tuple = |src: &str, dst: &str, transport| FlowTuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            transport,
        };
        let v4 = ("10.0.0.1:40000", "10.0.0.2:5201");
        let v6 = ("[fd00::1]:40000", "[fd00::2]:5201");
        assert_eq!(tuple(v4.0, v4.1, Transport::Tcp).hash(key), 0x497b_766e);
        assert_eq!(tuple(v4.0, v4.1, Transport::Udp).hash(key), 0xbdfd_f0d5);
        assert_eq!(tuple(v6.0, v6.1, Transport::Tcp).hash(key), 0xe27b_c627);
        assert_eq!(tuple(v6.0, v6.1, Transport::Udp).hash(key), 0x0579_d897);
    }
}
