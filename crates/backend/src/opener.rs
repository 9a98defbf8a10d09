//! Additions and removals of virtio vifs, as reported by the opener.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{Link, OpenerEvent, OpenerOrder, Received};
use ringway_host::{Rules, VifState};
use ringway_hypervisor::Hypervisor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::Backend;
use crate::config::VhostVif as VhostConfig;
use crate::machinery::Machinery;
use crate::sockets::PassedOn;
use crate::vhost::{Added, VhostVif};

/// Messages that are taken in a turn.
const EVENTS_MAX: usize = 256; // not a limit: a batch, the rest follows
/// How long the opener may take to remove its sockets.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// How long the opener may take for the vifs of the description.
const START_MAX: Duration = Duration::from_secs(10);

/// Whether all ports are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Serving,
}

impl<H: Hypervisor> Backend<H> {
    /// Waits for all vifs of the description.
    pub(crate) fn wait_for_vhosts(&mut self) -> io::Result<()> {
        let Some(opener) = self.opener.clone() else { return Ok(()) };
        let deadline = Instant::now() + START_MAX;
        while !self.take_opener_events(&opener, Phase::Start)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let limit = START_MAX.as_secs();
                return Err(io::Error::other(format!(
                    "the process that opens sockets has not responded for {limit} s"
                )));
            }
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&*opener, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
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
            let left = crate::timespec(deadline.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::new(&**opener, PollFlags::IN)], Some(&left)) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
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
                let added = self.add_vhost(vhost, at_run_time, opener, phase);
                if let Err(reason) = &added {
                    let origin = if at_run_time { "vif add" } else { "[[vhost]]" };
                    tracing::warn!(vif = name, "the vif of {origin} cannot be served: {reason}");
                }
                opener.send(&OpenerOrder::Done { name, error: added.err() }, &[])?;
            }
            OpenerEvent::Removed { name } => {
                let index = self.vhosts.iter().position(|vhost| vhost.state.name == name);
                if let Some(vhost) = index.map(|index| self.vhosts.remove(index)) {
                    vhost.end(&mut self.hosting());
                }
                opener.send(&OpenerOrder::Done { name, error: None }, &[])?;
            }
            OpenerEvent::Connected { name } => {
                let vhost = self.vhosts.iter_mut().find(|vhost| vhost.state.name == name);
                if let (Some(vhost), Some(file)) = (vhost, files.into_iter().next()) {
                    vhost.end.source().connected(file);
                }
            }
            OpenerEvent::AreaSent { name, error } => {
                let Backend { host, machinery, vhosts, .. } = self;
                let vhost = vhosts.iter_mut().find(|vhost| vhost.state.name == name);
                if let Some(vhost) = vhost {
                    let mut hosting = machinery.hosting(&mut host.shared, Instant::now());
                    vhost.on_area_sent(&mut hosting, error.map_or(Ok(()), Err));
                }
            }
            OpenerEvent::Waiting { name, reason, is_failure } => {
                if is_failure {
                    tracing::warn!(vif = name, "waits: {reason}");
                }
                let vhost = self.vhosts.iter_mut().find(|vhost| vhost.state.name == name);
                if let Some(vhost) = vhost {
                    vhost.end.source().waits(reason);
                }
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
        let config = (self.config.read_vhost)(vhost)?;
        if self.all_states().any(|state| state.name == config.name) {
            return Err(format!("a vif {} exists already", config.name));
        }
        if self.uplink.as_ref().is_some_and(|uplink| uplink.name == config.name) {
            return Err(format!("{} is the name of the uplink: choose another", config.name));
        }
        if let Some(refusal) = self.refuse_macs(&config).filter(|_| phase == Phase::Serving) {
            return Err(refusal);
        }
        if let Some(refusal) = self.refuse_link(&config).filter(|_| phase == Phase::Serving) {
            return Err(refusal);
        }
        let mirror = &config.rules.mirror;
        let refusal = self.refuse_mirror(&config.name, mirror);
        // At the start, other vifs are not known yet.
        let is_known = phase == Phase::Serving;
        let refusal = refusal.or_else(|| is_known.then(|| self.refuse_ports(mirror)).flatten());
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let place = PassedOn::new(&config.name, Arc::clone(opener));
        let mut hosting = self.hosting();
        // A user sees at once that a bridge is missing; at the start it may appear later. So it may
        // where a supervisor, which has seen that it is there, passes the device.
        let may_wait = phase == Phase::Start || hosting.devices.keeper().is_none();
        let added = Added { config, at_run_time, may_wait };
        let vhost = VhostVif::begin(added, place, &mut hosting);
        let vhost = vhost.map_err(|error| error.to_string())?;
        if let Some(reason) = vhost.why_unattached() {
            let vif = &vhost.state.name;
            tracing::warn!(vif, "not attached until the reason is gone: {reason}");
        }
        self.vhosts.push(vhost);
        Ok(())
    }

    /// Why a new vif cannot have its addresses: another has one, where frames of both could meet.
    fn refuse_macs(&self, config: &VhostConfig) -> Option<String> {
        let place = (config.bridge.as_deref(), config.rules.vlan.untagged);
        let place_of = |state: &VifState<Machinery<H>>| {
            let device = state.device.as_ref();
            (device.map(|device| device.attached_to.clone()), state.rules.vlan().untagged)
        };
        let place = (place.0.map(str::to_owned), place.1);
        let new = Rules { wanted: config.rules.clone(), mac: config.mac, ..Rules::default() };
        let mut others = self.all_states().filter(|state| place_of(state) == place);
        others.find_map(|other| {
            let (key, mac, its_key) = new.conflict(&other.rules)?;
            Some(format!(
                "{key} {mac} is that of {}, in its {its_key}: choose another, remove that vif \
                 first, or list it in shared-macs of both",
                other.name
            ))
        })
    }

    /// What to wait for.
    pub(crate) fn opener_waker(&self) -> Option<PollFd<'_>> {
        let opener = self.opener.as_ref()?;
        Some(PollFd::from_borrowed_fd(opener.as_fd(), PollFlags::IN))
    }
}
