//! The control plane's side of the switch: which ports are in which VLANs, private, or uplinks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};

use ringway_datapath::{MacAddr, MulticastRouter, Vid, VlanRules};

use crate::classify::new_fdb;
use crate::domain::{Domain, PortSet};
use crate::fdb::{Assigned, FdbEntry, Unbound};
use crate::groups::{GroupEntry, Groups, MulticastPort};
use crate::policy::{PortVlan, PortVlans};
use crate::querier::{Awaited, Queriers};
use crate::{PortId, Switch, Ticks};

/// VLANs with ports, each of which has a forwarding table.
pub const VLANS_MAX: usize = 256;

/// A port's role in the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It reaches all ports except private ones.
    Ordinary,
    /// It reaches uplinks only.
    Private,
    /// It reaches all ports.
    Uplink,
    /// It gets a mirror's copies and nothing else: it is in no VLAN and receives no floods. Its
    /// policy must be [`PortPolicy::disabled`](crate::PortPolicy::disabled).
    Mirror,
}

/// There are already as many VLANs as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyVlans {
    /// That maximum.
    pub max: usize,
}

impl std::error::Error for TooManyVlans {}

impl std::fmt::Display for TooManyVlans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the switch has {} VLANs, which is the limit", self.max)
    }
}

impl Switch {
    /// Puts a port into these VLANs and removes it from all others. Returns what workers must know,
    /// for the port's [`PortPolicy`](crate::PortPolicy).
    ///
    /// # Errors
    /// [`TooManyVlans`]; nothing has then changed.
    pub fn join(
        &self,
        port: PortId,
        rules: &VlanRules,
        role: Role,
    ) -> Result<PortVlan, TooManyVlans> {
        let mut vlans = self.lock();
        let wanted: BTreeSet<Vid> = rules.untagged.iter().chain(&rules.tagged).copied().collect();
        // Those that this port alone leaves are free for it.
        let others = vlans.values().filter(|domain| domain.members.has_other(port));
        let others = others.filter(|domain| !wanted.contains(&domain.vid)).count();
        if wanted.len() + others > VLANS_MAX {
            return Err(TooManyVlans { max: VLANS_MAX });
        }
        let mut domain = |vid: &Vid| {
            let made = vlans.entry(*vid).or_insert_with(|| Arc::new(self.new_domain(*vid)));
            Arc::clone(made)
        };
        let untagged = rules.untagged.as_ref().map(&mut domain);
        let mut tagged: Vec<Arc<Domain>> = rules.tagged.iter().map(&mut domain).collect();
        tagged.sort_unstable_by_key(|domain| domain.vid);
        tagged.dedup_by_key(|domain| domain.vid);
        let is_untagged = |vid: Vid| untagged.as_ref().is_some_and(|domain| domain.vid == vid);
        for domain in vlans.values() {
            let is_tagged = !is_untagged(domain.vid) && rules.tagged.contains(&domain.vid);
            let is_in = is_tagged || is_untagged(domain.vid);
            domain.tagged.set(port, is_tagged);
            domain.members.set(port, is_in);
            if !is_in {
                domain.fdb.remove_port(port);
            }
        }
        drop_unused(&mut vlans);
        drop(vlans);
        let is_apart = !rules.is_none() || role == Role::Mirror;
        self.in_vlans.set(port, is_apart);
        if is_apart {
            self.fdb().remove_port(port);
        }
        if role == Role::Mirror {
            self.fdb().set_addresses_max(port, 0);
        }
        self.set_role(port, role);
        self.set_multicast_router(
            port,
            match role {
                Role::Uplink => MulticastRouter::Always,
                Role::Ordinary | Role::Private | Role::Mirror => MulticastRouter::Never,
            },
        );
        Ok(match rules.is_none() {
            true => PortVlan::None,
            false => PortVlan::Some(Arc::new(PortVlans { untagged, tagged: tagged.into() })),
        })
    }

    /// The VLANs that uplinks are in.
    pub fn vlans_of_uplinks(&self) -> BTreeSet<Vid> {
        let all = (0..self.config.ports_max).map(PortId);
        let uplinks: Vec<PortId> = all.filter(|port| self.uplinks.has(*port)).collect();
        let vlans = self.lock();
        let domains = vlans.values();
        let of_uplinks = domains.filter(|it| uplinks.iter().any(|port| it.members.has(*port)));
        of_uplinks.map(|domain| domain.vid).collect()
    }

