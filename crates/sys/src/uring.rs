//! A relay on one io_uring: whole messages from each of two files to the other, in one thread with
//! one system call a round. It is for measurements; no process of a host uses it.
//!
//! The files keep the boundaries of messages, as TAP devices and `SOCK_SEQPACKET` sockets do.
//!
//! # Order
//! The messages of a file arrive at the other in the order in which they were read. Several reads
//! or writes of a file that wait in the kernel at the same time may end in any order, so:
//! 1. each file has one read only, a multishot one: the kernel fills one free buffer after the
//!    other for it, in one thread, and reports them in that order;
//! 2. [`round`](UringRelay::round) takes the reports in that order and queues a write for each; the
//!    kernel begins the writes in the order of the queue;
//! 3. no write waits (`RWF_NOWAIT`): each succeeds or fails before the next one begins. A message
//!    that the other file has no room for is lost, as on a wire.
//!
//! # Memory
//! The kernel writes the buffers at any time while a read is in flight. They are [`SharedPages`],
//! to which no references exist, and nothing but the kernel accesses them here. They are released
//! after the last operation has ended: see `Drop`.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

use io_uring::types::{BufRingEntry, CancelBuilder, Fixed};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::io::Errno;

use crate::{SharedPages, explain};

/// The longest message.
pub const MESSAGE_LEN_MAX: usize = 65_536 + 256; // not a limit: the longest frame
/// Buffers of each direction, a power of two: each is waiting for a message, or holds one that is
/// being written. With 8, 16 and 64, the rate was the same within the noise.
const BUFFERS: u16 = 16;
const PAGE_LEN: usize = 4096;
const BUFFER_LEN: usize = MESSAGE_LEN_MAX.next_multiple_of(PAGE_LEN);
/// Of a direction: a page of its free buffers as the kernel finds them, then the buffers.
const DIRECTION_LEN: usize = PAGE_LEN + BUFFERS as usize * BUFFER_LEN;
const ENTRY_LEN: usize = size_of::<BufRingEntry>();
/// The reports that may be unread: a buffer has at most one, and a read one of its end. With room
/// for all of them, none is ever missing.
const REPORTS_MAX: u32 = 2 * (BUFFERS as u32 + 1); // not a limit: our own ring
/// `RWF_NOWAIT`: fail with `EAGAIN` instead of waiting (pwritev2(2)).
const NOWAIT: i32 = libc::RWF_NOWAIT;

const _: () = assert!(BUFFERS.is_power_of_two() && ENTRY_LEN * BUFFERS as usize <= PAGE_LEN);

/// A relay between two files. It stays in the thread that created it, as its ring must.
pub struct UringRelay {
    // Dropped before the memory that it uses.
    ring: IoUring,
    directions: [Direction; 2],
    /// Operations that are queued or that the kernel has, each until its last report.
    in_flight: u32,
    lost: u64,
    _thread: PhantomData<*mut ()>,
}

/// Whether this machine can run a relay.
///
/// # Errors
/// Why not: Linux before 6.7, or io_uring is switched off or forbidden here.
pub fn check() -> io::Result<()> {
    open_ring().map(drop)
}

impl UringRelay {
    /// Prepares a relay; nothing is read before the first round. The ring keeps the files open.
    ///
    /// # Errors
    /// As [`check`]; no memory for the buffers.
    pub fn new(files: [impl AsFd; 2]) -> io::Result<UringRelay> {
        let ring = open_ring()?;
        ring.submitter()
            .register_files(&files.each_ref().map(|file| file.as_fd().as_raw_fd()))
            .map_err(|error| explain(error, "io_uring: register files"))?;
        let directions = [Direction::new(0)?, Direction::new(1)?];
        for direction in &directions {
            let (address, group) = (direction.pages.at(0, PAGE_LEN).addr(), direction.from);
            // SAFETY: the page is aligned, is in bounds as `at` checked, and lives as long as the
            // ring: the field is behind it, and `Drop` keeps it if the ring cannot end.
            unsafe {
                ring.submitter().register_buf_ring_with_flags(address as u64, BUFFERS, group, 0)
            }
            .map_err(|error| explain(error, "io_uring: register buffers"))?;
        }
        let mut relay =
            UringRelay { ring, directions, in_flight: 0, lost: 0, _thread: PhantomData };
        for index in 0..2 {
            relay.read(index)?;
        }
        Ok(relay)
    }

