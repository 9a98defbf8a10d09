//! The tenants of an isolated host, in the process that joins them and the uplink: each is a port
//! of the switch, and its own process is behind it.
//!
//! That process is trusted as little as a guest. The supervisor, and no tenant, determines which
//! addresses may be used behind each port.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ringway_calls::{BackendStatus, VifStatus};
use ringway_datapath::{MacAddr, QueueCounters, VlanRules};
use ringway_engine::{Stations, Weight};
use ringway_switch::fdb::{Assigned, NotBound};
use ringway_switch::{PortId, PortPolicy, Role, TooManyVlans};

use crate::comparison::Followed;
use crate::device::Keeper;
use crate::other_port::OtherPort;
use crate::shared::Shared;
use crate::status::{fdb_status, groups_status};
use crate::uplink::UplinkPort;
use crate::world::{Hosting, QueueOf, World};

/// The rules of all vifs of a tenant.
#[derive(Debug)]
pub struct TenantRules {
    own: Option<Vec<MacAddr>>,
    shared: Vec<MacAddr>,
    vlans: VlanRules,
    role: Role,
}

/// Its tenants, and the uplink beside them.
pub struct Tenants<W: World> {
    by_name: BTreeMap<String, Tenant>,
    /// The uplink of the switch, if it has one.
    pub uplink: Option<UplinkPort<W>>,
}

#[derive(Debug)]
struct Tenant {
    port: PortId,
    counters: Vec<Arc<QueueCounters>>,
}

impl<W: World> Tenants<W> {
    /// No tenants, beside this uplink.
    pub fn new(uplink: Option<UplinkPort<W>>) -> Tenants<W> {
        Tenants { by_name: BTreeMap::new(), uplink }
    }

    /// Attaches the queues to a tenant's process, which has none yet.
    ///
    /// # Errors
    /// The switch has no room, or this host lacks threads. Then nothing was done.
    pub fn attach(
        &mut self,
        tenant: &str,
        queues: Vec<(QueueOf<W>, Arc<QueueCounters>)>,
        rules: &TenantRules,
        hosting: &mut Hosting<'_, W>,
    ) -> io::Result<()> {
        let counters: Vec<_> = queues.iter().map(|(_, counters)| Arc::clone(counters)).collect();
        let port = hosting.shared.allocate_port()?;
        self.by_name.insert(tenant.to_owned(), Tenant { port, counters });
        let policy = rules.join(port, hosting.shared).map_err(io::Error::other);
        let attached = policy.and_then(|policy| {
            self.assign(port, rules, hosting);
            let flood = hosting.shared.flood_budget(hosting.now);
            hosting.attach(port, &policy, (&flood, Stations::One(Weight::ONE)), queues)
        });
        if attached.is_err() {
            self.remove(tenant, hosting);
        }
        attached
    }

    /// Changes what a tenant may use, if it is attached.
    pub fn allow(&self, tenant: &str, rules: &TenantRules, hosting: &mut Hosting<'_, W>) {
        let Some(port) = self.by_name.get(tenant).map(|tenant| tenant.port) else { return };
        let policy = rules.join(port, hosting.shared).unwrap_or_else(|error| {
            tracing::warn!("{error}: the frames of this tenant are not forwarded");
            Arc::new(PortPolicy::disabled())
        });
        self.assign(port, rules, hosting);
        hosting.set_policy(port, &policy);
    }

    /// Assigns a tenant's addresses to its port, so that no other port can take them.
    fn assign(&self, port: PortId, rules: &TenantRules, hosting: &Hosting<'_, W>) {
        let shared = &hosting.shared;
        let (own, addresses_max) = match &rules.own {
            Some(own) => (&own[..], 1),
            None => (&[][..], shared.config.switch.fdb_entries_max),
        };
        let assigned = Assigned { own, shared: &rules.shared, addresses_max };
        for (mac, reason) in shared.switch.assign(port, &assigned, shared.ticks(hosting.now)) {
            match reason {
                NotBound::OtherPort(other) | NotBound::Shared(other) => {
                    let [port, other] = [port, other].map(|port| self.port_name(port));
                    tracing::warn!(%mac, port, other, "two tenants have this address");
                }
                NotBound::NoRoom => {
                    tracing::warn!(%mac, "no room for this address: raise fdb-entries");
                }
            }
        }
    }

