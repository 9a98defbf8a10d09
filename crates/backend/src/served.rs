//! The state of a vif other than its handshake.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_host::{LeftOut, Limited, LogAllowance, Rules, unlimited};
use ringway_hypervisor::Hypervisor;
use ringway_netback::Interrupted;
use ringway_switch::PortId;
use ringway_tap::{Side, VifOrTap};
use ringway_worker::{Attachment, BridgePort, Forwarding, Limits, Stations};
use ringway_xenbus::{Keys, Offer, Vif, VifLimits};

use crate::device::{Followed, HostLinks, VifDevice};
use crate::keeper::Keeper;
use crate::services::Hosting;

/// The state of a vif other than its handshake.
pub(crate) struct Served {
    pub(crate) vif: Vif,
    /// Its name for people.
    pub(crate) name: String,
    pub(crate) offer: Offer,
    /// What its guest may send, and the guest's address.
    pub(crate) rules: Rules,
    /// Its network device, if the vif is not on the switch.
    pub(crate) device: Option<VifDevice>,
    /// Its limits. Budgets outlive connections; otherwise each connection would bring a new budget.
    pub(crate) limited: Limited,
    /// Whether it is quarantined because of panics.
    pub(crate) is_quarantined: bool,
    /// The connection, while queues are attached.
    pub(crate) connection: Option<Connection>,
    pub(crate) log: LogAllowance,
}

/// What is attached while a guest is connected.
pub(crate) struct Connection {
    pub(crate) port: PortId,
    /// The port of the vif's network device, if it has one.
    pub(crate) device_port: Option<PortId>,
    /// The port of disabled queues, from which no frames come.
    pub(crate) drain: Option<PortId>,
    pub(crate) queues: Vec<Arc<QueueCounters>>,
    pub(crate) caps: OffloadCaps,
}

