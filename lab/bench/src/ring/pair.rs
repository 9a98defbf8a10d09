//! Our pair: a guest process and a backend process on the emulated hypervisor.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_emu::{Broker, BrokerHandle, EmuEvent, EmuHypervisor, NewDomain, Role};
use ringway_hypervisor::{Access, EventChannel, ForeignMemory, Hypervisor, QueueEvents};
use ringway_netback::{FrontendFeatures, QueueParts};
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use ringway_xenbus::EventPorts;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::guest::{BareQueue, QUEUE_PAGES};
use super::work::{PortEnd, Tally, Work, measure};
use super::{Direction, RingCase};
use crate::child::ourselves;
use crate::options::Spans;

/// The verb of an end's process.
pub(crate) const END_VERB: &str = "ring-end";
/// Timeout for starting, connecting and reporting.
const PATIENCE: Duration = Duration::from_secs(20);
/// A sender runs until it is killed, or for this long.
const SENDER_WINDOW: Duration = Duration::from_secs(600);
const BACKEND: DomId = DomId(0);

/// The kind of guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuestKind {
    /// Its frames are in granted pages; see `guest.rs`.
    Bare,
    /// Our netfront, which copies frames into and out of granted pages.
    Netfront,
}

/// The arguments of an end's process.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Plan {
    end: End,
    dir: PathBuf,
    guest: u16,
    queues: usize,
    frame_len: usize,
    work: Work,
    cpu: usize,
    spans: Spans,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Guest(GuestKind),
    Backend,
}

/// The data that XenStore would carry.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct QueueKeys {
    tx_ring: u32,
    rx_ring: u32,
    tx_port: u32,
    rx_port: u32,
}

/// A broker on a thread and a directory of its own.
pub(crate) struct Host {
    dir: TempDir,
    handle: BrokerHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    toolstack: Option<EmuHypervisor>,
}

impl Host {
    pub(crate) fn start() -> Result<Host> {
        let dir = crate::scratch::dir()?;
        let broker = Broker::bind(dir.path()).context("start the emulated hypervisor")?;
        let handle = broker.handle();
        let thread = Some(std::thread::spawn(move || broker.run()));
        let toolstack = Some(EmuHypervisor::connect(dir.path(), BACKEND)?);
        Ok(Host { dir, handle, thread, toolstack })
    }

    /// Creates a domain with room for `queues` queues; the caller or another process connects as
    /// that domain.
    pub(crate) fn create_guest(&self, queues: usize) -> Result<DomId> {
        // One page more than the queues need, because netfront takes its pages in several runs.
        let bytes = (queues * QUEUE_PAGES + 1) * PAGE_SIZE;
        let memory_bytes = u64::try_from(bytes)?;
        let new = NewDomain { domid: None, memory_bytes, role: Role::Guest };
        Ok(self.toolstack().create_domain(new)?)
    }

    pub(crate) fn toolstack(&self) -> &EmuHypervisor {
        self.toolstack.as_ref().expect("it is there until the end")
    }

    pub(crate) fn connect(&self, domid: DomId) -> Result<EmuHypervisor> {
        Ok(EmuHypervisor::connect(self.dir.path(), domid)?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.toolstack = None;
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // Its errors no longer matter.
            let _ = thread.join();
        }
    }
}

/// Runs one case once, and returns million frames per second at its receiver.
pub(crate) fn run(case: RingCase, guest: GuestKind, cpus: [usize; 2], spans: Spans) -> Result<f64> {
    let host = Host::start()?;
    let domid = host.create_guest(case.queues)?;
    let (guest_work, backend_work) = case.direction.works();
    let plan = |end, work, cpu| Plan {
        end,
        dir: host.dir.path().to_owned(),
        guest: domid.0,
        queues: case.queues,
        frame_len: case.frame_len,
        work,
        cpu,
        spans: match work {
            Work::Send => Spans { window: SENDER_WINDOW, ..spans },
            _ => spans,
        },
    };
    let start = |name: &str, plan: Plan| {
        let mut command = ourselves(END_VERB)?;
        command.arg(serde_json::to_string(&plan)?);
        crate::child::start(name, command)
    };
    let mut guest_end = start("guest", plan(End::Guest(guest), guest_work, cpus[1]))?;
    let keys =
        guest_end.wait_for(PATIENCE, |line| line.starts_with('[').then(|| line.to_owned()))?;
    let mut backend = start("backend", plan(End::Backend, backend_work, cpus[0]))?;
    backend.say(&keys)?;
    let receiver =
        if case.direction == Direction::HostToGuest { &mut guest_end } else { &mut backend };
    let patience = PATIENCE + spans.warm_up + spans.window;
    let tally: Tally =
        receiver.wait_for(patience, |line| serde_json::from_str::<Tally>(line).ok())?;
    Ok(tally.mpps())
}

