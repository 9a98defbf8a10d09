//! Parses a description from TOML. Every error names file, line and key, and what was expected.

mod explain;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ringway_datapath::{IpNetwork, LockingMode, MacAddr, Mirrored, MulticastRouter, VlanRules};
use toml::Spanned;

use crate::section::{
    FileSection, GuestSection, ONLY_OF_GUEST, UplinkSection, VifSection, per_second, storm,
};
use crate::value::{Cidr, FeatureText, InterfaceName, Mac, Network, Within};
use crate::{
    Bridge, FLOOD_MBIT, FLOOD_RATE, GROUPS, GROUPS_PER_VIF, Guest, GuestVif, Host, Multicast,
    Offloads, Storm, Switch, Uplink, VHOSTS_MAX, Vhost, Workers,
};

/// Guests of one host: a fraction of what the broker can have.
const GUESTS_MAX: usize = 1024;
/// Interfaces of one guest.
const VIFS_MAX: usize = 32;
/// The name of the connection of a tenant's process to the others, as a port.
const TRUNK: &str = "trunk";
/// Bytes of a description: far more than the longest with all guests.
const FILE_LEN_MAX: u64 = 4 << 20;

/// An invalid description.
#[derive(Debug)]
pub struct DescriptionError {
    file: String,
    /// The line, counted from 1, and its text.
    at: Option<(usize, String)>,
    message: String,
}

impl std::error::Error for DescriptionError {}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some((line, content)) => {
                write!(f, "{}, line {line}: {}\n  {line} | {content}", self.file, self.message)
            }
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

/// Reads the description of a host.
///
/// # Errors
/// What is wrong, and where.
pub fn read(path: &Path) -> Result<Host, DescriptionError> {
    let file = path.display().to_string();
    let fail = |message| DescriptionError { file: file.clone(), at: None, message };
    let len = fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
    if len > FILE_LEN_MAX {
        return Err(fail(format!("has {len} bytes, expected at most {FILE_LEN_MAX}")));
    }
    let content = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    parse(&file, &content)
}

/// Parses a description in memory; `file` is its name in errors.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(file: &str, content: &str) -> Result<Host, DescriptionError> {
    let source = Source { file, content };
    let sections = source.sections()?;
    source.check_ports(&sections)?;
    source.check(sections)
}

/// Parses the `[[vhost]]` of a vif that is added to a running host.
///
/// # Errors
/// What is wrong, and where.
pub fn parse_vhost(content: &str) -> Result<Vhost, DescriptionError> {
    let source = Source { file: "the vif", content };
    let host = source.check(source.sections()?)?;
    let [vhost] = <[Vhost; 1]>::try_from(host.vhosts)
        .map_err(|_| source.refuse(None, "expected one [[vhost]]"))?;
    Ok(vhost)
}

/// The origin of a description, for errors in its parts.
struct Source<'a> {
    file: &'a str,
    content: &'a str,
}

/// Ethernet addresses of vifs, and what frames to them have in common: the bridge and the VLAN.
type Macs = HashMap<Mac, Vec<(Option<InterfaceName>, Option<u16>)>>;

