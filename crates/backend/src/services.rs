//! The services that all vifs of a backend share.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_host::{Occupants, Quarantine};
use ringway_hypervisor::Hypervisor;
use ringway_net::{LinkWatch, Netlink};
use ringway_netback::VifQueue;
use ringway_switch::{PortId, Switch, Ticks};
use ringway_tap::VifOrTap;
use ringway_worker::{Failure, Workers};
use ringway_xenbus::{Features, Offer};
use ringway_xenstore::Client;

use crate::BackendConfig;
use crate::applied::AppliedNotes;
use crate::device::{Followed, HostLinks};
use crate::keeper::{Devices, Keeper, Links};
use crate::liveness::Liveness;
use crate::notes::{NoteFiles, end_process};
use crate::vif_or_trunk::VifOrTrunk;

/// A queue of a vif, of a trunk or of a TAP device.
pub(crate) type AnyQueue<H> =
    VifOrTap<VifOrTrunk<VifQueue<<H as Hypervisor>::Memory, <H as Hypervisor>::Event>>>;

/// Ethernet's MTU, in bytes.
const MTU: u32 = 1500;

/// The services that a vif is given.
pub(crate) struct Services<H: Hypervisor> {
    pub(crate) store: Client,
    pub(crate) host: Hosting<H>,
}

/// What is needed to serve a guest, apart from XenStore.
pub(crate) struct Hosting<H: Hypervisor> {
    pub(crate) hypervisor: H,
    pub(crate) links: Links,
    /// The network devices of its vifs and of the uplink.
    pub(crate) devices: Devices,
    pub(crate) config: BackendConfig,
    pub(crate) workers: Workers<AnyQueue<H>>,
    pub(crate) switch: Arc<Switch>,
    /// The vifs by port, and the vifs that must not have a port.
    pub(crate) occupants: Occupants,
    pub(crate) quarantine: Quarantine,
    pub(crate) notes: NoteFiles,
    pub(crate) ports: Ports,
    /// Reports of workers that have not been handled yet.
    pub(crate) port_events: VecDeque<Failure<AnyQueue<H>>>,
    /// The zero of switch time.
    started: Instant,
}

/// The numbers of the switch's ports.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    free: Vec<PortId>,
    next: u16,
}

impl Ports {
    fn allocate(&mut self, ports_max: u16) -> io::Result<PortId> {
        if let Some(port) = self.free.pop() {
            return Ok(port);
        }
        if self.next >= ports_max {
            return Err(io::Error::other(format!("the switch is full: it has {ports_max} ports")));
        }
        self.next += 1;
        Ok(PortId(self.next - 1))
    }
}

impl<H: Hypervisor> Hosting<H> {
    pub(crate) fn start(
        hypervisor: H,
        config: BackendConfig,
        net: Option<(Netlink, LinkWatch)>,
        liveness: &Liveness,
    ) -> io::Result<Hosting<H>> {
        let (config_of_workers, pulse) = (config.workers.clone(), liveness.pulse());
        let workers = Workers::start_watched(config_of_workers, liveness.roster(), Some(pulse))?;
        let occupants = Occupants::default();
        let (at_panic, dir) = (occupants.clone(), config.dir.clone());
        workers.on_panic(Box::new(move |serving| end_process(&at_panic, &dir, serving)));
        let mut notes = NoteFiles::new(&config.dir);
        let (devices, watch) = match net {
            Some((net, watch)) => {
                let notes = AppliedNotes::read(&config.dir, &config.owner);
                (Devices::Kept(Keeper { net, notes }), Some(watch))
            }
            None => (Devices::Passed(BTreeMap::new()), None),
        };
        Ok(Hosting {
            hypervisor,
            links: Links::new(watch),
            devices,
            workers,
            occupants,
            quarantine: Quarantine::read(&mut notes),
            notes,
            switch: Arc::new(Switch::new(config.switch)),
            ports: Ports::default(),
            port_events: VecDeque::new(),
            started: Instant::now(),
            config,
        })
    }

    /// Compares devices with what the kernel has, if that is due: `each` does it for all. Links are
    /// absent if another process keeps the devices.
    pub(crate) fn follow_links(
        &mut self,
        has_devices: bool,
        each: impl FnOnce(Option<&HostLinks>, &mut Self) -> Followed,
    ) {
        if !self.links.take_due(has_devices) {
            return;
        }
        let followed = match self.devices.keeper().map(Keeper::read_links) {
            None => each(None, self),
            Some(Some(now)) => each(Some(&now), self),
            Some(None) => Followed::Again,
        };
        self.links.done(followed);
    }

    /// Switch time, in seconds.
    pub(crate) fn ticks(&self) -> Ticks {
        Ticks(u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX))
    }

    pub(crate) fn allocate_port(&mut self) -> io::Result<PortId> {
        self.ports.allocate(self.config.switch.ports_max)
    }

    pub(crate) fn free_port(&mut self, port: PortId) {
        self.switch.leave(port);
        self.ports.free.push(port);
    }

    /// Drops the workers' reports about a detached port: another vif may use its number from now
    /// on.
    pub(crate) fn forget_port(&mut self, port: PortId) {
        self.drop_reports(port);
        self.free_port(port);
    }

    /// Drops the workers' reports about a detached port, which gets other queues.
    pub(crate) fn drop_reports(&mut self, port: PortId) {
        while let Some(event) = self.workers.next_failure() {
            self.port_events.push_back(event);
        }
        self.port_events.retain(|event| event.port_id != port);
    }

    /// The name of the vif at a port of the switch, or of another one.
    pub(crate) fn port_name(&self, port: PortId) -> String {
        let vif = self.occupants.at(port);
        vif.map_or_else(|| "the uplink".to_owned(), |vif| vif.to_string())
    }

    pub(crate) fn next_port_event(&mut self) -> Option<Failure<AnyQueue<H>>> {
        self.port_events.pop_front().or_else(|| self.workers.next_failure())
    }

    /// The offer to a vif, with as many queues as the toolstack wants, or otherwise the
    /// configuration.
    pub(crate) fn offer(&self, queues_wanted: Option<u16>) -> Offer {
        Offer {
            queues_max: queues_wanted.unwrap_or(self.config.max_queues).max(1),
            split_event_channels: self.config.split_event_channels,
            features: Features::from(self.config.offloads),
        }
    }

    /// The default MTU of a vif on the switch, in bytes: that of the uplink.
    pub(crate) fn mtu(&self) -> u32 {
        self.config.uplink.as_ref().map_or(MTU, |uplink| uplink.mtu.max(MTU))
    }
}
