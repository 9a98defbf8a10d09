//! Serves a guest: attaches its queues, and those of its vif's network device.

use std::io;
use std::sync::Arc;

use ringway_host::LeftOut;
use ringway_hypervisor::{Access, ForeignMemory, Hypervisor, QueueEvents};
use ringway_netback::{FrontendFeatures, Interrupted, QueueParts, VifQueue};
use ringway_tap::VifOrTap;
use ringway_vif_shell::{BackendProcess, Note};
use ringway_worker::{Attachment, Forwarding};
use ringway_xenbus::backend::NotAttached;
use ringway_xenbus::{EventPorts, FrontendConfig, QueueConfig, Vif};
use rustix::io::Errno;

use crate::served::{Connection, Served};
use crate::services::Hosting;
use crate::vif_or_trunk::VifOrTrunk;

/// One vif, with the services needed to serve its guest.
pub(crate) struct Serving<'a, H: Hypervisor> {
    pub(crate) served: &'a mut Served,
    pub(crate) host: &'a mut Hosting<H>,
}

impl<H: Hypervisor> BackendProcess for Serving<'_, H> {
    fn attach(&mut self, config: &FrontendConfig) -> Result<(), NotAttached> {
        let mut interrupted = Interrupted::default();
        let connected = self.connect(config, &mut interrupted);
        // Also if that failed: the next attempt does not find these responses again.
        self.served.log_interruption(interrupted);
        connected.map_err(|error| match is_shortage(&error) {
            true => NotAttached::NoResources(format!("{error}; retrying until there is enough")),
            false => NotAttached::Refused(error.to_string()),
        })
    }

    /// Takes the queues back from their workers, which unmaps and unbinds them.
    fn detach(&mut self) {
        let Some(connection) = self.served.connection.take() else { return };
        for port in connection.device_port.into_iter().chain([connection.port]) {
            self.host.workers.detach(port);
            self.host.occupants.remove(port);
            self.host.forget_port(port);
        }
        let vif = self.served.name.clone();
        if let Some(LeftOut(left_out)) = self.served.may_log() {
            tracing::info!(vif, left_out, "disconnected");
        }
    }

    fn note(&mut self, note: Note<'_>) {
        let vif = self.served.name.clone();
        if let Note::State(state) = note {
            tracing::debug!(vif, %state, "backend state");
            return;
        }
        let Some(LeftOut(left_out)) = self.served.may_log() else { return };
        match note {
            Note::State(_) => {}
            Note::AwaitsHotplug => {
                tracing::info!(vif, left_out, "served, waiting for the hotplug script");
            }
            Note::Refused(refusal) => tracing::warn!(vif, left_out, "{refusal}"),
            Note::Waits(reason) | Note::Closed(reason) => tracing::warn!(vif, left_out, "{reason}"),
        }
    }
}

impl<H: Hypervisor> Serving<'_, H> {
    /// Maps the guest's rings, binds its event channels and gives the queues to workers. Counts
    /// what an earlier backend left in the rings.
    fn connect(
        &mut self,
        config: &FrontendConfig,
        interrupted: &mut Interrupted,
    ) -> io::Result<()> {
        let Serving { served, host } = self;
        let features =
            FrontendFeatures { caps: config.features.caps(), rx_notify: config.rx_notify };
        let mut attachments = Vec::new();
        let mut counters = Vec::new();
        for queue in &config.queues {
            let parts = queue_parts(host, served.vif, queue, features)?;
            counters.push(Arc::clone(&parts.counters));
            let counters = Arc::clone(&parts.counters);
            let mut queue = VifQueue::attach(parts).map_err(io::Error::other)?;
            *interrupted += queue.interrupted();
            if served.device.is_none() {
                // Its frames may go to other vifs of this process.
                queue.lend_pages(host.hypervisor.memory()?);
            }
            let queue = VifOrTap::Vif(VifOrTrunk::Vif(queue));
            let flood = Arc::clone(&served.limited.flood);
            let stations = served.limited.stations();
            attachments.push(Attachment { queue, counters, flood, stations });
        }
        let count = u16::try_from(attachments.len()).unwrap_or(u16::MAX);
        let port = host.allocate_port()?;
        let device_port = match self.served.attach_device(port, count, features.caps, self.host) {
            Ok(device_port) => device_port,
            Err(error) => {
                self.host.free_port(port);
                return Err(error);
            }
        };
        let Serving { served, host } = self;
        let forwarding = match device_port {
            None => Forwarding::Switch(Arc::clone(&host.switch)),
            Some(device_port) => Forwarding::Patch(device_port),
        };
        let policy = match served.apply_rules(port, host) {
            Ok(policy) => policy,
            Err(error) => {
                for port in device_port.into_iter().chain([port]) {
                    host.workers.detach(port);
                    host.forget_port(port);
                }
                return Err(io::Error::other(error));
            }
        };
        let limits = served.limits(host);
        // This must precede the first frame.
        host.occupants.insert(port, served.vif.into());
        if let Some(device_port) = device_port {
            host.occupants.insert(device_port, served.vif.into());
        }
        let attached =
            host.workers.attach_limited(port, &forwarding, &policy, &limits, attachments);
        let caps = features.caps.and(host.config.offloads);
        served.connection =
            Some(Connection { port, device_port, drain: None, queues: counters, caps });
        if let Err(error) = attached {
            self.detach();
            return Err(error);
        }
        let vif = served.name.clone();
        if let Some(LeftOut(left_out)) = served.may_log() {
            tracing::info!(vif, queues = count, left_out, "connected");
        }
        Ok(())
    }
}

/// A failed attachment, and its reason.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
struct AttachError {
    what: String,
    source: io::Error,
}

impl AttachError {
    fn of(what: String, source: io::Error) -> io::Error {
        io::Error::new(source.kind(), AttachError { what, source })
    }
}

/// Whether this host lacks a resource that any guest needs: memory, descriptors, entries in a table
/// of the kernel or the hypervisor.
fn is_shortage(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<AttachError>());
    let error = inner.map_or(error, |unattached| &unattached.source);
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(
            errno,
            Some(
                Errno::NOMEM
                    | Errno::MFILE
                    | Errno::NFILE
                    | Errno::NOSPC
                    | Errno::AGAIN
                    | Errno::NOBUFS
            )
        )
}

fn queue_parts<H: Hypervisor>(
    host: &Hosting<H>,
    vif: Vif,
    queue: &QueueConfig,
    features: FrontendFeatures,
) -> io::Result<QueueParts<H::Memory, H::Event>> {
    let peer = vif.frontend;
    let mut memory = host.hypervisor.memory()?;
    let mut map = |gref| {
        let mapped = memory.map(peer, gref, Access::ReadWrite);
        mapped.map_err(|error| AttachError::of(format!("ring page with grant {gref}"), error))
    };
    let (tx_ring, rx_ring) = (map(queue.tx_ring_ref)?, map(queue.rx_ring_ref)?);
    let bind = |port| {
        let bound = host.hypervisor.bind_interdomain(peer, port);
        bound.map_err(|error| AttachError::of(format!("event channel {port}"), error))
    };
    let events = match queue.events {
        EventPorts::Split { tx, rx } => QueueEvents::Split { tx: bind(tx)?, rx: bind(rx)? },
        EventPorts::Single(both) => QueueEvents::Single(bind(both)?),
    };
    let counters = Arc::default();
    Ok(QueueParts { peer, memory, tx_ring, rx_ring, events, features, counters })
}