    /// Takes the queues of a tenant back, if it is attached. Returns whether it was.
    pub fn remove(&mut self, tenant: &str, hosting: &mut Hosting<'_, W>) -> bool {
        let gone = self.by_name.remove(tenant);
        let gone = gone.map(|gone| hosting.shared.release_port(gone.port, hosting.engines));
        gone.is_some()
    }

    /// The tenant with this port.
    pub fn at(&self, port: PortId) -> Option<&str> {
        self.by_name.iter().find(|(_, tenant)| tenant.port == port).map(|(name, _)| name.as_str())
    }

    /// Follows what has become of the device of the uplink, if it is time to.
    pub fn follow_uplink(&mut self, hosting: &mut Hosting<'_, W>) {
        let now = hosting.now;
        let Some(uplink) = &mut self.uplink else { return };
        if !hosting.shared.comparison.take_due(true, now) {
            return;
        }
        let followed = match hosting.devices.keeper().and_then(Keeper::read_links) {
            Some(links) => uplink.follow_device(Some(&links), hosting),
            None => Followed::Again,
        };
        hosting.shared.comparison.done(followed, now);
    }

    /// The status of their ports, of the uplink and of the switch.
    pub fn status(&self, hosting: &mut Hosting<'_, W>) -> BackendStatus {
        let Hosting { shared, engines, now, .. } = hosting;
        let switch = &shared.switch;
        let name_of = |port| self.port_name(port);
        let trunk_status = |(tenant, Tenant { port, counters }): (&String, &Tenant)| {
            let name = &self.port_name(*port);
            let trunk = OtherPort { port: *port, name, counters, rules: None, fault: None };
            let status = trunk.status(switch, *engines, *now, &name_of);
            VifStatus { tenant: Some(tenant.clone()), ..status }
        };
        let uplink = self.uplink.as_ref().map(UplinkPort::describe);
        BackendStatus {
            trunks: self.by_name.iter().map(trunk_status).collect(),
            uplink: uplink.map(|uplink| uplink.status(switch, *engines, *now, &name_of)),
            fdb: fdb_status(switch, shared.ticks(*now), name_of),
            groups: groups_status(switch, name_of),
            ..BackendStatus::default()
        }
    }

    fn port_name(&self, port: PortId) -> String {
        let name = self.at(port).map(|tenant| format!("trunk-{tenant}"));
        let uplink = self.uplink.as_ref().filter(|uplink| uplink.port == port);
        let name = name.or_else(|| uplink.map(|uplink| uplink.name.clone()));
        name.unwrap_or_else(|| format!("port {port}"))
    }
}

impl TenantRules {
    /// A tenant with the Ethernet addresses `own` that no other has, or any if it is `None`, with
    /// those that it may share, and the VLANs of its vifs. If one of them is private, everything
    /// that the tenant sends goes to the uplink only, because a frame does not show which vif it is
    /// from.
    pub fn new(
        own: Option<Vec<MacAddr>>,
        mut shared: Vec<MacAddr>,
        vlans: VlanRules,
        is_private: bool,
    ) -> TenantRules {
        shared.retain(|mac| own.as_ref().is_none_or(|own| !own.contains(mac)));
        let role = if is_private { Role::Private } else { Role::Ordinary };
        TenantRules { own, shared, vlans, role }
    }

    /// Puts a tenant's port into its VLANs, and returns what the tenant may send. Its process
    /// checks its guests itself; this policy applies even if that process no longer does.
    fn join(&self, port: PortId, shared: &Shared) -> Result<Arc<PortPolicy>, TooManyVlans> {
        let vlan = shared.switch.join(port, &self.vlans, self.role)?;
        let others = || self.shared.iter().copied();
        let policy = match &self.own {
            None => PortPolicy::open(),
            Some(own) => PortPolicy::of_addresses(own.iter().copied().chain(others())),
        };
        Ok(Arc::new(policy.sharing(others()).in_vlans(vlan)))
    }
}
