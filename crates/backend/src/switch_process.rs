//! The switch process of an isolated backend: it joins the trunks of tenants and the uplink.
//!
//! It has no access to guests, XenStore or a hypervisor. It treats the process of a tenant as a
//! backend treats a guest: the code that serves vifs serves each trunk, with the same checks, share
//! and limits, and a tenant that breaks the protocol is cut off alone. The supervisor, and no
//! tenant, determines which trunks there are and which addresses may be used behind each.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{
    Allowed, BackendRequest, BackendStatus, Link, ProcessReport, Received, Reply, SwitchOrder,
    TrunkRules, VifStatus,
};
use ringway_datapath::{MacAddr, OffloadCaps, QueueCounters};
use ringway_host::{Followed, Keeper, OtherPort, Purpose, Shared, fdb_status, groups_status};
use ringway_hypervisor::Hypervisor;
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_switch::fdb::{Assigned, NotBound};
use ringway_switch::{PortId, PortPolicy, PortVlan, Role, TooManyVlans};
use ringway_sys::poll::{Source, Turns, readable, take_turns};
use ringway_tap::VifOrTap;
use ringway_trunk::{End, PEER, SwitchQueue, TrunkEvent, TrunkGrants, TrunkMemory};
use ringway_wire::{DomId, EvtchnPort};
use ringway_worker::{Attachment, Forwarding, Limits, Stations, Weight};

use crate::config::BackendConfig;
use crate::machinery::{AnyQueue, Machinery};
use crate::process::{HOUSEKEEPING, Process, Token};
use crate::sockets::Sockets;
use crate::uplink::{attach_uplink, vlans_of};
use crate::vif_or_trunk::VifOrTrunk;

/// Orders that are carried out before other work gets a turn.
const ORDERS_MAX: usize = 256; // not a limit: a batch, the rest follows

/// Replaces a hypervisor: the supervisor hands over complete trunks.
struct Trunks;

impl Hypervisor for Trunks {
    type Memory = TrunkMemory;
    type Grants = TrunkGrants;
    type Event = TrunkEvent;

    fn domid(&self) -> DomId {
        PEER
    }

    fn memory(&self) -> io::Result<TrunkMemory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn grants(&self) -> io::Result<TrunkGrants> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn alloc_unbound(&self, _remote: DomId) -> io::Result<TrunkEvent> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bind_interdomain(&self, _remote: DomId, _port: EvtchnPort) -> io::Result<TrunkEvent> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A tenant that has a trunk.
struct Tenant {
    port: PortId,
    counters: Vec<Arc<QueueCounters>>,
}

struct SwitchProcess {
    shared: Shared,
    tenants: BTreeMap<String, Tenant>,
    link: Arc<Link>,
    process: Process<Trunks>,
}

/// Joins trunks and the uplink until `stop` becomes readable.
///
/// # Errors
/// If the supervisor has ended, the uplink fails, or this host lacks threads, devices or sockets at
/// the start.
pub fn run_switch(
    config: BackendConfig,
    sockets: Sockets,
    link: Arc<Link>,
    stop: impl AsFd,
) -> io::Result<()> {
    let Sockets { control, net, .. } = sockets;
    let (mut process, mut shared) = Process::start(Trunks, config, control, net)?;
    let uplink = process.config.uplink.clone();
    let uplink = attach_uplink(uplink.as_ref(), &mut process.hosting(&mut shared))?;
    // The supervisor removes those of vifs.
    let is_kept = |purpose: &Purpose, _: &ringway_host::Link| match purpose {
        Purpose::Uplink => uplink.is_some(),
        Purpose::Xen(_) | Purpose::Virtio(_) => true,
    };
    let Machinery { devices, notes, .. } = &mut process.machinery;
    devices.delete_stale(is_kept, notes);
    process.reports.ready();
    process.uplink = uplink;
    take_turns(&mut SwitchProcess { shared, tenants: BTreeMap::new(), link, process }, &stop)
}

impl Turns for SwitchProcess {
    type Token = Token;
    const STOP: Token = Token::Stop;

    fn turn(&mut self, ready: &[Token]) -> io::Result<Option<Duration>> {
        self.process.begin_turn(ready, &mut self.shared);
        self.take_queues_down()?;
        self.follow_uplink();
        while let Some(call) = self.process.next_call(ready) {
            let reply = match &call.request {
                BackendRequest::Status => Reply::ok(&self.status()),
                _ => Reply::error("the switch process has no vifs"),
            };
            call.reply(reply);
        }
        if let Some(swept) = self.process.rebalance() {
            self.shared.switch.expire(self.shared.ticks(swept));
        }
        if ready.contains(&Token::Supervisor) {
            self.take_orders()?;
        }
        Ok(Some(HOUSEKEEPING))
    }

    fn sources(&self) -> Vec<Source<'_, Token>> {
        let mut sources = self.process.sources();
        sources.push(readable(Token::Supervisor, &self.link));
        sources
    }
}