    /// One system call: begins what is queued, and waits until something has ended. Then queues a
    /// write for each message that was read, and frees the buffer of each that was written.
    ///
    /// # Errors
    /// If a file cannot be read or written, or ends.
    pub fn round(&mut self) -> io::Result<()> {
        self.enter(1)?;
        while let Some(report) = self.next_report() {
            self.take(&report)?;
        }
        for index in 0..2 {
            let direction = &self.directions[index];
            if !direction.is_reading && direction.free > 0 {
                self.read(index)?;
            }
        }
        Ok(())
    }

    /// Messages that the other file did not take.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn take(&mut self, report: &cqueue::Entry) -> io::Result<()> {
        let result = u32::try_from(report.result())
            .map_err(|_| Errno::from_raw_os_error(report.result().saturating_neg()));
        match Operation::of(report.user_data()) {
            Operation::Read { from } => {
                self.directions[from].is_reading &= cqueue::more(report.flags());
                let buffer = cqueue::buffer_select(report.flags());
                self.directions[from].free -= u16::from(buffer.is_some());
                match (result, buffer) {
                    // `round` reads again once a buffer is free.
                    (Err(Errno::NOBUFS), None) => Ok(()),
                    (Ok(1..), Some(buffer)) => self.write(from, buffer, result.unwrap_or(0)),
                    (Ok(_), _) => Err(io::ErrorKind::UnexpectedEof.into()),
                    (Err(error), _) => Err(explain(error, "io_uring: read")),
                }
            }
            Operation::Write { from, buffer, len } => {
                self.directions[from].release(buffer);
                match result {
                    Ok(written) if written == len => Ok(()),
                    Ok(_) => Err(io::ErrorKind::WriteZero.into()),
                    // As `tun::WriteOutcome`: only this message is concerned.
                    Err(Errno::AGAIN | Errno::INVAL | Errno::IO | Errno::NOMEM | Errno::NOBUFS) => {
                        self.lost += 1;
                        Ok(())
                    }
                    Err(error) => Err(explain(error, "io_uring: write")),
                }
            }
        }
    }

    /// Queues the read of a file.
    fn read(&mut self, from: usize) -> io::Result<()> {
        let direction = &mut self.directions[from];
        direction.is_reading = true;
        // The length is that of the buffer which the kernel takes.
        let read = opcode::ReadMulti::new(Fixed(from as u32), 0, direction.from);
        self.push(read.build(), Operation::Read { from })
    }

    /// Queues the write of a message.
    fn write(&mut self, from: usize, buffer: u16, len: u32) -> io::Result<()> {
        let (to, start) = (Fixed(1 - from as u32), self.directions[from].address(buffer));
        let write = opcode::Write::new(to, start.cast_const(), len).rw_flags(NOWAIT);
        self.push(write.build(), Operation::Write { from, buffer, len })
    }

    fn push(&mut self, entry: squeue::Entry, operation: Operation) -> io::Result<()> {
        let entry = entry.user_data(operation.number());
        // SAFETY: private, and called by `read` and `write` only. The kernel takes the memory of a
        // read from the registered buffers. That of a write is a buffer of its direction, of at
        // least `len` bytes, because the kernel has filled it so far. All buffers live, and stay
        // where they are, until no operation is in flight: see `Drop`. The files are registered.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::other("io_uring: its queue is full"))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits what is queued and waits for a number of reports.
    fn enter(&self, reports: usize) -> io::Result<()> {
        let submitted = rustix::io::retry_on_intr(|| {
            self.ring
                .submit_and_wait(reports)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        });
        submitted.map(drop).map_err(|error| explain(error, "io_uring: enter"))
    }

    fn next_report(&mut self) -> Option<cqueue::Entry> {
        let report = self.ring.completion().next()?;
        self.in_flight -= u32::from(!cqueue::more(report.flags()));
        Some(report)
    }

    /// Cancels all operations and waits until none is in flight.
    fn finish(&mut self) -> io::Result<()> {
        // What is still queued would otherwise begin after the cancellation.
        self.enter(0)?;
        match self.ring.submitter().register_sync_cancel(None, CancelBuilder::any()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        loop {
            while self.next_report().is_some() {}
            if self.in_flight == 0 {
                return Ok(());
            }
            self.enter(1)?;
        }
    }
}

impl Drop for UringRelay {
    fn drop(&mut self) {
        // Closing a ring does not wait for its operations, which would write into memory that has
        // become someone else's.
        if self.finish().is_err() {
            std::mem::forget(self.directions.each_ref().map(|direction| direction.pages.clone()));
        }
    }
}

/// A ring with all that a relay needs.
fn open_ring() -> io::Result<IoUring> {
    // What the kernel does for an operation happens in `enter`, without interrupting this thread.
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(REPORTS_MAX.next_power_of_two())
        .build(REPORTS_MAX.next_power_of_two())
        .map_err(|error| {
            let remedy = setup_remedy(Errno::from_io_error(&error));
            explain(error, format_args!("io_uring: {remedy}"))
        })?;
    let mut probe = Probe::new();
    let probed = ring.submitter().register_probe(&mut probe);
    probed.map_err(|error| explain(error, "io_uring: which operations (IORING_REGISTER_PROBE)"))?;
    if !probe.is_supported(opcode::ReadMulti::CODE) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring: no IORING_OP_READ_MULTISHOT, which Linux has since 6.7",
        ));
    }
    Ok(ring)
}

