//! Multicast messages in frames: which stations listen to which groups, and where routers are.
//!
//! Reads IGMP (RFC 1112, 2236, 3376), MLD (RFC 2710, 3810) and the hellos of PIM (RFC 7761), as far
//! as RFC 4541 requires of a switch. A packet with a wrong checksum is ignored, because its
//! receivers drop it, unless its offload marks the checksum as valid. Every loop has a bound.

use ringway_datapath::checksum::Sum;
use ringway_datapath::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_ICMPV6, TPID_CUSTOMER, TPID_SERVICE, VLAN_TAG_LEN,
    VLAN_TAGS_MAX, chunk,
};
use ringway_datapath::{Checksum, Frame, FrameVlan, MacAddr};

use crate::inspect::{Fragment, walk};
use crate::querier::Family;

/// The multicast message in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// Nothing.
    None,
    /// It may be one of these, or a part of one, in fragments.
    Hidden,
    /// All listeners of any group must report, within `response_seconds`.
    GeneralQuery { family: Family, response_seconds: u32, names_router: bool },
    /// Listeners of one group must report.
    GroupQuery { names_router: bool },
    /// The sender is a multicast router.
    Hello,
    /// The sender listens to this group.
    Join(MacAddr),
    /// The sender no longer listens to this group.
    Leave(MacAddr),
    /// Joins and leaves of several groups.
    Records(Records<'a>),
}

/// One record of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Join(MacAddr),
    Leave(MacAddr),
    /// It concerns sources only, or a group that is always flooded.
    None,
}

/// The records of a report of IGMPv3 or MLDv2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Records<'a> {
    family: Family,
    left: u16,
    bytes: &'a [u8],
}

impl Records<'_> {
    /// Their protocol.
    pub(crate) fn family(&self) -> Family {
        self.family
    }
}

impl Iterator for Records<'_> {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        self.left = self.left.checked_sub(1)?;
        let address_len = match self.family {
            Family::V4 => 4,
            Family::V6 => 16,
        };
        let [kind, aux_words, high, low] = chunk(self.bytes, 0)?;
        let sources = usize::from(u16::from_be_bytes([high, low]));
        let group = match self.family {
            Family::V4 => chunk(self.bytes, 4).map(group_of_v4)?,
            Family::V6 => chunk(self.bytes, 4).map(group_of_v6)?,
        };
        let len = 4 + address_len * (1 + sources) + 4 * usize::from(aux_words);
        self.bytes = self.bytes.get(len..)?;
        Some(match (group, kind) {
            (None, _) => Change::None,
            (Some(group), IS_INCLUDE | TO_INCLUDE) if sources == 0 => Change::Leave(group),
            (Some(group), IS_INCLUDE | TO_INCLUDE | IS_EXCLUDE | TO_EXCLUDE | ALLOW) => {
                Change::Join(group)
            }
            _ => Change::None,
        })
    }
}

/// The group that a frame is for, if a switch can learn its members: an IP group that is not always
/// flooded. `None` for frames with tags that are not of our VLANs.
#[inline]
pub(crate) fn group_of(frame: &Frame) -> Option<(Family, MacAddr)> {
    let bytes = frame.bytes();
    let dst = MacAddr(chunk(bytes, 0)?);
    let family = match dst.0 {
        // 224.0.0.0/24, and groups that share its Ethernet addresses.
        [0x01, 0x00, 0x5e, 0, 0, _] => return None,
        [0x01, 0x00, 0x5e, 0x00..=0x7f, ..] => Family::V4,
        // ff02::1 and the other well-known groups, likewise.
        [0x33, 0x33, 0, 0, 0, _] => return None,
        [0x33, 0x33, ..] => Family::V6,
        _ => return None,
    };
    let ethertype = chunk(bytes, ethertype_at(frame)).map(u16::from_be_bytes);
    let is_ip = match family {
        Family::V4 => ethertype == Some(ETHERTYPE_IPV4),
        Family::V6 => ethertype == Some(ETHERTYPE_IPV6),
    };
    is_ip.then_some((family, dst))
}

