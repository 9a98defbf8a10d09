//! What a port may send, compiled for the data path.
//!
//! [`PortPolicy`] is compiled once from [`PortRules`] and then only read. For most frames, this
//! costs one comparison of addresses per run of frames with the same addresses, and a check of two
//! fields per frame; `inspect.rs` checks the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ringway_datapath::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, PROTO_UDP, chunk, macs,
};
use ringway_datapath::tagging::remove_tag;
use ringway_datapath::vlan::Tag;
use ringway_datapath::{
    DropReason, Frame, FrameVlan, IpNetwork, LockingMode, MacAddr, PortRules, Vid,
};

use crate::domain::Domain;

/// The checks of frames that enter by a port.
#[derive(Debug, Clone)]
pub struct PortPolicy {
    pub(crate) checks: Checks,
    sources: Sources,
    shares: Shares,
    /// A source that is bound to the port in the forwarding table, and so need not be learned.
    pub(crate) bound: MacAddr,
    /// Whether a source that is not learned is refused.
    is_strict: bool,
    pub(crate) is_router: bool,
    pub(crate) is_dhcp_server: bool,
    /// Allowed networks, as addresses and masks.
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
    vlan: PortVlan,
}

/// The VLANs of a port, as compiled by [`Switch::join`](crate::Switch::join).
#[derive(Debug, Clone, Default)]
pub enum PortVlan {
    /// None: frames are carried unchanged.
    #[default]
    None,
    /// Some.
    Some(Arc<PortVlans>),
}

/// The VLANs of a port that is in at least one.
#[derive(Debug)]
pub struct PortVlans {
    pub(crate) untagged: Option<Arc<Domain>>,
    /// By their numbers.
    pub(crate) tagged: Box<[Arc<Domain>]>,
}

impl PortVlans {
    fn tagged(&self, vid: Vid) -> Option<&Domain> {
        let found = self.tagged.binary_search_by_key(&vid, |domain| domain.vid);
        found.ok().map(|index| &*self.tagged[index])
    }

    /// Sets the VLAN of a frame that enters by this port.
    pub(crate) fn enter(&self, frame: &mut Frame) {
        let mut tag = Tag::of(frame.bytes());
        if tag == Tag::Priority {
            remove_tag(frame);
            // A second tag behind it would be taken for the frame's own.
            tag = match Tag::of(frame.bytes()) {
                Tag::None => Tag::None,
                _ => Tag::Other,
            };
        }
        frame.vlan = match tag {
            Tag::None => {
                let vid = self.untagged.as_ref().map(|domain| domain.vid);
                vid.map_or(FrameVlan::Foreign, FrameVlan::Untagged)
            }
            Tag::Vlan(vid) if self.tagged(vid).is_some() => FrameVlan::Tagged(vid),
            Tag::Vlan(_) | Tag::Priority | Tag::Other => FrameVlan::Foreign,
        };
    }
}

/// The Ethernet addresses that frames may come from.
#[derive(Debug, Clone)]
enum Sources {
    Any,
    One(MacAddr),
    /// In order.
    Listed(Box<[MacAddr]>),
}

/// The shared addresses that a port may take from others.
#[derive(Debug, Clone)]
enum Shares {
    None,
    /// In order.
    Listed(Box<[MacAddr]>),
    All,
}

/// Which checks frames undergo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checks {
    /// Not at all.
    Nothing,
    /// Messages that only routers and servers send are refused.
    Services,
    /// Messages that only routers and servers send are refused, and the claimed addresses are
    /// checked.
    Addresses,
    /// All frames are refused.
    Disabled,
}

/// Whether a vif's address is a static one in the forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// It has.
    Static,
    /// It is not: another port has the address, or there is no forwarding table.
    None,
}

impl PortPolicy {
    /// For a port that may send anything, such as an uplink.
    pub fn open() -> PortPolicy {
        PortPolicy {
            checks: Checks::Nothing,
            sources: Sources::Any,
            shares: Shares::None,
            bound: NO_ADDRESS,
            is_strict: false,
            is_router: true,
            is_dhcp_server: true,
            v4: Box::default(),
            v6: Box::default(),
            vlan: PortVlan::None,
        }
    }

