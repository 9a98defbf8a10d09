//! The backend process: serves every vif that its domain is to serve.
//!
//! It is one control thread around the workers. The thread watches XenStore for vifs, runs a
//! handshake with each guest ([`served`]), attaches the queues that come of it, and answers the
//! command line. Frames never pass through it. A backend holds nothing that it could not find
//! again in XenStore and in the shared rings, so it may be killed and started at any time.

mod capture;
mod config;
mod control;
mod device;
mod log;
mod served;
mod service;
mod uplink;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

pub use config::{BackendConfig, Uplink};
use ringway_control::{BackendRequest, Call, ControlServer};
use ringway_hypervisor::Hypervisor;
use ringway_netback::VifQueue;
use ringway_switch::{PortId, Switch, Ticks};
use ringway_tap::VifOrTap;
use ringway_worker::{PortEvent, Workers};
use ringway_xenbus::Vif;
use ringway_xenstore::{Client, Errno, Lost, Watched, or_refusal, unless_refused};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
pub use service::Service;

use crate::served::Served;
use crate::service::Reports;
use crate::uplink::UplinkPort;

/// How often load is evened out and the forwarding table is swept.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// Watch events handled before anything else is looked at: guests make them at will.
const EVENTS_PER_TURN: usize = 256;
/// The token of the watch for new vifs.
const ROOT_TOKEN: &str = "vifs";

/// A queue of a vif or of a TAP device.
type Station<H> = VifOrTap<VifQueue<<H as Hypervisor>::Memory, <H as Hypervisor>::Event>>;

/// Everything a backend has.
struct Backend<H: Hypervisor> {
    hypervisor: H,
    store: Client,
    config: BackendConfig,
    workers: Workers<Station<H>>,
    /// What workers have said, and nobody has looked at yet.
    port_events: VecDeque<PortEvent<Station<H>>>,
    switch: Arc<Switch>,
    /// The zero of switch time.
    started: Instant,
    vifs: BTreeMap<Vif, Served>,
    ports_free: Vec<PortId>,
    port_next: u16,
    uplink: Option<UplinkPort>,
    reports: Reports,
}

/// Serves vifs until `stop` becomes readable.
///
/// # Errors
/// If XenStore is lost, or what this host lacks at the start: threads, devices, sockets.
pub fn run<H: Hypervisor>(
    hypervisor: H,
    mut store: Client,
    config: BackendConfig,
    stop: impl AsFd,
) -> io::Result<()> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (_control, calls) = serve_control(&config, &wake)?;
    let root = Vif::backend_root(hypervisor.domid());
    match or_refusal(store.mkdir(&root))? {
        // A driver domain whose toolstack has yet to make it, and to give it away.
        Err(refusal) if refusal.is(Errno::Acces) => {}
        made => made.map_err(io::Error::other)?,
    }
    or_refusal(store.watch(&root, ROOT_TOKEN))?.map_err(io::Error::other)?;
    let mut backend = Backend {
        workers: Workers::start(config.workers.clone())?,
        switch: Arc::new(Switch::new(config.switch)),
        started: Instant::now(),
        port_events: VecDeque::new(),
        vifs: BTreeMap::new(),
        ports_free: Vec::new(),
        port_next: 0,
        uplink: None,
        reports: Reports::new(config.service),
        hypervisor,
        store,
        config,
    };
    backend.attach_uplink()?;
    backend.scan()?;
    backend.delete_stale_devices();
    backend.reports.ready();
    backend.serve(&calls, &wake, stop)
}

fn serve_control(
    config: &BackendConfig,
    wake: &Arc<OwnedFd>,
) -> io::Result<(ControlServer, Receiver<Call<BackendRequest>>)> {
    let wake = Arc::clone(wake);
    ControlServer::start(&config.dir.backend(), move || {
        // The counter cannot overflow between two turns of the loop.
        let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
    })
}

