//! Frames that were written and have not left the host's network stack.
//!
//! The kernel charges a frame to the file that it was written by, until a driver has sent it or a
//! socket of the host has taken it. Of a file it tells only whether its send buffer has room, so a
//! frame that a sender waits for gets a file of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ringway_datapath::Receipt;
use ringway_sys::tun::{QueueMode, QueueState, TunFile, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;

/// Frames of one queue that can be waited for at a time: the line of 1 Gbit/s has 190 us to go with
/// them.
pub(crate) const LANES_MAX: usize = 16;

/// Bytes of a send buffer that the shortest frame fills (768 with what the kernel keeps beside it),
/// and of which the kernel calls the half that is free, room.
const SEND_BUFFER: u32 = 64;

/// The files that one queue writes by, in turn.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Box<[Lane]>,
    next: usize,
}

/// A further queue of the device, detached: nothing is to be read from it.
#[derive(Debug)]
struct Lane {
    file: TunFile,
    /// Of the frame that is under way.
    receipt: Option<Receipt>,
}

impl Lanes {
    /// Makes lanes for a multi-queue device. Its queues all have a small send buffer afterwards.
    pub(crate) fn open(device: &str, count: usize) -> io::Result<Lanes> {
        let lane = |_| {
            let file = TunFile::open(device, QueueMode::Multi)?;
            file.set_send_buffer(SEND_BUFFER)?;
            file.set_queue(QueueState::Detached)?;
            Ok(Lane { file, receipt: None })
        };
        let lanes = (0..count).map(lane).collect::<io::Result<_>>()?;
        Ok(Lanes { lanes, next: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Writes a frame and keeps its receipt until it has left.
    pub(crate) fn write_frame(
        &mut self,
        header: &VirtioNetHdr,
        frame: &[u8],
        receipt: &Receipt,
    ) -> io::Result<WriteOutcome> {
        let Some(lane) = self.lanes.get_mut(self.next) else { return Ok(WriteOutcome::Full) };
        if !lane.look()? {
            return Ok(WriteOutcome::Full);
        }
        let outcome = lane.file.write_frame(header, frame)?;
        if outcome == WriteOutcome::Sent {
            lane.receipt = Some(receipt.clone());
            lane.look()?;
            self.next = (self.next + 1) % self.lanes.len();
        }
        Ok(outcome)
    }

    /// Gives back the receipts of frames that have left.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        self.lanes.iter_mut().try_for_each(|lane| lane.look().map(drop))
    }

    /// What becomes writable when a frame has left.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().map(|lane| lane.file.as_fd())
    }
}

impl Lane {
    /// Whether no frame is under way. If one is, the kernel will tell when it has left: it does so
    /// only for a caller that has asked in vain.
    fn look(&mut self) -> io::Result<bool> {
        if self.receipt.is_some() && self.file.has_room()? {
            self.receipt = None;
        }
        Ok(self.receipt.is_none())
    }
}
