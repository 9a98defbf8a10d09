//! The relay in three threads, with a copy between two of them: the ceiling of a backend between
//! two guests. Each guest has a thread for its TAP device, with buffers of its own, and the backend
//! copies from one guest's buffers to the other's, as it must where guests do not share memory.
//! There is no ring, no switch, no check of a frame and no second process, so any backend of this
//! kind does more work.

use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossbeam_queue::ArrayQueue;
use ringway_sys::eventfd::EventFd;
use ringway_sys::tun::{TunFile, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;
use rustix::event::{PollFd, PollFlags, poll};

/// The part of this program that is the relay.
pub(crate) const PART: &str = "three-threads-relay";

/// Buffers of one direction at one guest: as many long frames as ringway's frontend keeps for its
/// TAP device.
const BUFFERS: usize = 16;
/// Larger than any frame.
const BUFFER_LEN: usize = 65_536 + 256;
/// How long a thread looks for work before it sleeps, with yields: the ceiling of ringway's
/// workers.
const SPIN: Duration = Duration::from_micros(200);

/// Relays until this process is killed.
pub(crate) fn run(words: &[OsString]) -> Result<()> {
    ringway_lab::part::relay(words, |devices| {
        let guests = [Guest::new()?, Guest::new()?];
        let backend = Sleeper::new()?;
        thread::scope(|scope| {
            for (device, guest) in devices.iter().zip(&guests) {
                scope.spawn(|| end_process_on(guest.run(device, &backend)));
            }
            end_process_on(copy_between(&guests, &backend));
        });
        Ok(())
    })?;
    Ok(())
}

/// Ends the process with the error of a thread: the other threads would wait for it forever.
fn end_process_on(ended: io::Result<()>) {
    if let Err(error) = ended {
        eprintln!("{PART}: {error}");
        std::process::exit(1);
    }
}

/// A frame's place.
struct Buffer {
    header: VirtioNetHdr,
    len: usize,
    bytes: Box<[u8]>,
}

/// One direction between a guest and the backend.
struct Direction {
    /// Frames, in order.
    filled: ArrayQueue<Buffer>,
    free: ArrayQueue<Buffer>,
    /// Whether the side that fills buffers waits for a free one.
    is_awaited: AtomicBool,
}

/// A thread that may sleep.
struct Sleeper {
    event: EventFd,
    sleeps: AtomicBool,
}

/// A guest's buffers, and the sleep of its thread.
struct Guest {
    /// From its device to the backend.
    tx: Direction,
    /// From the backend to its device.
    rx: Direction,
    sleeper: Sleeper,
}

impl Direction {
    fn new() -> Direction {
        let free = ArrayQueue::new(BUFFERS);
        for _ in 0..BUFFERS {
            let bytes = vec![0; BUFFER_LEN].into();
            let _ = free.push(Buffer { header: VirtioNetHdr::default(), len: 0, bytes });
        }
        Direction { filled: ArrayQueue::new(BUFFERS), free, is_awaited: AtomicBool::new(false) }
    }

    /// A buffer to be filled; after `None`, the side that empties them wakes this one.
    fn take_free(&self) -> Option<Buffer> {
        self.free.pop().or_else(|| {
            self.is_awaited.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.free.pop()
        })
    }

    /// Gives an emptied buffer back. True if the other side waits for it.
    fn put_free(&self, buffer: Buffer) -> bool {
        let _ = self.free.push(buffer);
        fence(Ordering::SeqCst);
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
    }
}

impl Sleeper {
    fn new() -> io::Result<Sleeper> {
        Ok(Sleeper { event: EventFd::new()?, sleeps: AtomicBool::new(false) })
    }

    fn wake(&self) -> io::Result<()> {
        fence(Ordering::SeqCst);
        match self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            true => self.event.signal(),
            false => Ok(()),
        }
    }

    /// Calls `work` again and again, and sleeps when it has found nothing for a while: until it is
    /// woken, or until the device has a frame, if one is awaited.
    fn run<'a>(
        &self,
        device: impl Fn() -> Option<&'a TunFile>,
        mut work: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut idle_since = None;
        loop {
            if work()? {
                idle_since = None;
                continue;
            }
            if idle_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
                thread::yield_now();
                continue;
            }
            self.sleeps.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !work()? {
                let mut awaited = vec![PollFd::new(&self.event, PollFlags::IN)];
                awaited.extend(device().map(|device| PollFd::new(device, PollFlags::IN)));
                poll(&mut awaited, None)?;
                self.event.clear()?;
            }
            self.sleeps.store(false, Ordering::Relaxed);
            idle_since = None;
        }
    }
}

impl Guest {
    fn new() -> io::Result<Guest> {
        Ok(Guest { tx: Direction::new(), rx: Direction::new(), sleeper: Sleeper::new()? })
    }

    fn run(&self, device: &TunFile, backend: &Sleeper) -> io::Result<()> {
        let has_room = || !self.tx.free.is_empty();
        self.sleeper.run(
            || has_room().then_some(device),
            || {
                let sent = self.send(device)?;
                if sent {
                    backend.wake()?;
                }
                let (received, is_awaited) = self.receive(device)?;
                if is_awaited {
                    backend.wake()?;
                }
                Ok(sent || received)
            },
        )
    }

    fn send(&self, device: &TunFile) -> io::Result<bool> {
        let mut has_sent = false;
        while let Some(mut buffer) = self.tx.take_free() {
            match device.read_frame(&mut buffer.header, &mut buffer.bytes)? {
                Some(len) => buffer.len = len,
                None => {
                    let _ = self.tx.free.push(buffer);
                    break;
                }
            }
            let _ = self.tx.filled.push(buffer);
            has_sent = true;
        }
        Ok(has_sent)
    }

    /// Whether there were frames, and whether the backend waits for their buffers.
    fn receive(&self, device: &TunFile) -> io::Result<(bool, bool)> {
        let (mut has_received, mut is_awaited) = (false, false);
        while let Some(buffer) = self.rx.filled.pop() {
            let frame = &buffer.bytes[..buffer.len];
            while device.write_frame(&buffer.header, frame)? == WriteOutcome::Full {
                poll(&mut [PollFd::new(device, PollFlags::OUT)], None)?;
            }
            has_received = true;
            is_awaited |= self.rx.put_free(buffer);
        }
        Ok((has_received, is_awaited))
    }
}

fn copy_between(guests: &[Guest; 2], backend: &Sleeper) -> io::Result<()> {
    let [left, right] = guests;
    backend.run(|| None, || Ok(copy(left, right)? | copy(right, left)?))
}

/// Copies the frames of one guest to another, as far as that has room.
fn copy(from: &Guest, to: &Guest) -> io::Result<bool> {
    let (mut has_copied, mut is_awaited) = (false, false);
    while !from.tx.filled.is_empty() {
        let Some(mut target) = to.rx.take_free() else { break };
        let Some(source) = from.tx.filled.pop() else {
            let _ = to.rx.free.push(target);
            break;
        };
        (target.header, target.len) = (source.header, source.len);
        target.bytes[..source.len].copy_from_slice(&source.bytes[..source.len]);
        let _ = to.rx.filled.push(target);
        has_copied = true;
        is_awaited |= from.tx.put_free(source);
    }
    if has_copied {
        to.sleeper.wake()?;
    }
    if is_awaited {
        from.sleeper.wake()?;
    }
    Ok(has_copied)
}
