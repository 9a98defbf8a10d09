//! What a backend's control thread asks of its engines: the steps of `ringway-worker`'s pool, with
//! the rest of the world going on wherever that waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringway_datapath::{FramePool, QueueCounters};
use ringway_engine::{
    Attached, AttachedParts, Capture, Forwarding, Limits, Move, QueueAddress, Stations, Weight,
};
use ringway_switch::{PortId, Ticks};

use crate::canary::Canary;
use crate::marks::Mark;
use crate::plane::DataPlane;
use crate::port::Port;
use crate::worker::Command;
use crate::workers::Workers;

/// The process of the backend has ended while its control thread waited for an engine.
#[derive(Debug)]
pub(crate) struct Ended;

impl DataPlane {
    /// Gives all queues of a port to engines.
    pub(crate) fn attach(
        &mut self,
        port: PortId,
        limits: &Limits,
        queues: Vec<(Port, Arc<QueueCounters>)>,
    ) -> Result<(), Ended> {
        let Some(workers) = &mut self.workers else { return Err(Ended) };
        let weight = self.choices.pick(&[1, 1, 1, 3]);
        let weight = Weight::new(weight).unwrap_or(Weight::ONE);
        let mut engines = BTreeSet::new();
        for (queue_index, (queue, counters)) in (0..).zip(queues) {
            let engine = self.choices.below(workers.workers.len());
            let address = workers.roster.place(port, queue_index, None, engine);
            let parts = AttachedParts {
                id: address.slot,
                port_id: port,
                queue_index,
                queue,
                forwarding: Forwarding::Switch(Arc::clone(&workers.switch)),
                flood: workers.switch.flood_budget(Ticks::default()),
                counters,
                gauge: address.gauge,
                limits: limits.clone(),
                stations: Stations::One(weight),
            };
            let attached = Box::new(Attached::new(parts, self.now));
            workers.workers[engine].command(Command::Attach { attached });
            engines.insert(engine);
        }
        self.wait_until_applied(engines)?;
        self.publish()
    }

    /// Takes all queues of a port back and drops them, which unmaps and unbinds them.
    pub(crate) fn detach(&mut self, port: PortId) -> Result<(), Ended> {
        let gone = self.workers.as_mut().ok_or(Ended)?.roster.remove(port);
        self.publish()?;
        self.wait_until_seen()?;
        for placed in gone {
            let attached = self.take_back(&placed.address)?;
            let workers = self.workers.as_mut().ok_or(Ended)?;
            workers.roster.free(&placed.address);
            let mut pool = FramePool::new(Arc::clone(&workers.budget));
            if let Some(attached) = attached {
                let queue = attached.into_queue(&mut pool);
                if self.canary == Some(Canary::KeptMapping) {
                    std::mem::forget(queue);
                }
            }
        }
        let workers = self.workers.as_mut().ok_or(Ended)?;
        // Sources that these queues held may go on, and their threads may sleep.
        workers.workers.iter().for_each(|worker| worker.inbox.nudge());
        workers.free_port(port);
        Ok(())
    }

    /// Hands one queue to another engine by the steps that [`ringway_engine::Roster`] documents.
    pub(crate) fn move_queue(
        &mut self,
        port: PortId,
        queue: u16,
        engine: usize,
    ) -> Result<(), Ended> {
        let workers = self.workers.as_mut().ok_or(Ended)?;
        let Some(Move { from, to }) = workers.roster.redirect(port, queue, engine) else {
            return Ok(());
        };
        let (source, target) = (from.engine, to.engine);
        self.journal.note(|| {
            format!("queue {queue} of port {port} begins to move from engine {source} to {target}")
        });
        let expect = Command::Expect { id: to.slot, gauge: Arc::clone(&to.gauge) };
        workers.workers[to.engine].command(expect);
        self.wait_until_applied([to.engine])?;
        self.publish()?;
        if self.canary != Some(Canary::HastyMove) {
            self.wait_until_seen()?;
        }
        let attached = self.take_back(&from)?;
        let workers = self.workers.as_mut().ok_or(Ended)?;
        workers.roster.free(&from);
        let command = match attached {
            Some(attached) => {
                Command::Attach { attached: Box::new(attached.moved_to(to.slot, self.now)) }
            }
            None => Command::Forget { id: to.slot },
        };
        workers.workers[to.engine].command(command);
        self.marks.hit(Mark::Moved);
        Ok(())
    }

    /// Limits what enters by a port from now on, or no longer.
    pub(crate) fn limit(&mut self, port: PortId, limits: &Limits) {
        self.command_port(port, |address| Command::Limit {
            id: address.slot,
            limits: limits.clone(),
        });
        self.marks.hit(Mark::RateChanged);
    }

    /// Copies frames of a port to a capture from now on.
    pub(crate) fn capture(&mut self, port: PortId, capture: &Arc<Capture>) {
        self.command_port(port, |address| Command::Capture {
            id: address.slot,
            capture: Arc::clone(capture),
        });
        self.marks.hit(Mark::CaptureOn);
    }

    fn command_port(&mut self, port: PortId, command: impl Fn(&QueueAddress) -> Command) {
        let Some(workers) = &mut self.workers else { return };
        let Workers { workers, roster, .. } = workers;
        for placed in roster.queues().iter().filter(|placed| placed.port == port) {
            workers[placed.address.engine].command(command(&placed.address));
        }
    }

    fn publish(&mut self) -> Result<(), Ended> {
        self.workers.as_mut().ok_or(Ended)?.publish();
        Ok(())
    }

    fn take_back(&mut self, address: &QueueAddress) -> Result<Option<Box<Attached<Port>>>, Ended> {
        let engine = address.engine;
        let workers = self.workers.as_mut().ok_or(Ended)?;
        workers.workers[engine].command(Command::Detach { id: address.slot });
        self.wait_until_applied([engine])?;
        let workers = self.workers.as_mut().ok_or(Ended)?;
        Ok(workers.workers[engine].returned.pop_front().flatten())
    }

    fn wait_until_applied(
        &mut self,
        engines: impl IntoIterator<Item = usize>,
    ) -> Result<(), Ended> {
        let engines: Vec<usize> = engines.into_iter().collect();
        let have_applied = |workers: &Workers| {
            engines.iter().all(|engine| !workers.workers[*engine].has_commands())
        };
        if self.wait_until(have_applied) { Ok(()) } else { Err(Ended) }
    }

    fn wait_until_seen(&mut self) -> Result<(), Ended> {
        if let Some(workers) = &self.workers {
            workers.announce_directory();
        }
        if self.wait_until(Workers::have_seen_directory) { Ok(()) } else { Err(Ended) }
    }
}
