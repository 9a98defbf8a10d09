//! The guest process: gives one guest its interfaces.
//!
//! Each interface is a TAP device in the guest's network namespace, whose kernel is the guest's
//! TCP/IP, joined to a vif by workers. A control thread finds the vifs in XenStore, where the
//! toolstack may create and remove them at any time, runs the handshake with each vif's backend and
//! serves the command line. An error of one vif is written to its error node and ends neither the
//! process nor another vif.
//!
//! A device is created when its backend first makes an offer, and deleted when the toolstack
//! removes the vif. When the vif reconnects (the backend restarts, or the number of queues
//! changes), the device stays, and with it addresses, routes and connections. Frames flow while
//! both ends are connected; otherwise they wait in the kernel's queue, up to its length.
//!
//! The TAP device has one queue, read by one worker, which hands frames to the worker of the vif
//! queue that their flow belongs to. With several TAP queues, the kernel would spread flows by its
//! own rule, which changes during the life of a flow and so could reorder its frames (ADR 4).

mod config;
mod gro;
mod nic;
mod pace;
mod parts;
mod reserve;
mod sockets;
mod vhost;
mod vifs;
mod wired;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

pub use config::{FrontendConfig, Interface};
use ringway_control::{Call, ControlServer, GuestRequest, GuestStatus, Reply, listed};
use ringway_hypervisor::Hypervisor;
use ringway_sys::poll::{Source, Turns, readable, take_turns, wait_readable};
use ringway_xenbus::frontend::Input;
use ringway_xenstore::{Client, Lost};
pub use sockets::Sockets;
pub use vhost::{VhostConfig, VhostSockets, run_vhost};

use crate::nic::Nic;
use crate::pace::Paces;
use crate::parts::{Machinery, Parts};
use crate::reserve::Reserve;
use crate::vifs::Refused;

/// The state of a guest process.
struct Frontend<H: Hypervisor> {
    parts: Parts<H>,
    config: FrontendConfig,
    /// By handle.
    nics: BTreeMap<u32, Nic<H>>,
    /// What may have changed of them.
    paces: Paces,
    /// By handle: vifs with an invalid description from the toolstack.
    refused: BTreeMap<u32, Refused>,
    is_leaving: bool,
    /// Last, because it is removed when the rest has ended.
    control: ControlServer<GuestRequest>,
}

/// What a guest's control thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Stop,
    Store,
    Workers,
    Calls,
    Links,
}

/// Drives a guest's interfaces until `stop` becomes readable, then disconnects from the backends
/// cleanly.
///
/// # Errors
/// If the connection to XenStore was lost, or if the guest lacks nodes, devices or sockets at the
/// start.
pub fn run<H: Hypervisor>(
    hypervisor: H,
    store: Client,
    config: FrontendConfig,
    sockets: Sockets,
    stop: impl AsFd,
) -> io::Result<()> {
    let Sockets { control, netlink, ethtool, gro } = sockets;
    let control = ControlServer::start(control)?;
    let workers = wired::start_workers(config.workers.clone())?;
    let (port_events, reserve) = (VecDeque::new(), Reserve::default());
    let machinery = Machinery { hypervisor, netlink, ethtool, gro, workers, port_events, reserve };
    let parts = Parts { store, machinery };
    let (nics, paces, refused) = (BTreeMap::new(), Paces::default(), BTreeMap::new());
    let is_leaving = false;
    let mut frontend = Frontend { parts, config, nics, paces, refused, is_leaving, control };
    frontend.watch_vifs()?;
    take_turns(&mut frontend, &stop)?;
    frontend.leave()
}

impl<H: Hypervisor> Turns for Frontend<H> {
    type Token = Token;
    const STOP: Token = Token::Stop;

    fn turn(&mut self, _ready: &[Token]) -> io::Result<Option<Duration>> {
        self.take_port_events()?;
        if self.parts.machinery.gro.has_changed() {
            self.nics.values().for_each(|nic| nic.look_at_device(&mut self.parts));
        }
        while let Some(call) = self.control.next_call() {
            self.serve_call(call)?;
        }
        // Last, because all of the above uses XenStore, and an event that arrives together with a
        // reply does not make the descriptor readable.
        Ok(self.follow()?)
    }

    fn sources(&self) -> Vec<Source<'_, Token>> {
        let Parts { store, machinery } = &self.parts;
        let workers = readable(Token::Workers, &machinery.workers);
        let links = readable(Token::Links, &machinery.gro);
        vec![readable(Token::Store, store), workers, readable(Token::Calls, &self.control), links]
    }
}

impl<H: Hypervisor> Frontend<H> {
    /// Handles queues that their workers gave up: the backend broke the protocol, or a user deleted
    /// the device. The vif connects again.
    fn take_port_events(&mut self) -> Result<(), Lost> {
        while let Some(event) = self.parts.machinery.next_port_event() {
            let fault = format!("queue {}: {}", event.queue_index, event.down);
            let nic = self.nics.values_mut().find(|nic| nic.has_port(event.port_id));
            if let Some(nic) = nic {
                nic.take_failed(fault, event.queue);
            }
        }
        self.nics.values_mut().try_for_each(|nic| nic.recover(&mut self.parts))
    }

    fn serve_call(&mut self, call: Call<GuestRequest>) -> Result<(), Lost> {
        let reply = match call.request {
            GuestRequest::Status => {
                let Parts { store, machinery } = &mut self.parts;
                let placements = machinery.workers.placements();
                let mut vifs = Vec::new();
                for nic in self.nics.values() {
                    vifs.push(nic.status(store, &placements)?);
                }
                vifs.extend(self.refused_statuses());
                vifs.sort_by_key(|vif| vif.handle);
                Reply::ok(&GuestStatus {
                    name: self.config.name.clone(),
                    domid: self.parts.machinery.hypervisor.domid().0,
                    pid: std::process::id(),
                    vifs,
                })
            }
            GuestRequest::SetQueues { handle, queues } => {
                self.set(handle, |nic, parts| nic.set_queues(queues, parts))?
            }
            GuestRequest::SetHash { handle, ref hash } => {
                let hash = hash.clone();
                self.set(handle, |nic, parts| nic.set_hash(hash, parts))?
            }
        };
        call.reply(reply);
        Ok(())
    }

    /// Sets something of a vif. Replies with the reason if that is refused.
    fn set(
        &mut self,
        handle: u32,
        set: impl FnOnce(&mut Nic<H>, &mut Parts<H>) -> Result<Result<(), String>, Lost>,
    ) -> Result<Reply, Lost> {
        let Some(nic) = self.nics.get_mut(&handle) else {
            let known = listed(self.nics.keys().map(u32::to_string));
            return Ok(Reply::error(&format!("there is no vif {handle}; there is {known}")));
        };
        Ok(match set(nic, &mut self.parts)? {
            Ok(()) => Reply::ok(&()),
            Err(reason) => Reply::error(&reason),
        })
    }

    /// Closes each vif, and waits briefly for the backends to close as well.
    fn leave(&mut self) -> io::Result<()> {
        self.unwatch_vifs()?;
        for nic in self.nics.values_mut() {
            nic.feed(Input::Stop, &mut self.parts)?;
        }
        self.drop_finished()?;
        let deadline = Instant::now() + nic::LEAVE_TIMEOUT;
        loop {
            let pause = self.follow()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.nics.is_empty() || left.is_zero() {
                return Ok(());
            }
            wait_readable(&self.parts.store, Some(pause.unwrap_or(left).min(left)))?;
        }
    }
}
