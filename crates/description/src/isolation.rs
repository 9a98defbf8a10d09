//! Whether each tenant of a description can have a process of its own.

use crate::value::TenantName;
use crate::{GuestVif, Host, Place, Vhost};

/// Whose vif it is, by its place in the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Guest(usize),
    Vhost(usize),
}

/// A vif of the description.
struct Member<'a> {
    owner: Owner,
    /// Its owner's name for people.
    name: String,
    /// Its own name.
    port: String,
    /// `None` if it can have none.
    tenant: Option<TenantName>,
    vif: &'a GuestVif,
}

impl Host {
    /// All vifs of the description. Guests get their domains in its order.
    fn members(&self) -> Vec<Member<'_>> {
        let guests =
            self.guests.iter().enumerate().zip(1_u16..).flat_map(|((at, guest), domid)| {
                (0_u8..).zip(&guest.vifs).map(move |(handle, vif)| Member {
                    owner: Owner::Guest(at),
                    name: format!("guest {}", guest.name),
                    port: format!("vif{domid}.{handle}"),
                    tenant: Some(
                        vif.tenant.clone().unwrap_or_else(|| TenantName::of_domain(domid)),
                    ),
                    vif,
                })
            });
        let vhosts = self.vhosts.iter().enumerate().map(|(at, vhost)| Member {
            owner: Owner::Vhost(at),
            name: match vhost.place {
                Place::Socket { .. } => format!("vhost {}", vhost.name),
                Place::Namespace(_) => format!("namespace {}", vhost.name),
            },
            port: vhost.name.0.clone(),
            tenant: vhost.tenant(),
            vif: &vhost.vif,
        });
        guests.chain(vhosts).collect()
    }

    /// Why a virtio vif cannot be added to a running host whose tenants have processes of their
    /// own, beside others that were added before; `None` if it can.
    pub fn obstacle_to_addition<'a>(
        &self,
        added: impl Iterator<Item = &'a Vhost>,
        new: &Vhost,
    ) -> Option<String> {
        let mut host = self.clone();
        host.vhosts.extend(added.cloned());
        let owner = Owner::Vhost(host.vhosts.len());
        host.vhosts.push(new.clone());
        let mut obstacles = host.obstacles_to_isolation().into_iter();
        obstacles.find(|(of, _)| *of == owner).map(|(_, reason)| reason)
    }

    /// Why these tenants cannot have processes of their own, each reason with the owner of a vif;
    /// empty if they can.
    pub(crate) fn obstacles_to_isolation(&self) -> Vec<(Owner, String)> {
        let mut obstacles = Vec::new();
        let all = self.members();
        let on_switch = || all.iter().filter(|member| member.vif.bridge.is_none());
        for Member { owner, name, tenant, vif, .. } in on_switch() {
            obstacles
                .extend(self.unseen_by(name, tenant.as_ref(), vif, &all).map(|it| (*owner, it)));
            let is_other = |other: &&Member<'_>| {
                tenant.is_some() && other.tenant == *tenant && vif.reach() != other.vif.reach()
            };
            // Each pair is met once from either side.
            if let Some(Member { name: another, .. }) =
                on_switch().take_while(|it| it.owner <= *owner).find(is_other)
            {
                let reason = format!(
                    "{another} and {name} belong to one tenant, which has one trunk: its vifs must \
                     all be in VLANs or none, and all be private or none; give one of them another \
                     `tenant`"
                );
                obstacles.push((*owner, reason));
            }
        }
        for Member { owner, name, .. } in all.iter().filter(|member| member.tenant.is_none()) {
            let reason = format!(
                "{name} has a name of more than {} characters and no tenant: give it a `tenant`, \
                 whose process serves it",
                TenantName::VHOST_LEN_MAX
            );
            obstacles.push((*owner, reason));
        }
        obstacles
    }

    /// Why the process of a vif's tenant does not see all frames that the vif should get copies of,
    /// if so.
    fn unseen_by(
        &self,
        name: &str,
        tenant: Option<&TenantName>,
        vif: &GuestVif,
        all: &[Member<'_>],
    ) -> Option<String> {
        let own = tenant?;
        vif.mirror.iter().map(|it| &it.0.port).find_map(|port| {
            if self.uplink.as_ref().is_some_and(|uplink| uplink.name.0 == *port) {
                return Some(format!(
                    "{name} has a mirror of {port}, whose frames no tenant's process sees: \
                     expected vifs of its own tenant, or trunk, its connection to the others"
                ));
            }
            let other = all.iter().find(|other| other.port == *port)?.tenant.as_ref()?;
            (other != own).then(|| {
                format!(
                    "{name} of tenant {own} has a mirror of {port} of tenant {other}, whose frames \
                     its own process does not see: give both one `tenant`, or name vifs of its \
                     own tenant, or trunk, its connection to the others"
                )
            })
        })
    }
}
