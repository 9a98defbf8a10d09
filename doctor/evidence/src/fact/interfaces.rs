//! The interfaces of a host, and the role of each.

use super::thread_names::is_vif_name;
use super::{Fact, Reader};
use crate::{Gap, Piece, Quote, Text};

/// The role of an interface on a host with guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicRole {
    /// A card, or a virtual function of one.
    Physical,
    /// The host's end of a guest's interface: a vif or a TAP device.
    Backend,
    /// A guest's own end: netfront or virtio-net.
    Frontend,
    /// Bridges, bonds, tunnels, veth and the like, which have no hardware.
    Software,
}

on_demand! {
    /// The interfaces of a host: the role, driver and queues of each, and its master.
    #[derive(Clone)]
    Interfaces = [
        Piece::Counters("proc/net/dev"),
        Piece::File("sys/class/net/*/tun_flags"),
        Piece::File("sys/class/net/*/uevent"),
        Piece::File("sys/class/net/*/device/uevent"),
        Piece::File("sys/class/net/*/bridge/bridge_id"),
        Piece::File("sys/class/net/*/brport/port_id"),
        Piece::File("sys/class/net/*/queues/*/rps_cpus"),
        Piece::File("sys/class/net/*/queues/*/xps_cpus"),
        Piece::Link("sys/class/net/*/device"),
        Piece::Link("sys/class/net/*/device/driver"),
        Piece::Link("sys/class/net/*/lower_*"),
        Piece::Link("sys/class/net/*/master"),
        Piece::SavedCommand(&["ethtool", "-i", "{nic}"]),
    ];
}

/// A flag of a TAP device: each frame begins with a virtio-net header.
const IFF_VNET_HDR: u32 = 0x4000;