    /// For an uplink: the other stations that share an address may be behind it.
    pub fn uplink() -> PortPolicy {
        PortPolicy { shares: Shares::All, ..PortPolicy::open() }
    }

    /// For a port that may send anything from these Ethernet addresses, and nothing from other
    /// addresses.
    pub fn of_addresses(addresses: impl IntoIterator<Item = MacAddr>) -> PortPolicy {
        let sources = Sources::Listed(in_order(addresses));
        PortPolicy { sources, is_strict: true, ..PortPolicy::open() }
    }

    /// The port may also take these addresses from others.
    #[must_use]
    pub fn sharing(self, addresses: impl IntoIterator<Item = MacAddr>) -> PortPolicy {
        PortPolicy { shares: Shares::Listed(in_order(addresses)), ..self }
    }

    /// The port is in these VLANs.
    #[must_use]
    pub fn in_vlans(self, vlan: PortVlan) -> PortPolicy {
        PortPolicy { vlan, ..self }
    }

    /// For a port that may send nothing.
    pub fn disabled() -> PortPolicy {
        PortPolicy { checks: Checks::Disabled, ..PortPolicy::open() }
    }

    /// For a vif. `mode` is the mode in effect (see [`PortRules::mode`]), `mac` the vif's own
    /// address. If `addresses_max` is more than one, the forwarding table must limit their number;
    /// otherwise the port has `mac` and those that its rules list.
    pub fn for_vif(
        rules: &PortRules,
        mode: Option<LockingMode>,
        addresses_max: u32,
        mac: Option<MacAddr>,
        binding: Binding,
    ) -> PortPolicy {
        let checks = match mode {
            None => Checks::Services,
            Some(LockingMode::Unlocked) => Checks::Nothing,
            Some(LockingMode::Locked) => Checks::Addresses,
            Some(LockingMode::Disabled) => Checks::Disabled,
        };
        let bound = mac.filter(|_| binding == Binding::Static);
        let others = || rules.allowed_macs.iter().chain(&rules.shared_macs).copied();
        let sources = match mac.filter(|_| addresses_max <= 1) {
            None => Sources::Any,
            Some(only) if others().next().is_none() => Sources::One(only),
            Some(own) => Sources::Listed(in_order(others().chain([own]))),
        };
        PortPolicy {
            checks,
            sources,
            shares: Shares::Listed(in_order(rules.shared_macs.iter().copied())),
            bound: bound.unwrap_or(NO_ADDRESS),
            is_strict: true,
            is_router: rules.is_router,
            is_dhcp_server: rules.is_dhcp_server,
            v4: rules.allowed.iter().filter_map(v4_of).collect(),
            v6: rules.allowed.iter().filter_map(v6_of).collect(),
            vlan: PortVlan::None,
        }
    }

    /// This policy without checks of what frames contain, for those that a host makes itself.
    #[must_use]
    pub fn unchecked(&self) -> PortPolicy {
        let is_disabled = self.checks == Checks::Disabled;
        let checks = if is_disabled { Checks::Disabled } else { Checks::Nothing };
        PortPolicy { checks, ..self.clone() }
    }

    /// Why a frame of a patched port is refused; `None` if it is accepted.
    #[inline]
    pub fn refuse_patched(&self, frame: &[u8]) -> Option<DropReason> {
        if self.is_open() {
            return None;
        }
        let Some((_, src)) = macs(frame) else { return Some(DropReason::Malformed) };
        self.refuse_source(src).or_else(|| self.refuse(frame))
    }

    /// Whether a patched port may send anything.
    pub fn is_open(&self) -> bool {
        self.checks == Checks::Nothing && matches!(self.sources, Sources::Any)
    }

