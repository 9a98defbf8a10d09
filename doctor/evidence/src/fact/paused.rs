//! Guests that their toolstacks have paused: that they take no frames then is no fault.

use std::collections::BTreeSet;

use super::{Fact, Machines, Reader, Tried, XenDomains};
use crate::parse::domains::Domains;
use crate::parse::libvirt::Interface;
use crate::parse::ringway::{Vif, socket_names};
use crate::{Gap, Piece};

/// Guests that toolstacks say are paused. One that no toolstack knows may hang, which is an alarm.
#[derive(Debug)]
pub struct PausedGuests {
    /// The numbers of Xen's domains.
    domains: BTreeSet<u32>,
    /// The interfaces of libvirt's machines.
    interfaces: Vec<Interface>,
}

impl Fact for PausedGuests {
    const PIECES: &'static [Piece] =
        &[Piece::All(XenDomains::PIECES), Piece::All(Machines::PIECES)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let domains: Tried<XenDomains> = at.fact()?;
        let domains = domains.ok().and_then(|list| Domains::parse(list).ok()).unwrap_or_default();
        let domains = domains.domains.iter().filter(|(_, domain)| domain.is_paused);
        let machines: Machines = at.fact()?;
        let running = machines.all.into_values().filter_map(|machine| machine.running?.ok());
        let paused = running.filter(|defined| defined.guest.is_paused == Some(true));
        Ok(PausedGuests {
            domains: domains.map(|(id, _)| *id).collect(),
            interfaces: paused.flat_map(|defined| defined.guest.interfaces).collect(),
        })
    }
}

impl PausedGuests {
    /// Whether the guest of this vif of ringway is among them.
    pub fn has(&self, vif: &Vif) -> bool {
        let is_domain = vif.domid.is_some_and(|id| self.domains.contains(&u32::from(id)));
        let socket = vif.virtio.as_ref().map(|virtio| socket_names(&virtio.socket));
        let is_socket = |socket: Vec<&str>| {
            let is_it = |nic: &Interface| socket_names(&nic.socket) == socket;
            !socket.is_empty() && self.interfaces.iter().any(is_it)
        };
        is_domain || socket.is_some_and(is_socket)
    }

    /// Whether the guest behind this interface of the host is among them: `vif7.0` of Xen's domain
    /// 7, or a TAP device of libvirt's machine.
    pub fn has_interface(&self, nic: &str) -> bool {
        let domain = nic.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
        let domain = domain.and_then(|(id, _)| id.parse::<u32>().ok());
        domain.is_some_and(|id| self.domains.contains(&id))
            || self.interfaces.iter().any(|it| it.target == nic)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fact::Host;
    use crate::{Source, command_path};

    /// Whether the guests of a Xen and of a virtio vif are paused, and those of a Xen and of a TAP
    /// device, if toolstacks say this.
    fn paused(said: &[(&str, &str)]) -> [bool; 4] {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let pieces: BTreeMap<String, String> = said.iter().map(own).collect();
        let vif = |name: &str, more: &str| {
            let text = format!(r#"{{"name":"{name}",{more},"max_queues":1,"queues":[]}}"#);
            serde_json::from_str::<Vif>(&text).expect("a vif")
        };
        let xen = vif("vif7.0", r#""kind":"xen","domid":7"#);
        let virtio = vif("vm1", r#""kind":"virtio","virtio":{"socket":"/run/vms//vm1"}"#);
        let host = Host::new(Source::Memory(pieces));
        let known: PausedGuests = host.fact().expect("what is missing says nothing");
        let [of_domain, of_machine] = ["vif7.0", "vnet3"].map(|nic| known.has_interface(nic));
        [known.has(&xen), known.has(&virtio), of_domain, of_machine]
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
                 <interface type='bridge'><target dev='vnet3'/></interface></devices></domain>\
                 </domstatus>\n"
            )
        };
        let xl = command_path(&["xl", "list"]);
        let both = |domain: &str, machine: &str| {
            let (list, status) = (list(domain), status(machine));
            paused(&[(&xl, &list), ("run/libvirt/qemu/web.xml", &status)])
        };
        assert_eq!(both("--p---", "paused"), [true; 4]);
        assert_eq!(both("-b----", "pmsuspended"), [false, true, false, true]);
        assert_eq!(both("-b----", "running"), [false; 4], "they may hang");
        assert_eq!(paused(&[]), [false; 4], "no toolstack says so");
    }
}