impl Interfaces {
    /// The names of all interfaces except loopback.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.0.list("sys/class/net");
        if names.is_empty() {
            // A sos report may have only this file.
            let dev = self.0.latest("proc/net/dev").ok();
            let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
            let lines = dev.iter().flat_map(Text::lines);
            names = lines.skip(2).filter_map(|(_, line)| name(line)).collect();
        }
        // `x.link` represents a link called x.
        let is_nic = |name: &str| !["lo", "bonding_masters"].contains(&name);
        names.retain(|name| is_nic(name) && !name.ends_with(".link"));
        names
    }

    /// The role of an interface.
    pub fn role(&self, nic: &str) -> NicRole {
        let has = |file: &str| self.0.has(&format!("sys/class/net/{nic}/{file}"));
        if is_vif_name(nic) || has("tun_flags") {
            return NicRole::Backend;
        }
        match self.driver(nic).as_deref() {
            Some("virtio_net" | "vif" | "xen_netfront" | "xen-netfront") => NicRole::Frontend,
            Some("vif-backend" | "xen-netback" | "xen_netback") => NicRole::Backend,
            Some(
                "bridge"
                | "bonding"
                | "team"
                | "openvswitch"
                | "veth"
                | "vxlan"
                | "dummy"
                | "802.1Q VLAN Support"
                | "ifb"
                | "tun"
                | "macvlan",
            ) => NicRole::Software,
            Some(_) => NicRole::Physical,
            None => NicRole::Software,
        }
    }

    /// The driver of an interface's device, if it has one. Older records and sos reports name
    /// drivers of other interfaces as well.
    pub fn driver(&self, nic: &str) -> Option<String> {
        let uevent = self.0.file(&format!("sys/class/net/{nic}/device/uevent")).ok();
        let named = uevent.as_ref().and_then(|text| value_of(text, "DRIVER="));
        named
            .or_else(|| {
                let link = self.0.file(&format!("sys/class/net/{nic}/device/driver.link")).ok()?;
                link.value().rsplit('/').next().map(str::to_owned)
            })
            .or_else(|| {
                let info = self.0.command(&["ethtool", "-i", nic]).ok()?;
                crate::parse::ethtool::driver(&info).ok().filter(|driver| !driver.is_empty())
            })
    }

    /// The line that names the driver.
    pub fn driver_quote(&self, nic: &str, driver: &str) -> Quote {
        let path = format!("sys/class/net/{nic}/device/uevent");
        let uevent = self.0.file(&path).ok();
        let line = uevent.and_then(|text| text.quote_where(|line| line.starts_with("DRIVER=")));
        let is_driver = |line: &str| line.starts_with("driver:");
        let info = || self.0.command(&["ethtool", "-i", nic]).ok()?.quote_where(is_driver);
        let file = format!("/sys/class/net/{nic}/device/driver");
        line.or_else(info).unwrap_or(Quote { file, line: None, text: driver.to_owned() })
    }

    /// The line that names an interface's driver, if the kernel itself reports it.
    pub fn driver_line(&self, nic: &str) -> Option<Quote> {
        let uevent = self.0.file(&format!("sys/class/net/{nic}/device/uevent")).ok()?;
        uevent.quote_where(|line| line.starts_with("DRIVER="))
    }

    /// The last part of the path of an interface's device: `virtio3`, `0000:3b:00.0`.
    pub fn device(&self, nic: &str) -> Option<String> {
        let link = self.0.file(&format!("sys/class/net/{nic}/device.link")).ok()?;
        link.value().rsplit('/').next().map(str::to_owned)
    }

    /// Whether sysfs shows that an interface has no device behind it, although it may have a
    /// vif's name: a veth or a similar interface. A vif of Linux's backend has one, and a TAP
    /// device has a program.
    pub fn is_without_device(&self, nic: &str) -> bool {
        let has = |file: &str| self.0.has(&format!("sys/class/net/{nic}/{file}"));
        let is_device = ["device.link", "device/uevent", "tun_flags"].into_iter().any(has);
        let is_in_sysfs = !self.0.list(&format!("sys/class/net/{nic}")).is_empty();
        is_in_sysfs && !is_device && self.driver(nic).is_none()
    }

    /// Whether the program behind a TAP device opened it with headers for offloads; `None` if that
    /// is unknown or it is no TAP device.
    pub fn has_offload_headers(&self, nic: &str) -> Option<bool> {
        let text = self.0.file(&format!("sys/class/net/{nic}/tun_flags")).ok()?;
        let flags = u32::from_str_radix(text.value().trim().strip_prefix("0x")?, 16).ok()?;
        Some(flags & IFF_VNET_HDR != 0)
    }

    /// The number of an interface's transmit queues, and the evidence for it.
    pub fn tx_queues(&self, nic: &str) -> Option<(u64, Quote)> {
        let (rx, tx) = self.queues(nic);
        // The kernel does not show `xps_cpus` if an interface has only one queue, and that file is
        // what is read here.
        let count = if tx == 0 && rx > 0 { 1 } else { tx };
        let file = format!("/sys/class/net/{nic}/queues");
        let text = format!("{count} directories tx-*");
        let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
        Some((count, Quote { file, line: None, text }))
    }

    /// The number of an interface's receive queues.
    pub fn rx_queues(&self, nic: &str) -> usize {
        self.queues(nic).0
    }

    fn queues(&self, nic: &str) -> (usize, usize) {
        let names = self.0.list(&format!("sys/class/net/{nic}/queues"));
        let count = |start| names.iter().filter(|name| name.starts_with(start)).count();
        (count("rx-"), count("tx-"))
    }

    /// CPUs that process frames of a receive queue in software (RPS), as a mask.
    pub fn rps_cpus(&self, nic: &str, queue: usize) -> Option<Text> {
        self.0.file(&format!("sys/class/net/{nic}/queues/rx-{queue}/rps_cpus")).ok()
    }

    /// CPUs that use a transmit queue (XPS), as a mask.
    pub fn xps_cpus(&self, nic: &str, queue: usize) -> Option<Text> {
        self.0.file(&format!("sys/class/net/{nic}/queues/tx-{queue}/xps_cpus")).ok()
    }

    /// The link to an interface's master: a bridge, a bond and the like.
    pub fn master(&self, nic: &str) -> Option<Text> {
        self.0.file(&format!("sys/class/net/{nic}/master.link")).ok()
    }

    /// The type of interface that the kernel reports, such as `vlan`, `vxlan`, `bond`; `None` for a
    /// card.
    pub fn device_type(&self, nic: &str) -> Option<String> {
        let uevent = self.0.file(&format!("sys/class/net/{nic}/uevent")).ok()?;
        value_of(&uevent, "DEVTYPE=")
    }

    /// The interfaces below one: ports of a bridge or a bond, the link of a VLAN.
    pub fn lower(&self, nic: &str) -> Vec<String> {
        let names = self.0.list(&format!("sys/class/net/{nic}"));
        let lower =
            |name: &String| Some(name.strip_prefix("lower_")?.trim_end_matches(".link").to_owned());
        names.iter().filter_map(lower).collect()
    }

    /// Whether frames of an interface are forwarded to others: it is a port of a bridge or a
    /// switch.
    pub fn is_forwarding(&self, nic: &str) -> bool {
        self.0.has(&format!("sys/class/net/{nic}/brport/port_id"))
            || self.0.has(&format!("sys/class/net/{nic}/master.link"))
                && self.0.file(&format!("sys/class/net/{nic}/master.link")).is_ok_and(|master| {
                    let master = master.value().rsplit('/').next().unwrap_or_default().to_owned();
                    self.0.has(&format!("sys/class/net/{master}/bridge/bridge_id"))
                        || master == "ovs-system"
                })
    }
}

fn value_of(text: &Text, key: &str) -> Option<String> {
    text.lines().find_map(|(_, line)| line.strip_prefix(key)).map(|value| value.trim().to_owned())
}