/// The multicast message in a frame.
pub(crate) fn read(frame: &Frame) -> Message<'_> {
    let bytes = frame.bytes();
    let at = behind_priorities(bytes, ethertype_at(frame));
    let l3 = bytes.get(at + 2..).unwrap_or_default();
    // Receivers do not check the sum of a frame that is marked as valid.
    let is_validated = frame.offload.checksum != Checksum::Unverified;
    let message = match chunk(bytes, at).map(u16::from_be_bytes) {
        Some(ETHERTYPE_IPV4) => read_v4(l3, is_validated),
        Some(ETHERTYPE_IPV6) => read_v6(l3, is_validated),
        _ => None,
    };
    message.unwrap_or(Message::None)
}

fn ethertype_at(frame: &Frame) -> usize {
    match frame.vlan {
        FrameVlan::Tagged(_) => 12 + VLAN_TAG_LEN,
        FrameVlan::None | FrameVlan::Untagged(_) | FrameVlan::Foreign => 12,
    }
}

/// Skips tags with VLAN 0, which receivers remove whether or not they support VLANs.
fn behind_priorities(bytes: &[u8], mut at: usize) -> usize {
    for _ in 0..VLAN_TAGS_MAX {
        let Some([e0, e1, high, low]) = chunk(bytes, at) else { break };
        let is_tag = matches!(u16::from_be_bytes([e0, e1]), TPID_CUSTOMER | TPID_SERVICE);
        if !is_tag || u16::from_be_bytes([high, low]) & 0x0fff != 0 {
            break;
        }
        at += VLAN_TAG_LEN;
    }
    at
}

fn read_v4(packet: &[u8], is_validated: bool) -> Option<Message<'_>> {
    let ip: [u8; 20] = chunk(packet, 0)?;
    let header_len = usize::from(ip[0] & 0x0f) * 4;
    if ip[0] >> 4 != 4 || header_len < ip.len() {
        return None;
    }
    let is_whole = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0;
    let message = packet.get(header_len..usize::from(u16::from_be_bytes([ip[2], ip[3]])))?;
    match ip[9] {
        PROTO_PIM | PROTO_IGMP if !is_whole => Some(Message::Hidden),
        PROTO_PIM => hello(message),
        PROTO_IGMP if is_validated || is_sum_good(Sum::of(message)) => {
            // RFC 4541, 2.1.1: a query without a source address does not indicate a router.
            read_igmp(message, ip[12..16] != [0; 4])
        }
        _ => None,
    }
}

fn read_igmp(message: &[u8], has_source: bool) -> Option<Message<'_>> {
    let [kind, code, _, _, a, b, c, d] = chunk(message, 0)?;
    let group = group_of_v4([a, b, c, d]);
    Some(match kind {
        IGMP_QUERY if [a, b, c, d] == [0; 4] => {
            let tenths = match code {
                0 => IGMPV1_RESPONSE_TENTHS,
                code if message.len() >= IGMPV3_QUERY_LEN => {
                    floating(u32::from(code), 4).unwrap_or(u32::from(code))
                }
                code => u32::from(code),
            };
            let response_seconds = tenths.div_ceil(10);
            Message::GeneralQuery { family: Family::V4, response_seconds, names_router: has_source }
        }
        IGMP_QUERY => Message::GroupQuery { names_router: has_source },
        IGMPV1_REPORT | IGMPV2_REPORT => Message::Join(group?),
        IGMPV2_LEAVE => Message::Leave(group?),
        IGMPV3_REPORT => records(Family::V4, message),
        _ => return None,
    })
}

fn read_v6(packet: &[u8], is_validated: bool) -> Option<Message<'_>> {
    let ip: [u8; 40] = chunk(packet, 0)?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let packet = packet.get(..40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])))?;
    let chain = walk(packet, ip.len(), ip[6]).ok()?;
    let message = packet.get(chain.at..)?;
    match (chain.protocol, chain.fragment) {
        // The first fragment was checked for the later ones.
        (_, Fragment::Later) => None,
        (PROTO_PIM, Fragment::First) => Some(Message::Hidden),
        (PROTO_ICMPV6, Fragment::First) => {
            let is_mld = matches!(message.first()?, &(MLD_QUERY..=MLD_DONE | MLDV2_REPORT));
            is_mld.then_some(Message::Hidden)
        }
        (PROTO_PIM, Fragment::None) => hello(message),
        (PROTO_ICMPV6, Fragment::None) => {
            let len = u16::try_from(message.len()).ok()?;
            let sum = Sum::of(&ip[8..40]).and_u16(len).and_u16(PROTO_ICMPV6.into());
            let is_link_local = ip[8] == 0xfe && ip[9] & 0xc0 == 0x80;
            let is_good = is_validated || is_sum_good(sum.and(Sum::of(message)));
            if is_good { read_mld(message, is_link_local) } else { None }
        }
        _ => None,
    }
}

