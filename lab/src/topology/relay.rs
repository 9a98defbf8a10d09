//! A relay copies frames from one TAP device to another: the least work that any program between
//! two TAP devices can do, and a way to add delay to a path.
//!
//! Without a delay there is no ring, no switch and no second process, so its throughput is the
//! ceiling of a single queue that makes one system call per frame. With a delay, each direction
//! holds a frame until its time. [`HELD_BYTES_MAX`] bounds the held frames: a full relay stops
//! reading, so the device's queue drops frames, and the kernel counts these ([`dropped`]).

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ringway_net::LinkSetting;
use ringway_sys::tun::{QueueMode, TunFile, TunOffload, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;
use rustix::event::{PollFd, PollFlags, poll};

use ringway_rig::child::{Child, PartError};
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{configure, inside};

/// The part that copies between TAP devices: `PID DEVICE PID DEVICE MICROSECONDS`, with processes
/// in the devices' namespaces and the delay of a frame.
pub const RELAY: &str = "relay";
const PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "ready";
/// The device at each end of a bare relay.
pub(crate) const DEVICE: &str = "eth0";
/// Larger than any frame, so that no frame fills the buffer.
const BUFFER_LEN: usize = 65_536 + 256;
/// Most bytes that a direction holds: 10 Gbit/s for 50 ms.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes of memory that a frame takes beyond its own.
const FRAME_OVERHEAD: usize = 128;

/// A device of a relay, and a process in its namespace.
pub(crate) type RelayEnd<'a> = (u32, &'a str);

/// Starts a relay between two devices, which it creates. They are up, without addresses. `part`
/// takes the words of [`RELAY`].
pub(crate) fn start(
    launcher: &Launcher,
    part: &str,
    ends: [RelayEnd<'_>; 2],
    delay: Duration,
) -> Result<Child, PartError> {
    let mut command = launcher.part(part);
    for (pid, device) in ends {
        command.args([&pid.to_string(), device]);
    }
    command.arg(delay.as_micros().to_string());
    let mut relay = launcher.start("relay", command)?;
    relay.wait_for(PATIENCE, |line| (line == READY).then_some(()))?;
    for (pid, device) in ends {
        configure(pid, |net| net.set(device, &[LinkSetting::Up]))?;
    }
    Ok(relay)
}

/// Frames that the queue of a device has dropped since the device was created.
pub(crate) fn dropped((pid, device): RelayEnd<'_>) -> Result<u64, PartError> {
    let counts = inside(pid, || std::fs::read_to_string("/proc/thread-self/net/dev"));
    let counts = counts.map_err(PartError::at("read the drops of a relay"))?;
    let line = counts.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    // After the name come eight receive counters, then eight transmit counters; the fourth of each
    // is drops.
    let drops = line.and_then(|line| line.split_whitespace().nth(11)?.parse().ok());
    drops.ok_or_else(|| PartError::Failed(format!("there are no drops of {device}")))
}

/// Runs the relay until it is killed: in each direction a thread that reads and, with a delay, one
/// that writes.
pub(crate) fn relay(words: [&str; 5]) -> io::Result<()> {
    let delay = words[4].parse().map_err(|_| io::Error::other("a relay has a delay"))?;
    let delay = Duration::from_micros(delay);
    between(words, |devices| Ok(move || both_ways(&devices, delay)))
}

fn both_ways([left, right]: &[TunFile; 2], delay: Duration) -> io::Result<()> {
    let copy = |from, to| if delay.is_zero() { copy(from, to) } else { keep(from, to, delay) };
    thread::scope(|scope| {
        let there = scope.spawn(|| copy(left, right));
        let back = copy(right, left);
        let there = there.join().map_err(|_| io::Error::other("the other direction panicked"))?;
        there.and(back)
    })
}

/// Opens both devices, begins, reports that the relay has started, and copies.
pub(crate) fn between<C: FnOnce() -> io::Result<()>>(
    words: [&str; 5],
    begin: impl FnOnce([TunFile; 2]) -> io::Result<C>,
) -> io::Result<()> {
    let [left_pid, left, right_pid, right, _] = words;
    let copy = begin([open_in(left_pid, left)?, open_in(right_pid, right)?])?;
    println!("{READY}");
    copy()
}

fn open_in(pid: &str, device: &str) -> io::Result<TunFile> {
    let pid = pid.parse().map_err(|_| io::Error::other("a relay has two ends"))?;
    inside(pid, || {
        let device = TunFile::open(device, QueueMode::Single)?;
        let offload = TunOffload { checksum: true, tso_v4: true, tso_v6: true, uso: false };
        device.set_offload(offload)?;
        Ok(device)
    })
}

fn copy(from: &TunFile, to: &TunFile) -> io::Result<()> {
    let mut header = VirtioNetHdr::default();
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let len = read(from, &mut header, &mut buffer)?;
        write(to, &header, &buffer[..len])?;
    }
}