impl<H: Hypervisor> Backend<H> {
    fn serve(
        &mut self,
        calls: &Receiver<Call<BackendRequest>>,
        wake: &OwnedFd,
        stop: impl AsFd,
    ) -> io::Result<()> {
        let mut swept = Instant::now();
        loop {
            self.take_port_events()?;
            while let Ok(call) = calls.try_recv() {
                self.answer(call)?;
            }
            if swept.elapsed() >= HOUSEKEEPING {
                swept = Instant::now();
                self.switch.fdb().expire(self.now());
                if let Some(moved) = self.workers.rebalance() {
                    tracing::debug!(?moved, "queue moved to another worker");
                }
                self.tell_service();
            }
            // Last, because all the above asks XenStore, and an event that comes together with a
            // reply does not make the descriptor readable.
            let pause = match self.take_watches()? {
                Watches::Taken => HOUSEKEEPING,
                Watches::More => Duration::ZERO,
            };
            let mut fds = [
                PollFd::new(&self.store, PollFlags::IN),
                PollFd::new(&self.workers, PollFlags::IN),
                PollFd::new(wake, PollFlags::IN),
                PollFd::new(&stop, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&timespec(pause))) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let should_stop = !fds[3].revents().is_empty();
            let _ = rustix::io::read(wake, &mut [0; 8]);
            if should_stop {
                self.reports.stopping();
                return Ok(());
            }
        }
    }

    /// Switch time, in seconds.
    fn now(&self) -> Ticks {
        Ticks(u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX))
    }

    /// Looks for every vif there is.
    fn scan(&mut self) -> Result<(), Lost> {
        let backend = self.hypervisor.domid();
        let root = Vif::backend_root(backend);
        for guest in list(&mut self.store, &root)? {
            for handle in list(&mut self.store, &format!("{root}/{guest}"))? {
                if let Some(vif) = Vif::from_backend_path(&format!("{root}/{guest}/{handle}")) {
                    self.look_at(vif)?;
                }
            }
        }
        Ok(())
    }

    /// Deletes network devices of vifs that went while no backend was there. What cannot be deleted
    /// hinders nobody.
    fn delete_stale_devices(&self) {
        let is_kept = |vif: Vif, name: &str| {
            let served = self.vifs.get(&vif);
            // One that could not be made ready may be repaired.
            served.is_some_and(|it| it.device.as_ref().is_none_or(|it| it.tap.name() == name))
        };
        match device::delete_stale(&self.device_owner(), is_kept) {
            Ok(deleted) if deleted.is_empty() => {}
            Ok(deleted) => tracing::info!(?deleted, "network devices of vifs that are gone"),
            Err(error) => tracing::warn!("network devices of vifs that are gone: {error}"),
        }
    }

    fn take_watches(&mut self) -> Result<Watches, Lost> {
        for _ in 0..EVENTS_PER_TURN {
            let event = match self.store.next_watch()? {
                None => return Ok(Watches::Taken),
                Some(Watched::Node(event)) => event,
                Some(Watched::Overflow) => {
                    self.read_everything()?;
                    continue;
                }
            };
            if event.token == ROOT_TOKEN {
                match Vif::from_backend_path(&event.path) {
                    // Our own writes come back as well; only these are the toolstack's word.
                    Some(vif) if self.vifs.contains_key(&vif) => {
                        let theirs =
                            [vif.backend_dir(), vif.online(), vif.hotplug_status(), vif.rate()];
                        if theirs.contains(&event.path) {
                            self.look_at(vif)?;
                        } else if event.path == vif.backend_state() {
                            self.own_state_written(vif)?;
                        }
                    }
                    Some(vif) => self.look_at(vif)?,
                    None => self.scan()?,
                }
            } else if let Some(vif) = Vif::from_backend_path(&event.token) {
                self.frontend_changed(vif)?;
            }
        }
        Ok(Watches::More)
    }

    /// Events were lost, so any vif may have come, changed or gone.
    fn read_everything(&mut self) -> Result<(), Lost> {
        self.scan()?;
        for vif in self.vifs.keys().copied().collect::<Vec<Vif>>() {
            self.look_at(vif)?;
            self.frontend_changed(vif)?;
        }
        Ok(())
    }

    fn allocate_port(&mut self) -> io::Result<PortId> {
        if let Some(port) = self.ports_free.pop() {
            return Ok(port);
        }
        if self.port_next >= self.config.switch.ports_max {
            return Err(io::Error::other(format!(
                "the switch is full: it has {} ports",
                self.config.switch.ports_max
            )));
        }
        self.port_next += 1;
        Ok(PortId(self.port_next - 1))
    }

    fn free_port(&mut self, port: PortId) {
        self.switch.fdb().remove_port(port);
        self.ports_free.push(port);
    }
}

/// Whether there may be more watch events.
enum Watches {
    Taken,
    More,
}

/// The entries of a directory, none if it is not there or not ours to see.
fn list(store: &mut Client, dir: &str) -> Result<Vec<String>, Lost> {
    unless_refused(store.directory(dir), Vec::new())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