/// `is_link_local`: whether it is from a link-local address.
fn read_mld(message: &[u8], is_link_local: bool) -> Option<Message<'_>> {
    let [kind] = chunk(message, 0)?;
    if kind == MLDV2_REPORT {
        return Some(records(Family::V6, message));
    }
    let [high, low] = chunk(message, 4)?;
    let address: [u8; 16] = chunk(message, 8)?;
    let group = group_of_v6(address);
    Some(match kind {
        MLD_QUERY if address == [0; 16] => {
            let code = u32::from(u16::from_be_bytes([high, low]));
            let millis = if message.len() >= MLDV2_QUERY_LEN { floating(code, 12) } else { None };
            let response_seconds = millis.unwrap_or(code).div_ceil(1000);
            Message::GeneralQuery {
                family: Family::V6,
                response_seconds,
                names_router: is_link_local,
            }
        }
        MLD_QUERY => Message::GroupQuery { names_router: is_link_local },
        MLD_REPORT => Message::Join(group?),
        MLD_DONE => Message::Leave(group?),
        _ => return None,
    })
}

fn records(family: Family, message: &[u8]) -> Message<'_> {
    let left = chunk(message, 6).map_or(0, u16::from_be_bytes);
    Message::Records(Records { family, left, bytes: message.get(8..).unwrap_or_default() })
}

/// PIM of version 2, type 0.
fn hello(message: &[u8]) -> Option<Message<'_>> {
    (message.first() == Some(&0x20)).then_some(Message::Hello)
}

/// Decodes a code with a 3-bit exponent and a mantissa of `mantissa_bits`, if it has that form (RFC
/// 3376, 4.1.1; RFC 3810, 5.1.3).
fn floating(code: u32, mantissa_bits: u32) -> Option<u32> {
    let is_floating = code >> (mantissa_bits + 3) != 0;
    let mantissa = (code & ((1 << mantissa_bits) - 1)) | 1 << mantissa_bits;
    let exponent = (code >> mantissa_bits) & 7;
    is_floating.then(|| mantissa << (exponent + 3))
}

fn is_sum_good(sum: Sum) -> bool {
    sum.checksum() == [0, 0]
}

/// The Ethernet address of a group, unless it is one that is always flooded (RFC 4541, 2.1.2 (2)).
fn group_of_v4([a, b, c, d]: [u8; 4]) -> Option<MacAddr> {
    let is_group = a & 0xf0 == 0xe0;
    let is_well_known = b & 0x7f == 0 && c == 0;
    (is_group && !is_well_known).then_some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
}

/// The Ethernet address of an IPv6 group whose scope exceeds one interface, unless it is one that
/// is always flooded (RFC 4541, 3).
fn group_of_v6(group: [u8; 16]) -> Option<MacAddr> {
    let [0xff, scope, .., a, b, c, d] = group else { return None };
    let is_well_known = a == 0 && b == 0 && c == 0;
    (scope & 0x0f > 1 && !is_well_known).then_some(MacAddr([0x33, 0x33, a, b, c, d]))
}

const PROTO_IGMP: u8 = 2;
const PROTO_PIM: u8 = 103;

const IGMP_QUERY: u8 = 0x11;
const IGMPV1_REPORT: u8 = 0x12;
const IGMPV2_REPORT: u8 = 0x16;
const IGMPV2_LEAVE: u8 = 0x17;
const IGMPV3_REPORT: u8 = 0x22;
const IGMPV3_QUERY_LEN: usize = 12;
/// The response time of a version 1 query (RFC 2236, 4).
const IGMPV1_RESPONSE_TENTHS: u32 = 100;

const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLDV2_REPORT: u8 = 143;
const MLDV2_QUERY_LEN: usize = 28;

// Kinds of records (RFC 3376, 4.2.12). Records of blocked sources change no group.
const IS_INCLUDE: u8 = 1;
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;
const ALLOW: u8 = 5;
