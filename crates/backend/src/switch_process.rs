//! The switch process of an isolated backend: it joins the trunks of tenants and the uplink.
//!
//! It has no access to guests, XenStore or a hypervisor. It treats the process of a tenant as a
//! backend treats a guest: the code that serves vifs serves each trunk, with the same checks, share
//! and limits, and a tenant that breaks the protocol is cut off alone. What a tenant may use is
//! decided by [`Tenants`]; the supervisor, and no tenant, determines which trunks there are.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{
    BackendRequest, BackendStatus, Link, Permitted, ProcessReport, Received, Reply, SwitchOrder,
};
use ringway_datapath::{MacAddr, OffloadCaps, QueueCounters};
use ringway_host::{Purpose, Shared, TenantRules, Tenants, UplinkPort};
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_sys::poll::{Source, Turns, readable, take_turns};
use ringway_tap::VifOrTap;
use ringway_trunk::{End, PEER, SwitchQueue, Trunks};

use crate::config::BackendConfig;
use crate::machinery::{AnyQueue, HostingOf, Machinery};
use crate::process::{HOUSEKEEPING, Process, Token};
use crate::sockets::Sockets;
use crate::trunk::vlans_of;
use crate::vif_or_trunk::VifOrTrunk;

/// Orders that are carried out before other work gets a turn.
const ORDERS_MAX: usize = 256; // not a limit: a batch, the rest follows

struct SwitchProcess {
    shared: Shared,
    tenants: Tenants<Machinery<Trunks>>,
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
    let mut hosting = process.machinery.hosting(&mut shared);
    let uplink = UplinkPort::open(process.config.uplink.as_ref(), &mut hosting)?;
    // The supervisor removes those of vifs.
    let is_kept = |purpose: &Purpose, _: &ringway_host::Link| match purpose {
        Purpose::Uplink => uplink.is_some(),
        Purpose::Xen(_) | Purpose::Virtio(_) => true,
    };
    let Machinery { devices, notes, .. } = &mut process.machinery;
    devices.delete_stale(is_kept, notes);
    process.reports.ready();
    let tenants = Tenants::new(uplink);
    take_turns(&mut SwitchProcess { shared, tenants, link, process }, &stop)
}

impl Turns for SwitchProcess {
    type Token = Token;
    const STOP: Token = Token::Stop;

    fn turn(&mut self, ready: &[Token]) -> io::Result<Option<Duration>> {
        self.process.begin_turn(ready, &mut self.shared);
        self.take_queues_down()?;
        let (tenants, mut hosting) = self.parts();
        tenants.follow_uplink(&mut hosting);
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
    /// Carries out the supervisor's orders.
    fn take_orders(&mut self) -> io::Result<()> {
        for _ in 0..ORDERS_MAX {
            match self.link.receive()? {
                Received::Message(SwitchOrder::Attach { tenant, permitted }, fds) => {
                    self.remove(&tenant);
                    match self.attach(&tenant, fds, &rules(&permitted)) {
                        Ok(queues) => {
                            tracing::info!(tenant, queues, "attached");
                            self.report(&ProcessReport::Attached { tenant });
                        }
                        Err(error) => self.cut_off(tenant, &error.to_string()),
                    }
                }
                Received::Message(SwitchOrder::Allow { tenant, permitted }, _) => {
                    let (tenants, mut hosting) = self.parts();
                    tenants.allow(&tenant, &rules(&permitted), &mut hosting);
                }
                Received::Message(SwitchOrder::Detach { tenant }, _) => self.remove(&tenant),
                Received::Nothing => return Ok(()),
                Received::End => {
                    let message = "the supervisor has ended";
                    return Err(io::Error::new(io::ErrorKind::BrokenPipe, message));
                }
            }
        }
        Ok(())
    }

    /// The tenants, and what they are served by.
    fn parts(&mut self) -> (&mut Tenants<Machinery<Trunks>>, HostingOf<'_, Trunks>) {
        let SwitchProcess { shared, tenants, process, .. } = self;
        (tenants, process.machinery.hosting(shared))
    }

    /// Attaches the trunk with these descriptors, and returns how many queues it has.
    fn attach(
        &mut self,
        tenant: &str,
        fds: Vec<OwnedFd>,
        rules: &TenantRules,
    ) -> io::Result<usize> {
        let mut queues: Vec<(AnyQueue<Trunks>, _)> = Vec::new();
        let trunk = End::from_fds(fds)?.into_switch_queues()?;
        for SwitchQueue { memory, tx_ring, rx_ring, events } in trunk {
            let counters = Arc::new(QueueCounters::default());
            let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
            let parts = QueueParts::new(PEER, memory, [tx_ring, rx_ring], events, features);
            let parts = QueueParts { counters: Arc::clone(&counters), ..parts };
            let queue = VifQueue::attach(parts).map_err(io::Error::other)?;
            queues.push((VifOrTap::Vif(VifOrTrunk::Vif(queue)), counters));
        }
        let count = queues.len();
        let (tenants, mut hosting) = self.parts();
        tenants.attach(tenant, queues, rules, &mut hosting)?;
        Ok(count)
    }

    fn remove(&mut self, tenant: &str) {
        let (tenants, mut hosting) = self.parts();
        if tenants.remove(tenant, &mut hosting) {
            tracing::info!(tenant, "detached");
        }
    }

    /// Handles queues that workers gave up: those of a trunk whose tenant broke the protocol, or of
    /// the uplink.
    fn take_queues_down(&mut self) -> io::Result<()> {
        while let Some(down) = self.shared.next_report(&mut self.process.machinery.workers) {
            if let Some(tenant) = self.tenants.at(down.port).map(str::to_owned) {
                self.remove(&tenant);
                self.cut_off(tenant, &format!("queue {}: {}", down.queue, down.reason));
            } else if let Some(uplink) = &self.tenants.uplink {
                uplink.lose(&down, &mut self.shared, Instant::now())?;
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
        let (tenants, mut hosting) = self.parts();
        let status = tenants.status(&mut hosting);
        self.process.complete(status)
    }
}

fn rules(Permitted { own, shared, trunk }: &Permitted) -> TenantRules {
    let macs = |addresses: &Vec<[u8; 6]>| addresses.iter().copied().map(MacAddr).collect();
    let own = own.as_ref().map(macs);
    TenantRules::new(own, macs(shared), vlans_of(trunk), trunk.is_private)
}
