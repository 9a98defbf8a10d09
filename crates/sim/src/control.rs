//! The commands of a backend's control thread to its engines. The steps are those of
//! `ringway-engine`, which the threads of `ringway-worker` also use; while they wait, the rest of
//! the world runs.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{FramePool, QueueCounters};
use ringway_engine::steps::{self, Attachment, Command, Engines, NewPort, Taken};
use ringway_engine::{
    Attached, Capture, Failure, Forwarding, Limits, QueueAddress, Roster, Stations, Weight,
};
use ringway_switch::{PortId, PortPolicy, Ticks};

use crate::canary::Canary;
use crate::marks::Mark;
use crate::plane::DataPlane;
use crate::port::Port;
use crate::worker::Request;
use crate::workers::Workers;

/// The process of the backend has ended while its control thread waited for an engine.
#[derive(Debug)]
pub(crate) struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process has ended")
    }
}

impl Error for Ended {}

/// A port to attach.
pub(crate) struct PortParts {
    pub(crate) id: PortId,
    pub(crate) limits: Limits,
    /// The only port to which its frames go; if `None`, the switch decides.
    pub(crate) patched_to: Option<PortId>,
    /// Whether there are several stations behind it.
    pub(crate) is_shared: bool,
    pub(crate) queues: Vec<(Port, Arc<QueueCounters>)>,
}

impl DataPlane {
    /// Gives all queues of a port to engines.
    pub(crate) fn attach(&mut self, parts: PortParts) -> io::Result<()> {
        let PortParts { id, limits, patched_to, is_shared, queues } = parts;
        let workers = self.running().map_err(io::Error::other)?;
        let switch = Arc::clone(&workers.switch);
        let weight = self.choices.pick(&[1, 1, 1, 3]);
        let weight = Weight::new(weight).unwrap_or(Weight::ONE);
        let stations = if is_shared { Stations::Many } else { Stations::One(weight) };
        let forwarding = match patched_to {
            None => Forwarding::Switch(Arc::clone(&switch)),
            Some(to) => Forwarding::Patch(to),
        };
        let queues = queues.into_iter().map(|(queue, counters)| {
            let flood = switch.flood_budget(Ticks::default());
            Attachment { queue, counters, flood, stations }
        });
        let policy = Arc::new(PortPolicy::open());
        let port = NewPort { id, forwarding: &forwarding, policy: &policy, limits: &limits };
        steps::attach(self, port, queues.collect())
    }

    /// Takes back and drops all queues of a port, which unmaps and unbinds them.
    pub(crate) fn detach(&mut self, port: PortId) -> Result<(), Ended> {
        steps::detach(self, port, |plane, attached| {
            let Some(workers) = &plane.workers else { return };
            let mut pool = FramePool::new(Arc::clone(&workers.budget));
            let queue = attached.into_queue(&mut pool);
            if plane.canary == Some(Canary::KeptMapping) {
                std::mem::forget(queue);
            }
        })?;
        self.workers.as_mut().ok_or(Ended)?.free_port(port);
        Ok(())
    }

    /// Moves one queue to another engine.
    pub(crate) fn move_queue(
        &mut self,
        port: PortId,
        queue: u16,
        engine: usize,
    ) -> Result<(), Ended> {
        self.journal.note(|| format!("queue {queue} of port {port} is to move to engine {engine}"));
        if steps::move_queue(self, port, queue, engine)? {
            self.marks.hit(Mark::Moved);
        }
        Ok(())
    }

    /// Sets or removes the limits on ingress of a port.
    pub(crate) fn limit(&mut self, port: PortId, limits: &Limits) {
        let limit = |id| Command::Limit { id, limits: limits.clone() };
        // If the process has ended, so has the port.
        let _: Result<bool, Ended> = steps::command_port(self, port, limit);
        self.marks.hit(Mark::RateChanged);
    }

    /// Copies frames of a port to a capture from now on.
    pub(crate) fn capture(&mut self, port: PortId, capture: &Arc<Capture>) {
        let copy = |id| Command::Capture { id, capture: Arc::clone(capture) };
        let _: Result<bool, Ended> = steps::command_port(self, port, copy);
        self.marks.hit(Mark::CaptureOn);
    }

    fn running(&mut self) -> Result<&mut Workers, Ended> {
        self.workers.as_mut().ok_or(Ended)
    }
}

impl Engines for DataPlane {
    type Queue = Port;
    type Gone = Ended;

    fn roster(&mut self) -> Result<&mut Roster, Ended> {
        self.running().map(|workers| &mut workers.roster)
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn choose_places(
        &mut self,
        port: PortId,
        patched_to: Option<PortId>,
        count: u16,
    ) -> io::Result<Vec<QueueAddress>> {
        let DataPlane { workers, choices, .. } = self;
        let workers = workers.as_mut().ok_or_else(|| io::Error::other(Ended))?;
        let engines = workers.workers.len();
        let place = |queue| workers.roster.place(port, queue, patched_to, choices.below(engines));
        Ok((0..count).map(place).collect())
    }

    fn attached(&mut self, _port: PortId) {}

    fn next_failure(&mut self) -> Option<Failure<Port>> {
        self.workers.as_mut()?.failures.pop_front()
    }

    fn command(&mut self, engine: usize, command: Command<Port>) -> Result<(), Ended> {
        self.running()?.workers[engine].request(Request::Apply(command));
        Ok(())
    }

    fn wait_until_applied(&mut self, engines: &BTreeSet<usize>) -> Result<(), Ended> {
        let have_applied = |workers: &Workers| {
            engines.iter().all(|engine| !workers.workers[*engine].has_requests())
        };
        if self.wait_until(have_applied) { Ok(()) } else { Err(Ended) }
    }

    fn publish(&mut self) -> Result<(), Ended> {
        self.running()?.publish();
        Ok(())
    }

    fn wait_until_seen(&mut self) -> Result<(), Ended> {
        if self.canary == Some(Canary::HastyMove) {
            return Ok(());
        }
        self.running()?.announce_directory();
        if self.wait_until(Workers::have_seen_directory) { Ok(()) } else { Err(Ended) }
    }

    fn take_back(&mut self, from: &QueueAddress) -> Result<Taken<Port>, Ended> {
        let engine = from.engine;
        self.running()?.workers[engine].request(Request::TakeBack { id: from.slot });
        self.wait_until_applied(&BTreeSet::from([engine]))?;
        Ok(self.running()?.workers[engine].returned.pop_front().flatten())
    }

    fn release(&mut self, attached: Attached<Port>) {
        // If the process has ended, everything has been released.
        let Some(workers) = &self.workers else { return };
        let queue = attached.into_queue(&mut FramePool::new(Arc::clone(&workers.budget)));
        if self.canary == Some(Canary::KeptMapping) {
            std::mem::forget(queue);
        }
    }

    fn nudge_all(&mut self) -> Result<(), Ended> {
        self.running()?.workers.iter().for_each(|worker| worker.inbox.nudge());
        Ok(())
    }
}
