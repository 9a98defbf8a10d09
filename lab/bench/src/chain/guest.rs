//! A guest's process: frames of its TAP device go to the process in the middle, and those that come
//! from there to the device.

use std::io;

use arrayvec::ArrayVec;
use ringway_sys::eventfd::EventFd;
use ringway_sys::tun::TunFile;
use ringway_wire::vnet::VirtioNetHdr;

use super::hop::{BUFFERS, Consumer, Filled, Producer};
use super::merge::Writer;
use super::stage::Stage;

/// Rounds with work after which a device that had no frame is read again. One that is idle is read
/// in each round.
const ROUNDS_PER_READ: u32 = 8;

/// The process.
pub(super) struct Guest {
    device: TunFile,
    out: Producer,
    back: Consumer,
    backend: EventFd,
    writer: Writer,
    /// Whether the device had a frame at the last read.
    may_have_more: bool,
    rounds: u32,
}

impl Guest {
    /// A guest with both of its hops. `backend` wakes the process in the middle.
    pub(super) fn new(
        device: TunFile,
        (out, back): (Producer, Consumer),
        backend: EventFd,
    ) -> Guest {
        let (writer, may_have_more, rounds) = (Writer::of_this_kernel(), true, 0);
        Guest { device, out, back, backend, writer, may_have_more, rounds }
    }

    fn send(&mut self) -> io::Result<bool> {
        let (device, mut has_sent) = (&self.device, false);
        for _ in 0..self.out.room() {
            if !self.may_have_more {
                break;
            }
            self.may_have_more = self.out.fill(|pages, space| {
                let mut header = VirtioNetHdr::default();
                let len = device.read_pages(&mut header, &mut [], pages, space)?;
                Ok(len.map(|len| (header, len)))
            })?;
            has_sent |= self.may_have_more;
        }
        if self.out.publish() {
            self.backend.signal()?;
        }
        Ok(has_sent)
    }

    fn receive(&mut self) -> io::Result<bool> {
        let frames: ArrayVec<Filled, BUFFERS> =
            (0..).take(self.back.waiting()).map(|number| self.back.frame(number)).collect();
        self.writer.write(&self.device, self.back.pages(), &frames)?;
        let count = u32::try_from(frames.len()).unwrap_or(0);
        if count > 0 && self.back.release(count) {
            self.backend.signal()?;
        }
        Ok(count > 0)
    }
}

impl Stage for Guest {
    fn round(&mut self, is_idle: bool) -> io::Result<bool> {
        self.rounds = self.rounds.wrapping_add(1);
        self.may_have_more |= is_idle || self.rounds % ROUNDS_PER_READ == 0;
        Ok(self.send()? | self.receive()?)
    }

    fn arm(&mut self) -> bool {
        self.may_have_more = true;
        self.back.await_frames();
        if self.out.room() == 0 {
            self.out.await_room();
            // What is emptied meanwhile wakes no one.
            self.out.room();
        }
        self.back.waiting() == 0
    }

    fn device(&self) -> Option<&TunFile> {
        self.out.has_room().then_some(&self.device)
    }
}