    /// Why a source address is refused, without regard to other ports.
    #[inline]
    pub(crate) fn refuse_source(&self, src: MacAddr) -> Option<DropReason> {
        let is_other = match &self.sources {
            Sources::Any => false,
            Sources::One(only) => *only != src,
            Sources::Listed(listed) => listed.binary_search(&src).is_err(),
        };
        (is_other || src.is_multicast() || src == NO_ADDRESS).then_some(DropReason::BadSource)
    }

    /// Whether the port may take a shared address from another.
    pub fn may_take(&self, src: MacAddr) -> bool {
        match &self.shares {
            Shares::None => false,
            Shares::Listed(listed) => listed.binary_search(&src).is_ok(),
            Shares::All => true,
        }
    }

    /// Whether a source that could not be learned is refused.
    #[inline]
    pub(crate) fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Why a frame with an Ethernet header is refused for its content; `None` if it is accepted.
    #[inline]
    pub fn refuse(&self, frame: &[u8]) -> Option<DropReason> {
        match self.checks {
            Checks::Nothing => None,
            _ if self.is_plain(frame) => None,
            _ => self.inspect(frame).err(),
        }
    }

    /// Whether a frame is accepted whatever follows its [own bytes](Frame::bytes), so that its end
    /// may stay where it is: a TCP segment or UDP datagram to one station, in no VLAN, whose
    /// headers are among these bytes and pass every check.
    pub fn accepts_head_of(&self, frame: &Frame) -> bool {
        let head = frame.bytes();
        let is_plain = matches!(self.checks, Checks::Nothing) || self.is_plain(head);
        let is_for_one = head.first().is_some_and(|byte| byte & 1 == 0);
        let payload = || {
            let headers = frame.headers()?;
            let is_plain = matches!(headers.protocol, PROTO_TCP | PROTO_UDP);
            (is_plain && headers.transport.is_some()).then_some(headers.payload)
        };
        is_plain
            && is_for_one
            && self.vlans().is_none()
            && payload().is_some_and(|payload| payload <= head.len())
    }

    /// [`refuse`](PortPolicy::refuse) without its short cut: for tests of the short cut.
    #[doc(hidden)]
    pub fn refuse_by_inspection(&self, frame: &[u8]) -> Option<DropReason> {
        match self.checks {
            Checks::Nothing => None,
            _ => self.inspect(frame).err(),
        }
    }

    /// Whether frames belong to VLANs.
    #[inline]
    pub(crate) fn vlans(&self) -> Option<&PortVlans> {
        match &self.vlan {
            PortVlan::None => None,
            PortVlan::Some(vlans) => Some(vlans),
        }
    }

    /// The VLAN of a frame that entered by this port.
    #[inline]
    pub(crate) fn domain(&self, vlan: FrameVlan) -> Option<&Domain> {
        match (self.vlans()?, vlan) {
            (vlans, FrameVlan::Untagged(_)) => vlans.untagged.as_deref(),
            (vlans, FrameVlan::Tagged(vid)) => vlans.tagged(vid),
            (_, FrameVlan::None | FrameVlan::Foreign) => None,
        }
    }

    /// Whether a frame is of a common kind that would pass [`inspect`](PortPolicy::inspect): TCP or
    /// UDP over IP, without tags, options or extensions, from an allowed address, and not DHCP; or
    /// ARP.
    #[inline]
    fn is_plain(&self, frame: &[u8]) -> bool {
        let Some(start) = frame.first_chunk() else { return false };
        match u16::from_be_bytes([start[12], start[13]]) {
            ETHERTYPE_IPV4 => is_plain_v4(start) && self.is_from_own_v4(start),
            ETHERTYPE_IPV6 => self.is_plain_v6(frame),
            // The addresses in ARP matter only if allowed addresses are listed.
            ETHERTYPE_ARP => self.checks == Checks::Services,
            _ => false,
        }
    }

    #[inline]
    fn is_from_own_v4(&self, start: &[u8; PORTS_END_V4]) -> bool {
        let source = || u32::from_be_bytes([start[26], start[27], start[28], start[29]]);
        self.checks == Checks::Services
            || (self.checks == Checks::Addresses && self.allows_v4(source()))
    }