impl Served {
    /// Whether frames enter by this port.
    pub(crate) fn has_port(&self, port: PortId) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|it| {
            it.port == port || it.device_port == Some(port) || it.drain == Some(port)
        })
    }

    /// Whether an action of the guest may be logged, and how many lines were left out before.
    pub(crate) fn may_log(&mut self) -> Option<LeftOut> {
        self.log.line(Instant::now())
    }

    /// Logs what an earlier backend left in the vif's rings, if it left something. The guest can
    /// make rings look like that.
    pub(crate) fn log_interruption(&mut self, interrupted: Interrupted) {
        if interrupted == Interrupted::default() {
            return;
        }
        let Some(LeftOut(left_out)) = self.may_log() else { return };
        let Interrupted { tx_slots, rx_slots } = interrupted;
        let vif = &self.name;
        tracing::info!(
            vif,
            tx_slots,
            rx_slots,
            left_out,
            "the rings say that the previous backend was killed while it wrote responses to these \
             slots: the guest gets the responses now, and the frames may be lost"
        );
    }

    /// Applies the toolstack's limits to the vif.
    pub(crate) fn set_limits<H: Hypervisor>(&mut self, keys: &Keys, host: &mut Hosting<H>) {
        let (wanted, bad) = VifLimits::read(keys);
        if self.limited.wanted == wanted && self.limited.bad == bad {
            return;
        }
        let vif = &self.name;
        bad.iter().for_each(|bad| tracing::warn!(vif, "{bad}: this limit is not applied"));
        if wanted != (VifLimits { mtu: wanted.mtu, ..VifLimits::default() }) {
            tracing::info!(vif, "limits: {wanted}");
        }
        self.limited.bad = bad;
        let (flood, storm) = (host.config.switch.flood, host.config.switch.storm);
        self.limited.set(wanted, (flood, storm), Instant::now());
        let Some(connection) = &self.connection else { return };
        let limits = self.limits(host);
        host.workers.limit(connection.port, &limits);
        host.workers.set_weight(connection.port, self.limited.weight());
        if let Some(device_port) = connection.device_port {
            host.workers.set_weight(device_port, self.limited.weight());
        }
    }

    /// Attaches the queues of the vif's network device, if it has one, to workers, as another port.
    pub(crate) fn attach_device<H: Hypervisor>(
        &mut self,
        to: PortId,
        count: u16,
        caps: OffloadCaps,
        host: &mut Hosting<H>,
    ) -> io::Result<Option<PortId>> {
        if self.device.is_none() {
            return Ok(None);
        }
        let port = host.allocate_port()?;
        if let Err(error) = self.attach_device_at(port, to, (count, caps), host) {
            host.free_port(port);
            return Err(error);
        }
        Ok(Some(port))
    }

    fn attach_device_at<H: Hypervisor>(
        &mut self,
        port: PortId,
        to: PortId,
        (count, caps): (u16, OffloadCaps),
        host: &mut Hosting<H>,
    ) -> io::Result<()> {
        let policy = self.device_policy(host);
        let Some(vif_device) = &mut self.device else { return Ok(()) };
        vif_device.is_detached = vif_device.tap.is_deleted();
        if vif_device.is_detached {
            // It is made again soon. Meanwhile, frames to it are lost.
            host.links.note_change();
            return Ok(());
        }
        // Its guest may have more queues since a supervisor made the device.
        let count = count.min(vif_device.queues_made);
        vif_device.tap.set_enabled(count)?;
        vif_device.tap.set_offloads(caps)?;
        let counters: Vec<Arc<QueueCounters>> = (0..count).map(|_| Arc::default()).collect();
        let queues = vif_device.tap.queues(Side::Host, |queue| Arc::clone(&counters[queue]));
        let taps = queues.into_iter().zip(counters).map(|(queue, counters)| Attachment {
            queue: VifOrTap::Tap(queue),
            counters,
            flood: unlimited(),
            stations: Stations::Bridge(self.limited.weight()),
        });
        let taps = taps.collect();
        if let Some(address) = self.rules.mac() {
            // Other guests on the bridge wait for this one, as on the switch.
            let bridge = vif_device.attached_to.as_str().into();
            host.workers.join_bridge(port, BridgePort { bridge, address });
        }
        let forwarding = Forwarding::Patch(to);
        let limits = Limits::default();
        host.workers.attach_limited(port, &forwarding, &policy, &limits, taps)
    }

    /// Follows what has become of the vif's network device: its guest stays connected.
    pub(crate) fn follow_device<H: Hypervisor>(
        &mut self,
        now: Option<&HostLinks>,
        host: &mut Hosting<H>,
    ) -> Followed {
        let Some(device) = &mut self.device else { return Followed::Done };
        let mut done = match (&mut *device, now, host.devices.keeper()) {
            (VifDevice::Kept(device), Some(now), Some(Keeper { net, notes })) => {
                device.follow(now, net, notes)
            }
            _ => Ok(()),
        };
        if device.is_detached && !device.tap.is_deleted() {
            done = self.attach_device_again(host).and(done);
        }
        self.device.as_mut().map_or(Followed::Done, |device| device.show(done))
    }

    /// Attaches the queues of a device that was made again, in place of those of the deleted one.
    fn attach_device_again<H: Hypervisor>(&mut self, host: &mut Hosting<H>) -> io::Result<()> {
        let connection = self.connection.as_ref();
        let ports = connection.and_then(|it| Some((it.port, it.device_port?)));
        if let (Some((to, port)), Some(connection)) = (ports, connection) {
            let count = u16::try_from(connection.queues.len()).unwrap_or(u16::MAX);
            let caps = connection.caps;
            host.workers.detach(port);
            host.drop_reports(port);
            self.attach_device_at(port, to, (count, caps), host)?;
        }
        if let Some(device) = &mut self.device {
            device.is_detached = false;
        }
        Ok(())
    }

    /// Why its network device does not work as it should, if so.
    pub(crate) fn fault(&self) -> Option<String> {
        self.device.as_ref().and_then(|device| device.fault.clone())
    }

    /// Whether the queues of a port are those of a network device that was deleted.
    pub(crate) fn has_lost_device(&self, port: PortId) -> bool {
        let connection = self.connection.as_ref();
        let is_lost = |device: &&VifDevice| device.is_detached || device.tap.is_deleted();
        let device = self.device.as_ref().filter(is_lost);
        device.is_some() && connection.is_some_and(|it| it.device_port == Some(port))
    }

    /// The MTU of the vif, in bytes.
    pub(crate) fn mtu<H: Hypervisor>(&self, host: &Hosting<H>) -> u32 {
        let mtu = match (self.limited.wanted.mtu, &self.device) {
            (Some(mtu), _) => mtu.into(),
            (None, Some(device)) => device.mtu,
            (None, None) => host.mtu(),
        };
        mtu.max(self.limited.mtu_min.into())
    }

    /// The largest MTU that a front-end may use if none is configured: on the switch any, on a
    /// bridge that of the device.
    pub(crate) fn mtu_max(&self) -> u16 {
        let mtu = self.device.as_ref().map(|device| device.mtu);
        mtu.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(u16::MAX)
    }

    /// The limits of the vif's port.
    pub(crate) fn limits<H: Hypervisor>(&self, host: &Hosting<H>) -> Limits {
        let mtu = match (self.limited.wanted.mtu, &self.device) {
            // The toolstack has set none, and the bridge applies its own.
            (None, Some(_)) => None,
            _ => Some(self.mtu(host)),
        };
        let frame_len = |mtu| usize::try_from(mtu).unwrap_or(usize::MAX).saturating_add(FRAMING);
        Limits {
            ingress: self.limited.tx.clone(),
            segments: Some(Arc::clone(&self.limited.segments)),
            egress: self.limited.rx.clone(),
            frame_len_max: mtu.map(frame_len),
        }
    }
}

/// Bytes of a frame that the MTU does not count: an Ethernet header and a VLAN tag, as in Linux's
/// bridge.
const FRAMING: usize = 14 + 4;
