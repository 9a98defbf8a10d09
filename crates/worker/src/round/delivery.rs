//! The way of a frame from the queue it came in by to the one it leaves by.

use std::collections::VecDeque;
use std::sync::Arc;

use ringway_datapath::{DropReason, Frame, Port};
use ringway_steering::queue_of;
use ringway_switch::{PortId, Verdict};

use super::{Slot, Worker};
use crate::directory::{Directory, QueueAddress, SlotId};
use crate::gauge::{HIGH, LIMIT};
use crate::inbox::Parcel;

/// Frames put into another worker's inbox between looks at how full it is.
const PARCELS_PER_MEASURE: usize = 32;

impl<P: Port> Worker<P> {
    /// Sends frames on, up to the first that meets pressure.
    pub(super) fn forward(
        &mut self,
        slot: usize,
        frames: &mut VecDeque<(Frame, Verdict)>,
        directory: &Directory,
    ) {
        while let Some((frame, verdict)) = frames.pop_front() {
            match verdict {
                Verdict::Unicast(to) => {
                    if let Err(frame) = self.deliver(frame, to, slot, directory) {
                        frames.push_front((frame, verdict));
                        return;
                    }
                }
                Verdict::Flood => self.flood(frame, slot, directory),
                Verdict::Drop(reason) => self.discard(frame, reason, slot),
            }
        }
    }

    /// Copies a frame to every port but the one it came from. One that is under pressure gets its
    /// copy nevertheless, or the others would get theirs twice; but the source then waits.
    fn flood(&mut self, frame: Frame, source: usize, directory: &Directory) {
        let from = self.slots[source].attached().map(|attached| attached.port_id);
        let ports = (0..).map(PortId).zip(&directory.ports);
        let others = ports.filter(|(port, queues)| Some(*port) != from && !queues.is_empty());
        for (_, queues) in others {
            let Some(mut copy) = self.pool.take(frame.len()) else {
                self.count_drop(DropReason::NoBuffer, source);
                continue;
            };
            copy.bytes_mut().copy_from_slice(frame.bytes());
            copy.offload = frame.offload;
            copy.set_receipt(frame.receipt().cloned());
            let address = steer(&mut copy, queues);
            self.holds(source, address, directory);
            self.hand_over(copy, address, source, directory);
        }
        self.pool.recycle(frame);
    }

    /// Gives a frame to the queue of `to` that its flow belongs to.
    ///
    /// # Errors
    /// The frame, if the source has to wait.
    fn deliver(
        &mut self,
        mut frame: Frame,
        to: PortId,
        source: usize,
        directory: &Directory,
    ) -> Result<(), Frame> {
        let queues = directory.queues(to);
        if queues.is_empty() {
            self.discard(frame, DropReason::NoRoute, source);
            return Ok(());
        }
        let address = match self.same_queue(source, queues, directory) {
            Some(address) => address,
            None => steer(&mut frame, queues),
        };
        if self.holds(source, address, directory) {
            return Err(frame);
        }
        self.hand_over(frame, address, source, directory);
        Ok(())
    }

    /// The queue that goes on with those of a source that is patched to it, if each of the source's
    /// has one of its own.
    fn same_queue<'a>(
        &mut self,
        source: usize,
        queues: &'a [QueueAddress],
        directory: &Directory,
    ) -> Option<&'a QueueAddress> {
        let source = self.slots[source].attached()?;
        source.forwarding.patched_to()?;
        let is_paired = directory.queues(source.port_id).len() == queues.len();
        queues.get(usize::from(source.queue_index)).filter(|_| is_paired)
    }

    /// Whether the way to a queue is under pressure, which then holds the source.
    fn holds(&mut self, source: usize, to: &QueueAddress, directory: &Directory) -> bool {
        let gauge = if to.gauge.has_pressure() {
            &to.gauge
        } else if to.worker != self.number && directory.inboxes[to.worker].gauge().has_pressure() {
            directory.inboxes[to.worker].gauge()
        } else {
            return false;
        };
        if let Some(source) = self.slots[source].attached() {
            source.held_by = Some(Arc::clone(gauge));
        }
        true
    }

    fn hand_over(&mut self, frame: Frame, to: &QueueAddress, source: usize, directory: &Directory) {
        if to.worker == self.number {
            return self.enqueue(frame, to.slot);
        }
        let inbox = &directory.inboxes[to.worker];
        if let Err(frame) = inbox.push(Parcel { to: to.slot, frame }) {
            return self.discard(frame, DropReason::InboxFull, source);
        }
        if self.mailed.len() <= to.worker {
            self.mailed.resize(to.worker + 1, 0);
        }
        let mailed = &mut self.mailed[to.worker];
        *mailed += 1;
        if *mailed % PARCELS_PER_MEASURE == 0 {
            inbox.measure();
        }
    }

    /// Puts a frame into the backlog of a queue of ours.
    pub(super) fn enqueue(&mut self, frame: Frame, to: SlotId) {
        match self.slots.get_mut(to.index) {
            Some(Slot::Expected { id, frames, gauge }) if *id == to => {
                if frames.len() >= LIMIT.frames {
                    return self.pool.recycle(frame);
                }
                frames.push_back(frame);
                if frames.len() >= HIGH.frames && !gauge.has_pressure() {
                    gauge.raise_ahead();
                }
            }
            Some(Slot::Taken(attached)) if attached.id == to => {
                attached.enqueue(frame, &mut self.pool);
                if !attached.has_backlog {
                    attached.begin_backlog(self.now);
                    self.backlogged.push(to.index);
                }
            }
            // Detached since the sender looked; as if it had been a moment later.
            _ => self.pool.recycle(frame),
        }
    }

    fn discard(&mut self, frame: Frame, reason: DropReason, source: usize) {
        self.count_drop(reason, source);
        self.pool.recycle(frame);
    }

    fn count_drop(&mut self, reason: DropReason, source: usize) {
        if let Some(attached) = self.slots[source].attached() {
            attached.counters.dropped.count(reason, 1);
        }
    }
}

/// The queue of a port, which has some, that a frame's flow belongs to.
fn steer<'a>(frame: &mut Frame, queues: &'a [QueueAddress]) -> &'a QueueAddress {
    let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
    if count == 1 {
        return &queues[0];
    }
    frame.flow = ringway_steering::flow_hash(frame.bytes());
    &queues[usize::from(queue_of(frame.flow, count).0)]
}