impl Source<'_> {
    fn sections(&self) -> Result<FileSection, DescriptionError> {
        toml::from_str(self.content).map_err(|error| {
            let offset = error.span().map(|span| span.start);
            self.refuse(offset, &explain::explain(self.content, offset, error.message()))
        })
    }

    fn refuse(&self, offset: Option<usize>, message: &str) -> DescriptionError {
        let at = offset.and_then(|offset| {
            let before = self.content.get(..offset)?;
            let line = before.matches('\n').count();
            let content = self.content.lines().nth(line)?.trim();
            Some((line + 1, content.to_owned()))
        });
        DescriptionError { file: self.file.to_owned(), at, message: message.to_owned() }
    }

    fn refuse_at<T>(&self, what: &Spanned<T>, message: &str) -> DescriptionError {
        self.refuse(Some(what.span().start), message)
    }

    /// Checks the names of ports, of which a mirror may name each. Vifs that are added later, to
    /// a host that may have other ports, are checked by the backend.
    fn check_ports(&self, sections: &FileSection) -> Result<(), DescriptionError> {
        let uplink = sections.uplink.as_ref().map(uplink_name);
        if let Some(name) = sections.uplink.as_ref().and_then(|uplink| uplink.name.as_ref()) {
            let text = name.get_ref().0.as_str();
            if text == Mirrored::ALL || is_xen_vif(text) {
                let message = format!(
                    "uplink.name: `{text}` is a name for all ports or for a Xen vif: choose another"
                );
                return Err(self.refuse_at(name, &message));
            }
        }
        let names = || sections.vhost.iter().filter_map(|vhost| vhost.name.as_ref());
        if let Some(name) = names().find(|name| uplink.as_deref() == Some(&name.get_ref().0)) {
            let message = format!(
                "vhost.name: `{}` is the name of the uplink: choose another",
                name.get_ref()
            );
            return Err(self.refuse_at(name, &message));
        }
        let is_port = |port: &str| {
            [Mirrored::ALL, TRUNK].contains(&port)
                || is_xen_vif(port)
                || uplink.as_deref() == Some(port)
                || names().any(|name| name.get_ref().0 == port)
        };
        let of_guests = sections.guest.iter().flat_map(|guest| &guest.vif);
        let of_guests = of_guests.flat_map(|vif| &vif.mirror).map(|it| ("guest.vif", it));
        let of_vhosts = sections.vhost.iter().flat_map(|vif| &vif.mirror).map(|it| ("vhost", it));
        match of_guests.chain(of_vhosts).find(|(_, it)| !is_port(&it.get_ref().0.port)) {
            None => Ok(()),
            Some((section, it)) => {
                let message = format!(
                    "{section}.mirror: there is no port `{}`: expected `all`, a vif such as \
                     vif1.0, a [[vhost]], or the uplink",
                    it.get_ref().0.port
                );
                Err(self.refuse_at(it, &message))
            }
        }
    }

    fn check(&self, sections: FileSection) -> Result<Host, DescriptionError> {
        let FileSection { host, uplink, switch, bridge, guest, vhost } = sections;
        let mut names = HashSet::new();
        for bridge in &bridge {
            if !names.insert(bridge.name.get_ref()) {
                return Err(
                    self.refuse_at(&bridge.name, "bridge.name: another bridge has this name")
                );
            }
        }
        let bridges: Vec<Bridge> = bridge
            .iter()
            .map(|section| Bridge {
                name: section.name.get_ref().clone(),
                addresses: section.addresses.clone(),
            })
            .collect();
        if let Some(isolate) = host.isolate.as_ref().filter(|it| *it.get_ref()) {
            if !vhost.is_empty() {
                let message = "[[vhost]] cannot be combined with `isolate`: remove either";
                return Err(self.refuse_at(isolate, message));
            }
        }
        let mut macs = Macs::new();
        let guests = self.guests(&guest, &bridges, &mut macs)?;
        let vhosts = self.vhosts(&vhost, &mut macs)?;
        let vifs: usize = guests.iter().map(|guest| guest.vifs.len()).sum();
        let vifs = vifs + vhosts.len();
        // A vif on a bridge takes two ports, its own and that of its TAP device; the uplink takes
        // one.
        let ports = u16::try_from((2 * vifs + 1).max(64)).map_err(|_| {
            self.refuse(None, &format!("has {vifs} vifs, expected at most {}", u16::MAX / 2))
        })?;
        Ok(Host {
            dir: host.dir,
            network: host.network,
            is_isolated: host.isolate.is_some_and(Spanned::into_inner),
            workers: Workers {
                count: host.workers.and_then(Within::get),
                policy: host.policy,
                cpus: host.cpus.iter().filter_map(|cpu| cpu.get()).collect(),
                poll_us: host.poll_us.and_then(Within::get),
                frame_memory_mib: host.frame_memory_mib.and_then(Within::get).unwrap_or(128),
            },
            max_queues: host.max_queues.and_then(Within::get).unwrap_or_else(online_cpus),
            completion: host.completion,
            split_event_channels: host.split_event_channels.unwrap_or(true),
            offloads: offloads(host.sg, host.csum, host.gso),
            socket_group: host.socket_group,
            uplink: uplink.map(|section| Uplink {
                name: InterfaceName(uplink_name(&section)),
                mac: section.mac,
                addresses: section.addresses,
                queues: section.queues.and_then(Within::get).unwrap_or(1),
                mtu: section.mtu.and_then(Within::get).unwrap_or(1500),
                vlan: section.vlan.and_then(Within::get),
                trunk: section.trunk.iter().copied().filter_map(Within::get).collect(),
                multicast_router: section
                    .multicast_router
                    .map_or(MulticastRouter::Always, |it| it.0),
                storm: storm!(section),
            }),
            switch: Switch {
                fdb_entries: switch.fdb_entries.and_then(Within::get).unwrap_or(4096),
                addresses_per_vif: switch.addresses_per_vif.and_then(Within::get).unwrap_or(1),
                locking_mode: switch.locking_mode,
                ageing_seconds: switch.ageing_seconds.and_then(Within::get).unwrap_or(300),
                flood_rate: switch.flood_rate.and_then(Within::get).unwrap_or(FLOOD_RATE),
                flood_mbit: switch.flood_mbit.and_then(Within::get).unwrap_or(FLOOD_MBIT),
                storm: storm!(switch),
                multicast: Multicast {
                    is_snooped: switch.multicast_snooping,
                    groups: switch.multicast_groups.and_then(Within::get).unwrap_or(GROUPS),
                    groups_per_vif: switch
                        .multicast_groups_per_vif
                        .and_then(Within::get)
                        .unwrap_or(GROUPS_PER_VIF),
                    unregistered: switch.unregistered_multicast,
                },
                ports,
            },
            bridges,
            guests,
            vhosts,
        })
    }

    fn guests(
        &self,
        sections: &[GuestSection],
        bridges: &[Bridge],
        macs: &mut Macs,
    ) -> Result<Vec<Guest>, DescriptionError> {
        let mut names = HashSet::new();
        let mut guests = Vec::new();
        for (number, section) in (1_u16..).zip(sections) {
            let name = section.name.get_ref();
            if guests.len() >= GUESTS_MAX {
                let message = format!("guest: expected at most {GUESTS_MAX} of them");
                return Err(self.refuse_at(&section.name, &message));
            }
            if !names.insert(name) {
                let message = format!("guest.name: another guest is called `{name}`");
                return Err(self.refuse_at(&section.name, &message));
            }
            if section.vif.len() > VIFS_MAX {
                let message = format!("guest.vif: expected at most {VIFS_MAX} for a guest");
                return Err(self.refuse_at(&section.name, &message));
            }
            let mut vifs = Vec::new();
            for (handle, section) in (0_u8..).zip(&section.vif) {
                let of_virtio = (section.name.as_ref().map(Spanned::span))
                    .or(section.socket.as_ref().map(Spanned::span))
                    .or(section.mode.as_ref().map(Spanned::span))
                    .or(section.features.as_ref().map(Spanned::span));
                if let Some(at) = of_virtio {
                    let message = "guest.vif.name, socket, mode, features: only in [[vhost]]";
                    return Err(self.refuse(Some(at.start), message));
                }
                let vif = self.vif(section, (number, handle), Some(bridges))?;
                let others = macs.entry(vif.mac).or_default();
                others.push((vif.bridge.clone(), vif.vlan));
                if others.len() > 1 {
                    let message = format!("guest.vif.mac: another vif has `{}`", vif.mac);
                    let at = section.mac.as_ref().map(|mac| mac.span().start);
                    return Err(self.refuse(at, &message));
                }
                vifs.push(vif);
            }
            guests.push(Guest {
                name: name.clone(),
                memory_mib: section.memory_mib.and_then(Within::get).unwrap_or(256),
                on_exit: section.on_exit,
                vifs,
            });
        }
        Ok(guests)
    }

    /// Vifs of virtual machines behind sockets.
    fn vhosts(
        &self,
        sections: &[VifSection],
        macs: &mut Macs,
    ) -> Result<Vec<Vhost>, DescriptionError> {
        let (mut names, mut sockets, mut vhosts) = (HashSet::new(), HashSet::new(), Vec::new());
        for section in sections {
            let missing = |key: &str| {
                let place = section.name.as_ref().map(|name| name.span().start);
                let place = place.or(section.socket.as_ref().map(|socket| socket.span().start));
                self.refuse(place, &format!("vhost.{key}: is missing; each [[vhost]] needs one"))
            };
            let name = section.name.as_ref().ok_or_else(|| missing("name"))?;
            let socket = section.socket.as_ref().ok_or_else(|| missing("socket"))?;
            if vhosts.len() >= usize::from(VHOSTS_MAX) {
                let message = format!("vhost: expected at most {VHOSTS_MAX} of them");
                return Err(self.refuse_at(name, &message));
            }
            if !names.insert(name.get_ref()) {
                let message = format!("vhost.name: another vhost is called `{}`", name.get_ref());
                return Err(self.refuse_at(name, &message));
            }
            if !sockets.insert(socket.get_ref()) {
                let message = format!("vhost.socket: another vhost has `{}`", socket.get_ref());
                return Err(self.refuse_at(socket, &message));
            }
            self.refuse_of_guests(section)?;
            if let Some(bridge) = &section.bridge {
                if name.get_ref().0.parse::<InterfaceName>().is_err() {
                    let message = format!(
                        "vhost.bridge: the network device on it gets the name `{}`: expected \
                         a vhost.name of at most 15 letters, digits, `-`, `_` and `.`",
                        name.get_ref()
                    );
                    return Err(self.refuse_at(bridge, &message));
                }
            }
            let of_vhost = |mut error: DescriptionError| {
                error.message = error.message.replace("guest.vif.", "vhost.");
                error
            };
            let vif = self.vif(section, (0, 0), None).map_err(of_vhost)?;
            if let Some(mac) = &section.mac {
                // A guest may have one address in several networks.
                let (others, place) = (macs.entry(*mac.get_ref()).or_default(), vif.bridge.clone());
                let place = (place, vif.vlan);
                if others.contains(&place) {
                    let message = format!("vhost.mac: another vif has `{}`", mac.get_ref());
                    return Err(self.refuse_at(mac, &message));
                }
                others.push(place);
            }
            let features = section.features.as_ref();
            let names = features.map_or(&[][..], |it| it.get_ref()).iter().map(FeatureText::name);
            let names: Vec<&str> = names.collect();
            let is_double = |(at, name): &(usize, &&str)| names[..*at].contains(*name);
            if let (Some(at), Some((_, name))) =
                (features, names.iter().enumerate().find(is_double))
            {
                let message =
                    format!("vhost.features: `{name}` is in the list twice: remove one of them");
                return Err(self.refuse_at(at, &message));
            }
            vhosts.push(Vhost {
                name: name.get_ref().clone(),
                socket: socket.get_ref().clone(),
                mode: section.mode.as_ref().map(|mode| *mode.get_ref()).unwrap_or_default(),
                queues: vif.queues.unwrap_or(1),
                mac: section.mac.as_ref().map(|mac| *mac.get_ref()),
                features: section
                    .features
                    .as_ref()
                    .map_or_else(Vec::new, |it| it.get_ref().clone()),
                vif,
            });
        }
        Ok(vhosts)
    }

    /// Keys that apply only to an emulated guest or to a Xen vif.
    fn refuse_of_guests(&self, section: &VifSection) -> Result<(), DescriptionError> {
        let given = [
            section.tenant.as_ref().map(Spanned::span),
            section.addresses.first().map(Spanned::span),
            section.gateway.as_ref().map(Spanned::span),
            section.max_queues.as_ref().map(Spanned::span),
            section.completion.as_ref().map(Spanned::span),
            section.max_unanswered.as_ref().map(Spanned::span),
        ];
        let mut given = ONLY_OF_GUEST.into_iter().zip(given);
        match given.find_map(|(key, at)| Some((key, at?))) {
            None => Ok(()),
            Some((key, at)) => {
                let remedy = match key {
                    "max-queues" => "use `queues` here",
                    "addresses" => {
                        "set addresses in the guest, and use `allowed-ips` to limit them"
                    }
                    _ => "remove it",
                };
                let message = format!("vhost.{key}: only in [[guest.vif]]; {remedy}");
                Err(self.refuse(Some(at.start), &message))
            }
        }
    }

    fn vif(
        &self,
        section: &VifSection,
        (guest, handle): (u16, u8),
        bridges: Option<&[Bridge]>,
    ) -> Result<GuestVif, DescriptionError> {
        // A virtio vif may be on any bridge of the host.
        if let (Some(bridge), Some(bridges)) = (&section.bridge, bridges) {
            if !bridges.iter().any(|known| known.name == *bridge.get_ref()) {
                let known: Vec<String> =
                    bridges.iter().map(|bridge| format!("`{}`", bridge.name)).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let message = format!(
                    "guest.vif.bridge: there is no [[bridge]] `{}`: expected one of {known}",
                    bridge.get_ref()
                );
                return Err(self.refuse_at(bridge, &message));
            }
        }
        let addresses: Vec<Cidr> =
            section.addresses.iter().map(|address| *address.get_ref()).collect();
        if let Some(gateway) = &section.gateway {
            let is_near = |cidr: &Cidr| is_on_link(*cidr, *gateway.get_ref());
            if !addresses.iter().any(is_near) {
                let message = format!(
                    "guest.vif.gateway: `{}` is in none of the vif's networks: expected an \
                     address in a network of the vif's own addresses",
                    gateway.get_ref()
                );
                return Err(self.refuse_at(gateway, &message));
            }
        }
        let allowed_ips = self.allowed_ips(section)?;
        let on_switch_only = (section.vlan.as_ref().map(Spanned::span))
            .or(section.trunk.first().map(Spanned::span))
            .or(section.private.as_ref().filter(|it| *it.get_ref()).map(Spanned::span))
            .or(section.multicast_router.as_ref().map(Spanned::span))
            .or(section.mirror.first().map(Spanned::span));
        if let (Some(at), Some(_)) = (on_switch_only, &section.bridge) {
            let message = "guest.vif.vlan, trunk, private, multicast-router, mirror: only for vifs \
                           on the switch; remove them or `bridge`";
            return Err(self.refuse(Some(at.start), message));
        }
        if section.trunk.len() > VlanRules::TAGGED_MAX {
            let message = format!("guest.vif.trunk: expected at most {}", VlanRules::TAGGED_MAX);
            return Err(self.refuse_at(&section.trunk[0], &message));
        }
        if section.mirror.len() > Mirrored::LIST_MAX {
            let message = format!("guest.vif.mirror: expected at most {}", Mirrored::LIST_MAX);
            return Err(self.refuse_at(&section.mirror[0], &message));
        }
        let [high, low] = guest.to_be_bytes();
        // The prefix that is assigned to Xen; the rest distinguishes guests and vifs.
        let mac = Mac(MacAddr([0x00, 0x16, 0x3e, high | 0x40, low, handle]));
        Ok(GuestVif {
            mac: section.mac.as_ref().map_or(mac, |mac| *mac.get_ref()),
            tenant: section.tenant.as_ref().map(|it| it.get_ref().clone()),
            addresses,
            gateway: section.gateway.as_ref().map(|gateway| *gateway.get_ref()),
            mtu: section.mtu.and_then(Within::get),
            queues: section.queues.and_then(Within::get),
            bridge: section.bridge.as_ref().map(|bridge| bridge.get_ref().clone()),
            max_queues: section.max_queues.as_ref().and_then(|it| it.get_ref().get()),
            completion: section.completion.as_ref().map(|it| *it.get_ref()),
            max_unanswered: section.max_unanswered.as_ref().and_then(|it| it.get_ref().get()),
            offloads: offloads(section.sg, section.csum, section.gso),
            rate: section.rate.clone(),
            rate_rx: section.rate_rx.clone(),
            weight: section.weight.and_then(Within::get),
            flood_rate: section.flood_rate.and_then(Within::get),
            flood_mbit: section.flood_mbit.and_then(Within::get),
            storm: storm!(section),
            locking_mode: section.locking_mode,
            allowed_ips,
            addresses_max: section.addresses_per_vif.and_then(Within::get),
            is_router: section.router,
            is_dhcp_server: section.dhcp_server,
            vlan: section.vlan.as_ref().and_then(|vlan| vlan.get_ref().get()),
            trunk: section.trunk.iter().filter_map(|vlan| vlan.get_ref().get()).collect(),
            is_private: section.private.as_ref().is_some_and(|it| *it.get_ref()),
            mirror: section.mirror.iter().map(|it| it.get_ref().clone()).collect(),
            multicast_router: section
                .multicast_router
                .as_ref()
                .map_or_else(MulticastRouter::default, |it| it.get_ref().0),
        })
    }

    /// The listed addresses, or those assigned to the guest if it is locked to them.
    fn allowed_ips(&self, section: &VifSection) -> Result<Vec<Network>, DescriptionError> {
        let Some(listed) = &section.allowed_ips else {
            let is_locked = section.locking_mode.is_some_and(|it| it.0 == LockingMode::Locked);
            let own = section.addresses.iter().filter(|_| is_locked);
            return Ok(own.map(|own| Network(IpNetwork::host(own.get_ref().address))).collect());
        };
        if listed.get_ref().len() > IpNetwork::LIST_MAX {
            let message =
                format!("guest.vif.allowed-ips: expected at most {}", IpNetwork::LIST_MAX);
            return Err(self.refuse_at(listed, &message));
        }
        Ok(listed.get_ref().clone())
    }
}

