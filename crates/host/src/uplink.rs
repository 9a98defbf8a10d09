//! The uplink of a switch: the port to all that this process does not serve. It is a TAP device in
//! its own network namespace, by which the host reaches guests, or what another process is behind,
//! such as the trunk of a tenant.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{QueueCounters, Side};
use ringway_engine::Stations;
use ringway_switch::{FloodBudget, FloodLimit, PortId, PortPolicy, TooManyVlans};

use crate::comparison::Followed;
use crate::device::{
    HostDevice, HostLinks, Purpose, Tap as _, Uplink, UplinkRules, open_port_device,
};
use crate::other_port::OtherPort;
use crate::shared::{QueueDown, Shared};
use crate::world::{Hosting, QueueOf, World};

/// The uplink while it is attached.
pub struct UplinkPort<W: World> {
    /// Its port.
    pub port: PortId,
    pub(crate) name: String,
    rules: UplinkRules,
    counters: Vec<Arc<QueueCounters>>,
    /// The device, if it is one.
    device: Option<HostDevice<W::Kernel>>,
    flood: Arc<FloodBudget>,
    policy: Arc<PortPolicy>,
}

impl<W: World> UplinkPort<W> {
    /// Makes the device of the uplink, if configured, or takes it over, and attaches it.
    ///
    /// # Errors
    /// Why it cannot be made or attached, with the remedy.
    pub fn open(
        uplink: Option<&Uplink>,
        hosting: &mut Hosting<'_, W>,
    ) -> io::Result<Option<UplinkPort<W>>> {
        let (Some(uplink), Some(keeper)) = (uplink, hosting.devices.keeper()) else {
            return Ok(None);
        };
        let device = open_port_device(keeper, Purpose::Uplink, &uplink.device, hosting.notes)?;
        let counters = (0..uplink.device.queues).map(|_| Arc::default()).collect();
        let mut port = UplinkPort::join(device.tap.name(), &uplink.rules, counters, hosting)?;
        port.device = Some(device);
        port.attach_device(hosting)?;
        Ok(Some(port))
    }

    /// Attaches an uplink that is no device, by its queues with their counters.
    ///
    /// # Errors
    /// The switch has no room, or this host lacks threads.
    pub fn attach(
        name: &str,
        rules: &UplinkRules,
        queues: Vec<(QueueOf<W>, Arc<QueueCounters>)>,
        hosting: &mut Hosting<'_, W>,
    ) -> io::Result<UplinkPort<W>> {
        let counters = queues.iter().map(|(_, counters)| Arc::clone(counters)).collect();
        let uplink = UplinkPort::join(name, rules, counters, hosting)?;
        hosting.attach(uplink.port, &uplink.policy, (&uplink.flood, Stations::Many), queues)?;
        Ok(uplink)
    }

    /// A port without queues yet.
    fn join(
        name: &str,
        rules: &UplinkRules,
        counters: Vec<Arc<QueueCounters>>,
        hosting: &mut Hosting<'_, W>,
    ) -> io::Result<UplinkPort<W>> {
        let Hosting { shared, now, .. } = hosting;
        let port = shared.allocate_port()?;
        let policy = shared.join_uplink(port, &rules.vlan, *now).map_err(io::Error::other)?;
        shared.switch.set_multicast_router(port, rules.multicast_router);
        // It may flood, within the host's limits; a full guest drops its copy.
        let flood = FloodBudget::new(FloodLimit::NONE, shared.ticks(*now)).with_storm(rules.storm);
        let (name, flood) = (name.to_owned(), Arc::new(flood));
        Ok(UplinkPort { port, name, rules: rules.clone(), counters, device: None, flood, policy })
    }

    /// Attaches the queues of the device.
    fn attach_device(&mut self, hosting: &mut Hosting<'_, W>) -> io::Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let queues = device.tap.queues(Side::Guest, &self.counters);
        let queues = queues.into_iter().map(Into::into).zip(self.counters.iter().cloned());
        hosting.attach(self.port, &self.policy, (&self.flood, Stations::Many), queues)?;
        device.is_detached = false;
        Ok(())
    }

    /// Changes what goes through it.
    ///
    /// # Errors
    /// There are too many VLANs; nothing has changed then.
    pub fn set_rules(
        &mut self,
        rules: &UplinkRules,
        hosting: &mut Hosting<'_, W>,
    ) -> Result<(), TooManyVlans> {
        if self.rules == *rules {
            return Ok(());
        }
        self.policy = hosting.shared.join_uplink(self.port, &rules.vlan, hosting.now)?;
        hosting.shared.switch.set_multicast_router(self.port, rules.multicast_router);
        hosting.set_policy(self.port, &self.policy);
        self.flood.set_storm(rules.storm);
        self.rules = rules.clone();
        Ok(())
    }

    /// Follows what has become of the device.
    pub(crate) fn follow_device(
        &mut self,
        links: Option<&HostLinks<W::Kernel>>,
        hosting: &mut Hosting<'_, W>,
    ) -> Followed {
        let (Some(device), Some(links), Some(keeper)) =
            (&mut self.device, links, hosting.devices.keeper())
        else {
            return Followed::Done;
        };
        let mut done = device.follow(links, keeper, hosting.notes);
        if device.is_detached && !device.tap.is_deleted() {
            hosting.shared.detach(self.port, hosting.engines);
            done = self.attach_device(hosting).and(done);
        }
        self.device.as_mut().map_or(Followed::Done, |device| device.show(done))
    }

    /// Whether it is a device of this process.
    pub(crate) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Handles a queue that an engine gave up, if it is one of the uplink: returns whether it is.
    ///
    /// # Errors
    /// The uplink has failed, and this process cannot serve it any more. If its device was deleted,
    /// it is made again.
    pub fn lose(&self, down: &QueueDown, shared: &mut Shared, now: Instant) -> io::Result<bool> {
        if self.port != down.port {
            return Ok(false);
        }
        if !self.device.as_ref().is_some_and(|device| device.tap.is_deleted()) {
            let (name, QueueDown { queue, reason, .. }) = (&self.name, down);
            let what = format!("the uplink {name} failed: queue {queue}: {reason}");
            return Err(io::Error::other(what));
        }
        shared.comparison.note_change(now);
        Ok(true)
    }

    /// What users are shown of it.
    pub(crate) fn describe(&self) -> OtherPort<'_> {
        let fault = self.device.as_ref().and_then(|device| device.fault.clone());
        let UplinkPort { port, name, counters, rules, .. } = self;
        OtherPort { port: *port, name, counters, rules: Some(rules), fault }
    }
}
