//! Vifs of network namespaces: `[[namespace]]`.

use std::collections::HashSet;

use ringway_ovs::Bind;
use toml::Spanned;

use super::claims::Claims;
use super::{Source, start};
use crate::limits::Limited;
use crate::section::{NOT_OF_NAMESPACE, VifSection};
use crate::value::{InterfaceName, Within};
use crate::{GuestVif, NamespaceDevice, NetnsName, Place, VHOSTS_MAX, Vhost};

/// The name of a device that has none of its own.
const DEVICE: &str = "eth0";
/// Queues of a device: its files are passed on in one message.
const QUEUES_MAX: u16 = 32;

impl Source<'_> {
    /// Vifs of network namespaces, beside those of virtual machines.
    pub(super) fn namespaces(
        &self,
        sections: &[Spanned<Limited<VifSection>>],
        vhosts: &[Vhost],
        claims: &mut Claims,
    ) -> Vec<Vhost> {
        let mut names: HashSet<String> = vhosts.iter().map(|it| it.name.0.clone()).collect();
        let mut namespaces: Vec<Vhost> = Vec::new();
        if let Some(section) = sections.get(usize::from(VHOSTS_MAX).saturating_sub(vhosts.len())) {
            let message = format!("namespace: expected at most {VHOSTS_MAX}, with each [[vhost]]");
            self.fault_at(section, &message);
        }
        for whole in sections {
            let section = whole.get_ref();
            self.refuse_of_others(section);
            let vif = self.vif(whole, ("namespace", 0, 0), None);
            let mac = section.mac.as_ref().map(|mac| (*mac.get_ref(), start(mac)));
            let owner = section.name.as_ref().map_or("a [[namespace]]", |name| &name.get_ref().0);
            self.claim(claims, section, ("namespace", &format!("`{owner}`")), mac, &vif);
            let Some(name) = &section.name else {
                self.lacks(whole, ("[[namespace]]", "name"), None);
                continue;
            };
            if !names.insert(name.get_ref().0.clone()) {
                let message = format!("namespace.name: another vif is called `{}`", name.get_ref());
                self.fault_at(name, &message);
            }
            let place = Place::Namespace(device(section, &name.get_ref().0));
            if namespaces.iter().any(|other| other.place.is_same(&place)) {
                let at = section.device.as_ref().map_or(start(name), start);
                let message = format!("namespace.device: another one is {place}: choose another");
                self.fault(Some(at), &message);
            }
            namespaces.push(Vhost {
                name: name.get_ref().clone(),
                place,
                queues: vif.queues.unwrap_or(1),
                mac: section.mac.as_ref().map(|mac| *mac.get_ref()),
                features: Vec::new(),
                max_memory: None,
                iface_id: None,
                vm_uuid: None,
                bind: Bind::default(),
                // Its kernel says itself who is here.
                vif: GuestVif { addresses: Vec::new(), is_unannounced: true, ..vif },
            });
        }
        namespaces
    }

    /// Keys that a network namespace does not have.
    fn refuse_of_others(&self, section: &VifSection) {
        self.refuse(section, "namespace", &NOT_OF_NAMESPACE, |key| match key {
            "bridge" => "not here; a namespace on a bridge needs no ringway: use a pair of veth",
            "gateway" => "not here; set routes in the namespace",
            "max-queues" => "not here; use `queues`",
            _ => "not here; remove it",
        });
        let queues: Option<u16> = section.queues.and_then(Within::get);
        if let Some(queues) = queues {
            if queues > QUEUES_MAX {
                let at = section.name.as_ref().map(start);
                let message = format!("namespace.queues: expected at most {QUEUES_MAX}");
                self.fault(at, &message);
            }
        }
    }
}

fn device(section: &VifSection, name: &str) -> NamespaceDevice {
    let netns = section.netns.as_ref().map(|netns| netns.get_ref().clone());
    let device = section.device.as_ref().map(|device| device.get_ref().clone());
    NamespaceDevice {
        netns: netns.unwrap_or_else(|| NetnsName(name.to_owned())),
        device: device.unwrap_or_else(|| InterfaceName(DEVICE.to_owned())),
        addresses: section.addresses.iter().map(|address| *address.get_ref()).collect(),
    }
}
