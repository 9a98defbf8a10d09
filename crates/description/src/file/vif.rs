//! A vif of a guest, of a virtual machine, or of a network namespace.

use std::net::IpAddr;
use std::ops::Range;

use ringway_datapath::{IpNetwork, LockingMode, MacAddr, Mirrored, MulticastRouter, VlanRules};
use ringway_ovs::Bind;
use toml::Spanned;

use super::{Source, start};
use crate::limits::Limited;
use crate::section::VifSection;
use crate::value::{Cidr, Mac, Network, Within};
use crate::{Bridge, BridgeName, GuestVif, Offloads};

impl Source<'_> {
    /// A vif in a section of this name, with a number for its guest and itself.
    pub(super) fn vif(
        &self,
        whole: &Spanned<Limited<VifSection>>,
        (of, guest, handle): (&str, u16, u8),
        bridges: Option<&[Bridge]>,
    ) -> GuestVif {
        let section = whole.get_ref();
        if let Some(bridges) = bridges {
            self.check_bridge(section, of, bridges);
        }
        self.check_gateway(whole, of);
        self.check_places(section, of);
        self.check_lengths(section, of);
        let [high, low] = guest.to_be_bytes();
        // The prefix that is assigned to Xen; the rest distinguishes guests and vifs.
        let mac = Mac(MacAddr([0x00, 0x16, 0x3e, high | 0x40, low, handle]));
        GuestVif {
            mac: section.mac.as_ref().map_or(mac, |mac| *mac.get_ref()),
            tenant: section.tenant.as_ref().map(|it| it.get_ref().clone()),
            addresses: section.addresses.iter().map(|address| *address.get_ref()).collect(),
            gateway: section.gateway.as_ref().map(|gateway| *gateway.get_ref()),
            mtu: section.mtu.and_then(Within::get),
            queues: section.queues.and_then(Within::get),
            bridge: section.bridge.as_ref().map(|bridge| bridge.get_ref().clone()),
            iface_id: None,
            bind: Bind::default(),
            max_queues: section.max_queues.as_ref().and_then(|it| it.get_ref().get()),
            max_unanswered: section.max_unanswered.as_ref().and_then(|it| it.get_ref().get()),
            offloads: offloads(section.sg, section.csum, section.gso),
            staging: section.staging.as_ref().is_some_and(|it| *it.get_ref()),
            gro: section.gro.as_ref().is_none_or(|it| *it.get_ref()),
            limits: section.limits,
            locking_mode: section.locking_mode,
            allowed_ips: self.allowed_ips(section, of),
            addresses_max: section.addresses_per_vif.and_then(Within::get),
            allowed_macs: section.allowed_macs.iter().map(|mac| *mac.get_ref()).collect(),
            shared_macs: section.shared_macs.iter().map(|mac| *mac.get_ref()).collect(),
            is_router: section.router,
            is_dhcp_server: section.dhcp_server,
            is_unannounced: section.announce.as_ref().is_some_and(|it| !*it.get_ref()),
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

    /// Refuses those of these keys that a section of this name has, with what is said of each.
    pub(super) fn refuse(
        &self,
        section: &VifSection,
        of: &str,
        keys: &[&str],
        reason: impl Fn(&str) -> &'static str,
    ) {
        for &key in keys {
            if let Some(at) = section.place_of(key) {
                self.fault(Some(at), &format!("{of}.{key}: {}", reason(key)));
            }
        }
    }

    /// Checks that the vif's bridge is described, where the host has no others.
    fn check_bridge(&self, section: &VifSection, of: &str, bridges: &[Bridge]) {
        // A bridge whose name could not be read may be the one.
        let is_known = |name: &BridgeName| bridges.iter().any(|known| known.name.0 == name.0);
        let Some(bridge) = section.bridge.as_ref().filter(|it| !is_known(it.get_ref())) else {
            return;
        };
        if self.missing.has_any(&["name", "bridge"]) {
            return;
        }
        let known: Vec<String> =
            bridges.iter().map(|bridge| format!("`{}`", bridge.name)).collect();
        let expected = match known.is_empty() {
            true => "expected one that is described, or no `bridge`".to_owned(),
            false => format!("expected one of {}", known.join(", ")),
        };
        let message = format!(
            "{of}.bridge: there is no [[bridge]] `{}`, and `network` is private: {expected}",
            bridge.get_ref()
        );
        self.fault_at(bridge, &message);
    }

    /// Checks that a guest reaches its gateway.
    fn check_gateway(&self, whole: &Spanned<Limited<VifSection>>, of: &str) {
        let section = whole.get_ref();
        let Some(gateway) = section.gateway.as_ref().filter(|_| of == "guest.vif") else { return };
        let is_near = |cidr: &Spanned<Cidr>| is_on_link(*cidr.get_ref(), *gateway.get_ref());
        if !self.missing.has(start(whole), "addresses") && !section.addresses.iter().any(is_near) {
            let message = format!(
                "{of}.gateway: `{}` is in none of the vif's networks: expected an address in a \
                 network of the vif's own addresses",
                gateway.get_ref()
            );
            self.fault_at(gateway, &message);
        }
    }

    /// Checks that only a vif on the switch has what the switch does.
    fn check_places(&self, section: &VifSection, of: &str) {
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
    }

    /// Checks the lengths of lists.
    fn check_lengths(&self, section: &VifSection, of: &str) {
        let check = |key: &str, one_more: Option<Range<usize>>, max: usize| {
            if let Some(at) = one_more {
                self.fault(Some(at.start), &format!("{of}.{key}: expected at most {max}"));
            }
        };
        let (trunk, mirror) = (VlanRules::TAGGED_MAX, Mirrored::LIST_MAX);
        check("trunk", section.trunk.get(trunk).map(Spanned::span), trunk);
        check("mirror", section.mirror.get(mirror).map(Spanned::span), mirror);
        for (key, macs) in
            [("allowed-macs", &section.allowed_macs), ("shared-macs", &section.shared_macs)]
        {
            check(key, macs.get(MacAddr::LIST_MAX).map(Spanned::span), MacAddr::LIST_MAX);
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
