//! The way from the switch to the host: a TAP device in the backend's own network namespace.

use std::io;
use std::sync::Arc;

use ringway_datapath::{Completion, OffloadCaps, QueueCounters};
use ringway_hypervisor::Hypervisor;
use ringway_net::LinkSetting;
use ringway_switch::{PortId, PortPolicy, Role};
use ringway_tap::{Side, Tap, VifOrTap};
use ringway_worker::{Attachment, Forwarding, Limits, Stations};

use crate::device::GSO_MAX;
use crate::services::Hosting;
use crate::serving::unlimited;

/// The uplink while it is attached.
pub(crate) struct UplinkPort {
    pub(crate) port: PortId,
    pub(crate) counters: Vec<Arc<QueueCounters>>,
    /// Kept, because the device goes with it.
    pub(crate) tap: Tap,
}

impl<H: Hypervisor> Hosting<H> {
    /// Makes the device of the uplink, if there is to be one, and attaches it to the switch.
    pub(crate) fn attach_uplink(&mut self) -> io::Result<Option<UplinkPort>> {
        let Some(uplink) = self.config.uplink.clone() else { return Ok(None) };
        let is_waited_for = self.config.completion == Completion::Sent;
        let make = if is_waited_for { Tap::create_multi_queue } else { Tap::create };
        let tap = make(&uplink.name, uplink.queues)?;
        tap.set_offloads(OffloadCaps::ALL)?;
        let settings = [LinkSetting::Mtu(uplink.mtu), GSO_MAX, LinkSetting::Up];
        self.netlink.set(tap.name(), &settings)?;
        for (address, prefix_len) in uplink.addresses {
            self.netlink.add_address(tap.name(), address, prefix_len)?;
        }
        let port = self.allocate_port()?;
        let vlan = self.switch.join(port, &uplink.vlan, Role::Uplink).map_err(io::Error::other)?;
        // All of the world may be behind it.
        let addresses_max = self.config.switch.fdb_entries_max;
        // Without an address there is nothing that could be taken.
        let _ = self.switch.bind(None, port, addresses_max, self.ticks());
        let policy = Arc::new(PortPolicy::open().in_vlans(vlan));
        let counters: Vec<Arc<QueueCounters>> =
            (0..uplink.queues).map(|_| Arc::default()).collect();
        let mut queues = tap.queues(Side::Guest, |queue| Arc::clone(&counters[queue]));
        if is_waited_for {
            tap.hold_receipts(&mut queues)?;
        }
        let attachments = queues.into_iter().zip(&counters).map(|(queue, counters)| Attachment {
            queue: VifOrTap::Tap(queue),
            counters: Arc::clone(counters),
            // The world may flood; a guest that is full drops its copy.
            flood: unlimited(),
            stations: Stations::Many,
        });
        let attachments = attachments.collect();
        let forwarding = Forwarding::Switch(Arc::clone(&self.switch));
        let limits = Limits::default();
        self.workers.attach_limited(port, &forwarding, &policy, &limits, attachments)?;
        Ok(Some(UplinkPort { port, counters, tap }))
    }
}
