//! The kind of host, which a report states first, with the evidence for it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::interfaces::Interfaces;
use super::named::Modules;
use super::thread_names::{is_vcpu, is_vhost, is_vif_name};
use super::{Fact, Reader};
use crate::{Gap, Piece, Quote};

/// Where a host stands between hardware and guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// No hypervisor below, no guest above.
    Bare,
    /// Runs guests with KVM.
    KvmHost,
    /// A guest of KVM, or of what looks like it from inside.
    KvmGuest,
    /// The domain that controls a Xen host.
    XenDom0,
    /// A Xen guest that serves interfaces of others.
    XenDriverDomain,
    /// A Xen guest.
    XenGuest,
    /// A guest of something that does not say what it is.
    OtherGuest,
}

/// The kind, and what shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct HostKind {
    /// What it is.
    pub kind: Kind,
    /// Whether it routes for others as well, out of network namespaces (`network-node-blog:node`).
    pub is_network_node: bool,
    /// What shows it.
    pub evidence: Vec<Quote>,
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Bare => "a machine without guests",
            Kind::KvmHost => "a KVM host",
            Kind::KvmGuest => "a KVM guest",
            Kind::XenDom0 => "domain 0 of a Xen host",
            Kind::XenDriverDomain => "a Xen driver domain",
            Kind::XenGuest => "a Xen guest",
            Kind::OtherGuest => "a guest of an unknown hypervisor",
        })?;
        f.write_str(if self.is_network_node { ", and a network node" } else { "" })
    }
}

impl HostKind {
    /// The kind of a host without any evidence.
    pub fn unknown() -> HostKind {
        HostKind { kind: Kind::Bare, is_network_node: false, evidence: Vec::new() }
    }
}

impl Fact for HostKind {
    const PIECES: &'static [Piece] = &[
        Piece::All(Interfaces::PIECES),
        Piece::All(Modules::PIECES),
        Piece::File("proc/xen/capabilities"),
        Piece::File("sys/hypervisor/type"),
        Piece::File("proc/cpuinfo"),
        Piece::File("sys/class/dmi/id/product_name"),
        Piece::File("sys/class/dmi/id/sys_vendor"),
        Piece::Names("run/netns"),
        Piece::Threads(&["vhost-", "CPU "]),
    ];

    /// Determines the kind of host from its evidence.
    fn read(at: &Reader) -> Result<Self, Gap> {
        let of = Evidence { at, nics: at.fact()? };
        let (kind, mut evidence) = of
            .xen()
            .or_else(|| of.kvm_host())
            .or_else(|| of.guest())
            .unwrap_or((Kind::Bare, Vec::new()));
        let node = of.network_node();
        let is_network_node = node.is_some();
        evidence.extend(node.into_iter().flatten());
        Ok(HostKind { kind, is_network_node, evidence })
    }
}

/// The evidence for the kind of a host.
struct Evidence<'a> {
    at: &'a Reader,
    nics: Interfaces,
}

impl Evidence<'_> {
    fn xen(&self) -> Option<(Kind, Vec<Quote>)> {
        if let Ok(capabilities) = self.at.file("proc/xen/capabilities") {
            if let Some(quote) = capabilities.quote_where(|line| line.contains("control_d")) {
                return Some((Kind::XenDom0, vec![quote]));
            }
        }
        let hypervisor = self.at.file("sys/hypervisor/type").ok()?;
        let xen = hypervisor.quote_where(|line| line.trim() == "xen")?;
        match self.nics.names().into_iter().find(|nic| is_vif_name(nic)) {
            Some(vif) => Some((Kind::XenDriverDomain, vec![xen, interface(&vif)])),
            None => Some((Kind::XenGuest, vec![xen])),
        }
    }

    /// A machine on which virtual CPUs or their network threads are running.
    fn kvm_host(&self) -> Option<(Kind, Vec<Quote>)> {
        let threads = self.at.latest("threads").ok()?;
        let of =
            |is_it: fn(&str) -> bool| threads.quote_where(|line| thread(line).is_some_and(is_it));
        Some((Kind::KvmHost, vec![of(is_vhost).or_else(|| of(is_vcpu))?]))
    }

    fn guest(&self) -> Option<(Kind, Vec<Quote>)> {
        let cpu = self.at.file("proc/cpuinfo").ok();
        let flag = cpu.and_then(|cpu| {
            let flags = |line: &str| line.starts_with("flags");
            let quote = cpu.quote_where(|line| {
                flags(line) && line.split_whitespace().any(|flag| flag == "hypervisor")
            })?;
            Some(Quote { text: "flags: ... hypervisor ...".to_owned(), ..quote })
        });
        let vendor = self.at.file("sys/class/dmi/id/sys_vendor").ok().and_then(|vendor| {
            vendor
                .quote_where(|line| ["QEMU", "KVM", "Red Hat"].iter().any(|who| line.contains(who)))
        });
        let nics = self.nics.names();
        let virtio = nics.iter().find(|nic| self.nics.driver(nic).as_deref() == Some("virtio_net"));
        let kind = match (&flag, &vendor, virtio) {
            (_, Some(_), _) | (Some(_), _, Some(_)) => Kind::KvmGuest,
            (Some(_), None, None) => Kind::OtherGuest,
            _ => return None,
        };
        let virtio =
            virtio.map(|nic| Quote { text: format!("{nic} is virtio-net"), ..interface(nic) });
        Some((kind, vendor.into_iter().chain(flag).chain(virtio).collect()))
    }

    fn network_node(&self) -> Option<Vec<Quote>> {
        let routers = self.at.file("run/netns.names").ok()?;
        let router = routers.quote_where(|line| line.starts_with("qrouter-"))?;
        let modules = self.at.file("sys/module.names").ok();
        let ovs = modules.and_then(|names| names.quote_where(|line| line.trim() == "openvswitch"));
        Some(std::iter::once(router).chain(ovs).collect())
    }
}

/// The name in a line of `/proc/PID/stat`, which may hold spaces and parentheses.
fn thread(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" (")?;
    Some(rest.rsplit_once(") ")?.0)
}

fn interface(nic: &str) -> Quote {
    let text = format!("there is an interface {nic}");
    Quote { file: format!("/sys/class/net/{nic}"), line: None, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    #[test]
    fn a_program_with_a_thread_of_such_a_name_is_no_guest() {
        let kind = |name: &str| {
            let line = format!("77 ({name}) S 1 77 77 0 -1 0 0 0 0 0 5 5 0 0\n");
            let host = Host::new(Source::Memory([("threads".to_owned(), line)].into()));
            host.fact::<HostKind>().expect("sound").kind
        };
        assert_eq!(kind("vhost-4711"), Kind::KvmHost);
        assert_eq!(kind("CPU 3/KVM"), Kind::KvmHost);
        for name in ["vhost-events", "vhost-", "CPU x/KVM", "CPU 0/KVM) (x", "a (vhost-7"] {
            assert_eq!(kind(name), Kind::Bare, "{name}");
        }
    }
}
