//! Whether each tenant of a description can have a process of its own.

use crate::value::TenantName;
use crate::{GuestVif, Host};

/// Whose vif it is, by its place in the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Guest(usize),
    Vhost(usize),
}

impl Host {
    /// Why these tenants cannot have processes of their own, each reason with the owner of a vif;
    /// empty if they can.
    pub(crate) fn obstacles_to_isolation(&self) -> Vec<(Owner, String)> {
        let mut obstacles = Vec::new();
        let guests = self.guests.iter().enumerate().flat_map(|(at, guest)| {
            let name = format!("guest {}", guest.name);
            guest.vifs.iter().map(move |vif| (Owner::Guest(at), name.clone(), vif))
        });
        let vhosts = self.vhosts.iter().enumerate();
        let vhosts =
            vhosts.map(|(at, it)| (Owner::Vhost(at), format!("vhost {}", it.name), &it.vif));
        let all: Vec<_> = guests.chain(vhosts).collect();
        let on_switch = || all.iter().filter(|(.., vif)| vif.bridge.is_none());
        for (owner, name, vif) in on_switch() {
            let uplink = self.uplink.as_ref().map(|uplink| uplink.name.to_string());
            let mut mirrored = vif.mirror.iter().map(|it| &it.0.port);
            if let Some(port) = mirrored.find(|port| uplink.as_ref() == Some(*port)) {
                let reason = format!(
                    "{name} has a mirror of {port}, whose frames no tenant's process sees: \
                     expected vifs of its own tenant, or trunk, its connection to the others"
                );
                obstacles.push((*owner, reason));
            }
            let is_other = |(another, _, other): &&(Owner, String, &GuestVif)| {
                let is_same_tenant = match (&vif.tenant, &other.tenant) {
                    (None, None) => owner == another,
                    (one, another) => one == another,
                };
                is_same_tenant && vif.reach() != other.reach()
            };
            // Each pair is met once from either side.
            if let Some((_, another, _)) =
                on_switch().take_while(|it| it.0 <= *owner).find(is_other)
            {
                let reason = format!(
                    "{another} and {name} belong to one tenant, which has one trunk: its vifs must \
                     all be in VLANs or none, and all be private or none; give one of them another \
                     `tenant`"
                );
                obstacles.push((*owner, reason));
            }
        }
        for (at, vhost) in self.vhosts.iter().enumerate() {
            let name = &vhost.name;
            if vhost.vif.bridge.is_some() {
                let reason = format!(
                    "vhost {name} has a bridge, and with `isolate` no process that serves virtio \
                     vifs has network devices: remove its `bridge`, or do not isolate tenants"
                );
                obstacles.push((Owner::Vhost(at), reason));
            }
            if vhost.tenant().is_none() {
                let reason = format!(
                    "vhost {name} has a name of more than {} characters and no tenant: give it a \
                     `tenant`, whose process serves it",
                    TenantName::VHOST_LEN_MAX
                );
                obstacles.push((Owner::Vhost(at), reason));
            }
        }
        obstacles
    }
}
