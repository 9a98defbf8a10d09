//! When frames are parked, and when parked frames are steered.

use ringway_datapath::{DropReason, PortQueue};
use ringway_switch::PortId;

use crate::directory::Directory;
use crate::engine::Engine;
use crate::forward::Router;
use crate::gauge::{Admission, SHARED, STALL};
use crate::inbox::Parcel;
use crate::outbox::Enqueue;
use crate::parked::ParkedFrame;
use crate::steering::PortSteering;

impl<Q: PortQueue> Engine<Q> {
    /// Steers the parked frames whose flows have moved, or stay. Returns whether there were any.
    pub(crate) fn release_parked(&mut self, directory: &Directory) -> bool {
        if self.outboxes.parked.is_empty() {
            return false;
        }
        self.current_queue = None;
        let ports = self.outboxes.parked.ports();
        let mut router = Router {
            number: self.number,
            flow_key: self.flow_key,
            outboxes: &mut self.outboxes,
            pool: &mut self.pool,
            mailed: &mut self.mailed,
            directory,
            at: Enqueue { now: self.now, memory_max: &self.memory_max },
            mirrored: 0,
            has_long: false,
            neighbor: None,
        };
        let mut is_any = false;
        for port in ports {
            is_any |= router.release(port);
        }
        is_any
    }
}

impl Router<'_> {
    /// Parks a frame. Flows to its port stay if too many of their frames would have to wait.
    pub(crate) fn park(&mut self, port: PortId, parked: ParkedFrame) {
        let backlog = self.outboxes.parked.push(port, parked, self.at.now + STALL);
        let takes_too_much = self.outboxes.parked.memory >= self.at.memory_max(self.pool);
        if backlog.reaches(SHARED) || takes_too_much {
            if let Some(table) = self.directory.steering(port).and_then(PortSteering::table) {
                table.give_up();
            }
            self.release(port);
        }
    }

    /// Steers the parked frames of a port, unless their flows are leaving. Returns whether it did.
    fn release(&mut self, port: PortId) -> bool {
        let Some((oldest, until)) = self.outboxes.parked.oldest(port) else { return false };
        let directory = self.directory;
        let table = directory.steering(port).and_then(PortSteering::table);
        if let Some(table) = table {
            if self.at.now >= until {
                table.give_up();
            }
            // The buckets of a departure move, or stay, together.
            if table.is_leaving(oldest) {
                return false;
            }
        }
        let queues = directory.queues(port);
        for ParkedFrame { hash, frame, counters } in self.outboxes.parked.take(port) {
            let (Some(table), Some(first)) = (table, queues.first()) else {
                // The port was detached.
                counters.dropped.count(DropReason::NoRoute, 1);
                self.pool.recycle(frame);
                continue;
            };
            let Some(queue) = self.by_table(table, port, hash, frame.len()) else {
                self.outboxes.parked.push(port, ParkedFrame { hash, frame, counters }, until);
                continue;
            };
            let address = queues.get(queue).unwrap_or(first);
            let parcel = Parcel { to: address.slot, frame, admission: Admission::Waits };
            if address.engine == self.number {
                self.outboxes.enqueue(parcel, self.pool, &self.at);
            } else if let Err(frame) = self.mail(parcel, address.engine) {
                counters.dropped.count(DropReason::InboxFull, 1);
                self.pool.recycle(frame);
            }
        }
        true
    }
}
