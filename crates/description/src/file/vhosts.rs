//! Vifs of virtual machines behind vhost-user sockets: `[[vhost]]`.

use std::collections::HashSet;

use toml::Spanned;

use super::claims::Claims;
use super::{Source, start};
use crate::limits::Limited;
use crate::section::{ONLY_OF_GUEST, ONLY_OF_NAMESPACE, VifSection};
use crate::value::{FeatureText, InterfaceName};
use crate::{Place, VHOSTS_MAX, Vhost};

impl Source<'_> {
    /// Vifs of virtual machines behind sockets.
    pub(super) fn vhosts(
        &self,
        sections: &[Spanned<Limited<VifSection>>],
        claims: &mut Claims,
    ) -> Vec<Vhost> {
        let (mut names, mut sockets, mut vhosts) = (HashSet::new(), HashSet::new(), Vec::new());
        if let Some(section) = sections.get(usize::from(VHOSTS_MAX)) {
            self.fault_at(section, &format!("vhost: expected at most {VHOSTS_MAX} of them"));
        }
        for whole in sections {
            let section = whole.get_ref();
            let (name, socket) = (section.name.as_ref(), section.socket.as_ref());
            let near = name.map(start).or(socket.map(start));
            if name.is_none() {
                self.lacks(whole, ("[[vhost]]", "name"), near);
            }
            if socket.is_none() {
                self.lacks(whole, ("[[vhost]]", "socket"), near);
            }
            if let Some(name) = name.filter(|it| !names.insert(it.get_ref())) {
                let message = format!("vhost.name: another vhost is called `{}`", name.get_ref());
                self.fault_at(name, &message);
            }
            if let Some(socket) = socket.filter(|it| !sockets.insert(it.get_ref())) {
                let message = format!("vhost.socket: another vhost has `{}`", socket.get_ref());
                self.fault_at(socket, &message);
            }
            self.refuse_of_guests(section);
            self.refuse_of_namespaces(section, "vhost");
            self.check_device(section);
            self.check_features(section);
            let vif = self.vif(whole, ("vhost", 0, 0), None);
            let mac = section.mac.as_ref().map(|mac| (*mac.get_ref(), start(mac)));
            let owner = name.map_or("a [[vhost]]", |name| &name.get_ref().0);
            self.claim(claims, section, ("vhost", &format!("`{owner}`")), mac, &vif);
            let (Some(name), Some(socket)) = (name, socket) else { continue };
            vhosts.push(Vhost {
                name: name.get_ref().clone(),
                place: Place::Socket {
                    socket: socket.get_ref().clone(),
                    mode: section.mode.as_ref().map(|mode| *mode.get_ref()).unwrap_or_default(),
                },
                queues: vif.queues.unwrap_or(1),
                mac: section.mac.as_ref().map(|mac| *mac.get_ref()),
                features: section
                    .features
                    .as_ref()
                    .map_or_else(Vec::new, |it| it.get_ref().clone()),
                max_memory: section.max_memory.as_ref().map(|it| *it.get_ref()),
                iface_id: section.iface_id.as_ref().map(|it| it.get_ref().clone()),
                vm_uuid: section.vm_uuid.as_ref().map(|it| it.get_ref().clone()),
                bind: section.bind.as_ref().map(|it| *it.get_ref()).unwrap_or_default(),
                vif,
            });
        }
        vhosts
    }

    /// Checks that the network device of a vif on a bridge can have the vif's name.
    fn check_device(&self, section: &VifSection) {
        let (Some(name), Some(bridge)) = (&section.name, &section.bridge) else { return };
        if name.get_ref().0.parse::<InterfaceName>().is_err() {
            let message = format!(
                "vhost.bridge: the network device on it gets the name `{}`: expected a vhost.name \
                 of at most 15 letters, digits, `-`, `_` and `.`",
                name.get_ref()
            );
            self.fault_at(bridge, &message);
        }
    }

    /// Checks that no feature is in the list twice.
    fn check_features(&self, section: &VifSection) {
        let Some(features) = &section.features else { return };
        let names: Vec<&str> = features.get_ref().iter().map(FeatureText::name).collect();
        let is_double = |(at, name): &(usize, &&str)| names[..*at].contains(*name);
        if let Some((_, name)) = names.iter().enumerate().find(is_double) {
            let message =
                format!("vhost.features: `{name}` is in the list twice: remove one of them");
            self.fault_at(features, &message);
        }
    }

    /// Keys that only the vif of a network namespace has.
    pub(super) fn refuse_of_namespaces(&self, section: &VifSection, of: &str) {
        self.refuse(section, of, &ONLY_OF_NAMESPACE, |_| "only in [[namespace]]; remove it");
    }

    /// Keys that apply only to an emulated guest or to a Xen vif.
    fn refuse_of_guests(&self, section: &VifSection) {
        self.refuse(section, "vhost", &ONLY_OF_GUEST, |key| match key {
            "max-queues" => "only in [[guest.vif]]; use `queues` here",
            "addresses" => {
                "only in [[guest.vif]]; set addresses in the guest, and use `allowed-ips` to limit \
                 them"
            }
            _ => "only in [[guest.vif]]; remove it",
        });
    }
}
