//! A TAP device, and how it is joined to the queues of a vif of any kind.

use std::io;
use std::sync::Arc;

use ringway_datapath::{MacAddr, OffloadCaps, PagePool, PortQueue, QueueCounters, Wakers};
use ringway_net::{LinkSetting, Netlink};
use ringway_switch::{FloodBudget, FloodLimit, PortId, Ticks};
use ringway_tap::{Side, Tap, VifOrTap};
use ringway_worker::{Attachment, Forwarding, Stations, Weight, Workers, WorkersConfig};

use crate::Interface;

/// Frames that the kernel may queue for an interface: the TAP driver drops any others, so this
/// exceeds its default of 500.
const TX_QUEUE_LEN: u32 = 2000;
/// The longest frame that netif can describe (`XEN_NETIF_MAX_TX_SIZE`), and virtio-net as well.
const GSO_MAX: u32 = 65535;

/// Makes a device with its addresses and routes, and brings it up.
pub(crate) fn make_device(
    netlink: &mut Netlink,
    name: &str,
    mac: MacAddr,
    mtu: u16,
    interface: &Interface,
) -> io::Result<Tap> {
    let tap = Tap::create(name, 1)?;
    let settings = [
        LinkSetting::Address(mac.0),
        LinkSetting::Mtu(mtu.into()),
        LinkSetting::GsoMaxSize(GSO_MAX),
        LinkSetting::TxQueueLen(TX_QUEUE_LEN),
        LinkSetting::Up,
    ];
    netlink.set(tap.name(), &settings)?;
    for (address, prefix_len) in &interface.addresses {
        netlink.add_address(tap.name(), *address, *prefix_len)?;
    }
    if let Some(gateway) = interface.gateway {
        netlink.add_default_route(tap.name(), gateway)?;
    }
    Ok(tap)
}

/// Starts threads for the queues of an interface.
pub(crate) fn start_workers<Q: PortQueue + Wakers + Send + 'static>(
    config: WorkersConfig,
) -> io::Result<Workers<Q>> {
    let workers = Workers::start(config)?;
    // A worker that panicked may have left its queues inconsistent, so the process ends.
    workers.on_panic(Box::new(|serving| {
        tracing::error!(?serving, "a worker has panicked: the process ends");
        std::process::abort()
    }));
    Ok(workers)
}

/// The ports of a device and of its vif.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) tap: PortId,
    pub(crate) vif: PortId,
}

/// Attaches these queues, with their counters, and those of the device to workers: frames flow.
pub(crate) fn join<V: PortQueue + Wakers + Send + 'static>(
    workers: &mut Workers<VifOrTap<V>>,
    ports: Ports,
    tap: &Tap,
    caps: OffloadCaps,
    queues: impl Iterator<Item = (V, Arc<QueueCounters>)>,
    page_pool: Option<Box<dyn PagePool>>,
) -> io::Result<()> {
    // The kernel may leave only what the backend accepts.
    tap.set_offloads(caps)?;
    let attachment = |queue, counters| Attachment {
        queue,
        counters,
        flood: unlimited(),
        stations: Stations::One(Weight::ONE),
    };
    let of_tap: Arc<QueueCounters> = Arc::default();
    let mut taps = tap.queues(Side::Guest, |_| Arc::clone(&of_tap));
    if let (Some(first), Some(page_pool)) = (taps.first_mut(), page_pool) {
        first.use_page_pool(page_pool);
    }
    let taps = taps.into_iter().map(|tap| attachment(VifOrTap::Tap(tap), Arc::clone(&of_tap)));
    let queues = queues.map(|(queue, counters)| attachment(VifOrTap::Vif(queue), counters));
    workers.attach(ports.vif, &Forwarding::Patch(ports.tap), queues.collect())?;
    workers.attach(ports.tap, &Forwarding::Patch(ports.vif), taps.collect())
}

/// A budget without a limit: a patched port does not flood other ports.
fn unlimited() -> Arc<FloodBudget> {
    Arc::new(FloodBudget::new(FloodLimit::NONE, Ticks::default()))
}