    /// Whether a multicast router may be behind a port. [`Switch::join`] sets it to `Always` for an
    /// uplink, and to `Never` for other ports.
    pub fn set_multicast_router(&self, port: PortId, mode: MulticastRouter) {
        let Some(groups) = &self.groups else { return };
        let vlans = self.lock();
        let count = vlans.values().filter(|domain| domain.members.has(port)).count();
        groups.begin(port, mode, if count > 1 { Awaited::Time } else { Awaited::Query });
    }

    /// Replaces the pairs of ports that are the two ends of a link: frames that no bridge forwards
    /// go from one to the other, except pause frames.
    pub fn set_links(&self, pairs: &[(PortId, PortId)]) {
        self.links.set(pairs);
    }

    /// Whether there are such pairs.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Removes a port from all tables. Its workers must have stopped taking frames from it, or the
    /// tables would learn it again.
    pub fn leave(&self, port: PortId) {
        self.fdb().remove_port(port);
        let mut vlans = self.lock();
        for domain in vlans.values() {
            domain.members.set(port, false);
            domain.tagged.set(port, false);
            domain.fdb.remove_port(port);
        }
        drop_unused(&mut vlans);
        drop(vlans);
        self.in_vlans.set(port, false);
        self.set_role(port, Role::Ordinary);
        self.mirrors().forget(port);
        self.links.forget(port);
        if let Some(groups) = &self.groups {
            groups.forget(port);
        }
    }

    /// Replaces the assigned addresses of a port in all its VLANs, and limits how many it may have
    /// in each. Returns those that it did not get.
    pub fn assign(&self, port: PortId, assigned: &Assigned<'_>, now: Ticks) -> Vec<Unbound> {
        if !self.in_vlans.has(port) {
            return self.fdb().assign(port, assigned, now);
        }
        let vlans = self.lock();
        let of_port = vlans.values().filter(|domain| domain.members.has(port));
        of_port.flat_map(|domain| domain.fdb.assign(port, assigned, now)).collect()
    }

    /// The last address that a port was refused because another has it, and who that is now.
    pub fn taken(&self, port: PortId, now: Ticks) -> Option<(MacAddr, Option<PortId>)> {
        let of_vlan = |domain: &Arc<Domain>| domain.fdb.taken(port, now);
        self.fdb().taken(port, now).or_else(|| self.lock().values().find_map(of_vlan))
    }

    /// Removes the entries of all tables that have aged; see [`Fdb::expire`]. This also ends group
    /// memberships and detects whether a querier is present: call it several times a second if
    /// multicast is snooped.
    pub fn expire(&self, now: Ticks) {
        self.fdb().expire(now);
        let vlans = self.lock();
        for domain in vlans.values() {
            domain.fdb.expire(now);
        }
        if let Some(groups) = &self.groups {
            let of_vlans = vlans.values().map(|domain| &domain.queriers);
            groups.expire(now, of_vlans.chain([&self.queriers]));
        }
    }

    /// The multicast groups that have members, in no particular order; empty if multicast is not
    /// snooped.
    pub fn group_entries(&self) -> Vec<GroupEntry> {
        self.groups.as_ref().map(Groups::entries).unwrap_or_default()
    }

    /// A port's multicast state; `None` if multicast is not snooped.
    pub fn multicast_port(&self, port: PortId) -> Option<MulticastPort> {
        self.groups.as_ref().map(|groups| groups.of_port(port))
    }

    /// The entries of all tables that have not aged, with their VLANs.
    pub fn entries(&self, now: Ticks) -> Vec<(Option<Vid>, FdbEntry)> {
        let mut entries: Vec<_> = self.fdb().entries(now).map(|entry| (None, entry)).collect();
        for (vid, domain) in &*self.lock() {
            entries.extend(domain.fdb.entries(now).map(|entry| (Some(*vid), entry)));
        }
        entries
    }

    fn set_role(&self, port: PortId, role: Role) {
        self.private.set(port, role == Role::Private);
        self.uplinks.set(port, role == Role::Uplink);
        self.has_private.store(!self.private.is_empty(), Relaxed);
    }

    fn new_domain(&self, vid: Vid) -> Domain {
        let ports = || PortSet::new(self.config.ports_max);
        Domain {
            vid,
            fdb: new_fdb(&self.config),
            members: ports(),
            tagged: ports(),
            queriers: Queriers::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vid, Arc<Domain>>> {
        // Nothing panics while the lock is held; even then the map would be consistent.
        self.vlans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn drop_unused(vlans: &mut BTreeMap<Vid, Arc<Domain>>) {
    vlans.retain(|_, domain| !domain.members.is_empty());
}