impl SwitchProcess {
    /// Follows what has become of the device of the uplink.
    fn follow_uplink(&mut self) {
        let now = Instant::now();
        let SwitchProcess { shared, process: Process { machinery, uplink, .. }, .. } = self;
        let Some(uplink) = uplink.as_mut().filter(|_| shared.comparison.take_due(true, now)) else {
            return;
        };
        let followed = match machinery.devices.keeper().and_then(Keeper::read_links) {
            Some(links) => uplink.follow_device(Some(&links), &mut machinery.hosting(shared, now)),
            None => Followed::Again,
        };
        shared.comparison.done(followed, now);
    }

    /// Carries out the supervisor's orders.
    fn take_orders(&mut self) -> io::Result<()> {
        for _ in 0..ORDERS_MAX {
            match self.link.receive()? {
                Received::Message(SwitchOrder::Attach { tenant, allowed, shared, trunk }, fds) => {
                    self.detach(&tenant);
                    let end = End::from_fds(fds);
                    let attached =
                        end.and_then(|end| self.attach(end, &Macs::of(&allowed, &shared), &trunk));
                    match attached {
                        Ok(attached) => {
                            tracing::info!(tenant, queues = attached.counters.len(), "attached");
                            self.report(&ProcessReport::Attached { tenant: tenant.clone() });
                            self.tenants.insert(tenant, attached);
                        }
                        Err(error) => self.cut_off(tenant, &error.to_string()),
                    }
                }
                Received::Message(SwitchOrder::Allow { tenant, allowed, shared, trunk }, _) => {
                    if let Some(found) = self.tenants.get(&tenant) {
                        self.allow(found.port, &Macs::of(&allowed, &shared), &trunk);
                    }
                }
                Received::Message(SwitchOrder::Detach { tenant }, _) => self.detach(&tenant),
                Received::Nothing => return Ok(()),
                Received::End => {
                    let message = "the supervisor has ended";
                    return Err(io::Error::new(io::ErrorKind::BrokenPipe, message));
                }
            }
        }
        Ok(())
    }

    fn attach(&mut self, end: End, macs: &Macs, trunk: &TrunkRules) -> io::Result<Tenant> {
        let mut all_counters = Vec::new();
        let mut attachments: Vec<Attachment<AnyQueue<Trunks>>> = Vec::new();
        let shared = &mut self.shared;
        let now = Instant::now();
        let flood = shared.switch.flood_budget(shared.ticks(now));
        for SwitchQueue { memory, tx_ring, rx_ring, events } in end.into_switch_queues()? {
            let counters = Arc::new(QueueCounters::default());
            all_counters.push(Arc::clone(&counters));
            let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
            let queue = VifQueue::attach(QueueParts {
                peer: PEER,
                memory,
                tx_ring,
                rx_ring,
                events,
                features,
                counters: Arc::clone(&counters),
            });
            attachments.push(Attachment {
                queue: VifOrTap::Vif(VifOrTrunk::Vif(queue.map_err(io::Error::other)?)),
                counters,
                flood: Arc::clone(&flood),
                stations: Stations::One(Weight::ONE),
            });
        }
        let port = shared.allocate_port()?;
        let vlan = self.join(port, trunk).map_err(io::Error::other)?;
        self.assign(port, macs);
        let forwarding = Forwarding::Switch(Arc::clone(&self.shared.switch));
        let policy = macs.policy(vlan);
        let limits = Limits::default();
        let workers = &mut self.process.machinery.workers;
        let attached = workers.attach_limited(port, &forwarding, &policy, &limits, attachments);
        if let Err(error) = attached {
            self.shared.release_port(port, &mut self.process.machinery.workers);
            return Err(error);
        }
        Ok(Tenant { port, counters: all_counters })
    }

    /// Puts a tenant's port into the VLANs of its vifs. If one of them is private, everything that
    /// the tenant sends goes to the uplink only, because a frame does not show which vif it is
    /// from.
    fn join(&self, port: PortId, trunk: &TrunkRules) -> Result<PortVlan, TooManyVlans> {
        let role = if trunk.is_private { Role::Private } else { Role::Ordinary };
        self.shared.switch.join(port, &vlans_of(trunk), role)
    }

    /// Changes the addresses or VLANs that a tenant may use.
    fn allow(&self, port: PortId, macs: &Macs, trunk: &TrunkRules) {
        let policy = match self.join(port, trunk) {
            Ok(vlan) => macs.policy(vlan),
            Err(error) => {
                tracing::warn!("{error}: the frames of this tenant are not forwarded");
                Arc::new(PortPolicy::disabled())
            }
        };
        self.assign(port, macs);
        self.process.machinery.workers.set_policy(port, &policy);
    }

