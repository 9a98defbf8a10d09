//! Frames that a guest has received, until its applications get them.
//!
//! A guest with a device leaves the ends of long frames in the pages that they came in until the
//! device takes them, and these frames may outlive their connection.

use ringway_datapath::{Frame, FrameQueue};
use ringway_steering::{flow_hash, queue_of};

use crate::choices::Choices;
use crate::device::{Device, Kind};
use crate::flaw::{Checked, Rule, ensure};
use crate::marks::Mark;
use crate::plane::{DataPlane, Effort};
use crate::traffic::Piece;

impl DataPlane {
    /// Whether an end of flows is a virtio guest.
    fn is_virtio(&self, end: usize) -> bool {
        let nics = self.guests.get(end).map(|guest| &guest.nics);
        nics.is_some_and(|nics| nics.iter().any(|nic| nic.progress().is_none()))
    }

    /// Lets the device of a guest take frames that it received, some of them or all. Until then,
    /// they stay in the pages that they came in. Returns true if it took any.
    pub(crate) fn deliver(&mut self, guest: usize, nic: usize, effort: Effort) -> Checked<bool> {
        let has_delivered = self.deliver_orphans(guest, effort)?;
        if !self.guests[guest].orphans.is_empty() {
            // Frames of a flow stay in order.
            return Ok(has_delivered);
        }
        let received = &mut self.guests[guest].nics[nic].received;
        let taken = taken(received, effort, &mut self.choices);
        self.marks.add(Mark::ReceivedInPages, in_pages(received));
        Ok(self.take_frames(guest, Some(nic), taken)? || has_delivered)
    }

    /// Lets the device of a guest take frames of an earlier connection, some of them or all.
    /// Returns true if it took any.
    pub(crate) fn deliver_orphans(&mut self, guest: usize, effort: Effort) -> Checked<bool> {
        let taken = taken(&mut self.guests[guest].orphans, effort, &mut self.choices);
        self.marks.add(Mark::OrphanTaken, in_pages(&taken));
        self.take_frames(guest, None, taken)
    }

    /// Takes frames of a queue of a guest, which is `None` once its connection has ended.
    pub(crate) fn take_frames(
        &mut self,
        guest: usize,
        nic: Option<usize>,
        frames: impl IntoIterator<Item = Frame>,
    ) -> Checked<bool> {
        let mut has_taken = false;
        for mut frame in frames {
            has_taken = true;
            let pool = &mut self.guests[guest].pool;
            pool.complete(&mut frame).expect("its pages are the guest's own");
            let is_ours = frame.bytes().starts_with(&self.guests[guest].mac.0);
            let piece = if is_ours { Piece::read(&frame)? } else { None };
            if let (Some(nic), Some(_)) = (nic, &piece) {
                self.check_queue(guest, nic, &frame)?;
            }
            self.guests[guest].pool.recycle(frame);
            let Some(piece) = piece else { continue };
            self.arrived(guest, &piece)?;
            self.marks.hit(Mark::Arrived);
            let from = self.flows[usize::from(piece.flow)].from;
            let is_across = self.is_virtio(from) != self.is_virtio(guest);
            self.marks.add(Mark::BetweenKinds, u64::from(is_across));
        }
        Ok(has_taken)
    }

    /// Checks that a frame has met the queue of its flow.
    fn check_queue(&self, guest: usize, nic: usize, frame: &Frame) -> Checked {
        // The other end of a patch chooses a queue, and a virtio guest disables some.
        let chosen = |device: &Device| device.kind == Kind::Vif { guest };
        if self.balances_flows || self.is_virtio(guest) || self.devices.iter().any(chosen) {
            return Ok(());
        }
        let queues = u16::try_from(self.guests[guest].nics.len()).unwrap_or(u16::MAX);
        let queue = queue_of(flow_hash(frame.bytes(), self.flow_key), queues);
        ensure(usize::from(queue.0) == nic, Rule::Steering, || {
            format!("guest {guest}: queue {nic} has a frame of queue {queue}")
        })
    }
}

/// The frames that a device takes now: all of them, or some at random.
fn taken(from: &mut FrameQueue, effort: Effort, choices: &mut Choices) -> FrameQueue {
    let count = match effort {
        Effort::Some if !from.is_empty() => choices.from_to(0, from.len()),
        Effort::Some | Effort::All => from.len(),
    };
    from.drain(..count).collect()
}

/// Frames with their ends in pages.
fn in_pages(frames: &FrameQueue) -> u64 {
    frames.iter().map(|frame| u64::from(!frame.is_complete())).sum()
}