    #[inline]
    fn is_plain_v6(&self, frame: &[u8]) -> bool {
        let Some(start) = frame.first_chunk::<PORTS_END_V6>() else { return false };
        let is_plain = start[14] >> 4 == 6
            && match start[20] {
                PROTO_TCP => true,
                PROTO_UDP => {
                    // The packet may end before its ports, however long the frame is.
                    let has_ports = !matches!([start[18], start[19]], [0, 1..=3]);
                    let from = u16::from_be_bytes([start[54], start[55]]);
                    let to = u16::from_be_bytes([start[56], start[57]]);
                    has_ports && from != DHCPV6_SERVER && to != DHCPV6_CLIENT
                }
                _ => false,
            };
        is_plain
            && match self.checks {
                Checks::Services => true,
                Checks::Addresses => {
                    let source = chunk(start, 22).map(u128::from_be_bytes);
                    source.is_some_and(|source| self.allows_v6(source))
                }
                Checks::Nothing | Checks::Disabled => false,
            }
    }

    #[inline]
    pub(crate) fn allows_v4(&self, address: u32) -> bool {
        self.v4.iter().any(|(network, mask)| address & mask == *network)
    }

    #[inline]
    pub(crate) fn allows_v6(&self, address: u128) -> bool {
        self.v6.iter().any(|(network, mask)| address & mask == *network)
    }
}

fn in_order(addresses: impl IntoIterator<Item = MacAddr>) -> Box<[MacAddr]> {
    let mut listed: Vec<MacAddr> = addresses.into_iter().collect();
    listed.sort_unstable();
    listed.into()
}

/// Whether an IPv4 packet has no options, and is TCP, or UDP that is not DHCP.
#[inline]
fn is_plain_v4(start: &[u8; PORTS_END_V4]) -> bool {
    start[14] == 0x45
        && match start[23] {
            PROTO_TCP => true,
            PROTO_UDP => {
                // Fragments other than the first have no ports.
                let has_ports = u16::from_be_bytes([start[20], start[21]]) & 0x1fff == 0;
                let from = u16::from_be_bytes([start[34], start[35]]);
                let to = u16::from_be_bytes([start[36], start[37]]);
                has_ports && from != DHCP_SERVER && to != DHCP_CLIENT
            }
            _ => false,
        }
}

fn v4_of(network: &IpNetwork) -> Option<(u32, u32)> {
    let IpAddr::V4(address) = network.address() else { return None };
    let mask = u32::MAX.checked_shl(32 - u32::from(network.prefix_len())).unwrap_or(0);
    Some((Ipv4Addr::to_bits(address) & mask, mask))
}

fn v6_of(network: &IpNetwork) -> Option<(u128, u128)> {
    let IpAddr::V6(address) = network.address() else { return None };
    let mask = u128::MAX.checked_shl(128 - u32::from(network.prefix_len())).unwrap_or(0);
    Some((Ipv6Addr::to_bits(address) & mask, mask))
}

/// Offset of the end of the ports in a frame without tags, options or extensions.
const PORTS_END_V4: usize = 38;
const PORTS_END_V6: usize = 58;

pub(crate) const DHCP_SERVER: u16 = 67;
pub(crate) const DHCP_CLIENT: u16 = 68;
pub(crate) const DHCPV6_CLIENT: u16 = 546;
pub(crate) const DHCPV6_SERVER: u16 = 547;