fn uplink_name(section: &UplinkSection) -> String {
    section.name.as_ref().map_or_else(|| "ringway0".to_owned(), |name| name.get_ref().0.clone())
}

/// Whether this is the name of a Xen vif, `vifD.H`.
fn is_xen_vif(name: &str) -> bool {
    let numbers = name.strip_prefix("vif").and_then(|numbers| numbers.split_once('.'));
    numbers.is_some_and(|(domain, handle)| {
        domain.parse::<u16>().is_ok() && handle.parse::<u32>().is_ok()
    })
}

fn offloads(sg: Option<bool>, csum: Option<bool>, gso: Option<bool>) -> Offloads {
    Offloads {
        sg: sg.unwrap_or(Offloads::ALL.sg),
        csum: csum.unwrap_or(Offloads::ALL.csum),
        gso: gso.unwrap_or(Offloads::ALL.gso),
    }
}

fn is_on_link(network: Cidr, other: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
        IpAddr::V6(address) => (address.to_bits(), false),
    };
    let ((one, one_is_v4), (two, two_is_v4)) = (bits(network.address), bits(other));
    let shift = 128_u32.saturating_sub(u32::from(network.prefix_len));
    one_is_v4 == two_is_v4 && (one ^ two).checked_shr(shift).unwrap_or(0) == 0
}

/// What a backend offers by default (`multi-queue-series:maximum`).
fn online_cpus() -> u16 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cpus).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
