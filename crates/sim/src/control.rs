//! The commands of a backend's control thread to its engines. The steps are those of
//! `ringway-engine`, which the threads of `ringway-worker` also use; while they wait, the rest of
//! the world runs.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use ringway_datapath::FramePool;
use ringway_engine::steps::{self, Command, Engines, NewPort, Taken};
use ringway_engine::{Attached, Failure, QueueAddress, Roster};
use ringway_switch::PortId;
use rustix::io::Errno;

use crate::canary::Canary;
use crate::device::Kind;
use crate::flaw::{Flaw, Rule};
use crate::ledger::Owner;
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

impl DataPlane {
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

    /// Has flows leave queues that cannot keep up.
    pub(crate) fn balance_flows(&mut self) -> Result<(), Ended> {
        self.journal.note(|| "flows are balanced".to_owned());
        steps::balance_flows(self)
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

    fn choose_places(&mut self, port: &NewPort<'_>, count: u16) -> io::Result<Vec<QueueAddress>> {
        let DataPlane { workers, choices, marks, place_refused, .. } = self;
        let workers = workers.as_mut().ok_or_else(|| io::Error::other(Ended))?;
        if let Some(ports) = place_refused.take() {
            *place_refused = ports.checked_sub(1);
            if ports == 0 {
                marks.hit(Mark::PlaceRefused);
                return Err(Errno::AGAIN.into());
            }
        }
        let engines = workers.workers.len();
        let (id, to) = (port.id, port.forwarding.patched_to());
        let place = |queue| workers.roster.place(id, queue, to, choices.below(engines));
        Ok((0..count).map(place).collect())
    }

    fn attached(&mut self, port: PortId) {
        let owner = self.workers.as_ref().and_then(|workers| workers.owner(port));
        self.journal.note(|| format!("backend: port {port} is attached, of {owner:?}"));
        match owner {
            Some(Owner::Device(device)) => match self.devices[device].kind {
                Kind::Uplink => self.marks.hit(Mark::Uplink),
                Kind::Vif { .. } => self.marks.hit(Mark::Patched),
            },
            Some(Owner::Guest(guest)) => {
                self.marks.hit(Mark::Connected);
                if self.guests[guest].is_up {
                    self.marks.hit(Mark::Reattached);
                }
            }
            None => self.marks.hit(Mark::Connected),
        }
    }

    /// The control thread has a turn sooner or later, without being woken.
    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn next_failure(&mut self) -> Option<Failure<Port>> {
        self.workers.as_mut()?.failures.pop_front()
    }

    fn command(&mut self, engine: usize, command: Command<Port>) -> Result<(), Ended> {
        let workers = self.workers.as_mut().ok_or(Ended)?;
        match &command {
            Command::Attach { attached } => {
                workers.note_attached(attached.port_id(), attached.queue());
            }
            Command::Limit { limits, .. } => {
                self.marks.hit(Mark::RateChanged);
                self.credits.extend(limits.ingress.clone());
            }
            Command::Relieve { .. } => self.marks.hit(Mark::FlowsLeave),
            Command::Announce { id, announcement } => {
                if let Some(Owner::Guest(number)) = workers.owner_at(engine, *id) {
                    self.marks.hit(Mark::Announced);
                    let guest = &mut self.guests[number];
                    let (announced, came) = (guest.note_announcement(announcement), guest.arrivals);
                    // The arrivals of virtio guests are not counted.
                    if (1..announced).contains(&came) {
                        let found =
                            format!("guest {number} has come {came} times, announced {announced}");
                        self.flaw.get_or_insert_with(|| Flaw::new(Rule::Arrival, found));
                    }
                }
            }
            _ => {}
        }
        workers.workers[engine].request(Request::Apply(command));
        Ok(())
    }

    fn wait_until_applied(&mut self, engines: &BTreeSet<usize>) -> Result<(), Ended> {
        let have_applied = |workers: &Workers| {
            engines.iter().all(|engine| !workers.workers[*engine].has_requests())
        };
        if self.wait_until(have_applied) { Ok(()) } else { Err(Ended) }
    }

    fn publish(&mut self) -> Result<(), Ended> {
        let workers = self.running()?;
        workers.publish();
        // Frames to and from these may be lost with their queues.
        let gone = workers.forget_ports();
        for owner in gone {
            self.journal.note(|| format!("backend: takes back the queues of {owner:?}"));
            self.disturb_owner(owner);
        }
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
