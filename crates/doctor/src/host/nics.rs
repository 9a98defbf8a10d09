//! The interfaces of a host, and what each is for.

use super::Host;
use crate::evidence::{Gap, NicSettings, Quote, Text};
use crate::parse::Counters;
use crate::parse::cpu::CpuTimes;

/// What an interface is to a host of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicRole {
    /// A card, or what its virtual function looks like.
    Physical,
    /// The host's end of a guest's interface: a vif or a TAP device.
    Backend,
    /// A guest's own end: netfront or virtio-net.
    Frontend,
    /// Bridges, bonds, tunnels, veth and the like: they own no hardware.
    Software,
}

impl Host {
    /// The names of all interfaces but the loopback.
    pub fn nics(&self) -> Vec<String> {
        let mut names = self.list("sys/class/net");
        if names.is_empty() {
            // A sos report may have nothing but this.
            let dev = self.latest("proc/net/dev").ok();
            let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
            let lines = dev.iter().flat_map(Text::lines);
            names = lines.skip(2).filter_map(|(_, line)| name(line)).collect();
        }
        // `x.link` stands for a link called x.
        let is_nic = |name: &str| !["lo", "bonding_masters"].contains(&name);
        names.retain(|name| is_nic(name) && !name.ends_with(".link"));
        names
    }

    /// What an interface is for.
    pub fn role(&self, nic: &str) -> NicRole {
        let has = |file: &str| self.has(&format!("sys/class/net/{nic}/{file}"));
        if is_vif(nic) || has("tun_flags") {
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

    /// Some settings of an interface, as the kernel or a tool says them.
    pub fn settings(&self, nic: &str, settings: NicSettings) -> Result<Text, Gap> {
        self.source.answer("", &settings.path(nic), &settings.command(nic))
    }

    /// The driver of an interface's device, if it has a device. Older records and sos reports know
    /// it of other interfaces as well.
    pub fn driver(&self, nic: &str) -> Option<String> {
        let uevent = self.file(&format!("sys/class/net/{nic}/device/uevent")).ok();
        let named = uevent.as_ref().and_then(|text| value_of(text, "DRIVER="));
        named
            .or_else(|| {
                let link = self.file(&format!("sys/class/net/{nic}/device/driver.link")).ok()?;
                link.value().rsplit('/').next().map(str::to_owned)
            })
            .or_else(|| {
                let info = self.command(&["ethtool", "-i", nic]).ok()?;
                crate::parse::ethtool::driver(&info).ok().filter(|driver| !driver.is_empty())
            })
    }

    /// The last part of the path of an interface's device: `virtio3`, `0000:3b:00.0`.
    pub fn device(&self, nic: &str) -> Option<String> {
        let link = self.file(&format!("sys/class/net/{nic}/device.link")).ok()?;
        link.value().rsplit('/').next().map(str::to_owned)
    }

    /// Queues that an interface sends by, and where that is seen.
    pub fn tx_queues(&self, nic: &str) -> Option<(u64, Quote)> {
        let (rx, tx) = self.queues(nic);
        // The kernel keeps `xps_cpus` of an interface's only queue to itself, and that file is what
        // is looked at.
        let count = if tx == 0 && rx > 0 { 1 } else { tx };
        let file = format!("/sys/class/net/{nic}/queues");
        let text = format!("{count} directories tx-*");
        let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
        Some((count, Quote { file, line: None, text }))
    }

    /// Queues that an interface receives by.
    pub fn rx_queues(&self, nic: &str) -> usize {
        self.queues(nic).0
    }

    fn queues(&self, nic: &str) -> (usize, usize) {
        let names = self.list(&format!("sys/class/net/{nic}/queues"));
        let count = |start| names.iter().filter(|name| name.starts_with(start)).count();
        (count("rx-"), count("tx-"))
    }

    /// CPUs that are online.
    pub fn online_cpus(&self) -> Result<u64, Gap> {
        let text = self.latest("proc/stat")?;
        let cpus = CpuTimes::parse(&text)?.cpus.len();
        Ok(u64::try_from(cpus).unwrap_or(u64::MAX))
    }

    /// Whether frames of an interface go on to others: it is a port of a bridge or a switch.
    pub fn is_forwarding(&self, nic: &str) -> bool {
        self.has(&format!("sys/class/net/{nic}/brport/port_id"))
            || self.has(&format!("sys/class/net/{nic}/master.link"))
                && self.file(&format!("sys/class/net/{nic}/master.link")).is_ok_and(|master| {
                    let master = master.value().rsplit('/').next().unwrap_or_default().to_owned();
                    self.has(&format!("sys/class/net/{master}/bridge/bridge_id"))
                        || master == "ovs-system"
                })
    }
}

/// Whether a name is one that a toolstack gives the host's end of a Xen guest's interface.
pub(super) fn is_vif(nic: &str) -> bool {
    let rest = nic.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
    rest.is_some_and(|(domain, handle)| {
        domain.parse::<u32>().is_ok() && handle.parse::<u32>().is_ok()
    })
}

fn value_of(text: &Text, key: &str) -> Option<String> {
    text.lines().find_map(|(_, line)| line.strip_prefix(key)).map(|value| value.trim().to_owned())
}
