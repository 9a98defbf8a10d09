//! Attaches the queues of a vif of any kind, and those of its network device, to engines.

use std::io;
use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_engine::steps::{self, Attachment, NewPort};
use ringway_engine::{Forwarding, Limits, PortSteering, Stations};
use ringway_switch::{FloodBudget, PortId, PortPolicy};

use crate::connection::Connection;
use crate::quarantine::Charged;
use crate::shared::{HostConfig, Shared};
use crate::vif_state::VifState;
use crate::world::{Hosting, QueueOf, World};

/// The queues that a guest has set up.
pub(crate) struct NewQueues<Q> {
    /// Those by which frames come and go.
    pub(crate) enabled: Vec<Attachment<Q>>,
    /// Those by which frames only come, and are dropped.
    pub(crate) disabled: Vec<Attachment<Q>>,
    /// What the guest chooses for the frames that it receives, if it may, or how they are balanced.
    pub(crate) steering: Option<Arc<PortSteering>>,
    /// The work that the guest may be left with.
    pub(crate) caps: OffloadCaps,
}

impl HostConfig {
    /// How frames for a vif with so many queues are balanced, if they are.
    pub(crate) fn balanced(&self, queues: usize) -> Option<PortSteering> {
        let queues = u16::try_from(queues).ok().filter(|queues| self.balances_flows && *queues > 1);
        queues.map(PortSteering::balanced)
    }
}

impl<W: World> Hosting<'_, W> {
    /// Attaches queues of a port that is not a vif's to the switch, with their counters.
    ///
    /// # Errors
    /// The switch has no room, or this host lacks threads.
    pub(crate) fn attach(
        &mut self,
        port: PortId,
        policy: &Arc<PortPolicy>,
        (flood, stations): (&Arc<FloodBudget>, Stations),
        queues: impl IntoIterator<Item = (QueueOf<W>, Arc<QueueCounters>)>,
    ) -> io::Result<()> {
        let new = NewPort {
            id: port,
            forwarding: &Forwarding::Switch(Arc::clone(&self.shared.switch)),
            policy,
            limits: &Limits::default(),
            steering: None,
        };
        let queues = queues.into_iter().map(|(queue, counters)| {
            let flood = Arc::clone(flood);
            Attachment { queue, counters, flood, stations }
        });
        steps::attach(self.engines, new, queues.collect())
    }
}

/// Attaches all queues of a vif, which has none yet. Afterwards it is connected, or nothing was
/// done.
///
/// # Errors
/// The switch has no room, the network device was deleted, or this host lacks threads.
pub(crate) fn connect<W: World>(
    vif: &mut VifState<W>,
    new: NewQueues<QueueOf<W>>,
    hosting: &mut Hosting<'_, W>,
) -> io::Result<()> {
    let NewQueues { enabled, disabled, steering, caps } = new;
    let now = hosting.now;
    let queues: Vec<_> = enabled.iter().map(|queue| Arc::clone(&queue.counters)).collect();
    let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
    let mut attaching = Attaching::<W> {
        vif: vif.charged.clone(),
        shared: hosting.shared,
        engines: hosting.engines,
        ports: Vec::new(),
    };
    let port = attaching.new_port()?;
    let device_port = match vif.device {
        None => None,
        Some(_) => Some(attaching.new_port()?),
    };
    if let Some(device_port) = device_port {
        let Attaching { shared, engines, .. } = &mut attaching;
        vif.attach_device(device_port, port, (count, caps), shared, engines, now)?;
    }
    let policy = vif.apply_rules(port, attaching.shared, now).map_err(io::Error::other)?;
    let limits = vif.limits(attaching.shared);
    let forwarding = match device_port {
        None => Forwarding::Switch(Arc::clone(&attaching.shared.switch)),
        Some(device_port) => Forwarding::Patch(device_port),
    };
    let new = NewPort {
        id: port,
        forwarding: &forwarding,
        policy: &policy,
        limits: &limits,
        steering: steering.as_ref(),
    };
    steps::attach(attaching.engines, new, enabled)?;
    let mut drain = None;
    if !disabled.is_empty() {
        let port_of_disabled = attaching.new_port()?;
        let forwarding = Forwarding::Patch(port);
        let new = NewPort { id: port_of_disabled, forwarding: &forwarding, steering: None, ..new };
        steps::attach(attaching.engines, new, disabled)?;
        drain = Some(port_of_disabled);
    }
    attaching.ports.clear();
    vif.connection = Some(Connection { port, device_port, drain, queues, steering, caps });
    drop(attaching);
    vif.join_ovs(hosting.shared);
    Ok(())
}

/// Takes all queues of a vif back from their engines, which unmaps and unbinds them. Returns
/// whether it was connected.
pub(crate) fn disconnect<W: World>(vif: &mut VifState<W>, hosting: &mut Hosting<'_, W>) -> bool {
    let Some(connection) = vif.connection.take() else { return false };
    for port in connection.ports() {
        hosting.shared.release_port(port, hosting.engines);
    }
    vif.leave_ovs(hosting.shared);
    true
}

/// A vif that is being attached. Dropping it undoes what was done.
struct Attaching<'a, W: World> {
    vif: Charged,
    shared: &'a mut Shared,
    engines: &'a mut W::Engines,
    /// Its ports so far.
    ports: Vec<PortId>,
}

impl<W: World> Attaching<'_, W> {
    /// A port that is known as the vif's before its first frame.
    fn new_port(&mut self) -> io::Result<PortId> {
        let port = self.shared.allocate_port()?;
        self.ports.push(port);
        self.shared.occupants.insert(port, self.vif.clone());
        Ok(port)
    }
}

impl<W: World> Drop for Attaching<'_, W> {
    fn drop(&mut self) {
        if is_nothing_undone() {
            return;
        }
        for port in self.ports.drain(..).rev() {
            self.shared.release_port(port, self.engines);
        }
    }
}

/// Whether that is disabled on purpose.
#[cfg(all(feature = "canary", debug_assertions))]
fn is_nothing_undone() -> bool {
    crate::canary::is_nothing_undone()
}

/// Never, in builds without the switch.
#[cfg(not(all(feature = "canary", debug_assertions)))]
const fn is_nothing_undone() -> bool {
    false
}
