//! Additions and removals of virtio vifs, as reported by the opener.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{Link, OpenerEvent, OpenerOrder, Received};
use ringway_host::{AddedVirtio, Event, Phase};
use ringway_host_shell::{SessionEvent, VifSession};
use ringway_hypervisor::Hypervisor;
use ringway_sys::poll::wait_readable;
use ringway_tap::VifOrTap;
use ringway_vhost_shell::{Obstacle, PassedOn};
use serde_json::Value;

use crate::Backend;
use crate::vif_or_trunk::VifOrTrunk;

/// Messages that are taken in a turn.
const EVENTS_MAX: usize = 256; // not a limit: a batch, the rest follows
/// How long the opener may take to remove its sockets.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// How long the opener may take for the vifs of the description.
const START_MAX: Duration = Duration::from_secs(30);

impl<H: Hypervisor> Backend<H> {
    /// Waits for all vifs of the description.
    pub(crate) fn wait_for_vhosts(&mut self) -> io::Result<()> {
        let Some(opener) = self.opener.clone() else { return Ok(()) };
        let deadline = Instant::now() + START_MAX;
        while !self.take_opener_events(&opener, Phase::Start)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_readable(&opener, Some(left))? {
                let limit = START_MAX.as_secs();
                return Err(io::Error::other(format!(
                    "the process that opens sockets has not responded for {limit} s"
                )));
            }
        }
        Ok(())
    }

    /// Takes the opener's messages.
    pub(crate) fn serve_opener(&mut self) -> io::Result<()> {
        let Some(opener) = self.opener.clone() else { return Ok(()) };
        self.take_opener_events(&opener, Phase::Serving).map(|_| ())
    }

    /// Has the opener remove its sockets, and waits until it has ended.
    pub(crate) fn leave_opener(&self) {
        let Some(opener) = &self.opener else { return };
        if let Err(error) = opener.send(&OpenerOrder::Leave, &[]) {
            tracing::warn!("the sockets of virtio vifs stay: {error}");
            return;
        }
        let deadline = Instant::now() + LEAVE_MAX;
        loop {
            match opener.receive::<OpenerEvent>() {
                Ok(Received::Message(..)) => continue,
                Ok(Received::Nothing) => {}
                Ok(Received::End) | Err(_) => return,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_readable(opener, Some(left)).unwrap_or(false) {
                return;
            }
        }
    }

    /// Takes messages; returns whether the opener has reported that it is ready.
    fn take_opener_events(&mut self, opener: &Arc<Link>, phase: Phase) -> io::Result<bool> {
        for _ in 0..EVENTS_MAX {
            match opener.receive()? {
                Received::Nothing => return Ok(false),
                Received::End => {
                    return Err(io::Error::other("the process that opens sockets has ended"));
                }
                Received::Message(OpenerEvent::Ready, _) => return Ok(true),
                Received::Message(event, files) => {
                    self.on_opener_event(event, files, opener, phase)?;
                }
            }
        }
        Ok(false)
    }

    fn on_opener_event(
        &mut self,
        event: OpenerEvent,
        files: Vec<OwnedFd>,
        opener: &Arc<Link>,
        phase: Phase,
    ) -> io::Result<()> {
        match event {
            OpenerEvent::Ready => {}
            OpenerEvent::Added { name, vhost, at_run_time } => {
                // Of the vifs of a description more may follow, also of one that was read again,
                // which was checked as a whole.
                let phase = if at_run_time { phase } else { Phase::Start };
                let added = self.add_vhost(vhost, at_run_time, opener, phase);
                if let Err(reason) = &added {
                    let origin = if at_run_time { "vif add" } else { "the description" };
                    tracing::warn!(vif = name, "the vif of {origin} cannot be served: {reason}");
                }
                opener.send(&OpenerOrder::Done { name, error: added.err() }, &[])?;
            }
            OpenerEvent::Described { vhost } => self.reloading.describe(vhost),
            OpenerEvent::Reload { common, changed } => self.reload((common, changed), opener)?,
            OpenerEvent::Refused => self.end_reload(),
            OpenerEvent::Removed { name } => {
                self.on(Event::Removed(name.clone()))?;
                opener.send(&OpenerOrder::Done { name, error: None }, &[])?;
            }
            OpenerEvent::Connected { name } => {
                let vif = self.host.virtio().find(|vif| vif.state.name == name);
                if let Some(event) = vif.and_then(|vif| vif.session.opened(files)) {
                    self.on(Event::Session(name, event))?;
                }
            }
            OpenerEvent::AreaSent { name, error } => {
                let outcome = error.map_or(Ok(()), Err);
                self.on(Event::Session(name, SessionEvent::AreaSent(outcome)))?;
            }
            OpenerEvent::Waiting { name, reason, is_failure, is_absence } => {
                if is_failure {
                    tracing::warn!(vif = name, "waits: {reason}");
                }
                let obstacle = Obstacle { reason, is_absence };
                self.on(Event::Session(name, SessionEvent::Waits(obstacle)))?;
            }
        }
        Ok(())
    }

    fn add_vhost(
        &mut self,
        vhost: Value,
        at_run_time: bool,
        opener: &Arc<Link>,
        phase: Phase,
    ) -> Result<(), String> {
        let config = (self.process.config.read_vhost)(vhost)?;
        let place = PassedOn::new(&config.wanted.name, Arc::clone(opener));
        let queue = |pair, _: &_| VifOrTap::Vif(VifOrTrunk::Virtio(Box::new(pair)));
        let session = || VifSession::new(&config, place, queue);
        let added = AddedVirtio { wanted: config.wanted.clone(), at_run_time, phase };
        let Backend { host, store, process, .. } = self;
        host.add_virtio(added, session, Instant::now(), &mut process.machinery.parts(store))
    }
}