/// Reads a frame as soon as there is one.
fn read(from: &TunFile, header: &mut VirtioNetHdr, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read_frame(header, buffer)? {
            Some(len) => return Ok(len),
            None => wait(from, PollFlags::IN)?,
        }
    }
}

fn write(to: &TunFile, header: &VirtioNetHdr, frame: &[u8]) -> io::Result<()> {
    // A frame that the other device does not accept is lost, as on a wire.
    if to.write_frame(header, frame)? == WriteOutcome::Full {
        wait(to, PollFlags::OUT)?;
    }
    Ok(())
}

/// Copies each frame with a delay after its arrival.
fn keep(from: &TunFile, to: &TunFile, delay: Duration) -> io::Result<()> {
    let kept = HeldBytes::new(HELD_BYTES_MAX);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let writing = scope.spawn(|| write_when_due(to, &kept, receiver));
        let reading = read_for_later(from, &kept, &sender, delay);
        // The writer ends with the last frame.
        drop(sender);
        let writing = writing.join().map_err(|_| io::Error::other("its writer panicked"))?;
        reading.and(writing)
    })
}

/// A delayed frame.
struct Frame {
    due: Instant,
    header: VirtioNetHdr,
    bytes: Box<[u8]>,
}

fn read_for_later(
    from: &TunFile,
    kept: &HeldBytes,
    later: &Sender<Frame>,
    delay: Duration,
) -> io::Result<()> {
    let mut header = VirtioNetHdr::default();
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let len = read(from, &mut header, &mut buffer)?;
        let due = Instant::now() + delay;
        if !kept.add(len + FRAME_OVERHEAD) {
            return Ok(());
        }
        let frame = Frame { due, header, bytes: buffer[..len].into() };
        if later.send(frame).is_err() {
            return Ok(());
        }
    }
}

fn write_when_due(to: &TunFile, kept: &HeldBytes, frames: Receiver<Frame>) -> io::Result<()> {
    let written = frames.into_iter().try_for_each(|Frame { due, header, bytes }| {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let written = write(to, &header, &bytes);
        kept.remove(bytes.len() + FRAME_OVERHEAD);
        written
    });
    // The reader may be waiting for room.
    kept.end();
    written
}

/// The number of bytes held, with a limit.
struct HeldBytes {
    max: usize,
    /// The number; `None` once the writer has ended.
    bytes: Mutex<Option<usize>>,
    is_less: Condvar,
}

impl HeldBytes {
    fn new(max: usize) -> HeldBytes {
        HeldBytes { max, bytes: Mutex::new(Some(0)), is_less: Condvar::new() }
    }

    /// Adds bytes as soon as there is room for them; `false` if there never will be, because the
    /// writer has ended.
    fn add(&self, more: usize) -> bool {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match bytes.as_mut() {
                None => return false,
                Some(bytes) if *bytes + more <= self.max => {
                    *bytes += more;
                    return true;
                }
                Some(_) => {
                    bytes = self.is_less.wait(bytes).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn remove(&self, fewer: usize) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *bytes = bytes.map(|bytes| bytes.saturating_sub(fewer));
        self.is_less.notify_one();
    }

    fn end(&self) {
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.is_less.notify_one();
    }
}

fn wait(file: &TunFile, what: PollFlags) -> io::Result<()> {
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(file, what)], None))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_who_waits_for_room_is_not_left_waiting() {
        let kept = HeldBytes::new(100);
        assert!(kept.add(60) && kept.add(40));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| kept.add(50));
            assert_eq!(*kept.bytes.lock().expect("no panic"), Some(100));
            kept.remove(60);
            assert!(waiting.join().expect("it ends"));
            assert_eq!(*kept.bytes.lock().expect("no panic"), Some(90));
            let waiting = scope.spawn(|| kept.add(50));
            kept.end();
            assert!(!waiting.join().expect("it ends"));
        });
    }
}