/// The address of all zeros, which no station has.
pub(crate) const NO_ADDRESS: MacAddr = MacAddr([0; 6]);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use ringway_datapath::{End, FramePool, PoolBudget, Receipts};

    use super::*;

    const HEAD_LEN: usize = 256;

    /// A TCP segment over IPv4 from 10.0.0.1 to one station, of which `head_len` bytes precede the
    /// end.
    fn segment(head_len: usize, change: impl FnOnce(&mut [u8])) -> Frame {
        let len: u16 = 20_000;
        let mut frame = FramePool::new(PoolBudget::new(1 << 20)).take(len.into()).expect("memory");
        let bytes = frame.bytes_mut();
        bytes.fill(0);
        bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        bytes[12..14].copy_from_slice(&[0x08, 0]);
        bytes[14] = 0x45;
        bytes[16..18].copy_from_slice(&(len - 14).to_be_bytes());
        bytes[23] = PROTO_TCP;
        bytes[26..30].copy_from_slice(&[10, 0, 0, 1]);
        bytes[46] = 0x50;
        change(bytes);
        let end = bytes[head_len..].to_vec();
        let mut pages = End::kept(Arc::new(end), Receipts::new(1, Waker::noop()).issue(0));
        assert!(pages.push(0, usize::from(len) - head_len));
        frame.set_len(head_len);
        frame.set_end(pages);
        frame
    }

    fn vif(mode: Option<LockingMode>) -> PortPolicy {
        let allowed = ["10.0.0.1", "fd00::/16"].map(|it| it.parse().expect("an address"));
        let rules = PortRules { allowed: allowed.to_vec(), ..PortRules::default() };
        PortPolicy::for_vif(&rules, mode, 1, None, Binding::None)
    }

    /// A segment over IPv6 with this source.
    fn over_v6(source: [u8; 2]) -> impl FnOnce(&mut [u8]) {
        move |bytes| {
            bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
            bytes[14..].fill(0);
            bytes[14] = 0x60;
            bytes[18..20].copy_from_slice(&(20_000_u16 - 54).to_be_bytes());
            bytes[20] = PROTO_TCP;
            bytes[22..24].copy_from_slice(&source);
            bytes[66] = 0x50;
        }
    }

    #[test]
    fn a_segment_to_one_station_is_accepted_by_its_head() {
        for policy in [PortPolicy::open(), vif(None), vif(Some(LockingMode::Locked))] {
            assert!(policy.accepts_head_of(&segment(HEAD_LEN, |_| ())));
            assert!(policy.accepts_head_of(&segment(HEAD_LEN, over_v6([0xfd, 0]))));
            // The end may begin right behind the headers.
            assert!(policy.accepts_head_of(&segment(54, |_| ())));
        }
    }

    /// A datagram with these ports, over IPv4 or IPv6.
    fn datagram(is_v6: bool, ports: [u16; 2]) -> Frame {
        segment(HEAD_LEN, |bytes| {
            let at = if is_v6 { 54 } else { 34 };
            if is_v6 {
                over_v6([0xfd, 0])(bytes);
                bytes[20] = PROTO_UDP;
            } else {
                bytes[23] = PROTO_UDP;
            }
            bytes[at..at + 2].copy_from_slice(&ports[0].to_be_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&ports[1].to_be_bytes());
            bytes[at + 4..at + 6].copy_from_slice(&19_000_u16.to_be_bytes());
        })
    }

    #[test]
    fn a_datagram_is_accepted_by_its_head_unless_it_is_dhcp() {
        for policy in [PortPolicy::open(), vif(None), vif(Some(LockingMode::Locked))] {
            assert!(policy.accepts_head_of(&datagram(false, [9, 9])));
            assert!(policy.accepts_head_of(&datagram(true, [9, 9])));
        }
        for policy in [vif(None), vif(Some(LockingMode::Locked))] {
            assert!(!policy.accepts_head_of(&datagram(false, [DHCP_SERVER, 9])));
            assert!(!policy.accepts_head_of(&datagram(false, [9, DHCP_CLIENT])));
            assert!(!policy.accepts_head_of(&datagram(true, [DHCPV6_SERVER, 9])));
            assert!(!policy.accepts_head_of(&datagram(true, [9, DHCPV6_CLIENT])));
        }
    }

    #[test]
    fn a_frame_that_more_than_its_head_decides_about_is_not() {
        type Change = fn(&mut [u8]);
        let refusals: [(&str, usize, Change); 7] = [
            ("a group, whose messages are read", HEAD_LEN, |bytes| bytes[0] |= 1),
            ("a fragment: it has no TCP header", HEAD_LEN, |bytes| bytes[21] = 1),
            ("a tag before the IP header", HEAD_LEN, |bytes| {
                bytes[12..14].copy_from_slice(&[0x81, 0]);
            }),
            ("no IP", HEAD_LEN, |bytes| bytes[12..14].copy_from_slice(&[0x88, 0xb5])),
            ("headers that end in the body", 90, |bytes| bytes[46] = 0xf0),
            ("a TCP header that begins in the body", 30, |_| ()),
            ("not even addresses", 5, |_| ()),
        ];
        for (why, head_len, change) in refusals {
            for policy in [PortPolicy::open(), vif(None), vif(Some(LockingMode::Locked))] {
                assert!(!policy.accepts_head_of(&segment(head_len, change)), "{why}");
            }
        }
    }

    #[test]
    fn a_head_is_accepted_only_as_the_whole_frame_would_be() {
        let locked = vif(Some(LockingMode::Locked));
        let from_another = |bytes: &mut [u8]| bytes[29] = 2;
        let with_options = |bytes: &mut [u8]| bytes[14] = 0x46;
        assert!(!locked.accepts_head_of(&segment(HEAD_LEN, from_another)));
        assert!(vif(None).accepts_head_of(&segment(HEAD_LEN, from_another)));
        assert!(!locked.accepts_head_of(&segment(HEAD_LEN, over_v6([0xfe, 0]))));
        // Options are inspected in whole frames; without checks, nothing is inspected.
        assert!(!vif(None).accepts_head_of(&segment(HEAD_LEN, with_options)));
        assert!(PortPolicy::open().accepts_head_of(&segment(HEAD_LEN, |bytes| {
            bytes[14] = 0x46;
            bytes[50] = 0x50;
        })));
        assert!(!PortPolicy::disabled().accepts_head_of(&segment(HEAD_LEN, |_| ())));
        // A tag may have to be inserted.
        let vlans = PortVlans { untagged: None, tagged: Box::default() };
        let in_vlan = PortPolicy::open().in_vlans(PortVlan::Some(Arc::new(vlans)));
        assert!(!in_vlan.accepts_head_of(&segment(HEAD_LEN, |_| ())));
    }

    #[test]
    fn plain_frames_would_pass_the_full_inspection() {
        let allowed = ["10.0.0.1", "fd00::/16"].map(|it| it.parse().expect("an address"));
        let rules = PortRules { allowed: allowed.to_vec(), ..PortRules::default() };
        let policies = [None, Some(LockingMode::Locked)]
            .map(|mode| PortPolicy::for_vif(&rules, mode, 1, None, Binding::None));
        let mut random = fastrand::Rng::with_seed(0x5eed_0052);
        let mut plain = 0;
        let rounds = if cfg!(miri) { 2_000 } else { 400_000 };
        for _ in 0..rounds {
            let mut frame = [0; 64];
            random.fill(&mut frame);
            let is_v4 = random.bool();
            frame[12..14].copy_from_slice(if is_v4 { &[0x08, 0] } else { &[0x86, 0xdd] });
            frame[14] = if is_v4 { [0x45, 0x46, 0x45][random.usize(..3)] } else { 0x60 };
            frame[if is_v4 { 23 } else { 20 }] = [6, 17, 17, 58][random.usize(..4)];
            if is_v4 && random.bool() {
                frame[20..22].fill(0);
                frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
            } else if !is_v4 {
                frame[22..24].copy_from_slice(&[0xfd, 0]);
            }
            let ports = [67, 68, 546, 547, 53];
            let at = if is_v4 { 34 } else { 54 };
            for at in [at, at + 2] {
                let port: u16 = ports[random.usize(..5)];
                frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
            }
            if !is_v4 && random.bool() {
                frame[18..20].copy_from_slice(&[0, random.u8(..6)]);
            }
            let frame = &frame[..random.usize(14..=64)];
            for policy in &policies {
                if policy.is_plain(frame) {
                    plain += 1;
                }
                let closely = policy.refuse_by_inspection(frame);
                assert_eq!(policy.refuse(frame), closely, "{frame:02x?}");
            }
        }
        assert!(plain > rounds / 400, "{plain}");
    }
}