    /// Assigns a tenant's addresses to its port, so that no other port can take them.
    fn assign(&self, port: PortId, macs: &Macs) {
        let shared = &self.shared;
        let (own, addresses_max) = match &macs.own {
            Some(own) => (&own[..], 1),
            None => (&[][..], shared.config.switch.fdb_entries_max),
        };
        let assigned = Assigned { own, shared: &macs.shared, addresses_max };
        for (mac, reason) in shared.switch.assign(port, &assigned, shared.ticks(Instant::now())) {
            match reason {
                NotBound::OtherPort(other) | NotBound::Shared(other) => {
                    let (port, other) = (self.port_name(port), self.port_name(other));
                    tracing::warn!(%mac, port, other, "two tenants have this address");
                }
                NotBound::NoRoom => {
                    tracing::warn!(%mac, "no room for this address: raise fdb-entries");
                }
            }
        }
    }

    fn detach(&mut self, tenant: &str) {
        let Some(gone) = self.tenants.remove(tenant) else { return };
        self.shared.release_port(gone.port, &mut self.process.machinery.workers);
        tracing::info!(tenant, "detached");
    }

    /// Handles queues that workers gave up: those of a trunk whose tenant broke the protocol, or of
    /// the uplink.
    fn take_queues_down(&mut self) -> io::Result<()> {
        while let Some(down) = self.shared.next_report(&mut self.process.machinery.workers) {
            let reason = format!("queue {}: {}", down.queue, down.reason);
            let found = self.tenants.iter().find(|(_, tenant)| tenant.port == down.port);
            if let Some(tenant) = found.map(|(tenant, _)| tenant.clone()) {
                self.detach(&tenant);
                self.cut_off(tenant, &reason);
            } else {
                self.process.lose_uplink(&down, &reason, &mut self.shared)?;
            }
        }
        Ok(())
    }

    /// Reports that a tenant has lost its trunk by its own fault.
    fn cut_off(&self, tenant: String, reason: &str) {
        tracing::warn!(tenant, "cut off: {reason}");
        self.report(&ProcessReport::CutOff { tenant, reason: reason.to_owned() });
    }

    fn report(&self, report: &ProcessReport) {
        if let Err(error) = self.link.send(report, &[]) {
            tracing::warn!("cannot report to the supervisor: {error}");
        }
    }

    fn status(&mut self) -> BackendStatus {
        let (switch, ticks) = (&self.shared.switch, self.shared.ticks(Instant::now()));
        let fdb = fdb_status(switch, ticks, |port| self.port_name(port));
        let groups = groups_status(switch, |port| self.port_name(port));
        let engines = &mut self.process.machinery.workers;
        let trunk_status = |(tenant, Tenant { port, counters }): (&String, &Tenant)| {
            let name = &format!("trunk-{tenant}");
            let trunk = OtherPort { port: *port, name, counters, fault: None };
            VifStatus { tenant: Some(tenant.clone()), ..trunk.status(switch, engines) }
        };
        let trunks = self.tenants.iter().map(trunk_status).collect();
        let uplink = self.process.uplink.as_ref();
        let uplink = uplink.map(|it| it.describe().status(switch, engines));
        let status = BackendStatus { uplink, fdb, groups, trunks, ..BackendStatus::default() };
        self.process.complete(status)
    }

    fn port_name(&self, port: PortId) -> String {
        let tenant = self.tenants.iter().find(|(_, tenant)| tenant.port == port);
        let uplink = self.process.uplink.as_ref().filter(|uplink| uplink.port == port);
        let name = tenant.map(|(name, _)| format!("trunk-{name}"));
        let name = name.or_else(|| uplink.map(|uplink| uplink.name.clone()));
        name.unwrap_or_else(|| format!("port {port}"))
    }
}

/// The Ethernet addresses of a tenant.
struct Macs {
    /// Those that only it has; `None` if it may have any.
    own: Option<Vec<MacAddr>>,
    shared: Vec<MacAddr>,
}

impl Macs {
    fn of(allowed: &Allowed, shared: &[[u8; 6]]) -> Macs {
        let macs = |addresses: &[[u8; 6]]| addresses.iter().copied().map(MacAddr).collect();
        let own: Option<Vec<MacAddr>> = match allowed {
            Allowed::Any => None,
            Allowed::Only(own) => Some(macs(own)),
        };
        let mut shared: Vec<MacAddr> = macs(shared);
        shared.retain(|mac| own.as_ref().is_none_or(|own| !own.contains(mac)));
        Macs { own, shared }
    }

    /// What the tenant may send. Its process checks its guests itself; this policy applies even if
    /// that process no longer does.
    fn policy(&self, vlan: PortVlan) -> Arc<PortPolicy> {
        let shared = || self.shared.iter().copied();
        let policy = match &self.own {
            None => PortPolicy::open(),
            Some(own) => PortPolicy::of_addresses(own.iter().copied().chain(shared())),
        };
        Arc::new(policy.sharing(shared()).in_vlans(vlan))
    }
}