fn setup_remedy(error: Option<Errno>) -> &'static str {
    match error {
        Some(Errno::NOSYS) => "this kernel has none (CONFIG_IO_URING)",
        Some(Errno::PERM | Errno::ACCESS) => {
            "switched off (sysctl kernel.io_uring_disabled) or forbidden to this process"
        }
        Some(Errno::INVAL) => "needs Linux 6.7",
        _ => "set up a ring",
    }
}

/// One direction: the buffers of the file that it reads.
struct Direction {
    /// The file that is read, which is also the number of this group of buffers.
    from: u16,
    pages: SharedPages,
    /// Buffers that were given to the kernel so far.
    given: u16,
    /// Those of them that it has not filled.
    free: u16,
    is_reading: bool,
}

impl Direction {
    fn new(from: u16) -> io::Result<Direction> {
        let pages = SharedPages::zeroed(DIRECTION_LEN + PAGE_LEN)?;
        let starts = (0..PAGE_LEN).step_by(size_of::<u64>());
        let aligned = starts.map(|start| pages.slice(start..start + DIRECTION_LEN));
        let pages = aligned.into_iter().find(|pages| pages.is_aligned_to(PAGE_LEN));
        let pages = pages.expect("one word of a page's length begins a page");
        let mut direction = Direction { from, pages, given: 0, free: 0, is_reading: false };
        for buffer in 0..BUFFERS {
            direction.release(buffer);
        }
        Ok(direction)
    }

    fn address(&self, buffer: u16) -> *mut u8 {
        self.pages.at(PAGE_LEN + usize::from(buffer) * BUFFER_LEN, BUFFER_LEN)
    }

    /// Gives a buffer to the kernel, as `io_uring_setup_buf_ring(3)` and `struct io_uring_buf`
    /// describe it.
    fn release(&mut self, buffer: u16) {
        let entry = usize::from(self.given % BUFFERS) * ENTRY_LEN;
        self.pages.write(entry, self.address(buffer).addr() as u64);
        self.pages.write(entry + 8, BUFFER_LEN as u32);
        self.pages.write(entry + 12, buffer);
        self.given = self.given.wrapping_add(1);
        self.free += 1;
        // The last field of the first entry counts the buffers given. Release: orders the entry
        // before the count that covers it; its partner is the kernel's load of the count.
        self.pages.store_u16(14, self.given, Ordering::Release);
    }
}

/// What a report is about, which the kernel returns as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read { from: usize },
    Write { from: usize, buffer: u16, len: u32 },
}

impl Operation {
    /// Bit 0 is the file, bit 1 says that it is a write; bits 16 to 31 are the buffer, and those
    /// from 32 the length.
    fn number(self) -> u64 {
        match self {
            Operation::Read { from } => from as u64,
            Operation::Write { from, buffer, len } => {
                u64::from(len) << 32 | u64::from(buffer) << 16 | 2 | from as u64
            }
        }
    }

    fn of(number: u64) -> Operation {
        let from = (number & 1) as usize;
        match number & 2 {
            0 => Operation::Read { from },
            _ => {
                Operation::Write { from, buffer: (number >> 16) as u16, len: (number >> 32) as u32 }
            }
        }
    }
}

#[cfg(test)]
mod tests;