/// The process of one end.
pub(crate) fn end(plan: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("the plan of a ring's end")?;
    ringway_sys::process::pin_current_thread(plan.cpu)?;
    let tally = match plan.end {
        End::Backend => {
            let hypervisor = EmuHypervisor::connect(&plan.dir, BACKEND)?;
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            let keys: Vec<QueueKeys> = serde_json::from_str(&line)?;
            let queues = backend_queues(&hypervisor, DomId(plan.guest), &keys)?;
            let mut end = PortEnd::new(queues);
            if plan.work == Work::Bounce {
                end.prime(plan.frame_len);
            }
            measure(plan.spans, || end.round(plan.work, plan.frame_len))?
        }
        End::Guest(GuestKind::Bare) => {
            let hypervisor = EmuHypervisor::connect(&plan.dir, DomId(plan.guest))?;
            let (mut queues, keys) = bare_queues(&hypervisor, plan.queues)?;
            print(&keys)?;
            measure(plan.spans, || {
                let mut received = 0;
                for queue in &mut queues {
                    match plan.work {
                        Work::Send => drop(queue.send(plan.frame_len)?),
                        Work::Receive => received += queue.receive()?,
                        Work::Bounce => received += queue.bounce()?,
                    }
                }
                Ok(received)
            })?
        }
        End::Guest(GuestKind::Netfront) => {
            let hypervisor = EmuHypervisor::connect(&plan.dir, DomId(plan.guest))?;
            let (queues, keys) = netfront_queues(&hypervisor, plan.queues)?;
            print(&keys)?;
            let mut end = PortEnd::new(queues);
            measure(plan.spans, || end.round(plan.work, plan.frame_len))?
        }
    };
    print(&tally)?;
    // The other end may still need this process; the parent kills it.
    std::thread::sleep(PATIENCE);
    Ok(())
}

/// The backend's queues for a guest.
pub(crate) fn backend_queues(
    hypervisor: &EmuHypervisor,
    guest: DomId,
    keys: &[QueueKeys],
) -> Result<Vec<ringway_netback::VifQueue<ringway_emu::EmuMemory, EmuEvent>>> {
    keys.iter()
        .map(|keys| {
            let mut memory = hypervisor.memory()?;
            let tx_ring = memory.map(guest, GrantRef(keys.tx_ring), Access::ReadWrite)?;
            let rx_ring = memory.map(guest, GrantRef(keys.rx_ring), Access::ReadWrite)?;
            let bind = |port| hypervisor.bind_interdomain(guest, EvtchnPort(port));
            let events = QueueEvents::Split { tx: bind(keys.tx_port)?, rx: bind(keys.rx_port)? };
            let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
            let parts = QueueParts::new(guest, memory, [tx_ring, rx_ring], events, features);
            Ok(ringway_netback::VifQueue::attach(parts)?)
        })
        .collect()
}

/// The queues of a bare guest, and the data for the backend.
pub(crate) fn bare_queues(
    hypervisor: &EmuHypervisor,
    count: usize,
) -> Result<(Vec<BareQueue<EmuEvent>>, Vec<QueueKeys>)> {
    let mut grants = hypervisor.grants()?;
    let mut queues = Vec::new();
    let mut keys = Vec::new();
    for _ in 0..count {
        let events = offer_events(hypervisor)?;
        let (queue, [tx_ring, rx_ring]) = BareQueue::new(&mut grants, BACKEND, events)?;
        let (tx_port, rx_port) = match queue.events() {
            QueueEvents::Split { tx, rx } => (tx.port().0, rx.port().0),
            QueueEvents::Single(both) => (both.port().0, both.port().0),
        };
        keys.push(QueueKeys { tx_ring: tx_ring.0, rx_ring: rx_ring.0, tx_port, rx_port });
        queues.push(queue);
    }
    Ok((queues, keys))
}

/// A queue of our own frontend.
pub(crate) type NetfrontQueue = ringway_netfront::VifQueue<ringway_emu::EmuGrants, EmuEvent>;

/// The queues of such a guest, and the data for the backend.
pub(crate) fn netfront_queues(
    hypervisor: &EmuHypervisor,
    count: usize,
) -> Result<(Vec<NetfrontQueue>, Vec<QueueKeys>)> {
    let mut queues = Vec::new();
    let mut keys = Vec::new();
    for _ in 0..count {
        let events = offer_events(hypervisor)?;
        let counters = Arc::new(QueueCounters::default());
        let queue = NetfrontQueue::new(hypervisor.grants()?, BACKEND, events, counters)?;
        let config = queue.config();
        let (tx_port, rx_port) = match config.events {
            EventPorts::Split { tx, rx } => (tx.0, rx.0),
            EventPorts::Single(both) => (both.0, both.0),
        };
        let (tx_ring, rx_ring) = (config.tx_ring_ref.0, config.rx_ring_ref.0);
        keys.push(QueueKeys { tx_ring, rx_ring, tx_port, rx_port });
        queues.push(queue);
    }
    Ok((queues, keys))
}

fn offer_events(hypervisor: &EmuHypervisor) -> Result<QueueEvents<EmuEvent>> {
    let offer = || hypervisor.alloc_unbound(BACKEND);
    Ok(QueueEvents::Split { tx: offer()?, rx: offer()? })
}

fn print(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    Ok(out.flush()?)
}
