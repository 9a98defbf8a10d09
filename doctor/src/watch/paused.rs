//! Whether the guest of a vif is paused: that it posts no buffers then is no fault.

use std::collections::BTreeMap;

use crate::fact::{Machines, XenDomains};
use crate::parse::domains::Domains;
use crate::parse::ringway::{Vif, socket_names};

/// What toolstacks say of their guests: whether each is paused.
pub(super) struct Paused<'a> {
    /// By the number of Xen's domain.
    domains: BTreeMap<u32, bool>,
    /// By the names in the path of a socket of libvirt's machine.
    sockets: BTreeMap<Vec<&'a str>, bool>,
}

impl<'a> Paused<'a> {
    /// Reads them.
    pub(super) fn new(domains: Option<&XenDomains>, machines: Option<&'a Machines>) -> Paused<'a> {
        let listed = domains.and_then(|list| Domains::parse(list).ok()).unwrap_or_default();
        let domains = listed.domains.iter().map(|(id, domain)| (*id, domain.is_paused)).collect();
        let running = machines.into_iter().flat_map(|known| known.all.values());
        let running = running.filter_map(|machine| machine.running.as_ref()?.as_ref().ok());
        let sockets = running.flat_map(|defined| {
            let is_paused = defined.guest.is_paused;
            let names = defined.guest.interfaces.iter().map(|nic| socket_names(&nic.socket));
            let names = names.filter(|names| !names.is_empty());
            names.filter_map(move |names| Some((names, is_paused?)))
        });
        Paused { domains, sockets: sockets.collect() }
    }

    /// Whether the toolstack of a vif's guest says that it is paused. A guest that it does not know
    /// may hang, which is an alarm.
    pub(super) fn has(&self, vif: &Vif) -> bool {
        let of_domain = vif.domid.and_then(|domid| self.domains.get(&u32::from(domid)));
        let of_socket = || self.sockets.get(&socket_names(&vif.virtio.as_ref()?.socket));
        of_domain.or_else(of_socket).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Source, command_path};
    use crate::fact::{Host, Tried};

    /// Whether the guests of a Xen and of a virtio vif are paused, if toolstacks say this.
    fn paused(said: &[(&str, &str)]) -> [bool; 2] {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let pieces: BTreeMap<String, String> = said.iter().map(own).collect();
        let vif = |name: &str, more: &str| {
            format!(r#"{{"name":"{name}",{more},"max_queues":1,"queues":[]}}"#)
        };
        let xen = vif("vif7.0", r#""kind":"xen","domid":7"#);
        let virtio = vif("vm1", r#""kind":"virtio","virtio":{"socket":"/run/vms//vm1"}"#);
        let host = Host::new(Source::Memory(pieces));
        let domains: Tried<XenDomains> = host.fact().expect("it may be missing");
        let machines: Machines = host.fact().expect("it reports gaps by machine");
        let known = Paused::new(domains.ok(), Some(&machines));
        [xen, virtio].map(|vif| known.has(&serde_json::from_str::<Vif>(&vif).expect("a vif")))
    }

    #[test]
    fn a_guest_is_paused_if_its_toolstack_says_so() {
        let list = |state: &str| {
            format!(
                "Name ID Mem VCPUs State Time(s)\nDomain-0 0 9 4 r----- 3.0\nweb 7 9 4 {state} 3\n"
            )
        };
        let status = |state: &str| {
            format!(
                "<domstatus state='{state}' reason='user'><domain><name>web</name><devices>\
                 <interface type='vhostuser'><source type='unix' path='/run/vms/vm1'/></interface>\
                 </devices></domain></domstatus>\n"
            )
        };
        let xl = command_path(&["xl", "list"]);
        let both = |domain: &str, machine: &str| {
            let (list, status) = (list(domain), status(machine));
            paused(&[(&xl, &list), ("run/libvirt/qemu/web.xml", &status)])
        };
        assert_eq!(both("--p---", "paused"), [true, true]);
        assert_eq!(both("-b----", "pmsuspended"), [false, true]);
        assert_eq!(both("-b----", "running"), [false, false], "they may hang");
        assert_eq!(paused(&[]), [false, false], "no one says so");
    }

    #[test]
    fn a_guest_that_is_paused_is_no_alarm() {
        let rules = include_str!("../../../packaging/doctor/alerts.yml");
        let rule = rules.lines().find(|line| line.contains("vif_wait_seconds")).expect("its rule");
        let others = format!("{{reason!=\"{}\"}}", crate::watch::PAUSED);
        assert!(rule.contains(&others), "{rule}");
    }
}
