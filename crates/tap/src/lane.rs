//! Frames that were written but have not left the host's network stack.
//!
//! The kernel charges a frame to the file by which it was written, until a driver has sent it or a
//! socket of the host has taken it. It reports only whether a file's send buffer has room, so each
//! frame that a sender waits for gets its own file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ringway_datapath::Receipt;
use ringway_sys::tun::{QueueMode, QueueState, TunFile, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;

/// Frames of one queue that can be waited for at a time: they keep a line of 1 Gbit/s busy for 190
/// us.
pub(crate) const LANES_MAX: usize = 16; // not a limit: a batch, the rest follows

/// Bytes of a send buffer that the shortest frame fills (768 with the kernel's overhead); the
/// kernel reports room when half of it is free.
const SEND_BUFFER: u32 = 64;

/// The files by which one queue writes, in turn.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Box<[Lane]>,
    next: usize,
}

/// An additional queue of the device, detached: nothing is read from it.
#[derive(Debug)]
struct Lane {
    file: Arc<TunFile>,
    /// The receipt of the frame in flight.
    receipt: Option<Receipt>,
}

/// Opens the files of lanes for a multi-queue device. Afterwards, all its queues have a small send
/// buffer.
pub(crate) fn open_files(device: &str, count: usize) -> io::Result<Vec<Arc<TunFile>>> {
    let file = |_| {
        let file = TunFile::open(device, QueueMode::Multi)?;
        file.set_send_buffer(SEND_BUFFER)?;
        file.set_queue(QueueState::Detached)?;
        Ok(Arc::new(file))
    };
    (0..count).map(file).collect()
}

impl Lanes {
    /// Lanes that write by these files.
    pub(crate) fn new(files: &[Arc<TunFile>]) -> Lanes {
        let lanes = files.iter().map(|file| Lane { file: Arc::clone(file), receipt: None });
        Lanes { lanes: lanes.collect(), next: 0 }
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
        if !lane.is_free()? {
            return Ok(WriteOutcome::Full);
        }
        let outcome = lane.file.write_frame(header, frame)?;
        if outcome == WriteOutcome::Sent {
            lane.receipt = Some(receipt.clone());
            lane.is_free()?;
            self.next = (self.next + 1) % self.lanes.len();
        }
        Ok(outcome)
    }

    /// Returns the receipts of frames that have left.
    pub(crate) fn return_receipts(&mut self) -> io::Result<()> {
        self.lanes.iter_mut().try_for_each(|lane| lane.is_free().map(drop))
    }

    /// The descriptors that become writable when a frame has left.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().map(|lane| lane.file.as_fd())
    }
}

impl Lane {
    /// Whether no frame is in flight. If one is, the kernel will report when it has left: it does
    /// so only after a poll that found no room.
    fn is_free(&mut self) -> io::Result<bool> {
        if self.receipt.is_some() && self.file.has_room()? {
            self.receipt = None;
        }
        Ok(self.receipt.is_none())
    }
}
