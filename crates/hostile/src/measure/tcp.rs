//! TCP between the kernels of two honest guests, for the duration of a run.
//!
//! The receiver prints the bytes that have arrived a hundred times a second, with the time of a
//! clock that all processes of a machine share. So any part of a run can be examined afterwards.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ringway_rig::child::Child;
use ringway_rig::launcher::Launcher;
use ringway_stats::average::float;
use rustix::time::{ClockId, clock_gettime};

/// The receiver's port.
const PORT: u16 = 5298;
/// Connections, so that every queue and worker has some.
const STREAMS: usize = 4;
/// The pause between two lines of the receiver.
const LINE_PAUSE: Duration = Duration::from_millis(10);
/// The pause before the sender tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
// waits: then it tries again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the receiver's next line may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The subcommands of this program for the two ends.
pub(crate) const RECEIVE: &str = "tcp-receive";
/// As above.
pub(crate) const SEND: &str = "tcp-send";

/// Nanoseconds on the clock that all processes of this machine share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

/// The receiver. Ends when its output is no longer read.
pub(crate) fn receive() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("listen")?;
    let (total, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(now())));
    let longest = Arc::new(AtomicU64::new(0));
    let shared = (Arc::clone(&total), Arc::clone(&last), Arc::clone(&longest));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(io::Result::ok) {
            let (total, last, longest) = shared.clone();
            std::thread::spawn(move || take(stream, &total, &last, &longest));
        }
    });
    loop {
        let (time, silent_since) = (now(), last.load(Ordering::Relaxed));
        let gap = longest.swap(0, Ordering::Relaxed).max(time.saturating_sub(silent_since));
        let line = format!("{time} {} {gap}\n", total.load(Ordering::Relaxed));
        if io::stdout().lock().write_all(line.as_bytes()).is_err() {
            return Ok(());
        }
        // waits: a line is due each time.
        std::thread::sleep(LINE_PAUSE);
    }
}

fn take(mut stream: TcpStream, total: &AtomicU64, last: &AtomicU64, longest: &AtomicU64) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let time = now();
        let before = last.fetch_max(time, Ordering::Relaxed);
        longest.fetch_max(time.saturating_sub(before), Ordering::Relaxed);
        total.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
    }
}

/// The sender. Never returns.
pub(crate) fn send(to: Ipv4Addr) -> Result<()> {
    let address = SocketAddr::from((to, PORT));
    let stream = move || {
        let bytes = vec![0x5a; 128 << 10];
        loop {
            if let Ok(mut stream) = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                while stream.write_all(&bytes).is_ok() {}
            }
            // waits: it connects again until the receiver listens.
            std::thread::sleep(RETRY_PAUSE);
        }
    };
    let streams = (0..STREAMS).map(|_| std::thread::spawn(stream));
    for stream in streams.collect::<Vec<_>>() {
        let _ = stream.join();
    }
    Ok(())
}

/// The receiver's progress at one moment.
#[derive(Debug, Clone, Copy)]
struct Line {
    time: u64,
    total: u64,
    /// The longest time without a byte since the previous line.
    gap: u64,
}

/// What arrived in a part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) bits_per_second: f64,
    pub(crate) longest_pause: Duration,
}

/// A running transfer. It ends when this is dropped.
pub(crate) struct Transfer {
    lines: Arc<Mutex<Vec<Line>>>,
    _sender: Child,
}

impl Transfer {
    /// Starts a transfer from the namespace of one process to that of another, at the given
    /// address.
    pub(crate) fn start(
        launcher: &Launcher,
        [from, to]: [u32; 2],
        at: Ipv4Addr,
    ) -> Result<Transfer> {
        let ours = launcher.program().to_owned();
        let mut command = launcher.command_in(to, &ours);
        command.arg(RECEIVE);
        let mut receiver = launcher.start("the receiver", command)?;
        let first = receiver.wait_for(PATIENCE, parse)?;
        let lines = Arc::new(Mutex::new(vec![first]));
        let kept = Arc::clone(&lines);
        let mut command = launcher.command_in(from, &ours);
        command.args([SEND.to_owned(), at.to_string()]);
        let sender = launcher.start("the sender", command)?;
        std::thread::spawn(move || {
            while Arc::strong_count(&kept) > 1 {
                let Ok(line) = receiver.wait_for(PATIENCE, parse) else { return };
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Ok(Transfer { lines, _sender: sender })
    }

    /// Bytes so far.
    pub(crate) fn total(&self) -> u64 {
        self.lines().last().map_or(0, |line| line.total)
    }

    /// The data that arrived between two moments. Forgets what was kept of the time before.
    pub(crate) fn between(&self, start: u64, end: u64) -> Arrived {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let first = lines.partition_point(|line| line.time < start);
        lines.drain(..first.saturating_sub(1));
        let part: Vec<Line> =
            lines.iter().copied().filter(|line| (start..=end).contains(&line.time)).collect();
        let (Some(first), Some(last)) = (part.first(), part.last()) else {
            let silence = Duration::from_nanos(end.saturating_sub(start));
            return Arrived { bits_per_second: 0.0, longest_pause: silence };
        };
        let seconds = Duration::from_nanos(last.time - first.time).as_secs_f64();
        let bytes = last.total - first.total;
        let gap = part.iter().skip(1).map(|line| line.gap).max().unwrap_or(0);
        // The first gap may have begun before this part.
        let gap = gap.min(end - start);
        Arrived {
            bits_per_second: float(bytes) * 8.0 / seconds.max(1e-3),
            longest_pause: Duration::from_nanos(gap),
        }
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut numbers = line.split(' ').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(Line { time: next()?, total: next()?, gap: next()? })
}
