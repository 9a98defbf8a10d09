//! A vif of a guest, or of a virtual machine.

use std::net::IpAddr;

use ringway_datapath::{IpNetwork, LockingMode, MacAddr, Mirrored, MulticastRouter, VlanRules};
use toml::Spanned;

use super::{Source, start};
use crate::limits::Limited;
use crate::section::VifSection;
use crate::value::{Cidr, Mac, Network, Within};
use crate::{Bridge, GuestVif, Offloads};

impl Source<'_> {
    /// A vif in a section of this name, with a number for its guest and itself.
    pub(super) fn vif(
        &self,
        whole: &Spanned<Limited<VifSection>>,
        (of, guest, handle): (&str, u16, u8),
        bridges: Option<&[Bridge]>,
    ) -> GuestVif {
        let section = whole.get_ref();
        // A bridge whose name could not be read may be the one.
        let bridges = bridges.filter(|_| !self.missing.has_any(&["name", "bridge"]));
        // A virtio vif may be on any bridge of the host.
        if let (Some(bridge), Some(bridges)) = (&section.bridge, bridges) {
            if !bridges.iter().any(|known| known.name == *bridge.get_ref()) {
                let known: Vec<String> =
                    bridges.iter().map(|bridge| format!("`{}`", bridge.name)).collect();
                let expected = match known.is_empty() {
                    true => "expected one that is described, or no `bridge`".to_owned(),
                    false => format!("expected one of {}", known.join(", ")),
                };
                let message = format!(
                    "{of}.bridge: there is no [[bridge]] `{}`: {expected}",
                    bridge.get_ref()
                );
                self.fault_at(bridge, &message);
            }
        }
        let addresses: Vec<Cidr> =
            section.addresses.iter().map(|address| *address.get_ref()).collect();
        if let Some(gateway) = &section.gateway {
            let is_near = |cidr: &Cidr| is_on_link(*cidr, *gateway.get_ref());
            let is_known = !self.missing.has(start(whole), "addresses") && of == "guest.vif";
            if is_known && !addresses.iter().any(is_near) {
                let message = format!(
                    "{of}.gateway: `{}` is in none of the vif's networks: expected an \
                     address in a network of the vif's own addresses",
                    gateway.get_ref()
                );
                self.fault_at(gateway, &message);
            }
        }
        let allowed_ips = self.allowed_ips(section, of);
        let on_switch_only = (section.vlan.as_ref().map(Spanned::span))
            .or(section.trunk.first().map(Spanned::span))
            .or(section.private.as_ref().filter(|it| *it.get_ref()).map(Spanned::span))
            .or(section.multicast_router.as_ref().map(Spanned::span))
            .or(section.link_local_to.as_ref().map(Spanned::span))
            .or(section.mirror.first().map(Spanned::span));
        if let (Some(at), Some(_)) = (on_switch_only, &section.bridge) {
            let message = format!(
                "{of}.vlan, trunk, private, multicast-router, link-local-to, mirror: only for vifs \
                 on the switch; remove them or `bridge`"
            );
            self.fault(Some(at.start), &message);
        }
        if let Some(one_more) = section.trunk.get(VlanRules::TAGGED_MAX) {
            let message = format!("{of}.trunk: expected at most {}", VlanRules::TAGGED_MAX);
            self.fault_at(one_more, &message);
        }
        if let Some(one_more) = section.mirror.get(Mirrored::LIST_MAX) {
            let message = format!("{of}.mirror: expected at most {}", Mirrored::LIST_MAX);
            self.fault_at(one_more, &message);
        }
        for (key, macs) in
            [("allowed-macs", &section.allowed_macs), ("shared-macs", &section.shared_macs)]
        {
            if let Some(one_more) = macs.get(MacAddr::LIST_MAX) {
                let message = format!("{of}.{key}: expected at most {}", MacAddr::LIST_MAX);
                self.fault_at(one_more, &message);
            }
        }
        let [high, low] = guest.to_be_bytes();
        // The prefix that is assigned to Xen; the rest distinguishes guests and vifs.
        let mac = Mac(MacAddr([0x00, 0x16, 0x3e, high | 0x40, low, handle]));
        GuestVif {
            mac: section.mac.as_ref().map_or(mac, |mac| *mac.get_ref()),
            tenant: section.tenant.as_ref().map(|it| it.get_ref().clone()),
            addresses,
            gateway: section.gateway.as_ref().map(|gateway| *gateway.get_ref()),
            mtu: section.mtu.and_then(Within::get),
            queues: section.queues.and_then(Within::get),
            bridge: section.bridge.as_ref().map(|bridge| bridge.get_ref().clone()),
            max_queues: section.max_queues.as_ref().and_then(|it| it.get_ref().get()),
            max_unanswered: section.max_unanswered.as_ref().and_then(|it| it.get_ref().get()),
            offloads: offloads(section.sg, section.csum, section.gso),
            limits: section.limits,
            locking_mode: section.locking_mode,
            allowed_ips,
            addresses_max: section.addresses_per_vif.and_then(Within::get),
            allowed_macs: section.allowed_macs.iter().map(|mac| *mac.get_ref()).collect(),
            shared_macs: section.shared_macs.iter().map(|mac| *mac.get_ref()).collect(),
            is_router: section.router,
            is_dhcp_server: section.dhcp_server,
            vlan: section.vlan.as_ref().and_then(|vlan| vlan.get_ref().get()),
            trunk: section.trunk.iter().filter_map(|vlan| vlan.get_ref().get()).collect(),
            is_private: section.private.as_ref().is_some_and(|it| *it.get_ref()),
            link_local_to: section.link_local_to.as_ref().map(|it| it.get_ref().clone()),
            mirror: section.mirror.iter().map(|it| it.get_ref().clone()).collect(),
            multicast_router: section
                .multicast_router
                .as_ref()
                .map_or_else(MulticastRouter::default, |it| it.get_ref().0),
        }
    }

    /// The listed addresses, or those assigned to the guest if it is locked to them.
    fn allowed_ips(&self, section: &VifSection, of: &str) -> Vec<Network> {
        let Some(listed) = &section.allowed_ips else {
            let is_locked = section.locking_mode.is_some_and(|it| it.0 == LockingMode::Locked);
            let own = section.addresses.iter().filter(|_| is_locked);
            return own.map(|own| Network(IpNetwork::host(own.get_ref().address))).collect();
        };
        if listed.get_ref().len() > IpNetwork::LIST_MAX {
            let message = format!("{of}.allowed-ips: expected at most {}", IpNetwork::LIST_MAX);
            self.fault_at(listed, &message);
        }
        listed.get_ref().clone()
    }
}

pub(super) fn offloads(sg: Option<bool>, csum: Option<bool>, gso: Option<bool>) -> Offloads {
    Offloads {
        sg: sg.unwrap_or(Offloads::ALL.sg),
        csum: csum.unwrap_or(Offloads::ALL.csum),
        gso: gso.unwrap_or(Offloads::ALL.gso),
    }
}

pub(super) fn is_on_link(network: Cidr, other: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
        IpAddr::V6(address) => (address.to_bits(), false),
    };
    let ((one, one_is_v4), (two, two_is_v4)) = (bits(network.address), bits(other));
    let shift = 128_u32.saturating_sub(u32::from(network.prefix_len));
    one_is_v4 == two_is_v4 && (one ^ two).checked_shr(shift).unwrap_or(0) == 0
}
