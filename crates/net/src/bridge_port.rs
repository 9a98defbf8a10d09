//! How a bridge treats one of its ports: flags, priority, cost and VLANs.
//!
//! A link that leaves its bridge loses them, also if it leaves because the bridge was deleted.

use std::collections::BTreeMap;
use std::io;

use netlink_packet_core::{NLM_F_DUMP, Nla as _};
use netlink_packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask, LinkMessage,
    LinkProtoInfoBridge,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::{Netlink, explain};

/// Attributes that an administrator sets (`IFLA_BRPORT_*`): from the priority to
/// `proxy_arp`, `proxy_arp_wifi`, from `mcast_router` to `isolated`, `mcast_eht_hosts_limit`,
/// `locked`, `mab`, `mcast_max_groups` and `neigh_vlan_suppress`. The others are states and timers.
const SETTABLE: [std::ops::RangeInclusive<u16>; 6] =
    [2..=10, 12..=12, 25..=33, 37..=37, 39..=40, 42..=43];

/// The settings of a port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortSettings {
    flags: Vec<LinkProtoInfoBridge>,
    vlans: Vec<BridgeVlanInfo>,
}

impl PortSettings {
    fn of(message: LinkMessage) -> PortSettings {
        let mut settings = PortSettings::default();
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::ProtoInfoBridge(flags) => settings.flags.extend(
                    flags
                        .into_iter()
                        .filter(|flag| SETTABLE.iter().any(|kinds| kinds.contains(&flag.kind()))),
                ),
                LinkAttribute::AfSpecBridge(parts) => {
                    settings.vlans.extend(parts.into_iter().filter_map(|part| match part {
                        AfSpecBridge::VlanInfo(vlan) => Some(vlan),
                        _ => None,
                    }));
                }
                _ => {}
            }
        }
        settings
    }
}

impl Netlink {
    /// The settings of all ports of bridges, by the index of the port's link.
    ///
    /// # Errors
    /// What the kernel reports; `Interrupted` if they changed meanwhile.
    pub fn bridge_ports(&mut self) -> io::Result<BTreeMap<u32, PortSettings>> {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]));
        let replies = self
            .socket
            .request(RouteNetlinkMessage::GetLink(message), NLM_F_DUMP)
            .map_err(|error| explain(&error, "list ports of bridges"))?;
        let port = |message| match message {
            RouteNetlinkMessage::NewLink(message) => {
                Some((message.header.index, PortSettings::of(message)))
            }
            _ => None,
        };
        Ok(replies.into_iter().filter_map(port).collect())
    }

    /// Gives a port of a bridge these settings. It is then in these VLANs and in no others.
    ///
    /// # Errors
    /// `NotFound` if no link has that name, otherwise the kernel's error; some settings may then
    /// apply.
    pub fn set_bridge_port(&mut self, name: &str, settings: &PortSettings) -> io::Result<()> {
        let index = self.link(name)?.index;
        let now = self.bridge_ports()?.remove(&index).unwrap_or_default();
        let is_kept =
            |vlan: &BridgeVlanInfo| settings.vlans.iter().any(|kept| kept.vid == vlan.vid);
        let left = now.vlans.into_iter().filter(|vlan| !is_kept(vlan)).map(|vlan| vlan.vid);
        let left = left.map(|vid| BridgeVlanInfo { vid, flags: BridgeVlanInfoFlags::empty() });
        let left: Vec<BridgeVlanInfo> = left.collect();
        let message = |flags: &[LinkProtoInfoBridge], vlans: &[BridgeVlanInfo]| {
            let mut message = LinkMessage::default();
            message.header.interface_family = AddressFamily::Bridge;
            message.header.index = index;
            if !flags.is_empty() {
                message.attributes.push(LinkAttribute::ProtoInfoBridge(flags.to_vec()));
            }
            if !vlans.is_empty() {
                let vlans = vlans.iter().copied().map(AfSpecBridge::VlanInfo).collect();
                message.attributes.push(LinkAttribute::AfSpecBridge(vlans));
            }
            message
        };
        let error = |error: io::Error| explain(&error, format_args!("link {name}: set port"));
        if !left.is_empty() {
            let message = RouteNetlinkMessage::DelLink(message(&[], &left));
            self.change(message, 0).map_err(error)?;
        }
        let message = message(&settings.flags, &settings.vlans);
        if message.attributes.is_empty() {
            return Ok(());
        }
        self.change(RouteNetlinkMessage::SetLink(message), 0).map_err(error)
    }
}
